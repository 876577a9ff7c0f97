"""The models of requests and answers about memory: notes, search, changes, the queue."""

from datetime import date, datetime
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from qworkspace.api.basic_schemas import Model, optional
from qworkspace.api.schemas import Body, Page

LONGEST_QUERY = 20_000
NoteText = str


class NotesQuery(Page):
    limit: int = Field(default=200, ge=1, le=1_000)
    section: Literal["working", "daily", "digest"] | None = None


class NoteInfoFacts(Model):
    path: str
    section: Literal["working", "daily", "digest"]
    size: int = Field(description="Bytes")
    modified: datetime


class NoteList(Model):
    files: list[NoteInfoFacts]
    next_cursor: str | None


class NoteFacts(Model):
    """A note; `version` is the same as the ETag."""

    path: str
    text: str
    version: str
    lines: int


class NoteBody(Body):
    """A whole note."""

    text: str = Field(max_length=20_000_000)


class LinesBody(Body):
    """Lines for the end of a note; without a path the daily note of the user's date."""

    text: str = Field(min_length=1, max_length=1_000_000)
    path: str | None = Field(default=None, max_length=1_024)


class AuthorFacts(Model):
    model_config = ConfigDict(from_attributes=True)

    kind: str = Field(description="person, tool, auto_memory, dream, resource, api or import")
    session_id: str = ""
    turn_id: str = ""


class ChangeFacts(Model):
    """One change of one note; those of one `group` are undone together."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    group: str
    at: datetime
    by: AuthorFacts
    path: str
    operation: Literal["append", "write", "delete", "undo"]
    state: Literal["pending", "done", "undone"]
    added: int = Field(description="Lines")
    removed: int = Field(description="Lines")
    undoes: str = Field(default="", description="The change that this one took back")


class NoteWritten(Model):
    """What a write came to; `change` is null when nothing had to change."""

    path: str
    version: str
    change: ChangeFacts | None


class HistoryQuery(Page):
    path: str | None = Field(default=None, max_length=1_024, description="Of this note only")


class HistoryList(Model):
    changes: list[ChangeFacts]
    next_cursor: str | None


class ChangeDiff(Model):
    id: str
    diff: str = Field(description="Unified")


class UndoBody(Body):
    id: str | None = Field(default=None, max_length=200, description="A change or a group; null: the last change")


class UndoAnswer(Model):
    changes: list[ChangeFacts]


class SearchBody(Body):
    """What is looked for. Raising `min_score` loses answers: scores are relative to the best hit."""

    query: str = Field(min_length=1, max_length=LONGEST_QUERY)
    max_results: int = Field(default=5, ge=1, le=100)
    min_score: float = Field(default=0.0, ge=0, le=1)
    path_prefix: str = Field(default="", max_length=1_024)
    since: date | None = Field(default=None, description="First day, inclusive")
    until: date | None = Field(default=None, description="Last day, inclusive")

    @model_validator(mode="after")
    def _in_order(self) -> "SearchBody":
        if self.since is not None and self.until is not None and self.since > self.until:
            raise ValueError("since is after until")
        return self


class HitFacts(Model):
    """A passage: lines count from 1, both inclusive; ranks count from 1, null where the signal did not find it."""

    model_config = ConfigDict(from_attributes=True)

    path: str
    start_line: int
    end_line: int
    text: str
    score: float
    vector_rank: int | None
    bm25_rank: int | None
    parts: dict[str, float] = Field(description="What each signal added to the score")
    heading: list[str]
    date: date | None
    origin: Literal["vault", "database"]


class SearchAnswer(Model):
    results: list[HitFacts]
    partial: str = Field(description="Why not everything was searched; empty when everything was")


class MemoryFacts(Model):
    """How memory is. `pending` is 0 when everything that is written can be found."""

    model_config = ConfigDict(from_attributes=True)

    backend: str
    state: Literal["off", "ready", "indexing", "waiting", "failed"]
    files: int
    chunks: int
    pending: int
    embedder: str
    problems: list[str]
    details: dict[str, Any]


class DreamAnswer(Model):
    """What a dream came to; `group` undoes it."""

    changed: bool
    reason: str = ""
    group: str = ""
    days: list[str] = Field(default_factory=list)
    diff: str = ""


class ImportBody(Body):
    """A directory on the daemon's machine that holds notes of another assistant."""

    path: str = Field(min_length=1, max_length=4_096)
    dry_run: bool = False


class ImportedFacts(Model):
    model_config = ConfigDict(from_attributes=True)

    source: str
    target: str
    outcome: Literal["added", "merged", "skipped"]
    lines: int
    reason: str


class ImportAnswer(Model):
    model_config = ConfigDict(from_attributes=True)

    files: list[ImportedFacts]
    dry_run: bool
    group: str = Field(description="Undoes the import; empty when nothing was added")


class TaskFacts(Model):
    """One extraction: what is new in a session, up to a turn."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    session_id: str
    reason: str
    state: str
    failures: int = 0
    error: str | None = optional()


class TaskList(Model):
    tasks: list[TaskFacts]
