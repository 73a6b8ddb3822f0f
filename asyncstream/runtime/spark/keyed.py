"""
Keyed steps of a stream: the operators of a key group, between two micro-batches kept in Spark's state.

A state call from Python costs 30 to 110 µs, so what Spark keeps is not the state of a key but one blob for a
whole **key group**: the snapshots of the stage's operators for all keys of the group. It is read and written
once per micro-batch, and only the earliest timer in it is registered with Spark.

One micro-batch, for one group, in the order in which the embedded engine would see it::

    what W(N) made timers emit in the stage before   W(N): timers fire   rows(N)   the next blob

`W(N)` is Spark's watermark less one millisecond: Spark's is max - delay, Flink's and ours max - delay - 1.
For the same reason our timer for t is Spark's for t + 1.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncstream.clock import SystemClock
from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.errors import PipelineError
from asyncstream.operators.base import OperatorContext
from asyncstream.runtime.spark.assembly import NOW, Assembly, Terms, telling_the_cause
from asyncstream.runtime.spark.cut import Stage
from asyncstream.runtime.spark.parcels import COLUMNS, pack, unpack

if TYPE_CHECKING:
    from pyspark.sql import Row

__all__ = ("KeyGroup",)


class _Kept(NamedTuple):
    """
    The blob.

    Attributes:
        operators: snapshots by step name.
        watermark_ms: the last one that these operators saw.
        timer_ms: the timer that is registered with Spark.
    """

    operators: dict[str, Any]
    watermark_ms: int
    timer_ms: int | None


class KeyGroup:
    """
    A stateful processor for Spark's `transformWithState`, grouped by key group.

    Args:
        number: that of the stage.
    """

    def __init__(self, stage: Stage, terms: Terms, number: int) -> None:
        self._stage = stage
        self._terms = terms
        self._number = number
        self._clock = SystemClock()

    def init(self, handle: Any) -> None:
        from pyspark.sql.types import BinaryType, StructField, StructType

        self._handle = handle
        self._state = handle.getValueState("operators", StructType([StructField("blob", BinaryType())]))

    def handleInputRows(self, key: Any, rows: Iterable[Row], timerValues: Any) -> Iterator[Row]:
        mine = {route.number for route in self._stage.entries}
        parcels = []
        for row in rows:
            if row.route in mine:
                parcels.append(row)
            elif row.route >= 0:
                yield row
        if parcels:
            parcels.sort(key=lambda row: (row.watermark, row.origin, row.sequence))
            with telling_the_cause():
                yield from self._advance(key[0], parcels, timerValues, None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        with telling_the_cause():
            yield from self._advance(key[0], [], timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        """Nothing is open between two groups."""

    def _advance(self, group: int, parcels: list[Row], times: Any, fired_ms: int | None) -> Iterator[Row]:
        spark_ms = times.getCurrentWatermarkInMs()
        watermark_ms = spark_ms - 1 if spark_ms > 0 else MIN_TIMESTAMP  # 0: there is none yet
        blob = self._state.get()
        kept = _Kept({}, MIN_TIMESTAMP, None) if blob is None else _Kept(*pickle.loads(blob[0]))
        early = [row for row in parcels if row.watermark != NOW]
        # W(N - 1), as far as it matters: whoever emitted something at or below it knew it
        before_ms = max([kept.watermark_ms, *(row.watermark for row in early)])
        assembly = Assembly(self._stage, self._terms, None, group, before_ms)
        operators = assembly.operators
        try:
            for _ in assembly.open(self._context):
                pass
            # in this order: pending timers wait for W(N), also those that were due when they were registered
            assembly.advance_watermark(before_ms)
            for name, state in kept.operators.items():
                operators[name].restore(state)
            self._process(assembly, early)
            assembly.advance_watermark(max(watermark_ms, before_ms))
            for exit_ in assembly.exits:
                exit_.watermark = NOW
            self._process(assembly, parcels[len(early) :])
            snapshots = {name: operator.snapshot() for name, operator in operators.items()}
        finally:
            for operator in operators.values():
                operator.close()
        self._keep(snapshots, watermark_ms, kept.timer_ms, fired_ms)
        yield from self._rows(group, assembly)

    def _process(self, assembly: Assembly, parcels: list[Row]) -> None:
        for row in parcels:
            assembly.heads[row.route].process_batch(*unpack(row.payload))

    def _keep(
        self, snapshots: dict[str, Any], watermark_ms: int, registered_ms: int | None, fired_ms: int | None
    ) -> None:
        due_ms = _earliest(snapshots)
        # a timer that is due already waits for the next watermark; Spark knows of no time before the epoch
        timer_ms = None if due_ms is None else max(due_ms, watermark_ms + 1, 0) + 1
        self._state.update((pickle.dumps(tuple(_Kept(snapshots, watermark_ms, timer_ms)), 5),))
        if timer_ms == registered_ms:
            return
        if registered_ms not in (None, fired_ms):
            self._handle.deleteTimer(registered_ms)
        if timer_ms is not None:
            self._handle.registerTimer(timer_ms)

    def _rows(self, group: int, assembly: Assembly) -> Iterator[Row]:
        from pyspark.sql import Row

        make = Row(*COLUMNS)
        origin = (self._number << 32) + group
        for sequence, leaving in enumerate(assembly.take()):
            yield make(
                leaving.route.number, leaving.group, origin, sequence, leaving.watermark, pack(leaving)
            )

    def _context(self, name: str) -> OperatorContext:
        def wake_at(now_ms: int) -> None:
            raise PipelineError(
                f"step {name!r} waits for processing time, which a stream on Spark cannot tell it; "
                "use event time, or run the pipeline embedded"
            )

        return OperatorContext(name, self._clock, wake_at)


def _earliest(snapshots: dict[str, Any]) -> int | None:
    """The earliest event-time timer in the snapshots of keyed operators, which all keep them alike."""
    return min((timer[0] for state in snapshots.values() for timer in _event_timers(state)), default=None)


def _event_timers(state: Any) -> list[Any]:
    timers = state.get("timers") if isinstance(state, dict) else None
    return timers["event"] if timers else []
