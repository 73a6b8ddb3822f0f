"""
Sources and sinks: one module per outside system, both directions together.

`base` holds what the runtime asks of them; write your own against it.
"""

from asyncstream.connectors.base import Sink, Source, SourceBatch
from asyncstream.connectors.files import CsvSink, CsvSource, JsonLinesSink, JsonLinesSource, RejectedLine
from asyncstream.connectors.memory import CallbackSink, Items, ListSink

__all__ = (
    "CallbackSink",
    "CsvSink",
    "CsvSource",
    "Items",
    "JsonLinesSink",
    "JsonLinesSource",
    "ListSink",
    "RejectedLine",
    "Sink",
    "Source",
    "SourceBatch",
)
