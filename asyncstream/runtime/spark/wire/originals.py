"""
Columns that come out of a task as they went in are copied, and not made anew of the values in its rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import is_
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("Originals",)

MOST: Final = 200_000
"""Rows under way of which it is known what they were made of."""


class Originals:
    """
    The columns that rows were made of, to be written again where rows come out as they went in.

    A function that adds a column to a row leaves the others as they are: the values are the very objects that
    a column was turned into, and to look whether they are costs a fraction of turning them back, for times a
    twentieth. Rows are looked for in the order of the input only, and a column of which one has been found to
    differ is not looked at again in this task.
    """

    def __init__(self) -> None:
        self._batches: deque[tuple[pa.RecordBatch, dict[str, list[Any]]]] = deque()
        self._changed: set[str] = set()
        self._begin = 0
        self._held = 0
        self._is_used = True

    def add(self, batch: pa.RecordBatch, values: Sequence[list[Any]]) -> None:
        """Further rows, by the values of each column."""
        if not self._is_used or not batch.num_rows:
            return
        columns = dict(zip(batch.schema.names, values, strict=True))
        if len(columns) < len(values):  # two have one name
            self._give_up()
            return
        self._batches.append((batch, columns))
        self._held += batch.num_rows
        if self._held > MOST:  # rows do not come out again
            self._give_up()

    def column(self, field: pa.Field, values: list[Any]) -> pa.Array | None:
        """A column for these values of the next rows, as `field` says, if they are the original ones."""
        if not self._is_used or field.name in self._changed:
            return None
        found = self._found(field, values)
        if found is None:
            self._changed.add(field.name)
        return found

    def _found(self, field: pa.Field, values: list[Any]) -> pa.Array | None:
        import pyarrow as pa

        parts, done, begin = [], 0, self._begin
        for batch, columns in self._batches:
            if done == len(values):
                break
            original = columns.get(field.name)
            if original is None or not _can_be_copied(batch.schema.field(field.name).type, field.type):
                return None
            count = min(len(original) - begin, len(values) - done)
            # of the same length each: `map` would be content with less
            if not all(map(is_, values[done : done + count], original[begin : begin + count])):
                return None
            parts.append(batch.column(field.name).slice(begin, count).cast(field.type))
            done, begin = done + count, 0
        if done < len(values) or not parts:
            return None
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def passed(self, count: int, fields: Iterable[pa.Field]) -> None:
        """The next rows have been written, as these columns."""
        self._begin += count
        while self._batches and self._begin >= self._batches[0][0].num_rows:
            batch, _ = self._batches.popleft()
            self._begin -= batch.num_rows
            self._held -= batch.num_rows
        if (self._begin and not self._batches) or all(field.name in self._changed for field in fields):
            self._give_up()

    def _give_up(self) -> None:
        self._is_used = False
        self._batches.clear()


@lru_cache
def _can_be_copied(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a column can stand for another without a look at its values, none of which can be changed."""
    from pyarrow import types

    if types.is_nested(kind) or types.is_dictionary(kind):
        return False
    if types.is_timestamp(kind) and types.is_timestamp(wanted):
        return kind.unit == wanted.unit and (kind.tz is None) == (wanted.tz is None)
    return bool(kind == wanted)
