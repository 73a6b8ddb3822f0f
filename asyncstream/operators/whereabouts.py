"""
What an operator tells of itself to those who look at a running job: where its elements are, and how far
event time has come. It is worked out on demand; an operator does nothing for it meanwhile.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from asyncstream.errors import describe_error

log = logging.getLogger("asyncstream.elements")

__all__ = ("LIMITED", "SEVERAL", "Failure", "TimeReached", "RecentFailures", "Whereabouts")

SEVERAL: Final = object()
"""In place of the element, where what is under way is not about a single one."""

LIMITED: Final = "limited"
"""The metric by which a function tells how many of its calls wait to begin, for a rate or a breaker, say."""

QUIET_MS: Final = 10_000
"""Milliseconds between two lines in the log about the failures of one step."""

KEPT_FAILURES: Final = 20
"""How many of the elements that a step failed on last are remembered."""


class TimeReached(NamedTuple):
    """
    How far event time has come behind an operator.

    Attributes:
        watermark: the last that it passed on, milliseconds since the epoch; MIN_TIMESTAMP: none yet.
        idle: whether it said that it is not to be waited for; None: as those say that it reads.
    """

    watermark: int
    idle: bool | None


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """
    Where the elements are that an operator has, and since when it has been doing what it does.

    Attributes:
        inbox: accepted, and not begun.
        limit: begun, and waiting for leave: of a rate limit, a breaker.
        call: in a call or a write.
        order: finished, or of a key that is busy: they wait for their turn.
        downstream: they wait for room behind the operator.
        doing: what is under way, as a noun: "call", "write", "read".
        since: loop time at which the longest that is under way began; None: nothing is.
        element: what that is about; SEVERAL if it is not one.
    """

    inbox: int = 0
    limit: int = 0
    call: int = 0
    order: int = 0
    downstream: int = 0
    doing: str = "call"
    since: float | None = None
    element: Any = SEVERAL

    def waiting(self) -> dict[str, int]:
        """The counts by name."""
        return {
            "inbox": self.inbox,
            "limit": self.limit,
            "call": self.call,
            "order": self.order,
            "downstream": self.downstream,
        }


class Failure(NamedTuple):
    """
    An element that a function failed on.

    Attributes:
        at_ms: when, in processing time.
        kind: the type of the error.
        text: the same with what it says, which may quote the element.
        value: the element.
    """

    at_ms: int
    kind: str
    text: str
    value: Any


class RecentFailures(deque[Failure]):
    """
    The last elements of a step that its function failed on, and that the job goes on without.

    They are said in the log: the first at once, from then on every ten seconds how many there were, and the
    rest at the end.
    """

    def __init__(self) -> None:
        super().__init__(maxlen=KEPT_FAILURES)
        self._unsaid = 0
        self._step = ""
        self._is_skipped = False
        self._quiet_until_ms = 0

    def note(self, step: str, value: Any, error: BaseException, now_ms: int, *, skipped: bool) -> None:
        """
        One more; kept as text, for an exception keeps alive whatever its frames hold. If it is `skipped`, the
        element is left out; else it goes to an output.
        """
        self.append(Failure(now_ms, type(error).__name__, describe_error(error), value))
        self._unsaid += 1
        self._step, self._is_skipped = step, skipped
        if now_ms >= self._quiet_until_ms:
            self.say_rest()
            self._quiet_until_ms = now_ms + QUIET_MS

    def say_rest(self) -> None:
        """Say those of which nothing has been said yet."""
        if not self._unsaid:
            return
        last, outcome = self[-1], "skipped" if self._is_skipped else "routed"
        log.log(
            logging.WARNING if self._is_skipped else logging.INFO,
            "step %r has %s %d element(s); the last: %s",
            self._step,
            outcome,
            self._unsaid,
            last.text,
            extra={"step": self._step, "outcome": outcome, "elements": self._unsaid, "error_type": last.kind},
        )
        self._unsaid = 0
