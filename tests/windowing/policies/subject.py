"""A policy window operator with a clock moved by hand and all that it puts out noted in one log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncstream.clock import ManualClock
from asyncstream.codec import codec
from asyncstream.elements import MAX_TIMESTAMP, Timestamps
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.windowing.policies import EXPIRED, LATE, SKIPPED, PolicyWindowOperator


class Note(Operator):
    """Appends (name, what, timestamp) to a log for all that it is pushed; watermarks of the main output."""

    def __init__(self, name: str, log: list[tuple[Any, ...]]) -> None:
        super().__init__()
        self.name = name
        self.log = log

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.log += [(self.name, value, timestamp) for value, timestamp in pairs(values, timestamps)]

    def advance_watermark(self, timestamp: int) -> None:
        if self.name == "window":  # side outputs get it too
            self.log.append(("watermark", timestamp, timestamp))

    def restore_watermark(self, timestamp: int) -> None:
        if self.name == "window":
            self.log.append(("restored", timestamp, timestamp))


class Subject:
    """
    Drives an operator as a runtime would.

    Attributes:
        log: (output, element, timestamp) in order; watermarks as ("watermark", time, time).
        asked_ms: the times at which the operator asked to be woken.
    """

    def __init__(self, operator: PolicyWindowOperator, now_ms: int = 0) -> None:
        self.clock = ManualClock(now_ms)
        self.log: list[tuple[Any, ...]] = []
        self.asked_ms: list[int] = []
        self.open(operator)

    def open(self, operator: PolicyWindowOperator) -> None:
        self.operator = operator
        operator.out = Note("window", self.log)
        operator.side = {tag: Note(tag, self.log) for tag in (LATE, SKIPPED, EXPIRED)}
        operator.open(OperatorContext(name="windows", clock=self.clock, wake_at=self.asked_ms.append))

    def restart(self, operator: PolicyWindowOperator) -> None:
        """Go on with a new operator from what the old one's snapshot holds, by way of bytes."""
        json = codec("json")
        state = json.decode(json.encode(self.operator.snapshot()))
        self.open(operator)
        operator.restore(state)

    def push(self, *stamps: int) -> None:
        """Elements that are their own timestamps."""
        self.operator.process_batch(stamps, stamps)

    def at(self, now_ms: int) -> None:
        self.clock.set_ms(now_ms)
        self.operator.advance_clock(now_ms)

    def pass_time(self, ms: int = 1000) -> None:
        """Let `ms` go by: 1000 is the default watermark interval."""
        self.at(self.clock.now_ms() + ms)

    def end(self) -> None:
        self.operator.advance_watermark(MAX_TIMESTAMP)
        self.operator.end_input()

    def named(self, name: str) -> list[Any]:
        return [what for entry, what, _ in self.log if entry == name]

    def windows(self) -> list[tuple[list[Any], int]]:
        """(elements, end) of each window."""
        return [(window.values, window.end_ms) for window in self.named("window")]
