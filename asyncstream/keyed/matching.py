"""
Matches of a pattern in the elements of each key, in the order of event time.

Elements wait until the watermark has passed, so that they are matched in their order, those of one time as
they came. What is too late for that goes to `late`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import is_
from typing import Any, Final, Literal, TypeAlias

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.eventtime import check_timestamp
from asyncstream.keyed.base import LATE, TimedStep
from asyncstream.keyed.nfa import Automaton, Run
from asyncstream.keyed.pattern import Match, Pattern, Stage
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.spec import KeyBy, KeyedSpec
from asyncstream.state import MISSING, SLICE, Cell, ListDescriptor, ValueDescriptor
from asyncstream.state.schema import Schema

__all__ = ("TIMED_OUT", "Matching", "MatchingSpec", "Skip")

TIMED_OUT: Final = "timed_out"
"""Tag of the output for what began and did not become a match in time."""

Skip: TypeAlias = Literal["none", "past_last_event"]
"""
What a match means for others of its key: nothing; or whatever began before its end is given up. Of several
with the same last element the first is given then.
"""

_check = partial(check_timestamp, "a pattern")


class Matching(TimedStep):
    """
    Emits each match when the watermark reaches its last element, with that element's timestamp; a match of a
    pattern that ends with what is absent when its time is over, with that time.

    What has begun and cannot be a match in time any more goes to `timed_out`, with the time at which it was
    over; not what was a match already and might have become a longer one. What might have gone on in several
    ways goes there for each of them.
    Snapshot holds: elements that wait for the watermark, what has begun, and timers.
    """

    def __init__(self, key_by: KeyBy, pattern: Pattern[Any], skip: Skip) -> None:
        super().__init__(key_by)
        self._automaton = Automaton(pattern)
        self._skips = skip == "past_last_event"
        self._timed_out = 0
        self._soonest_ms = MIN_TIMESTAMP  # what came out before this time would be late
        self._within_ms = MAX_TIMESTAMP if pattern.within_ms is None else pattern.within_ms
        self._within_before_ms = MAX_TIMESTAMP  # also of a snapshot that does not say
        self.tables.declare_cell("timed_out", Cell.of(self, "_timed_out", "sum"))
        came_with = partial(setattr, self, "_within_before_ms")
        self.tables.declare_cell("within_ms", Cell(lambda: self._within_ms, came_with, "max"))

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._state.state(ListDescriptor[Any]("waiting"))
        self._waiting = self.tables["state/waiting"]  # with the time of the elements as namespace
        self._state.state(ValueDescriptor[Any]("runs"))
        self._runs = self.tables["state/runs"]
        self.tables.on_restored(self._setting_timers)

    def advance_watermark(self, timestamp: int) -> None:
        self._soonest_ms = min(self._timers.watermark + 1, timestamp)
        super().advance_watermark(timestamp)

    def _setting_timers(self) -> Iterator[None]:
        """Has what began when a pattern was given more time end in time."""
        before, self._within_before_ms = self._within_before_ms, self._within_ms
        if self._within_ms < before:
            kept = iter(self._runs.each())
            while some := list(islice(kept, SLICE)):
                for key, runs in some:
                    self._set_timer(key, Run(*runs[0]))
                yield

    def metrics(self) -> dict[str, int]:
        return {**super().metrics(), "timed_out": self._timed_out}

    def _take(self, value: Any, timestamp: int | None) -> None:
        at_ms, key = _check(timestamp), self._state.key
        if at_ms <= self._timers.watermark:
            self._leave_out(LATE, value, timestamp)
            return
        waiting = self._waiting.get(at_ms, key)
        if waiting is MISSING:
            self._waiting.put(at_ms, key, [value])
        else:
            waiting.append(value)
        self._timers.event.register(at_ms, key)

    def _on_timer(self, timestamp: int, key: Any) -> None:
        values = self._waiting.get(timestamp, key)
        self._waiting.remove(timestamp, key)
        kept = self._runs.peek(None, key)
        before = runs = [] if kept is MISSING else [Run(*run) for run in kept]
        if before:
            at_ms = max(timestamp, self._soonest_ms)
            runs = self._time_out(before, at_ms, at_ms)
        for order, value in enumerate(() if values is MISSING else values):
            try:
                runs, matches = self._automaton.advance(runs, value, (timestamp, order))
            except BaseException as error:
                self._out.flush()
                self.fail_on(value, error)
            if matches and self._skips:
                runs, matches = [], matches[:1]
            for match in matches:
                self._out.emit(self._shown(match))
        if timestamp == MAX_TIMESTAMP:  # no later time will come, and a timer for this one would fire at once
            runs = self._time_out(runs, math.inf, timestamp)
        if runs:
            if len(runs) != len(before) or not all(map(is_, runs, before)):  # else they are not written again
                self._runs.put(None, key, [tuple(run) for run in runs])
            self._set_timer(key, runs[0])
        elif before:
            self._runs.remove(None, key)

    def _set_timer(self, key: Any, first: Run) -> None:
        """Have the first of the runs of a key end in time."""
        ends_ms = self._automaton.ends_ms(first)
        if ends_ms is not None:
            self._timers.event.register(min(ends_ms, MAX_TIMESTAMP), key)

    def _time_out(self, runs: list[Run], reached_ms: float, at_ms: int) -> list[Run]:
        """
        Those of the runs that go on, when event time has come to `reached_ms`; the others are told, at
        `at_ms`.
        """
        going: list[Run] = []
        given_up: tuple[float, int] = (-math.inf, 0)  # what began up to there
        for run in runs:
            if not self._automaton.is_timed_out(run, reached_ms):
                going.append(run)
            elif run.start <= given_up:
                continue
            elif self._automaton.matches_in_the_end(run):
                self._out.extend([self._shown(run)], at_ms)
                if self._skips:
                    given_up = run.end
            elif not self._automaton.is_whole(run):
                self._timed_out += 1
                if TIMED_OUT in self.side:
                    self._out.aside(TIMED_OUT, self._shown(run), at_ms)
        return [run for run in going if run.start > given_up]

    def _shown(self, run: Run) -> Match[Any, Any]:
        return Match(self._state.key, self._automaton.elements(run), run.start_ms, run.end_ms)


@dataclass(frozen=True)
class MatchingSpec(KeyedSpec):
    """
    Finds a pattern in the elements of each key.

    Attributes:
        key_by: gives the key of an element.
        pattern: what matches look like.
        skip: what a match means for others.
    """

    pattern: Pattern[Any]
    skip: Skip = "none"

    operator = Matching
    counters = ("late_dropped", "timed_out")

    def build(self) -> Matching:
        return Matching(self.key_by, self.pattern, self.skip)

    @property
    def schema(self) -> Schema:
        stages = [_form(stage) for stage in self.pattern.stages]
        return Schema(form={"stages": stages}, settings={"within": self.pattern.within_ms, "skip": self.skip})


def _form(stage: Stage) -> list[Any]:
    """A stage as it stands in checkpoints."""
    form = [stage.name, stage.verb, stage.least, stage.most, stage.consecutive]
    return [*form, "optional"] if stage.optional else form
