"""A pipeline in which nothing goes on: its status names the step whose doing it is, and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    Count,
    JobStatus,
    OldestCall,
    Pipeline,
    Sink,
    SinkError,
    Stream,
    TumblingWindows,
)
from asyncstream.elements import Timestamps
from asyncstream.guards import circuit_breaker, rate_limit
from tests.runtime.parts import boom, run


def status_after(
    seconds: float, pipeline: Pipeline, given: dict[str, list[Any]] | None = None, **options: Any
) -> JobStatus:
    """How a job stands so long after it was given these elements; then it is stopped."""

    async def main() -> JobStatus:
        async with pipeline.start(end_timeout=1) as job:
            for name, values in (given or {}).items():
                for value in values:
                    await job.submit(value, to=name)
            await asyncio.sleep(seconds)
            status = job.status(**options)
            await job.stop(0)
        return status

    return run(main())


def timed(pipeline: Pipeline, name: str, **options: Any) -> Stream[Any]:
    stream = pipeline.submissions(name=name)
    return stream.event_time(lambda t: t, BoundedOutOfOrderness(0), **options)


def counted(stream: Stream[Any]) -> None:
    stream.key_by(lambda t: 0).window(TumblingWindows(1)).aggregate(n=Count()).discard(name="end")


# ------------------------------------------------------------------ an input that is silent


def two_inputs(**options: Any) -> Pipeline:
    pipeline = Pipeline()
    left = timed(pipeline, "left")
    right = timed(pipeline, "right", **options)
    counted(left.union(right, name="both"))
    return pipeline


def test_silent_input_of_a_union_is_named() -> None:
    status = status_after(60, two_inputs(), {"left": [1_000, 5_000], "right": [2_000]})
    union = status.step("both")
    assert union.held_back_by == "right"
    assert union.stuck is not None
    assert "'right'" in union.stuck
    assert "60 s" in union.stuck
    assert "idle_after=" in union.stuck
    assert (union.watermark_ms, status.step("event_time").watermark_ms) == (1_999, 4_999)
    assert [step.name for step in status.stuck] == ["both"]


def test_steps_behind_a_union_that_waits_say_for_whom() -> None:
    status = status_after(60, two_inputs(), {"left": [1_000, 5_000]})
    assert status.step("aggregate").held_back_by == "right"
    assert status.step("end").held_back_by == "right"
    assert status.step("event_time").held_back_by is None


def test_input_that_has_never_brought_anything_is_named() -> None:
    status = status_after(60, two_inputs(), {"left": [1_000]})
    assert status.step("both").held_back_by == "right"
    assert status.step("both").watermark_ms is None


def test_input_that_was_silent_for_a_moment_only_holds_back_but_is_no_reason_to_worry() -> None:
    status = status_after(1, two_inputs(), {"left": [1_000]})
    assert status.step("both").held_back_by == "right"
    assert status.stuck == ()
    assert status_after(1, two_inputs(), {"left": [1_000]}, stuck_after=1).stuck != ()


def test_silent_input_that_says_that_it_is_idle_is_not_waited_for() -> None:
    status = status_after(60, two_inputs(idle_after=5), {"left": [1_000], "right": [500]})
    assert status.step("event_time-2").idle is True
    assert status.step("both").idle is False
    assert status.step("both").held_back_by is None
    assert status.step("both").watermark_ms == 999
    assert status.stuck == ()


def test_two_inputs_that_are_both_silent_wait_for_nobody_but_the_slower() -> None:
    status = status_after(60, two_inputs(), {"left": [1_000], "right": [1_000]})
    assert status.step("both").held_back_by is None
    assert status.stuck == ()


def test_union_in_a_union_is_followed_to_the_input_that_is_silent() -> None:
    pipeline = Pipeline()
    a, b, c = (timed(pipeline, name) for name in "abc")
    counted(c.union(a.union(b, name="inner"), name="outer"))
    status = status_after(60, pipeline, {"a": [1_000], "c": [1_000]})
    assert status.step("inner").held_back_by == "b"
    assert status.step("outer").held_back_by == "b"


def test_silent_input_is_called_by_the_name_that_the_user_gave_on_its_way() -> None:
    pipeline = Pipeline()
    left = pipeline.submissions(name="left").event_time(lambda t: t, AscendingTimestamps())
    silent = pipeline.submissions().event_time(lambda t: t, AscendingTimestamps(), name="sensor")
    counted(left.union(silent, name="both"))
    status = status_after(60, pipeline, {"left": [1_000]})
    assert status.step("both").held_back_by == "sensor"


def test_input_whose_call_hangs_is_held_back_by_the_call_and_not_by_its_source() -> None:
    pipeline = Pipeline()
    left = timed(pipeline, "left")
    right = pipeline.submissions(name="right").async_map(hang_on_zero, name="ask")
    counted(left.union(right.event_time(lambda t: t, AscendingTimestamps()), name="both"))
    status = status_after(60, pipeline, {"left": [1_000], "right": [0]})
    assert status.step("both").held_back_by == "ask"
    assert "'ask'" in str(status.step("both").stuck)
    assert [step.name for step in status.stuck] == ["ask", "both"]


@pytest.mark.parametrize("reorder", [False, True])
def test_port_of_a_union_knows_what_it_reads_wherever_it_was_connected(reorder: bool) -> None:
    """Operators are connected in the order in which they were added, whatever the order of the inputs."""
    pipeline = Pipeline()
    first, second = timed(pipeline, "first"), timed(pipeline, "second")
    counted(second.union(first, name="both") if reorder else first.union(second, name="both"))
    assert status_after(60, pipeline, {"first": [1_000]}).step("both").held_back_by == "second"


# ------------------------------------------------------------------ a call that hangs


async def hang_on_zero(value: int) -> int:
    await asyncio.sleep(1_000 if value == 0 else 0.001)
    return value


def asking(function: Any = hang_on_zero, **options: Any) -> Pipeline:
    pipeline = Pipeline()
    pipeline.submissions(name="orders").async_map(function, name="ask", **options).discard(name="end")
    return pipeline


def test_call_that_hangs_is_named_with_its_age_and_what_waits_behind_it() -> None:
    status = status_after(60, asking(), {"orders": [1, 0, 2, 3, 4]})
    step = status.step("ask")
    assert step.oldest_call == OldestCall(60.0, None)
    assert step.waiting == {"inbox": 0, "limit": 0, "call": 1, "order": 3, "downstream": 0}
    assert step.stuck is not None
    assert "60 s" in step.stuck
    assert "3 results" in step.stuck
    assert "timeout=" in step.stuck
    assert [step.name for step in status.stuck] == ["ask"]
    assert step.concurrency == 100


def test_call_that_hangs_is_shown_with_its_element_or_what_a_function_gives_of_it() -> None:
    given: dict[str, list[Any]] = {"orders": [0]}
    assert status_after(9, asking(), given, values=True).step("ask").oldest_call == OldestCall(9.0, "0")
    of: Callable[[int], str] = "order {}".format
    assert status_after(9, asking(), given, values=of).step("ask").oldest_call == OldestCall(9.0, "'order 0'")
    failing = status_after(9, asking(), given, values=boom).step("ask").oldest_call
    assert failing == OldestCall(9.0, "<Boom>")


def test_results_that_may_go_ahead_do_not_wait_for_the_call_that_hangs() -> None:
    status = status_after(60, asking(order="unordered"), {"orders": [1, 0, 2, 3]})
    assert status.step("ask").waiting["order"] == 0
    assert status.step("ask").stuck is not None
    assert status.step("end").counts["written"] == 3


def test_call_that_ignores_its_timeout_is_named_though_its_element_has_gone() -> None:
    async def deaf(value: int) -> int:
        ends = asyncio.get_running_loop().time() + 500
        while asyncio.get_running_loop().time() < ends:
            try:
                await asyncio.sleep(500)
            except asyncio.CancelledError:
                pass
        return value

    async def main() -> JobStatus:
        async with asking(deaf, timeout=5, on_timeout="skip").start() as job:
            await job.submit(0)
            await asyncio.sleep(60)
            status = job.status()
            await asyncio.sleep(500)
        return status

    step = run(main()).step("ask")
    assert step.oldest_call == OldestCall(60.0, None)
    assert step.stuck is not None
    assert step.counts["overdue"] == 1


def test_elements_of_a_busy_key_wait_for_their_turn() -> None:
    pipeline = Pipeline()
    orders = pipeline.submissions(name="orders").key_by(lambda value: 0)
    orders.async_map(hang_on_zero, name="ask", order="per_key").discard()
    status = status_after(60, pipeline, {"orders": [0, 1, 2]})
    assert status.step("ask").waiting == {"inbox": 0, "limit": 0, "call": 1, "order": 2, "downstream": 0}


def test_results_behind_a_watermark_wait_for_the_call_before_it() -> None:
    pipeline = Pipeline()
    asked = timed(pipeline, "orders").async_map(hang_on_zero, name="ask", order="event_time")
    asked.discard(name="end")
    status = status_after(60, pipeline, {"orders": [-5_000, 0, 10_000, 20_000]})
    assert status.step("ask").waiting == {"inbox": 0, "limit": 0, "call": 1, "order": 2, "downstream": 0}
    assert status.step("ask").watermark_ms == -5_001
    assert status.step("event_time").watermark_ms == 19_999
    assert status.step("end").held_back_by == "ask"


def test_calls_that_wait_for_a_rate_limit_are_counted_and_no_reason_to_worry() -> None:
    limited = rate_limit(hang_on_zero, rate=1, per=10)
    status = status_after(2, asking(limited), {"orders": [1, 2, 3]})
    assert status.step("ask").waiting == {"inbox": 0, "limit": 2, "call": 0, "order": 0, "downstream": 0}
    assert status.stuck == ()


def test_open_breaker_is_named_at_once() -> None:
    async def fail(value: int) -> int:
        raise ConnectionError("down")

    guarded = circuit_breaker(fail, failures=1, open_for=100)
    status = status_after(1, asking(guarded, on_error="skip"), {"orders": [1, 2, 3]})
    step = status.step("ask")
    assert step.waiting["limit"] >= 1
    assert "circuit breaker is open" in str(step.stuck)


def test_elements_that_failed_last_are_kept_hidden() -> None:
    status = status_after(1, asking(boom_async, on_error="skip"), {"orders": list(range(30))})
    failures = status.step("ask").failures
    assert len(failures) == 20
    assert {(failure.error, failure.element) for failure in failures} == {("Boom", None)}
    shown = status_after(1, asking(boom_async, on_error="skip"), {"orders": [7]}, values=True)
    (failure,) = shown.step("ask").failures
    assert (failure.error, failure.element) == ("Boom: on purpose", "7")


async def boom_async(value: int) -> int:
    await asyncio.sleep(0)
    result: int = boom(value)
    return result


# ------------------------------------------------------------------ a sink that is slow


def writing(sink: Any, source: Any = range(1_000_000)) -> Pipeline:
    pipeline = Pipeline()
    orders = pipeline.source(source, name="orders")
    orders.async_map(at_once, name="ask").map(lambda value: value).to(sink, name="archive")
    return pipeline


async def at_once(value: int) -> int:
    return value


async def slow(value: int) -> None:
    await asyncio.sleep(0.1)


def test_slow_sink_is_named_by_all_that_it_holds_back() -> None:
    status = status_after(20, writing(slow))
    archive = status.step("archive")
    assert archive.stuck is not None
    assert "write" in archive.stuck
    assert "20 s" in archive.stuck
    assert status.step("orders").held_back_by == "archive"
    assert status.step("ask").held_back_by == "archive"
    assert archive.held_back_by is None
    assert [step.name for step in status.stuck] == ["archive"]
    assert archive.waiting["call"] > 0
    assert archive.waiting["inbox"] >= 1024


def test_status_names_the_slow_sink_from_the_first_moment() -> None:
    status = status_after(0.5, writing(slow))
    assert status.step("orders").held_back_by == "archive"
    assert status.stuck == ()


async def hang(value: int) -> None:
    await asyncio.sleep(1_000)


def test_sink_that_hangs_on_one_element_shows_it_if_asked() -> None:
    status = status_after(60, writing(hang, [7]), values=True)
    assert status.step("archive").oldest_call == OldestCall(60.0, "7")


def test_results_that_nobody_takes_are_named() -> None:
    pipeline = Pipeline()
    pipeline.source(range(5_000), name="orders").results(name="answers", limit=10)
    status = status_after(60, pipeline)
    assert status.step("orders").held_back_by == "answers"
    assert "job.results()" in str(status.step("answers").stuck)


def test_elements_that_find_no_room_behind_a_step_are_counted_there() -> None:
    status = status_after(60, writing(hang))
    waiting = status.step("ask").waiting
    assert waiting["downstream"] == status.step("ask").counts["held"] > 0
    assert waiting["inbox"] >= 1_024
    assert status.step("archive").stuck is not None


def test_sink_that_cannot_tell_what_it_has_taken_does_not_cost_the_status() -> None:
    class Confused(Sink[int]):
        async def write(self, values: Any, timestamps: Timestamps) -> None:
            await asyncio.sleep(1_000)

        def taken(self) -> int:
            return -1

    async def main() -> JobStatus:
        job = writing(Confused(), [1, 2]).start(end_timeout=1)
        with suppress(SinkError):
            async with job:
                await asyncio.sleep(60)
                status = job.status()
                await job.stop(0)
        return status

    assert run(main()).step("archive").waiting["call"] == 2
