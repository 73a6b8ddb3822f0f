"""
A promise: one element between its acceptance and the emission of what came of it.

It holds its input until its outcome has left the operator, so that a snapshot taken at any moment in
between can replay it. It is completed once, by the end of the call or by its timeout, whichever is first.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

from asyncstream.async_wait.timing import UNTIMED, Stamp
from asyncstream.elements import Control
from asyncstream.operators.functions import FailedCall
from asyncstream.operators.journey import Journey
from asyncstream.operators.origins import Origin

__all__ = (
    "DROPPED",
    "PENDING",
    "SPECIAL",
    "Arrived",
    "Passage",
    "Promise",
    "Routed",
    "Several",
    "completed",
    "pending",
)


class _State(Enum):
    PENDING = "pending"
    DROPPED = "dropped"


PENDING: Final = _State.PENDING
"""The outcome of a promise that is not completed."""

DROPPED: Final = _State.DROPPED
"""The outcome of an element that is to give nothing."""


class Several:
    """The outcome of a flat map: any number of results."""

    __slots__ = ("results",)

    def __init__(self, results: Sequence[Any]) -> None:
        self.results = results


class Routed:
    """The outcome of a call that gave no result: it leaves by a side output."""

    __slots__ = ("failed", "tag")

    def __init__(self, tag: str, failed: FailedCall) -> None:
        self.tag = tag
        self.failed = failed


class Arrived:
    """The outcome of the call of an element that is followed: the result, or a `Several`."""

    __slots__ = ("journey", "outcome")

    def __init__(self, outcome: Any, journey: Journey) -> None:
        self.outcome = outcome
        self.journey = journey


class Passage:
    """The outcome of a control element: it goes on as it came, when its turn has come."""

    __slots__ = ("control",)

    def __init__(self, control: Control) -> None:
        self.control = control


SPECIAL: Final = frozenset({Several, Routed, Arrived, Passage, _State})
"""The classes of outcomes that are not simply one result."""


class Promise:
    """
    An entry of a promise queue. Made per element, so it has slots and no `__init__`.

    Attributes:
        value: the element, or None for a control element.
        timestamp: its event time in milliseconds, or None; until its call begins, as in the inbox.
        outcome: PENDING, DROPPED, a `Several`, a `Routed`, an `Arrived`, a `Passage`, or else the one result.
        started: the stamp of its call; `UNTIMED`: none has begun, or it is not to be timed any more.
        group: bookkeeping of the queue that holds it.
        key: its key, where the order is per key.
        origin: where it comes from, where that is kept track of.
    """

    __slots__ = ("group", "key", "origin", "outcome", "started", "timestamp", "value")

    value: Any
    timestamp: Any
    outcome: Any
    started: Stamp
    group: Any
    key: Any
    origin: Origin | None


def completed(value: Any, timestamp: Any, outcome: Any, origin: Origin | None = None) -> Promise:
    """A promise whose outcome is known."""
    promise = Promise()
    promise.value, promise.timestamp, promise.outcome = value, timestamp, outcome
    promise.started, promise.origin = UNTIMED, origin
    return promise


def pending(value: Any, timestamp: Any, origin: Origin | None = None) -> Promise:
    """A promise whose call has not begun."""
    return completed(value, timestamp, PENDING, origin)
