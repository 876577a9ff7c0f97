"""auto_resource: documents dropped into the resource directory become notes in the digest directory."""

from __future__ import annotations


class Documents:
    """The documents of one workspace; one reading at a time.

    Documents(vault, database, ask, *, workspace: Path, settings: MemoryConfig, clock: Clock, threads: Threads,
              problems: Problems, agent_id: str, language: Callable[[], str])
    Tables: component "documents" of memory.db, `MIGRATIONS` of this module; dream's are `dream_store.MIGRATIONS`.
    """

    async def read_new(self) -> int:
        """Read what is new or changed; the number of notes that were written or brought up to date."""
        raise NotImplementedError
