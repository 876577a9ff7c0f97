"""The writer of event streams: nothing lost, nothing twice, nobody kept waiting by a slow reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.api.sse import PIECE_BYTES, EventStream, StreamLimits, pieces, split_id, turn_frame
from qworkspace.base.clock import SimulatedClock
from qworkspace.base.events import EventLog
from qworkspace.errors import InvalidInput
from tests.support.api import Listening, parse_sse


class Bench:
    def __init__(self, *, size: int = 1000) -> None:
        self.clock = SimulatedClock()
        self.log = EventLog(self.clock, size=size)

    def say(self, *texts: str) -> None:
        for text in texts:
            self.log.append("text.delta", {"text": text})

    @asynccontextmanager
    async def follow(self, *, after: int = 0, backlog: int = 1000) -> AsyncIterator[Listening]:
        limits = StreamLimits(keep_alive=15, send=30, backlog=backlog)
        stream = EventStream(self.log, turn_frame("turn_1"), clock=self.clock, limits=limits, after=after)
        async with Listening(stream, "GET", "/", b"", {}) as listening:
            yield listening


def texts(listening: Listening) -> list[str]:
    return [event.data["text"] for event in listening.events if event.type == "text.delta"]


async def test_what_is_there_and_what_comes_until_the_end() -> None:
    bench = Bench()
    bench.say("a", "b")
    async with bench.follow(after=1) as listening:
        await listening.piece()
        bench.say("c")
        bench.say("d")
        bench.log.close()
        await listening.rest()
        assert texts(listening) == ["b", "c", "d"]
        assert [event.id for event in listening.events] == ["turn_1.2", "turn_1.3", "turn_1.4"]
        await listening.wait_end()


async def test_what_is_ready_together_goes_out_together() -> None:
    bench = Bench()
    bench.say(*(str(number) for number in range(100)))
    async with bench.follow() as listening:
        await listening.piece()
        assert len(texts(listening)) == 100


async def test_a_silent_stream_gets_a_comment_every_fifteen_seconds() -> None:
    bench = Bench()
    async with bench.follow() as listening:
        bench.say("a")
        await listening.piece()
        for _ in range(3):
            await bench.clock.advance(20)
            assert (await listening.piece()).startswith(":")
        assert len(listening.events) == 1


async def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    bench = Bench()
    async with bench.follow() as listening:
        bench.say("a")
        await listening.piece()
        listening.open_gate.clear()
        bench.say("b")
        await bench.clock.advance(25)
        assert not listening.ended
        await bench.clock.advance(15)
        await listening.wait_end()
        assert listening.ended
    async with bench.follow(after=1) as again:
        await again.piece()
        assert texts(again) == ["b"]


async def test_a_reader_that_falls_too_far_behind_is_cut_off_and_may_join_again() -> None:
    bench = Bench()
    async with bench.follow(backlog=10) as listening:
        bench.say("first")
        await listening.piece()
        listening.open_gate.clear()
        bench.say("second")
        await asyncio.sleep(0)
        bench.say(*("x" for _ in range(50)))
        listening.open_gate.set()
        await listening.rest()
        await listening.wait_end()
        assert texts(listening) == ["first", "second"]
    async with bench.follow(after=2, backlog=10) as again:
        await again.piece()
        assert len(texts(again)) == 50


async def test_events_that_are_gone_are_told_as_missing() -> None:
    bench = Bench(size=5)
    bench.say(*(str(number) for number in range(10)))
    bench.log.close()
    async with bench.follow(after=2) as listening:
        await listening.rest()
        assert listening.events[0].data["code"] == "events_missing"
        assert listening.events[0].id == ""
        assert texts(listening) == ["5", "6", "7", "8", "9"]


async def test_leaving_ends_the_writer_and_not_the_log() -> None:
    bench = Bench()
    async with bench.follow() as listening:
        bench.say("a")
        await listening.piece()
    assert listening.ended
    bench.say("b")
    assert not bench.log.closed


async def test_texts_of_any_kind_survive() -> None:
    bench = Bench()
    said = ["line\nbreak\r\n", "\u2028\u0000", 'data: "x"\n\n', "你好", "\ud800"]
    bench.say(*said)
    bench.log.close()
    async with bench.follow() as listening:
        await listening.rest()
        assert texts(listening) == [*said[:-1], "?"]


@given(st.lists(st.binary(max_size=200_000), max_size=5))
def test_pieces_keep_every_byte(frames: list[bytes]) -> None:
    found = list(pieces(frames))
    assert b"".join(found) == b"".join(frames)
    assert all(found)
    assert all(len(piece) < PIECE_BYTES + 200_000 for piece in found)


@given(st.text(max_size=40))
def test_ids_are_parsed_or_refused(text: str) -> None:
    try:
        log, seq = split_id(text)
    except InvalidInput:
        return
    assert text.strip().startswith(f"{log}.")
    assert seq >= 0


@given(st.integers(min_value=0, max_value=10**9))
def test_ids_that_were_given_out_are_understood(seq: int) -> None:
    assert split_id(f"turn_0abc.{seq}") == ("turn_0abc", seq)


@pytest.mark.parametrize("events", [0, 1, 3])
def test_the_parser_of_these_tests(events: int) -> None:
    block: Any = "id: t.1\nevent: x\ndata: {}\n\n"
    assert len(parse_sse(": hi\n\n" + block * events)) == events
