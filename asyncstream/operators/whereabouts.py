"""
What an operator tells of itself to those who look at a running job: where its elements are, and how far
event time has come. It is worked out when somebody asks; an operator does nothing for it meanwhile.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from asyncstream.errors import describe_error

__all__ = ("LIMITED", "SEVERAL", "Failure", "Progress", "Whereabouts", "failure_of", "new_failures")

SEVERAL: Final = object()
"""In place of the element, where what is under way is not about a single one."""

LIMITED: Final = "limited"
"""The metric by which a function tells how many of its calls wait to begin, for a rate or a breaker, say."""

KEPT_FAILURES: Final = 20
"""How many of the elements that a step failed on last are remembered."""


class Progress(NamedTuple):
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


def new_failures() -> deque[Failure]:
    """Room for the last few that an operator has."""
    return deque(maxlen=KEPT_FAILURES)


def failure_of(value: Any, error: BaseException, now_ms: int) -> Failure:
    """`error` on `value`; as text, for an exception keeps alive whatever its frames hold."""
    return Failure(now_ms, type(error).__name__, describe_error(error), value)
