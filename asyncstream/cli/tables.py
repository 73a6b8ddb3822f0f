"""
Files of rows for people without a program: what reads and writes one is found by the ending of its name.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncstream.connectors import (
    CsvSink,
    CsvSource,
    JsonLinesSink,
    JsonLinesSource,
    ParquetSink,
    ParquetSource,
    Sink,
    Source,
)
from asyncstream.connectors.files.compression import compression_of, unpacked
from asyncstream.connectors.files.encodings import CsvLines
from asyncstream.connectors.lines import open_file
from asyncstream.errors import PipelineError, describe_error

__all__ = ("FORMATS", "columns_of", "format_of", "reading", "writing")

FORMATS = ("csv", "tsv", "jsonl", "parquet")
"""What can be read and written."""

_OF_LINES = {".csv": "csv", ".tsv": "tsv", ".jsonl": "jsonl", ".ndjson": "jsonl"}
"""Formats by endings behind which there may be one that tells how the lines are compressed."""

_BY_ENDING = {
    **{ending + packed: name for ending, name in _OF_LINES.items() for packed in ("", ".gz", ".zst")},
    ".parquet": "parquet",
}

_DELIMITERS = {"csv": ",", "tsv": "\t"}


def format_of(path: str, chosen: str | None, option: str) -> str:
    """
    The format of a file, as `chosen` or by its name; raises `PipelineError` if the name does not tell, which
    names the `option` to choose it by.
    """
    if chosen is not None:
        return chosen
    name = Path(path).name.lower()
    found = next((format for ending, format in _BY_ENDING.items() if name.endswith(ending)), None)
    if found is None:
        raise PipelineError(
            f"{path}: expected a name that ends in {', '.join(_OF_LINES)}, perhaps with .gz or .zst behind, "
            f"or in .parquet; for any other name, say what it holds by {option}: {', '.join(FORMATS)}"
        )
    return found


def reading(path: str, format: str, *, rejects: bool) -> Source[Any]:
    """
    What reads the rows of a file, as dicts. With `rejects`, what is no row goes aside, and does not end the
    run.
    """
    on_malformed: Any = "reject" if rejects else "fail"
    if format == "jsonl":
        return JsonLinesSource(path, on_malformed=on_malformed)
    if format == "parquet":
        return ParquetSource(path, on_malformed=on_malformed)
    return CsvSource(path, delimiter=_DELIMITERS[format], on_malformed=on_malformed)


def writing(path: str, format: str, columns: Sequence[str] | None, *, overwrite: bool) -> Sink[Any]:
    """
    What writes rows to a file: these columns, or all. To `overwrite` is not to refuse what is there already.
    """
    existing: Any = "overwrite" if overwrite else "refuse"
    if format == "jsonl":
        return JsonLinesSink(path, existing=existing)
    if format == "parquet":
        return ParquetSink(path, columns=columns, existing=existing)
    return CsvSink(path, columns=columns, delimiter=_DELIMITERS[format], existing=existing)


def columns_of(path: str, format: str) -> list[str] | None:
    """
    The columns of a file, as far as its beginning tells; None if each row has its own. Raises
    `PipelineError`, or of Parquet `SourceError`, if it cannot be read.
    """
    if format == "jsonl":
        return None
    if format == "parquet":
        return ParquetSource(path).column_names()
    try:
        with unpacked(open_file(path, "rb"), compression_of("infer", path)) as file:
            return CsvLines(None, _DELIMITERS[format], None).read_header(file)
    except UnicodeError as error:
        raise PipelineError(f"cannot read {path}: its header is not UTF-8") from error
    except (OSError, csv.Error) as error:
        raise PipelineError(f"cannot read {path}: {describe_error(error)}") from error
