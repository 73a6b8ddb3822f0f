"""
What the public API promises to a type checker. Only checked, never run: mypy fails if it says otherwise.

A `type: ignore` in the last function marks what must be refused; mypy complains of one that is not needed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_type

from asyncstream import (
    AscendingTimestamps,
    AsyncFunction,
    AsyncResults,
    BoundedOutOfOrderness,
    CheckpointInfo,
    Checkpoints,
    CsvSource,
    DirectoryStore,
    FailedCall,
    Items,
    Job,
    JobSnapshot,
    JsonLinesSource,
    KeyedStream,
    ManualClock,
    MemoryStore,
    OutputOrder,
    Pipeline,
    PunctuatedWatermarks,
    Sink,
    Source,
    SourceBatch,
    SqliteStore,
    Stream,
    SystemClock,
)
from asyncstream.elements import Timestamps
from asyncstream.pipeline import SourceStream
from asyncstream.plan import Guarantee


class Flight:
    number: int
    carrier: str
    departed: datetime


class Plane:
    seats: int


async def plane_of(flight: Flight) -> Plane:
    return Plane()


async def legs_of(flight: Flight) -> list[str]:
    return []


class PlaneLookup(AsyncFunction[Flight, Plane]):
    async def open(self) -> None: ...

    async def invoke(self, value: Flight) -> Plane:
        return Plane()

    def timeout(self, value: Flight) -> Plane:
        return Plane()


class Ticker(Source[int]):
    async def read(self) -> SourceBatch[int] | None:
        return SourceBatch([1, 2], timestamps=[10, 20])


class Printer(Sink[int]):
    async def write(self, values: Sequence[int], timestamps: Timestamps) -> None: ...


def sources(pipeline: Pipeline, flights: list[Flight], live: AsyncIterator[Flight]) -> None:
    assert_type(pipeline.source(flights), SourceStream[Flight])
    assert_type(pipeline.source(live), SourceStream[Flight])
    assert_type(pipeline.source(Items(flights)), SourceStream[Flight])
    assert_type(pipeline.source(Items(flights, batch=5)).rejected, Stream[Any])
    assert_type(pipeline.source(Ticker()), SourceStream[int])
    assert_type(pipeline.source(range(5)), SourceStream[int])
    assert_type(pipeline.source(number for number in range(5)), SourceStream[int])
    pipeline.source(CsvSource("flights.csv"), name="flights")
    pipeline.source(JsonLinesSource("flights.jsonl"))
    assert_type(pipeline.submissions(limit=5, name="events"), Stream[Any])


def plain_steps(flights: Stream[Flight]) -> None:
    assert_type(flights.map(lambda flight: flight.number), Stream[int])
    assert_type(flights.map(lambda flight: flight.number).map(str), Stream[str])
    assert_type(flights.filter(lambda flight: flight.number > 5), Stream[Flight])
    assert_type(flights.flat_map(lambda flight: [flight.number, 1]), Stream[int])
    assert_type(flights.flat_map(repeated), Stream[str])
    assert_type(flights.branch(lambda flight: flight.number), tuple[Stream[Flight], Stream[Flight]])
    assert_type(flights.union(flights, flights, name="all"), Stream[Flight])
    assert_type(flights.advance_when_quiet(30), Stream[Flight])
    assert_type(
        flights.event_time(
            lambda flight: flight.departed,
            BoundedOutOfOrderness(timedelta(seconds=5), every=0.5),
            idle_after=timedelta(minutes=1),
            name="time",
        ),
        Stream[Flight],
    )
    assert_type(flights.event_time(lambda flight: flight.number, AscendingTimestamps()), Stream[Flight])
    flights.event_time(lambda flight: flight.number, PunctuatedWatermarks(lambda flight, stamp: stamp - 1))


def repeated(flight: Flight) -> Iterator[str]:
    yield flight.carrier


def async_steps(flights: Stream[Flight]) -> None:
    assert_type(flights.async_map(plane_of), AsyncResults[Plane])
    assert_type(flights.async_map(PlaneLookup()), AsyncResults[Plane])
    assert_type(flights.async_map(plane_of).map(lambda plane: plane.seats), Stream[int])
    assert_type(flights.async_flat_map(legs_of), AsyncResults[str])
    planes = flights.async_map(
        plane_of,
        order=OutputOrder.EVENT_TIME,
        concurrency=50,
        buffer=500,
        timeout=timedelta(seconds=2),
        on_timeout="route",
        on_error="route",
        isolation="task",
        replay="all",
        name="planes",
    )
    assert_type(planes.failed, Stream[FailedCall])
    assert_type(planes.timed_out.map(lambda call: call.attempts), Stream[int])
    flights.async_map(plane_of, order="unordered", timeout=0.5, on_timeout=lambda flight: Plane())


def keyed_steps(flights: Stream[Flight]) -> None:
    keyed = flights.key_by(lambda flight: flight.carrier)
    assert_type(keyed, KeyedStream[str, Flight])
    assert_type(keyed.async_map(plane_of, order="per_key"), AsyncResults[Plane])
    assert_type(keyed.filter(lambda flight: flight.number), Stream[Flight])


def ends(numbers: Stream[int], some: list[int]) -> None:
    numbers.to(some)
    numbers.to(Printer())
    numbers.to(print)
    numbers.to(send, name="send")
    numbers.results(limit=5, name="results")
    numbers.discard()


async def send(number: int) -> None: ...


async def running(pipeline: Pipeline) -> None:
    await pipeline.run(clock=SystemClock())
    async with pipeline.start(clock=ManualClock(5)) as job:
        assert_type(job, Job)
        await job.submit(1)
        await job.submit(1, to="events")
        async for result in job.results("results"):
            assert_type(result, Any)
        assert_type(job.metrics(), dict[str, dict[str, int]])
        assert_type(job.snapshot(), JobSnapshot)
        await job.wait()
        await job.drain(timedelta(seconds=5))
        snapshot = await job.stop(timeout=5)
        assert_type(snapshot, JobSnapshot)
    checkpoints = Checkpoints(store=DirectoryStore("kept"), every=timedelta(seconds=10), keep=2)
    await pipeline.run(checkpoints=checkpoints)
    async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), restore=7)) as job:
        assert_type(await job.checkpoint(), CheckpointInfo)
        assert_type(job.checkpoint_metrics(), dict[str, int])
        await job.stop(grace=timedelta(seconds=5))
    pipeline.run_blocking(checkpoints=Checkpoints(store=SqliteStore("kept.sqlite"), codec="pickle"))
    assert_type(pipeline.guarantees(), list[Guarantee])
    async with pipeline.start(snapshot=snapshot):
        pass
    assert_type(pipeline.describe(), str)
    assert_type(pipeline.describe("mermaid"), str)


def refused(pipeline: Pipeline, flights: Stream[Flight], numbers: Stream[int], texts: Iterable[str]) -> None:
    pipeline.source(5)  # type: ignore[call-overload]
    pipeline.describe("html")  # type: ignore[arg-type]
    flights.map(lambda flight: flight.seats)  # type: ignore[attr-defined]
    flights.flat_map(lambda flight: flight.number)  # type: ignore[arg-type, return-value]
    flights.union(numbers)  # type: ignore[arg-type]
    flights.async_map(lambda flight: flight.number)  # type: ignore[arg-type, return-value]
    flights.async_map(plane_of, order="sorted")  # type: ignore[arg-type]
    flights.async_map(plane_of, capacity=5)  # type: ignore[call-arg]
    flights.async_map(plane_of, on_error=print)  # type: ignore[arg-type]
    flights.async_map(legs_of).map(lambda leg: leg.seats)  # type: ignore[attr-defined]
    flights.to(Printer())  # type: ignore[arg-type]
    numbers.async_map(plane_of)  # type: ignore[arg-type]
    flights.event_time(lambda flight: flight.carrier, AscendingTimestamps())  # type: ignore[arg-type, return-value]
