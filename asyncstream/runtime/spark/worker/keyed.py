"""
Keyed steps of a stream: the operators of a key group, between two micro-batches kept in Spark's state.

A state call from Python costs 30 to 110 µs, so what Spark keeps is not the state of a key but that of a whole
**key group**: a log of what changed in the tables of the stage's operators (`group_log`), and a head that
says what they are and holds what is small. A micro-batch reads the head, and writes it and what it has
changed; only the earliest timer is registered with Spark.

What a group does in a micro-batch is in `turn`. A stream that follows processing time runs in Spark's other
mode, in which only the clock fires timers and, behind the first of a run, every trigger makes a micro-batch,
with rows or without. Groups that wait for event time are then woken in each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.runtime.spark.clocks import before
from asyncstream.runtime.spark.input_order import check_order
from asyncstream.runtime.spark.observe import OBSERVED
from asyncstream.runtime.spark.stages import Stage
from asyncstream.runtime.spark.state_transfer import route_of
from asyncstream.runtime.spark.wire.batches import NOW, States
from asyncstream.runtime.spark.wire.envelope import CLOCK, COLUMNS, origin_of, packed
from asyncstream.runtime.spark.wire.keys import GROUPING, group_of, label_of
from asyncstream.runtime.spark.wire.values import dumps_state, loads_each
from asyncstream.runtime.spark.worker.chunks import Chunks
from asyncstream.runtime.spark.worker.connection import acknowledge
from asyncstream.runtime.spark.worker.group_files import GroupFile, GroupFiles
from asyncstream.runtime.spark.worker.group_head import Head, Kind
from asyncstream.runtime.spark.worker.group_log import Log, Position
from asyncstream.runtime.spark.worker.group_memory import has_room, hold, room, take_back
from asyncstream.runtime.spark.worker.operators import StageOperators, Terms, telling_the_cause
from asyncstream.runtime.spark.worker.outputs import OutputTask, in_columns, row_writers
from asyncstream.runtime.spark.worker.shipped import Shipped
from asyncstream.runtime.spark.worker.turn import Turn, Turns
from asyncstream.state import Tables

if TYPE_CHECKING:
    from pyspark.sql import Row

__all__ = ("KeyGroup",)


class KeyGroup:
    """
    A stateful processor for Spark's `transformWithState`, grouped by key group.

    Args:
        number: that of the stage.
        outputs: what it emits for these leaves it as their rows.
    """

    def __init__(self, stage: Stage, terms: Terms, number: int, outputs: tuple[OutputTask, ...] = ()) -> None:
        self._stage = stage
        self._terms = terms
        self._number = number
        self._outputs = outputs
        self._writers = row_writers(outputs)
        self._transfer_route = route_of(number)
        self._steps = {step.name: Kind.of(step) for step in stage.steps}
        self._blank = Head(
            {}, MIN_TIMESTAMP, None, terms.key_groups, GROUPING, steps=self._steps, unnamed=terms.unnamed
        )
        self._leads_on = {exit_.number for exit_ in stage.exits} > {output.route for output in outputs}

    def __reduce__(self) -> tuple[Any, ...]:
        value = self._stage, self._terms, self._number, self._outputs
        return _processor, (Shipped(value, stage=self._stage),)

    def init(self, handle: Any) -> None:
        from pyspark.sql.types import BinaryType, BooleanType, LongType, StructField, StructType

        self._handle = handle
        self._begun_ms = -1  # asked for by the first group: it costs a message
        blob = StructType([StructField("blob", BinaryType())])
        self._state = handle.getValueState("operators", blob)
        number = StructType([StructField("number", LongType())])
        chunk = StructType([*blob.fields, StructField("is_first", BooleanType())])
        chunks = Chunks(handle, partial(handle.getMapState, "chunks", number, chunk))
        self._log = Log(chunks, self._terms.classes, self._steps)
        self._turns = Turns(self._stage, self._terms, self._log, self._blank)
        self._files = GroupFiles(self._terms.classes)

    def handleInputRows(self, key: Any, rows: Iterable[Row], timerValues: Any) -> Iterator[Row]:
        mine = {route.number for route in self._stage.entries} | {self._transfer_route}
        envelopes = []
        clock = None
        # all of them: what is for others must keep its order too
        for row in sorted(rows, key=lambda row: (row.watermark, row.origin, row.sequence)):
            if row.route in mine:
                envelopes.append(row)
            elif row.route == CLOCK:
                clock = row
            else:
                yield row
        if clock is not None:
            with telling_the_cause():
                self._check_plan()
            yield clock
        if envelopes:
            with telling_the_cause():
                yield from self._advance(group_of(key[0]), envelopes, timerValues, None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        with telling_the_cause():
            fired_ms = expiredTimerInfo.getExpiryTimeInMs()
            row = None
            for row in self._advance(group_of(key[0]), [], timerValues, fired_ms):
                yield row
        if row is not None and self._leads_on:
            # in a micro-batch without rows nothing else has later stages look at their plan
            yield self._clock()

    def close(self) -> None:
        """Nothing is open between two groups."""

    def _head(self) -> Head | None:
        """What Spark's state has of the group, if it is for this plan."""
        blob = self._state.get()
        if blob is None:
            return None
        kept = Head.of(blob[0], self._terms.classes, self._steps)
        kept.check(self._terms.key_groups)
        kept.check_steps(self._steps, self._terms.unnamed)
        return kept

    def _check_plan(self) -> None:
        """
        Refuse the checkpoint of another plan, also if only keys come whose groups are not in it yet.

        Such a micro-batch would begin them, and be committed: then neither plan could go on. So there is a
        head that is of no group, and looked at in each micro-batch in which keys can come.
        """
        known, inputs = self._head(), self._terms.inputs
        if known is not None and known.inputs and inputs:
            check_order(known.inputs, inputs)
        mine = self._blank._replace(inputs=inputs)
        if known != mine:
            self._state.update((dumps_state(tuple(mine)),))

    def _advance(self, group: int, envelopes: list[Row], times: Any, fired_ms: int | None) -> Iterator[Row]:
        kept = self._head() or self._blank
        # the checkpoint that the query began with may have been ahead of Spark
        watermark_ms = max(before(times.getCurrentWatermarkInMs()), kept.watermark_ms)
        transferred: tuple[States, int, int] | None = None
        if envelopes and envelopes[0].route == self._transfer_route:
            [((states, start_ms, seen_ms), _)] = loads_each(envelopes.pop(0).payload)
            transferred, watermark_ms = (states, start_ms, seen_ms), max(watermark_ms, start_ms)
        early = [row for row in envelopes if row.watermark != NOW]
        present, now_ms = envelopes[len(early) :], self._batch_time_ms(times)
        turn = Turn(group, early, present, kept, watermark_ms, transferred, now_ms)
        position = Position(*kept.position)
        held, file = take_back(position, self._log), None
        if held is None:
            file = self._files.take(position)
            held = None if file is None else file.tables
        try:
            done = self._turns.run(turn, held)
        except Exception:
            is_lost = file is not None and file.is_broken
            if file is not None:
                file.discard()
            if not is_lost:
                raise
            file, done = None, self._turns.run(turn, None)
        self._state.update((done.head,))
        self._keep(file, done.position, done.tables)
        self._register(done.timer_ms, kept.timer_ms, fired_ms)
        yield from self._rows(group, done.parts, done.counts)

    def _keep(self, file: GroupFile | None, position: Position, tables: Mapping[str, Tables]) -> None:
        """
        Have tables for the next turn of their group, in memory or in the file that they are in, if others may
        go on with them.
        """
        if any(table.is_bound for of_step in tables.values() for table in of_step.every()):
            return
        most = room(self._terms.held_bytes)
        is_light = file is None and has_room(position, tables, most)
        if is_light or not self._files.keep(file, position, tables):
            hold(position, tables, most, self._terms.classes)

    def _batch_time_ms(self, times: Any) -> int:
        """
        When the micro-batch has begun, as the checkpoint has it: it is the same if the micro-batch runs
        again, so what has outlived its time to live is the same, too.
        """
        if self._begun_ms < 0:
            self._begun_ms = times.getCurrentProcessingTimeInMs()
        if self._begun_ms < 0:  # Spark tells it in its modes with timers only, but knows it in all
            self._begun_ms = self._handle._statefulProcessorApiClient._get_batch_timestamp()
        return self._begun_ms

    def _register(self, timer_ms: int | None, registered_ms: int | None, fired_ms: int | None) -> None:
        if timer_ms == registered_ms:
            return
        if registered_ms not in (None, fired_ms):
            self._handle.deleteTimer(registered_ms)
        if timer_ms is not None:
            self._handle.registerTimer(timer_ms)

    def _rows(self, group: int, parts: StageOperators, counts: Mapping[int, int]) -> Iterator[Row]:
        from pyspark.sql import Row

        make = Row(*COLUMNS)
        task = (self._number << 32) + group
        leave = in_columns(parts.take(), self._writers)
        envelopes = ((leaving, *part) for leaving in leave for part in packed(leaving))
        for sequence, (leaving, count, payload) in enumerate(envelopes):
            number, origin = leaving.route.number, origin_of(leaving.route, task)
            for to in leaving.groups:
                yield make(number, label_of(to), origin, sequence, leaving.watermark, count, payload)
        for number, count in counts.items():
            yield make(OBSERVED, number, task, 0, NOW, count, b"")

    def _clock(self) -> Row:
        from pyspark.sql import Row

        return Row(*COLUMNS)(CLOCK, 0, self._number << 32, 0, NOW, 0, b"")


def _processor(shipped: Shipped[tuple[Stage, Terms, int, tuple[OutputTask, ...]]]) -> KeyGroup:
    acknowledge()  # not in `init`, which is called when rows have come
    return KeyGroup(*shipped.value)
