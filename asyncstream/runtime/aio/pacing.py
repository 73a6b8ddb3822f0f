"""
What one watermark makes a step do, done in slices, between which the event loop goes round.

Theory. One watermark may fire a window for each of a million keys, or after a silence all windows of an hour.
A step that may have so much to do gives it in slices (`Operator.works_off`). They are run through until time
is up, or there is no room downstream; the rest comes in later passes of the loop. Time counts from the first
watermark of a pass on, for all steps of a job: a batch with a watermark for each hour may make little to do
at each of them, for each of several steps, and much in all. Until then

* as long as some of it is left, the step has not passed the watermark on: those behind it know nothing of it;
* what else is pushed into the step waits at its *entrance*, in order: the rest of one push for each driver,
  whose gates the step holds, as a full inbox does;
* nothing is cut: before a checkpoint, and before rows are brought to disk, the work is finished at once.

So neither results nor checkpoints depend on where work was interrupted, nor on whether it was.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from asyncstream.elements import Mark, Timestamps
from asyncstream.operators.base import Operator
from asyncstream.operators.flow import Gate
from asyncstream.operators.journey import Journey, Journeys
from asyncstream.runtime.aio.wakeups import Woken
from asyncstream.state.rows import run_through

__all__ = ("Entrance", "Pace", "Pass")

AT_ONCE: Final = 0.01
"""Seconds for which slices are run through without a pause."""


class Pass:
    """One pass of the event loop after the other, as far as watermarks give the steps of a job much to do."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began: float | None = None

    def until(self) -> float:
        """The time of the loop at which this pass has taken long enough."""
        if self._began is None:
            self._began = self._loop.time()
            self._loop.call_soon(self._end)
        return self._began + AT_ONCE

    def _end(self) -> None:
        self._began = None


_Push: TypeAlias = tuple[Journey | None, Callable[..., object], tuple[Any, ...]]
"""On whose journey something is pushed, by what, and that."""


class Pace:
    """
    The pace of one step.

    Args:
        operator: that of the step.
        one_pass: that of the event loop, which all steps of the job share.
        gates: gives the gates of the drivers that feed it.
        has_room: told when there is room again for its results.
        journeys: tells of elements that are followed.
        failed: told of whatever the work raises when nobody else is.

    Attributes:
        room: is open while there is room for its results.
        is_behind: something is left to be done, so what comes waits.
    """

    def __init__(
        self,
        operator: Operator,
        one_pass: Pass,
        gates: Callable[[], Sequence[Gate]],
        has_room: Callable[[Woken], None],
        journeys: Journeys,
        failed: Callable[[BaseException], None],
    ) -> None:
        self.room = Gate(self._reopened)
        self.is_behind = False
        self._operator = operator
        self._pass = one_pass
        self._has_room = has_room
        self._gates = gates
        self._journeys = journeys
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._held: Sequence[Gate] = ()
        self._work: Iterator[None] | None = None
        self._journey: Journey | None = None
        self._waiting: deque[_Push] = deque()
        self._parts: list[_Push] | None = None  # of what is being pushed after it has waited: the rest of it
        self._until = -math.inf
        self._next: asyncio.Handle | None = None
        self._is_over = False
        self._is_last = False
        operator.tables.before_cut(self.catch_up)

    def work_off(self, slices: Iterator[None]) -> None:
        """See `OperatorContext`."""
        if self._is_last:
            run_through(slices)
            return
        if self.is_behind:  # it is of what has waited
            self._work, self._journey = slices, self._journeys.current
            return
        self._until = self._pass.until()
        for _ in slices:
            break
        else:
            if self._loop.time() < self._until:
                return  # as a rule
        self._work, self._journey = slices, self._journeys.current
        if self._is_enough() or not self._go_on():
            self.is_behind = True
            self._held = self._gates()
            for gate in self._held:
                gate.hold()
            self._go_on_later()

    def push(self, into: Callable[..., object], *what: Any) -> None:
        """Push something into the step, when its work is done."""
        if self._work is None and (self._parts is not None or not self.is_behind):
            into(*what)
        else:
            waiting = self._waiting if self._parts is None else self._parts
            waiting.append((self._journeys.current, into, what))

    def advance_clock(self, now_ms: int) -> None:
        """As that of the operator."""
        self.push(self._operator.advance_clock, now_ms)

    def _reopened(self) -> None:
        if self.is_behind:
            self._go_on_later()
        self._has_room(self)

    def catch_up(self) -> None:
        """Do at once all that is left; an error in it is told as if it had come later."""
        if self.is_behind:
            self._turn(is_last=True)

    def finish(self) -> None:
        """Do at once all that is left, and from now on whatever comes: there may be no later."""
        self.catch_up()
        self._is_last = True

    def give_up(self) -> None:
        """Do nothing more."""
        self._is_over = True
        self._waiting.clear()

    def _go_on(self) -> bool:
        """Go on for a while; whether all is done."""
        waiting, parts = self._waiting, list[_Push]()
        journeys, before = self._journeys, self._journeys.current
        try:
            while True:
                if self._work is not None:
                    journeys.current = self._journey
                    for _ in self._work:
                        if self._is_enough():
                            return False
                    self._work = None
                if not waiting:
                    return True
                journeys.current, into, what = waiting.popleft()
                self._parts = parts
                into(*what)
                self._parts = None
                if parts:
                    waiting.extendleft(reversed(parts))
                    parts.clear()
                if self._is_enough():
                    return False
        finally:
            journeys.current = before

    def _is_enough(self) -> bool:
        """Whether the others are to have their turn."""
        return self._until < math.inf and (self._loop.time() >= self._until or not self.room.is_open())

    def _go_on_later(self) -> None:
        if self._next is None and self.room.is_open():
            self._next = self._loop.call_soon(self._turn)

    def _turn(self, *, is_last: bool = False) -> None:
        if self._next is not None:
            self._next.cancel()
            self._next = None
        if self._is_over:
            return
        self._until = math.inf if is_last else self._pass.until()
        try:
            is_done = self._go_on()
        except BaseException as error:  # there is no caller to be told, whatever it is
            self.give_up()
            self._failed(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return
        if not is_done:
            self._go_on_later()
            return
        self.is_behind = False
        held, self._held = self._held, ()
        for gate in held:
            gate.release()


class Entrance(Operator):
    """
    One input of a step that works things off.

    Args:
        pace: of the step.
        inside: what takes what comes by this input.
    """

    def __init__(self, pace: Pace, inside: Operator) -> None:
        super().__init__()
        self._pace = pace
        self._inside = inside

    def process(self, value: Any, timestamp: int | None) -> None:
        if self._pace.is_behind:
            self._pace.push(self._inside.process, value, timestamp)
        else:
            self._inside.process(value, timestamp)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        if self._pace.is_behind:
            self._pace.push(self._inside.process_batch, values, timestamps)
        else:
            self._inside.process_batch(values, timestamps)

    def advance_watermark(self, timestamp: int) -> None:
        if self._pace.is_behind:
            self._pace.push(self._inside.advance_watermark, timestamp)
        else:
            self._inside.advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        self._inside.restore_watermark(timestamp)

    def set_idle(self, idle: bool) -> None:
        self._pace.push(self._inside.set_idle, idle)

    def pass_mark(self, mark: Mark) -> None:
        self._pace.push(self._inside.pass_mark, mark)

    def end_input(self) -> None:
        self._pace.push(self._inside.end_input)
