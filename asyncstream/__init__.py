"""
Enrich, time and window event streams in asyncio.

A map of the package, in reading order:

    elements      what flows: values, timestamps, watermarks
    operators     the contract every operator keeps, and the plain ones
    async_wait    many calls at once, their results in the order asked for
    guards        around a call: retry, rate limit, circuit breaker, cache, batching
    eventtime     timestamps and watermarks
    state         keyed state; with `timers`, what process functions and windows are made of
    keyed         one of many, the first of many, rolling results, patterns
    windowing     windows, triggers, evictors, aggregates; and Storm's window policies
    joins         several streams in one step
    connectors    sources and sinks
    lookup        rows for elements, of tables that change
    plan          what to run: a graph of named steps
    checkpoint    what is kept of a running pipeline, where, and for how long
    runtime       who drives it: asyncio, or Spark
    pipeline      the fluent face of it all
    telemetry     metrics and traces for Prometheus and OpenTelemetry
    testing       virtual time, and crashes by seed
    web           in a service: its lifespan, health, status, and what browsers listen to
    cli           the command line

And what these stand on:

    errors        every exception, by whose doing it is
    validation    what users may pass: checks of arguments
    other_words   what user functions ask for in other frameworks
    shown         reprs as objects were made, without secrets
    addresses     URLs of servers, refused or shown without their secrets
    clock         the only place that reads the time
    codec         values as bytes, and back
    filesystem    folders, locks and SQLite files on a disk
    aside         disk work in threads, waits that end, tasks that somebody keeps
    long_work     work on the event loop that is done in slices
    sharing       an object that several steps open and close
    lease         who may write to a store and to its sinks
    timers        event- and processing-time timers of a key
    metrics       histograms, read on demand
"""

from asyncstream.async_wait import OutputOrder
from asyncstream.checkpoint import CheckpointInfo, Checkpoints, DirectoryStore, MemoryStore, SqliteStore
from asyncstream.clock import Clock, ManualClock, SystemClock
from asyncstream.connectors import (
    ArrowIpcSink,
    ArrowIpcSource,
    CsvFolderSink,
    CsvSink,
    CsvSource,
    DeadLetterSource,
    FrameSink,
    FrameSource,
    GlobSource,
    Inbox,
    Items,
    JsonLinesFolderSink,
    JsonLinesSink,
    JsonLinesSource,
    NatsConsumerSource,
    NatsSink,
    NatsStreamSource,
    ParquetSink,
    ParquetSource,
    PostgresOutbox,
    PostgresSink,
    PostgresUpsertSink,
    Published,
    RedisGroupSource,
    RedisStreamSink,
    RedisStreamSource,
    RejectedLine,
    RejectedMessage,
    RejectedRow,
    ResultsHandle,
    Sink,
    Source,
    SourceBatch,
    SplitSource,
    SqliteSink,
    SqliteSource,
    Subscription,
    TransactionalSink,
)
from asyncstream.errors import (
    AsyncStreamError,
    CallTimeout,
    CheckpointError,
    CodecError,
    JobStopped,
    LeaseHeld,
    LeaseLost,
    MissingField,
    PipelineError,
    RetriesExhausted,
    SinkBroken,
    SinkError,
    SourceError,
    StateError,
    UserFunctionError,
)
from asyncstream.eventtime import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    IngestionTime,
    NoWatermarks,
    PunctuatedWatermarks,
    WatermarkStrategy,
)
from asyncstream.joins import (
    BroadcastContext,
    CoGrouped,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
)
from asyncstream.keyed import Change, Match, Pattern, Ranking
from asyncstream.lookup import LookupTable
from asyncstream.operators.call_context import CallContext, call_context
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.functions import AsyncFunction, FailedCall
from asyncstream.operators.keyed_context import KeyedContext, TimeDomain
from asyncstream.operators.process import KeyedProcessFunction
from asyncstream.pipeline import (
    AsyncResults,
    FrameResult,
    KeyedResults,
    KeyedStream,
    PatternMatches,
    Pipeline,
    Stream,
    StreamTable,
)
from asyncstream.runtime.aio import (
    CheckpointStatus,
    DryRun,
    FailedElement,
    Job,
    JobProgress,
    JobSnapshot,
    JobState,
    JobStatus,
    Latency,
    OldestCall,
    Restarts,
    SourceProgress,
    StepRecovery,
    StepStatus,
    ThreadedJob,
)
from asyncstream.state import (
    AggregatingDescriptor,
    DiskState,
    ListDescriptor,
    MapDescriptor,
    ReducingDescriptor,
    TimeToLive,
    ValueDescriptor,
)
from asyncstream.windowing import (
    CumulativeWindows,
    DynamicSessionWindows,
    GlobalWindows,
    ProcessWindowFunction,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowContext,
    WindowResult,
)
from asyncstream.windowing.aggregates import (
    Collect,
    Count,
    CountDistinct,
    First,
    Last,
    Max,
    Mean,
    Min,
    Quantile,
    Sum,
)

__version__ = "0.2.0"

__all__ = (
    "AggregatingDescriptor",
    "ArrowIpcSink",
    "ArrowIpcSource",
    "AscendingTimestamps",
    "AsyncFunction",
    "AsyncResults",
    "AsyncStreamError",
    "BoundedOutOfOrderness",
    "BroadcastContext",
    "CallContext",
    "CallTimeout",
    "Change",
    "CheckpointError",
    "CheckpointInfo",
    "CheckpointStatus",
    "Checkpoints",
    "Clock",
    "CoGrouped",
    "CodecError",
    "Collect",
    "Count",
    "CountDistinct",
    "CsvFolderSink",
    "CsvSink",
    "CsvSource",
    "CumulativeWindows",
    "DeadLetterSource",
    "DirectoryStore",
    "DiskState",
    "DryRun",
    "DynamicSessionWindows",
    "Emitter",
    "FailedCall",
    "GlobSource",
    "FailedElement",
    "First",
    "GlobalWindows",
    "FrameResult",
    "FrameSink",
    "FrameSource",
    "Inbox",
    "IngestionTime",
    "Items",
    "Job",
    "JobProgress",
    "JobSnapshot",
    "JobState",
    "JobStatus",
    "JobStopped",
    "Latency",
    "LeaseHeld",
    "LeaseLost",
    "JsonLinesFolderSink",
    "JsonLinesSink",
    "JsonLinesSource",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedContext",
    "KeyedProcessFunction",
    "KeyedResults",
    "KeyedStream",
    "Last",
    "ListDescriptor",
    "LookupTable",
    "ManualClock",
    "MapDescriptor",
    "Match",
    "Max",
    "Mean",
    "MemoryStore",
    "MissingField",
    "Min",
    "NoWatermarks",
    "OldestCall",
    "OutputOrder",
    "NatsConsumerSource",
    "NatsSink",
    "NatsStreamSource",
    "ParquetSink",
    "ParquetSource",
    "PostgresOutbox",
    "PostgresSink",
    "PostgresUpsertSink",
    "Pattern",
    "PatternMatches",
    "Pipeline",
    "PipelineError",
    "ProcessWindowFunction",
    "Published",
    "PunctuatedWatermarks",
    "Quantile",
    "Ranking",
    "RedisGroupSource",
    "RedisStreamSink",
    "RedisStreamSource",
    "ReducingDescriptor",
    "RejectedLine",
    "RejectedRow",
    "RejectedMessage",
    "Restarts",
    "ResultsHandle",
    "RetriesExhausted",
    "SessionWindows",
    "Sink",
    "SinkError",
    "SinkBroken",
    "SlidingWindows",
    "Source",
    "SourceBatch",
    "SplitSource",
    "SourceError",
    "SourceProgress",
    "SqliteSink",
    "SqliteSource",
    "SqliteStore",
    "StateError",
    "StepRecovery",
    "StepStatus",
    "Stream",
    "StreamTable",
    "Subscription",
    "Sum",
    "SystemClock",
    "ThreadedJob",
    "TimeDomain",
    "TimeToLive",
    "TransactionalSink",
    "TumblingWindows",
    "UserFunctionError",
    "ValueDescriptor",
    "WatermarkStrategy",
    "WindowContext",
    "WindowResult",
    "call_context",
)
