"""The outbox of long-term memory: durable, in order, bounded."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from qworkspace.memory import outbox
from tests.support.archives import ArchiveBench, said


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[ArchiveBench]:
    async with ArchiveBench(tmp_path) as bench:
        yield bench


async def waiting(box: outbox.Outbox) -> list[str]:
    """`turn_0001`, `forget s1`"""
    return [entry.record.turn_id if entry.record else f"forget {entry.session_id}" for entry in await box.next()]


async def test_turns_come_out_as_they_went_in_and_outlive_their_writer(bench):
    box = await bench.outbox()
    record = said(1, "héllo \ud83d\ude00 \0 你好", "ok", user_id="bob")
    await box.put(record)
    await box.put(record)
    await box.put(said(2, "two"))
    again = await bench.outbox()
    assert again.counts.waiting == 2
    [first, second] = await again.next()
    assert first.record == said(1, "héllo 😀  你好", "ok", user_id="bob")
    await again.done([first])
    assert [entry.no for entry in await again.next()] == [second.no]


async def test_a_full_outbox_drops_the_oldest_turns_and_counts_them(bench):
    box = await bench.outbox(max_entries=3)
    await box.forget("s0")
    dropped = [await box.put(said(number, "x")) for number in range(1, 6)]
    assert dropped == [0, 0, 1, 1, 1]
    assert await waiting(box) == ["forget s0", "turn_0004", "turn_0005"]
    assert (await bench.outbox()).counts == outbox.OutboxCounts(waiting=3, dropped=3)


async def test_a_full_outbox_is_measured_in_bytes_too(bench):
    box = await bench.outbox(max_bytes=2_000)
    texts = ["".join(chr(0x4E00 + (number * 7919 + at * at * 31) % 20_000) for at in range(400)) for number in range(3)]
    for number, text in enumerate(texts):
        await box.put(said(number, text))
    assert await waiting(box) == ["turn_0002"]


async def test_entries_go_in_batches(bench, monkeypatch):
    monkeypatch.setattr(outbox, "BATCH_ENTRIES", 2)
    box = await bench.outbox()
    for number in range(3):
        await box.put(said(number, "x"))
    first = await box.next()
    assert len(first) == 2
    await box.done(first)
    assert await waiting(box) == ["turn_0002"]


async def test_what_is_forgotten_is_not_sent_any_more(bench):
    box = await bench.outbox()
    await box.put(said(1, "x", session_id="s1"))
    await box.put(said(2, "x", session_id="s2"))
    await box.forget("s1")
    await box.put(said(3, "x", session_id="s1"))
    assert await waiting(box) == ["turn_0002", "forget s1", "turn_0003"]


async def test_what_the_database_refused_is_tried_again_after_a_restart_only(bench):
    box = await bench.outbox()
    await box.put(said(1, "x"))
    [entry] = await box.next()
    await box.refuse(entry, "no")
    assert await box.next() == [] and box.counts == outbox.OutboxCounts(refused=1)
    assert await waiting(await bench.outbox()) == ["turn_0001"]
