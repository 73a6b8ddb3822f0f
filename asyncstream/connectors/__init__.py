"""
Sources and sinks: one module or package per outside system, both directions together.

`base` holds what the runtime asks of them; write your own against it.
"""

from asyncstream.connectors.base import Sink, Source, SourceBatch, TransactionalSink
from asyncstream.connectors.dead_letters import DeadLetterSource, from_dead_letter, to_dead_letter
from asyncstream.connectors.files import (
    ArrowIpcSink,
    ArrowIpcSource,
    CsvFolderSink,
    CsvSink,
    CsvSource,
    GlobSource,
    JsonLinesFolderSink,
    JsonLinesSink,
    JsonLinesSource,
    ParquetSink,
    ParquetSource,
    RejectedRow,
)
from asyncstream.connectors.frames import FrameSink, FrameSource
from asyncstream.connectors.inbox import Inbox
from asyncstream.connectors.lines import RejectedLine
from asyncstream.connectors.memory import CallbackSink, Items, ListSink
from asyncstream.connectors.memory_streams import MemoryStreamSink, MemoryStreamSource
from asyncstream.connectors.messages import RejectedMessage
from asyncstream.connectors.nats import NatsConsumerSource, NatsSink, NatsStreamSource
from asyncstream.connectors.outlets import Published, ResultsHandle, Subscription
from asyncstream.connectors.postgres import PostgresOutbox, PostgresSink, PostgresUpsertSink
from asyncstream.connectors.redis import RedisGroupSource, RedisStreamSink, RedisStreamSource
from asyncstream.connectors.splits import SplitSource
from asyncstream.connectors.sqlite import SqliteSink, SqliteSource

__all__ = (
    "ArrowIpcSink",
    "ArrowIpcSource",
    "CallbackSink",
    "CsvFolderSink",
    "CsvSink",
    "CsvSource",
    "DeadLetterSource",
    "GlobSource",
    "FrameSink",
    "FrameSource",
    "Inbox",
    "Items",
    "JsonLinesFolderSink",
    "JsonLinesSink",
    "JsonLinesSource",
    "ListSink",
    "MemoryStreamSink",
    "MemoryStreamSource",
    "NatsConsumerSource",
    "NatsSink",
    "NatsStreamSource",
    "ParquetSink",
    "ParquetSource",
    "PostgresOutbox",
    "PostgresSink",
    "PostgresUpsertSink",
    "RedisGroupSource",
    "RedisStreamSink",
    "RedisStreamSource",
    "RejectedLine",
    "RejectedRow",
    "RejectedMessage",
    "Published",
    "ResultsHandle",
    "Sink",
    "Source",
    "SourceBatch",
    "SplitSource",
    "SqliteSink",
    "SqliteSource",
    "Subscription",
    "TransactionalSink",
    "from_dead_letter",
    "to_dead_letter",
)
