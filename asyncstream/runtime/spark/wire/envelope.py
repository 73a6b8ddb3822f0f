"""
How elements travel between stages: packed by route and key group, one row for many elements.

Spark sees these columns and nothing of the elements:

    route       which reader they are for; negative: a count, or transferred state
    group       the label of the key group, by which Spark brings together what belongs together
    origin, sequence   the task that packed it and a count: what Spark shuffles is put back in order by them,
                with rows of tables that others are looked up in before all else
    watermark   the one that held where they were emitted, or the first of them: what timers emitted comes
                before this micro-batch's
    count       how many elements there are
    event_time  how far event time had come in that task, as `clocks` shows it to Spark; of the first stage
                of a stream with keyed ones only
    payload     the elements and their timestamps, and in a job that replays event time the watermark that
                held for each, pickled; or several such, one behind the other. In place of elements there may
                be what they have been folded to, or the rows of an output, which have no timestamps
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from asyncstream.codec import ForeignError
from asyncstream.codec.classes import name_of
from asyncstream.errors import PipelineError, describe_error
from asyncstream.operators.functions import FailedCall
from asyncstream.runtime.spark.clocks import to_spark
from asyncstream.runtime.spark.observe import OBSERVED
from asyncstream.runtime.spark.stages import Route
from asyncstream.runtime.spark.wire.arrow_types import arrow_schema
from asyncstream.runtime.spark.wire.batches import NOW, Entering, Leaving
from asyncstream.runtime.spark.wire.columns import Columns
from asyncstream.runtime.spark.wire.keys import label_of
from asyncstream.runtime.spark.wire.values import dumps, loads_each
from asyncstream.windowing.partials import Partials

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = (
    "CLOCK",
    "COLUMNS",
    "PACKED",
    "Packer",
    "entering",
    "origin_of",
    "pack",
    "packed",
    "envelope_type",
    "unpack_marked",
)

COLUMNS = ("route", "group", "origin", "sequence", "watermark", "count", "payload")
"""The columns of an envelope, but for the event time."""

CLOCK = -1
"""
The route of an envelope that is empty: it carries event time, and has keyed stages look, whatever keys come,
whether the checkpoint is their plan's. No key is in its group.
"""

PAYLOAD = 1 << 20
"""Bytes that Spark holds in one piece, at most, unless a single element is larger."""

PACKED = 50_000
"""Elements that a task packs at a time: what an envelope costs Spark is shared by more of them."""

BEHIND_TABLES = 1 << 48
"""Added to the origin of elements that are no rows of tables, nor state."""

BATCH = 16 << 20
"""Bytes of payloads in an Arrow batch, at most."""


def envelope_type(*, event_time: bool = False) -> StructType:
    """The columns as Spark's types."""
    from pyspark.sql import types

    number, count = types.IntegerType(), types.LongType()
    kinds = (number, number, count, count, count, count, types.BinaryType())
    fields = [
        types.StructField(name, kind, nullable=False) for name, kind in zip(COLUMNS, kinds, strict=True)
    ]
    if event_time:
        fields.append(types.StructField("event_time", types.TimestampType(), nullable=False))
    return types.StructType(fields)


@cache
def _arrow_schema(event_time: bool) -> pa.Schema:
    """The columns as Arrow's types."""
    return arrow_schema(envelope_type(event_time=event_time))


def origin_of(route: Route, task: int) -> int:
    """The origin of what a task, by its number among all, packs for a route."""
    return task if route.is_table or route.number < 0 else task + BEHIND_TABLES


def packed(leaving: Leaving) -> Iterator[tuple[int, bytes]]:
    """The payloads for some elements, none of them large, each with the number of its elements."""
    payload = pack(leaving)
    count = len(leaving.values)
    if len(payload) <= PAYLOAD or count == 1 or leaving.route.number < OBSERVED:  # state is in one piece
        yield count, payload
        return
    size = max(1, count * PAYLOAD // len(payload) * 3 // 4)
    del payload
    for start in range(0, count, size):
        yield from packed(leaving.part(start, start + size))


def pack(leaving: Leaving) -> bytes:
    """The payload for some elements."""
    values = leaving.values
    if not isinstance(values, Columns | Partials) and FailedCall in set(map(type, values)):
        values = [_portable(value) if type(value) is FailedCall else value for value in values]
    try:
        return dumps((values, leaving.timestamps, *([] if (w := leaving.watermarks) is None else [w])))
    except Exception as error:
        raise PipelineError(
            f"what step {leaving.route.output} emits cannot be pickled, as it must be to get from one Spark "
            f"task to the next: {describe_error(error)}"
        ) from error


def unpack_marked(payload: bytes, watermark: int) -> tuple[list[Any], list[int | None], list[int]]:
    """The elements, their timestamps and the watermarks that held for them, or `watermark` for all."""
    values: list[Any] = []
    timestamps: list[int | None] = []
    watermarks: list[int] = []
    for more, their_timestamps, *marks in loads_each(payload):
        values += more
        timestamps += their_timestamps
        watermarks += marks[0] if marks else [watermark] * len(more)
    return values, timestamps, watermarks


def _portable(failed: FailedCall) -> FailedCall:
    """With an error that can be read again elsewhere: many an exception pickles and does not unpickle."""
    error = failed.error
    try:
        if type(pickle.loads(pickle.dumps(error, 5))) is type(error):
            return failed
    except Exception:
        pass
    return replace(failed, error=ForeignError(name_of(type(error)), describe_error(error)))


@dataclass
class _Filling:
    """An envelope that is being filled; each of its payloads is of some elements, in their order."""

    watermark: int
    origin: int
    count: int = 0
    size: int = 0
    payloads: list[bytes] = field(default_factory=list)


class Packer:
    """
    Makes rows of what leaves a stage, as Arrow batches.

    What leaves is pickled at once, while it is in the processor's cache, and put into an envelope with what
    leaves for the same place later.

    Args:
        origin: the number of this task among those that feed the next stage.
        event_time: with that column.
    """

    def __init__(self, origin: int, *, event_time: bool) -> None:
        self._origin = origin
        self._sequence = 0
        self._has_event_time = event_time
        self._open: dict[tuple[int, int, int | None], _Filling] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._count = 0
        self._size = 0
        self._schema = _arrow_schema(event_time)

    def batches(
        self, leaving: Iterable[Leaving], event_time_ms: int, counts: Mapping[int, int] | None
    ) -> Iterator[pa.RecordBatch]:
        """
        Batches of a size that Spark and a worker can hold, as soon as there is enough for one.

        Args:
            counts: what the task has counted, by number, with the last batch: nothing follows, so event
                time must be told even if there is nothing else.
        """
        for item in leaving:
            first = 0
            for count, payload in packed(item):
                for group in item.groups:
                    self._add(item, group, first, count, payload)
                    if self._size >= BATCH:
                        yield self._batch(event_time_ms)
                first += count
        if self._count >= PACKED:
            yield self._batch(event_time_ms)
        if counts is None:
            return
        self._close_all()
        for number, count in counts.items():
            self._rows.append((OBSERVED, number, self._origin, self._next(), NOW, count, b""))
        if self._has_event_time:
            self._rows.append((CLOCK, 0, self._origin, self._next(), NOW, 0, b""))
        if self._rows:
            yield self._batch(event_time_ms)

    def _add(self, item: Leaving, group: int, first: int, count: int, payload: bytes) -> None:
        """Some elements of those, from the first on, are packed."""
        number = item.route.number
        watermark = item.watermarks[first] if item.watermarks else item.watermark
        place = (number, group, None if item.watermarks else watermark)
        envelope = self._open.get(place)
        is_state = number < OBSERVED
        if envelope is not None and (is_state or envelope.size + len(payload) > PAYLOAD):
            self._close(place, self._open.pop(place))
            envelope = None
        if envelope is None:
            envelope = self._open[place] = _Filling(watermark, origin_of(item.route, self._origin))
        envelope.payloads.append(payload)
        envelope.count += count
        envelope.size += len(payload)
        self._count += count
        self._size += len(payload)

    def _close(self, place: tuple[int, int, int | None], envelope: _Filling) -> None:
        number, group, _ = place
        head = (number, label_of(group), envelope.origin, self._next(), envelope.watermark, envelope.count)
        self._rows.append((*head, b"".join(envelope.payloads)))

    def _close_all(self) -> None:
        for place, envelope in self._open.items():
            self._close(place, envelope)
        self._open.clear()

    def _batch(self, event_time_ms: int) -> pa.RecordBatch:
        import pyarrow as pa

        self._close_all()
        rows, self._rows, self._count, self._size = self._rows, [], 0, 0
        columns: list[Sequence[Any]] = list(zip(*rows, strict=True))
        if self._has_event_time:
            columns.append([to_spark(event_time_ms) * 1000] * len(rows))
        arrays = [pa.array(column, kind) for column, kind in zip(columns, self._schema.types, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def handed_on(self, batch: pa.RecordBatch, rows: list[int]) -> pa.RecordBatch:
        """Some rows of a batch of envelopes, as they are."""
        import pyarrow as pa

        kept = batch.take(pa.array(rows, pa.int64()))
        return pa.RecordBatch.from_arrays([kept[name] for name in COLUMNS], schema=self._schema)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence


def entering(route: int, payload: bytes, watermark: int | None = None) -> Iterator[Entering]:
    """
    What is in an envelope, so many elements at a time as were packed together.

    Those are in the processor's cache yet when they are taken in; ten thousand at once are not.

    Args:
        watermark: comes before all of them.
    """
    for values, timestamps, *_ in loads_each(payload):
        if route < OBSERVED:
            states, reached_ms, seen_ms = values
            yield Entering((), [], watermark=reached_ms, transferred=states, seen=seen_ms)
        else:
            yield Entering((route,), values, timestamps, watermark)
        watermark = None
