"""
The automaton that a pattern is: what an element makes of each match that has begun.

Theory
------
A *run* is the beginning of a match. It is at a stage of which it has taken `size` elements. An element may

* be taken, if the stage takes more and its condition holds;
* be passed over, if it does not hold and others may come between;
* end the stage, if that has enough, and be for the next stage what it would have been for this one. The next
  stage may take it, or pass it over, and then the run stays there.

More than one of these may be true: then one run becomes several. One that has passed something over while its
stage had enough waits for another element of this stage and does not end it: the run that ended it at the
time is the one that does. So no match is found twice. A run that nothing is true of is over.

An optional stage has enough before it has taken any element, too. What must be absent is no stage of the
automaton: it *bars* the way to the stage behind it. A run that waits for that stage is over with an element
that is barred and not taken; and with the next element, if it is barred as such, whatever the stage wants.

Each element may also begin a run. A run is a match when its last stage has enough, or would have after
optional ones, and goes on if there is more to take. If something must be absent at the end, it waits there
for its time to be over, and is a match then.

Runs are in the order of the elements that they have taken: of two the one is first that took an element
which the other passed over. So matches of one element come in that order, too, those that began first before
others.

After the NFA of Flink's CEP library, whose states are these. Its shared buffer of elements, which saves
memory where many long runs share their beginnings, was left out: each run has a list of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from asyncstream.keyed.pattern import Pattern, Stage
from asyncstream.operators.results import Kinds, not_a_value

__all__ = ("Automaton", "Run")


class Run(NamedTuple):
    """
    The beginning of a match.

    Attributes:
        stage: the number of the stage that it is at, from 0, absent ones not counted; behind the last one it
            waits for its time to be over.
        size: how many elements it has taken for this stage.
        passed: something was passed over since the last was taken.
        start_ms, end_ms: event time of the first and the last element.
        taken: (number of the stage, element), in the order of event time.
        first, last: which of the elements of its time the first one is, and the last one, from 0.
        again: it has taken what the run before it has, and waits for another stage.
    """

    stage: int
    size: int
    passed: bool
    start_ms: int
    end_ms: int
    taken: tuple[tuple[int, Any], ...]
    first: int = 0
    last: int = 0
    again: bool = False

    @property
    def start(self) -> tuple[int, int]:
        """Where the first element is, in the order in which elements are matched."""
        return self.start_ms, self.first

    @property
    def end(self) -> tuple[int, int]:
        """Where the last element is."""
        return self.end_ms, self.last


_NOTHING: Final = Run(0, 0, False, 0, 0, ())


class Automaton:
    """Makes of runs and an element the runs after it, and matches."""

    def __init__(self, pattern: Pattern[Any]) -> None:
        self._stages: list[Stage] = []
        self._absent: list[list[Stage]] = [[]]  # before each stage, and behind the last
        for stage in pattern.stages:
            if stage.absent:
                self._absent[-1].append(stage)
            else:
                self._stages.append(stage)
                self._absent.append([])
        self._ends_absent = bool(self._absent[-1])
        self._end = len(self._stages)
        # whether nothing need be taken behind a stage
        self._may_end = [all(later.optional for later in self._stages[n + 1 :]) for n in range(self._end)]
        self._within_ms = pattern.within_ms
        self._kinds = Kinds()

    def advance(self, runs: Sequence[Run], value: Any, at: tuple[int, int]) -> tuple[list[Run], list[Run]]:
        """
        What an element makes of runs, in their order, none of them timed out: the runs after it, and those
        that are a match with it.

        Args:
            at: its event time, and which of the elements of this time it is; not before any other.
        """
        after: list[Run] = []
        matches: list[Run] = []
        passed: list[Run] = []
        for run in runs:
            if not run.again:
                after += passed  # behind all that took this element, of those that had taken the same
                passed = []
            self._advance(run, value, at, after, passed, matches)
        after += passed
        self._advance(_NOTHING, value, at, after, [], matches)
        return after, matches

    def is_timed_out(self, run: Run, at_ms: float) -> bool:
        """Whether no element of this time or later can be taken any more."""
        return self._within_ms is not None and at_ms - run.start_ms >= self._within_ms

    def ends_ms(self, run: Run) -> int | None:
        """When a run times out; None: never."""
        return None if self._within_ms is None else run.start_ms + self._within_ms

    def is_whole(self, run: Run) -> bool:
        """Whether a run has all that it needs: it is a match, or becomes one if nothing absent comes."""
        return run.stage == self._end or (self._may_end[run.stage] and self._has_enough(run.stage, run.size))

    def matches_in_the_end(self, run: Run) -> bool:
        """Whether a run is a match if it times out."""
        # of one that has passed something over another has gone on to the end
        is_behind = run.stage == self._end or not run.passed
        return self._ends_absent and is_behind and self.is_whole(run)

    def elements(self, run: Run) -> dict[str, list[Any]]:
        """What a run has taken, by the name of the stage."""
        taken: dict[str, list[Any]] = {}
        for number, value in run.taken:
            taken.setdefault(self._stages[number].name, []).append(value)
        return taken

    def _advance(
        self,
        run: Run,
        value: Any,
        at: tuple[int, int],
        after: list[Run],
        passed: list[Run],
        matches: list[Run],
    ) -> None:
        number, size, waited, has_begun = run.stage, run.size, run.passed, bool(run.taken)
        while True:
            absent = None if size else self._absent[number]
            if absent and not waited and self._is_any(absent, run, value, strict=True):
                break
            if number == self._end:
                if has_begun and absent and not self._is_any(absent, run, value, strict=False):
                    passed.append(_waiting(run, number, 0, again=bool(passed)))
                break
            stage = self._stages[number]
            if stage.most is None or size < stage.most:
                if self._holds(stage, run, value):
                    self._take(run, number, size, value, at, after, matches)
                elif (
                    has_begun
                    and not (stage.consecutive if size else stage.strict)
                    and not (absent and self._is_any(absent, run, value, strict=False))
                ):
                    passed.append(_waiting(run, number, size, again=bool(passed)))
            if waited or not self._has_enough(number, size):
                break
            number, size = number + 1, 0

    def _has_enough(self, number: int, size: int) -> bool:
        stage = self._stages[number]
        return size >= stage.least or (stage.optional and not size)

    def _is_any(self, absent: Sequence[Stage], run: Run, value: Any, *, strict: bool) -> bool:
        """Whether an element is one of those that must be absent."""
        return any(stage.strict == strict and self._holds(stage, run, value) for stage in absent)

    def _take(
        self,
        run: Run,
        number: int,
        count: int,
        value: Any,
        at: tuple[int, int],
        after: list[Run],
        matches: list[Run],
    ) -> None:
        """Let a run take an element, of stage `number`, of which it has `count`."""
        start_ms, first = run.start if run.taken else at
        end_ms, last = at
        elements = (*run.taken, (number, value))
        taken = Run(number, count + 1, False, start_ms, end_ms, elements, first, last)
        if self.is_whole(taken) and not self._ends_absent:
            matches.append(taken)
        if taken.size != self._stages[number].most:
            after.append(taken)
        elif number + 1 < self._end or self._ends_absent:
            after.append(Run(number + 1, 0, False, start_ms, end_ms, elements, first, last))

    def _holds(self, stage: Stage, run: Run, value: Any) -> bool:
        if stage.where is not None:
            outcome = stage.where(value)
        elif stage.given is not None:
            outcome = stage.given(value, self.elements(run))
        if type(outcome) not in self._kinds.known and self._kinds.first_deferred([outcome]) is not None:
            raise not_a_value([outcome], "a condition is a plain function; await in an async_map before")
        return bool(outcome)


def _waiting(run: Run, number: int, size: int, *, again: bool) -> Run:
    """A run that has passed something over."""
    if run.passed and run.again == again:
        return run
    return Run(number, size, True, run.start_ms, run.end_ms, run.taken, run.first, run.last, again)
