"""A job stopped at any moment and started again from its snapshot loses nothing and doubles nothing."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from typing import Any, Literal

import pytest

from asyncstream import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    Count,
    Items,
    Job,
    JobSnapshot,
    Pipeline,
    PipelineError,
    Sink,
    Source,
    SourceBatch,
    TumblingWindows,
    UserFunctionError,
)
from asyncstream.elements import Timestamps
from asyncstream.pipeline import Stream
from tests.runtime.parts import Log, LoggedSink, LoggedSource, VirtualClock, boom, sleeping

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")

Order = Literal["ordered", "unordered", "event_time", "per_key"]
ORDERS: tuple[Order, ...] = ("ordered", "unordered", "event_time", "per_key")


class WatermarkedSink(Sink[Any]):
    """Takes its time to write."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    async def write(self, values: Any, timestamps: Timestamps) -> None:
        await asyncio.sleep(0.003)
        self.values += values


def delay_of(value: int) -> float:
    return (value * 7919 % 13) / 1000


async def call(value: int) -> int:
    if delay_of(value):
        await asyncio.sleep(delay_of(value))
    return value


def with_calls(stream: Stream[int], order: Order) -> Stream[int]:
    source = stream.key_by(lambda value: value % 5) if order == "per_key" else stream
    return source.async_map(call, order=order, concurrency=4, buffer=8)


def build(order: Order, sink: WatermarkedSink) -> Pipeline:
    pipeline = Pipeline()
    stamped = pipeline.source(Items(range(60), batch=7)).event_time(
        lambda value: value * 10, BoundedOutOfOrderness(0.02, every=0.05)
    )
    first = with_calls(stamped, order)
    second = with_calls(pipeline.source(Items(range(60, 100), batch=3)), order)
    union = first.union(second).flat_map(lambda value: [value])
    with_calls(union, order).to(sink)
    return pipeline


async def run_with_stops(pipeline: Pipeline, chance: random.Random) -> int:
    """Run to the end, in pieces; how many."""
    snapshot: JobSnapshot | None = None
    pieces = 0
    while True:
        pieces += 1
        async with pipeline.start(snapshot=snapshot) as job:
            try:
                async with asyncio.timeout(chance.choice((0.0, 0.001, 0.005, 0.01, 0.02, 0.05))):
                    await job.wait()
                return pieces
            except TimeoutError:
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                snapshot = await job.stop()
        assert pieces < 1000


@pytest.mark.parametrize("order", ORDERS)
async def test_stops_at_random_moments_lose_and_double_nothing(order: Order) -> None:
    most_pieces = 0
    for seed in range(20):
        sink = WatermarkedSink()
        pipeline = build(order, sink)
        pieces = await run_with_stops(pipeline, random.Random(seed))
        most_pieces = max(most_pieces, pieces)
        assert sorted(sink.values) == list(range(100)), f"seed {seed}, {pieces} pieces"
        for half in (range(60), range(60, 100)):
            mine = [value for value in sink.values if value in half]
            if order == "ordered":
                assert mine == list(half), f"seed {seed}"
            elif order == "per_key":
                for key in range(5):
                    assert [value for value in mine if value % 5 == key] == [v for v in half if v % 5 == key]
    assert most_pieces > 3


@pytest.mark.parametrize("order", ORDERS)
async def test_accepted_submissions_survive_stops_at_random_moments(order: Order) -> None:
    for seed in range(10):
        chance = random.Random(seed)
        sink = WatermarkedSink()
        pipeline = Pipeline()
        with_calls(pipeline.submissions(limit=3), order).to(sink)
        accepted: list[int] = []

        async def submit(job: Job, accepted: list[int] = accepted, chance: random.Random = chance) -> None:
            while True:
                await job.submit(len(accepted))
                accepted.append(len(accepted))
                if chance.random() < 0.3:
                    await asyncio.sleep(0.001)

        async def main(
            pipeline: Pipeline = pipeline, chance: random.Random = chance, submit: Any = submit
        ) -> None:
            snapshot = None
            for _ in range(5):
                async with pipeline.start(snapshot=snapshot) as job:
                    task = asyncio.create_task(submit(job))
                    await asyncio.sleep(chance.uniform(0, 0.05))
                    if chance.random() < 0.3:
                        task.cancel()
                        try:
                            await job.drain(0.001)
                        except TimeoutError:
                            pass
                    snapshot = await job.stop()
                    task.cancel()
                    await asyncio.wait({task})
            async with pipeline.start(snapshot=snapshot):
                pass

        await main()
        assert sorted(sink.values) == list(range(len(accepted))), f"seed {seed}"
        if order == "ordered":
            assert sink.values == accepted


async def test_stop_after_a_drain_that_took_too_long_gives_what_is_left() -> None:
    sink = WatermarkedSink()
    pipeline = Pipeline()
    pipeline.source(Items(range(100), batch=10)).async_map(sleeping(1), concurrency=1, buffer=1).to(sink)

    async with pipeline.start() as job:
        await asyncio.sleep(3.5)
        with pytest.raises(TimeoutError):
            await job.drain(2)
        snapshot = await job.stop()
    assert len(sink.values) == 5
    async with pipeline.start(snapshot=snapshot) as job:
        await job.wait()
    assert sink.values == list(range(100))


async def test_source_goes_on_after_a_drain_and_stop() -> None:
    # the drain told the pipeline that its input had ended; the next run must not believe it
    sink = WatermarkedSink()
    pipeline = Pipeline()
    pipeline.submissions().async_map(sleeping(1), concurrency=1).to(sink)

    async with pipeline.start() as job:
        await job.submit(1)
        await job.submit(2)
        await asyncio.sleep(0.5)
        with pytest.raises(TimeoutError):
            await job.drain(0.1)
        snapshot = await job.stop()
    async with pipeline.start(snapshot=snapshot) as job:
        await job.submit(3)
        await asyncio.sleep(100)
        await job.submit(4)
    assert sink.values == [1, 2, 3, 4]


async def test_snapshot_of_a_running_job_disturbs_nothing_and_can_be_started_from() -> None:
    first, second = WatermarkedSink(), WatermarkedSink()
    pipeline = build("ordered", first)
    copy = build("ordered", second)

    async with pipeline.start() as job:
        await asyncio.sleep(0.05)
        snapshot = job.snapshot()
        done = list(first.values)
        await job.wait()
    async with copy.start(snapshot=snapshot) as job:
        await job.wait()
    assert 0 < len(done) < 100
    # what a write under way had not finished is in the snapshot, and in the first sink a moment later
    assert sorted(done + second.values) == list(range(100))
    assert sorted(first.values) == list(range(100))


async def test_sink_that_is_too_slow_for_the_stop_leaves_its_elements_in_the_snapshot() -> None:
    slow = LoggedSink(Log(), delay=100)
    pipeline = Pipeline()
    pipeline.source(range(10)).to(slow)

    async with pipeline.start() as job:
        await asyncio.sleep(1)
        snapshot = await job.stop(timeout=5)
        assert asyncio.get_running_loop().time() == 6
    slow.delay = 0
    async with pipeline.start(snapshot=snapshot) as job:
        await job.wait()
    assert slow.values == list(range(10))


async def test_sink_gets_no_time_when_told_so() -> None:
    slow = LoggedSink(Log(), delay=100)
    pipeline = Pipeline()
    pipeline.source(range(10)).to(slow)

    async with pipeline.start() as job:
        await asyncio.sleep(1)
        await job.stop(timeout=0)
        assert asyncio.get_running_loop().time() == 1


@pytest.mark.parametrize("wrong", [-1, "soon", True])
async def test_wrong_timeout_is_refused_and_changes_nothing(wrong: Any) -> None:
    seen: list[int] = []
    pipeline = Pipeline()
    pipeline.submissions().to(seen)

    async with pipeline.start() as job:
        for end in (job.stop(timeout=wrong), job.drain(timeout=wrong)):
            with pytest.raises(PipelineError, match="timeout: expected"):
                await end
        await job.submit(1)
    assert seen == [1]


async def test_two_stops_at_once_give_the_same() -> None:
    pipeline = Pipeline()
    pipeline.source(range(5)).async_map(sleeping(100)).to(LoggedSink(Log(), delay=0.5))

    async with pipeline.start() as job:
        await asyncio.sleep(1)
        one, two = await asyncio.gather(job.stop(), job.stop())
        assert one == two


class Ticking(Source[int]):
    """Gives numbers without end, ten a second."""

    count = 0

    async def read(self) -> SourceBatch[int]:
        await asyncio.sleep(0.1)
        self.count += 1
        return SourceBatch([self.count])

    def position(self) -> int:
        return self.count

    async def seek(self, position: int) -> None:
        self.count = position


async def test_drain_of_a_job_that_is_being_stopped_leaves_windows_open() -> None:
    found: list[Any] = []
    pipeline = Pipeline()
    timed = pipeline.source(Ticking()).event_time(lambda value: value, AscendingTimestamps(), name="time")
    timed.window_all(TumblingWindows(3600)).aggregate(Count(), name="counts").to(found)
    async with pipeline.start() as job:
        await asyncio.sleep(1)
        snapshot, _ = await asyncio.gather(job.stop(), job.drain())
    async with pipeline.start(snapshot=snapshot) as job:
        await asyncio.sleep(1)
        await job.stop()
    assert found == []


async def test_sink_that_fails_on_what_a_restore_gives_it_fails_the_job() -> None:
    def pipeline_to(fn: Callable[[int], object]) -> Pipeline:
        pipeline = Pipeline()
        ticks = pipeline.source(Ticking(), name="in")
        ticks.to(fn, name="out")
        ticks.to(sleeping(1), name="other")
        return pipeline

    async with pipeline_to(lambda value: asyncio.sleep(100)).start() as job:
        await asyncio.sleep(1)
        snapshot = await job.stop(0)
    began = asyncio.get_running_loop().time()
    with pytest.raises(UserFunctionError, match="step 'out'"):
        async with asyncio.timeout(60), pipeline_to(boom).start(snapshot=snapshot) as job:
            await job.wait()
    assert asyncio.get_running_loop().time() - began < 30


async def test_snapshot_of_another_pipeline_is_refused() -> None:
    pipeline = Pipeline()
    pipeline.submissions().async_map(sleeping(1), name="old").discard()
    other = Pipeline()
    other.submissions().async_map(sleeping(1), name="new").discard()

    async with pipeline.start() as job:
        await job.submit(1)
        snapshot = await job.stop()
    with pytest.raises(PipelineError, match="state of steps that this pipeline does not have: old"):
        async with other.start(snapshot=snapshot):
            pass


async def test_source_that_cannot_go_on_names_itself() -> None:
    class Lost(LoggedSource):
        async def seek(self, position: int) -> None:
            raise OSError("tape torn")

    pipeline = Pipeline()
    pipeline.source(Lost(Log(), [[1]]), name="tape").discard()

    async with pipeline.start() as job:
        await job.wait()
        snapshot = job.snapshot()
    with pytest.raises(Exception, match="step 'tape': OSError: tape torn"):
        async with pipeline.start(snapshot=snapshot):
            pass


def inputs_of(snapshot: JobSnapshot) -> list[Any]:
    """What the union remembers of its inputs: watermark, idleness and whether it has caught up."""
    found: list[Any] = snapshot.operators["union"]["cells"]["inputs"][1]
    return found


async def test_idle_stream_comes_back_after_a_restore() -> None:
    """The union remembers that an input was idle: the input must remember it too, and say when it is back."""
    log = Log()
    sink = LoggedSink(log)
    pipeline = Pipeline()

    def stamped(name: str) -> Stream[int]:
        return pipeline.submissions(name=name).event_time(
            lambda value: value, BoundedOutOfOrderness(0, every=0), idle_after=1
        )

    union = stamped("a").union(stamped("b"))

    async def same(value: int) -> int:
        return value

    union.async_map(same, order="event_time", name="end").to(sink)

    clock = VirtualClock()
    async with pipeline.start(clock=clock) as job:
        await job.submit(100, to="a")
        await asyncio.sleep(5)
        snapshot = await job.stop()
    assert [idle for _, idle, _ in inputs_of(snapshot)] == [True, True]
    async with pipeline.start(clock=clock, snapshot=snapshot) as job:
        await job.submit(50, to="b")
        await asyncio.sleep(0.1)
        assert [idle for _, idle, _ in inputs_of(job.snapshot())] == [True, False]
        await asyncio.sleep(5)
        assert [idle for _, idle, _ in inputs_of(job.snapshot())] == [True, True]


async def test_drain_loses_nothing_that_an_async_generator_has_yielded() -> None:
    """While calls finish, the generator is an item ahead of its reader; that item is processed too."""
    yielded: list[int] = []
    done: list[int] = []

    async def events() -> AsyncIterator[int]:
        for number in itertools.count():
            await asyncio.sleep(0.001)
            yielded.append(number)
            yield number

    async def call(value: int) -> int:
        await asyncio.sleep(0.01)
        return value

    pipeline = Pipeline()
    pipeline.source(events()).async_map(call, concurrency=2, buffer=2).to(done)
    async with pipeline.start() as job:
        await asyncio.sleep(0.1)
        await job.drain(timeout=60)
    assert len(yielded) > 10
    assert done == yielded


async def found_from(snapshot: Any, build: Callable[[list[Any]], Pipeline]) -> list[Any]:
    """What a job finds that goes on from a snapshot to its end."""
    found: list[Any] = []
    async with build(found).start(snapshot=snapshot) as job:
        await job.wait()
    return found


async def test_a_call_that_changes_its_element_does_not_change_the_snapshot() -> None:
    async def counts(element: dict[str, int]) -> dict[str, int]:
        await asyncio.sleep(1)
        element["calls"] += 1
        return element

    def build(found: list[Any]) -> Pipeline:
        pipeline = Pipeline()
        elements = pipeline.source([{"calls": 0}], name="elements")
        elements.async_map(counts, name="counts").to(found, name="found")
        return pipeline

    async with build([]).start() as job:
        await asyncio.sleep(0.5)
        snapshot = await job.stop()
    for _ in range(2):
        assert await found_from(snapshot, build) == [{"calls": 1}]


async def test_a_snapshot_can_be_gone_on_from_twice() -> None:
    """Also if the source goes on in the very object that it was given as its position."""

    class Moving(Source[int]):
        def __init__(self) -> None:
            self.place = {"at": 0}

        async def read(self) -> SourceBatch[int] | None:
            await asyncio.sleep(1)
            if self.place["at"] == 9:
                return None
            self.place["at"] += 1
            return SourceBatch([self.place["at"]])

        def position(self) -> Any:
            return self.place

        async def seek(self, position: Any) -> None:
            self.place = position

    def build(found: list[int]) -> Pipeline:
        pipeline = Pipeline()
        pipeline.source(Moving(), name="numbers").to(found, name="found")
        return pipeline

    before: list[int] = []
    async with build(before).start() as job:
        await asyncio.sleep(3.5)
        snapshot = await job.stop()
    for _ in range(2):
        assert before + await found_from(snapshot, build) == list(range(1, 10))
