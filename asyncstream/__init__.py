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
from asyncstream.operators.functions import AsyncFunction, FailedCall
from asyncstream.operators.process import KeyedContext, KeyedProcessFunction
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
from asyncstream.state import DiskState
from asyncstream.windowing import (
    CumulativeWindows,
    DynamicSessionWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
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
    "LookupTable",
    "ManualClock",
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
    "Published",
    "PunctuatedWatermarks",
    "Quantile",
    "Ranking",
    "RedisGroupSource",
    "RedisStreamSink",
    "RedisStreamSource",
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
    "TransactionalSink",
    "TumblingWindows",
    "UserFunctionError",
    "WatermarkStrategy",
    "WindowResult",
    "call_context",
)
