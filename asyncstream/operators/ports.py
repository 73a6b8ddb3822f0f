"""
Operators with several inputs: one receiving end for each, and what their watermarks are together.

    one ──▶ port 0 ──▶ receiver of its elements ─┐
    other ─▶ port 1 ──▶ receiver of its elements ─┼──▶ the operator ──▶ out
             └─┴─────▶ valve: watermark, idleness, end ─┘

Elements reach the operator by port, each batch in one call; it knows from which input they come. Control
elements meet in the valve, and reach the operator as if it had one input: `advance_watermark`, `set_idle` and
`end_input` are called on it when all inputs together come to that.

After Flink's StatusWatermarkValve. An input is *active* unless it is idle or has ended. The watermark is the
smallest over the active inputs. An input that comes back from idleness may be behind, since the others went
on without it: its elements may be late. What it does to the others is the operator's choice, as in Flink:

* they go on without it until it has *caught up*, until its own watermark is not behind the operator's: a
  union, which is one stream downstream;
* they wait for it (`holds_back`): an operator that compares its inputs, such as a join.

Only a watermark moves event time on, or an active input that leaves; never an input's return. When the last
active input turns idle, there is none to wait for: the largest watermark seen counts, then all are idle. If
that input was left out because it had not caught up, event time stays where it is, as in Flink. Watermarks
that idle inputs give all the same, because a step upstream follows the clock, count while all are idle, and
once their input is active again; Flink forgets them.

One difference: the end of an input (a watermark at the end of time) says nothing about the others, and it
counts no more. Flink takes it for a watermark, so event time jumps to its end while an input that is idle, or
has not caught up, is still to bring elements, all of which would be late.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Mark, Timestamps
from asyncstream.eventtime.strategy import kept_ms
from asyncstream.operators.base import Operator
from asyncstream.operators.whereabouts import TimeReached
from asyncstream.state.tables import Cell

__all__ = ("INPUTS", "MultiInput", "Port", "Receive", "Valve")

INPUTS: Final = "inputs"
"""The cell in which an operator keeps what it knows of its inputs."""


class Receive(Protocol):
    """Takes a batch of elements of one input, as `Operator.process_batch` does."""

    def __call__(self, values: Sequence[Any], timestamps: Timestamps) -> None: ...


class Port(Operator):
    """
    One input of an operator.

    Attributes:
        watermark: the input's last one before its end, milliseconds since the epoch.
        idle: it says that it is not to be waited for.
        over: its event time had come to its end, in this run or in the one that was restored; it may go on.
        closed: its event time has come to its end in this run.
        ended: nothing follows.
    """

    def __init__(self, valve: Valve, receive: Receive) -> None:
        super().__init__()
        # in place of the method: a batch gets to the operator in one call
        self.process_batch = receive  # type: ignore[method-assign]
        self.watermark = MIN_TIMESTAMP
        self.idle = False
        self.over = False
        self.closed = False
        self.ended = False
        self._valve = valve

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            if self.closed:
                return
            self.closed = True
            if self.over:
                self._valve.closed()
            else:
                self.over = True
                self._valve.left(self)
        elif timestamp > self.watermark:
            self.over = False
            self.watermark = timestamp
            self._valve.moved(self)

    def restore_watermark(self, timestamp: int) -> None:
        if timestamp > self.watermark:  # of an operator that has been added since
            self.watermark = timestamp
            self._valve.restored()

    def set_idle(self, idle: bool) -> None:
        if idle is self.idle:
            return
        self.idle = idle
        if self.is_running():
            if idle:
                self._valve.left(self)
            else:
                self._valve.is_back()

    def pass_mark(self, mark: Mark) -> None:
        self._valve.pass_mark(mark)

    def end_input(self) -> None:
        if self.ended:
            return
        self.ended = True
        if not self.over:
            self._valve.left(self)
        self._valve.ended()

    def is_running(self) -> bool:
        """Whether a watermark of it may follow."""
        return not (self.over or self.ended)

    def is_active(self) -> bool:
        """Whether it is waited for, once it has caught up."""
        return self.is_running() and not self.idle


class Valve:
    """
    What the inputs of an operator come to together; told by its ports, it tells the operator.

    Args:
        operator: whose inputs they are.
        receivers: one for each input.
        holds_back: an input that comes back and is behind is waited for.

    Attributes:
        operator: what is told of what they come to; a driver may put something before the operator.
        ports: one for each input.
        watermark: the operator's; stays as it was when event time comes to its end.
    """

    def __init__(self, operator: Operator, receivers: Sequence[Receive], holds_back: bool) -> None:
        self.ports = tuple(Port(self, receive) for receive in receivers)
        self.watermark = MIN_TIMESTAMP
        self.operator = operator
        self._holds_back = holds_back
        self._idle = False
        self._slowest = self.ports[0]  # when all were last looked at

    def moved(self, port: Port) -> None:
        """An input has a new watermark."""
        if port.is_active():
            self.is_back()  # of a restored operator, whose inputs that had ended go on
            self._follow_slowest()
        elif self._idle:
            self._advance(port.watermark)

    def left(self, port: Port) -> None:
        """An input that was running, and perhaps active, is idle or over."""
        counted = self._holds_back or port.watermark == self.watermark  # else it had not caught up
        running = [one for one in self.ports if one.is_running()]
        if any(one.is_active() for one in running):
            if counted or not port.is_running():
                self._follow_slowest()
        elif running:
            if counted:
                self._advance(max(one.watermark for one in running))
            if not self._idle:
                self._idle = True
                self.operator.set_idle(True)
        else:
            self.closed()

    def closed(self) -> None:
        """Event time of an input has come to its end."""
        if all(port.closed for port in self.ports):
            self.operator.advance_watermark(MAX_TIMESTAMP)

    def is_back(self) -> None:
        """An input is active, which it may not have been."""
        if self._idle:
            self._idle = False
            self.operator.set_idle(False)

    def pass_mark(self, mark: Mark) -> None:
        """It concerns the elements of one input; what comes of them comes out of the operator."""
        mark.wait(self.operator.pass_mark)

    def ended(self) -> None:
        """Nothing follows on an input."""
        if all(port.ended for port in self.ports):
            self.operator.end_input()

    def restored(self) -> None:
        """An input says how far it had come in an earlier run, in which the operator was not there."""
        lowest = min(port.watermark for port in self.ports)
        if lowest > self.watermark:
            self.watermark = lowest
            self.operator.restore_watermark(lowest)

    def _follow_slowest(self) -> None:
        if self._slowest.watermark <= self.watermark and self._awaits(self._slowest):
            return  # so the others need not be looked at
        awaited = [port for port in self.ports if self._awaits(port)]
        if awaited:
            self._slowest = min(awaited, key=attrgetter("watermark"))
            self._advance(self._slowest.watermark)

    def _awaits(self, port: Port) -> bool:
        return port.is_active() and (self._holds_back or port.watermark >= self.watermark)

    def slowest(self) -> int | None:
        """The number of the input that event time waits for while another is ahead; None: for none."""
        awaited = [number for number, port in enumerate(self.ports) if self._awaits(port)]
        slowest = min(awaited, key=lambda number: self.ports[number].watermark, default=None)
        if slowest is None or all(port.watermark <= self.ports[slowest].watermark for port in self.ports):
            return None
        return slowest

    def time_reached(self) -> TimeReached:
        """Watermark and idleness of all together."""
        return TimeReached(self.watermark, self._idle)

    def _advance(self, timestamp: int) -> None:
        if timestamp > self.watermark:
            self.watermark = timestamp
            self.operator.advance_watermark(timestamp)

    def snapshot(self) -> list[Any]:
        """Watermark and idleness, of all and of each input, and which inputs were at their end."""
        ports = [[port.watermark, port.idle, port.over or port.ended] for port in self.ports]
        return [self.watermark, ports, self._idle]

    def restore(self, state: list[Any]) -> None:
        """Take up what `snapshot` gave; inputs of another number are waited for, each until it speaks."""
        watermark, ports, *rest = state
        self.watermark = kept_ms(watermark)
        self._idle = rest[0] if rest else all(idle for _, idle, *_ in ports)
        if len(ports) != len(self.ports):
            return  # it is not known which is which
        for port, (watermark, idle, *over) in zip(self.ports, ports, strict=True):
            port.watermark, port.idle = kept_ms(watermark), idle
            port.over = bool(over and over[0])  # older snapshots do not say; its source says it again


class MultiInput(Operator):
    """
    Base of operators with several inputs.

    A subclass names what takes the elements of each input. Everything else is as with one input: its
    `advance_watermark` is called when the watermark of all inputs together rises, and so on.
    What it remembers of its inputs is a cell beside its own tables.

    Args:
        receivers: one for each input; a method of the operator, for instance.
        holds_back: an input that comes back from idleness and is behind is waited for; else the others go on
            without it until it has caught up.

    Attributes:
        ports: one for each input.
        valve: what the inputs come to together.
    """

    def __init__(self, *receivers: Receive, holds_back: bool) -> None:
        super().__init__()
        self.have_ports(*receivers, holds_back=holds_back)

    def have_ports(self, *receivers: Receive, holds_back: bool) -> None:
        """
        Have one input for each receiver; for subclasses that are an operator with one input as well, whose
        constructor they call in place of this class's.
        """
        self.valve = Valve(self, receivers, holds_back)
        self.ports = self.valve.ports
        self.tables.declare_cell(INPUTS, Cell(self.valve.snapshot, self.valve.restore))

    def port(self, number: int) -> Operator:
        return self.ports[number]

    def enter_by(self, entrance: Operator) -> None:
        self.valve.operator = entrance

    def time_reached(self) -> TimeReached:
        return self.valve.time_reached()

    def resume(self) -> None:
        if self.valve.watermark > MIN_TIMESTAMP:
            self.restore_watermark(self.valve.watermark)
