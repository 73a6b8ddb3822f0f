"""How long calls take, by how they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncstream import JobStatus, Latency, Pipeline, Stream
from asyncstream.connectors.http import HttpLookup
from asyncstream.guards import retry, single_flight
from asyncstream.guards.retry import attempts_in
from asyncstream.metrics import Distribution, Point
from tests.runtime.parts import boom, run


async def take(seconds: float) -> float:
    await asyncio.sleep(abs(seconds))
    if seconds < 0:
        boom()
    return seconds


def measured(given: list[float], function: Any = take, **options: Any) -> tuple[JobStatus, dict[str, Any]]:
    """The status of a job that was given these, and its metrics by name."""

    async def main() -> tuple[JobStatus, dict[str, Any]]:
        pipeline = Pipeline("calls")
        numbers: Stream[float] = pipeline.source(given)
        if options.get("order") == "per_key":
            numbers = numbers.key_by(lambda number: number)
        numbers.async_map(function, name="ask", **options).discard()
        async with pipeline.start() as job:
            await job.wait()
            return job.status(), {metric.name: metric for metric in job.measure()}

    return run(main())


def calls_by_outcome(metrics: dict[str, Any]) -> dict[str, Distribution]:
    points: tuple[Point, ...] = metrics["asyncstream.call.duration"].points
    return {point.labels["outcome"]: point.value for point in points if isinstance(point.value, Distribution)}


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time", "per_key"])
def test_calls_are_timed_by_how_they_end(order: str) -> None:
    options: dict[str, Any] = {"timeout": 5, "on_timeout": "skip", "on_error": "skip", "order": order}
    _, metrics = measured([1.0, 2.0, -0.25, -0.25, -0.25, 9.0], **options)
    calls = calls_by_outcome(metrics)
    assert {outcome: found.count for outcome, found in calls.items()} == {
        "success": 2,
        "error": 3,
        "timeout": 1,
    }
    assert calls["success"].total == pytest.approx(3.0, abs=0.01)
    assert calls["error"].total == pytest.approx(0.75, abs=0.01)
    assert calls["timeout"].total == pytest.approx(5.0, abs=0.01)


def test_calls_one_at_a_time_per_key_are_timed_from_their_own_start() -> None:
    async def main() -> Distribution:
        pipeline = Pipeline()
        keyed = pipeline.source([2.0, 2.0, 2.0]).key_by(lambda value: 0)
        keyed.async_map(take, order="per_key").discard()
        async with pipeline.start() as job:
            await job.wait()
            return calls_by_outcome({metric.name: metric for metric in job.measure()})["success"]

    found = run(main())
    assert found.count == 3
    assert found.total == pytest.approx(6.0, abs=0.01)


def test_call_that_is_timed_out_and_ends_well_after_all_counts_once() -> None:
    async def deaf(value: float) -> float:
        try:
            await asyncio.sleep(value)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        return value

    _, metrics = measured([9.0], deaf, timeout=5, on_timeout="skip")
    assert sum(found.count for found in calls_by_outcome(metrics).values()) == 1


def test_calls_that_never_wait_are_not_timed() -> None:
    async def at_once(value: float) -> float:
        return value

    status, metrics = measured([1.0] * 100, at_once)
    assert calls_by_outcome(metrics)["success"].count == 0
    assert status.step("ask").latency is None


def test_status_has_the_percentiles_of_late() -> None:
    status, _ = measured([0.1] * 98 + [1.0] * 2)
    latency = status.step("ask").latency
    assert isinstance(latency, Latency)
    assert latency.calls == 100
    assert 75 <= latency.p50_ms <= 100
    assert 75 <= latency.p90_ms <= 100
    assert 750 <= latency.p99_ms <= 1000


def test_long_calls_that_are_usual_are_no_reason_to_worry() -> None:
    async def main() -> tuple[JobStatus, JobStatus]:
        pipeline = Pipeline()
        pipeline.submissions(name="orders").async_map(take, name="ask", order="unordered").discard()
        async with pipeline.start() as job:
            await job.submit(20.0)
            await asyncio.sleep(10)
            first = job.status()
            await job.submit(1_000.0)
            await asyncio.sleep(15)
            second = job.status()
            await job.stop(0)
        return first, second

    first, second = run(main())
    assert first.step("ask").stuck is not None
    assert second.step("ask").stuck is None


# ------------------------------------------------------------------ attempts


class Flaky:
    """Fails as often as its element says."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}

    async def __call__(self, failures: int) -> int:
        left = self.left.setdefault(failures, failures)
        if left:
            self.left[failures] = left - 1
            raise ConnectionError("once more")
        return failures


def test_attempts_are_counted_also_inside_other_guards() -> None:
    guarded = single_flight(retry(Flaky().__call__, attempts=4, wait_initial=0.01))
    _, metrics = measured([0, 1, 2, 7], guarded, on_error="skip")
    (point,) = metrics["asyncstream.call.attempts"].points
    assert point.value.cumulative()[:4] == [(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4)]
    assert point.value.total == 1 + 2 + 3 + 4


def test_call_that_is_not_tried_again_has_had_one_attempt() -> None:
    async def main() -> Distribution | None:
        guarded = retry(take, on=ConnectionError)
        with pytest.raises(Exception, match="purpose"):
            await guarded(-1.0)
        return attempts_in(guarded)

    found = run(main())
    assert found is not None
    assert (found.count, found.total) == (1, 1.0)


def test_function_without_a_retry_has_no_attempts() -> None:
    assert attempts_in(take) is None
    assert attempts_in(HttpLookup("http://localhost/{id}", attempts=1)) is None
    assert attempts_in(HttpLookup("http://localhost/{id}")) is not None
