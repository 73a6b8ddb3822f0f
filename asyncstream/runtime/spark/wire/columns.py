"""
Rows on their way to key groups in the columns in which they came from Spark.

Often all that a pipeline does with a row before its key has it is to look at two fields:
`rows.event_time("at_ms", ...).key_by("user")`. Then the rows of a task are put in the order of their key
groups as Arrow arrays, and are made dicts where they are taken in: nothing is done for a row in Python, and
no dict is pickled. A function that is but `lambda row: row["user"]` is as good as the name. Where windows can
do with less, their rows are folded besides (`folding`).

Rows among which one has no point in time, or what cannot be a key, go the way of all others, which says what
is wrong with it. So does a micro-batch of few rows for each group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncstream.operators.timestamps import EventTimeSpec
from asyncstream.plan import Output
from asyncstream.runtime.spark.stages import Route, Stage
from asyncstream.runtime.spark.wire.batches import NOW, Leaving
from asyncstream.runtime.spark.wire.folding import Folded, Keys, Numbers, folded, keys_of
from asyncstream.runtime.spark.wire.keys import key_groups
from asyncstream.runtime.spark.wire.rows import elements_of
from asyncstream.validation import Fields, fields_of
from asyncstream.windowing.partials import Folding

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("FEW", "Columns", "Finished", "Picked", "Picks", "picked", "picks_of", "streamed")

PART: Final = 1_000
"""Rows that are made dicts, and taken in, at a time: so many are in the processor's cache yet."""

FEW: Final = 64
"""Rows that travel together, of which an Arrow batch costs as much as so many elements."""

DAY_US: Final = timedelta(days=1) // timedelta(microseconds=1)
FIRST_US, LAST_US = -719_000 * DAY_US, 2_932_000 * DAY_US
"""Times between which all are Python's too, whatever the time zone: from the year 1 to 9997."""


class Columns(Sequence[Any]):
    """Rows that are pickled as an Arrow batch, of which unpickling makes a list of dicts."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def __getitem__(self, place: int | slice) -> Any:
        if isinstance(place, slice):
            start, end, _ = place.indices(len(self))
            return type(self)(self._batch.slice(start, max(end - start, 0)))
        return elements_of(self._batch.slice(range(len(self))[place], 1))[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return _rows, (streamed([self._batch]),)


class Finished(Columns):
    """Rows as an output has them, of which unpickling makes the Arrow batch again."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _batch, (streamed([self._batch]),)


class _Stamps(Sequence[int]):
    """Numbers that are pickled as their bytes, of which unpickling makes a list."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, place: int | slice) -> Any:
        return _Stamps(self._numbers[place]) if isinstance(place, slice) else int(self._numbers[place])

    def __reduce__(self) -> tuple[Any, ...]:
        return _numbers, (self._numbers.tobytes(),)


def streamed(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Batches of the same columns, of which there is at least one, as Arrow's stream of them."""
    import pyarrow as pa

    buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(buffer, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    data: bytes = buffer.getvalue().to_pybytes()
    return data


def _rows(data: bytes) -> list[dict[str, Any]]:
    return elements_of(_batch(data))


def _batch(data: bytes) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.ipc.open_stream(data).read_next_batch()


def _numbers(data: bytes) -> list[int]:
    import numpy as np

    numbers: list[int] = np.frombuffer(data, np.int64).tolist()
    return numbers


@dataclass(frozen=True)
class Picks:
    """
    What a pipeline asks of the rows of a source before they go to their key groups: fields, and no more.

    Attributes:
        step: that gives them event time.
        time: the field that it has it from.
        keys: the fields of the key on each route that they leave on.
        foldings: how they may be folded, by the number of the route.
    """

    step: str
    time: str
    keys: tuple[tuple[Route, Fields], ...]
    foldings: Mapping[int, Folding]


class Picked(NamedTuple):
    """
    Rows that leave.

    Attributes:
        step: that gave them event time.
        first: what that had of the first of them, if it is a number.
        latest_ms: the largest of their timestamps.
    """

    leaving: Iterator[Leaving]
    step: str
    first: int | None
    latest_ms: int


def picks_of(
    stage: Stage, source: tuple[int, ...], wanted: frozenset[int], foldings: Mapping[int, Folding]
) -> Picks | None:
    """
    What the first stage does with the rows of a source, if that is no more than looking at fields.

    Args:
        source: the routes on which the rows enter.
        wanted: the routes whose elements are needed.
        foldings: how elements may be folded, by the number of the route.
    """
    entries = [route for route in stage.entries if route.number in source]
    if len(source) != 1 or len(entries) != 1:
        return None
    steps = {step.name: step.spec for step in stage.steps}
    name = entries[0].reader
    spec, output = steps[name], Output(name)
    if not isinstance(spec, EventTimeSpec) or any(
        one.output.step == name for step in stage.steps for one in step.inputs
    ):
        return None
    time = fields_of(spec.timestamp)
    exits = [route for route in stage.exits if route.output.step == name and route.number in wanted]
    keys = [(route, None if route.key_by is None else fields_of(route.key_by)) for route in exits]
    known = tuple((route, fields) for route, fields in keys if fields is not None and route.output == output)
    if not isinstance(time, str) or len(known) != len(exits):
        return None
    mine = {route.number: foldings[route.number] for route in exits if route.number in foldings}
    return Picks(name, time, known, mine)


def picked(picks: Picks, batch: pa.RecordBatch, groups: int) -> Picked | None:
    """The rows by key group; None: they are to go the way of other rows."""
    import numpy as np

    stamps = _milliseconds(batch, picks.time) if batch.num_rows > FEW * groups else None
    if stamps is None:
        return None
    places: list[tuple[Route, Keys, Numbers]] = []
    try:
        for route, fields in picks.keys:
            keys = keys_of(batch, fields)
            places.append((route, keys, np.fromiter(map(key_groups(groups).of, keys.each), np.int64)))
        first = batch.column(picks.time)[0].as_py()
    except Exception:  # the other way names the element, or the column
        return None

    def leaving() -> Iterator[Leaving]:
        for route, keys, group_of_key in places:
            folding = picks.foldings.get(route.number)
            found = None if folding is None else folded(folding, batch, stamps, keys)
            if found is None:
                yield from _rows_leaving(route, batch, stamps, group_of_key[keys.codes], groups)
            else:
                yield from _partials_leaving(route, found, keys, group_of_key, groups)

    return Picked(leaving(), picks.step, first if type(first) is int else None, int(stamps.max()))


def _milliseconds(batch: pa.RecordBatch, name: str) -> Numbers | None:
    """The event time of each row; None: that of one of them is to be looked at by itself."""
    import numpy as np
    import pyarrow as pa

    place = batch.schema.get_field_index(name)  # -1: there is none, or more than one
    column = batch.column(place) if place >= 0 else None
    if column is None or column.null_count:
        return None
    if pa.types.is_signed_integer(column.type):
        numbers: Numbers = column.to_numpy().astype(np.int64)
        return numbers
    if pa.types.is_timestamp(column.type) and column.type.unit == "us" and column.type.tz is not None:
        times: Numbers = column.cast(pa.int64()).to_numpy()
        if times.min() >= FIRST_US and times.max() < LAST_US:
            return times // 1000
    return None


def _rows_leaving(
    route: Route, batch: pa.RecordBatch, stamps: Numbers, group_of_row: Numbers, groups: int
) -> Iterator[Leaving]:
    import pyarrow as pa

    for group, places in _by_group(group_of_row, groups):
        rows, times = batch.take(pa.array(places)), stamps[places]
        for start in range(0, len(places), PART):
            part, of_part = rows.slice(start, PART), _Stamps(times[start : start + PART])
            yield Leaving(route, NOW, (group,), Columns(part), of_part)


def _partials_leaving(
    route: Route, found: Folded, keys: Keys, group_of_key: Numbers, groups: int
) -> Iterator[Leaving]:
    import numpy as np

    each = np.fromiter(keys.each, object, len(keys.each))
    for group, places in _by_group(group_of_key[found.places], groups):
        yield Leaving(route, NOW, (group,), found.some(places, each), ())


def _by_group(group_of: Numbers, groups: int) -> Iterator[tuple[int, Numbers]]:
    """The places of those that are in each group, if there are any, in their order."""
    import numpy as np

    # of few bits, of which NumPy sorts numbers ten times as fast
    order = np.argsort(group_of.astype(np.min_scalar_type(groups)), kind="stable")
    ends = np.cumsum(np.bincount(group_of, minlength=groups)).tolist()
    for group, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        if first < end:
            yield group, order[first:end]
