"""
Backpressure: how a full stage makes those who feed it wait.

A pipeline is cut into stages at every operator with an inbox (an async wait, a sink). Inside a stage
nothing waits. When an inbox is full, its `Intake` holds the `Gate` of every driver upstream that can
reach it (a source, the emitting side of an async wait); when half of it has drained it lets go. A driver
pushes only while its gate is open, and everything it pushes in one go is accepted, so an inbox is bounded
by its limit plus one burst.
"""

from __future__ import annotations

from collections.abc import Callable

from asyncstream.elements import Control, EndOfInput, IdleStatus, Mark, Watermark
from asyncstream.operators.base import Operator

__all__ = ("Attended", "Gate", "Intake")


def _no_time() -> int:
    """Of a gate that nobody asks how long it was held."""
    return 0


def _not_told() -> None:
    """For gates of nobody who pushes."""


class Gate:
    """
    Whether a driver may push downstream: open while no stage holds it. Each time that the last hold is
    released it calls `reopened`.

    Attributes:
        now_ms: the processing time by which it knows how long it was held.
        holds: gates that it holds for as long as it is held itself.
    """

    __slots__ = ("_held_ms", "_holds", "_reopened", "_since_ms", "holds", "now_ms")

    def __init__(self, reopened: Callable[[], None] = _not_told) -> None:
        self.now_ms: Callable[[], int] = _no_time
        self.holds: tuple[Gate, ...] = ()
        self._holds = 0
        self._held_ms = 0
        self._since_ms = 0
        self._reopened = reopened

    def is_open(self) -> bool:
        return not self._holds

    def held_ms(self) -> int:
        """For how many milliseconds it has been held so far, in all."""
        return self._held_ms + (max(0, self.now_ms() - self._since_ms) if self._holds else 0)

    def hold(self) -> None:
        if not self._holds:
            self._since_ms = self.now_ms()
            for gate in self.holds:
                gate.hold()
        self._holds += 1

    def release(self) -> None:
        if self._holds == 1:
            self._held_ms = self.held_ms()
        self._holds -= 1
        if not self._holds:
            for gate in self.holds:
                gate.release()
            self._reopened()


class Attended(Operator):
    """Has work in the event loop: its driver awaits `start` after `open`, and `stop` before `close`."""

    async def start(self) -> None:
        """Make ready what needs the event loop."""

    async def stop(self) -> None:
        """End every task of this operator; returns when none is left."""


class Intake(Attended):
    """
    An operator with an inbox: the first of a stage.

    Attributes:
        limit: how many elements may wait before those who feed it are held.
        gates: the gates of the drivers that feed it.
        emitting: its own, as the driver of what is behind it.

    Args:
        reopened: called when it may emit again.
    """

    def __init__(self, limit: int, reopened: Callable[[], None] = _not_told) -> None:
        super().__init__()
        self.limit = limit
        self.emitting = Gate(reopened)
        self.gates: tuple[Gate, ...] = ()
        self._holding = False

    def _add_control(self, control: Control) -> None:
        """Accept a control element, which has a place among the elements."""
        raise TypeError(f"{type(self).__name__} does not override _add_control")

    def advance_watermark(self, timestamp: int) -> None:
        self._add_control(Watermark(timestamp))

    def set_idle(self, idle: bool) -> None:
        self._add_control(IdleStatus(idle))

    def pass_mark(self, mark: Mark) -> None:
        self._add_control(mark)

    def end_input(self) -> None:
        self._add_control(EndOfInput())

    def waiting(self) -> int:
        """How many elements are in the inbox."""
        raise TypeError(f"{type(self).__name__} does not override waiting")

    def holds(self, gate: Gate) -> bool:
        """Whether it is full, and this is the gate of a driver that feeds it."""
        return self._holding and gate in self.gates

    def is_at_rest(self) -> bool:
        """Whether nothing is still to be emitted or written, of what has not settled to stay."""
        return not self.waiting()

    def settle(self) -> None:
        """Start no call any more, and emit the results of those that run; the rest stays for a snapshot."""

    def halt(self) -> None:
        """Start and emit nothing more; what is held stays for a snapshot."""

    def _hold_if_full(self) -> None:
        if not self._holding and self.waiting() >= self.limit:
            self._holding = True
            for gate in self.gates:
                gate.hold()

    def _release_if_drained(self) -> None:
        # half, not empty: the inbox must not run dry while its feeder wakes up
        if self._holding and self.waiting() <= self.limit // 2:
            self._holding = False
            for gate in self.gates:
                gate.release()
