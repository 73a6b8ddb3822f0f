"""
Enrich, time and window event streams in asyncio.

A map of the package, in reading order:

    elements      what flows: values, timestamps, watermarks
    operators     the contract every operator keeps, and the plain ones
    async_wait    many calls at once, their results in the order asked for
    calls         guards around a call: retry, rate limit, circuit breaker, cache, batching
    eventtime     timestamps and watermarks
    state         keyed state; with `timers`, what process functions and windows are made of
    windowing     windows, triggers, evictors, aggregates; and Storm's window policies
    connectors    sources and sinks
    plan          what to run: a graph of named steps
    runtime       who drives it: asyncio
    pipeline      the fluent face of it all
    testing       virtual time
"""

from asyncstream.async_wait import OutputOrder
from asyncstream.clock import Clock, ManualClock, SystemClock
from asyncstream.connectors import (
    CsvSink,
    CsvSource,
    Items,
    JsonLinesSink,
    JsonLinesSource,
    RejectedLine,
    Sink,
    Source,
    SourceBatch,
)
from asyncstream.errors import (
    AsyncStreamError,
    CallTimeout,
    JobStopped,
    PipelineError,
    RetriesExhausted,
    SinkError,
    SourceError,
    UserFunctionError,
)
from asyncstream.eventtime import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    NoWatermarks,
    PunctuatedWatermarks,
    WatermarkStrategy,
)
from asyncstream.operators.functions import AsyncFunction, FailedCall
from asyncstream.pipeline import AsyncResults, KeyedStream, Pipeline, Stream
from asyncstream.runtime.aio import Job, JobSnapshot

__version__ = "0.1.0"

__all__ = (
    "AscendingTimestamps",
    "AsyncFunction",
    "AsyncResults",
    "AsyncStreamError",
    "BoundedOutOfOrderness",
    "CallTimeout",
    "Clock",
    "CsvSink",
    "CsvSource",
    "FailedCall",
    "Items",
    "Job",
    "JobSnapshot",
    "JobStopped",
    "JsonLinesSink",
    "JsonLinesSource",
    "KeyedStream",
    "ManualClock",
    "NoWatermarks",
    "OutputOrder",
    "Pipeline",
    "PipelineError",
    "PunctuatedWatermarks",
    "RejectedLine",
    "RetriesExhausted",
    "Sink",
    "SinkError",
    "Source",
    "SourceBatch",
    "SourceError",
    "Stream",
    "SystemClock",
    "UserFunctionError",
    "WatermarkStrategy",
)
