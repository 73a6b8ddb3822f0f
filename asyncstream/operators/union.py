"""
Several streams become one: elements as they come, the watermark of the slowest.

After Flink's StatusWatermarkValve. Each input has a `Port`. The watermark downstream is the smallest over
the ports that are neither idle nor ended. When the last active port turns idle, nobody is left to wait
for: the largest watermark seen goes out, then the idle status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncstream.elements import MIN_TIMESTAMP, Timestamps
from asyncstream.operators.base import Operator

__all__ = ("Port", "Union")


class Port(Operator):
    """One input of a `Union`."""

    def __init__(self, union: Union) -> None:
        super().__init__()
        self.union = union
        self.watermark = MIN_TIMESTAMP
        self.idle = False
        self.ended = False

    def process(self, value: Any, timestamp: int | None) -> None:
        self.union.out.process(value, timestamp)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.union.out.process_batch(values, timestamps)

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp > self.watermark:
            self.watermark = timestamp
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
    Snapshot holds: watermark and idleness of each input.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.ports = tuple(Port(self) for _ in range(inputs))
        self._watermark = MIN_TIMESTAMP
        self._idle = False

    def update(self) -> None:
        """A port has changed: pass on what follows from it."""
        active = [port.watermark for port in self.ports if not port.idle and not port.ended]
        if active and self._idle:
            self._idle = False
            super().set_idle(False)
        lowest = min(active) if active else max(port.watermark for port in self.ports)
        if lowest > self._watermark:
            self._watermark = lowest
            super().advance_watermark(lowest)
        if active:
            return
        if all(port.ended for port in self.ports):
            super().end_input()
        elif not self._idle:
            self._idle = True
            super().set_idle(True)

    def snapshot(self) -> Any:
        return [[port.watermark, port.idle] for port in self.ports]

    def restore(self, state: Any) -> None:
        for port, (watermark, idle) in zip(self.ports, state, strict=True):
            port.watermark, port.idle = watermark, idle
        self.update()
