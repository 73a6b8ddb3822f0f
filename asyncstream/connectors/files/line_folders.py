"""
Lines as sinks that write a folder of files, one or more for each epoch: JSON lines and CSV.

A file that is complete when it has its name is what those want who look for new files, and the only kind that
an object store has. How epochs become files is told in `parts_sink`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Final, Literal

from asyncstream.connectors.files.compression import Compressing, compression_of, unpacked
from asyncstream.connectors.files.encodings import CsvLines, Encoding, JsonLines
from asyncstream.connectors.files.line_sinks import TOGETHER
from asyncstream.connectors.files.part_files import PartWriter
from asyncstream.connectors.files.partitions import longest_in, parted
from asyncstream.connectors.files.parts_sink import Collected, PartsSink
from asyncstream.connectors.lines import AnyPath
from asyncstream.connectors.rows import Default
from asyncstream.validation import refuse

__all__ = ("CsvFolderSink", "JsonLinesFolderSink", "LineFolderSink")

_ENDINGS: Final = {None: "", "gzip": ".gz", "zstd": ".zst"}


class _Lines:
    """Collects elements as lines; columns of `partition_by` are in the names of folders."""

    def __init__(self, partition_by: Sequence[str], longest: int, encoding: Encoding) -> None:
        self._partition_by = partition_by
        self._longest = longest
        self._encoding = encoding
        self._lines: dict[str, list[bytes]] = {}
        self.rows = 0

    def add(self, values: Sequence[Any]) -> tuple[int, Exception | None]:
        for start in range(0, len(values), TOGETHER):
            part = values[start : start + TOGETHER]
            if not self._partition_by and (lines := self._encoding.lines(part)) is not None:
                self._lines.setdefault("", []).append(lines)
                self.rows += len(part)
                continue
            taken, error = self._add_each(part)
            if error is not None:
                return start + taken, error
        return len(values), None

    def _add_each(self, values: Sequence[Any]) -> tuple[int, Exception | None]:
        for place, value in enumerate(values):
            folder, row = "", value
            try:
                if self._partition_by:
                    folder, row = parted(value, self._partition_by, self._longest)
                line = self._encoding.line(row)
            except Exception as error:  # of the user's function, say
                return place, error
            self._lines.setdefault(folder, []).append(line)
            self.rows += 1
        return len(values), None

    def take(self) -> Iterator[tuple[str, bytes]]:
        lines, self._lines, self.rows = self._lines, {}, 0
        for folder, own in lines.items():
            yield folder, b"".join(own)


class _LineWriter:
    def __init__(self, file: BinaryIO, compression: str | None, head: bytes) -> None:
        self._packing = None if compression is None else Compressing(file, compression)
        self._into = self._packing or file
        self._into.write(head)

    def write(self, rows: bytes) -> None:
        self._into.write(rows)

    def close(self) -> None:
        if self._packing is not None:
            self._packing.finish()


class LineFolderSink(PartsSink):
    def __init__(
        self,
        path: AnyPath,
        existing: str,
        partition_by: str | Sequence[str] | None,
        row_group: int,
        ending: str,
        compression: object,
        encoding: Encoding,
    ) -> None:
        self._encoding = encoding
        if compression == "infer":
            raise refuse("compression", "'gzip', 'zstd' or None", compression)
        self._compression = compression_of(compression, "")
        name = ending + _ENDINGS[self._compression]
        others = [ending + one for one in _ENDINGS.values()]  # of a run that compressed otherwise
        super().__init__(path, existing, partition_by, row_group, name, is_file=False, other_endings=others)

    def _collecting(self, part: str | None) -> Collected:
        return _Lines(self._partition_by, longest_in(self._path), self._encoding)

    def _writing_to(self, file: BinaryIO, rows: Any) -> PartWriter:
        return _LineWriter(file, self._compression, self._encoding.head())


class JsonLinesFolderSink(LineFolderSink):
    """
    Writes one JSON value per line, to a folder of files: one for each checkpoint, or more.

    Args:
        path: the folder; the folder it is in must exist. Also of an object store, such as "s3://bucket/name",
            by the extra [fsspec].
        default: makes of a value of your own type one that can be written; raises `TypeError` for others.
        existing: what to do with what is there already: "refuse" or "overwrite". Not asked where a job goes
            on from a checkpoint.
        partition_by: a column, or several, whose values say which folder in there an element goes to.
        row_group: how many elements are collected and written together; they are in memory meanwhile.
        compression: "gzip", "zstd" or None.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        default: Default | None = None,
        existing: Literal["refuse", "overwrite"] = "refuse",
        partition_by: str | Sequence[str] | None = None,
        row_group: int = 20_000,
        compression: Literal["gzip", "zstd"] | None = None,
    ) -> None:
        encoding = JsonLines(default)
        super().__init__(path, existing, partition_by, row_group, ".jsonl", compression, encoding)


class CsvFolderSink(LineFolderSink):
    """
    Writes mappings and other records as CSV with a header, to a folder of files: one for each checkpoint, or
    more.

    Args:
        path: as for `JsonLinesFolderSink`.
        columns: the keys to write, in order, as for `CsvSink`. None: those of the files that are gone on
            with, or of the first element.
        delimiter: what stands between two fields; one character.
        default, existing, partition_by, row_group, compression: as for `JsonLinesFolderSink`.
    """

    def __init__(
        self,
        path: AnyPath,
        *,
        columns: Sequence[str] | None = None,
        delimiter: str = ",",
        default: Default | None = None,
        existing: Literal["refuse", "overwrite"] = "refuse",
        partition_by: str | Sequence[str] | None = None,
        row_group: int = 20_000,
        compression: Literal["gzip", "zstd"] | None = None,
    ) -> None:
        self._csv = CsvLines(columns, delimiter, default)
        super().__init__(path, existing, partition_by, row_group, ".csv", compression, self._csv)
        if columns is not None and (twice := set(self._partition_by) & set(columns)):
            raise refuse("columns", "none of partition_by=, which are in the names of folders", min(twice))

    def _collecting(self, part: str | None) -> Collected:
        self._csv.forget()
        if part is not None and not self._csv.is_given:
            written = self._storage.read(self._folder.place(part))
            with unpacked(written, compression_of("infer", part)) as file:
                self._csv.find(None, self._csv.read_header(file))
        return super()._collecting(part)
