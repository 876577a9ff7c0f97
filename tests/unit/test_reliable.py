"""An answer in spite of providers that fail, without an answer being given twice."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from qworkspace.base.clock import SimulatedClock
from qworkspace.chat.reliable import RetryPolicy, complete, stream_reliably
from qworkspace.chat.wire import Finished, FinishReason, ModelEvent, Prompt, ReasoningDelta, TextDelta
from qworkspace.config.models import ModelRef, Price, RetryConfig, TimeoutsConfig
from qworkspace.errors import ContextTooLong, ModelError
from qworkspace.sessions.models import Message, Part, TextPart, ToolCallPart, Usage, user_message

PROMPT = Prompt("", [user_message("hi")])
POLICY = RetryPolicy(chance=lambda: 1.0)
Step = ModelEvent | Exception | float


def finished(*parts: Part, reason: FinishReason = "stop", tokens: int = 5) -> Finished:
    return Finished(Message(role="assistant", parts=parts), Usage(output_tokens=tokens, requests=1), reason)


def says(text: str) -> list[Step]:
    return [TextDelta(text), finished(TextPart(text=text))]


def busy(after: float | None = None) -> list[Step]:
    return [ModelError("overloaded", retryable=True, status=529, retry_after=after)]


NOTHING: list[Step] = [finished()]
DOWN: list[Step] = [ModelError("the key is refused", status=401)]


@dataclass
class Scripted:
    """A model that goes through one script per try; a number in it is a pause."""

    scripts: list[list[Step]]
    clock: SimulatedClock
    name: str = "one"
    asked: int = 0
    closed: int = 0
    context_window: int = 1000
    price: Price | None = None
    vision: bool = False
    timeouts: TimeoutsConfig = field(default_factory=lambda: TimeoutsConfig(first_token=20, idle=10))

    @property
    def ref(self) -> ModelRef:
        return ModelRef(provider="test", name=self.name)

    async def stream(self, prompt: Prompt) -> AsyncGenerator[ModelEvent, None]:
        self.asked += 1
        try:
            for step in self.scripts.pop(0):
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, float):
                    await self.clock.sleep(step)
                else:
                    yield step
        finally:
            self.closed += 1


@dataclass
class Outcome:
    text: str = ""
    last: Finished | None = None
    error: ModelError | None = None
    notices: list[str] = field(default_factory=list)


async def run(models: Sequence[Scripted], clock: SimulatedClock, policy: RetryPolicy = POLICY) -> Outcome:
    outcome = Outcome()
    stream = stream_reliably(
        models, PROMPT, policy=policy, clock=clock, notice=lambda code, message: outcome.notices.append(code)
    )
    try:
        async with aclosing(stream) as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    outcome.text += event.text
                elif isinstance(event, Finished):
                    outcome.last = event
    except ModelError as error:
        outcome.error = error
    return outcome


async def passing(clock: SimulatedClock, work: Awaitable[Outcome], limit: float = 1000) -> tuple[Outcome, float]:
    """The outcome, and the simulated seconds that it took."""
    task = asyncio.ensure_future(work)
    began = clock.monotonic()
    while not task.done():
        assert clock.monotonic() - began < limit, "still at it"
        await clock.advance(0.5)
    return task.result(), clock.monotonic() - began


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


async def test_an_answer_goes_through_as_it_is(clock: SimulatedClock) -> None:
    model = Scripted([says("hello")], clock)
    outcome = await run([model], clock)
    assert (outcome.text, outcome.notices, model.closed) == ("hello", [], 1)
    assert outcome.last is not None
    assert outcome.last.message.text == "hello"


async def test_before_the_first_word_it_is_tried_again_with_growing_pauses(clock: SimulatedClock) -> None:
    model = Scripted([busy(), busy(), says("at last")], clock)
    outcome, seconds = await passing(clock, run([model], clock))
    assert outcome.text == "at last"
    assert outcome.notices == ["retry", "retry"]
    assert 3.0 <= seconds <= 4.0


async def test_retry_after_is_respected(clock: SimulatedClock) -> None:
    model = Scripted([busy(after=42), says("now")], clock)
    outcome, seconds = await passing(clock, run([model], clock))
    assert outcome.text == "now"
    assert 42 <= seconds <= 43


async def test_a_provider_that_wants_too_long_a_pause_is_left_for_the_next_model(clock: SimulatedClock) -> None:
    first, second = Scripted([busy(after=3600)], clock), Scripted([says("me instead")], clock, "two")
    outcome, seconds = await passing(clock, run([first, second], clock))
    assert outcome.text == "me instead"
    assert outcome.notices == ["fallback"]
    assert seconds < 2


async def test_tries_are_counted_and_then_the_next_model_is_asked(clock: SimulatedClock) -> None:
    first = Scripted([busy(), busy(), busy()], clock)
    second = Scripted([busy(), says("second")], clock, "two")
    outcome, _ = await passing(clock, run([first, second], clock))
    assert outcome.text == "second"
    assert (first.asked, second.asked) == (3, 2)
    assert outcome.notices == ["retry", "retry", "fallback", "retry"]


async def test_what_trying_again_cannot_mend_goes_to_the_next_model_at_once(clock: SimulatedClock) -> None:
    first, second = Scripted([DOWN], clock), Scripted([says("second")], clock, "two")
    outcome = await run([first, second], clock)
    assert (outcome.text, first.asked) == ("second", 1)


async def test_when_all_fail_the_error_names_them_all(clock: SimulatedClock) -> None:
    models = [Scripted([DOWN], clock), Scripted([[ModelError("no such model", status=404)]], clock, "two")]
    outcome = await run(models, clock)
    assert outcome.error is not None
    assert "the key is refused" in outcome.error.message
    assert "no such model" in outcome.error.message
    assert outcome.error.status == 404


async def test_one_models_error_comes_as_it_is(clock: SimulatedClock) -> None:
    outcome = await run([Scripted([DOWN], clock)], clock)
    assert outcome.error is not None
    assert (outcome.error.message, outcome.error.status) == ("the key is refused", 401)


async def test_after_the_first_word_nothing_is_tried_again(clock: SimulatedClock) -> None:
    broken = ModelError("the line broke", retryable=True)
    first, second = Scripted([[TextDelta("half an"), broken]], clock), Scripted([says("no")], clock, "two")
    outcome = await run([first, second], clock)
    assert (outcome.text, outcome.error, second.asked) == ("half an", broken, 0)


async def test_thinking_is_not_speaking(clock: SimulatedClock) -> None:
    model = Scripted([[ReasoningDelta("hm"), ModelError("the line broke", retryable=True)], says("yes")], clock)
    outcome, _ = await passing(clock, run([model], clock))
    assert outcome.text == "yes"


async def test_a_prompt_that_is_too_long_is_the_callers_matter(clock: SimulatedClock) -> None:
    first, second = Scripted([[ContextTooLong("too long")]], clock), Scripted([says("no")], clock, "two")
    outcome = await run([first, second], clock)
    assert isinstance(outcome.error, ContextTooLong)
    assert (outcome.notices, second.asked) == ([], 0)


async def test_silence_before_the_first_token_is_limited(clock: SimulatedClock) -> None:
    model = Scripted([[60.0, *says("too late")], says("in time")], clock)
    outcome, seconds = await passing(clock, run([model], clock))
    assert outcome.text == "in time"
    assert 21 <= seconds <= 22
    assert (outcome.notices, model.closed) == (["retry"], 2)


async def test_silence_between_tokens_is_limited_from_the_last_one_on(clock: SimulatedClock) -> None:
    steps: list[Step] = [1.0, TextDelta("a"), 9.0, TextDelta("b"), 9.0, TextDelta("c"), 60.0, *says("never")]
    model = Scripted([steps], clock)
    outcome, seconds = await passing(clock, run([model], clock))
    assert outcome.text == "abc"
    assert outcome.error is not None
    assert "silent" in outcome.error.message
    assert 29 <= seconds <= 30
    assert model.closed == 1


async def test_writing_a_long_tool_call_is_a_sign_of_life(clock: SimulatedClock) -> None:
    call = ToolCallPart(id="c", name="write", args={"text": "long"})
    steps: list[Step] = [item for _ in range(10) for item in (8.0, TextDelta(""))]
    outcome, _ = await passing(clock, run([Scripted([[*steps, finished(call)]], clock)], clock))
    assert outcome.error is None
    assert outcome.last is not None
    assert outcome.last.message.calls == [call]


async def test_a_slow_reader_is_not_taken_for_a_silent_model(clock: SimulatedClock) -> None:
    model = Scripted([[TextDelta("a"), TextDelta("b"), finished(TextPart(text="ab"))]], clock)
    said = []
    async with aclosing(stream_reliably([model], PROMPT, policy=POLICY, clock=clock)) as events:
        async for event in events:
            said.append(event)
            await clock.advance(100)
    assert len(said) == 3


async def test_an_empty_reply_is_asked_for_once_more_and_its_tokens_are_counted(clock: SimulatedClock) -> None:
    model = Scripted([NOTHING, says("something")], clock)
    outcome = await run([model], clock)
    assert (outcome.text, outcome.notices) == ("something", ["empty_reply"])
    assert outcome.last is not None
    assert (outcome.last.usage.output_tokens, outcome.last.usage.requests) == (10, 2)


async def test_a_second_empty_reply_is_reported(clock: SimulatedClock) -> None:
    model = Scripted([NOTHING, [TextDelta("  \n"), finished(TextPart(text="  \n"))]], clock)
    second = Scripted([says("no")], clock, "two")
    outcome = await run([model, second], clock)
    assert outcome.error is not None
    assert outcome.error.code == "empty_reply"
    assert second.asked == 0


async def test_an_empty_reply_says_why_when_the_provider_does(clock: SimulatedClock) -> None:
    cut: list[Step] = [ReasoningDelta("hm"), finished(reason="length")]
    outcome = await run([Scripted([cut, cut], clock)], clock)
    assert outcome.error is not None
    assert "used up its limit" in outcome.error.message


async def test_a_reply_that_only_calls_tools_is_not_empty(clock: SimulatedClock) -> None:
    outcome = await run([Scripted([[finished(ToolCallPart(id="c", name="look"))]], clock)], clock)
    assert outcome.error is None


async def test_a_stream_without_an_end_is_a_failure(clock: SimulatedClock) -> None:
    outcome, _ = await passing(clock, run([Scripted([[], says("again")], clock)], clock))
    assert outcome.text == "again"
    outcome = await run([Scripted([[TextDelta("half")]], clock)], clock)
    assert outcome.error is not None
    assert "without its last event" in outcome.error.message


async def test_leaving_closes_the_connection_at_once(clock: SimulatedClock) -> None:
    model = Scripted([[TextDelta("a"), 1000.0, *says("never")]], clock)
    stream = stream_reliably([model], PROMPT, policy=POLICY, clock=clock)
    assert await anext(stream) == TextDelta("a")
    await stream.aclose()
    assert model.closed == 1


async def test_being_cancelled_closes_the_connection_and_stays_cancelled(clock: SimulatedClock) -> None:
    model = Scripted([[1000.0]], clock)
    task = asyncio.create_task(run([model], clock))
    await clock.advance(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.closed == 1


async def test_no_model_at_all_is_said(clock: SimulatedClock) -> None:
    outcome = await run([], clock)
    assert outcome.error is not None
    assert outcome.error.code == "no_model"


async def test_complete_gives_the_whole_answer(clock: SimulatedClock) -> None:
    whole = await complete([Scripted([says("all of it")], clock)], PROMPT, policy=POLICY, clock=clock)
    assert whole.message.text == "all of it"


@pytest.mark.parametrize(
    ("tries", "retry_after", "pause"), [(1, None, 2), (2, None, 4), (9, None, 5), (1, 3, 3), (3, 1, 5)]
)
def test_pauses_double_up_to_their_cap(tries: int, retry_after: float | None, pause: float) -> None:
    config: dict[str, Any] = {"attempts": 4, "base": "2s", "cap": "5s"}
    policy = RetryPolicy.of(RetryConfig.model_validate(config))
    assert policy.attempts == 4
    most = RetryPolicy(policy.attempts, policy.base, policy.cap, chance=lambda: 1.0).pause(tries, retry_after)
    least = RetryPolicy(policy.attempts, policy.base, policy.cap, chance=lambda: 0.0).pause(tries, retry_after)
    assert most == pause
    assert least == max(retry_after or 0, pause / 2 if pause != retry_after else 0)
