"""A real daemon follows its files: instances that end in their own time, agents that come and go, other providers."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import DaemonProcess, write_home, write_json
from tests.support.editing import EditedAgent, in_place, rename_over, until
from tests.support.limited import FILES
from tests.support.model_process import ModelProcess
from tests.support.model_server import ModelServer
from tests.support.talking import Seen, SseEvent, Talker

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits are POSIX")
AGENTS = ("default", "second", "third", "fourth")
SLOW = "[[slow:0.1]] " + "word " * 30
SAID = "echo: " + " ".join(["word"] * 30)


@pytest.fixture(scope="module")
def models() -> Iterator[ModelProcess]:
    with ModelProcess() as process:
        yield process


@pytest.fixture(scope="module")
def daemon(models: ModelProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """A daemon whose agents tick like schedulers, with its model library loaded."""
    config = {"lifecycle": {"drain_notice": 0.3}}
    home = write_home(
        tmp_path_factory.mktemp("reload") / "home", models=models.url, agents=AGENTS, config=config, memory=True
    )
    with DaemonProcess(home, module="tests.support.ticking") as process:
        process.chat("are you there?", session="warm")
        yield process


@pytest.fixture
async def agent(daemon: DaemonProcess, models: ModelProcess) -> AsyncIterator[EditedAgent]:
    async with talking_to(daemon, models, "default") as found:
        yield found


@asynccontextmanager
async def talking_to(daemon: DaemonProcess, models: ModelProcess, name: str) -> AsyncIterator[EditedAgent]:
    async with Talker(daemon, name) as talker:
        yield EditedAgent(daemon, models, talker)


@asynccontextmanager
async def slow_turn(agent: EditedAgent, session: str) -> AsyncIterator[Seen]:
    """A turn that runs during the block, and ends well after it."""
    async with agent.talker.sending(SLOW, session) as (seen, events):
        await _first_words(events)
        yield seen
        async for _ in events:
            pass
    assert seen.end is not None and seen.end.type == "turn.completed", seen.end
    assert seen.end.data["text"] == seen.text == SAID


async def _first_words(events: AsyncIterator[SseEvent]) -> None:
    async for event in events:
        if event.type == "text.delta":
            return


def edit_home(daemon: DaemonProcess, **changes: Any) -> None:
    """Change top-level keys of config.json, by hand."""
    path = daemon.home / "config.json"
    write_json(path, json.loads(path.read_text(encoding="utf-8")) | changes)


def edit_profile(daemon: DaemonProcess, name: str, profile: dict[str, Any] | None) -> None:
    """Change an agent's entry in config.json by hand; None takes it out."""
    agents = json.loads((daemon.home / "config.json").read_text(encoding="utf-8"))["agents"]
    profiles = {**agents["profiles"], name: profile}
    kept = {key: value for key, value in profiles.items() if value is not None}
    edit_home(daemon, agents=agents | {"profiles": kept})


async def test_a_turn_ends_on_its_instance_however_long_it_takes(agent: EditedAgent) -> None:
    await agent.prompt()
    process = psutil.Process(agent.daemon.pid)
    files, generation = process.num_fds(), (await agent.status())["generation"]

    async def draining() -> list[dict[str, Any]]:
        return [item for item in (await agent.status())["retired"] if item["state"] == "draining"]

    async def ended() -> bool:
        return not (await agent.status())["retired"]

    async with slow_turn(agent, "long") as seen:
        done = await agent.put(heartbeat={"every": "61m"})
        assert (done["outcome"], done["generation"]) == ("applied", generation + 1)
        [retired] = await until(draining)
        assert (retired["generation"], retired["turns"]) == (generation, 1)
        [problem] = await agent.problems("draining")
        assert (problem["severity"], f"instance {generation}" in problem["message"]) == ("warning", True)
        assert (await agent.talker.say("and you?", "beside")).text == "echo: and you?"
        assert seen.end is None
    await until(ended)
    assert await agent.problems() == []

    async def settled() -> bool:
        drained = (await agent.reloads())[0]["timings"]["drain_ms"]
        return bool(drained is not None and process.num_fds() <= files + 3)

    await until(settled)
    assert (await agent.reloads())[0]["timings"]["drain_ms"] > 300
    assert agent.ticks.flawless, agent.ticks


async def test_an_agent_added_to_config_json_answers_at_once(daemon: DaemonProcess, models: ModelProcess) -> None:
    async with talking_to(daemon, models, "added") as added:
        write_json(added.file, {"id": "added", "name": "Addie"})
        assert (await added.talker.say("hello?")).status == 404
        edit_profile(daemon, "added", {})
        assert (await added.talker.say("hello?")).text == "echo: hello?"
        known = len(await added.reloads())
        await in_place(added.file, added.text(name="Adele"))
        await added.reloaded(known)
        assert "You are Adele (added)." in await added.prompt()


async def test_an_agent_that_must_be_up_starts_when_its_broken_file_is_mended(
    daemon: DaemonProcess, models: ModelProcess
) -> None:
    async with talking_to(daemon, models, "eager") as eager:
        write_json(eager.file, {"id": "eager", "heartbeat": {"every": 5}})
        edit_profile(daemon, "eager", {"start": "eager"})
        [problem] = await until(lambda: eager.problems())
        assert "cannot start" in problem["message"] and "heartbeat.every must be a text, not 5" in problem["message"]
        refused = await eager.talker.request("POST", "chat", json={"session_id": "s1", "message": "hello?"})
        assert refused.status_code == 503 and "heartbeat.every" in refused.json()["error"]["message"]
        await in_place(eager.file, eager.text(heartbeat={"every": "5m"}))

        async def runs() -> bool:
            return "running" in (await eager.status())["state"]

        await until(runs)
        assert await eager.problems() == []


@pytest.mark.parametrize(("name", "profile", "status"), [("second", {"enabled": False}, 409), ("third", None, 404)])
async def test_an_agent_that_is_taken_away_finishes_what_runs_and_nothing_else(
    daemon: DaemonProcess, models: ModelProcess, name: str, profile: dict[str, Any] | None, status: int
) -> None:
    async with talking_to(daemon, models, name) as agent:
        await agent.prompt()
        async with slow_turn(agent, "long") as seen:
            edit_profile(daemon, name, profile)

            async def refuses() -> bool:
                body = {"session_id": "new", "message": "hello?"}
                return (await agent.talker.request("POST", "chat", json=body)).status_code == status

            await until(refuses)
            await until(lambda: _ends_with(agent, "end"))
            ticked = agent.ticks.slots
            await asyncio.sleep(0.5)
            assert agent.ticks.slots == ticked
            assert seen.end is None
        assert agent.file.exists()
        edit_profile(daemon, name, {})

        async def answers() -> bool:
            return (await agent.talker.say("hello again", "new")).status == 200

        await until(answers)
        await until(lambda: _ends_with(agent, "tick"))
        assert agent.ticks.flawless, agent.ticks


async def _ends_with(agent: EditedAgent, word: str) -> bool:
    """Whether that is the last thing the agent's scheduler did."""
    return (agent.directory / "ticks").read_text().splitlines()[-1].startswith(word)


async def test_another_provider_answers_the_next_turn(agent: EditedAgent) -> None:
    home = agent.daemon.home
    before = (home / "config.json").read_text(encoding="utf-8")
    async with ModelServer() as other, slow_turn(agent, "long"):
        provider = {"type": "openai", "base_url": other.url, "api_key": "${KEY_OF_OTHER}", "models": ["scripted"]}
        secrets = json.loads((home / "secrets.json").read_text(encoding="utf-8"))
        write_json(home / "secrets.json", secrets | {"KEY_OF_OTHER": "first"})
        edit_home(agent.daemon, providers={"scripted": provider})
        assert (await agent.talker.say("who?", "elsewhere")).text == "echo: who?"
        assert (other.count, other.last.headers["authorization"]) == (1, "Bearer first")
        write_json(home / "secrets.json", secrets | {"KEY_OF_OTHER": "second"})
        assert (await agent.talker.say("and now?", "elsewhere")).text == "echo: and now?"
        assert (other.count, other.last.headers["authorization"]) == (2, "Bearer second")
        await rename_over(home / "config.json", before)
    await agent.prompt()


async def test_who_may_ask_counts_at_once_and_where_it_listens_from_the_next_start(agent: EditedAgent) -> None:
    async def status_of_host() -> int:
        return (await agent.talker.request("GET", "/api/status", headers={"Host": "box.test"})).status_code

    async def answers() -> bool:
        return await status_of_host() == 200

    async def restart() -> list[str]:
        problems = (await agent.talker.get("/api/status"))["problems"]
        return [problem["message"] for problem in problems if problem["key"] == "restart"]

    assert await status_of_host() == 421
    edit_home(agent.daemon, server={"allowed_hosts": ["box.test"], "port": 9999})
    await until(answers)
    [told] = await until(restart)
    assert "server.port" in told and "next start" in told
    edit_home(agent.daemon, server={})

    async def as_before() -> bool:
        return await restart() == [] and await status_of_host() == 421

    await until(as_before)


async def test_what_the_daemon_writes_itself_is_no_edit(daemon: DaemonProcess, models: ModelProcess) -> None:
    async with talking_to(daemon, models, "fourth") as agent, agent.hearing() as heard:
        await agent.put(name="One", tools={"write_file": {"policy": "allow"}})
        await agent.prompt()
        known = len(await agent.reloads())
        assert (await agent.put(name="Two", heartbeat={"every": "7m"}))["outcome"] == "applied"
        patched = await agent.talker.request("PATCH", "config", json={"heartbeat": {"every": "8m"}})
        assert patched.json()["reload"]["outcome"] == "applied"
        for enabled in (False, True):
            changed = await agent.talker.request("PATCH", agent.talker.base, json={"enabled": enabled})
            assert changed.status_code == 200, changed.text
        assert (await agent.talker.say("/model scripted/scripted")).end is not None
        wrote = await agent.talker.say('[[tool:write_file {"path": "MEMORY.md", "content": "remember"}]]')
        assert wrote.of("tool.result")[0].data["outcome"] == "ok", wrote.events
        await agent.edited("SOUL.md", "Noticed after all of that.")
        await asyncio.sleep(0.5)
        reloads = await agent.reloads()
        assert [reload["trigger"] for reload in reloads[: len(reloads) - known]] == ["api", "api"]
        told = [event for event in heard if event.get("agent_id") == "fourth"]
        assert [event["type"] for event in told if event["type"] in ("agent.disabled", "agent.enabled")] == [
            "agent.disabled",
            "agent.enabled",
        ]
        assert sum(event["type"] == "reload.planned" for event in told) == len(reloads)


async def test_driver_cards_and_plugins_are_followed_one_by_one(agent: EditedAgent) -> None:
    await agent.prompt()
    drivers, known = agent.directory / "drivers", len(await agent.reloads())

    async def said(*lines: str) -> bool:
        found = (agent.directory / "drivers.said").read_text().splitlines()
        return [line for line in found if "start" not in line and "stop" not in line] == [*lines]

    write_json(drivers / "mail.json", {"command": "mail"})
    await until(lambda: said("reload mail"))
    write_json(drivers / "web.json", {"command": "web"})
    await until(lambda: said("reload mail", "reload web"))
    write_json(drivers / "mail.json", {"command": "mail", "args": ["-v"]})
    await until(lambda: said("reload mail", "reload web", "reload mail"))
    (drivers / "web.json").unlink()
    await until(lambda: said("reload mail", "reload web", "reload mail", "remove web"))
    assert len(await agent.reloads()) == known

    for place in (agent.directory, agent.daemon.home):
        write_json(place / "plugins" / "cook" / "plugin.json", {"id": "cook", "at": str(place)})
        done = await agent.reloaded(known)
        assert (done["trigger"], done["rebuilt"], done["changed"]) == ("plugin cook edited", ["plugins"], [])
        known += 1


async def test_a_prompt_file_counts_from_the_next_turn_on(agent: EditedAgent) -> None:
    await in_place(agent.directory / "SOUL.md", "You love cheese.")
    assert "You love cheese." in await agent.prompt()
    await rename_over(agent.directory / "SOUL.md", "You love bread.")
    prompt = await agent.prompt()
    assert "You love bread." in prompt and "cheese" not in prompt


async def test_a_signal_has_the_files_looked_at(models: ModelProcess, tmp_path: Path, make_daemon: MakeDaemon) -> None:
    seldom = {"watch": {"mode": "poll", "poll_interval": 3600}}
    home = write_home(tmp_path / "home", models=models.url, agents=("default", "other"), config=seldom, memory=True)
    daemon = make_daemon(home, module="tests.support.ticking").start()
    async with talking_to(daemon, models, "default") as agent:
        await agent.prompt()
        await in_place(agent.file, agent.text(name="Signalled"))
        write_json(agent.directory / "drivers" / "mail.json", {})
        edit_home(daemon, server={"allowed_hosts": ["box.test"]})
        await asyncio.sleep(0.8)
        assert await agent.reloads() == []
        daemon.send(signal.SIGHUP)
        assert (await agent.reloaded(0))["trigger"] in ("asked to reload", "asked to reload, agent.json edited")
        assert "You are Signalled (default)." in await agent.prompt()

        async def all_seen() -> bool:
            host = await agent.talker.request("GET", "/api/status", headers={"Host": "box.test"})
            return host.status_code == 200 and "reload mail" in (agent.directory / "drivers.said").read_text()

        await until(all_seen)


async def test_few_descriptors_and_many_files_do_no_harm(
    models: ModelProcess, tmp_path: Path, make_daemon: MakeDaemon
) -> None:
    home = write_home(tmp_path / "home", models=models.url, memory=True)
    workspace = home / "workspaces" / "default"
    for place in (workspace / "files" / "node_modules", workspace / "node_modules"):
        _fill(place, folders=200, files=50)
    daemon = make_daemon(home, module="tests.support.limited").start()
    async with talking_to(daemon, models, "default") as agent:
        await agent.prompt()
        assert psutil.Process(daemon.pid).rlimit(psutil.RLIMIT_NOFILE) == (FILES, FILES)
        for number in range(1, 4):
            await in_place(agent.file, agent.text(name=f"Name {number}", heartbeat={"every": f"{number}m"}))
            (workspace / "node_modules" / f"late{number}").mkdir()
            assert (await agent.reloaded(number - 1))["outcome"] == "applied"
            assert f"You are Name {number} (default)." in await agent.prompt()
        assert (await agent.talker.get("/api/status"))["watch_mode"] == "events"
        await until(lambda: _few_watches(daemon.pid))
        assert psutil.Process(daemon.pid).num_fds() < 100
        assert agent.ticks.flawless, agent.ticks


def _fill(place: Path, *, folders: int, files: int) -> None:
    for folder in range(folders):
        inner = place / f"package{folder}"
        inner.mkdir(parents=True)
        for file in range(files):
            (inner / f"{file}.js").touch()


async def _few_watches(pid: int) -> bool:
    """Whether the process watches only what matters; where the system does not tell, it does."""
    watches = 0
    for info in Path(f"/proc/{pid}/fdinfo").glob("*"):
        try:
            watches += info.read_text().count("inotify wd:")
        except OSError:
            continue
    return watches <= 12
