"""
Several streams become one: elements as they come, the watermark of the slowest.

After Flink's StatusWatermarkValve. Each input has a `Port`. An input is *active* unless it is idle or has
ended. The watermark downstream is the smallest over the active inputs that have *caught up*: whose own
watermark is not behind the one downstream. An input that comes back from idleness may be behind, since the
others went on without it. It does not hold them back until it has caught up; what it brings meanwhile may be
late. Only a watermark moves event time on, never an input's return.

When the last active input turns idle, there is none to wait for: the largest watermark seen goes out, then
the idle status. If that input had not caught up, event time stays where it is, as in Flink. Watermarks that
idle inputs give all the same, because a step upstream follows the clock, count while all inputs are idle.

One difference: the end of an input (a watermark at the end of time) says nothing about the others, and it
counts no more. Flink takes it for a watermark, so event time jumps to its end while an input that is idle, or
has not caught up, is still to bring elements, all of which would be late.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.operators.base import Operator
from asyncstream.state.schema import Schema

__all__ = ("Port", "Union", "union_schema")


class Port(Operator):
    """
    One input of a `Union`.

    Attributes:
        watermark: the input's last one before its end, milliseconds since the epoch.
        idle: it says that it is not to be waited for.
        over: its event time had come to its end, in this run or in the one that was restored; it may go on.
        closed: its event time has come to its end in this run.
        ended: nothing follows.
    """

    def __init__(self, union: Union) -> None:
        super().__init__()
        self.union = union
        self.watermark = MIN_TIMESTAMP
        self.idle = False
        self.over = False
        self.closed = False
        self.ended = False

    def process(self, value: Any, timestamp: int | None) -> None:
        self.union.out.process(value, timestamp)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.union.out.process_batch(values, timestamps)

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            if self.closed:
                return
            self.closed = True
            if self.over:
                self.union.port_closed()
            else:
                self.over = True
                self.union.port_left(self)
        elif timestamp > self.watermark:
            self.over = False
            self.watermark = timestamp
            self.union.port_moved(self)

    def restore_watermark(self, timestamp: int) -> None:
        if timestamp > self.watermark:  # of a union that has been added since
            self.watermark = timestamp
            self.union.port_restored()

    def set_idle(self, idle: bool) -> None:
        if idle is self.idle:
            return
        self.idle = idle
        if self.is_running():
            if idle:
                self.union.port_left(self)
            else:
                self.union.port_is_back()

    def end_input(self) -> None:
        if self.ended:
            return
        self.ended = True
        if not self.over:
            self.union.port_left(self)
        self.union.port_ended()

    def is_running(self) -> bool:
        """Whether a watermark of it may follow."""
        return not (self.over or self.ended)

    def is_active(self) -> bool:
        """Whether it is waited for, once it has caught up."""
        return self.is_running() and not self.idle


class Union(Operator):
    """
    Emits when: any input does; watermarks when the slowest active input that has caught up moves.

    Completes when: every input has ended.
    Snapshot holds: watermark and idleness, its own and each input's, and which inputs were at their end.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.ports = tuple(Port(self) for _ in range(inputs))
        self._watermark = MIN_TIMESTAMP  # downstream; stays as it was when event time comes to its end
        self._idle = False

    def port_moved(self, port: Port) -> None:
        """An input has a new watermark."""
        if port.is_active():
            self.port_is_back()  # of a restored union, whose inputs that had ended go on
            self._follow_slowest()
        elif self._idle:
            self._advance(port.watermark)

    def port_left(self, port: Port) -> None:
        """An input that was running, and perhaps active, is idle or over."""
        running = [one for one in self.ports if one.is_running()]
        if any(one.is_active() for one in running):
            if port.watermark == self._watermark or not port.is_running():
                self._follow_slowest()
        elif running:
            if port.watermark == self._watermark:  # else it had not caught up
                self._advance(max(one.watermark for one in running))
            if not self._idle:
                self._idle = True
                super().set_idle(True)
        else:
            self.port_closed()

    def port_closed(self) -> None:
        """Event time of an input has come to its end."""
        if all(port.closed for port in self.ports):
            super().advance_watermark(MAX_TIMESTAMP)

    def port_is_back(self) -> None:
        """An input is active, which it may not have been."""
        if self._idle:
            self._idle = False
            super().set_idle(False)

    def port_ended(self) -> None:
        """Nothing follows on an input."""
        if all(port.ended for port in self.ports):
            super().end_input()

    def port_restored(self) -> None:
        """An input says how far it had come in an earlier run, in which there was no union."""
        lowest = min(port.watermark for port in self.ports)
        if lowest > self._watermark:
            self._watermark = lowest
            super().restore_watermark(lowest)

    def _follow_slowest(self) -> None:
        caught_up = [
            port.watermark for port in self.ports if port.is_active() and port.watermark >= self._watermark
        ]
        if caught_up:
            self._advance(min(caught_up))

    def _advance(self, timestamp: int) -> None:
        if timestamp > self._watermark:
            self._watermark = timestamp
            super().advance_watermark(timestamp)

    def snapshot(self) -> Any:
        ports = [[port.watermark, port.idle, port.over or port.ended] for port in self.ports]
        return [self._watermark, ports, self._idle]

    def restore(self, state: Any) -> None:
        self._watermark, ports, *rest = state
        for port, (watermark, idle, *over) in zip(self.ports, ports, strict=True):
            port.watermark, port.idle = watermark, idle
            port.over = bool(over and over[0])  # older snapshots do not say; its source says it again
        self._idle = rest[0] if rest else all(port.idle for port in self.ports)

    def resume(self) -> None:
        if self._watermark > MIN_TIMESTAMP:
            super().restore_watermark(self._watermark)


def union_schema(inputs: Sequence[str]) -> Schema:
    """The schema of a union of these inputs, by name: each finds its watermark again, wherever it stands."""
    names = [
        f"{name} ({inputs[:place].count(name) + 1})" if name in inputs[:place] else name
        for place, name in enumerate(inputs)
    ]
    return Schema(parts=dict.fromkeys(names, "an input"), convert=partial(_rearranged, names))


def _rearranged(names: Sequence[str], state: Any, was: Schema) -> Any:
    watermark, ports, *idle = state
    known = dict(zip(was.parts, ports, strict=True))
    return [watermark, [known.get(name, [MIN_TIMESTAMP, False]) for name in names], *idle]
