"""
Sliding windows that overlap: in slices as long as the order of elements does not matter, then one by one.

Slices are merged by time, not in the order of their elements. For sums of integers that is the same; for sums
of floats, whose digits hang on the grouping, for texts or for a NaN among numbers it is not. So the aggregate
says of each element whether order matters with it (`AggregateFunction.is_order_free`). With the first such
element all that is held moves to where each element is added to each of its windows in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asyncstream.elements import MIN_TIMESTAMP, Timestamps
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.state import Frozen
from asyncstream.windowing.functions import OrderMatters
from asyncstream.windowing.overlapping import OverlappingWindowOperator
from asyncstream.windowing.plain import PlainWindowOperator
from asyncstream.windowing.plan import SNAPSHOT, WindowPlan
from asyncstream.windowing.sliced import SlicedWindowOperator

__all__ = ("SlidingWindowOperator",)


class SlidingWindowOperator(Operator):
    """
    Emits, completes and counts as `WindowOperator` does.

    Snapshot holds: what that of `WindowOperator` does.
    """

    layout = SNAPSHOT

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        """
        Args:
            key_by: gives the key of an element; keys are hashable and compare by value.
            plan: what to do.
        """
        super().__init__()
        self._key_by = key_by
        self._plan = plan
        self._watermark = MIN_TIMESTAMP
        self._inner: PlainWindowOperator = SlicedWindowOperator(key_by, plan)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._enter(self._inner)

    def process(self, value: Any, timestamp: int | None) -> None:
        try:
            self._inner.process(value, timestamp)
        except OrderMatters as found:
            self._go_on_in_order(found.rest)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        try:
            self._inner.process_batch(values, timestamps)
        except OrderMatters as found:
            self._go_on_in_order(found.rest)

    def advance_watermark(self, timestamp: int) -> None:
        self._watermark = timestamp
        self._inner.advance_watermark(timestamp)

    def restore_watermark(self, timestamp: int) -> None:
        self._watermark = timestamp
        self._inner.restore_watermark(timestamp)

    def end_input(self) -> None:
        self._inner.end_input()

    def snapshot(self) -> Any:
        return self._inner.snapshot()

    def capture(self) -> Frozen[Any]:
        return self._inner.capture()

    def restore(self, state: Any) -> None:
        aggregate: Any = self._plan.aggregate
        if not all(aggregate.holds_order_free(aggregate.load(held)) for _, _, held in state["contents"]):
            self._leave_slices()
        self._inner.restore(state)

    def hand_over(self) -> Any:
        return isinstance(self._inner, OverlappingWindowOperator), self._inner.hand_over()

    def take_over(self, state: Any) -> None:
        is_whole, held = state
        if is_whole:
            self._leave_slices()
        self._inner.take_over(held)

    def due_ms(self) -> int | None:
        return self._inner.due_ms()

    def metrics(self) -> dict[str, int]:
        return self._inner.metrics()

    def _enter(self, inner: PlainWindowOperator) -> None:
        self._inner = inner
        inner.out, inner.side = self.out, self.side
        inner.open(self.context)

    def _leave_slices(self) -> PlainWindowOperator:
        """Have an operator that keeps the order of elements do the rest; it holds nothing yet."""
        self._enter(OverlappingWindowOperator(self._key_by, self._plan))
        self._inner.go_on_at(self._watermark)  # what is late for us is late for it
        return self._inner

    def _go_on_in_order(self, rest: Sequence[tuple[Any, int | None]]) -> None:
        state = self._inner.snapshot()
        self._leave_slices().restore(state)
        values, timestamps = zip(*rest, strict=True)
        self._inner.process_batch(values, timestamps)
