"""What an edit leads to: reloads, driver cards one by one, agents that come, go, and are started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qworkspace.errors import QworkspaceError, Unavailable
from qworkspace.workspace.watchers import HOME
from tests.support.agents import settled
from tests.support.edited import EditedHome


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[EditedHome]:
    made = EditedHome(tmp_path / "home", agents=("anna", "bert"))
    await made.open("anna")
    yield made
    await made.close()
    assert made.clashes == []


async def test_an_edited_agent_json_is_used(home: EditedHome) -> None:
    await home.edit("agent.json", {"id": "anna", "heartbeat": {"every": "1h"}})
    [reload] = home.history.reloads
    assert (reload.trigger, reload.changed, reload.rebuilt) == ("agent.json edited", ("heartbeat.every",), ("main",))


@pytest.mark.parametrize("name", ["SOUL.md", "MEMORY.md", "memory/2026-01-01.md", "skills/a/SKILL.md", "jobs.json"])
async def test_other_files_are_told_and_reload_nothing(home: EditedHome, name: str) -> None:
    await home.edit(name, "new")
    assert home.events("files.changed") == [{"type": "files.changed", "agent_id": "anna", "names": [name]}]
    assert home.history.reloads == []


async def test_driver_cards_are_passed_on_one_by_one(home: EditedHome) -> None:
    await home.edit("drivers/mail.json", {})
    await home.edit("drivers/web.json", {})
    await home.edit("drivers/mail.json", {"enabled": False})
    await home.edit("drivers/web.json", None)
    assert home.cards["anna"].told == ["reload mail", "reload web", "reload mail", "remove web"]
    assert home.history.reloads == []


async def test_a_driver_that_hangs_holds_up_neither_other_cards_nor_the_agent(home: EditedHome) -> None:
    cards = home.cards["anna"]
    cards.hang["slow"] = asyncio.Event()
    for _ in range(3):
        await home.edit("drivers/slow.json", {})
    (home.home / "workspaces/anna/agent.json").write_text('{"id": "anna", "heartbeat": {"every": "1h"}}')
    await home.noticed("anna", "drivers/mail.json", "agent.json")
    assert cards.told == ["reload slow", "remove mail"]
    assert home.outcomes() == ["applied"]
    cards.hang["slow"].set()
    await settled(home, 1)
    assert cards.told[2:] == ["reload slow"]  # what came meanwhile is one more edit


@pytest.mark.parametrize("error", [Unavailable("no such program 'x'"), ValueError("no such program 'x'")])
async def test_a_driver_that_fails_is_shown_until_it_works(home: EditedHome, error: Exception) -> None:
    cards = home.cards["anna"]
    cards.fail["mail"] = error
    await home.edit("drivers/mail.json", {})
    [problem] = home.problems.of("anna")
    assert "'mail'" in problem.message and "no such program 'x'" in problem.message
    cards.fail.clear()
    await home.edit("drivers/mail.json", {"command": "y"})
    assert home.problems.of("anna") == []


async def test_an_edited_plugin_rebuilds_the_plugins_and_nothing_else(home: EditedHome) -> None:
    await home.edit("plugins/cook/main.py", "x = 1")
    [reload] = home.history.reloads
    assert (reload.trigger, reload.rebuilt, reload.changed) == ("plugin cook edited", ("plugins",), ())
    assert set(reload.moved) == {"main", "chats", "drivers"}


async def test_a_plugin_of_the_home_concerns_all_who_run(home: EditedHome) -> None:
    await home.edit("plugins/cook/main.py", "x = 1", key=HOME)
    assert [reload.agent_id for reload in home.history.reloads] == ["anna"]
    await home.manager.get("bert")
    await settled(home, 1)
    await home.edit("plugins/cook/main.py", "x = 2", key=HOME)
    assert [reload.agent_id for reload in home.history.reloads] == ["anna", "anna", "bert"]


async def test_agents_are_followed_from_their_start_to_their_end(home: EditedHome) -> None:
    assert set(home.hands.followed) == {HOME, "anna"}
    await home.manager.get("bert")
    await settled(home, 1)
    assert set(home.hands.followed) == {HOME, "anna", "bert"}
    await home.manager.disable_agent("bert")
    await settled(home, 1)
    assert set(home.hands.followed) == {HOME, "anna"}


async def test_an_agent_that_ends_while_one_begins_to_follow_it_is_not_followed(home: EditedHome) -> None:
    home.hands.slow = asyncio.Event()
    await home.manager.get("bert")
    await home.manager.disable_agent("bert")
    await settled(home, 1)
    home.hands.slow.set()
    await settled(home, 1)
    assert set(home.hands.followed) == {HOME, "anna"}


async def test_an_edit_during_the_start_is_not_missed(home: EditedHome) -> None:
    home.seconds["bert"] = 5
    starting = asyncio.create_task(home.manager.get("bert"))
    await settled(home, 1)
    home.write_agent("bert", {"id": "bert", "running": {"max_iters": 3}})
    await settled(home, 10)
    await settled(home, 1)
    assert (await starting).config.running.max_iters == 3


async def test_an_agent_that_could_not_start_is_started_when_its_file_is_mended(home: EditedHome) -> None:
    home.write_agent("bert", "{")
    with pytest.raises(Unavailable):
        await home.manager.get("bert")
    await settled(home, 1)
    assert home.shown() == ["agent:bert"]
    await home.edit("agent.json", '{"id": "bert", "id": "bert"}', key="bert")
    assert home.shown() == ["agent:bert"]
    assert "is there twice" in home.problems.of("bert")[0].message
    await home.edit("agent.json", {"id": "bert"}, key="bert")
    assert home.manager.find("bert") is not None
    assert home.shown() == []


async def test_a_file_that_is_mended_before_anyone_follows_it_starts_its_agent(home: EditedHome) -> None:
    home.hands.slow = asyncio.Event()
    home.write_agent("bert", "{")
    with pytest.raises(Unavailable):
        await home.manager.get("bert")
    home.write_agent("bert", {"id": "bert"})
    home.hands.slow.set()
    await settled(home, 1)
    assert home.manager.find("bert") is not None


async def test_an_edit_of_an_agent_that_nobody_wanted_starts_nothing(home: EditedHome) -> None:
    home.write_agent("bert", {"id": "bert", "name": "x"})
    assert home.manager.find("bert") is None
    assert "bert" not in home.hands.followed


async def test_a_secret_that_comes_mends_those_who_need_it(home: EditedHome) -> None:
    needs = {"channels": {"console": {"enabled": True, "bot_token": "${TOKEN_OF_A_TEST}"}}}
    await home.edit("agent.json", {"id": "anna", **needs})
    home.write_agent("bert", {"id": "bert", **needs})
    with pytest.raises(QworkspaceError):
        await home.manager.get("bert")
    await settled(home, 1)
    assert home.shown() == ["config:anna", "agent:bert"]
    await home.edit("secrets.json", {"TOKEN_OF_A_TEST": "secret"}, key=HOME)
    assert home.shown() == []
    assert home.outcomes() == ["failed", "live"]
    assert home.manager.find("bert") is not None


async def test_a_broken_config_json_changes_nothing_until_it_is_mended(home: EditedHome) -> None:
    good = (home.home / "config.json").read_text()
    await home.edit("config.json", good[: len(good) // 2], key=HOME)
    [problem] = home.problems.of()
    assert problem.key == "config" and "config.json:1:" in problem.message
    assert (await home.manager.get("bert")).agent_id == "bert"
    await home.edit("config.json", good, key=HOME)
    assert (home.shown(), home.homes) == ([], [])


async def test_what_was_broken_from_the_start_counts_when_it_is_mended(tmp_path: Path) -> None:
    home = EditedHome(tmp_path / "home", agents=("anna", "bert"), eager=("bert",))
    good = (home.home / "config.json").read_text()
    (home.home / "config.json").write_text("{")
    await home.open()
    assert home.manager.running() == []
    await home.edit("config.json", good, key=HOME)
    assert len(home.homes) == 1
    assert [workspace.agent_id for workspace in home.manager.running()] == ["bert"]
    await home.close()


async def test_agents_come_and_go_with_config_json(home: EditedHome) -> None:
    home.write_agent("carl", {"id": "carl"})
    await home.edit_profiles(carl={"start": "eager"})
    assert {workspace.agent_id for workspace in home.manager.running()} == {"anna", "carl"}
    await home.edit_profiles(carl={"enabled": False}, anna=None)
    assert home.manager.running() == []
    for name, code in (("carl", "agent_disabled"), ("anna", "agent_not_found")):
        with pytest.raises(QworkspaceError) as refused:
            await home.manager.get(name)
        assert refused.value.code == code
    await home.edit_profiles(carl={})
    assert (await home.manager.get("carl")).agent_id == "carl"
    told = home.events("agent.created", "agent.disabled", "agent.deleted", "agent.enabled")
    assert [(event["type"], event["agent_id"]) for event in told] == [
        ("agent.created", "carl"),
        ("agent.deleted", "anna"),
        ("agent.disabled", "carl"),
        ("agent.enabled", "carl"),
    ]


async def test_what_the_daemon_writes_itself_is_told_once(home: EditedHome) -> None:
    await home.manager.disable_agent("bert")
    await home.noticed(HOME, "config.json")
    await home.manager.enable_agent("bert")
    await home.noticed(HOME, "config.json")
    await home.manager.delete_agent("bert")
    await home.noticed(HOME, "config.json")
    told = home.events("agent.disabled", "agent.enabled", "agent.deleted")
    assert [event["type"] for event in told] == ["agent.disabled", "agent.enabled", "agent.deleted"]
    assert home.history.reloads == []


async def test_a_slow_start_does_not_hold_up_the_next_edit(home: EditedHome) -> None:
    home.seconds["carl"] = 40
    home.write_agent("carl", {"id": "carl"})
    await home.edit_profiles(carl={"start": "eager"})
    await home.edit_profiles(anna=None)
    with pytest.raises(QworkspaceError):
        await home.manager.get("anna")
    await settled(home, 60)
    assert home.manager.find("carl") is not None


async def test_nothing_is_shown_of_an_agent_that_was_taken_out(home: EditedHome) -> None:
    await home.edit("agent.json", "{")
    assert home.shown() == ["config:anna"]
    await home.edit_profiles(anna=None)
    assert (home.shown(), set(home.hands.followed)) == ([], {HOME})


async def test_the_address_waits_for_a_restart_which_is_shown_as_long_as_it_is_true(home: EditedHome) -> None:
    await home.edit_home(server={"port": 9000, "allowed_hosts": ["box.local"]})
    [problem] = home.problems.of()
    assert (problem.severity, "server.port" in problem.message) == ("warning", True)
    assert home.homes[-1].server.allowed_hosts == ["box.local"]
    await home.edit_home(user_timezone="Europe/Berlin")
    assert home.shown() == ["restart"]
    await home.edit_home(server={"allowed_hosts": ["box.local"]})
    assert home.shown() == []


async def test_unknown_keys_are_shown_and_hold_nothing_up(home: EditedHome) -> None:
    await home.edit("agent.json", {"id": "anna", "heartbet": {}, "running": {"max_iters": 3}})
    assert home.outcomes() == ["live"]
    [problem] = home.problems.of("anna")
    assert problem.severity == "warning"
    assert "agent.json:1: unknown key 'heartbet', did you mean 'heartbeat'?" in problem.message
    await home.edit_home(usertimezone=None)
    assert home.shown() == ["unknown:anna", "unknown"]
    await home.edit("agent.json", {"id": "anna"})
    await home.edit("config.json", {"agents": {"profiles": {"anna": {}}}}, key=HOME)
    assert home.shown() == []


@pytest.mark.parametrize("then", [{}, {"running": {"max_iters": 3}}])
async def test_a_reload_that_failed_is_forgotten_when_its_edit_is_taken_back(
    home: EditedHome, then: dict[str, Any]
) -> None:
    home.wrong["anna"] = ["start"]
    await home.edit("agent.json", {"id": "anna", "heartbeat": {"every": "1h"}})
    assert home.shown() == ["reload:anna"]
    await home.edit("agent.json", {"id": "anna", **then})
    assert home.shown() == []


async def test_an_agent_disabled_while_it_is_rebuilt_shows_no_problem(home: EditedHome) -> None:
    home.seconds["anna"] = 5
    await home.edit("agent.json", {"id": "anna", "heartbeat": {"every": "1h"}})
    await home.manager.disable_agent("anna")
    await settled(home, 20)
    await settled(home, 1)
    home.seconds.clear()
    assert (home.shown(), home.manager.running()) == ([], [])
    await home.edit_profiles(anna={})
    assert (await home.manager.get("anna")).config.heartbeat.every == "1h"


async def test_a_channel_of_an_unknown_type_is_shown_until_it_is_mended(home: EditedHome) -> None:
    channels = {"console": {"enabled": True}, "off": {"type": "telegram"}, "mine": {"enabled": True, "type": "consle"}}
    await home.edit("agent.json", {"id": "anna", "channels": channels})
    [problem] = home.problems.of("anna")
    assert "channels.mine.type: there is no channel of type 'consle', did you mean 'console'?" in problem.message
    assert "telegram" not in problem.message
    await home.edit("agent.json", {"id": "anna"})
    assert home.shown() == []
