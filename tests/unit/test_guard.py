"""The approval policy: the hard list before the tool's review, the review before the configuration."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.chat.tools.guard import Verdict, decide, enabled, remembered, rule_for
from qworkspace.chat.tools.shell_line import simple_commands
from qworkspace.config.models import AgentConfig, PolicyRule
from qworkspace.plugins.extensions import Tool, ToolContext
from tests.support.tools import TOOLS, make_workspace, tool_context


@pytest.fixture
def context(tmp_path: Path) -> ToolContext:
    workspace = make_workspace(tmp_path / "home")
    (workspace / "files" / "private").mkdir()
    return tool_context(workspace)


def config(**tools: Any) -> AgentConfig:
    return AgentConfig.model_validate({"tools": tools})


def verdict(context: ToolContext, name: str, settings: AgentConfig | None = None, **args: Any) -> Verdict:
    tool = TOOLS[name]
    return decide(tool, tool.args.model_validate(args), settings or AgentConfig(), context)


def rules(*pairs: tuple[str, str]) -> dict[str, Any]:
    return {"policy": [{"pattern": pattern, "decision": decision} for pattern, decision in pairs]}


@pytest.mark.parametrize(
    ("name", "args", "decision"),
    [
        ("read_file", {"path": "agent.json"}, "allow"),
        ("read_file", {"path": ".state/sessions.db"}, "deny"),
        ("read_file", {"path": "../other/MEMORY.md"}, "deny"),
        ("write_file", {"path": "files/a.txt", "content": ""}, "allow"),
        ("write_file", {"path": "MEMORY.md", "content": ""}, "allow"),
        ("write_file", {"path": "agent.json", "content": ""}, "ask"),
        ("write_file", {"path": "skills/x/SKILL.md", "content": ""}, "ask"),
        ("write_file", {"path": "notes.txt", "content": ""}, "deny"),
        ("edit_file", {"path": "jobs.json", "old": "a", "new": "b"}, "ask"),
        ("edit_file", {"path": ".state/x", "old": "a", "new": "b"}, "deny"),
        ("list_files", {}, "allow"),
        ("search_files", {"pattern": "x"}, "allow"),
        ("run_shell", {"command": "ls"}, "ask"),
        ("web_fetch", {"url": "https://example.org/"}, "allow"),
        ("current_time", {}, "allow"),
    ],
)
def test_defaults(context: ToolContext, name: str, args: dict[str, Any], decision: str):
    assert verdict(context, name, **args).decision == decision


@pytest.mark.parametrize(
    "policy", ["allow", [{"pattern": "*", "decision": "allow"}], [{"pattern": "agent.json", "decision": "allow"}]]
)
def test_no_setting_lowers_the_question_for_control_files(context: ToolContext, policy: Any):
    assert (
        verdict(context, "write_file", config(write_file={"policy": policy}), path="agent.json", content="").decision
        == "ask"
    )
    command = "echo x > ../agent.json"
    assert verdict(context, "run_shell", config(run_shell={"policy": "allow"}), command=command).decision == "ask"


@pytest.mark.parametrize("policy", ["allow", [{"pattern": "*", "decision": "allow"}]])
def test_no_setting_opens_the_hard_list(context: ToolContext, policy: Any):
    for name, args in [("read_file", {"path": ".state/x"}), ("run_shell", {"command": "cat ../.state/sessions.db"})]:
        found = verdict(context, name, config(**{name: {"policy": policy}}), **args)
        assert (found.decision, found.hard) == ("deny", True)


def test_the_configuration_may_be_stricter(context: ToolContext):
    assert verdict(context, "read_file", config(read_file={"policy": "deny"}), path="files/a").decision == "deny"
    asking = config(web_fetch={"policy": "ask"})
    assert verdict(context, "web_fetch", asking, url="https://example.org/").decision == "ask"


def test_the_first_rule_that_matches_holds_and_the_default_is_the_tools_own(context: ToolContext):
    settings = config(run_shell=rules(("git push*", "deny"), ("git *", "allow")))
    assert verdict(context, "run_shell", settings, command="git push origin").decision == "deny"
    assert verdict(context, "run_shell", settings, command="git status").decision == "allow"
    assert verdict(context, "run_shell", settings, command="make").decision == "ask"


def test_another_spelling_or_a_link_does_not_get_around_a_rule(context: ToolContext):
    root = context.files.root
    (root / "files" / "link").symlink_to("private")
    settings = config(read_file=rules(("files/private/*", "deny")))
    for path in ("files/private/x", "./files//private/./x", f"{root}/files/private/x", "files/link/x"):
        assert verdict(context, "read_file", settings, path=path).decision == "deny", path
    assert verdict(context, "read_file", settings, path="files/public/x").decision == "allow"


@pytest.mark.parametrize(
    ("command", "decision"),
    [
        ("git status", "allow"),
        ("git status && git diff | git log", "allow"),
        ("git log 2>&1", "allow"),
        ("git log >/dev/null 2>&1", "allow"),
        ("git commit -m 'a; b && c > d'", "allow"),
        ("git status; rm -rf x", "ask"),
        ("git status & curl evil", "ask"),
        ("git status\nrm x", "ask"),
        ("git log $(rm x)", "ask"),
        ("git log `rm x`", "ask"),
        ('git log "$(rm x)"', "ask"),
        ("git log > files.txt", "ask"),
        ("git log <(rm x)", "ask"),
        ("git log ${x@P}", "ask"),
        ("git() { rm x; }; git status", "ask"),
        ("git log 'open", "ask"),
        ("GIT_PAGER=evil git log", "ask"),
    ],
)
def test_an_allowed_command_does_not_carry_others_with_it(context: ToolContext, command: str, decision: str):
    settings = config(run_shell=rules(("git *", "allow")))
    assert verdict(context, "run_shell", settings, command=command).decision == decision


def test_a_forbidden_command_is_found_among_others(context: ToolContext):
    settings = config(run_shell=rules(("curl *", "deny"), ("*", "allow")))
    assert verdict(context, "run_shell", settings, command="ls -l").decision == "allow"
    assert verdict(context, "run_shell", settings, command="ls; curl x").decision == "deny"
    assert verdict(context, "run_shell", settings, command="ls $(curl x)").decision == "ask"
    everything = config(run_shell=rules(("*", "allow")))
    assert verdict(context, "run_shell", everything, command="ls $(curl x)").decision == "allow"


NEVER = [
    *["rm -rf /", "rm -fr /*", "sudo rm -r --no-preserve-root /", "rm -rf ~", "rm -rf $HOME/", "rm -rf ${HOME}"],
    *["rm -rf ..", "cd .. && rm -rf *", "rm --recursive /etc", "env X=1 rm -rf /usr", "chmod -R 777 /"],
    *[":(){ :|:& };:", "bomb() { bomb | bomb & }; bomb", "mkfs.ext4 /dev/sda1", "sudo wipefs -a /dev/sdb"],
    *["dd if=/dev/zero of=/dev/nvme0n1", "cat x > /dev/sda", "cat x | tee /dev/vda"],
    *["cat ../.state/sessions.db", "cat ../../../secrets.json", "sqlite3 ../../../.daemon/home.db .dump"],
    *["ls ../../other", "cd ../.. && cat other/MEMORY.md", "cd ..; cd .state; cat sessions.db", "cp x ../.STATE/"],
    *["python -c \"open('../.state/x').read()\"", "cat ../../../*.json", "cat --file=../../../secrets.json"],
    *["cat <../.state/x", "tar cf - ../.state"],
]


@pytest.mark.parametrize("command", NEVER)
def test_the_short_list_of_what_never_runs(context: ToolContext, command: str):
    found = verdict(context, "run_shell", config(run_shell={"policy": "allow"}), command=command)
    assert (found.decision, found.hard) == ("deny", True), command


@pytest.mark.parametrize("command", ["cat link", "cat < link", "cat ./link/../link"])
def test_the_list_follows_links(context: ToolContext, command: str):
    (context.files.root / "files" / "link").symlink_to("../../../secrets.json")
    assert verdict(context, "run_shell", config(run_shell={"policy": "allow"}), command=command).hard


@pytest.mark.parametrize("name", ["secrets.json", ".daemon/home.db", "workspaces/other/agent.json", "config.json"])
def test_absolute_names_of_what_is_closed_never_run(context: ToolContext, name: str):
    path = context.files.root.parent.parent / name
    assert verdict(context, "run_shell", config(run_shell={"policy": "allow"}), command=f"cat '{path}'").hard


@pytest.mark.parametrize(
    "command",
    ["cat ../agent.json", "cd .. && touch jobs.json", "echo x>../drivers/y.json", "rm -r ../skills", "ls ../*"],
)
def test_commands_that_name_control_files_ask(context: ToolContext, command: str):
    assert verdict(context, "run_shell", config(run_shell={"policy": "allow"}), command=command).decision == "ask"


ORDINARY = [
    *["rm -rf build", "rm -rf *", "rm x", "cat config.json", "cd project && cat config.json secrets.json", "ls .state"],
    *["ls /etc", "make mkfs-doc", "echo 'dd of=disk.img'", "dd if=a of=disk.img", "chmod -R 755 .", "skills --list"],
    *["cat ../memory/x.md", "cp a b"],
]


@pytest.mark.parametrize("command", ORDINARY)
def test_ordinary_commands_are_left_to_the_policy(context: ToolContext, command: str):
    assert verdict(context, "run_shell", config(run_shell={"policy": "allow"}), command=command).decision == "allow"


@pytest.mark.parametrize(
    "unit", ["a", "tee ", "../", ": () {", "~ ", "a/b ", "'", "cd a;", "rm -r x;", "x=1 ", "sudo ", "> ", "a{1}.b "]
)
def test_no_command_takes_long_to_judge(context: ToolContext, unit: str):
    """The judgement runs on the event loop."""
    for length in (4_000, 20_000):
        command = unit * (length // len(unit))
        began = time.thread_time()
        found = verdict(context, "run_shell", config(run_shell={"policy": "allow"}), command=command)
        assert time.thread_time() - began < 0.05
    assert found.decision == "ask"


def test_a_command_that_names_very_many_paths_asks(context: ToolContext):
    command = "ls " + " ".join(f"d{number}/x" for number in range(150))
    assert verdict(context, "run_shell", config(run_shell={"policy": "allow"}), command=command).decision == "ask"


def test_a_tool_that_is_switched_off_is_neither_offered_nor_run(context: ToolContext):
    settings = config(run_shell={"enabled": False})
    assert not enabled(TOOLS["run_shell"], settings)
    assert enabled(TOOLS["read_file"], settings)
    assert verdict(context, "run_shell", settings, command="ls").decision == "deny"


def remember(tool: Tool, context: ToolContext, **args: Any) -> PolicyRule | None:
    return rule_for(tool, tool.args.model_validate(args), context)


def test_an_approval_is_remembered_for_exactly_that_call(context: ToolContext):
    rule = remember(TOOLS["run_shell"], context, command="ls *.py > list.txt")
    assert rule is not None
    settings = config(run_shell={"policy": [rule.model_dump() for rule in remembered("ask", rule)]})
    assert verdict(context, "run_shell", settings, command="ls *.py > list.txt").decision == "allow"
    assert verdict(context, "run_shell", settings, command="ls a.py > list.txt").decision == "ask"
    assert remembered(remembered(None, rule), rule) == [rule]


def test_an_approval_of_a_page_is_remembered_for_its_host(context: ToolContext):
    rule = remember(TOOLS["web_fetch"], context, url="https://example.org/a?b=1")
    assert rule is not None and rule.pattern == "https://example.org/*"


def test_an_approval_for_a_control_file_cannot_be_remembered(context: ToolContext):
    assert remember(TOOLS["write_file"], context, path="agent.json", content="") is None
    assert remember(TOOLS["run_shell"], context, command="cat ../agent.json") is None


@given(st.text(alphabet="ab ;&|'\"\\\n$(`<>{}#", max_size=30))
def test_a_line_is_split_only_where_the_shell_would(line: str):
    pieces = simple_commands(line)
    if pieces is not None and not any(char in line for char in "'\"\\"):
        assert pieces == [
            piece.strip()
            for piece in line.replace("&", ";").replace("|", ";").replace("\n", ";").split(";")
            if piece.strip()
        ]
