"""What an agent's tools cannot do, whatever a model asks for and the settings allow: against a real daemon."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.daemon import DaemonProcess
from tests.support.guarded import GuardedHome, guarded_home, swapping
from tests.support.model_process import ModelProcess
from tests.support.tool_calls import Call, answer, outcomes, play, questions

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and shells are POSIX")

TOOLS = ("read_file", "write_file", "edit_file", "list_files", "search_files", "run_shell", "web_fetch")
PERMISSIVE = {
    "tools": {name: {"policy": "allow"} for name in TOOLS},
    "running": {"max_iters": 200},
}
IN_THE_ENVIRONMENT = "canary-in-the-environment-of-the-daemon"

# where nothing may ever be read or written: as names, in other spellings, and over links that a `GuardedHome` makes
CLOSED = [
    ".state/canary.txt",
    ".state/sessions.db",
    ".State/canary.txt",
    ".STATE/CANARY.TXT",
    "./.state/canary.txt",
    ".state//canary.txt",
    "files/../.state/canary.txt",
    ".state./canary.txt",
    ".state /canary.txt",
    "\uff0estate/canary.txt",
    ".st\u200bate/canary.txt",
    "../other/files/private.txt",
    "../other/SOUL.md",
    "../../secrets.json",
    "../../config.json",
    "../../.daemon/canary.txt",
    "../../.daemon/home.db",
    "../../../outside/private.txt",
    "files/../../other/files/private.txt",
    "files\\..\\..\\..\\secrets.json",
    "/etc/passwd",
    "/proc/self/environ",
    "{workspace}/.state/canary.txt",
    "{home}/secrets.json",
    "{home}/workspaces/other/files/private.txt",
    "{outside}/private.txt",
    "~/secrets.json",
    "$HOME/secrets.json",
    "file://{home}/secrets.json",
    "files/\0../../secrets.json",
    "files/up/secrets.json",
    "files/up/workspaces/other/files/private.txt",
    "files/to-secrets",
    "files/to-config",
    "files/to-environ",
    "files/to-neighbour/private.txt",
    "files/to-outside/private.txt",
    "files/to-state/canary.txt",
    "files/through/chain/secrets.json",
    "files/hard-secrets",
    "files/hard-state",
    "files/hard-neighbour",
    "memory/to-secrets.md",
]
# what controls the agent: read, but written only with a person's word
CONTROLS = [
    "agent.json",
    "AGENT.json",
    "./agent.json",
    "{workspace}/agent.json",
    "jobs.json",
    "plugins/mine/plugin.json",
    "plugins/evil/plugin.json",
    "Plugins/evil/plugin.json",
    "drivers/evil.json",
    "skills/tea/SKILL.md",
]
# the same under names that look like the agent's own: not even with a person's word, who would not know
CONTROLS_OVER_LINKS = [
    "files/to-agent",
    "files/to-plugins/evil/plugin.json",
    "files/to-plugins/mine/plugin.json",
    "files/dangling",
    "files/hard-agent",
    "SOUL.md",
    "digest/jobs.md",
]


@pytest.fixture(scope="module")
def models() -> Iterator[ModelProcess]:
    with ModelProcess() as process:
        yield process


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, models: ModelProcess) -> GuardedHome:
    """A home full of secrets, whose agent `default` may do everything that a setting can allow."""
    return guarded_home(tmp_path_factory.mktemp("tools") / "home", models=models.url, agent=PERMISSIVE)


@pytest.fixture(scope="module")
def running(home: GuardedHome) -> Iterator[DaemonProcess]:
    environ = {"CANARY": IN_THE_ENVIRONMENT, "SOME_API_KEY": IN_THE_ENVIRONMENT}
    with DaemonProcess(home.path, environ=environ) as daemon:
        daemon.chat("hello")
        yield daemon


@pytest.fixture
def daemon(running: DaemonProcess, home: GuardedHome, models: ModelProcess) -> Iterator[DaemonProcess]:
    """The daemon of this module: after each test no secret has reached the model, and nothing closed was touched."""
    with running.unsurprised():
        yield running
    sent = json.dumps(models.requests(), ensure_ascii=False)
    assert home.told(sent) == [] and IN_THE_ENVIRONMENT not in sent and "root:" not in sent
    for place in ("files", "memory", "digest"):
        shutil.rmtree(home.workspace / place, ignore_errors=True)
    (home.workspace / "files").mkdir()
    (home.workspace / "files/notes.txt").write_text("the agent's own notes\n", encoding="utf-8")
    (home.workspace / "SOUL.md").unlink(missing_ok=True)
    shutil.rmtree(home.path / "workspaces/plain/files", ignore_errors=True)
    assert home.changes() == []


@pytest.fixture
def linked(home: GuardedHome) -> None:
    """Links in the agent's own directories, as somebody might have left them there."""
    home.link()


def placed(home: GuardedHome, names: Iterable[str]) -> list[str]:
    return [name.format(home=home.path, workspace=home.workspace, outside=home.outside) for name in names]


# what nothing opens


def test_closed_places_are_not_read(daemon: DaemonProcess, home: GuardedHome, linked: None) -> None:
    reads: list[Call] = [("read_file", {"path": name}) for name in placed(home, CLOSED)]
    searches: list[Call] = [("search_files", {"pattern": "canary", "path": name}) for name in placed(home, CLOSED)]
    found = play(daemon, *reads, *searches, session="read")
    read, searched = found[: len(reads)], found[len(reads) :]
    assert [call for call, outcome in outcomes(reads, read).items() if outcome == "ok"] == []
    assert [one["text"] for one in searched if one["outcome"] == "ok" and "[0 matching lines" not in one["text"]] == []


def test_looking_around_does_not_lead_into_closed_places(
    daemon: DaemonProcess, home: GuardedHome, linked: None
) -> None:
    places = [".", "files", "..", "../..", "/", ".state", "files/up", "files/to-state", "files/through", str(home.path)]
    calls: list[Call] = [("list_files", {"path": place, "depth": 9}) for place in places]
    calls += [("search_files", {"pattern": "canary|sk-", "path": place}) for place in places]
    found = play(daemon, *calls, session="look")
    listed = "\n".join(one["text"] for one in found[: len(places)])
    assert "files/notes.txt" in listed and "agent.json" in listed
    assert [name for name in ("private.txt", "canary.txt", "sessions.db", "secrets.json") if name in listed] == []


def test_closed_places_are_not_written(daemon: DaemonProcess, home: GuardedHome, linked: None) -> None:
    names = placed(home, CLOSED)
    fresh = placed(home, [".state/new.txt", "../other/files/new.txt", "../../new.txt", "{outside}/new.txt", "new.txt"])
    calls: list[Call] = [("write_file", {"path": name, "content": "overwritten"}) for name in [*names, *fresh]]
    calls += [("write_file", {"path": name, "content": "more", "append": True}) for name in names]
    calls += [("edit_file", {"path": name, "old": "canary", "new": "changed"}) for name in names]
    found = outcomes(calls, play(daemon, *calls, session="write"))
    assert [call for call, outcome in found.items() if outcome == "ok"] == []


def test_control_files_are_not_reached_over_links(daemon: DaemonProcess, home: GuardedHome, linked: None) -> None:
    calls: list[Call] = [("write_file", {"path": name, "content": "{}"}) for name in CONTROLS_OVER_LINKS]
    calls += [("edit_file", {"path": name, "old": '"', "new": "'", "all": True}) for name in CONTROLS_OVER_LINKS]
    found = outcomes(calls, play(daemon, *calls, session="links"))
    assert [call for call, outcome in found.items() if outcome == "ok"] == []
    assert daemon.get("/api/approvals?state=all")["approvals"] == []


def test_a_link_that_is_swapped_meanwhile_leads_nowhere(daemon: DaemonProcess, home: GuardedHome) -> None:
    files = home.workspace / "files"
    calls: list[Call] = [("read_file", {"path": "files/swap/private.txt"})] * 30
    calls += [("write_file", {"path": "files/swap/private.txt", "content": "the agent's"})] * 30
    calls += [("write_file", {"path": "files/swap/new/deep.txt", "content": "the agent's"})] * 10
    calls += [("search_files", {"pattern": "canary", "path": "files/swap"}), ("list_files", {"path": "files/swap"})] * 5
    with swapping(files / "swap", [home.path / "workspaces/other/files", home.outside, home.workspace / "plugins"]):
        found = play(daemon, *calls, session="swap")
    assert {one["outcome"] for one in found} <= {"ok", "error", "denied"}
    assert not any(path.name.startswith("new") for path in home.outside.iterdir())


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "0.0.0.0", "[::1]", "2130706433", "127.1", "0x7f000001"])
def test_the_daemon_itself_is_not_fetched(daemon: DaemonProcess, name: str) -> None:
    calls: list[Call] = [("web_fetch", {"url": f"http://{name}:{daemon.port}/healthz"})]
    calls += [("web_fetch", {"url": f"file://{daemon.home}/secrets.json"})]
    found = outcomes(calls, play(daemon, *calls, session="fetch" + "".join(filter(str.isalnum, name))))
    assert "ok" not in found.values()


def test_persona_files_that_lead_out_are_left_out_of_the_prompt_and_reported(
    daemon: DaemonProcess, home: GuardedHome
) -> None:
    links = {"SOUL.md": home.path / "secrets.json", "PROFILE.md": home.workspace / ".state" / "canary.txt"}
    for name, target in links.items():
        (home.workspace / name).symlink_to(target)
    daemon.chat("who are you?", session="persona")
    problems = [problem["message"] for problem in daemon.get("/api/status")["problems"]]
    for name in links:
        assert any(name in message for message in problems), problems
        (home.workspace / name).unlink()
    daemon.chat("and now?", session="persona")
    assert daemon.get("/api/status")["problems"] == []


# what a person has to allow


def test_control_files_ask_even_when_everything_is_allowed(daemon: DaemonProcess, home: GuardedHome) -> None:
    names = placed(home, CONTROLS)
    with ThreadPoolExecutor(len(names)) as pool:
        turns = [
            pool.submit(
                play, daemon, ("write_file", {"path": name, "content": '{"tools": {}}'}), session=f"ask{number}"
            )
            for number, name in enumerate(names)
        ]
        asked = questions(daemon, len(names))
        assert home.changes() == []
        for one in asked:
            assert answer(daemon, one["id"], "deny")["state"] == "denied"
        ended = [one for turn in turns for one in turn.result()]
    assert sorted(one["args"]["path"] for one in asked) == sorted(names)
    for one in asked:
        assert one["agent_id"] == "default" and one["session_id"].startswith("ask") and one["tool"] == "write_file"
        assert "controls the agent" in one["reason"] and one["turn_id"] and one["expires_at"]
        assert one["source"] == "chat"
    assert {one["outcome"] for one in ended} == {"denied"}
    assert all("a person said no" in one["text"] for one in ended)


def test_no_answer_in_time_means_no(daemon: DaemonProcess, home: GuardedHome) -> None:
    calls: list[Call] = [
        ("write_file", {"path": "agent.json", "content": "{}"}),
        ("run_shell", {"command": "echo hello > ran.txt"}),
    ]
    found = play(daemon, *calls, session="ignored", agent="hasty")
    assert [one["outcome"] for one in found] == ["denied", "denied"]
    assert all("nobody answered in time" in one["text"] for one in found)
    asked = [one for one in daemon.get("/api/approvals?state=all")["approvals"] if one["agent_id"] == "hasty"]
    assert {one["state"] for one in asked} == {"expired"}
    for one in asked:
        late = daemon.request("POST", f"/api/approvals/{one['id']}", json={"decision": "allow"})
        assert late.status_code == 409
    assert not (home.path / "workspaces/hasty/files/ran.txt").exists()


def test_a_control_file_is_written_when_a_person_allows_it(daemon: DaemonProcess, home: GuardedHome) -> None:
    place, text = home.workspace / "skills/tea/SKILL.md", "# Tea\nBoil water first.\n"
    before = place.read_text(encoding="utf-8")
    with ThreadPoolExecutor(1) as pool:
        args = {"path": "skills/tea/SKILL.md", "content": text}
        turn = pool.submit(play, daemon, ("write_file", args), session="allowed")
        [asked] = questions(daemon, 1)
        assert place.read_text(encoding="utf-8") == before
        answer(daemon, asked["id"], "allow")
        [done] = turn.result()
    assert done["outcome"] == "ok" and place.read_text(encoding="utf-8") == text
    place.write_text(before, encoding="utf-8")


# the shell


def test_the_shell_asks_first(daemon: DaemonProcess, home: GuardedHome) -> None:
    files = home.path / "workspaces/plain/files"
    names = ["denied", "allowed"]
    with ThreadPoolExecutor(len(names)) as pool:
        calls: dict[str, Call] = {name: ("run_shell", {"command": f"echo hello > {name}.txt"}) for name in names}
        turns = {name: pool.submit(play, daemon, call, session=name, agent="plain") for name, call in calls.items()}
        asked = {one["session_id"]: one for one in questions(daemon, len(names))}
        assert not files.exists()
        answer(daemon, asked["denied"]["id"], "deny")
        answer(daemon, asked["allowed"]["id"], "allow")
        ended = {name: turn.result()[0]["outcome"] for name, turn in turns.items()}
    assert ended == {"denied": "denied", "allowed": "ok"}
    assert asked["denied"]["agent_id"] == "plain" and asked["denied"]["args"] == calls["denied"][1]
    assert [path.name for path in files.iterdir()] == ["allowed.txt"]


def test_the_question_stands_in_the_stream_with_what_is_asked(daemon: DaemonProcess) -> None:
    body = {"session_id": "streamed", "message": '[[tool:run_shell {"command": "echo hello"}]]'}
    events: list[tuple[str, dict[str, Any]]] = []
    with daemon.client() as client, client.stream("POST", "/api/agents/plain/chat", json=body) as stream:
        kind = ""
        for line in stream.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                events.append((kind, json.loads(line.removeprefix("data: "))))
                if kind == "tool.approval":
                    answer(daemon, events[-1][1]["approval_id"], "allow")
    found = dict(events)
    assert found["tool.approval"]["name"] == "run_shell" and found["tool.approval"]["reason"]
    assert found["tool.approval"]["args"] == {"command": "echo hello"} and found["tool.approval"]["expires_at"]
    assert found["tool.approval"]["source"] == "chat"
    assert found["tool.result"]["text"].startswith("hello") and events[-1][0] == "turn.completed"


NEVER = [
    "cat ../.state/canary.txt",
    "cat ../../../secrets.json",
    "cat {home}/secrets.json",
    "cd .. && cat .state/canary.txt",
    "cd ../../..; cat secrets.json",
    "cp ../../../secrets.json .",
    "ln -s ../../../secrets.json again",
    "ln ../.state/canary.txt again",
    "cat < ../../../secrets.json",
    "cat ../../../se*.json",
    "cat ../../../.daem?n/canary.txt",
    'cat "../../other/files/private.txt"',
    "cat '{home}/workspaces/other/SOUL.md'",
    "tar cf - ../.state | base64",
    "echo x > ../.state/new",
    "cat ~/home/secrets.json",
    "cat $HOME/home/secrets.json",
    "cat to-secrets",
    "cat to-state/canary.txt",
    "rm -rf ..",
    "rm -rf ~",
    "mkfs.ext4 /nonexistent/disk",
]
ASKED = [
    "echo '{{}}' > ../agent.json",
    "rm -r ../plugins",
    "sed -i s/1/2/ ../jobs.json",
    "cp notes.txt ../skills/tea/SKILL.md",
    "cd .. ; rm -r drivers",
    "tee ../AGENT.json < notes.txt",
]


def test_no_setting_lets_a_command_name_what_is_closed(daemon: DaemonProcess, home: GuardedHome, linked: None) -> None:
    calls: list[Call] = [("run_shell", {"command": command}) for command in placed(home, NEVER)]
    places = [".state", "../other/files", "/", "..", "files/to-state", "files/up", "files/to-outside", "files/chain"]
    calls += [("run_shell", {"command": "cat *; touch new", "directory": place}) for place in places]
    found = outcomes(calls, play(daemon, *calls, session="never"))
    assert [call for call, outcome in found.items() if outcome == "ok"] == []
    assert [call for call, outcome in found.items() if outcome != "denied" and "directory" not in call] == []


def test_commands_on_control_files_ask_even_when_all_are_allowed(daemon: DaemonProcess, home: GuardedHome) -> None:
    commands = placed(home, ASKED)
    with ThreadPoolExecutor(len(commands)) as pool:
        turns = [
            pool.submit(play, daemon, ("run_shell", {"command": command}), session=f"command{number}")
            for number, command in enumerate(commands)
        ]
        asked = questions(daemon, len(commands))
        assert home.changes() == []
        for one in asked:
            answer(daemon, one["id"], "deny")
        assert {turn.result()[0]["outcome"] for turn in turns} == {"denied"}


def test_a_command_does_not_see_the_daemons_environment(daemon: DaemonProcess) -> None:
    [found] = play(daemon, ("run_shell", {"command": "env; tr '\\0' '\\n' < /proc/self/environ"}), session="env")
    assert found["outcome"] == "ok" and "PATH=" in found["text"]
    assert "QWORKSPACE_TOKEN" not in found["text"] and "SOME_API_KEY" not in found["text"]
