"""
Finished calls on their way into the journal: written down in groups, and only then let go.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from asyncstream.async_wait.promise import DROPPED, Arrived, Promise, Routed, Several
from asyncstream.operators.call_log import CallLog
from asyncstream.operators.origins import Origin

__all__ = ("Journaled",)


class Journaled:
    """
    Stands between the calls of a step and its promise queue, which hears of an outcome when it is written.

    Args:
        log: where calls are written down.
        finish: tells the queue.
        schedule: asks for a turn of the operator.

    Attributes:
        outcomes: of the promises that have one and may not be let go yet.
        spared: how many calls were not made because they had been.
    """

    def __init__(self, log: CallLog, finish: Callable[[Promise], None], schedule: Callable[[], None]) -> None:
        self.outcomes: dict[Promise, Any] = {}
        self._ended: list[Promise] = []  # not written down yet
        self.spared = 0
        self._log = log
        self._finish = finish
        self._schedule = schedule

    def take(self, origin: Origin | None) -> Several | None:
        """The outcome of a call that has been made in an earlier life; None: it is to be made."""
        found = None if origin is None else self._log.take(origin)
        if found is None:
            return None
        self.spared += 1
        return Several(found)

    def add(self, promise: Promise, outcome: Any) -> None:
        """A call has ended; the first outcome counts."""
        if promise not in self.outcomes:
            self.outcomes[promise] = outcome
            self._ended.append(promise)

    def write(self) -> None:
        """Write down what has ended since the last time."""
        if not self._ended:
            return
        ended, self._ended = self._ended, []
        kept = [
            (promise.origin, results)
            for promise in ended
            if promise.origin is not None and (results := _results(self.outcomes[promise])) is not None
        ]
        if kept:
            self._log.append(kept)
        if kept and self._log.waits:
            self._log.when_safe(partial(self._safe, ended))
        else:
            self._let_go(ended)

    def is_writing(self) -> bool:
        """Whether outcomes are on their way to the disk."""
        return bool(self.outcomes)

    def _safe(self, ended: list[Promise]) -> None:
        self._let_go(ended)
        self._schedule()

    def _let_go(self, ended: list[Promise]) -> None:
        for promise in ended:
            promise.outcome = self.outcomes.pop(promise)
            self._finish(promise)


def _results(outcome: Any) -> list[Any] | None:
    """What a call gave; None: an error, which cannot be kept."""
    if isinstance(outcome, Arrived):
        outcome = outcome.outcome
    if isinstance(outcome, Routed):
        return None
    if outcome is DROPPED:
        return []
    return outcome.results if isinstance(outcome, Several) else [outcome]
