"""
CSV files as sinks.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from typing import Any, Literal

from asyncstream.connectors.files.compression import Compression
from asyncstream.connectors.files.encodings import CsvLines
from asyncstream.connectors.files.line_sinks import LineSink
from asyncstream.connectors.lines import BOM, AnyPath
from asyncstream.connectors.rows import Default, why_unwritten
from asyncstream.errors import SinkError, describe_error

__all__ = ("CsvSink",)


class CsvSink(LineSink):
    """
    Writes mappings and other records, such as dataclasses and the results of windows, as CSV with a header.
    None becomes an empty field, a list JSON; `asyncstream.connectors.rows` says how other values are written.

    Args:
        path: the file; its directory must exist.
        columns: the keys to write, in order. An element must have all of them; others are left out. Of a
            window's result: `key`, `start`, `end`, the names of its aggregates. None: those of a file that is
            gone on with, or of the first element; what a later one lacks of them is empty, and one that has
            others is an error, for these would be lost.
        delimiter: what stands between two fields; one character.
        default: makes of a value of your own type one that can be written; raises `TypeError` for others.
        existing: what to do with a file that is there already: "refuse", "append" (its header must name
            the same columns) or "overwrite". Not asked where a job goes on from a checkpoint: then it goes on
            with its file.
        compression: "gzip", "zstd" or None; "infer": by the ending `.gz` or `.zst` of its name. To append to
            such a file reads it once.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        columns: Sequence[str] | None = None,
        delimiter: str = ",",
        default: Default | None = None,
        existing: Literal["refuse", "append", "overwrite"] = "refuse",
        compression: Compression = "infer",
    ) -> None:
        self._csv = CsvLines(columns, delimiter, default)
        super().__init__(path, existing, compression, self._csv)

    def _settle(self, way: str, length: int = 0) -> None:
        self._csv.forget()
        super()._settle(way, length)

    def _begin_with(self, value: Any) -> None:
        """As above, with the columns of the file, or else of the element."""
        if not self._csv.is_known:
            header = [] if self._needs_head else self._header()
            self._needs_head = not header  # also of a file with a byte order mark only, or an empty piece
            try:
                self._csv.find(value, header)
            except Exception as error:
                raise SinkError(why_unwritten(value, self._path, error)) from error
        super()._begin_with(value)

    def _header(self) -> list[str]:
        with self._written(complete=False) as file:
            try:
                return self._csv.read_header(file)
            except (ValueError, csv.Error) as error:
                raise SinkError(
                    f"cannot write behind what is in {self._path}: its header cannot be read, "
                    f"{describe_error(error)}"
                ) from error

    def _check_form(self) -> None:
        super()._check_form()
        if not self._csv.is_given:
            self._header()
            return
        header = self._csv.head().removesuffix(b"\n")
        with self._written(complete=False) as written:
            found = written.read(len(header) + len(BOM) + 1).removeprefix(BOM)
            rest = written.readline(1000)
        if not found.startswith(header) or found[len(header) : len(header) + 1] not in (b"", b"\r", b"\n"):
            is_there = (found + rest).partition(b"\n")[0].decode(errors="backslashreplace")
            raise SinkError(
                f"cannot write behind what is in {self._path}: its header is {is_there!r}, and that of this "
                f"sink {header.decode()!r}"
            )
