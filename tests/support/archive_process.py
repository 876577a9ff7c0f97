"""`python -m tests.support.archive_process DIRECTORY SETTINGS`: stores three turns and hangs before it notes that.

Says `sent` when the database has them and the outbox does not know yet. Somebody must kill it.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from qworkspace.memory.outbox import Entry, Outbox
from tests.support.archives import ArchiveBench, said


class Forgetful(Outbox):
    """Never gets to note what was done."""

    async def done(self, entries: Sequence[Entry]) -> None:
        print("sent", flush=True)
        await asyncio.Event().wait()


async def main(directory: str, settings: str) -> None:
    async with ArchiveBench(Path(directory)) as bench:
        box = await bench.outbox(kind=Forgetful)
        for number in (1, 2, 3):
            await box.put(said(number, f"fact {number}"))
        archive = await bench.archive(json.loads(settings), box=box)
        await archive.settled()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
