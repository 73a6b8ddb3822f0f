"""What people do when they meet the package for the first time, and would get a wrong result of, or none."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    Count,
    DynamicSessionWindows,
    KeyedProcessFunction,
    Pipeline,
    PipelineError,
    SessionWindows,
    Stream,
    TumblingWindows,
    UserFunctionError,
    ValueDescriptor,
)
from asyncstream.connectors import to_dead_letter
from asyncstream.telemetry import instrument
from asyncstream.testing import harness
from asyncstream.windowing import CountTrigger, Trigger, WindowAssigner

WAITS: dict[str, tuple[Callable[[Pipeline], object], str]] = {
    "submissions": (lambda p: p.submissions(name="orders").discard(), "step 'orders': nobody can submit to"),
    "results": (
        lambda p: p.source([1]).results(name="rates"),
        "step 'rates': nobody can take the results of",
    ),
}


@pytest.mark.parametrize("case", WAITS)
def test_job_that_is_only_run_is_refused_what_waits_for_a_program(
    case: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    build, message = WAITS[case]
    pipeline = Pipeline()
    build(pipeline)
    for run in (pipeline.run_blocking, lambda **given: asyncio.run(pipeline.run(**given))):
        with pytest.raises(PipelineError) as caught:
            run(checkpoints="kept")
        assert str(caught.value).startswith(message)
        assert "; use `async with pipeline.start() as job:`" in str(caught.value)


def test_generator_that_two_sources_would_share_is_refused() -> None:
    async def later() -> Any:
        yield 1

    for items in ((number for number in range(4)), iter([1, 2]), later()):
        pipeline = Pipeline()
        pipeline.source(items).discard()
        with pytest.raises(PipelineError, match="steps 'source' and 'source-2' share one "):
            pipeline.source(items)
    listed = [1, 2]
    pipeline = Pipeline()
    for _ in range(2):
        pipeline.source(listed).discard()


@pytest.mark.parametrize("default", [[], {}, set(), bytearray()])
def test_default_that_all_keys_would_share_and_change_is_refused(default: Any) -> None:
    with pytest.raises(
        PipelineError, match=r"^default of state 'seen': expected nothing that can be changed"
    ):
        ValueDescriptor("seen", default=default)


def test_type_in_place_of_a_default_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"; for a type checker write ValueDescriptor\[int\]\('seen'\)$"):
        ValueDescriptor("seen", int)
    with pytest.raises(PipelineError, match="expected a value, not a function that makes one, got <function"):
        ValueDescriptor("seen", lambda: 0)
    for default in (0, "", (), frozenset({1}), None):
        ValueDescriptor("seen", default=default)


@pytest.mark.parametrize("windows", [SessionWindows(30), DynamicSessionWindows(lambda value: 30)])
@pytest.mark.parametrize("is_plain", [True, False])
def test_windows_that_take_elements_without_a_time_tell_of_the_first(
    windows: WindowAssigner, is_plain: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline()
    opened = pipeline.source(range(3)).key_by(lambda value: 0).window(windows)
    (opened if is_plain else opened.trigger(CountTrigger(3))).aggregate(Count(), name="clicks").discard()
    with caplog.at_level(logging.WARNING):
        pipeline.run_blocking()
    told = [record.getMessage() for record in caplog.records if "without a timestamp" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("step 'clicks': ")
    assert "put .event_time(...) before it" in told[0]


async def double(number: int) -> int:
    return 2 * number


@pytest.mark.parametrize("is_before", [True, False])
def test_order_of_event_time_without_event_time_is_told_of(
    is_before: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def timed(stream: Stream[int]) -> Stream[int]:
        return stream.event_time(lambda number: number, AscendingTimestamps())

    pipeline = Pipeline()
    numbers: Stream[int] = pipeline.source(range(3))
    numbers = (timed(numbers) if is_before else numbers).map(int)
    doubled = numbers.async_map(double, order="event_time", name="double")
    (doubled if is_before else timed(doubled)).discard()
    with caplog.at_level(logging.WARNING):
        pipeline.run_blocking()
    told = [record.getMessage() for record in caplog.records]
    assert (
        told
        == [
            "step 'double': order='event_time' is 'unordered' here, where no watermarks come; put "
            ".event_time(...) before it"
        ][is_before:]
    )


MISSING: dict[str, tuple[Callable[[Any], object], str]] = {
    "behind the end": (lambda s: s.to([]).map, "a stream ends there: keep what is before it in a variable"),
    "lateness behind the windows": (
        lambda s: s.key_by(str).window(TumblingWindows(1)).aggregate(Count()).allowed_lateness,
        "put it directly behind .key_by(...) and .window(...)",
    ),
    "a step between key and windows": (
        lambda s: s.key_by(str).map(str).window,
        "put .key_by(...) directly be",
    ),
    "late, a step too soon": (
        lambda s: s.key_by(str).window(TumblingWindows(1)).late,
        "say first what to compute of the windows: .aggregate(...)",
    ),
    "late, a step too late": (lambda s: s.map(str).late, "it belongs to what .window(...).aggregate(...)"),
    "side of no function": (lambda s: s.side, "it belongs to what .process(...) gives"),
    "timed out of no call": (lambda s: s.map(str).timed_out, 'what .async_map(..., on_timeout="route")'),
}


@pytest.mark.parametrize("case", MISSING)
def test_method_in_the_wrong_place_is_answered_with_the_right_one(case: str) -> None:
    look, advice = MISSING[case]
    with pytest.raises(AttributeError) as caught:
        look(Pipeline().source([1]))
    assert advice in str(caught.value)


def test_fields_that_are_named_are_no_methods() -> None:
    pipeline = Pipeline()
    pipeline.source([(1, 2)]).map("price").discard()
    with pytest.raises(UserFunctionError, match="no field 'price' in a tuple; there are: none"):
        pipeline.run_blocking()


class Fires(Trigger):
    """Answers yes, and on the second element nothing."""

    def on_element(self, value: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
        return True if value == 1 else None


@pytest.mark.parametrize("value", [1, 2])
def test_trigger_that_gives_no_answer_is_told_what_to_give(value: int) -> None:
    pipeline = Pipeline()
    timed = pipeline.source([value]).event_time(lambda value: value, AscendingTimestamps()).key_by(str)
    timed.window(TumblingWindows(2)).trigger(Fires()).collect().discard()
    with pytest.raises(
        UserFunctionError, match="a trigger answers a TriggerResult, such as FIRE or CONTINUE; g"
    ):
        pipeline.run_blocking()


class Sorts(KeyedProcessFunction[int, int]):
    """Has one side output."""

    sides = ("large",)

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        ctx.side("large", value)


def test_harness_knows_the_side_outputs_that_there_are() -> None:
    with harness(Sorts(), key_by=str) as tested:
        tested.push(1)
        with pytest.raises(PipelineError, match="side: expected one of 'large', got 'lare'"):
            tested.collect("lare")
        assert tested.collect("large") == [1]


def test_dead_letter_of_what_has_not_failed_is_refused() -> None:
    made: Any = to_dead_letter
    with pytest.raises(PipelineError, match=r"expected a FailedCall, got 1; put it behind \.failed or"):
        made(1)


def test_pipeline_in_place_of_its_job_is_refused() -> None:
    given: Any = Pipeline()
    with pytest.raises(
        PipelineError, match=r"job: expected a Job, got .*; e\.g\. instrument\(pipeline\.start"
    ):
        instrument(given)


def test_policy_windows_ask_for_event_time_as_others_do() -> None:
    adds: tuple[Callable[[Any], Any], ...] = (
        lambda s: s.policy_window(length=timedelta(seconds=2)),
        lambda s: s.window_all(TumblingWindows(2)).collect(),
        lambda s: s.key_by(str).as_of(s.key_by(str)),
    )
    for add in adds:
        pipeline = Pipeline()
        add(pipeline.source([1])).discard()
        with pytest.raises(
            UserFunctionError, match=r"needs a timestamp; put \.event_time\(\.\.\.\) before it"
        ):
            pipeline.run_blocking()


def test_event_time_is_what_they_ask_for() -> None:
    found: list[Any] = []
    pipeline = Pipeline()
    timed = pipeline.source([1]).event_time(lambda value: value, AscendingTimestamps())
    timed.window_all(TumblingWindows(2)).collect().to(found)
    pipeline.run_blocking()
    assert [result.value for result in found] == [[1]]


MISUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "async with pipeline": (lambda p: entered(p), "`async with pipeline.start() as job:`"),
    "with pipeline": (lambda p: plainly_entered(p), "`with pipeline.start_in_thread() as job:`"),
    "with start": (lambda p: plainly_entered(p.start()), "`async with pipeline.start() as job:`"),
    "async with start in a thread": (lambda p: entered(p.start_in_thread()), "`async with pipeline.start()"),
    "async for of a stream": (lambda p: iterated(p.source([2])), "end the stream with .results(), and write"),
    "for of a stream": (lambda p: plainly_iterated(p.source([2])), "end the stream with .results(), and wr"),
    "for of the pipeline": (lambda p: plainly_iterated(p), "`async for result in job.results():`"),
    "async for of the pipeline": (lambda p: iterated(p), "`async for result in job.results():`"),
    "a stream as a source": (lambda p: p.source(p.source([2]), name="again"), "become one by .union(...)"),
    "names one by one": (lambda p: p.source([2]).key_by("a", "b"), "a tuple: key_by(('a', 'b'))"),
}


async def entered(what: Any) -> None:
    async with what:
        pass


async def plainly_entered(what: Any) -> None:
    with what:
        pass


async def plainly_iterated(what: Any) -> None:
    for _ in what:
        pass


async def iterated(what: Any) -> None:
    async for _ in what:
        pass


@pytest.mark.parametrize("case", MISUSED)
async def test_syntax_that_does_not_fit_is_answered_with_what_to_type(case: str) -> None:
    misuse, advice = MISUSED[case]
    pipeline: Any = Pipeline()
    pipeline.source([1]).discard()
    with pytest.raises(PipelineError) as caught:
        await misuse(pipeline)
    assert advice in str(caught.value)


def test_neither_a_pipeline_nor_a_job_is_taken_for_something_to_await() -> None:
    """Frameworks await what a function gives if they can: one that gives a job would fail."""
    pipeline = Pipeline()
    pipeline.source([1]).discard()
    assert not any(map(inspect.isawaitable, (pipeline, pipeline.start(), pipeline.start_in_thread())))
