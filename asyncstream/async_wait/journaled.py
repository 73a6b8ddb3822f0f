"""
Finished calls on their way into the journal: written down in groups, and only then let go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

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
        ended: promises that have an outcome which is not written down; always the same list.
        outcomes: of the promises that have one and may not be let go yet; none unless results wait.
        spared: how many calls were not made because they had been.
    """

    def __init__(self, log: CallLog, finish: Callable[[Promise], None], schedule: Callable[[], None]) -> None:
        self.waits = log.waits
        self.known: Mapping[Origin, Sequence[Any]] = log.known
        self.ended: list[Promise] = []
        self.outcomes: dict[Promise, Any] = {}
        self.spared = 0
        self._passed = 0  # how many of those that passed the queue by are written down and not emitted
        self._log = log
        self._finish = finish
        self._schedule = schedule

    def take(self, origin: Origin | None) -> Several | None:
        """The outcome of a call that has been made in an earlier life; None: it is to be made."""
        found = None if origin is None else self._log.take(origin)
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

    def write(self, origins: Sequence[Origin | None], results: Sequence[Any]) -> None:
        """
        Write down what has ended since the last time.

        Args:
            origins, results: what passes the queue by and was not emitted yet, in order.
        """
        kept: list[tuple[Origin, Sequence[Any]]] = []
        if len(origins) > self._passed:
            new = slice(self._passed, None)
            pairs = zip(origins[new], zip(results[new]))  # noqa: B905 - of one length
            kept = [(origin, result) for origin, result in pairs if origin is not None]
            self._passed = len(origins)
        ended = self.ended.copy()
        self.ended.clear()
        for promise in ended:
            outcome = self.outcomes[promise] if self.waits else promise.outcome
            found = _results(outcome) if outcome.__class__ in SPECIAL else (outcome,)
            if found is not None and promise.origin is not None:
                kept.append((promise.origin, found))
        if kept:
            self._log.append(kept)
        if not self.waits:
            return
        if kept:
            self._log.when_safe(partial(self._safe, ended))
        else:
            self._let_go(ended)

    def emitted(self) -> None:
        """What has passed the queue by has left."""
        self._passed = 0

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
