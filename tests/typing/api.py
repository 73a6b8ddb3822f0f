"""
What the public API promises to a type checker. Only checked, never run: mypy fails if it says otherwise.

A `type: ignore` in the last function marks what must be refused; mypy complains of one that is not needed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, assert_type

import polars
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from asyncstream import (
    ArrowIpcSink,
    ArrowIpcSource,
    AscendingTimestamps,
    AsyncFunction,
    AsyncResults,
    BoundedOutOfOrderness,
    BroadcastContext,
    Change,
    CheckpointInfo,
    Checkpoints,
    CoGrouped,
    Count,
    CsvFolderSink,
    CsvSource,
    DeadLetterSource,
    DirectoryStore,
    DiskState,
    DryRun,
    Emitter,
    FailedCall,
    FrameResult,
    FrameSink,
    FrameSource,
    GlobSource,
    Inbox,
    IngestionTime,
    Items,
    Job,
    JobProgress,
    JobSnapshot,
    JobState,
    JobStatus,
    JsonLinesFolderSink,
    JsonLinesSource,
    KeyedBroadcastProcessFunction,
    KeyedContext,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyedResults,
    KeyedStream,
    LookupTable,
    ManualClock,
    Match,
    MemoryStore,
    OutputOrder,
    ParquetSink,
    ParquetSource,
    Pattern,
    PatternMatches,
    Pipeline,
    Published,
    PunctuatedWatermarks,
    Ranking,
    RejectedRow,
    Restarts,
    ResultsHandle,
    Sink,
    Source,
    SourceBatch,
    SourceProgress,
    SplitSource,
    SqliteSource,
    SqliteStore,
    StepRecovery,
    StepStatus,
    Stream,
    StreamTable,
    Subscription,
    SystemClock,
    ThreadedJob,
    TumblingWindows,
    WindowContext,
    WindowResult,
    call_context,
    web,
)
from asyncstream.connectors import MemoryStreamSink, MemoryStreamSource
from asyncstream.connectors.http import HttpLookup, RestSource, ServerSentEvent, SseSource, WebSocketSource
from asyncstream.connectors.kafka import KafkaSink, KafkaSource, KafkaTransactionalSink
from asyncstream.connectors.mqtt import MqttMessage, MqttSink, MqttSource
from asyncstream.elements import Timestamps
from asyncstream.guards import (
    Budget,
    Guard,
    LimitServer,
    RedisCache,
    SharedBreaker,
    SharedConcurrency,
    SharedLimit,
    SharedRateLimiter,
    SqliteCache,
    adaptive_concurrency,
    cached,
    circuit_breaker,
    concurrency_limit,
    hedge,
    in_threads,
    metered,
    rate_limit,
    retry,
)
from asyncstream.metrics import Metric
from asyncstream.pipeline import AsOf, Broadcast, Joined, SideStreams, SourceStream, StreamEnd
from asyncstream.pipeline.keyed import PolicyResults, WindowResults
from asyncstream.plan import Guarantee
from asyncstream.runtime.spark import (
    SparkPlan,
    enrich,
    enrich_apart,
    enrich_column,
    failure_text,
    local_spark,
    once_in_database,
    once_in_delta,
    once_in_folders,
    register_source,
)
from asyncstream.state import MapDescriptor, StateBackend, Stored, TimeToLive, ValueDescriptor
from asyncstream.telemetry import JobCollector, exposition, instrument
from asyncstream.testing import Check, Harness, harness, source_contract, store_contract
from asyncstream.windowing import (
    AggregateFunction,
    Collect,
    CountDistinct,
    ProcessWindowFunction,
    Quantile,
    Sum,
)
from asyncstream.windowing.policies import Extent, PolicyWindow

if TYPE_CHECKING:
    from fastapi import FastAPI, Response
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import DataType, StructType


class Flight:
    number: int
    carrier: str
    departed: datetime


class Plane:
    seats: int


class Seat(NamedTuple):
    row: int


class Fare(TypedDict):
    price: float


async def plane_of(flight: Flight) -> Plane:
    return Plane()


def rows_of(flight: Flight) -> int:
    return 0


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


class BatchPrinter(Sink[int]):
    async def write_batch(self, values: Sequence[int]) -> None: ...


def sources(
    pipeline: Pipeline,
    flights: list[Flight],
    live: AsyncIterator[Flight],
    receive: MemoryObjectReceiveStream[Flight],
) -> None:
    assert_type(pipeline.source(flights), SourceStream[Flight])
    assert_type(pipeline.source(live), SourceStream[Flight])
    assert_type(pipeline.source(Items(flights)), SourceStream[Flight])
    assert_type(FrameSource(polars.DataFrame()), FrameSource[dict[str, Any]])
    assert_type(pipeline.source(polars.DataFrame()), SourceStream[dict[str, Any]])
    assert_type(pipeline.source(flights).to_polars(), FrameResult[polars.DataFrame])
    assert_type(pipeline.source(flights).to_polars().result(), polars.DataFrame)
    assert_type(pipeline.source(flights).to_arrow(), FrameResult[Any])
    assert_type(pipeline.source(flights).to_pandas(), FrameResult[Any])
    assert_type(FrameSink().table(), Any)
    assert_type(pipeline.source(SseSource("http://x")), SourceStream[Any])
    assert_type(pipeline.source(WebSocketSource("ws://x")), SourceStream[Any])
    assert_type(pipeline.source(RestSource("http://x")), SourceStream[Any])
    assert_type(ServerSentEvent("data").id, str)
    assert_type(ParquetSource("in.parquet"), ParquetSource[dict[str, Any]])
    assert_type(ArrowIpcSource("in.arrow", model=Flight), ArrowIpcSource[Flight])
    assert_type(ParquetSink("out", partition_by="day"), ParquetSink)
    assert_type(ArrowIpcSink("out.arrow", compression="zstd"), ArrowIpcSink)
    assert_type(CsvFolderSink("out", compression="gzip"), CsvFolderSink)
    assert_type(JsonLinesFolderSink("s3://bucket/out"), JsonLinesFolderSink)
    assert_type(RejectedRow("in.parquet", 1, {}, "why").row, dict[str, Any])
    assert_type(pipeline.source(Items(flights, batch=5)).rejected, Stream[Any])
    assert_type(pipeline.source(Ticker()), SourceStream[int])
    assert_type(pipeline.source(range(5)), SourceStream[int])
    assert_type(pipeline.source(number for number in range(5)), SourceStream[int])
    assert_type(pipeline.source(lambda: iter([1, 2])), SourceStream[int])
    assert_type(pipeline.source(lambda: live), SourceStream[Flight])
    assert_type(pipeline.source(CsvSource("flights.csv"), name="flights"), SourceStream[dict[str, Any]])
    assert_type(pipeline.source(JsonLinesSource("flights.jsonl", batch=5)), SourceStream[Any])
    assert_type(pipeline.source(SqliteSource("flights.db", "flights")), SourceStream[dict[str, Any]])
    assert_type(SplitSource(lambda name: Items([name]), ["a"], parallel=2), SplitSource[str])
    many = GlobSource("in/*.db", lambda path: SqliteSource(path, "t", model=Seat), watch=timedelta(seconds=5))
    assert_type(pipeline.source(many), SourceStream[Seat])
    servers = "localhost:9092"
    orders = pipeline.source(KafkaSource("orders", bootstrap_servers=servers, value=bytes.decode))
    assert_type(orders, SourceStream[Any])
    orders.to(KafkaSink("copy", bootstrap_servers=[servers], key=lambda order: order["id"]))
    orders.to(KafkaTransactionalSink("priced", transactional_id="pricing", bootstrap_servers=servers))
    measured = pipeline.source(
        MqttSource[MqttMessage]("mqtt://localhost", "t", client_id="me", messages=True)
    )
    measured.map(lambda message: message.topic).to(MqttSink("mqtt://localhost", "copy"))
    assert_type(pipeline.source(CsvSource("a", model=Seat, delimiter=";")), SourceStream[Seat])
    assert_type(pipeline.source(JsonLinesSource("a", model=Seat)), SourceStream[Seat])
    assert_type(pipeline.source(JsonLinesSource("a", model=Fare, on_malformed="reject")), SourceStream[Fare])
    assert_type(pipeline.source(SqliteSource("a", "t", model=Seat)), SourceStream[Seat])
    assert_type(pipeline.source(SqliteSource("a", "t", by="at", model=Seat)), SourceStream[Seat])
    assert_type(pipeline.source(receive), SourceStream[Flight])
    assert_type(pipeline.source(MemoryStreamSource(receive, batch=5)), SourceStream[Flight])
    assert_type(pipeline.submissions(limit=5, name="events"), Stream[Any])
    assert_type(pipeline.submissions(Flight, limit=5), Stream[Flight])
    assert_type(pipeline.submissions(dict[str, int]), Stream[dict[str, int]])
    assert_type(pipeline.submissions(inbox="inbox.sqlite", name="kept"), Stream[Any])
    inbox = Inbox(Path("inbox.sqlite"), remember=timedelta(hours=1), types=[Flight])
    assert_type(pipeline.submissions(Flight, inbox=inbox), Stream[Flight])


def plain_steps(flights: Stream[Flight]) -> None:
    assert_type(flights.map(lambda flight: flight.number), Stream[int])
    assert_type(flights.map(lambda flight: flight.number).map(str), Stream[str])
    assert_type(flights.filter(lambda flight: flight.number > 5), Stream[Flight])
    assert_type(flights.flat_map(lambda flight: [flight.number, 1]), Stream[int])
    assert_type(flights.flat_map(repeated), Stream[str])
    assert_type(flights.branch(lambda flight: flight.number), tuple[Stream[Flight], Stream[Flight]])
    assert_type(flights.union(flights, flights, name="all"), Stream[Flight])
    assert_type(flights.advance_when_quiet(30), Stream[Flight])
    assert_type(flights.map("number", on_error="route").failed, Stream[FailedCall])
    assert_type(flights.filter("number", on_error="route").failed, Stream[FailedCall])
    assert_type(flights.flat_map(repeated, on_error="route").failed, Stream[FailedCall])
    assert_type(flights.key_by("carrier", on_error="route").failed, Stream[FailedCall])
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


class Seated(KeyedCoProcessFunction[Flight, Plane, int]):
    def process_left(self, value: Flight, ctx: KeyedContext, out: Callable[[int], None]) -> None: ...

    def process_right(self, value: Plane, ctx: KeyedContext, out: Callable[[int], None]) -> None: ...


class Ruled(KeyedBroadcastProcessFunction[Flight, str, int]):
    def open(self, ctx: BroadcastContext) -> None:
        self.rules = ctx.broadcast_state(MapDescriptor[str, int]("rules"))
        assert_type(self.rules.get("a"), int | None)
        assert_type(self.rules.get("a", 5), int)

    def process_element(self, value: Flight, ctx: BroadcastContext, out: Callable[[int], None]) -> None: ...


class Longest(ProcessWindowFunction[int]):
    def process(self, key: str, contents: list[Flight], ctx: WindowContext, out: Emitter[int]) -> None:
        out(len(contents))


class Silent(KeyedProcessFunction[Flight, int]):
    def open(self, ctx: KeyedContext) -> None:
        self.flights = ctx.state(ValueDescriptor[int]("flights"))
        assert_type(self.flights.get(), int | None)
        assert_type(self.flights.get(0) + 1, int)

    def process_element(self, value: Flight, ctx: KeyedContext, out: Emitter[int]) -> None:
        assert_type(ctx.timestamp + 60_000, int)
        assert_type(ctx.timestamp_or_none, int | None)
        ctx.register_event_timer(ctx.timestamp + 60_000)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[int]) -> None:
        out(ctx.timestamp)


def joins(flights: Stream[Flight], planes: Stream[Plane], rules: Stream[str]) -> None:
    keyed = flights.key_by("number")
    assert_type(keyed.connect(planes.key_by("seats")).process(Seated()), SideStreams[int])
    assert_type(flights.connect(planes, rules).process(Seated(), on_error="route"), SideStreams[int])
    assert_type(rules.broadcast(), Broadcast[str])
    assert_type(keyed.connect(rules.broadcast()).process(Ruled()), SideStreams[int])
    seats = planes.key_by(lambda plane: plane.seats)
    hour = timedelta(hours=1)
    assert_type(keyed.join(seats).within(0, hour), Joined[tuple[Flight, Plane]])
    assert_type(keyed.join(seats, how="left").within(0, hour).late_left, Stream[Any])
    left = keyed.join(seats, how="left").window(TumblingWindows(60), allowed_lateness=5)
    assert_type(left, Joined[tuple[Flight, Plane | None]])
    assert_type(keyed.join(seats, how="right").within(1, 1), Joined[tuple[Flight | None, Plane]])
    assert_type(keyed.join(seats, how="full").within(1, 1), Joined[tuple[Flight | None, Plane | None]])
    assert_type(keyed.co_group(seats).window(TumblingWindows(60)), Joined[CoGrouped[Flight, Plane]])
    assert_type(keyed.as_of(seats), AsOf[Flight, Plane])
    assert_type(keyed.as_of(seats).late, Stream[Flight])
    assert_type(keyed.as_of(seats, latest=True).map(lambda pair: pair[1]), Stream[Plane | None])


async def submit(flights: list[Flight], key: str) -> int:
    return len(flights)


async def is_done(job: int) -> bool:
    return True


async def planes_of(job: int) -> list[Plane]:
    return []


def with_seats(flight: Flight, answer: Any) -> int:
    return 0


def async_steps(flights: Stream[Flight]) -> None:
    assert_type(flights.async_map(plane_of), AsyncResults[Plane])
    assert_type(flights.async_map(PlaneLookup()), AsyncResults[Plane])
    assert_type(flights.async_map(hedge(plane_of, after="p95", at_most=0.05)), AsyncResults[Plane])
    assert_type(HttpLookup("http://api/{}"), HttpLookup[Any, Any])
    assert_type(HttpLookup("http://api/{number}", merge=with_seats), HttpLookup[Flight, int])
    lookup = HttpLookup("http://api/{number}", merge=lambda flight, plane: {**flight, "plane": plane})
    assert_type(flights.async_map(HttpLookup("http://api/{number}", merge=with_seats)), AsyncResults[int])
    assert_type(flights.async_map(lookup), AsyncResults[dict[str, Any]])
    assert_type(flights.async_map(HttpLookup[Flight, Fare]("http://api/{number}")), AsyncResults[Fare])
    assert_type(
        flights.async_map(HttpLookup(lambda flight: flight.carrier, merge=lambda flight, answer: flight)),
        AsyncResults[Flight],
    )
    stored = cached(plane_of, store=SqliteCache("planes.db", size=1000), lease=30, stale_if_error=60)
    assert_type(flights.async_map(stored), AsyncResults[Plane])
    assert_type(flights.async_map(cached(plane_of, store=RedisCache("redis://cache"))), AsyncResults[Plane])
    assert_type(flights.async_batch(submit, is_done, planes_of, size=5, every=60), Stream[Plane])
    scope = SharedLimit("sqlite:///limits.db", name="planes")
    budget = Budget(usd=5, tokens=1000, per=timedelta(days=1), scope=scope)
    assert_type(flights.async_map(metered(plane_of, cost={"usd": 0.1}, budget=budget)), AsyncResults[Plane])
    assert_type(budget.spent, dict[str, float])
    budget.raise_to(usd=10)
    assert_type(flights.async_map(rate_limit(plane_of, rate=100, scope=scope)), AsyncResults[Plane])
    assert_type(flights.async_map(concurrency_limit(plane_of, most=20, scope=scope)), AsyncResults[Plane])
    assert_type(flights.async_map(adaptive_concurrency(plane_of, scope=scope)), AsyncResults[Plane])
    assert_type(flights.async_map(circuit_breaker(plane_of, scope=scope)), AsyncResults[Plane])
    assert_type(circuit_breaker(plane_of, breaker=SharedBreaker(scope=scope)), Guard[Flight, Plane])
    shared: tuple[object, ...] = (SharedRateLimiter(5, scope=scope), SharedConcurrency(5, scope=scope))
    assert_type((LimitServer(host="127.0.0.1").url, shared), tuple[str, tuple[object, ...]])
    assert_type(flights.async_map(plane_of, effect=True, journal="fsync"), AsyncResults[Plane])
    assert_type(flights.async_map(plane_of, effect=lambda flight: flight.id), AsyncResults[Plane])
    assert_type(call_context().idempotency_key, str)
    assert_type(Pipeline().source(DeadLetterSource(JsonLinesSource("failed.jsonl"))), SourceStream[Any])
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
        copy_input=True,
        name="planes",
    )
    assert_type(planes.failed, Stream[FailedCall])
    planes.failed.answers(lambda flight: flight.carrier)  # of the element, and not of the FailedCall
    assert_type(planes.timed_out.map(lambda call: call.attempts), Stream[int])
    flights.async_map(plane_of, order="unordered", timeout=0.5, on_timeout=lambda flight: Plane())


def keyed_steps(flights: Stream[Flight]) -> None:
    keyed = flights.key_by(lambda flight: flight.carrier)
    assert_type(keyed, KeyedStream[str, Flight])
    assert_type(keyed.async_map(plane_of, order="per_key"), AsyncResults[Plane])
    assert_type(flights.thread_map(rows_of, threads=8, timeout=5), AsyncResults[int])
    assert_type(flights.async_map(in_threads(rows_of, threads=8), concurrency=8), AsyncResults[int])
    assert_type(keyed.filter(lambda flight: flight.number), Stream[Flight])
    assert_type(keyed.policy_window(length=3), PolicyResults[PolicyWindow[Flight]])
    assert_type(keyed.policy_window(3, 2), PolicyResults[PolicyWindow[Flight]])
    assert_type(
        flights.policy_window(
            length=3, slide=timedelta(1), lag=5, function=lambda window: window.new[0].number
        ),
        PolicyResults[int],
    )
    extent: Extent = timedelta(seconds=20)
    assert_type(keyed.policy_window(length=extent).skipped, Stream[Any])
    windows = keyed.window(TumblingWindows(60))
    assert_type(windows.collect(), WindowResults[WindowResult[str, list[Flight]]])
    assert_type(windows.reduce(lambda one, other: one), WindowResults[WindowResult[str, Flight]])
    assert_type(windows.aggregate(n=Count()), WindowResults[WindowResult[str, dict[str, Any]]])
    assert_type(windows.aggregate(Count()), WindowResults[WindowResult[str, int]])
    assert_type(windows.aggregate(CountDistinct("number")), WindowResults[WindowResult[str, int]])
    assert_type(windows.aggregate(Collect("number")), WindowResults[WindowResult[str, list[Any]]])
    assert_type(windows.aggregate(Quantile(0.5, "number")), WindowResults[WindowResult[str, float | None]])
    assert_type(windows.aggregate(Sum("number")), WindowResults[WindowResult[str, Any]])
    assert_type(windows.aggregate(Seats()), WindowResults[WindowResult[str, float]])
    assert_type(windows.aggregate(Wide()), WindowResults[WindowResult[str, int]])
    assert_type(windows.aggregate(n=Seats(), w=Wide()), WindowResults[WindowResult[str, dict[str, Any]]])
    assert_type(windows.aggregate(Seats()).map(lambda result: result.value), Stream[float])
    assert_type(windows.aggregate(Seats()).map(lambda result: result.key), Stream[str])
    assert_type(windows.aggregate(Seats(), process=Line()), WindowResults[str])
    seconds = windows.aggregate(Count()).map(lambda result: result.start_ms // 1000)
    assert_type(seconds, Stream[int | Any])  # and no None, which only a global window has
    plain: WindowResult = WindowResult("a", 0, 1, 2)
    assert_type(plain.value, Any)


class Seats(AggregateFunction[Flight, float]): ...


class Wide(AggregateFunction[object, int]): ...


class Line(ProcessWindowFunction[str]): ...


async def load_planes() -> list[Plane]:
    return []


async def planes_by_number() -> dict[int, Plane]:
    return {}


async def all_planes(nothing: None) -> list[Plane]:
    return []


async def anything() -> Any: ...


class AllPlanes(AsyncFunction[None, list[Plane]]):
    async def invoke(self, value: None) -> list[Plane]:
        return []


def tables_of_keys(flights: Stream[Flight], keyed: KeyedStream[str, Flight]) -> None:
    assert_type(flights.deduplicate("number"), KeyedResults[Flight])
    assert_type(keyed.deduplicate(keep="last", within=5, by="event_time").late, Stream[Any])
    assert_type(keyed.deduplicate(changes="all"), KeyedResults[Change[Flight]])
    assert_type(keyed.top(3, by=lambda flight: flight.carrier), KeyedResults[Ranking[str, Flight]])
    assert_type(keyed.top(3, by="seats", changes="upserts"), KeyedResults[Change[Flight]])
    latest = keyed.deduplicate(changes="all").key_by(lambda change: change.value.carrier)
    cheapest = latest.top(1, lambda flight: flight.number, retracts=True)
    assert_type(cheapest, KeyedResults[Ranking[str, Flight]])
    assert_type(latest.top(1, "number", retracts=True, changes="all"), KeyedResults[Change[Flight]])
    assert_type(keyed.reduce(lambda one, other: one), KeyedResults[Flight])
    planes = keyed.as_table(deleted="gone")
    assert_type(planes, StreamTable[Flight])
    assert_type(keyed.deduplicate(changes="all").as_table(lambda row: row.carrier), StreamTable[Flight])
    assert_type(flights.lookup(planes, on="carrier"), Stream[tuple[Flight, Flight | None]])
    assert_type(flights.lookup(planes, on="carrier", how="inner"), Stream[tuple[Flight, Flight]])
    found = flights.lookup(planes, "carrier", how="inner", into=lambda flight, row: row.number)
    assert_type(found, Stream[int])
    read = LookupTable.from_file("planes.csv", key="tailnum", every=60)
    assert_type(flights.lookup(read, "number", into=lambda flight, row: flight.carrier), Stream[str])
    assert_type(flights.lookup(read, "number"), Stream[tuple[Flight, dict[str, Any] | None]])
    assert_type(LookupTable.from_call(load_planes, "seats"), LookupTable[Plane])
    by_seats: LookupTable[Plane] = LookupTable.from_call(load_planes, lambda plane: plane.seats, every=60)
    assert_type(flights.lookup(by_seats, "number", how="inner"), Stream[tuple[Flight, Plane]])
    assert_type(LookupTable.from_call(AllPlanes(), "seats"), LookupTable[Plane])
    assert_type(LookupTable.from_call(planes_by_number), LookupTable[Plane])
    assert_type(LookupTable.from_call(retry(all_planes), ("seats",)), LookupTable[Plane])
    assert_type(LookupTable.from_call(HttpLookup("http://planes"), "seats"), LookupTable[Any])
    assert_type(LookupTable.from_call(anything, "seats"), LookupTable[Any])
    said: LookupTable[Plane] = LookupTable.from_call(anything, "seats")
    assert_type(flights.lookup(said, "number", how="inner"), Stream[tuple[Flight, Plane]])
    assert_type(Pattern[Flight].begin("first", lambda flight: flight.number), Pattern[Flight])
    late: Pattern[Flight] = Pattern.begin("first", lambda flight: flight.number == 1)
    matches = keyed.pattern(late.next("second", "number").at_least(2).within(5), skip="past_last_event")
    assert_type(matches, PatternMatches[Match[str, Flight]])
    assert_type(matches.timed_out, Stream[Any])
    assert_type(keyed.min_by("seats", ttl=timedelta(hours=1)), KeyedResults[Flight])


def fields(flights: Stream[Flight]) -> None:
    assert_type(flights.map("number"), Stream[Any])
    assert_type(flights.map(("number", "carrier"), name="two"), Stream[Any])
    assert_type(flights.filter("number"), Stream[Flight])
    assert_type(flights.flat_map("carrier"), Stream[Any])
    assert_type(flights.key_by("carrier"), KeyedStream[Any, Flight])
    assert_type(flights.key_by(("carrier", "number")), KeyedStream[Any, Flight])
    assert_type(flights.event_time("departed", AscendingTimestamps()), Stream[Flight])
    assert_type(flights.event_time(IngestionTime()), Stream[Flight])
    assert_type(flights.event_time(watermarks=IngestionTime(), name="time"), Stream[Flight])


def ends(numbers: Stream[int], some: list[int], sending: MemoryObjectSendStream[int]) -> None:
    assert_type(numbers.to(sending), StreamEnd)
    numbers.to(MemoryStreamSink(sending, close=False))
    assert_type(numbers.to(some), StreamEnd)
    assert_type(numbers.to(Printer(), on_error="route").failed, Stream[FailedCall])
    numbers.to(Printer())
    numbers.to(BatchPrinter())
    numbers.to(print)
    numbers.to(send, name="send")
    assert_type(numbers.results(limit=5, name="results"), ResultsHandle[int])
    assert_type(numbers.publish(name="news"), Published[int])
    numbers.answers("id", asked_by=lambda question: 5, name="answers")
    numbers.discard()


async def send(number: int) -> None: ...


async def results_of(pipeline: Pipeline, numbers: Stream[int]) -> None:
    handle = numbers.results()
    news = numbers.publish()
    async with pipeline.start() as job:
        assert_type(job.subscribe(news, filter=lambda number: number > 5, slow="hold"), Subscription[int])
        assert_type(job.subscribe("news", buffer=5), Subscription[Any])
        assert_type(job.from_thread.subscribe(news), Iterator[int])
        assert_type(job.from_thread.ask({"id": 1}, timeout=1), Any)
        assert_type(await job.ask({"id": 1}, durable=True, id="a", timeout=timedelta(seconds=1)), Any)
        async for number in job.subscribe(news):
            assert_type(number, int)
        assert_type(job.results(handle), AsyncIterator[int])
        assert_type(job.results("results"), AsyncIterator[Any])
        assert_type(job.results(), AsyncIterator[Any])
    with pipeline.start_in_thread(uvloop=True) as threaded:
        assert_type(threaded.results(handle), Iterator[int])
        assert_type(threaded.results("results"), Iterator[Any])
        threaded.submit({"a": 1}, to="events", timeout=timedelta(seconds=1))


class Typed(KeyedProcessFunction[Flight, str]):
    sides = ("odd",)
    last = ValueDescriptor[int]("last", ttl=TimeToLive(timedelta(days=1), refresh="on_read"))


def side_outputs(keyed: KeyedStream[str, Flight]) -> None:
    results = keyed.process(Typed(), on_error="route")
    assert_type(results, SideStreams[str])
    assert_type(results.failed, Stream[FailedCall])
    assert_type(results.side("odd"), Stream[Any])
    assert_type(results.side("odd", of=Flight), Stream[Flight])
    assert_type(results.side("odd", of=tuple[str, int]), Stream[tuple[str, int]])
    assert_type(results.side("odd", of=Flight).map(lambda flight: flight.number), Stream[int])
    assert_type(keyed.window(TumblingWindows(60)).process(Line()).side("odd", of=Seat), Stream[Seat])


async def running(pipeline: Pipeline) -> None:
    await pipeline.run(clock=SystemClock())
    async with pipeline.start(clock=ManualClock(5)) as job:
        assert_type(job, Job)
        assert_type(await job.submit(1), bool)
        await job.submit(1, to="events", durable=True, id="a", timeout=timedelta(seconds=1))
        async for result in job.results("results"):
            assert_type(result, Any)
        assert_type(job.metrics(), dict[str, dict[str, int]])
        assert_type(job.snapshot(), JobSnapshot)
        await job.wait()
        await job.drain(timedelta(seconds=5))
        snapshot = await job.stop(timeout=5)
        assert_type(snapshot, JobSnapshot)

    checkpoints = Checkpoints(store=DirectoryStore("kept"), every=timedelta(seconds=10), keep=2)
    Checkpoints(store=MemoryStore(), on_held="wait", lease=5, ahead="start_over", pipeline_was="shop")
    await pipeline.run(checkpoints=checkpoints)
    async with pipeline.start(
        checkpoints=Checkpoints(store=MemoryStore(), restore=7), cancel_body=True, open_timeout=5
    ) as job:
        assert_type(job.state.name, JobState)
        assert_type(job.state == "running", bool)
        assert_type(await job.state("totals").get("key"), dict[str, Any])
        assert_type(job.status(), JobStatus)
        assert_type(job.status(values=True).steps, tuple[StepStatus, ...])
        assert_type(job.status().to_dict(), dict[str, Any])
        assert_type(job.status(values=lambda flight: flight.number, stuck_after=10), JobStatus)
        assert_type(job.measure(), tuple[Metric, ...])
        assert_type(exposition(job), tuple[bytes, str])
        assert_type(JobCollector(job), JobCollector)
        assert_type(instrument(job, sample=0.1), Job)
        assert_type(job.error, BaseException | None)
        assert_type(job.progress(), JobProgress)
        assert_type(job.progress().sources, tuple[SourceProgress, ...])
        assert_type(job.resumed_from, CheckpointInfo | None)
        assert_type(job.submit_threadsafe({"a": 1}, durable=True, id="a", timeout=1.5), bool)
    await pipeline.run(
        checkpoints=Checkpoints(store=MemoryStore()), restart=Restarts(3, 60, timedelta(seconds=1))
    )
    with pipeline.start_in_thread() as threaded:
        assert_type(threaded, ThreadedJob)
        assert_type(threaded.results(), Iterator[Any])
        assert_type(threaded.stop(), JobSnapshot)
        assert_type(await job.checkpoint(), CheckpointInfo)
        assert_type(job.checkpoint_metrics(), dict[str, int])
        await job.stop(grace=timedelta(seconds=5))
    pipeline.run_blocking(checkpoints=Checkpoints(store=SqliteStore("kept.sqlite"), codec="pickle"))
    pipeline.run_blocking(checkpoints="kept")
    await pipeline.run(checkpoints=Path("kept"), state=DiskState("state", young_rows=1000))
    backend: StateBackend = DiskState("state")
    assert_type(backend.open(), Stored)
    Checkpoints(store=MemoryStore(), types=[Flight], key=b"0123456789abcdef")
    pipeline.run_blocking(checkpoints=Checkpoints(store=MemoryStore(), migrate={"w": lambda state: state}))
    assert_type(pipeline.guarantees(), list[Guarantee])
    async with pipeline.start(snapshot=snapshot):
        pass
    outlook = await pipeline.dry_run(Checkpoints(store=MemoryStore()))
    assert_type(outlook, DryRun)
    assert_type(outlook.checkpoint, CheckpointInfo | None)
    assert_type(outlook.steps, tuple[StepRecovery, ...])
    assert_type(pipeline.describe(), str)
    assert_type(pipeline.describe("mermaid"), str)


def on_spark(
    pipeline: Pipeline, spark: SparkSession, rows: DataFrame, columns: StructType, text: DataType
) -> None:
    assert_type(local_spark(), SparkSession)
    local_spark(4, name="flights", spark__sql__shuffle__partitions="8")
    planned = pipeline.on_spark(
        spark, inputs={"flights": rows}, outputs={"planes": columns}, key_groups=64, partitions=4
    )
    assert_type(planned, SparkPlan)
    assert_type(planned["planes"], DataFrame)
    assert_type(list(planned), list[str])
    assert_type(dict(planned), dict[str, DataFrame])
    outputs: Mapping[str, DataFrame] = planned
    assert_type(planned.is_streaming, bool)
    assert_type(planned.describe(), str)
    assert_type(planned.write_stream(write_planes), DataStreamWriter)
    planned.rescale("checkpoint", partitions=16)
    planned.regroup("checkpoint", to="another")
    planned.release()
    enriched = enrich(rows, seats_of, schema=columns, flat=False, name="seats", order="unordered", timeout=5)
    assert_type(enriched, DataFrame)
    assert_type(enrich_apart(rows, SeatLookup(), schema=columns, on_error="route", concurrency=50), SparkPlan)
    assert_type(enrich_column(seats_of, text, timeout=timedelta(seconds=1)), Callable[..., Column])
    register_source(spark, lambda: JsonLinesSource("in.jsonl"), schema=columns, quiet=timedelta(seconds=1))
    assert_type(failure_text(ValueError()), str)
    rows.writeStream.foreachBatch(once_in_database(lambda: sqlite3.connect("out.db"), "planes"))
    planned.write_stream(once_in_database(lambda: sqlite3.connect("out.db"), print, ledger="done"))
    rows.writeStream.foreachBatch(once_in_folders("planes", format="orc", compression="zstd"))
    rows.writeStream.foreachBatch(once_in_delta("planes", query="planes"))
    pipeline.on_spark(spark, inputs=outputs, outputs={})


async def seats_of(row: dict[str, Any]) -> dict[str, Any]:
    return row


def in_a_service(pipeline: Pipeline, job: Job) -> None:
    service = FastAPI(lifespan=web.lifespan(pipeline, checkpoints="state", grace=timedelta(seconds=5)))
    service.add_middleware(web.LoadLimit, limit=100, retry_after=2)
    service.mount("/ops", web.app(token="secret"))
    web.app(job, values=False)

    @service.post("/orders")
    async def accept(order: int, job: web.JobDep) -> None:
        assert_type(job, Job)

    flights = pipeline.source([Flight()]).publish()

    @service.get("/flights")
    async def published(job: web.JobDep) -> Response:
        web.events(job)
        return web.events(job, flights, filter=lambda flight: flight.number > 3, event="flight")


class SeatLookup(AsyncFunction[dict[str, Any], Plane]):
    async def invoke(self, value: dict[str, Any]) -> Plane:
        return Plane()


def write_planes(outputs: Mapping[str, DataFrame], number: int) -> None: ...


def tests_of_ones_own(function: KeyedProcessFunction[str, int], folder: Path) -> None:
    with harness(function, key_by="user", now=datetime.now()) as tested:
        assert_type(tested, Harness)
        tested.push("a", at=1000)
        tested.advance(2000)
        assert_type(tested.collect(), list[Any])
        assert_type(tested.collect("late", timestamps=True), list[tuple[Any, int | None]])
        tested.restore(tested.snapshot())
    with (
        harness(lambda left, right: left.union(right)) as joined,
        harness(lambda one: one.map(len)) as mapped,
    ):
        assert_type((joined, mapped), tuple[Harness, Harness])
    assert_type(source_contract(lambda folder: JsonLinesSource(folder / "in"), [1, 2, 3]), list[Check])
    assert_type(store_contract(lambda folder: DirectoryStore(folder)), list[Check])
    assert_type(Pipeline().with_ends(sources={"in": [1]}, sinks={"out": []}), Pipeline)


def refused(
    pipeline: Pipeline,
    flights: Stream[Flight],
    numbers: Stream[int],
    texts: Iterable[str],
    rows: DataFrame,
    spark: SparkSession,
) -> None:
    pipeline.source(5)  # type: ignore[call-overload]
    pipeline.describe("html")  # type: ignore[arg-type]
    flights.map(lambda flight: flight.seats)  # type: ignore[attr-defined]
    flights.flat_map(lambda flight: flight.number)  # type: ignore[arg-type, return-value]
    flights.union(numbers)  # type: ignore[arg-type]
    flights.async_map(lambda flight: flight.number)  # type: ignore[arg-type, return-value]
    flights.async_map(plane_of, order="sorted")  # type: ignore[arg-type]
    flights.async_map(plane_of, capacity=5)  # type: ignore[call-arg]
    flights.thread_map(rows_of, threads="many")  # type: ignore[arg-type]
    numbers.thread_map(rows_of)  # type: ignore[arg-type]
    flights.async_map(plane_of, on_error=print)  # type: ignore[arg-type]
    flights.async_map(legs_of).map(lambda leg: leg.seats)  # type: ignore[attr-defined]
    flights.to(Printer())  # type: ignore[arg-type]
    numbers.async_map(plane_of)  # type: ignore[arg-type]
    numbers.async_map(HttpLookup("http://api/{}", merge=with_seats))  # type: ignore[arg-type]
    HttpLookup("http://api/{}", capacity=5)  # type: ignore[call-arg]
    web.app(pipeline)  # type: ignore[arg-type]
    web.events(pipeline)  # type: ignore[arg-type]
    web.lifespan(pipeline.start())  # type: ignore[arg-type]
    flights.async_map(plane_of, copy_input="deep")  # type: ignore[arg-type]
    flights.policy_window(length=3, slid=1)  # type: ignore[call-overload]
    flights.policy_window(length=1.5)  # type: ignore[call-overload]
    TimeToLive(5, refresh="never")  # type: ignore[arg-type]
    flights.key_by("number").top(1, "number", retracts=True)  # type: ignore[call-overload]
    numbers.window_all(TumblingWindows(60)).aggregate(n=Seats())  # type: ignore[arg-type]
    flights.event_time(lambda flight: flight.carrier, AscendingTimestamps())  # type: ignore[arg-type, return-value]
    planned = pipeline.on_spark(spark, inputs={}, outputs={}, groups=5)  # type: ignore[call-arg]
    planned["planes"] = rows  # type: ignore[index]
    enrich(rows, seats_of, schema=rows.schema, capacity=5)  # type: ignore[call-arg]
    enrich(rows, len, schema=rows.schema)  # type: ignore[arg-type]
    enrich(rows, seats_of)  # type: ignore[call-arg]
