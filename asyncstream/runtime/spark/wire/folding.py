"""
Rows in columns, folded by slice and key before they go to their key groups: see `windowing.partials`.

Spark's own aggregates do so in front of a shuffle, too. What it saves goes by the row: making a dict of it,
and taking it into its window. So it is done where a key has several rows. Others go as they are, and those of
which the order matters: exact sums of floats do not come out the same, nor do extremes if one is not a
number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.plan import Graph, Output
from asyncstream.runtime.spark.stages import Stage
from asyncstream.runtime.spark.wire.rows import values_of
from asyncstream.validation import Fields
from asyncstream.windowing import Count, Max, Mean, Min, WindowSpec
from asyncstream.windowing.assigners import SlicedWindows
from asyncstream.windowing.base import LATE
from asyncstream.windowing.partials import Folding, Part, Partials, folding_of

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ("Folded", "Keys", "Numbers", "folded", "foldings_of", "keys_of")

Numbers: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"

SEVERAL: Final = 2
"""Rows of a slice and key, in the mean, for which folding is worth while."""

SLICES: Final = 256
"""In which rows may lie that are folded together: each is looked for by itself, in some microseconds."""

MOST: Final = 1 << 21
"""Rows that are folded together, at most: as many halves of 64 bits are less than 2**53, up to which floats
are exact."""


class Keys(NamedTuple):
    """
    The keys of rows: all different ones, as they come first, and of each row the place of its own among
    these.
    """

    each: list[Any]
    codes: Numbers


def foldings_of(graph: Graph, stages: Iterable[Stage]) -> dict[int, Folding]:
    """How elements may be folded before they leave on a route, by the number of the route."""
    specs = {step.name: step.spec for stage in stages for step in stage.steps}
    found = {}
    for route in (route for stage in stages for route in stage.entries):
        spec = specs.get(route.reader)
        # an element that is late is told as it came
        if isinstance(spec, WindowSpec) and not graph.ports(Output(route.reader, LATE)):
            folding = folding_of(spec.plan)
            if folding is not None:
                found[route.number] = folding
    return found


def keys_of(batch: pa.RecordBatch, fields: Fields) -> Keys:
    """
    The keys of rows, by these fields; raises `Exception` if Arrow cannot tell equal values in one of these
    columns.
    """
    import numpy as np
    import pyarrow as pa

    names = (fields,) if isinstance(fields, str) else fields
    columns = [batch.column(name).dictionary_encode(null_encoding="encode") for name in names]
    each, codes = [values_of(column.dictionary) for column in columns], columns[0].indices.to_numpy()
    if isinstance(fields, str):
        return Keys(each[0], codes)
    keys: list[Any] = [(value,) for value in each[0]]
    for column, values in zip(columns[1:], each[1:], strict=True):
        both = pa.array(codes.astype(np.int64) * len(values) + column.indices.to_numpy()).dictionary_encode()
        pairs = both.dictionary.to_numpy().tolist()
        keys = [(*keys[pair // len(values)], values[pair % len(values)]) for pair in pairs]
        codes = both.indices.to_numpy()
    return Keys(keys, codes)


class Folded(NamedTuple):
    """
    What rows make together, by slice and key, in the order in which the first row of each came.

    Attributes:
        starts: of the slices.
        places: of the keys among those of the rows.
        counts: of rows.
        accumulators: in a column for each aggregate.
    """

    starts: Numbers
    places: Numbers
    counts: Numbers
    accumulators: list[np.ndarray[Any, Any]]

    def some(self, which: Numbers, keys: np.ndarray[Any, Any]) -> Partials:
        """Those at some places; `keys` are those of the rows."""
        return Partials(
            starts=self.starts[which].tolist(),
            keys=keys[self.places[which]].tolist(),
            counts=self.counts[which].tolist(),
            accumulators=[column[which].tolist() for column in self.accumulators],
        )


def folded(folding: Folding, batch: pa.RecordBatch, stamps: Numbers, keys: Keys) -> Folded | None:
    """
    What the rows make together; None: they go as they are.

    Args:
        stamps: the event time of each row.
        keys: of the rows.
    """
    import numpy as np
    import pyarrow as pa

    if batch.num_rows > MOST or len(keys.each) * SEVERAL > batch.num_rows:
        return None
    starts = _starts(folding.slicing, stamps)
    if starts is None:
        return None
    begins = np.array(starts, np.int64)
    cells, key_of, slice_of = keys.codes, np.arange(len(keys.each)), np.zeros(len(keys.each), np.int64)
    if len(starts) > 1:
        slices = np.searchsorted(begins, stamps, "right") - 1
        both = pa.array(keys.codes * np.int64(len(starts)) + slices).dictionary_encode()
        cells = both.indices.to_numpy()
        key_of, slice_of = np.divmod(both.dictionary.to_numpy(), len(starts))
        if len(key_of) * SEVERAL > batch.num_rows:
            return None
    columns = []
    for part in folding.parts:
        column = _accumulators(part, batch, cells, len(key_of))
        if column is None:
            return None
        columns.append(column)
    return Folded(begins[slice_of], key_of, np.bincount(cells, minlength=len(key_of)), columns)


def _starts(slicing: SlicedWindows, stamps: Numbers) -> list[int] | None:
    """Where the slices start that rows are in, by time; None: too many, or before all time."""
    import numpy as np

    start, end = slicing.slice_at(int(stamps.min()))
    if start < MIN_TIMESTAMP:
        return None
    starts, last_ms = [start], int(stamps.max())
    ordered = np.sort(stamps) if end <= last_ms else stamps
    while end <= last_ms:
        if len(starts) == SLICES:
            return None
        start, end = slicing.slice_at(int(ordered[np.searchsorted(ordered, end)]))
        starts.append(start)
    return starts


def _accumulators(
    part: Part, batch: pa.RecordBatch, cells: Numbers, count: int
) -> np.ndarray[Any, Any] | None:
    """
    Of an aggregate, one for each cell; None: they hang on the order of rows, or are to be asked one by one.

    Args:
        cells: of each row the cell that it is in.
        count: how many cells there are.
    """
    import numpy as np
    import pyarrow as pa

    if part.field is None:
        return np.bincount(cells, minlength=count)
    place = batch.schema.get_field_index(part.field)  # -1: there is none, or more than one
    if place < 0:
        return None
    column = batch.column(place)
    if column.null_count:
        cells = cells[column.is_valid().to_numpy(zero_copy_only=False)]
    counts = np.bincount(cells, minlength=count)
    if part.kind is Count:
        return counts
    is_whole, is_extreme = pa.types.is_signed_integer(column.type), part.kind in (Min, Max)
    if not (is_whole or (pa.types.is_floating(column.type) and (is_extreme or not part.exact))):
        return None
    numbers = column.drop_null().to_numpy()
    if is_extreme and not is_whole and _has_doubles(numbers):
        return None
    if is_extreme:
        compare, worst = (np.minimum, numbers.max) if part.kind is Min else (np.maximum, numbers.min)
        found = np.full(count, worst() if len(numbers) else 0, numbers.dtype)
        compare.at(found, cells, numbers)
    elif is_whole:
        found = _sums(numbers.astype(np.int64), cells, count)
    else:
        found = np.bincount(cells, numbers, count)
    if part.kind is Mean:
        pairs = zip(counts.tolist(), found.tolist(), strict=True)
        return np.fromiter(pairs, object, count)
    if not counts.all():
        found = found.astype(object)
        found[counts == 0] = None
    return found


def _has_doubles(numbers: np.ndarray[Any, Any]) -> bool:
    """Whether which float is the least may hang on their order: with NaN it does, and with two zeros."""
    import numpy as np

    return bool(np.isnan(numbers).any() or (np.signbit(numbers) & (numbers == 0)).any())


def _sums(numbers: Numbers, cells: Numbers, count: int) -> np.ndarray[Any, Any]:
    """By cell, exactly: NumPy adds floats up by far the fastest, which hold each half of a number."""
    import numpy as np

    high = np.bincount(cells, numbers >> 32, count)
    low = np.bincount(cells, numbers & 0xFFFFFFFF, count)
    if max(high.max(), -high.min()) < 1 << 30:
        return (high.astype(np.int64) << 32) + low.astype(np.int64)
    sums = ((int(over) << 32) + int(rest) for over, rest in zip(high.tolist(), low.tolist(), strict=True))
    return np.fromiter(sums, object, count)
