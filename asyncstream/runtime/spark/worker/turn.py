"""
The turn of a key group in a micro-batch: what its operators do, from the state before to the state after.

For one group, in the order in which the embedded engine would see it::

    what W(N) made timers emit in the stage before   W(N): timers fire   rows(N)   the next state

`W(N)` is Spark's watermark less one millisecond: Spark's is max - delay, Flink's and ours max - delay - 1.
For the same reason our timer for t is Spark's for t + 1. Both are as `clocks` shows them to Spark.

Processing time stands still during a turn, at what Spark has noted for the micro-batch, and advances after
W(N) and before rows(N).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from typing import TYPE_CHECKING, Final, NamedTuple

from asyncstream.clock import Clock, ManualClock
from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.errors import CheckpointError, PipelineError, describe_error, naming_step
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.runtime.spark.clocks import LATEST_MS, to_spark
from asyncstream.runtime.spark.compatibility import not_asked_to
from asyncstream.runtime.spark.observe import grown, tally
from asyncstream.runtime.spark.stages import Stage
from asyncstream.runtime.spark.state_transfer import take_up
from asyncstream.runtime.spark.wire.batches import NOW, States
from asyncstream.runtime.spark.wire.envelope import entering
from asyncstream.runtime.spark.wire.values import dumps_state
from asyncstream.runtime.spark.worker.group_head import Head
from asyncstream.runtime.spark.worker.group_log import SMALL, Log, Position, entry_of, kept_tables
from asyncstream.runtime.spark.worker.loop import staying
from asyncstream.runtime.spark.worker.operators import StageOperators, Terms
from asyncstream.state import Tables
from asyncstream.state.keyed import tell_unasked
from asyncstream.state.rows import run_through

if TYPE_CHECKING:
    from pyspark.sql import Row

__all__ = ("Done", "Turn", "Turns")

_tell_unasked_once: Final = cache(tell_unasked)
"""Each worker says it once, though it restores the same steps with every group, and in every micro-batch."""


class Turn(NamedTuple):
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
        now_ms: processing time.
    """

    group: int
    early: list[Row]
    present: list[Row]
    kept: Head
    watermark_ms: int
    transferred: tuple[States, int, int] | None
    now_ms: int


class Done(NamedTuple):
    """
    What has come of it.

    Attributes:
        head: to be written to Spark's state: it says where the log is.
        tables: by step; they are at `position`, and hold nothing that is not in the log.
        timer_ms: what is to be registered with Spark.
        counts: what has been counted, by number.
    """

    parts: StageOperators
    head: bytes
    tables: Mapping[str, Tables]
    position: Position
    timer_ms: int | None
    counts: Mapping[int, int]


class Turns:
    """
    The turns of the groups of one task, with the operators of a stage.

    Args:
        log: into which is put what changes.
        blank: the head of a group of which nothing is remembered.
    """

    def __init__(self, stage: Stage, terms: Terms, log: Log, blank: Head) -> None:
        self._stage = stage
        self._terms = terms
        self._log = log
        self._blank = blank
        self._wakes: dict[str, int] = {}
        self._read_bytes = 0

    def run(self, turn: Turn, held: Mapping[str, Tables] | None) -> Done:
        """
        Have a turn, and write to the log what it has changed, after everything else that may fail.

        Args:
            held: the tables of the group where its log is; None: they are read.
        """
        clock = ManualClock(turn.now_ms)
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
                self._restore(operators, turn.kept, held)
            else:
                states, start_ms, seen_ms = turn.transferred
                take_up(operators, [states])
                if not turn.early or seen_ms < start_ms:  # else what was under way leads there
                    parts.restore_watermark(seen_ms)
                    known_ms = max(known_ms, seen_ms)
            for name, operator in operators.items():
                if found := operator.unasked():
                    _tell_unasked_once(name, found)
            counted = tally(self._terms.counts, operators)
            self._process(parts, turn, known_ms)
            timer_ms = self._next_timer(operators, turn)
            head, position, tables = self._write(operators, turn, timer_ms)
            counts = grown(self._terms.counts, operators, counted)
        finally:
            for operator in operators.values():
                operator.close()
        return Done(parts, head, tables, position, timer_ms, counts)

    def _restore(
        self, operators: Mapping[str, Operator], kept: Head, held: Mapping[str, Tables] | None
    ) -> None:
        """Have operators go on, with those tables that the worker has held, or with what the log says."""
        for name, state in kept.operators.items():
            operators[name].restore(state)
        if held is not None:
            for name, tables in held.items():
                with naming_step(name, CheckpointError):
                    operators[name].tables.go_on(tables, kept.abouts[name]["cells"])
        elif kept.abouts:
            position = Position(*kept.position)
            # what is little is looked at in no time, and this task's part goes with it when it has ended; of
            # many small groups all would be looked at again and again while they are read
            self._read_bytes += position.size
            with nullcontext() if self._read_bytes < SMALL else staying():
                for name, of_step in kept_tables(self._log.read(position), kept.abouts).items():
                    with naming_step(name, CheckpointError):
                        run_through(operators[name].tables.take_over(of_step))

    def _process(self, parts: StageOperators, turn: Turn, known_ms: int) -> None:
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
            self._wake(parts.operators, turn.now_ms)
        for row in turn.present:
            _process_envelope(parts, row)

    def _write(
        self, operators: Mapping[str, Operator], turn: Turn, timer_ms: int | None
    ) -> tuple[bytes, Position, dict[str, Tables]]:
        """Write what has changed to the log; gives the head, where the log is then, and tables by step."""
        cuts = {name: operator.tables.cut() for name, operator in operators.items() if operator.tables}
        states = {name: operator.snapshot() for name, operator in operators.items() if name not in cuts}
        with _blaming(operators):
            entry = entry_of(cuts)  # before what it is of is merged
        for name in cuts:
            operators[name].tables.merge()
        with _blaming(operators):
            position = self._log.write(entry, operators, Position(*turn.kept.position))
            head = self._blank._replace(
                operators=states,
                watermark_ms=turn.watermark_ms,
                timer_ms=timer_ms,
                abouts={name: cut.about for name, cut in cuts.items()},
                position=tuple(position),
            )
            written = dumps_state(tuple(head))
        return written, position, {name: operators[name].tables.handed_on() for name in cuts}

    def _wake(self, operators: Mapping[str, Operator], now_ms: int) -> None:
        for name, wake_ms in sorted(self._wakes.items(), key=lambda item: item[1]):
            if wake_ms <= now_ms:
                del self._wakes[name]
                operators[name].advance_clock(now_ms)

    def _next_timer(self, operators: Mapping[str, Operator], turn: Turn) -> int | None:
        """What to register with Spark."""
        due = [due_ms for operator in operators.values() if (due_ms := operator.due_ms()) is not None]
        due_ms = min(due, default=MAX_TIMESTAMP)
        # a stream never gets to the end of time, which is where Java's numbers end, too
        waits = due_ms < LATEST_MS
        if self._terms.processing_time:
            wakes = [*self._wakes.values(), *([turn.now_ms] if waits else [])]
            return max(min(wakes), turn.now_ms + 1) if wakes else None
        # a timer that is due already waits for the next watermark
        return to_spark(max(due_ms, turn.watermark_ms + 1)) + 1 if waits else None

    def _context(self, clock: Clock, name: str) -> OperatorContext:
        # a user's function may keep it until it is opened again: it is not to lead to this task
        wakes, is_followed = self._wakes, self._terms.processing_time

        def wake_at(wake_ms: int) -> None:
            if not is_followed:
                raise not_asked_to(name)
            wakes[name] = min(wake_ms, wakes.get(name, wake_ms))

        return OperatorContext(name, clock=clock, wake_at=wake_at, may_end=False)


@contextmanager
def _blaming(operators: Mapping[str, Operator]) -> Iterator[None]:
    """What cannot be pickled in this block is what these remember."""
    try:
        yield
    except Exception as error:
        steps = " or ".join(map(repr, operators))
        raise PipelineError(
            f"what {steps} remembers cannot be pickled, as Spark's state must be: {describe_error(error)}"
        ) from error


def _process_envelope(parts: StageOperators, row: Row) -> None:
    for entered in entering(row.route, row.payload):
        parts.process(row.route, entered.values, entered.timestamps)
