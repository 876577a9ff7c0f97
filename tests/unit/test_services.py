"""The life cycle of services: order, all or nothing, hand-over, hanging, supervision."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.errors import Conflict, Duplicate, InvalidInput, NotFound, Unavailable
from qworkspace.workspace.services import ServiceDescriptor, ServiceState, arrange
from tests.support.services import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_services_start_by_priority_and_stop_in_reverse(bench):
    manager = bench.services(
        bench.descriptor("chats", 20), bench.descriptor("local", 5), bench.descriptor("memory", 10)
    )
    await manager.start()
    manager.activate()
    manager.deactivate()
    await manager.stop()
    assert bench.journal == [
        "+local", "+memory", "+chats", ">local", ">memory", ">chats", "<chats", "<memory", "<local",
        "-chats", "-memory", "-local",
    ]  # fmt: skip


async def test_a_failing_start_stops_what_had_started(bench):
    manager = bench.services(bench.descriptor("memory", 10), bench.descriptor("chats", 20, wrong=["start"]))
    with pytest.raises(ValueError, match="chats cannot start") as failure:
        await manager.start()
    assert bench.journal == ["+memory", "-memory"]
    assert failure.value.__notes__ == ["while starting service 'chats' of agent 'anna'"]


async def test_a_half_started_service_is_freed_too(bench):
    freed = []

    class Half:
        async def start(self):
            raise OSError("no")

        def activate(self): ...
        def deactivate(self): ...

        async def stop(self):
            freed.append("half")

    manager = bench.services(ServiceDescriptor("half", lambda _: Half(), 10))
    with pytest.raises(OSError, match="no"):
        await manager.start()
    assert freed == ["half"]


async def test_a_service_that_cannot_be_made_fails_the_start(bench):
    manager = bench.services(bench.descriptor("memory", 10), bench.descriptor("chats", 20, wrong=["make"]))
    with pytest.raises(ValueError, match="cannot be made"):
        await manager.start()
    assert bench.journal == ["+memory", "-memory"]


async def test_stop_without_deactivate_makes_quiet_first(bench):
    manager = bench.services(bench.descriptor("cron"))
    await manager.start()
    manager.activate()
    await manager.stop()
    await manager.stop()
    assert bench.journal == ["+cron", ">cron", "<cron", "-cron"]
    assert manager.states()["cron"].state is ServiceState.STOPPED


async def test_concurrent_services_of_one_priority_start_together_and_the_others_alone(bench):
    slow = {"start_seconds": 5.0}
    manager = bench.services(
        bench.descriptor("a", 20, concurrent=True, **slow),
        bench.descriptor("b", 20, concurrent=True, **slow),
        bench.descriptor("c", 20, **slow),
    )
    starting = asyncio.create_task(manager.start())
    await bench.clock.advance(5)
    assert sorted(bench.journal) == ["+a", "+b"]
    await bench.clock.advance(5)
    await starting
    assert bench.journal[2] == "+c"
    await manager.stop()
    assert bench.journal[3:] == ["-c", "-b", "-a"]


async def test_a_failure_does_not_wait_for_slow_neighbours(bench):
    manager = bench.services(
        bench.descriptor("early", 10),
        bench.descriptor("slow", 20, concurrent=True, wrong=["hang start"]),
        bench.descriptor("bad", 20, concurrent=True, wrong=["start"]),
    )
    with pytest.raises(ValueError, match="bad cannot start"):
        await asyncio.wait_for(manager.start(), 1)
    assert bench.journal == ["+early", "-early"]
    assert not bench.made["slow"].started


async def test_an_optional_service_may_be_absent_with_its_reason_shown(bench):
    found = []
    manager = bench.services(
        bench.descriptor("memory", 10, optional=True, wrong=["start"]),
        bench.descriptor("chats", 20, depends_on=("memory",), needs=lambda s: found.append(s.find("memory"))),
    )
    await manager.start()
    manager.activate()
    assert found == [None]
    assert bench.journal == ["+chats", ">chats"]
    assert bench.shown() == ["memory of agent 'anna' is off: ValueError: memory cannot start"]
    assert manager.states()["memory"].state is ServiceState.FAILED
    assert "memory cannot start" in manager.states()["memory"].reason
    with pytest.raises(Unavailable, match=r"memory of agent 'anna' is not available: .*cannot start"):
        manager.get("memory")
    await manager.stop()
    assert bench.shown() == []


async def test_an_optional_service_that_needs_an_absent_one_is_absent_too(bench):
    manager = bench.services(
        bench.descriptor("memory", 10, optional=True, wrong=["start"]),
        bench.descriptor("dream", 20, optional=True, depends_on=("memory",), needs=lambda s: s.get("memory")),
        bench.descriptor("chats", 30),
    )
    await manager.start()
    assert bench.journal == ["+chats"]
    assert "memory of agent 'anna' is not available" in manager.states()["dream"].reason
    await manager.stop()


async def test_services_find_what_they_depend_on(bench):
    found = []
    manager = bench.services(
        bench.descriptor("sessions", 10),
        bench.descriptor("chats", 20, depends_on=("sessions",), needs=lambda s: found.append(s.get("sessions"))),
    )
    with pytest.raises(Unavailable, match="sessions of agent 'anna' is not available: it is not started"):
        manager.get("sessions")
    with pytest.raises(NotFound):
        manager.get("sesions")
    await manager.start()
    assert found == [bench.made["sessions"]]
    await manager.stop()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([("a", 10, ("x",))], "service 'a' depends on 'x', which is not declared"),
        ([("a", 10, ("b",)), ("b", 20, ())], r"'a' \(priority 10\) depends on 'b', which starts later"),
        ([("a", 10, ("b",)), ("b", 10, ("a",))], "depend on each other in a circle: a, b"),
        ([("a", 10, ("a",))], "circle: a"),
    ],
)
def test_wrong_dependencies_are_refused(bench, declared, message):
    with pytest.raises(InvalidInput, match=message):
        bench.services(*(bench.descriptor(name, priority, depends_on=deps) for name, priority, deps in declared))


def test_a_name_declared_twice_is_refused(bench):
    with pytest.raises(Duplicate, match="'a'"):
        bench.services(bench.descriptor("a"), bench.descriptor("a", 20))


async def test_dependencies_inside_one_priority_start_first(bench):
    manager = bench.services(
        bench.descriptor("chats", 20, depends_on=("memory",), concurrent=True),
        bench.descriptor("memory", 20, concurrent=True),
    )
    await manager.start()
    await manager.stop()
    assert bench.journal == ["+memory", "+chats", "-chats", "-memory"]


async def test_a_manager_starts_once(bench):
    manager = bench.services(bench.descriptor("a"))
    await manager.start()
    with pytest.raises(Conflict):
        await manager.start()
    await manager.stop()
    assert bench.journal == ["+a", "-a"]


async def test_one_task_owns_a_service_from_start_to_stop(bench):
    old = bench.services(bench.descriptor("a"))
    await old.start()
    new = bench.services(bench.descriptor("a"), generation=2)
    await new.start(old.running(["a"]))
    await old.stop()
    await new.stop()
    first, last = bench.made["a"].tasks
    assert first is last
    assert first is not asyncio.current_task()


# Hanging and cancelled steps


async def test_a_start_that_hangs_fails_after_its_time(bench):
    manager = bench.services(bench.descriptor("memory", 10), bench.descriptor("chats", 20, wrong=["hang start"]))
    starting = asyncio.create_task(manager.start())
    await bench.clock.advance(59)
    assert not starting.done()
    assert manager.states()["chats"].state is ServiceState.STARTING
    await bench.clock.advance(2)
    with pytest.raises(Unavailable, match="service 'chats' did not start within 60 s"):
        await starting
    assert bench.journal == ["+memory", "-memory"]


async def test_a_cancelled_start_undoes_itself(bench):
    manager = bench.services(bench.descriptor("memory", 10), bench.descriptor("chats", 20, wrong=["hang start"]))
    starting = asyncio.create_task(manager.start())
    await bench.clock.advance(1)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert bench.journal == ["+memory", "-memory"]
    assert not bench.made["chats"].started


async def test_a_second_cancellation_does_not_cut_the_undo_short(bench):
    manager = bench.services(
        bench.descriptor("memory", 10, stop_seconds=3), bench.descriptor("chats", 20, wrong=["hang start"])
    )
    starting = asyncio.create_task(manager.start())
    await bench.clock.advance(1)
    starting.cancel()
    await bench.clock.advance(1)
    starting.cancel()
    await bench.clock.advance(3)
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert bench.journal == ["+memory", "-memory"]


async def test_a_stop_that_hangs_does_not_hold_up_the_others(bench):
    manager = bench.services(bench.descriptor("a", 10), bench.descriptor("b", 20, wrong=["hang stop"]))
    await manager.start()
    stopping = asyncio.create_task(manager.stop())
    await bench.clock.advance(11)
    await asyncio.wait_for(stopping, 1)
    assert bench.journal == ["+a", "+b", "-a"]
    assert manager.states()["b"].state is ServiceState.FAILED


async def test_a_stop_that_raises_does_not_hold_up_the_others(bench):
    manager = bench.services(bench.descriptor("a", 10), bench.descriptor("b", 20, wrong=["stop"]))
    await manager.start()
    await manager.stop()
    assert bench.journal == ["+a", "+b", "-a"]
    assert "b cannot stop" in manager.states()["b"].reason


async def test_a_service_that_ignores_cancellation_is_given_up_and_shown(bench):
    manager = bench.services(bench.descriptor("deaf", 10, wrong=["never end"]))
    starting = asyncio.create_task(manager.start())
    await bench.clock.advance(60 + 10 + 2 + 10 + 2)
    with pytest.raises(Unavailable, match="did not start within"):
        await asyncio.wait_for(starting, 1)
    assert bench.shown() == ["anna/deaf: does not end, not even cancelled; a restart frees it"]
    owner = next(task for task in asyncio.all_tasks() if task.get_name() == "anna/deaf/owner")
    while not owner.done():
        owner.cancel()
        await asyncio.sleep(0)
    assert bench.shown() == []


# Acting


async def test_an_activate_that_raises_takes_back_those_before_it(bench):
    manager = bench.services(
        bench.descriptor("a", 10), bench.descriptor("b", 20), bench.descriptor("c", 30, wrong=["activate"])
    )
    await manager.start()
    with pytest.raises(ValueError, match="c cannot activate"):
        manager.activate()
    assert bench.journal[3:] == [">a", ">b", "<c", "<b", "<a"]
    assert not any(recorder.acting for recorder in bench.made.values())
    bench.made["c"].wrong.clear()
    manager.activate()
    assert all(recorder.acting for recorder in bench.made.values())
    await manager.stop()


async def test_an_optional_service_that_cannot_act_is_shown_and_the_rest_acts(bench):
    manager = bench.services(bench.descriptor("a", 10, optional=True, wrong=["activate"]), bench.descriptor("b", 20))
    await manager.start()
    manager.activate()
    assert bench.made["b"].acting
    assert not bench.made["a"].acting
    assert bench.shown() == ["a of agent 'anna' is off: ValueError: a cannot activate"]
    await manager.stop()
    assert bench.journal[-2:] == ["-b", "-a"]


async def test_a_deactivate_that_raises_is_named_and_the_others_are_quiet(bench):
    manager = bench.services(bench.descriptor("a", 10), bench.descriptor("b", 20, wrong=["deactivate"]))
    await manager.start()
    manager.activate()
    assert manager.deactivate() == ["b"]
    assert not bench.made["a"].acting
    assert bench.shown() == ["anna/b: could not be made quiet: ValueError: b cannot deactivate"]
    await manager.stop()
    assert bench.shown() == []


@given(st.data())
def test_every_service_starts_once_and_after_what_it_needs(data):
    names = list("abcdef")
    priority = {name: data.draw(st.sampled_from([5, 10, 20])) for name in names}
    services = []
    for index, name in enumerate(names):
        able = [other for other in names[:index] if priority[other] <= priority[name]]
        deps = tuple(data.draw(st.sets(st.sampled_from(able)))) if able else ()
        concurrent = data.draw(st.booleans())
        services.append(ServiceDescriptor(name, lambda _: None, priority[name], (), deps, False, concurrent))  # type: ignore[arg-type,return-value]
    seen: list[str] = []
    for batch in arrange(data.draw(st.permutations(services))):
        assert len(batch) == 1 or all(service.concurrent for service in batch)
        for service in batch:
            assert set(service.depends_on) <= set(seen)
        seen += [service.name for service in batch]
    assert sorted(seen) == names
    assert [priority[name] for name in seen] == sorted(priority.values())
