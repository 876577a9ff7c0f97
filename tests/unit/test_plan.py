"""What a change does, for any two configurations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from qworkspace.config.models import AgentConfig
from qworkspace.config.plan import changes, home_plan, movable, part, plan


@dataclass(frozen=True)
class Service:
    name: str
    sections: tuple[str, ...] = ()
    depends_on: tuple[str, ...] = ()


SERVICES = (
    Service("sessions"),
    Service("memory", ("running.memory", "running.memory_manager_backend")),
    Service("channels", ("channels",)),
    Service("cron", ("cron", "heartbeat"), ("channels",)),
    Service("proactive", ("proactive",), ("cron", "memory")),
)

raw_agents = st.fixed_dictionaries(
    {"id": st.just("a")},
    optional={
        "description": st.text(max_size=5),
        "heartbeat": st.fixed_dictionaries({"every": st.sampled_from(["30m", "1h", "0m"])}),
        "cron": st.fixed_dictionaries({"dream_cron": st.sampled_from(["0 23 * * *", "0 1 * * *"])}),
        "proactive": st.fixed_dictionaries({"enabled": st.booleans()}),
        "channels": st.dictionaries(st.sampled_from(["console", "hook"]), st.builds(dict, enabled=st.booleans())),
        "running": st.fixed_dictionaries(
            {"max_iters": st.integers(1, 3)},
            optional={"memory": st.fixed_dictionaries({"auto_memory_interval": st.integers(0, 3)})},
        ),
    },
)


def sections(raw: dict[str, Any]) -> dict[str, Any]:
    return AgentConfig.model_validate(raw).sections()


@given(raw_agents, raw_agents, st.sets(st.sampled_from([s.name for s in SERVICES])), st.data())
def test_every_service_of_the_new_set_is_moved_rebuilt_or_added(
    old: dict[str, Any], new: dict[str, Any], gone: set[str], data: st.DataObject
) -> None:
    after = [s for s in SERVICES if s.name not in gone and not gone.intersection(s.depends_on)]
    before = data.draw(st.sets(st.sampled_from(SERVICES)).map(list))
    result = plan(sections(old), sections(new), before, after)
    parts = [*result.moved, *result.rebuilt, *result.added]
    assert sorted(parts) == sorted(s.name for s in after)
    assert set(result.removed) == {s.name for s in before} - {s.name for s in after}


@given(raw_agents, raw_agents)
def test_no_service_is_rebuilt_whose_sections_and_dependencies_are_equal(
    old: dict[str, Any], new: dict[str, Any]
) -> None:
    before, after = sections(old), sections(new)
    result = plan(before, after, SERVICES, SERVICES)
    for service in SERVICES:
        equal = all(part(before, name) == part(after, name) for name in service.sections)
        assert (service.name in result.moved) == (equal and set(service.depends_on) <= set(result.moved))


@given(raw_agents)
def test_an_equal_configuration_is_nothing_to_do(raw: dict[str, Any]) -> None:
    result = plan(sections(raw), sections(dict(reversed(raw.items()))), SERVICES, SERVICES)
    assert (result.kind, result.changed) == ("nothing", ())


@given(raw_agents, raw_agents)
def test_live_fields_are_exactly_those_that_rebuild_nothing(old: dict[str, Any], new: dict[str, Any]) -> None:
    result = plan(sections(old), sections(new), SERVICES, SERVICES)
    assert (result.kind == "live") == (bool(result.changed) and not result.rebuilt)
    assert set(result.live) <= set(result.changed)
    assert bool(set(result.changed) - set(result.live)) == bool(result.rebuilt)


def test_a_dependant_is_rebuilt_with_what_it_stands_on() -> None:
    old, new = sections({"id": "a"}), sections({"id": "a", "channels": {"hook": {"enabled": True}}})
    result = plan(old, new, SERVICES, SERVICES)
    assert result.rebuilt == ("channels", "cron", "proactive")
    assert result.moved == ("sessions", "memory")
    assert result.changed == ("channels.hook",)


def test_what_must_be_rebuilt_never_moves() -> None:
    same = sections({"id": "a"})
    assert movable(same, same, SERVICES, rebuild={"channels"}) == {"sessions", "memory"}


def test_a_changed_secret_shows_and_its_value_does_not() -> None:
    old = {"drivers": {"x": {"env": {"KEY": "one-secret"}}}}
    new = {"drivers": {"x": {"env": {"KEY": "two-secret"}}}}
    result = plan(sections({"id": "a", **old}), sections({"id": "a", **new}), [Service("d", ("drivers",))], [])
    assert result.changed == ("drivers.x.env.KEY",)
    assert "secret" not in str(result)


def test_only_the_address_waits_for_a_restart() -> None:
    old = {"server": {"host": "127.0.0.1", "port": 1, "allowed_hosts": []}, "providers": {}}
    new = {"server": {"host": "127.0.0.1", "port": 2, "allowed_hosts": ["x"]}, "providers": {"p": {}}}
    result = home_plan(old, new)
    assert result.restart == ("server.port",)
    assert result.live == ("server.allowed_hosts", "providers.p")


def test_a_number_is_not_a_truth_value() -> None:
    assert list(changes({"a": 1}, {"a": True})) == ["a"]
