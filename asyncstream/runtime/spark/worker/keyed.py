"""
Keyed steps of a stream: the operators of a key group, between two micro-batches kept in Spark's state.

A state call from Python costs 30 to 110 µs, so what Spark keeps is not the state of a key but that of a whole
**key group**: a log of what changed in the tables of the stage's operators (`group_log`), and a head that
says what they are and holds what is small. A micro-batch reads the head, and writes it and what it has
changed; only the earliest timer is registered with Spark.

One micro-batch, for one group, in the order in which the embedded engine would see it::

    what W(N) made timers emit in the stage before   W(N): timers fire   rows(N)   the next blob

`W(N)` is Spark's watermark less one millisecond: Spark's is max - delay, Flink's and ours max - delay - 1.
For the same reason our timer for t is Spark's for t + 1. Both are as `clocks` shows them to Spark.

Processing time stands still during a micro-batch, at what Spark has noted for it, and advances after W(N) and
before rows(N). A stream that follows it besides runs in Spark's other mode, in which only the clock fires
timers and, behind the first of a run, every trigger makes a micro-batch, with rows or without. Groups that
wait for event time are then woken in each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asyncstream.clock import Clock, ManualClock
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.errors import PipelineError, describe_error
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.runtime.spark.clocks import LATEST_MS, before, to_spark
from asyncstream.runtime.spark.compatibility import not_asked_to
from asyncstream.runtime.spark.input_order import check_order
from asyncstream.runtime.spark.observe import OBSERVED, grown, tally
from asyncstream.runtime.spark.stages import Stage
from asyncstream.runtime.spark.state_transfer import route_of, take_up
from asyncstream.runtime.spark.wire.batches import NOW, States
from asyncstream.runtime.spark.wire.envelope import CLOCK, COLUMNS, entering, origin_of, packed
from asyncstream.runtime.spark.wire.keys import GROUPING, group_of, label_of
from asyncstream.runtime.spark.wire.values import dumps_state, loads_each
from asyncstream.runtime.spark.worker.chunks import Chunks
from asyncstream.runtime.spark.worker.connection import acknowledge
from asyncstream.runtime.spark.worker.group_files import GroupFile, GroupFiles
from asyncstream.runtime.spark.worker.group_head import Head, Kind
from asyncstream.runtime.spark.worker.group_log import SMALL, Log, Position, entry_of, kept_tables
from asyncstream.runtime.spark.worker.group_memory import has_room, hold, room, take_back
from asyncstream.runtime.spark.worker.loop import staying
from asyncstream.runtime.spark.worker.operators import StageOperators, Terms, telling_the_cause
from asyncstream.runtime.spark.worker.outputs import OutputTask, in_columns, row_writers
from asyncstream.runtime.spark.worker.shipped import Shipped
from asyncstream.state import Tables
from asyncstream.state.keyed import tell_unasked, unasked
from asyncstream.state.rows import run_through

if TYPE_CHECKING:
    from pyspark.sql import Row

__all__ = ("KeyGroup",)

_tell_unasked_once: Final = cache(tell_unasked)
"""Each worker says it once, though it restores the same steps with every group, and in every micro-batch."""


class _Turn(NamedTuple):
    """
    What a key group has to do in a micro-batch.

    Attributes:
        early: envelopes that were emitted in the micro-batches before, in their order: they come ahead of
            this one's watermark.
        present: those that come behind it.
        kept: the head of its state.
        watermark_ms: where event time comes to.
        transferred: what its operators remember of another run, which they begin with, the event time that
            it had reached, and how far they had seen it come.
        times: of the micro-batch, as Spark tells them.
    """

    group: int
    early: list[Row]
    present: list[Row]
    kept: Head
    watermark_ms: int
    transferred: tuple[States, int, int] | None
    times: Any


class _Done(NamedTuple):
    """
    What has come of it.

    Attributes:
        tables: by step; they are at `position`, and hold nothing that is not in the log.
        timer_ms: what is to be registered with Spark.
        counts: what has been counted, by number.
    """

    parts: StageOperators
    tables: Mapping[str, Tables]
    position: Position
    timer_ms: int | None
    counts: Mapping[int, int]


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
        self._wakes: dict[str, int] = {}
        self._read_bytes = 0
        self._transfer_route = route_of(number)
        self._steps = {step.name: Kind.of(step) for step in stage.steps}
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
        known, terms = self._head(), self._terms
        if known is not None and known.inputs and terms.inputs:
            check_order(known.inputs, terms.inputs)
        mine = self._first_head()._replace(steps=self._steps, unnamed=terms.unnamed, inputs=terms.inputs)
        if known != mine:
            self._state.update((dumps_state(tuple(mine)),))

    def _first_head(self) -> Head:
        return Head({}, MIN_TIMESTAMP, None, self._terms.key_groups, GROUPING)

    def _advance(self, group: int, envelopes: list[Row], times: Any, fired_ms: int | None) -> Iterator[Row]:
        kept = self._head() or self._first_head()
        # the checkpoint that the query began with may have been ahead of Spark
        watermark_ms = max(before(times.getCurrentWatermarkInMs()), kept.watermark_ms)
        transferred: tuple[States, int, int] | None = None
        if envelopes and envelopes[0].route == self._transfer_route:
            [((states, start_ms, seen_ms), _)] = loads_each(envelopes.pop(0).payload)
            transferred, watermark_ms = (states, start_ms, seen_ms), max(watermark_ms, start_ms)
        early = [row for row in envelopes if row.watermark != NOW]
        turn = _Turn(group, early, envelopes[len(early) :], kept, watermark_ms, transferred, times)
        position = Position(*kept.position)
        held, file = take_back(position, self._log), None
        if held is None:
            file = self._files.take(position)
            held = None if file is None else file.tables
        try:
            done = self._run(turn, position, held)
        except Exception:
            is_lost = file is not None and file.is_broken
            if file is not None:
                file.discard()
            if not is_lost:
                raise
            file, done = None, self._run(turn, position, None)
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

    def _run(self, turn: _Turn, position: Position, held: Mapping[str, Tables] | None) -> _Done:
        """
        Have a turn, and write to Spark's state what it has changed, after everything else that may fail.

        Args:
            position: where the log has come to.
            held: the tables of the group at this position; None: they are read.
        """
        clock = ManualClock(self._batch_time_ms(turn.times))
        self._wakes.clear()
        kept_ms = turn.kept.watermark_ms
        # W(N - 1), as far as it matters: the emitter of something at or below it knew it
        known_ms = max([kept_ms, *(row.watermark for row in turn.early)])
        at_exits_ms = known_ms if turn.transferred is None else kept_ms
        parts = StageOperators(self._stage, self._terms, None, turn.group, at_exits_ms)
        operators = parts.operators
        try:
            for _ in parts.open(partial(self._context, clock)):
                pass
            if turn.transferred is None:
                # in this order: pending timers wait for W(N), also those that were due when they were set
                parts.advance_watermark(known_ms)
                self._restore(operators, turn.kept, position, held)
            else:
                states, start_ms, seen_ms = turn.transferred
                take_up(operators, [states])
                if not turn.early or seen_ms < start_ms:  # else what was under way leads there
                    parts.restore_watermark(seen_ms)
                    known_ms = max(known_ms, seen_ms)
            for name, operator in operators.items():
                if found := unasked(operator.tables):
                    _tell_unasked_once(name, found)
            counted = tally(self._terms.counts, operators)
            self._process(parts, turn, known_ms, clock)
            timer_ms = self._next_timer(operators, turn.watermark_ms, clock.now_ms())
            position, tables = self._write(operators, position, turn.watermark_ms, timer_ms)
            counts = grown(self._terms.counts, operators, counted)
        finally:
            for operator in operators.values():
                operator.close()
        return _Done(parts, tables, position, timer_ms, counts)

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

    def _restore(
        self,
        operators: Mapping[str, Operator],
        kept: Head,
        position: Position,
        held: Mapping[str, Tables] | None,
    ) -> None:
        """Have operators go on, with those tables that the worker has held, or with what the log says."""
        for name, state in kept.operators.items():
            operators[name].restore(state)
        if held is not None:
            for name, tables in held.items():
                operators[name].tables.go_on(tables, kept.abouts[name]["cells"])
        elif kept.abouts:
            # what is little is looked at in no time, and this task's part goes with it when it has ended; of
            # many small groups all would be looked at again and again while they are read
            self._read_bytes += position.size
            with nullcontext() if self._read_bytes < SMALL else staying():
                for name, of_step in kept_tables(self._log.read(position), kept.abouts).items():
                    run_through(operators[name].tables.take_over(of_step))

    def _process(self, parts: StageOperators, turn: _Turn, known_ms: int, clock: Clock) -> None:
        """What has come before this micro-batch's watermark, then that, then what has come behind it."""
        for row in turn.early:
            if turn.transferred is not None:
                # calls that were under way come with the watermarks between them
                parts.advance_watermark(row.watermark)
            _process_envelope(parts, row)
        if turn.watermark_ms > known_ms:  # the same once more is no watermark for those timers to fire at
            parts.advance_watermark(turn.watermark_ms)
        for exit_ in parts.exits:
            exit_.watermark = NOW
        if not self._terms.stands_still:
            self._wake(parts.operators, clock.now_ms())
        for row in turn.present:
            _process_envelope(parts, row)

    def _write(
        self, operators: Mapping[str, Operator], position: Position, watermark_ms: int, timer_ms: int | None
    ) -> tuple[Position, dict[str, Tables]]:
        """Write what has changed to Spark's state; gives where the log is then, and the tables, by step."""
        cuts = {name: operator.tables.cut() for name, operator in operators.items() if operator.tables}
        states = {name: operator.snapshot() for name, operator in operators.items() if name not in cuts}
        with self._blaming(operators):
            entry = entry_of(cuts)  # before what it is of is merged
        for name in cuts:
            operators[name].tables.merge()
        with self._blaming(operators):
            position = self._log.write(entry, operators, position)
            head = Head(
                operators=states,
                watermark_ms=watermark_ms,
                timer_ms=timer_ms,
                key_groups=self._terms.key_groups,
                grouping=GROUPING,
                steps=self._steps,
                unnamed=self._terms.unnamed,
                abouts={name: cut.about for name, cut in cuts.items()},
                position=tuple(position),
            )
            self._state.update((dumps_state(tuple(head)),))
        return position, {name: operators[name].tables.handed_on() for name in cuts}

    @contextmanager
    def _blaming(self, operators: Mapping[str, Operator]) -> Iterator[None]:
        """What cannot be pickled in this block is what these remember."""
        try:
            yield
        except Exception as error:
            steps = " or ".join(map(repr, operators))
            raise PipelineError(
                f"what {steps} remembers cannot be pickled, as Spark's state must be: {describe_error(error)}"
            ) from error

    def _wake(self, operators: Mapping[str, Operator], now_ms: int) -> None:
        for name, wake_ms in sorted(self._wakes.items(), key=lambda item: item[1]):
            if wake_ms <= now_ms:
                del self._wakes[name]
                operators[name].advance_clock(now_ms)

    def _next_timer(self, operators: Mapping[str, Operator], watermark_ms: int, now_ms: int) -> int | None:
        """What to register with Spark."""
        due = [due_ms for operator in operators.values() if (due_ms := operator.due_ms()) is not None]
        due_ms = min(due, default=MAX_TIMESTAMP)
        # a stream never gets to the end of time, which is where Java's numbers end, too
        waits = due_ms < LATEST_MS
        if self._terms.processing_time:
            wakes = [*self._wakes.values(), *([now_ms] if waits else [])]
            return max(min(wakes), now_ms + 1) if wakes else None
        # a timer that is due already waits for the next watermark
        return to_spark(max(due_ms, watermark_ms + 1)) + 1 if waits else None

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

    def _context(self, clock: Clock, name: str) -> OperatorContext:
        # a user's function may keep it until it is opened again: it is not to lead to this task
        wakes, is_followed = self._wakes, self._terms.processing_time

        def wake_at(wake_ms: int) -> None:
            if not is_followed:
                raise not_asked_to(name)
            wakes[name] = min(wake_ms, wakes.get(name, wake_ms))

        return OperatorContext(name, clock=clock, wake_at=wake_at, may_end=False)


def _process_envelope(parts: StageOperators, row: Row) -> None:
    for entered in entering(row.route, row.payload):
        parts.process(row.route, entered.values, entered.timestamps)


def _processor(shipped: Shipped[tuple[Stage, Terms, int, tuple[OutputTask, ...]]]) -> KeyGroup:
    acknowledge()  # not in `init`, which is called when rows have come
    return KeyGroup(*shipped.value)
