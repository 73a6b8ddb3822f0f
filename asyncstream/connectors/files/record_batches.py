"""
Rows of Arrow's record batches as elements, batch by batch: what sources of files and of frames share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from asyncstream.connectors.base import SourceBatch
from asyncstream.connectors.models import Unfit, UnreadableRow, reader
from asyncstream.errors import SourceError, describe_error
from asyncstream.validation import choice

__all__ = ("RejectedRow", "RowReader", "in_slices")

T = TypeVar("T")

_ERRORS: Final = (ValueError, TypeError, ArithmeticError, LookupError)
"""Of Arrow, over a value that is nothing in Python: a date after 9999, text that is not UTF-8."""


@dataclass(frozen=True, slots=True)
class RejectedRow:
    """
    A row of a table that is no element.

    Attributes:
        path: the file, or what kind of table it is in.
        row_number: starts at 1.
        row: its values by column; a value that is nothing in Python is left out.
        reason: what is wrong with it.
    """

    path: str
    row_number: int
    row: dict[str, Any]
    reason: str


class RowReader(Generic[T]):
    """
    Reads one table after the other.

    Args:
        model: the class of which each row is to become one; None: the row is the element.
        on_malformed: "reject": a row that is no element comes as a `RejectedRow`; "fail": it is an error.

    Attributes:
        rejects: as `on_malformed` says.
        row: how many rows of the table are behind the last element.
    """

    def __init__(self, model: Any, on_malformed: str) -> None:
        self._model = None if model is None else reader(model, is_table=True, has_pairs=True)
        self.rejects = choice("on_malformed", on_malformed, ("fail", "reject")) == "reject"
        self.begin("", iter(()))

    def begin(
        self,
        path: str,
        batches: Iterator[Any],
        row: int = 0,
        skip: int = 0,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """
        Read this table from now on.

        Args:
            row: which one is next.
            skip: how many rows the batches begin before that one.
            more: columns that the batches lack, each with the one value that it has.
        """
        self._path = path
        self._batches = batches
        self._skip = skip
        self._more = more
        self._waiting: list[dict[str, Any]] = []  # rows that were taken and are not given yet
        self._has_unreadable = False
        self.row = row

    def read(self) -> SourceBatch[T] | None:
        """
        The next elements; None at the end of the table. Raises `SourceError` for a row that is none, once all
        before it are given.
        """
        while not self._waiting:
            batch = next(self._batches, None)
            if batch is None:
                if self._skip:
                    raise SourceError(f"cannot go on behind row {self.row} of {self._path}: it has fewer now")
                return None
            skipped = min(self._skip, len(batch))
            self._skip -= skipped
            self._waiting = self._rows(batch.slice(skipped) if skipped else batch)
        rows: Any = self._waiting
        if self._model is None and not self._has_unreadable:
            self._waiting = []
            self.row += len(rows)
            return SourceBatch(rows)
        values: list[Any] = []
        rejected: list[RejectedRow] = []
        for place, row in enumerate(rows):
            try:
                values.append(self._value(row))
            except Unfit as unfit:
                number = self.row + place + 1
                if self.rejects:
                    rejected.append(RejectedRow(self._path, number, dict(row), str(unfit)))
                    continue
                if not values:
                    raise SourceError(f"row {number} of {self._path}: {unfit}") from unfit
                # they are delivered first; the next read finds it again
                self.row, self._waiting = self.row + place, rows[place:]
                return SourceBatch(values)
        self._waiting = []
        self.row += len(rows)
        return SourceBatch(values, None, rejected)

    def _value(self, row: dict[str, Any]) -> Any:
        if isinstance(row, UnreadableRow):
            raise Unfit(row.reason)
        return row if self._model is None else self._model(row)

    def _rows(self, batch: Any) -> list[dict[str, Any]]:
        names = batch.schema.names
        if len(set(names)) < len(names):
            twice = ", ".join(repr(name) for name, times in Counter(names).items() if times > 1)
            raise SourceError(f"cannot read {self._path}: it has several columns {twice}")
        self._has_unreadable = False
        columns = [_as_python_has_it(column) for column in batch.columns]
        try:
            if not names:
                rows: list[dict[str, Any]] = [{} for _ in range(len(batch))]
            else:
                # by columns: half of what the batch's own to_pylist() takes
                lists = [column.to_pylist() for column in columns]
                rows = [dict(zip(names, values, strict=True)) for values in zip(*lists, strict=True)]
        except _ERRORS:
            self._has_unreadable = True
            rows = [_one_by_one(names, columns, place) for place in range(len(batch))]
        if self._more:
            for row in rows:
                row.update(self._more)
        return rows


def _as_python_has_it(column: Any) -> Any:
    """
    Nanoseconds as microseconds, where nothing is lost by that: of nanoseconds Arrow makes what pandas has in
    place of `datetime` and `timedelta`, if that is installed.
    """
    import pyarrow

    if "[ns" not in str(column.type):
        return column
    try:
        return column.cast(_in_microseconds(column.type))
    except pyarrow.ArrowInvalid:
        return column


def _in_microseconds(kind: Any) -> Any:
    """The type, also of what is in others, with microseconds in place of nanoseconds."""
    import pyarrow
    from pyarrow import types

    if types.is_timestamp(kind):
        return pyarrow.timestamp("us", kind.tz) if kind.unit == "ns" else kind
    if types.is_duration(kind):
        return pyarrow.duration("us") if kind.unit == "ns" else kind
    if types.is_struct(kind):
        return pyarrow.struct([field.with_type(_in_microseconds(field.type)) for field in kind.fields])
    if types.is_map(kind):
        return pyarrow.map_(_in_microseconds(kind.key_type), _in_microseconds(kind.item_type))
    if types.is_dictionary(kind):
        return _in_microseconds(kind.value_type)
    # views stay as they are: what Arrow makes lists of has others' values in it
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pyarrow.list_(kind.value_field.with_type(_in_microseconds(kind.value_type)))
    return kind


def _one_by_one(names: Sequence[str], columns: Sequence[Any], place: int) -> dict[str, Any]:
    """One row of a batch in which there is a value that cannot be read."""
    row = {}
    reason = ""
    for name, column in zip(names, columns, strict=True):
        try:
            row[name] = column[place].as_py()
        except _ERRORS as error:
            reason = reason or f"column {name!r}: {describe_error(error)}"
    return UnreadableRow(row, reason) if reason else row


def in_slices(batches: Iterator[Any], size: int) -> Iterator[Any]:
    """Record batches of at most `size` rows."""
    for batch in batches:
        for begin in range(0, len(batch), size):
            yield batch.slice(begin, size) if len(batch) > size else batch
