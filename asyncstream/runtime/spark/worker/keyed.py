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

A stream that follows processing time besides runs in Spark's other mode, in which only the clock fires timers
and every trigger makes a micro-batch, with rows or without. Groups that wait for event time are then woken in
each of them. Processing time stands still during a micro-batch, and advances after W(N) and before rows(N).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncstream.clock import Clock, ManualClock, SystemClock
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.errors import CheckpointError, PipelineError, describe_error
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.plan import Graph, OperatorStep
from asyncstream.runtime.spark.clocks import LATEST_MS, before, to_spark
from asyncstream.runtime.spark.compatibility import not_asked_to
from asyncstream.runtime.spark.observe import OBSERVED, grown, tally
from asyncstream.runtime.spark.stages import Stage
from asyncstream.runtime.spark.state_transfer import route_of, take_up
from asyncstream.runtime.spark.wire.batches import NOW, States
from asyncstream.runtime.spark.wire.envelope import CLOCK, COLUMNS, packed, unpack
from asyncstream.runtime.spark.wire.keys import GROUPING, group_of, label_of
from asyncstream.runtime.spark.wire.values import Classes, dumps, loads
from asyncstream.runtime.spark.worker.group_log import (
    Log,
    Position,
    entry_of,
    keep,
    kept_tables,
    restore,
    take_back,
)
from asyncstream.runtime.spark.worker.loop import settle
from asyncstream.runtime.spark.worker.operators import StageOperators, Terms, telling_the_cause
from asyncstream.state import Tables
from asyncstream.state.schema import Schema, compare

if TYPE_CHECKING:
    from pyspark.sql import Row

__all__ = ("KeyGroup", "Kind", "remembered")


WAY_OUT = (
    "undo the change, or save what there is with the program that made it, plan.save_checkpoint(...), and go "
    "on from there with a new checkpointLocation and start_from=Checkpoints(...), which takes "
    "renamed={old: new}, migrate={step: function} and allow_dropped=[...]"
)


class Kind(NamedTuple):
    """
    What a step is, as far as its state depends on it.

    Attributes:
        kind: what the step does.
        operator: the class whose state it is.
        schema: what the state consists of, as plain data.
    """

    kind: str
    operator: str
    schema: dict[str, Any] | None

    @classmethod
    def of(cls, step: OperatorStep) -> Kind:
        schema = None if step.schema is None else step.schema.plain()
        return cls(step.kind, step.spec.operator.__name__, schema)

    def difference(self, now: Kind) -> str:
        """Why a step that is `now` cannot use the state, in words; empty if it can."""
        if self.kind != now.kind:
            return f"it was a step {self.kind!r} and is a step {now.kind!r}"
        if self.schema is None or now.schema is None:
            return ""
        if self == now and [*self.schema["parts"]] == [*now.schema["parts"]]:
            return ""
        change = compare(Schema.of(self.schema), Schema.of(now.schema))
        if change.conflicts or change.added or change.removed or change.reordered:
            return str(change)
        return "" if self.operator == now.operator else str(change) or "it keeps its state in another form"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(repr(name.split(" ")[0]) for name in names) or "none"


class _Kept(NamedTuple):
    """
    The head.

    Attributes:
        operators: what those have handed over that keep no tables, by step name.
        watermark_ms: the last one that these operators saw.
        timer_ms: the timer that is registered with Spark.
        key_groups: how many there are, which says what keys are in this one.
        grouping: the rule by which keys were divided; 0 is that of checkpoints which do not tell.
        steps: what the operators were.
        unnamed: those of all steps that had their names from their places.
        abouts: of those that keep tables, what a snapshot says besides.
        position: where their log has come to.
    """

    operators: States
    watermark_ms: int
    timer_ms: int | None
    key_groups: int
    grouping: int = 0
    steps: Mapping[str, Kind] = MappingProxyType({})
    unnamed: tuple[str, ...] = ()
    abouts: Mapping[str, Any] = MappingProxyType({})
    position: tuple[Any, ...] = ()

    def check_steps(self, steps: Mapping[str, Kind], unnamed: tuple[str, ...]) -> None:
        """
        Raises:
            CheckpointError: if what was remembered is not for these steps.
        """
        missing = [name for name in (*self.operators, *self.abouts) if name not in steps]
        if missing:
            raise CheckpointError(
                "this stream's checkpoint holds what steps remember that this pipeline does not have, or has "
                f"elsewhere: {', '.join(map(repr, missing))}; {WAY_OUT}"
            )
        for name, was in self.steps.items():
            difference = was.difference(steps[name])
            if difference:
                raise CheckpointError(
                    f"step {name!r} has changed and cannot use what this stream's checkpoint holds of it: "
                    f"{difference}; {WAY_OUT}"
                )
        if self.steps and self.unnamed != unnamed:
            raise CheckpointError(
                "steps have come or gone, and some that remember something have their names from their "
                "places only, so they would find each other's state: there were "
                f"{_listed(self.unnamed)}, and there are {_listed(unnamed)}; give them names, name=..., "
                f"and {WAY_OUT}"
            )

    def check(self, key_groups: int) -> None:
        """
        Raises:
            PipelineError: if keys are divided otherwise by now.
        """
        if self.key_groups != key_groups:
            raise PipelineError(
                f"this stream's checkpoint has {self.key_groups} key groups, and the plan {key_groups}: what "
                "belongs to a key would be looked for in another one; say "
                f"on_spark(..., key_groups={self.key_groups})"
            )
        if self.grouping != GROUPING:
            raise PipelineError(
                "this stream's checkpoint is of another version of asyncstream, which divided keys into "
                "groups by another rule: what belongs to a key would be looked for in the wrong group. Save "
                "it with that version, plan.save_checkpoint(...), and go on from there with a new "
                "checkpointLocation and on_spark(..., start_from=...)"
            )


def remembered(graph: Graph, head: bytes, entries: Sequence[bytes], classes: Classes) -> States:
    """
    What the steps of a stage remember of a key group, as snapshots.

    Args:
        entries: those of its log.
    """
    kept = _Kept(*loads(head, classes))
    kept.check(kept.key_groups)
    snapshots: States = {}
    steps = {step.name: step for step in graph if isinstance(step, OperatorStep)}
    kept.check_steps({name: Kind.of(step) for name, step in steps.items()}, kept.unnamed)
    for name, state in kept.operators.items():
        step = steps[name]
        operator = step.spec.build()
        operator.open(OperatorContext(name))
        operator.advance_watermark(kept.watermark_ms)  # what is late by it is no part of a snapshot
        operator.restore(state)
        snapshots[name] = operator.snapshot()
        operator.close()
    log = (loads(entry, classes) for entry in entries)
    for name, tables in kept_tables(log, kept.abouts).items():
        snapshots[name] = tables.snapshot()
    return snapshots


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
        self._wakes: dict[str, int] = {}
        self._transfer_route = route_of(number)
        self._steps = {step.name: Kind.of(step) for step in stage.steps}

    def init(self, handle: Any) -> None:
        from pyspark.sql.types import BinaryType, StructField, StructType

        settle()
        self._handle = handle
        blob = StructType([StructField("blob", BinaryType())])
        self._state = handle.getValueState("operators", blob)
        self._log = Log(handle.getListState("log", blob), self._terms.classes)

    def handleInputRows(self, key: Any, rows: Iterable[Row], timerValues: Any) -> Iterator[Row]:
        mine = {route.number for route in self._stage.entries} | {self._transfer_route}
        envelopes = []
        # all of them: what is for others must keep its order too
        for row in sorted(rows, key=lambda row: (row.watermark, row.origin, row.sequence)):
            if row.route in mine:
                envelopes.append(row)
            elif row.route != CLOCK:
                yield row
        if envelopes:
            with telling_the_cause():
                yield from self._advance(group_of(key[0]), envelopes, timerValues, None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        with telling_the_cause():
            fired_ms = expiredTimerInfo.getExpiryTimeInMs()
            yield from self._advance(group_of(key[0]), [], timerValues, fired_ms)

    def close(self) -> None:
        """Nothing is open between two groups."""

    def _advance(self, group: int, envelopes: list[Row], times: Any, fired_ms: int | None) -> Iterator[Row]:
        blob = self._state.get()
        groups = self._terms.key_groups
        kept = _Kept({}, MIN_TIMESTAMP, None, groups, GROUPING)
        if blob is not None:
            kept = _Kept(*loads(blob[0], self._terms.classes))
            kept.check(groups)
            kept.check_steps(self._steps, self._terms.unnamed)
        # the checkpoint that the query began with may have been ahead of Spark
        watermark_ms = max(before(times.getCurrentWatermarkInMs()), kept.watermark_ms)
        transferred: States | None = None
        if envelopes and envelopes[0].route == self._transfer_route:
            (transferred, start_ms), _ = unpack(envelopes.pop(0).payload)
            watermark_ms = max(watermark_ms, start_ms)
        clock: Clock = SystemClock()
        if self._terms.processing_time:
            clock = ManualClock(times.getCurrentProcessingTimeInMs())
        self._wakes.clear()
        early = [row for row in envelopes if row.watermark != NOW]
        # W(N - 1), as far as it matters: the emitter of something at or below it knew it
        known_ms = max([kept.watermark_ms, *(row.watermark for row in early)])
        parts = StageOperators(
            self._stage, self._terms, None, group, known_ms if transferred is None else kept.watermark_ms
        )
        operators = parts.operators
        place = (self._number, group)
        position = Position(*kept.position)
        held = take_back(place, position)
        try:
            for _ in parts.open(partial(self._context, clock)):
                pass
            if transferred is None:
                # in this order: pending timers wait for W(N), also those that were due when they were set
                parts.advance_watermark(known_ms)
                for name, state in kept.operators.items():
                    operators[name].restore(state)
                self._go_on(operators, kept, held)
            else:
                take_up(operators, [transferred])
                if not early:  # else the watermarks of what was under way lead there
                    parts.restore_watermark(start_ms)
                    known_ms = max(known_ms, start_ms)
            counted = tally(self._terms.counts, operators)
            for row in early:
                if transferred is not None:  # calls that were under way come with the watermarks between them
                    parts.advance_watermark(row.watermark)
                self._process(parts, row)
            if watermark_ms > known_ms:  # the same once more is no watermark for those timers to fire at
                parts.advance_watermark(watermark_ms)
            for exit_ in parts.exits:
                exit_.watermark = NOW
            self._wake(operators, clock.now_ms())
            for row in envelopes[len(early) :]:
                self._process(parts, row)
            timer_ms = self._next_timer(operators, watermark_ms, clock.now_ms())
            cuts = {name: operator.tables.cut() for name, operator in operators.items() if operator.tables}
            states = {name: operator.snapshot() for name, operator in operators.items() if name not in cuts}
            for name in cuts:
                operators[name].tables.merge()
            with self._blaming(operators):
                position = self._log.write(entry_of(cuts), operators, position)
                head = _Kept(
                    states,
                    watermark_ms,
                    timer_ms,
                    groups,
                    GROUPING,
                    self._steps,
                    self._terms.unnamed,
                    {name: cut.about for name, cut in cuts.items()},
                    tuple(position),
                )
                self._state.update((dumps(tuple(head)),))
            tables = {name: operators[name].tables for name in cuts}
            if not any(table.is_bound for of_step in tables.values() for table in of_step.every()):
                keep(place, position, tables)
            counts = grown(self._terms.counts, operators, counted)
        finally:
            for operator in operators.values():
                operator.close()
        self._register(timer_ms, kept.timer_ms, fired_ms)
        yield from self._rows(group, parts, counts)

    def _go_on(
        self, operators: Mapping[str, Operator], kept: _Kept, held: Mapping[str, Tables] | None
    ) -> None:
        """Have operators go on with their tables: those that the worker has held, or what the log says."""
        if held is not None:
            for name, tables in held.items():
                operators[name].tables.go_on(tables, kept.abouts[name]["cells"])
                operators[name].restored()
        elif kept.abouts:
            for name, tables_of in kept_tables(self._log.read(), kept.abouts).items():
                restore(operators[name], tables_of)

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

    def _process(self, parts: StageOperators, row: Row) -> None:
        parts.heads[row.route].process_batch(*unpack(row.payload))

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
        origin = (self._number << 32) + group
        envelopes = ((leaving, *part) for leaving in parts.take() for part in packed(leaving))
        for sequence, (leaving, count, payload) in enumerate(envelopes):
            number, label = leaving.route.number, label_of(leaving.group)
            yield make(number, label, origin, sequence, leaving.watermark, count, payload)
        for number, count in counts.items():
            yield make(OBSERVED, number, origin, 0, NOW, count, b"")

    def _context(self, clock: Clock, name: str) -> OperatorContext:
        def wake_at(wake_ms: int) -> None:
            if not self._terms.processing_time:
                raise not_asked_to(name)
            self._wakes[name] = min(wake_ms, self._wakes.get(name, wake_ms))

        return OperatorContext(name, clock, wake_at)
