"""Event time in a running job: the slowest stream counts, unless it is idle; and what it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import AscendingTimestamps, BoundedOutOfOrderness, Count, Items, Pipeline, TumblingWindows
from asyncstream.connectors import SourceBatch
from asyncstream.elements import MAX_TIMESTAMP, Timestamps
from asyncstream.operators.base import Operator
from asyncstream.operators.spec import Spec
from asyncstream.pipeline import Stream
from asyncstream.testing.loop import VirtualTimeLoop
from tests.runtime.parts import VirtualClock, run, sleeping

pytestmark = pytest.mark.usefixtures("virtual_time")

W = "watermark"
ASCENDING = BoundedOutOfOrderness(0, every=0)


class Probe(Operator):
    """Passes everything on and notes it, with the time of the loop in seconds."""

    def __init__(self, notes: list[tuple[float, Any]]) -> None:
        super().__init__()
        self.notes = notes

    def _note(self, what: Any) -> None:
        self.notes.append((asyncio.get_running_loop().time(), what))

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        for value in values:
            self._note(value)
        super().process_batch(values, timestamps)

    def advance_watermark(self, timestamp: int) -> None:
        self._note((W, timestamp))
        super().advance_watermark(timestamp)

    def set_idle(self, idle: bool) -> None:
        self._note(("idle", idle))
        super().set_idle(idle)


@dataclass(frozen=True)
class ProbeSpec(Spec):
    notes: list[tuple[float, Any]]

    def build(self) -> Probe:
        return Probe(self.notes)


def probed(stream: Stream[Any], notes: list[tuple[float, Any]]) -> Stream[Any]:
    """The stream, with everything on it noted; there is no public step that sees watermarks."""
    return Stream(stream._graph, stream._step("probe", None, ProbeSpec(notes), {}))


def watermarks(notes: list[tuple[float, Any]]) -> list[int]:
    return [what[1] for _, what in notes if isinstance(what, tuple) and what[0] == W]


async def at(*moments: tuple[float, int]) -> AsyncIterator[int]:
    """Yields each number at its moment, in seconds after the start."""
    for moment, number in moments:
        await asyncio.sleep(moment - asyncio.get_running_loop().time())
        yield number


def stamped(pipeline: Pipeline, source: Any, **options: Any) -> Stream[int]:
    return pipeline.source(source).event_time(lambda value: value, ASCENDING, **options)


async def run_with_clock(pipeline: Pipeline) -> None:
    await pipeline.run(clock=VirtualClock())


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_slowest_stream_counts() -> None:
    notes: list[tuple[float, Any]] = []
    pipeline = Pipeline()
    quick = stamped(pipeline, at((1, 100), (2, 200), (3, 300)))
    slow = stamped(pipeline, at((1.5, 10), (2.5, 20), (9, 30)))
    probed(quick.union(slow), notes).discard()
    await run_with_clock(pipeline)
    assert [(when, what) for when, what in notes if isinstance(what, tuple)] == [
        (1.5, (W, 9)),
        (2.5, (W, 19)),
        (9, (W, 29)),
        (9, (W, MAX_TIMESTAMP)),
    ]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_idle_stream_is_not_waited_for_until_it_is_back() -> None:
    notes: list[tuple[float, Any]] = []
    pipeline = Pipeline()
    quick = stamped(pipeline, at((1, 100), (2, 200), (5, 300), (6, 400)))
    slow = stamped(pipeline, at((1, 10), (4.5, 250), (5.5, 350)), idle_after=2)
    probed(quick.union(slow), notes).discard()
    await run_with_clock(pipeline)
    marks = [(when, what[1]) for when, what in notes if isinstance(what, tuple) and what[0] == W]
    # idle two seconds (and the rest of that millisecond) after it was heard last
    assert marks[:4] == [(1, 9), (3.001, 199), (5, 249), (5.5, 299)]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_stream_that_is_held_back_is_not_idle() -> None:
    """
    A stall downstream silences all streams; none of them is to blame, and none may be passed by the others.

    Flink counted such silence as idleness until its versions of late 2024.
    """
    notes: list[tuple[float, Any]] = []
    pipeline = Pipeline()
    union = None
    for start in (0, 1_000_000):  # one stream is far behind the other
        numbers = Items(range(start, start + 5_000), batch=50)
        stream = stamped(pipeline, numbers, idle_after=1)
        union = stream if union is None else union.union(stream)
    assert union is not None
    probed(union, notes).async_map(sleeping(30), concurrency=500, buffer=500).discard()
    await run_with_clock(pipeline)
    late = 0
    watermark = -1
    for _, what in notes:
        if not isinstance(what, tuple):
            late += what <= watermark
        elif what[0] == W:
            watermark = what[1]
    assert late == 0
    assert not any(what == ("idle", True) for _, what in notes)


async def burst(first: int, seconds: float) -> AsyncIterator[int]:
    """As many elements at once, one more so much virtual time later."""
    for number in range(first):
        yield number
    await asyncio.sleep(seconds)  # of virtual time
    yield 2000


async def later(seconds: float, numbers: AsyncIterator[int]) -> AsyncIterator[int]:
    await asyncio.sleep(seconds)  # of virtual time
    async for number in numbers:
        yield number


async def at_700_a_second(number: int) -> int:
    await asyncio.sleep(1 / 700)  # of virtual time: 1,100 hold sources for a second, 600 for half of one
    return number


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_time_in_which_a_stream_was_held_back_is_no_part_of_its_silence() -> None:
    """Though it is held no more when its silence is looked at."""
    notes: list[tuple[float, Any]] = []
    pipeline = Pipeline()
    far_ahead = stamped(pipeline, at((0, 1_000_000), (3, 2_000_000)))
    behind = stamped(pipeline, burst(1100, 1.5), idle_after=1)
    probed(far_ahead.union(behind), notes).async_map(at_700_a_second, concurrency=1).discard()
    await run_with_clock(pipeline)
    came = [what for _, what in notes if not isinstance(what, tuple) or what[0] == W]
    assert (W, 999_999) not in came[: came.index(2000)]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_stream_that_was_held_back_was_not_quiet() -> None:
    notes: list[tuple[float, Any]] = []
    pipeline = Pipeline()
    quiet = stamped(pipeline, burst(600, 1.3)).advance_when_quiet(1)
    probed(quiet, notes).async_map(at_700_a_second, concurrency=1).discard()
    await run_with_clock(pipeline)
    came = [what for _, what in notes if not isinstance(what, tuple) or what[0] == W]
    assert came[came.index(2000) - 1] == (W, 598)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_time_in_which_any_of_several_sources_was_held_back_is_no_silence_of_theirs() -> None:
    """One after the other, each by what reads it alone."""
    notes: list[tuple[float, Any]] = []
    pipeline = Pipeline()
    far_ahead = stamped(pipeline, at((0, 1_000_000), (9, 2_000_000)))
    first, second = pipeline.source(burst(1100, 9)), pipeline.source(later(1.5, burst(1100, 1.5)))
    for one in (first, second):
        one.async_map(at_700_a_second, concurrency=1).discard()
    both = first.union(second).event_time(lambda value: value, ASCENDING, idle_after=1)
    probed(far_ahead.union(both), notes).discard()
    await run_with_clock(pipeline)
    assert (3.0, 2000) in notes
    assert max(what[1] for when, what in notes if when <= 3 and isinstance(what, tuple)) == 1999


class InSplits(Items[int]):
    """As if the elements were those of a split, beside one that has none."""

    def splits(self) -> tuple[str, ...]:
        return "a", "b"

    async def read(self) -> SourceBatch[int] | None:
        batch = await super().read()
        return None if batch is None else batch._replace(split="a")


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_time_in_which_a_source_was_held_back_is_no_part_of_the_silence_of_its_splits() -> None:
    notes: list[tuple[float, Any]] = []
    pipeline = Pipeline()
    stream = stamped(pipeline, InSplits(burst(1100, 1.5)), idle_after=1)
    probed(stream, notes).async_map(at_700_a_second, concurrency=1).discard()
    await run_with_clock(pipeline)
    assert (1.5, 2000) in notes
    assert not any(what == ("idle", True) for _, what in notes)


@pytest.mark.usefixtures("virtual_time")
async def test_stream_that_is_read_no_more_because_the_job_stops_is_not_idle() -> None:
    notes: list[tuple[float, Any]] = []
    pipeline = Pipeline()
    far_ahead = stamped(pipeline, at((0, 1_000_000), (30, 2_000_000)))
    behind = stamped(pipeline, at((0, 1000), (0.5, 2000), (1.5, 3000)), idle_after=1)
    probed(far_ahead.union(behind), notes).async_map(sleeping(9)).discard()
    async with pipeline.start(clock=VirtualClock()) as job:
        await asyncio.sleep(0.7)  # of virtual time
        await job.stop(grace=5)
    assert watermarks(notes) == [999, 1999]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 500), max_size=40),
    st.integers(1, 9),
    st.sampled_from(["ordered", "unordered", "event_time"]),
)
def test_watermarks_do_not_depend_on_batches(values: list[int], size: int, order: Any) -> None:
    found = []
    for batch in (1, size, 1000):
        notes: list[tuple[float, Any]] = []
        pipeline = Pipeline()
        stream = stamped(pipeline, Items(values, batch=batch)).async_map(
            sleeping(0.01), order=order, concurrency=3
        )
        probed(stream, notes).discard()
        run(run_with_clock(pipeline))
        found.append(watermarks(notes))
        seen: list[int] = []
        for _, what in notes:
            if not isinstance(what, tuple):
                seen.append(what)
        assert sorted(seen) == sorted(values)
    assert found[0] == found[1] == found[2]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=40), st.sampled_from(["ordered", "unordered", "event_time"]))
def test_no_element_comes_after_a_watermark_that_it_came_before(values: list[int], order: Any) -> None:
    """Calls of different length, behind a strategy without slack: nothing becomes late by waiting."""

    async def call(value: int) -> int:
        await asyncio.sleep((value * 31 % 7) / 100)
        return value

    notes: list[tuple[float, Any]] = []
    pipeline = Pipeline()
    stream = stamped(pipeline, Items(sorted(values), batch=5)).async_map(call, order=order, concurrency=4)
    probed(stream, notes).discard()
    run(run_with_clock(pipeline))
    watermark = -1
    for _, what in notes:
        if isinstance(what, tuple):
            watermark = what[1]
        else:
            assert what > watermark


async def test_windows_close_on_a_stream_that_has_fallen_silent() -> None:
    """No further element comes, and the source has not ended: the clock closes the window."""
    seen: list[tuple[float, Any]] = []

    async def events() -> AsyncIterator[int]:
        for at_ms in (0, 10_000, 20_000):
            yield at_ms
        await asyncio.sleep(3600)

    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    pipeline = Pipeline()
    (
        pipeline.source(events())
        .event_time(lambda at_ms: at_ms, AscendingTimestamps())
        .advance_when_quiet(timedelta(seconds=30))
        .window_all(TumblingWindows(60))
        .aggregate(n=Count())
        .to(lambda result: seen.append((loop.time(), result.value)))
    )
    async with pipeline.start(clock=loop) as job:
        await asyncio.sleep(100)
        assert [value for _, value in seen] == [{"n": 3}]
        await job.stop()
    assert 40 <= seen[0][0] <= 70  # event time was at 20 s, and the window ends at 60 s
