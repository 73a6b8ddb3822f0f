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

Each element may also begin a run. A run whose last stage has enough is a match, and goes on if the stage
takes more.

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
from asyncstream.operators.results import is_deferred, not_a_value

__all__ = ("Automaton", "Run")


class Run(NamedTuple):
    """
    The beginning of a match.

    Attributes:
        stage: the number of the stage that it is at, from 0.
        size: how many elements it has taken for this stage.
        passed: something was passed over since the stage has enough.
        start_ms, end_ms: event time of the first and the last element.
        taken: (number of the stage, element), in the order of event time.
    """

    stage: int
    size: int
    passed: bool
    start_ms: int
    end_ms: int
    taken: tuple[tuple[int, Any], ...]


_NOTHING: Final = Run(0, 0, False, 0, 0, ())


class Automaton:
    """
    Makes of runs and an element the runs after it, and matches.

    Args:
        pattern: what matches look like.
    """

    def __init__(self, pattern: Pattern[Any]) -> None:
        self._stages = pattern.stages
        self._within_ms = pattern.within_ms

    def advance(self, runs: Sequence[Run], value: Any, at_ms: int) -> tuple[list[Run], list[Run]]:
        """
        What an element makes of runs.

        Args:
            runs: in their order, none of them timed out.
            at_ms: the element's event time, not before that of any other.

        Returns:
            The runs after it, and those that are a match with it.
        """
        after: list[Run] = []
        matches: list[Run] = []
        for run in runs:
            self._advance(run, value, at_ms, after, matches)
        if self._holds(self._stages[0], _NOTHING, value):
            self._take(_NOTHING, 0, 0, value, at_ms, after, matches)
        return after, matches

    def is_timed_out(self, run: Run, at_ms: float) -> bool:
        """Whether no element of this time or later can be taken any more."""
        return self._within_ms is not None and at_ms - run.start_ms >= self._within_ms

    def ends_ms(self, run: Run) -> int | None:
        """When a run times out; None: never."""
        return None if self._within_ms is None else run.start_ms + self._within_ms

    def is_match(self, run: Run) -> bool:
        """Whether a run was a match as it stands."""
        return run.stage == len(self._stages) - 1 and run.size >= self._stages[-1].least

    def elements(self, run: Run) -> dict[str, list[Any]]:
        """What a run has taken, by the name of the stage."""
        taken: dict[str, list[Any]] = {}
        for number, value in run.taken:
            taken.setdefault(self._stages[number].name, []).append(value)
        return taken

    def _advance(self, run: Run, value: Any, at_ms: int, after: list[Run], matches: list[Run]) -> None:
        number = run.stage
        stage = self._stages[number]
        passed: list[Run] = []
        has_enough = 0 < stage.least <= run.size
        if stage.most is None or run.size < stage.most:
            if self._holds(stage, run, value):
                self._take(run, number, run.size, value, at_ms, after, matches)
            elif not (stage.consecutive if run.size else stage.strict):
                passed.append(run._replace(passed=has_enough))
        if has_enough and not run.passed and number + 1 < len(self._stages):
            following = self._stages[number + 1]
            if self._holds(following, run, value):
                self._take(run, number + 1, 0, value, at_ms, after, matches)
            elif not following.strict:
                passed.append(run._replace(stage=number + 1, size=0))
        after += passed

    def _take(
        self,
        run: Run,
        number: int,
        count: int,
        value: Any,
        at_ms: int,
        after: list[Run],
        matches: list[Run],
    ) -> None:
        """Let a run take an element, of stage `number`, of which it has `count`."""
        start_ms = run.start_ms if run.taken else at_ms
        taken = Run(number, count + 1, False, start_ms, at_ms, (*run.taken, (number, value)))
        stage = self._stages[number]
        if self.is_match(taken):
            matches.append(taken)
        if taken.size != stage.most:
            after.append(taken)
        elif number + 1 < len(self._stages):
            after.append(taken._replace(stage=number + 1, size=0))

    def _holds(self, stage: Stage, run: Run, value: Any) -> bool:
        if stage.where is not None:
            outcome = stage.where(value)
        elif stage.given is not None:
            outcome = stage.given(value, self.elements(run))
        if is_deferred(outcome):
            raise not_a_value([outcome], "a condition is a plain function; await in an async_map before")
        return bool(outcome)
