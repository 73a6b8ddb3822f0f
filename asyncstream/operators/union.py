"""
Several streams become one: elements as they come, the watermark of the slowest.

After Flink's StatusWatermarkValve. Each input has a `Port`. The watermark downstream is the smallest over
the ports that are neither idle nor ended. When the last active port turns idle, nobody is left to wait
for: the largest watermark seen goes out, then the idle status.

One difference: the end of an input (a watermark at the end of time) says nothing about the others. Event
time does not jump to its end while an idle input may still come back, for all it brought would be late.
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
    """One input of a `Union`."""

    def __init__(self, union: Union) -> None:
        super().__init__()
        self.union = union
        self.watermark = MIN_TIMESTAMP
        self.last = MIN_TIMESTAMP  # the watermark before the end
        self.idle = False
        self.ended = False

    def process(self, value: Any, timestamp: int | None) -> None:
        self.union.out.process(value, timestamp)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.union.out.process_batch(values, timestamps)

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp > self.watermark:
            self.watermark = timestamp
            if timestamp < MAX_TIMESTAMP:
                self.last = timestamp
            self.union.update()

    def set_idle(self, idle: bool) -> None:
        if idle is not self.idle:
            self.idle = idle
            self.union.update()

    def end_input(self) -> None:
        self.ended = True
        self.union.update()


class Union(Operator):
    """
    Emits when: any input does; watermarks when the slowest active input moves.

    Completes when: every input has ended.
    Snapshot holds: the watermark, and watermark and idleness of each input.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.ports = tuple(Port(self) for _ in range(inputs))
        self._watermark = MIN_TIMESTAMP
        self._last = MIN_TIMESTAMP  # the watermark before the end
        self._idle = False

    def update(self) -> None:
        """A port has changed: pass on what follows from it."""
        running = [port for port in self.ports if not port.ended and port.watermark < MAX_TIMESTAMP]
        active = [port.watermark for port in running if not port.idle]
        if active and self._idle:
            self._idle = False
            super().set_idle(False)
        lowest = min(active) if active else max(port.watermark for port in running or self.ports)
        if lowest > self._watermark:
            self._watermark = lowest
            if lowest < MAX_TIMESTAMP:
                self._last = lowest
            super().advance_watermark(lowest)
        if all(port.ended for port in self.ports):
            super().end_input()
        elif running and not active and not self._idle:
            self._idle = True
            super().set_idle(True)

    def snapshot(self) -> Any:
        # not the end of an input, which its source says again
        return [self._last, [[port.last, port.idle] for port in self.ports]]

    def restore(self, state: Any) -> None:
        self._last, ports = state
        for port, (watermark, idle) in zip(self.ports, ports, strict=True):
            port.watermark = port.last = watermark
            port.idle = idle
        self.update()

    def resume(self) -> None:
        if self._last > self._watermark:
            self._watermark = self._last
            super().advance_watermark(self._last)


def union_schema(inputs: Sequence[str]) -> Schema:
    """The schema of a union of these inputs, by name: each finds its watermark again, wherever it stands."""
    names = [
        f"{name} ({inputs[:place].count(name) + 1})" if name in inputs[:place] else name
        for place, name in enumerate(inputs)
    ]
    return Schema(parts=dict.fromkeys(names, "an input"), convert=partial(_rearranged, names))


def _rearranged(names: Sequence[str], state: Any, was: Schema) -> Any:
    last, ports = state
    known = dict(zip(was.parts, ports, strict=True))
    return [last, [known.get(name, [MIN_TIMESTAMP, False]) for name in names]]
