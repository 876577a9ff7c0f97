"""What a change of configuration does: which services move untouched, which are rebuilt, what holds at once."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Sections = Mapping[str, Any]
RESTART_FIELDS = ("server.host", "server.port")


class Declared(Protocol):
    """What the plan needs to know of a service: its name, the sections it reads, the services it stands on."""

    @property
    def name(self) -> str: ...

    @property
    def sections(self) -> tuple[str, ...]: ...

    @property
    def depends_on(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Plan:
    """The consequences of a change. `changed` are dotted names of the fields that differ, never their values.

    `moved`, `rebuilt`, `added` and `removed` are services; `live` are changed fields that no service holds: they
    count from the next turn on. `restart` are changed fields that wait for the daemon's next start.
    """

    changed: tuple[str, ...] = ()
    moved: tuple[str, ...] = ()
    rebuilt: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()

    @property
    def kind(self) -> Literal["nothing", "live", "reload"]:
        """Whether there is nothing to do, the configuration is swapped only, or a new instance is built."""
        if self.rebuilt or self.added or self.removed:
            return "reload"
        return "live" if self.changed else "nothing"


def plan(
    old: Sections,
    new: Sections,
    before: Iterable[Declared],
    after: Iterable[Declared],
    *,
    rebuild: Collection[str] = (),
) -> Plan:
    """The plan of the change from `old` to `new`; the services `before` and `after` may differ (plugins).

    A service moves when its sections are equal and all that it depends on moves too; never one named in `rebuild`.
    """
    known = {service.name: service for service in before}
    wanted = {service.name: service for service in after}
    moved = movable(old, new, [service for name, service in wanted.items() if name in known], rebuild=rebuild)
    changed = tuple(changes(old, new))
    held = [section for service in wanted.values() for section in service.sections]
    return Plan(
        changed=changed,
        moved=tuple(name for name in wanted if name in moved),
        rebuilt=tuple(name for name in wanted if name in known and name not in moved),
        added=tuple(name for name in wanted if name not in known),
        removed=tuple(name for name in known if name not in wanted),
        live=tuple(field for field in changed if not any(_touches(field, section) for section in held)),
    )


def movable(old: Sections, new: Sections, services: Iterable[Declared], *, rebuild: Collection[str] = ()) -> set[str]:
    """The services that go on untouched: their sections are equal and their dependencies are among them."""
    declared = list(services)
    moving = {
        service.name
        for service in declared
        if service.name not in rebuild and all(_same(part(old, s), part(new, s)) for s in service.sections)
    }
    while leaving := {s.name for s in declared if s.name in moving and not moving.issuperset(s.depends_on)}:
        moving -= leaving
    return moving


def changes(old: Any, new: Any, prefix: str = "") -> Iterator[str]:
    """Dotted names of the smallest fields that differ between two JSON values."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)):
        if not _same(old, new):
            yield prefix or "(everything)"
        return
    for key in [*old, *(key for key in new if key not in old)]:
        name = f"{prefix}.{key}" if prefix else str(key)
        if key in old and key in new:
            yield from changes(old[key], new[key], name)
        else:
            yield name


def home_plan(old: Sections, new: Sections) -> Plan:
    """The plan of a change of config.json: all of it counts at once but the address, which waits for a restart."""
    changed = tuple(changes(old, new))
    restart = tuple(field for field in changed if field in RESTART_FIELDS)
    return Plan(changed=changed, restart=restart, live=tuple(field for field in changed if field not in restart))


def part(sections: Sections, dotted: str) -> Any:
    """The value at that dotted name, None when it is not there."""
    value: Any = sections
    for key in dotted.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def _touches(field: str, section: str) -> bool:
    return field == section or field.startswith(f"{section}.") or section.startswith(f"{field}.")


def _same(old: Any, new: Any) -> bool:
    """Equality as JSON: True is not 1, and the order of keys means nothing."""
    return old is new or json.dumps(old, sort_keys=True, default=str) == json.dumps(new, sort_keys=True, default=str)
