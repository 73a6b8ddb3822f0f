"""
Frames as sources and as sinks: whatever speaks Arrow's C stream interface. Needs the extra [arrow].

Polars and pandas frames, pyarrow tables and DuckDB's relations all have `__arrow_c_stream__`, so there is one
way to read them, and none of these libraries is imported here. The other way round, results are collected as
an Arrow table, from which each makes its own.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, Protocol, TypedDict, TypeVar, Unpack, overload

from asyncstream.aside import aside
from asyncstream.connectors.base import CountingSink, Source, SourceBatch, TransactionalSink
from asyncstream.connectors.files.arrow import Tables, arrow_ipc
from asyncstream.connectors.files.record_batches import RowReader, in_slices
from asyncstream.connectors.rows import why_unwritten
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkError, SourceError, told_as
from asyncstream.validation import count, function, refuse

__all__ = ("Frame", "FrameSink", "FrameSource", "is_frame")

T = TypeVar("T")
U = TypeVar("U")


class Frame(Protocol):
    """A table that gives itself as an Arrow stream: a frame of Polars or pandas, a relation of DuckDB."""

    @property
    def columns(self) -> Any: ...

    def __arrow_c_stream__(self, requested_schema: Any = None) -> object: ...


class _Options(TypedDict, total=False):
    on_malformed: Literal["fail", "reject"]
    batch: int


def is_frame(value: object) -> bool:
    """Whether a value is a table: a stream of Arrow's that has columns, as a single column has not."""
    has_stream = hasattr(type(value), "__arrow_c_stream__")
    return has_stream and (hasattr(value, "columns") or hasattr(value, "schema"))


class FrameSource(Source[T]):
    """
    Reads the rows of a frame as dicts: of Polars, pandas, pyarrow, DuckDB, or whatever else has
    `__arrow_c_stream__`. `pipeline.source(frame)` makes one. The index of a pandas frame is a column, unless
    it only numbers the rows.

    A position is a number of rows, and goes with the names of the columns and, of a frame that knows it, the
    number of all rows; a query is run again by a job that goes on, and must give the same rows in the same
    order. An `ORDER BY` sees to that. A dry run looks at frames in memory only, and runs no query.

    Args:
        frame: the frame; or a function without arguments that makes one for each run. A reader of record
            batches gives them once, and serves one run.
        model: a dataclass, NamedTuple, TypedDict or pydantic model of which each row is to become one.
        on_malformed: what to do with a row that is none: "fail" with `SourceError`, after all rows before it
            were delivered; or "reject": it goes to the source's `rejected` output as a `RejectedRow`.
        batch: how many rows one read brings at most.

    Raises:
        MissingExtra: if pyarrow is not installed.
    """

    @overload
    def __init__(
        self: FrameSource[dict[str, Any]], frame: Frame | Callable[[], Frame], **options: Unpack[_Options]
    ) -> None: ...
    @overload
    def __init__(
        self: FrameSource[U],
        frame: Frame | Callable[[], Frame],
        *,
        model: type[U],
        **options: Unpack[_Options],
    ) -> None: ...
    def __init__(
        self,
        frame: Any,
        *,
        model: Any = None,
        on_malformed: Literal["fail", "reject"] = "fail",
        batch: int = 1000,
    ) -> None:
        arrow_ipc()  # of the extra
        if not is_frame(frame) and not callable(frame):
            advice = (
                "call its .collect()" if hasattr(type(frame), "collect") else "or a function that makes one"
            )
            raise refuse("frame", "a table with __arrow_c_stream__", frame, advice)
        self._makes = not is_frame(frame)
        self._frame = function("frame", frame) if self._makes else frame
        # one that has a schema and no columns is a reader of record batches
        self._is_one_shot = not self._makes and not hasattr(frame, "columns")
        self._rows: RowReader[T] = RowReader(model, on_malformed)
        self.rejects = self._rows.rejects
        self._batch = count("batch", batch)
        self._stream: Any = None
        self._total: int | None = None

    async def open(self) -> None:
        with _naming():
            frame = self._frame() if self._makes else self._frame
            if not is_frame(frame):
                raise SourceError(f"the function for the frame gave a {type(frame).__name__}, which is none")
            self._total = _rows_in(frame)
            # a relation runs its query now
            self._stream = await aside(partial(_stream_of, frame))
        self._begin(0)

    def _begin(self, row: int) -> None:
        name = type(self._frame).__name__ if not self._makes else "frame"
        self._rows.begin(name, in_slices(iter(self._stream), self._batch), row, row)

    async def read(self) -> SourceBatch[T] | None:
        if self._stream is None:
            raise SourceError("the source of the frame is not open")
        await asyncio.sleep(0)  # others get their turn, however long the frame is
        with _naming():
            return self._rows.read()

    def progress(self) -> float | None:
        if self._stream is None or self._total is None:
            return None
        return min(1.0, self._rows.row / self._total) if self._total else 1.0

    def is_replayable(self) -> bool:
        return not self._is_one_shot

    def is_reopenable(self) -> bool:
        return not self._is_one_shot

    def position(self) -> dict[str, Any] | None:
        if self._stream is None or self._is_one_shot:
            return None
        return {"row": self._rows.row, "columns": self._stream.schema.names, "rows": self._total}

    async def can_seek(self, position: dict[str, Any]) -> None:
        if self._makes or (rows := _rows_in(self._frame)) is None:
            return  # to look would be to run the query, which `open` does
        # pandas would make columns of Arrow's of all of its rows
        head = self._frame.head(0) if hasattr(self._frame, "head") else self._frame
        self._check(position, _stream_of(head).schema.names, rows)

    async def seek(self, position: dict[str, Any]) -> None:
        if self._stream is None:
            raise SourceError("the source of the frame is not open")
        self._check(position, self._stream.schema.names, self._total)
        self._begin(position["row"])

    def _check(self, position: dict[str, Any], columns: list[str], rows: int | None) -> None:
        """Refuse the position of another frame."""
        for what, now in (("columns", columns), ("rows", rows)):
            if position[what] != now:
                raise SourceError(
                    f"cannot go on at row {position['row']} of the frame: its {what} were {position[what]} "
                    f"at the checkpoint, and are {now}; give the same frame, or begin at the start by "
                    "another name for the source or restore='none'"
                )

    async def close(self) -> None:
        self._stream = None
        self._rows.begin("", iter(()))


def _naming() -> AbstractContextManager[None]:
    """What fails in this block comes out saying so; the libraries have errors of their own."""
    return told_as(SourceError, "read the frame", Exception)


def _stream_of(frame: Any) -> Any:
    """A frame as a reader of record batches."""
    import pyarrow

    return pyarrow.RecordBatchReader.from_stream(frame)


def _rows_in(frame: Any) -> int | None:
    """How many rows a frame has, if it can tell without reading them."""
    rows = getattr(frame, "num_rows", None)  # of pyarrow
    if rows is None and type(frame).__module__.partition(".")[0] in ("pandas", "polars"):
        rows = len(frame)
    return rows if isinstance(rows, int) else None


class FrameSink(CountingSink[Any], TransactionalSink[Any]):
    """
    Collects mappings and other records as an Arrow table, in memory; `stream.to_arrow()` makes one.

    The table is there when the job has come to the end of its input. In a job with checkpoints it holds each
    element once, also after a restart in the same process; another process does not have what the one before
    had collected, and is refused.

    Args:
        schema: of pyarrow, as for `ParquetSink`. None: that of the elements.

    Raises:
        MissingExtra: if pyarrow is not installed.
    """

    one_by_one = True

    def __init__(self, schema: Any = None) -> None:
        arrow_ipc()  # of the extra
        if schema is not None and not hasattr(schema, "empty_table"):
            raise refuse("schema", "a pyarrow.Schema", schema)
        self._schema = schema
        Tables(None, schema, None)  # what it imports is not imported in the event loop
        self._run = ""
        self._tables: Tables | None = None
        self._table: Any = None

    def table(self) -> Any:
        """
        What was collected, as a `pyarrow.Table`.

        Raises:
            SinkError: if no job has come to its end.
        """
        if self._table is None:
            raise SinkError("there is no result yet: run the pipeline to the end of its input first")
        return self._table

    async def open(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._run = os.urandom(8).hex()
        self._tables = Tables(None, self._schema, None)
        self._table = None

    def _opened(self) -> Tables:
        if self._tables is None:
            raise SinkError("the sink of the frame is not open")
        return self._tables

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._taken = 0
        tables = self._opened()
        self._taken, error = tables.add(values)
        if error is not None:
            raise SinkError(why_unwritten(values[self._taken], "a frame", error)) from error

    async def flush(self) -> None:
        self._table = self._opened().whole()

    async def can_recover(self, position: dict[str, Any] | None) -> None:
        if position is not None and (self._tables is None or position["run"] != self._run):
            raise SinkError(
                "what was collected as a frame went with the process that collected it, so there is no going "
                "on from the checkpoint: run it without, begin anew with restore='none', or write to files"
            )

    async def recover(self, position: dict[str, Any] | None) -> None:
        await self.can_recover(position)
        if position is None:
            self._begin()
        else:
            self._opened().cut(position["rows"])
            self._table = None

    async def prepare(self, epoch: int) -> dict[str, Any]:
        return {"run": self._run, "rows": self._opened().rows}

    async def commit(self, epoch: int) -> None:
        """What is in memory is in memory."""
