"""A question that outlives the daemon, a provider that changes under a running agent, and very few open files."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.service.conftest import MakeDaemon
from tests.support.daemon import write_home, write_json
from tests.support.model_process import ModelProcess
from tests.support.tool_calls import answer, questions, results

SECONDS = 30.0
OPEN_FILES = 256
FILES = 20_000


def eventually(happens: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not happens():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


@pytest.mark.skipif(os.name != "posix", reason="kill -9 and the shell are POSIX")
def test_a_question_outlives_kill_9_and_its_answer_carries_the_turn_on(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    with ModelProcess() as models:
        daemon = make_daemon(write_home(tmp_path / "home", models=models.url)).start()
        call = '[[tool:run_shell {"command": "echo done"}]]'
        with (
            daemon.client() as client,
            client.stream("POST", "/api/agents/default/chat", json={"message": call, "session_id": "s1"}) as stream,
        ):
            next(stream.iter_lines())
            [question] = questions(daemon, 1)
        daemon.kill()
        daemon.start()
        [same] = questions(daemon, 1)
        assert same["id"] == question["id"]
        assert daemon.get("/api/agents/default/sessions/s1/turns")["turns"][0]["state"] == "interrupted"
        answer(daemon, question["id"], "allow")
        eventually(lambda: daemon.get("/api/agents/default/sessions/s1/turns")["turns"][0]["state"] == "completed")
        [result] = results(daemon, session="s1")
        assert result["outcome"] == "ok" and "done" in result["text"]


def test_another_address_of_a_provider_counts_from_the_next_turn_on(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    with ModelProcess() as before, ModelProcess() as after:
        daemon = make_daemon(write_home(tmp_path / "home", models=before.url)).start()
        assert daemon.chat("hello")["text"] == "echo: hello"
        config = json.loads((daemon.home / "config.json").read_text())
        config["providers"]["scripted"] |= {"base_url": after.url, "api_key": "another-key"}
        write_json(daemon.home / "config.json", config)
        time.sleep(1)
        assert daemon.chat("again")["status"] == "completed"
        assert (len(before.requests()), len(after.requests())) == (1, 1)
        [agent] = daemon.get("/api/status")["agents"]
        assert agent["generation"] == 1, "no instance was replaced for it"


def test_a_title_is_made_by_a_model_where_that_is_wanted(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    with ModelProcess() as models:
        home = write_home(tmp_path / "home", models=models.url, agent={"running": {"auto_title": True}})
        daemon = make_daemon(home).start()
        assert daemon.chat("what is tea?")["text"] == "echo: what is tea?"
        titles = "/api/agents/default/sessions"
        eventually(lambda: daemon.get(titles)["sessions"][0]["title"].startswith("echo: <conversation>"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors in /proc")
def test_few_open_files_and_a_huge_folder_do_no_harm(make_daemon: MakeDaemon, tmp_path: Path) -> None:
    home = write_home(tmp_path / "home", agents=["default", "other"])
    deep = home / "workspaces/default/files/node_modules"
    for number in range(FILES):
        folder = deep / str(number % 100)
        if number < 100:
            folder.mkdir(parents=True)
        (folder / f"{number}.js").touch()
    daemon = make_daemon(home, module="tests.support.limited").start()
    for agent in ("default", "other"):
        assert daemon.chat("hello", agent=agent)["status"] == "completed"
    about = {"id": "default", "name": "Edited"}
    write_json(home / "workspaces/default/agent.json", about)
    eventually(lambda: bool(daemon.get("/api/agents/default/reloads")["reloads"]))
    assert "name" in daemon.get("/api/agents/default/reloads")["reloads"][0]["changed"]
    assert daemon.chat("still there?")["status"] == "completed"
    assert len(list(Path(f"/proc/{daemon.pid}/fd").iterdir())) < OPEN_FILES // 2
