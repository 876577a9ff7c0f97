"""`qworkspace chat`: one turn, or a conversation in the terminal."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Annotated

import typer

from qworkspace.base.ids import agent_id, new_id, session_id
from qworkspace.cli.client import DaemonClient
from qworkspace.cli.conversation import Conversation, Printer
from qworkspace.cli.output import HomeOption, JsonOption, note, print_json
from qworkspace.errors import InvalidInput, QworkspaceError
from qworkspace.sessions.models import clean_text

READ_LIMIT = 2_000_000  # characters of a piped message
BYE = ("/exit", "/quit")


def chat(
    text: Annotated[list[str] | None, typer.Argument(help="The message; without it a conversation begins.")] = None,
    agent: Annotated[str, typer.Option("--agent", "-a", help="Default: the active agent.")] = "",
    session: Annotated[str, typer.Option("--session", "-s", help="A session to go on with; default: a new one.")] = "",
    home: HomeOption = "",
    as_json: JsonOption = False,
) -> None:
    """Say something to an agent. Reads the message from stdin when that is no terminal."""
    with DaemonClient(home) as client:
        conversation = Conversation(
            client,
            agent=str(agent_id(agent)) if agent else _active_agent(client),
            session=str(session_id(session)) if session else new_id("cli", datetime.now(UTC)),
            printer=Printer(quiet=as_json),
        )
        message = _given(text)
        if message is None:
            _converse(conversation)
        elif not _one_turn(conversation, message, as_json=as_json):
            raise typer.Exit(1)


def _active_agent(client: DaemonClient) -> str:
    return str(client.get("/api/status")["active_agent"])


def _given(words: list[str] | None) -> str | None:
    """The message of the arguments and of a pipe; None when a person sits at a terminal and gave none."""
    piped = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read(READ_LIMIT + 1)
    if len(piped) > READ_LIMIT:
        raise InvalidInput(f"the piped text is longer than {READ_LIMIT:,} characters")
    parts = [" ".join(words or []), piped.strip()]
    message = clean_text("\n\n".join(part for part in parts if part))
    if message:
        return message
    if sys.stdin is not None and sys.stdin.isatty():
        return None
    raise InvalidInput('nothing to say: give a text, as in: qworkspace chat "hello"')


def _one_turn(conversation: Conversation, message: str, *, as_json: bool) -> bool:
    ended = conversation.say(message)
    if as_json:
        print_json({"session_id": conversation.session, **ended.data, "status": ended.status})
    return ended.status == "completed"


def _converse(conversation: Conversation) -> None:
    _allow_line_editing()
    note(f"Talking to {conversation.agent} in session {conversation.session}. /help shows commands.")
    note("Ctrl-C stops an answer; Ctrl-D or /exit leaves.")
    while True:
        try:
            message = input("\n> ").strip()
        except EOFError:
            note("")
            return
        except KeyboardInterrupt:
            note(" (Ctrl-D leaves)")
            continue
        if message in BYE:
            return
        if message:
            _say(conversation, clean_text(message))


def _say(conversation: Conversation, message: str) -> None:
    """A turn that fails ends the turn, not the conversation."""
    try:
        conversation.say(message)
    except QworkspaceError as error:
        note(f"error: {error.message}")


def _allow_line_editing() -> None:
    try:
        import readline  # noqa: F401  changes what input() does, where the platform has it
    except ImportError:
        return
