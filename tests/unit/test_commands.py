"""The built-in slash commands, over controls that remember what they were asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.base.ids import AgentId, SessionId
from qworkspace.base.scope import Scope
from qworkspace.chat import commands
from qworkspace.config.models import AgentConfig
from qworkspace.errors import Duplicate, InvalidInput, NotFound
from qworkspace.plugins.extensions import Extensions, SlashCommand, TurnContext
from qworkspace.sessions.models import TurnRequest, user_message


class Controls:
    """One session with two models; what was done to it is in `done`."""

    def __init__(self) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.runs = False
        self.interrupted: list[str] = []
        self.model = "local/small"
        self.mode: str | None = None
        self.names = ["local/small", "cloud/large"]

    async def stop(self, session_id: str) -> bool:
        self.done.append(("stop", session_id))
        return self.runs

    async def start_afresh(self, session_id: str) -> None:
        self.done.append(("afresh", session_id))

    async def compact(self, session_id: str) -> str:
        return "Summarised: 40 messages became 6."

    async def resume(self, session_id: str, turn_id: str | None = None) -> str:
        if turn_id not in (None, *self.interrupted) or not self.interrupted:
            raise NotFound("interrupted turn", turn_id or session_id)
        return turn_id or self.interrupted[-1]

    async def choose_model(self, session_id: str, name: str | None) -> str:
        if name is not None and name not in self.names:
            raise InvalidInput(f"no model {name!r}; known: {', '.join(self.names)}")
        self.model = name or "local/small"
        return self.model

    async def choose_mode(self, session_id: str, name: str | None) -> str | None:
        self.mode = name
        return name

    def model_names(self) -> list[str]:
        return list(self.names)

    async def status(self, session_id: str) -> dict[str, Any]:
        return {
            "agent": "anna", "model": self.model, "fallbacks": [], "session": session_id, "title": None,
            "running_turns": 1, "mode": self.mode,
        }  # fmt: skip


class Chat:
    """Sends commands as a user does and returns the answers."""

    def __init__(self, language: str = "en") -> None:
        self.extensions = Extensions()
        commands.install(self.extensions)
        self.controls = Controls()
        self.config = AgentConfig.model_validate({"id": "anna", "language": language})

    async def __call__(self, text: str) -> str:
        name, _, rest = text.removeprefix("/").partition(" ")
        return await self.extensions.commands.get(name).run(self.context(text), rest.strip())

    def context(self, text: str) -> TurnContext:
        message = user_message(text)
        return TurnContext(
            scope=Scope("anna", Path("/nowhere"), "s1"),
            request=TurnRequest(AgentId("anna"), SessionId("s1"), message),
            config=self.config,
            extensions=self.extensions,
            controls=self.controls,
            clock=SimulatedClock(),
            message=message,
            emit=lambda type, data: None,
        )


@pytest.fixture
def chat() -> Chat:
    return Chat()


async def test_help_lists_every_command_with_its_usage(chat):
    async def dance(context: TurnContext, rest: str) -> str:
        return "dancing"

    chat.extensions.commands.add("dance", SlashCommand("dance", "Dance a little.", dance), owner="party")
    answer = await chat("/help")
    assert [line.split("`")[1].split()[0] for line in answer.splitlines() if line.startswith("-")] == [
        "/compact", "/dance", "/help", "/mode", "/model", "/new", "/resume", "/status", "/stop",
    ]  # fmt: skip
    assert "- `/dance` — Dance a little." in answer
    assert "- `/model [provider/name | default]`" in answer


async def test_help_explains_one_command(chat):
    assert await chat("/help /resume") == "`/resume [turn id]`\n\nCarry on an interrupted answer."
    assert await chat("/help fly") == "There is no command /fly. /help lists all commands."


async def test_new_starts_this_session_afresh(chat):
    assert "stays stored" in await chat("/new")
    assert chat.controls.done == [("afresh", "s1")]


async def test_stop_says_whether_something_ran(chat):
    assert await chat("/stop") == "Nothing is running."
    chat.controls.runs = True
    assert await chat("/stop") == "Stopped."
    assert chat.controls.done == [("stop", "s1")] * 2


async def test_compact_tells_the_result(chat):
    assert await chat("/compact") == "Summarised: 40 messages became 6."


async def test_status_shows_what_is_known_and_leaves_out_what_is_not(chat):
    assert await chat("/status") == "- agent: anna\n- model: local/small\n- session: s1\n- running turns: 1"


async def test_model_lists_chooses_and_goes_back(chat):
    assert "- `local/small` (in use)" in await chat("/model")
    assert await chat("/model cloud/large") == "This session uses `cloud/large` from now on."
    assert "- `cloud/large` (in use)" in await chat("/model")
    assert await chat("/model default") == "This session uses `local/small` from now on."
    with pytest.raises(InvalidInput, match="known: local/small, cloud/large"):
        await chat("/model cloud/huge")


async def test_model_without_any_says_what_to_do(chat):
    chat.controls.names, chat.controls.model = [], ""
    assert "doctor" in await chat("/model")


async def test_mode_lists_chooses_and_leaves(chat):
    assert await chat("/mode") == "This agent has no modes; `modes` in agent.json defines them."
    modes = {"plan": {"summary": "Look only."}, "write": {}}
    chat.config = AgentConfig.model_validate({"id": "anna", "modes": modes})
    assert await chat("/mode plan") == "This session works in mode `plan` from now on."
    assert (await chat("/mode")).splitlines()[-2:] == ["- `plan` — Look only. (in use)", "- `write`"]
    assert await chat("/mode default") == "This session works in no mode from now on."
    assert "(in use)" not in await chat("/mode")


async def test_resume_carries_on_the_last_or_the_named_turn(chat):
    assert await chat("/resume") == "No interrupted answer waits in this session."
    chat.controls.interrupted = ["turn_1", "turn_2"]
    assert await chat("/resume") == "Carrying on with turn `turn_2`."
    assert await chat("/resume turn_1") == "Carrying on with turn `turn_1`."
    with pytest.raises(NotFound):
        await chat("/resume turn_9")


async def test_answers_are_in_the_agents_language():
    chat = Chat("zh")
    assert await chat("/stop") == "当前没有正在运行的回复。"
    assert "- `/new` — 重新开始" in await chat("/help")
    assert set(commands._CHINESE) == set(commands._ENGLISH)
    assert set(commands._CHINESE_SUMMARIES) == {command.name for command in commands.COMMANDS}


async def test_a_plugin_cannot_take_a_built_in_name(chat):
    with pytest.raises(Duplicate, match=r"'party'.*'builtin'"):
        chat.extensions.commands.add("stop", chat.extensions.commands.get("stop"), owner="party")
