"""
Files as sources and sinks: of lines (JSON lines, CSV), and of columns (Parquet, Arrow IPC).

They are on a disk or in an object store (`storage`). A source knows its place in a file and whether it is
still that file (`identity`). A sink knows whose the file is (`claim`), and appends to it (`line_sinks`) or
writes a new one for each epoch (`parts_sink`).
"""

import asyncstream.connectors.lines as _lines
from asyncstream.connectors.files.columnar_sinks import ArrowIpcSink, ParquetSink
from asyncstream.connectors.files.columnar_sources import ArrowIpcSource, ParquetSource
from asyncstream.connectors.files.csv_sink import CsvSink
from asyncstream.connectors.files.csv_source import CsvSource
from asyncstream.connectors.files.globs import GlobSource
from asyncstream.connectors.files.line_folders import CsvFolderSink, JsonLinesFolderSink
from asyncstream.connectors.files.line_sinks import JsonLinesSink
from asyncstream.connectors.files.line_sources import JsonLinesSource
from asyncstream.connectors.files.record_batches import RejectedRow

__all__ = (
    "ArrowIpcSink",
    "ArrowIpcSource",
    "CsvFolderSink",
    "CsvSink",
    "CsvSource",
    "GlobSource",
    "JsonLinesFolderSink",
    "JsonLinesSink",
    "JsonLinesSource",
    "ParquetSink",
    "ParquetSource",
    "RejectedLine",
    "RejectedRow",
)

RejectedLine = _lines.RejectedLine  # where checkpoints of earlier versions look for it
