"""What stands behind an operator under test and notes everything that it pushes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncstream import ManualClock
from asyncstream.elements import Timestamps
from asyncstream.operators.base import Operator, OperatorContext, pairs

W = "watermark"
IDLE = "idle"
END = "end"
RESTORED = "restored"


class Recorder(Operator):
    """
    Keeps elements as `(value, timestamp)` and control elements as `(W, t)`, `(IDLE, bool)`, `(END,)`; what a
    restored operator says of event time as `(RESTORED, t)`.

    Attributes:
        batches: how many elements each push brought.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, ...]] = []
        self.batches: list[int] = []

    def process(self, value: Any, timestamp: int | None) -> None:
        self.seen.append((value, timestamp))

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        assert timestamps is None or len(timestamps) == len(values)
        self.seen += pairs(values, timestamps)
        self.batches.append(len(values))

    def advance_watermark(self, timestamp: int) -> None:
        self.seen.append((W, timestamp))

    def restore_watermark(self, timestamp: int) -> None:
        self.seen.append((RESTORED, timestamp))

    def set_idle(self, idle: bool) -> None:
        self.seen.append((IDLE, idle))

    def end_input(self) -> None:
        self.seen.append((END,))

    def values(self) -> list[Any]:
        return [entry[0] for entry in self.seen if entry[0] not in (W, IDLE, END, RESTORED)]


def record(operator: Operator, clock: ManualClock | None = None, wakes: list[int] | None = None) -> Recorder:
    """Open `operator` with a recorder behind it."""
    recorder = Recorder()
    operator.out = recorder
    wake = (lambda now_ms: None) if wakes is None else wakes.append
    operator.open(OperatorContext("step", clock=clock or ManualClock(), wake_at=wake))
    return recorder
