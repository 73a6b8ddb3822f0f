"""
Runs scripts against window operators and writes down what comes out.

A script is a list of steps: ("el", value, timestamp), ("wm", timestamp), ("pt", now_ms), ("restart",), and
after that ("known", timestamp), the watermark that is known again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from asyncstream.clock import ManualClock
from asyncstream.codec import Codec, JsonCodec
from asyncstream.elements import Timestamps
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.windowing import WindowPlan
from asyncstream.windowing.upgrade import Pane, panes_of
from tests.on_disk import bring_away, keep_on_disk

Step = tuple[Any, ...]


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


class Recorder(Operator):
    """Writes down what an operator pushes into one of its outputs."""

    def __init__(self, name: str, records: list[Any]) -> None:
        super().__init__()
        self.name, self.records = name, records

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.records.extend((self.name, value, timestamp) for value, timestamp in pairs(values, timestamps))

    def advance_watermark(self, timestamp: int) -> None:
        if self.name == "out":  # side outputs get it too
            self.records.append(("wm", timestamp))


class Harness:
    """
    One operator, or several in turn: at each restart the next of `makers` makes the operator.

    Attributes:
        records: ("out" or a side tag, value, timestamp) and ("wm", timestamp), in order.
        operator: the one that runs now.
        woken: what it has asked the driver to be woken at.
    """

    def __init__(
        self,
        *makers: Callable[[], Operator],
        side: Iterable[str] = ("late",),
        codec: Codec | None = None,
        on_disk: bool = False,
    ) -> None:
        self.records: list[Any] = []
        self.clock = ManualClock()
        self.woken: list[int] = []
        self._side = tuple(side)
        self._makers = makers
        self._restarts = 0
        self._on_disk = on_disk
        self._codec = JsonCodec() if codec is None else codec
        self.operator = self._opened()

    def _opened(self) -> Operator:
        operator = self._makers[self._restarts % len(self._makers)]()
        operator.out = Recorder("out", self.records)
        operator.side = {tag: Recorder(tag, self.records) for tag in self._side}
        if self._on_disk:
            keep_on_disk(operator)
        operator.open(OperatorContext(name="windows", clock=self.clock, wake_at=self.woken.append))
        return operator

    def element(self, value: Any, timestamp: int | None = None) -> None:
        self.operator.process(value, timestamp)

    def watermark(self, timestamp: int) -> None:
        self.operator.advance_watermark(timestamp)

    def time(self, now_ms: int) -> None:
        self.clock.set_ms(now_ms)
        self.operator.advance_clock(now_ms)

    def restart(self) -> None:
        """Snapshot to bytes, and on with a new operator."""
        kept = self._codec.encode(self.operator.snapshot())
        self.operator.close()
        self._restarts += 1
        self.operator = self._opened()
        self.operator.restore(self._codec.decode(kept))

    def run(self, script: Iterable[Step], batched: bool = False) -> list[Any]:
        """
        Run the steps, adjacent elements in one batch if `batched`; gives the records.

        On disk, all that is remembered is brought there after each.
        """
        values: list[Any] = []
        timestamps: list[int | None] = []

        def flush() -> None:
            if values:
                self.operator.process_batch(tuple(values), tuple(timestamps))
                values.clear()
                timestamps.clear()

        for kind, *arguments in script:
            if kind == "el" and batched:
                values.append(arguments[0])
                timestamps.append(arguments[1])
                continue
            flush()
            if kind == "el":
                self.element(*arguments)
            elif kind == "wm":
                self.watermark(arguments[0])
            elif kind == "pt":
                self.time(arguments[0])
            elif kind == "restart":
                self.restart()
            elif kind == "known":
                self.operator.restore_watermark(arguments[0])
            if self._on_disk:
                bring_away(self.operator.tables)
        flush()
        return self.records

    def panes(self, plan: WindowPlan) -> list[Pane]:
        """What the operator holds, whatever its kind: what is pending comes in the order of its firing."""
        return panes_of(self.operator.snapshot(), plan)

    def outputs(self) -> list[Any]:
        """Values of the main output, and forget them."""
        found = [record[1] for record in self.records if record[0] == "out"]
        self.records.clear()
        return found
