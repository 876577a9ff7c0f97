"""Registries: owners, order, undo."""

from __future__ import annotations

import pytest

from qworkspace.base.registry import Registry
from qworkspace.errors import Duplicate, NotFound


def test_a_taken_name_is_refused_and_both_owners_are_named() -> None:
    registry: Registry[int] = Registry("tool")
    registry.add("shell", 1, owner="built-in")
    with pytest.raises(Duplicate, match=r"'shell' of 'my-plugin' is already registered by 'built-in'"):
        registry.add("shell", 2, owner="my-plugin")
    assert registry.get("shell") == 1


def test_values_come_by_priority_then_in_the_order_of_registration() -> None:
    registry: Registry[str] = Registry("hook")
    for name, priority in [("b", 100), ("last", 200), ("a", 100), ("first", 10)]:
        registry.add(name, name.upper(), owner="x", priority=priority)
    assert registry.values() == ["FIRST", "B", "A", "LAST"]
    assert list(registry) == ["first", "b", "a", "last"]
    assert len(registry) == 4


def test_undo_takes_away_its_own_entry_only_and_only_once() -> None:
    registry: Registry[int] = Registry("command")
    undo = registry.add("x", 1, owner="old")
    undo()
    assert "x" not in registry
    registry.add("x", 2, owner="new")
    undo()
    assert registry.get("x") == 2


def test_what_is_missing_is_named_together_with_what_is_there() -> None:
    registry: Registry[int] = Registry("mode")
    with pytest.raises(NotFound, match="no mode 'plan'; known: none"):
        registry.get("plan")
    registry.add("careful", 1, owner="x")
    with pytest.raises(NotFound, match="known: careful") as caught:
        registry.get("plan")
    assert caught.value.code == "mode_not_found"
    assert registry.find("plan") is None


def test_everything_of_one_owner_leaves_together() -> None:
    registry: Registry[int] = Registry("tool")
    for number, owner in enumerate(["plugin", "built-in", "plugin"]):
        registry.add(f"tool{number}", number, owner=owner)
    assert registry.remove_owner("plugin") == 2
    assert [(entry.name, entry.owner) for entry in registry.entries()] == [("tool1", "built-in")]
    assert registry.remove_owner("plugin") == 0
