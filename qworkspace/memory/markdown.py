"""The default backend: markdown notes are the truth, an index finds them, a queue fills them, dreams tidy them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar, cast

from qworkspace.memory import document_rows, dream_store, history, queue_rows
from qworkspace.memory.contract import (
    BaseMemoryManager,
    Found,
    MemoryMiddleware,
    MemoryStatus,
    MemoryTool,
    MemoryTurn,
    Query,
    SummarizeReason,
)
from qworkspace.memory.database import memory_db
from qworkspace.memory.documents import Documents
from qworkspace.memory.dream import Dreamer
from qworkspace.memory.extract import REMEMBERED, Extractor
from qworkspace.memory.history import VaultHistory
from qworkspace.memory.index import MemoryIndex
from qworkspace.memory.memory_tools import memory_tools
from qworkspace.memory.middleware import RecallingMiddleware, recall_query, within_tokens
from qworkspace.memory.own_problems import OwnProblems
from qworkspace.memory.parts import MemoryParts
from qworkspace.memory.prompts import guidance
from qworkspace.memory.queue import SummarizeQueue
from qworkspace.memory.queue_rows import Task
from qworkspace.memory.replies import Replies
from qworkspace.memory.upkeep import Upkeep
from qworkspace.memory.vault import AgentMdManager
from qworkspace.sessions.models import Source

SEARCH_SECONDS = 2.0
RECALL_SHARE = 0.9
"""Of a recall's time: what is found by then still reaches the turn."""
LOOK_SECONDS = 0.02


class MarkdownMemory(BaseMemoryManager):
    """Notes of one workspace. Its parts may be used as they are; `ready` comes before changes and the queue."""

    backend = "markdown"
    components: ClassVar[Mapping[str, Sequence[str]]] = {
        "vault": history.MIGRATIONS,
        "queue": queue_rows.MIGRATIONS,
        "dream": dream_store.MIGRATIONS,
        "documents": document_rows.MIGRATIONS,
    }

    def __init__(self, parts: MemoryParts) -> None:
        clock, threads, agent_id = parts.clock, parts.threads, parts.agent_id
        self.database = memory_db(
            parts.state_dir, self.components, threads=threads, clock=clock, problems=parts.problems, agent_id=agent_id
        )
        self._problems = problems = OwnProblems(parts.problems)
        self.parts = parts = replace(parts, problems=problems)
        self.history = VaultHistory(self.database)
        self.vault = AgentMdManager(
            parts.workspace,
            parts.config,
            history=self.history,
            clock=clock,
            threads=threads,
            problems=problems,
            agent_id=agent_id,
            zone=parts.zone,
            changed=self._changed,
        )
        self.index = self._make_index()
        self.extractor = Extractor(
            parts.ask,
            self.vault,
            self.search_notes,
            parts.sessions,
            clock=clock,
            threads=threads,
            zone=parts.zone,
            language=lambda: parts.language,
        )
        self.queue = SummarizeQueue(
            self.database,
            self.extractor,
            parts.sessions,
            interval=self.get_auto_memory_interval,
            clock=clock,
            problems=problems,
            agent_id=agent_id,
            actor=parts.daemon.actor(parts.state_dir),
        )
        self.dreamer = self._make_dreamer()
        self.documents = self._make_documents()
        self.upkeep = Upkeep(
            self,
            parts,
            database=self.database,
            vault=self.vault,
            index=self.index,
            queue=self.queue,
            dreamer=self.dreamer,
            documents=self.documents,
        )
        self.replies = Replies(parts.bus, self._turn_stored, owner=agent_id)

    # life

    async def start(self) -> None:
        """Nothing is opened before it is needed: a start is cheap, and cannot fail here."""

    def activate(self) -> None:
        self._problems.speak()
        self.upkeep.activate()

    def deactivate(self) -> None:
        self.upkeep.deactivate()
        self._problems.hush()

    async def close(self) -> None:
        await self.replies.close()
        await self.upkeep.close()
        self._problems.hush()

    @property
    def busy(self) -> bool:
        return self.upkeep.busy

    def prepare(self) -> None:
        self.upkeep.prepare()

    def files_changed(self, names: Collection[str] | None) -> None:
        self.upkeep.files_changed(names)

    def wake(self) -> None:
        self.upkeep.wake()

    async def ready(self) -> None:
        """The vault may be changed and the queue filled from now on. Cheap when it is so already."""
        await self.upkeep.ready()

    # what the agent sees of it

    def get_memory_prompt(self) -> str:
        return guidance(self.parts.language, self.parts.config.daily_dir, self.parts.config.digest_dir)

    def list_memory_tools(self) -> list[MemoryTool]:
        return memory_tools(self.vault, self.ready, self.search, self.parts.language)

    def get_auto_memory_interval(self) -> int:
        return self.parts.config.auto_memory_interval

    def build_middlewares(self) -> list[MemoryMiddleware]:
        return [RecallingMiddleware(self)]

    # search

    async def search(self, query: Query) -> Found:
        """The best passages; waits up to 2 s, for a first look at the notes too."""
        return await self.search_within(query, SEARCH_SECONDS)

    async def search_notes(self, query: Query) -> Found:
        """The best passages of the notes, whatever else there is to be searched."""
        return await MarkdownMemory.search_within(self, query, SEARCH_SECONDS)

    async def search_within(self, query: Query, seconds: float) -> Found:
        """The best passages that are found in that time; `partial` says what was not searched."""
        end = self.parts.clock.monotonic() + seconds
        await self.upkeep.index_ready()
        while self.upkeep.active and self._never_looked() and self.parts.clock.monotonic() < end - seconds / 2:
            await self.parts.clock.sleep(LOOK_SECONDS)
        return await self.index.search(query, timeout=round(max(0.01, end - self.parts.clock.monotonic()), 2))

    async def auto_memory_search(self, turn: MemoryTurn) -> Found:
        settings = self.parts.config
        seconds = settings.auto_memory_search.timeout * RECALL_SHARE
        found = await self.search_within(recall_query(turn, settings), seconds)
        return within_tokens(found, settings.auto_memory_search)

    def _never_looked(self) -> bool:
        status = self.index.status()
        return status.pending > 0 and status.files == 0

    async def reindex(self) -> None:
        """Throw the index away and build it anew, in the background."""
        await self.upkeep.index_ready()
        await self.index.reindex()

    # what was said

    async def replied(self, turn: MemoryTurn) -> None:
        """Note it down until the turn is stored: the instance that acts now hears of its end."""
        acting = self.parts.daemon.acting(self.parts.state_dir)
        if acting is not None and acting is not self:
            await acting.replied(turn)
        elif turn.source in REMEMBERED and self.get_auto_memory_interval() > 0:
            self.replies.add(turn)

    async def _turn_stored(self, turn: MemoryTurn) -> None:
        async def count() -> None:
            await self.ready()
            await self.queue.turn_ended(turn.scope.session_id, turn.scope.turn_id, cast(Source, turn.source))

        await self.upkeep.guarded("queue", count)

    async def leaving(self, session_id: str, reason: SummarizeReason) -> None:
        wanted = reason != "compact" or self.parts.config.summarize_when_compact
        if wanted and self.get_auto_memory_interval() > 0:
            await self.add_summarize_task(session_id, reason=reason)

    async def add_summarize_task(self, session_id: str, *, reason: SummarizeReason, upto_turn: str = "") -> None:
        acting = self.parts.daemon.acting(self.parts.state_dir)
        if acting is not None and acting is not self:
            await acting.add_summarize_task(session_id, reason=reason, upto_turn=upto_turn)
            return
        await self.ready()
        await self.queue.add(session_id, reason=reason, upto_turn=upto_turn)

    async def summarize(self, session_id: str) -> int:
        await self.ready()
        return await self.queue.summarize(session_id)

    async def auto_memory(self, session_id: str) -> int:
        return await self.summarize(session_id)

    async def tasks(self) -> list[Task]:
        """The extractions that wait, run or were set aside."""
        await self.ready()
        return await self.queue.tasks()

    async def retry(self, task_id: str) -> None:
        """Take up one that was set aside."""
        await self.ready()
        await self.queue.retry(task_id)

    # documents and dreams

    async def auto_resource(self) -> int:
        return await self.upkeep.read_new()

    async def dream(self) -> Mapping[str, Any]:
        await self.ready()
        async with self.upkeep.alone():
            return asdict(await self.dreamer.dream())

    # how it is

    def status(self) -> MemoryStatus:
        index, queue, upkeep = self.index.status(), self.queue.status(), self.upkeep
        looked = upkeep.index_opened or not upkeep.active
        pending = index.pending if looked else max(1, index.pending)
        problems = [p.message for p in self.parts.problems.of(self.parts.agent_id) if p.key.startswith("memory")]
        return MemoryStatus(
            self.backend,
            "indexing" if pending else "waiting" if queue.waits_for else "ready",
            files=index.files,
            chunks=index.chunks,
            pending=pending,
            embedder=index.embedder,
            problems=tuple(dict.fromkeys([*problems, *index.problems])),
            details={
                "embedded": index.embedded,
                "vectors": index.vectors,
                "partial": index.partial,
                "refused": dict(index.refused),
                "queue": asdict(queue),
            },
        )

    # making it

    def _make_index(self) -> MemoryIndex:
        parts = self.parts
        return MemoryIndex(
            parts.workspace,
            self.vault.sources,
            state_dir=parts.state_dir,
            embedder=parts.embedder,
            vectors=lambda embedder_id, dimensions: parts.daemon.stores.open(
                parts.config, agent_id=parts.agent_id, embedder_id=embedder_id, dimensions=dimensions
            ),
            settings=parts.config,
            clock=parts.clock,
            threads=parts.threads,
            problems=parts.problems,
            bus=parts.bus,
            agent_id=parts.agent_id,
            turns=parts.daemon.indexing,
        )

    def _make_dreamer(self) -> Dreamer:
        parts = self.parts
        return Dreamer(
            self.vault,
            self.database,
            parts.ask,
            parts.tell,
            workspace=parts.workspace,
            state_dir=parts.state_dir,
            settings=parts.config,
            clock=parts.clock,
            threads=parts.threads,
            problems=parts.problems,
            agent_id=parts.agent_id,
            language=parts.language,
        )

    def _make_documents(self) -> Documents:
        parts = self.parts
        return Documents(
            self.vault,
            self.database,
            parts.ask,
            workspace=parts.workspace,
            settings=parts.config,
            clock=parts.clock,
            threads=parts.threads,
            problems=parts.problems,
            agent_id=parts.agent_id,
            language=parts.language,
        )

    def _changed(self, name: str) -> None:
        """A note was changed through this object: whoever acts looks at it at once."""
        acting = self.parts.daemon.acting(self.parts.state_dir)
        (acting or self).files_changed([name])
