"""
Files as sources and sinks: of lines (JSON lines, CSV), and of columns (Parquet).

A source knows its place in a file and whether it is still that file (`identity`); a sink, whose the file is
(`claim`).
"""

import asyncstream.connectors.lines as _lines
from asyncstream.connectors.files.line_sinks import CsvSink, JsonLinesSink
from asyncstream.connectors.files.line_sources import CsvSource, JsonLinesSource
from asyncstream.connectors.files.parquet_sink import ParquetSink
from asyncstream.connectors.files.parquet_source import ParquetSource

__all__ = (
    "CsvSink",
    "CsvSource",
    "JsonLinesSink",
    "JsonLinesSource",
    "ParquetSink",
    "ParquetSource",
    "RejectedLine",
)

RejectedLine = _lines.RejectedLine  # where checkpoints of earlier versions look for it
