"""An agent's memory: its notes, their history, search, and how the index and the queue are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol, cast

from starlette.types import ASGIApp

from qworkspace.api.agents import etag, expected_version, no_change
from qworkspace.api.memory_schemas import (
    ChangeDiff,
    ChangeFacts,
    DreamAnswer,
    HistoryList,
    HistoryQuery,
    HitFacts,
    ImportAnswer,
    ImportBody,
    LinesBody,
    MemoryFacts,
    NoteBody,
    NoteFacts,
    NoteInfoFacts,
    NoteList,
    NotesQuery,
    NoteWritten,
    SearchAnswer,
    SearchBody,
    TaskFacts,
    TaskList,
    UndoAnswer,
    UndoBody,
)
from qworkspace.api.operations import Call, Operation, json_answer, no_content
from qworkspace.errors import InvalidInput, Unavailable
from qworkspace.memory.contract import BaseMemoryManager, Query
from qworkspace.memory.history import VaultHistory
from qworkspace.memory.importing import import_vault
from qworkspace.memory.notes import Author, Change
from qworkspace.memory.queue_rows import Task
from qworkspace.memory.vault import AgentMdManager

MEMORY = "/api/agents/{agent_id}/memory"
NOTE = MEMORY + "/files/{path:path}"
CALLER = Author("api")


class NotesMemory(Protocol):
    """A backend that keeps notes: both of ours do."""

    vault: AgentMdManager
    history: VaultHistory

    async def ready(self) -> None:
        """Open what changes and their history need. Cheap when that is done."""

    async def reindex(self) -> None:
        """Throw the index away and build it anew, in the background."""

    async def tasks(self) -> list[Task]:
        """The extractions that wait, run or were set aside."""

    async def retry(self, task_id: str) -> None:
        """Take up one that was set aside."""


async def _memory(call: Call) -> BaseMemoryManager:
    return (await call.agent()).memory


async def _notes(call: Call) -> NotesMemory:
    """The memory as one that keeps notes; `Unavailable` with the reason for an agent without."""
    memory = await _memory(call)
    if not hasattr(memory, "vault"):
        reason = "; ".join(memory.status().problems) or "its memory backend keeps none"
        raise Unavailable(f"agent {call.agent_id!r} has no notes: {reason}", code="no_memory")
    notes = cast(NotesMemory, memory)
    await notes.ready()
    return notes


async def list_notes(call: Call) -> NoteList:
    """All notes by name; the cursor is the last name of the page before."""
    query: NotesQuery = call.query
    notes = [note for note in await (await _notes(call)).vault.list() if query.section in (None, note.section)]
    rest = [note for note in notes if query.cursor is None or note.name > query.cursor]
    page = rest[: query.limit]
    facts = [NoteInfoFacts(path=n.name, section=n.section, size=n.size, modified=n.modified) for n in page]
    return NoteList(files=facts, next_cursor=page[-1].name if len(rest) > len(page) else None)


async def read_note(call: Call) -> ASGIApp:
    """One note with its version."""
    note = await (await _notes(call)).vault.read(call.param("path"))
    if call.request.headers.get("if-none-match") == etag(note.version):
        return no_change(note.version)
    facts = NoteFacts(path=note.name, text=note.text, version=note.version, lines=note.lines)
    return json_answer(facts, headers={"etag": etag(note.version)})


async def write_note(call: Call) -> ASGIApp:
    """Replace a note, or make it; `If-Match` refuses a stale write."""
    vault = (await _notes(call)).vault
    change = await vault.write(call.param("path"), call.body.text, by=CALLER, expected=expected_version(call))
    return await _written(vault, change)


async def append_lines(call: Call) -> ASGIApp:
    """Add lines to a note, by default to the daily note of the user's date."""
    vault, body = (await _notes(call)).vault, call.body
    change = await vault.append(body.path or vault.today(), body.text, by=CALLER)
    return await _written(vault, change)


async def delete_note(call: Call) -> ASGIApp:
    """Remove a note; `undo` brings it back."""
    await (await _notes(call)).vault.delete(call.param("path"), by=CALLER, expected=expected_version(call))
    return no_content()


async def _written(vault: AgentMdManager, change: Change) -> ASGIApp:
    note = await vault.read(change.path)
    done = None if change.repeated else ChangeFacts.model_validate(change)
    facts = NoteWritten(path=note.name, version=note.version, change=done)
    return json_answer(facts, headers={"etag": etag(note.version)})


async def list_history(call: Call) -> HistoryList:
    """What was changed, by whom, the newest first."""
    memory, query = await _notes(call), call.query
    path = await call.api.threads.run(memory.vault.name, query.path) if query.path else None
    page = await memory.history.list(path, limit=query.limit, cursor=query.cursor or "")
    return HistoryList(changes=_changes(page.changes), next_cursor=page.cursor or None)


async def show_change(call: Call) -> ChangeDiff:
    """A change, or all of a group, as a diff."""
    name = call.param("change_id")
    return ChangeDiff(id=name, diff=await (await _notes(call)).history.show(name))


async def undo(call: Call) -> UndoAnswer:
    """Take back a change or a group; without an id the last one."""
    return UndoAnswer(changes=_changes(await (await _notes(call)).vault.undo(call.body.id, by=CALLER)))


def _changes(changes: Sequence[Change]) -> list[ChangeFacts]:
    return [ChangeFacts.model_validate(change) for change in changes]


async def search(call: Call) -> SearchAnswer:
    """The best passages; keyword search answers at once, vectors as far as they are there."""
    body: SearchBody = call.body
    query = Query(
        text=body.query,
        max_results=body.max_results,
        min_score=body.min_score,
        path_prefix=body.path_prefix,
        since=body.since,
        until=body.until,
    )
    found = await (await _memory(call)).search(query)
    return SearchAnswer(results=[HitFacts.model_validate(asdict(hit)) for hit in found.hits], partial=found.partial)


async def read_status(call: Call) -> MemoryFacts:
    """How memory is; quick."""
    memory = await _memory(call)
    memory.prepare()  # whoever asks waits for the index
    return _status(memory)


async def reindex(call: Call) -> MemoryFacts:
    """Build the index anew, in the background."""
    await (await _notes(call)).reindex()
    return _status(await _memory(call))


def _status(memory: BaseMemoryManager) -> MemoryFacts:
    return MemoryFacts.model_validate(memory.status())


async def dream(call: Call) -> DreamAnswer:
    """Consolidate what was not consolidated yet, now."""
    return DreamAnswer.model_validate(await (await _memory(call)).dream())


async def import_notes(call: Call) -> ImportAnswer:
    """Merge the notes of another assistant from a directory of this machine; nothing is overwritten."""
    call.need_token()
    body: ImportBody = call.body
    source = Path(body.path)
    if not source.is_absolute():
        raise InvalidInput(f"path: {body.path!r} must be absolute: the daemon has no directory of yours", field="path")
    vault = (await _notes(call)).vault
    report = await import_vault(source, vault, threads=call.api.threads, dry_run=body.dry_run)
    return ImportAnswer.model_validate(report)


async def list_tasks(call: Call) -> TaskList:
    """The extractions that are not done."""
    return TaskList(tasks=[TaskFacts.model_validate(task) for task in await (await _notes(call)).tasks()])


async def retry_task(call: Call) -> TaskList:
    """Take up an extraction that was set aside."""
    memory = await _notes(call)
    await memory.retry(call.param("task_id"))
    return TaskList(tasks=[TaskFacts.model_validate(task) for task in await memory.tasks()])


def _operation(method: Any, path: str, handler: Any, summary: str, **facts: Any) -> Operation:
    return Operation(method, path, handler, summary, "memory", **facts)


OPERATIONS = (
    _operation("GET", MEMORY + "/files", list_notes, "The notes", query=NotesQuery, answer=NoteList),
    _operation("GET", NOTE, read_note, "One note, its version as ETag", answer=NoteFacts),
    _operation("PUT", NOTE, write_note, "Write a note", body=NoteBody, answer=NoteWritten, headers=("If-Match",)),
    _operation("DELETE", NOTE, delete_note, "Remove a note", status=204, headers=("If-Match",)),
    _operation("POST", MEMORY + "/append", append_lines, "Add lines to a note", body=LinesBody, answer=NoteWritten),
    _operation("POST", MEMORY + "/search", search, "Search the notes", body=SearchBody, answer=SearchAnswer),
    _operation("GET", MEMORY + "/status", read_status, "How memory is", answer=MemoryFacts),
    _operation("POST", MEMORY + "/reindex", reindex, "Build the index anew", answer=MemoryFacts),
    _operation("POST", MEMORY + "/dream", dream, "Consolidate now", answer=DreamAnswer),
    _operation("POST", MEMORY + "/undo", undo, "Take a change back", body=UndoBody, answer=UndoAnswer),
    _operation("GET", MEMORY + "/history", list_history, "Changes", query=HistoryQuery, answer=HistoryList),
    _operation("GET", MEMORY + "/history/{change_id}", show_change, "A change as a diff", answer=ChangeDiff),
    _operation("POST", MEMORY + "/import", import_notes, "Import notes", body=ImportBody, answer=ImportAnswer),
    _operation("GET", MEMORY + "/tasks", list_tasks, "Extractions that are not done", answer=TaskList),
    _operation("POST", MEMORY + "/tasks/{task_id}/retry", retry_task, "Take one up again", answer=TaskList),
)
