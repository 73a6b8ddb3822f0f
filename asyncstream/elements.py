"""
What flows through a pipeline besides plain values: watermarks, idle status, end of input.

Values travel as two parallel lists, `values` and `timestamps`, and become no object of ours until they
are held somewhere. Timestamps are integer milliseconds since the epoch; an element without one has
`None`, and a whole batch without any has `timestamps=None`.

Control elements keep their place among the values: a `Watermark(t)` says that no element with a
timestamp <= t will follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias, get_args

__all__ = (
    "CONTROLS",
    "MAX_TIMESTAMP",
    "MIN_TIMESTAMP",
    "Control",
    "EndOfInput",
    "IdleStatus",
    "Mark",
    "Timestamps",
    "Watermark",
)

MIN_TIMESTAMP: Final = -(2**63)
"""Before all time, in milliseconds: the watermark of a stream that has seen none."""

MAX_TIMESTAMP: Final = 2**63 - 1
"""The end of time, in milliseconds: the watermark that follows the last element of a finite stream."""

Timestamps: TypeAlias = Sequence[int | None] | None
"""One timestamp for each value of a batch, or None when no value has one."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """
    Event time has reached `timestamp`: no element with a timestamp <= it will follow.

    Attributes:
        timestamp: milliseconds since the epoch.
    """

    timestamp: int


@dataclass(frozen=True, slots=True)
class IdleStatus:
    """
    Whether this stream holds back the watermark of those it is joined with.

    Attributes:
        idle: True: do not wait for me. False: I am back.
    """

    idle: bool


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """Nothing follows."""


class Mark:
    """
    A place in what a source gives, which goes every way that elements before it may have gone. It keeps its
    place among them: when it has arrived wherever streams end, they have all been written, or are no more.

    It says nothing to operators, and is no part of a snapshot. Where streams unite it waits until all its
    ways have come to such a place, or to an end, and goes on from each place once: else it would have twice
    as many ways behind each.

    Args:
        through: called once it has arrived everywhere.
    """

    __slots__ = ("_is_going_on", "_through", "_waiting", "_ways")

    def __init__(self, through: Callable[[], None]) -> None:
        self._through = through
        self._ways = 1
        self._waiting: dict[Callable[[Mark], None], None] = {}
        self._is_going_on = False

    def divide(self, ways: int) -> None:
        """From here it goes on in so many ways; at least 1."""
        self._ways += ways - 1

    def arrive(self) -> None:
        """One of its ways has come to an end."""
        self._ways -= 1
        if self._ways or self._is_going_on:
            return
        self._is_going_on = True
        while self._waiting and not self._ways:
            waiting, self._waiting = self._waiting, {}
            self._ways = len(waiting)
            for go_on in waiting:
                go_on(self)
        self._is_going_on = False
        if not self._ways:
            self._through()

    def wait(self, go_on: Callable[[Mark], None]) -> None:
        """One of its ways has come to where others may come, too; `go_on` sends it on from there."""
        self._waiting[go_on] = None
        self.arrive()


Control: TypeAlias = Watermark | IdleStatus | EndOfInput | Mark

CONTROLS: Final[frozenset[type]] = frozenset(get_args(Control))
"""The classes of control elements."""
