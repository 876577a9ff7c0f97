"""Services that move to the next instance of their agent, and the rule of which those are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.workspace.services import ServiceDescriptor, ServiceManager, ServiceState, movable
from tests.support.services import Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_a_moved_service_goes_on_untouched_through_a_swap(bench):
    old = bench.services(bench.descriptor("sessions", 10), bench.descriptor("cron", 40))
    await old.start()
    old.activate()
    sessions, bench.journal[:] = bench.made["sessions"], []
    new = bench.services(bench.descriptor("sessions", 10), bench.descriptor("cron", 40), generation=2)
    await new.start(old.running(["sessions"]))
    old.deactivate(keep=["sessions"])
    new.activate()
    await old.stop(keep=["sessions"])
    assert bench.journal == ["+cron", "<cron", ">cron", "-cron"]
    assert new.get("sessions") is sessions
    assert sessions.acting
    await new.stop()
    assert bench.journal[4:] == ["<cron", "-cron", "<sessions", "-sessions"]


async def test_a_failed_build_leaves_the_old_instance_as_it_was(bench):
    old = bench.services(bench.descriptor("sessions", 10), bench.descriptor("cron", 40))
    await old.start()
    old.activate()
    before = list(bench.journal)
    new = bench.services(
        bench.descriptor("sessions", 10),
        bench.descriptor("extra", 20),
        bench.descriptor("cron", 40, wrong=["start"]),
        generation=2,
    )
    with pytest.raises(ValueError, match="cron cannot start"):
        await new.start(old.running(["sessions"]))
    assert bench.journal == [*before, "+extra", "-extra"]
    assert bench.made["sessions"].acting
    assert old.states()["sessions"].state is ServiceState.ACTIVE
    await old.stop()


async def test_a_failed_activation_can_be_rolled_back_to_the_old_instance(bench):
    old = bench.services(bench.descriptor("sessions", 10), bench.descriptor("cron", 40))
    await old.start()
    old.activate()
    old_cron = bench.made["cron"]
    new = bench.services(
        bench.descriptor("sessions", 10), bench.descriptor("cron", 40, wrong=["activate"]), generation=2
    )
    await new.start(old.running(["sessions"]))
    old.deactivate(keep=["sessions"])
    with pytest.raises(ValueError, match="cron cannot activate"):
        new.activate()
    old.activate()
    await new.stop()
    assert old_cron.acting
    assert not bench.made["cron"].acting
    assert bench.made["sessions"].acting
    await old.stop()


async def test_a_shared_service_ends_with_the_last_instance_that_holds_it(bench):
    """A retired instance still serves a turn while the next but one rebuilds what it uses."""
    first = bench.services(bench.descriptor("memory"))
    await first.start()
    second = bench.services(bench.descriptor("memory"), generation=2)
    await second.start(first.running(["memory"]))
    third = bench.services(bench.descriptor("memory"), generation=3)
    memory = bench.made["memory"]
    await third.start()
    await second.stop()
    assert memory.started
    await first.stop()
    assert not memory.started
    await third.stop()


async def test_what_is_absent_or_ended_cannot_be_handed_over(bench):
    manager = bench.services(bench.descriptor("a", 10), bench.descriptor("b", 20, optional=True, wrong=["start"]))
    await manager.start()
    assert set(manager.running(["a", "b"])) == {"a"}
    await manager.stop()
    assert manager.running(["a", "b"]) == {}


def declared(*services: tuple[str, tuple[str, ...], tuple[str, ...]]) -> list[ServiceDescriptor]:
    def make(_: ServiceManager):
        raise AssertionError("a plan makes nothing")

    return [ServiceDescriptor(n, make, 10, sections=sections, depends_on=deps) for n, sections, deps in services]


def test_a_service_moves_when_its_sections_and_dependencies_do():
    services = declared(
        ("memory", ("running.memory",), ()),
        ("dream", ("cron",), ("memory",)),
        ("chats", (), ()),
        ("cron", ("cron",), ()),
    )
    old = {"running": {"max_iters": 5, "memory": {"on": True}}, "cron": {}}
    assert movable(old, {**old, "running": {"max_iters": 9, "memory": {"on": True}}}, services) == {
        "memory", "dream", "chats", "cron"
    }  # fmt: skip
    assert movable(old, {**old, "running": {"max_iters": 5, "memory": {"on": 1}}}, services) == {"chats", "cron"}
    assert movable(old, {"running": old["running"]}, services) == {"memory", "chats"}
    assert movable(old, old, services, rebuild={"memory"}) == {"chats", "cron"}


_sections = st.dictionaries(st.sampled_from("pqr"), st.integers(0, 2))


@given(st.data(), _sections, _sections)
def test_movable_is_exact(data, old, new):
    names = list("abcde")
    services = declared(
        *(
            (
                name,
                tuple(data.draw(st.sets(st.sampled_from("pqr")))),
                tuple(data.draw(st.sets(st.sampled_from(names[:index])))) if index else (),
            )
            for index, name in enumerate(names)
        )
    )
    moving = movable(old, new, services)
    for service in services:
        equal = all(old.get(section) == new.get(section) for section in service.sections)
        assert (service.name in moving) == (equal and set(service.depends_on) <= moving)
