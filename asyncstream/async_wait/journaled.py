"""
Finished calls on their way into the journal: written down in groups, and only then let go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from asyncstream.async_wait.blocks import Call
from asyncstream.async_wait.promise import DROPPED, SPECIAL, Arrived, Promise, Routed, Several
from asyncstream.operators.call_log import CallLog
from asyncstream.operators.origins import Origin

__all__ = ("Journaled",)


class Journaled:
    """
    Stands between the calls of a step and what leaves it: what has ended is written before the turn emits.

    Where results wait for the disk, it stands before the promise queue, too, which hears of an outcome only
    when it is safe.

    Args:
        log: where calls are written down.
        finish: tells the queue.
        schedule: asks for a turn of the operator.

    Attributes:
        waits: results wait for the disk.
        known: the calls of an earlier life that have not been asked for.
        ended: promises that have an outcome which is not written down.
        calls: those of elements of blocks that have ended and are not written down; always the same list.
        outcomes: of the promises that have one and may not be let go yet; none unless results wait.
        spared: how many calls were not made because they had been.
    """

    def __init__(self, log: CallLog, finish: Callable[[Promise], None], schedule: Callable[[], None]) -> None:
        self.waits = log.waits
        self.known: Mapping[Origin, object] = log.known
        self.ended: list[Promise] = []
        self.calls: list[Call] = []
        self.outcomes: dict[Promise, Any] = {}
        self.spared = 0
        self._log = log
        self._finish = finish
        self._schedule = schedule

    def take(self, origin: Origin | None, element: Any) -> Several | None:
        """The outcome of a call that has been made in an earlier life; None: it is to be made."""
        found = None if origin is None else self._log.take(origin, element)
        if found is None:
            return None
        self.spared += 1
        return Several(list(found))

    def add(self, promise: Promise, outcome: Any) -> None:
        """A call has ended; the first outcome counts."""
        if not self.waits:
            promise.outcome = outcome
            self._finish(promise)
            self.ended.append(promise)
        elif promise not in self.outcomes:
            self.outcomes[promise] = outcome
            self.ended.append(promise)

    def write(self, *, single: bool) -> None:
        """Write down what has ended since the last time; `single`: each outcome is known to be one result."""
        if self.calls:
            self._write_calls(single)
        if not self.ended:
            return
        ended = self.ended.copy()
        self.ended.clear()
        of, elements = [promise.origin for promise in ended], [promise.value for promise in ended]
        outcomes = [self.outcomes[promise] if self.waits else promise.outcome for promise in ended]
        is_kept = self._append(of, elements, outcomes, single)
        if not self.waits:
            return
        if is_kept:
            self._log.when_safe(partial(self._safe, ended))
        else:
            self._let_go(ended)

    def _write_calls(self, single: bool) -> None:
        blocks, places, elements = map(list, zip(*self.calls, strict=True))
        self.calls.clear()
        block = blocks[0]
        if blocks.count(block) < len(blocks):
            of = [one.origins[place] for one, place in zip(blocks, places, strict=True)]
            outcomes = [one.outcomes[place] for one, place in zip(blocks, places, strict=True)]
        elif places == list(range(places[0], places[-1] + 1)):  # as a rule
            run = slice(places[0], places[-1] + 1)
            of, outcomes = block.origins[run], block.outcomes[run]
        else:
            of, outcomes = ([column[place] for place in places] for column in (block.origins, block.outcomes))
        self._append(of, elements, outcomes, single)

    def _append(
        self, origins: list[Origin | None], elements: list[Any], outcomes: list[Any], single: bool
    ) -> bool:
        """Write down what can be kept; whether there was anything."""
        single = single or SPECIAL.isdisjoint(map(type, outcomes))
        if single and all(origins):  # as a rule: no loop in Python
            self._log.append(origins, elements, outcomes, single=True)  # type: ignore[arg-type]  # none is None
            return True
        kept = [
            (origin, element, found)
            for origin, element, found in zip(origins, elements, map(_results, outcomes), strict=True)
            if origin is not None and found is not None
        ]
        if kept:
            of, for_, found = map(list, zip(*kept, strict=True))
            self._log.append(of, for_, found, single=False)
        return bool(kept)

    def is_writing(self) -> bool:
        """Whether outcomes are on their way to the disk."""
        return bool(self.ended or self.outcomes)

    def _safe(self, ended: list[Promise]) -> None:
        self._let_go(ended)
        self._schedule()

    def _let_go(self, ended: list[Promise]) -> None:
        for promise in ended:
            promise.outcome = self.outcomes.pop(promise)
            self._finish(promise)


def _results(outcome: Any) -> Sequence[Any] | None:
    """What a call gave; None: an error, which cannot be kept."""
    if isinstance(outcome, Arrived):
        outcome = outcome.outcome
    if isinstance(outcome, Routed):
        return None
    if outcome is DROPPED:
        return ()
    return outcome.results if isinstance(outcome, Several) else (outcome,)
