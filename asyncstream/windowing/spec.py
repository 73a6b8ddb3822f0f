"""
The spec of a window step.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncstream.operators.base import Operator
from asyncstream.operators.spec import ClockUse, KeyBy, Spec
from asyncstream.state.schema import Schema
from asyncstream.windowing.factory import operator_class, window_operator
from asyncstream.windowing.plan import COUNTERS, WindowPlan
from asyncstream.windowing.schema import window_schema

__all__ = ("WindowSpec",)


@dataclass(frozen=True)
class WindowSpec(Spec):
    """
    Groups the elements of each key by windows.

    Attributes:
        key_by: gives the key of an element.
        plan: which windows, and what is made of them.
    """

    key_by: KeyBy
    plan: WindowPlan

    counters = COUNTERS

    def build(self) -> Operator:
        return window_operator(self.key_by, self.plan)

    @property
    def operator(self) -> type[Operator]:
        return operator_class(self.plan)

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return (self.key_by,)

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(self.plan.process.sides or ()) if self.plan.process is not None else ()

    @property
    def owns(self) -> object:
        return self.plan.process

    @property
    def schema(self) -> Schema:
        return window_schema(self.plan)

    @property
    def clock(self) -> ClockUse:
        if self.plan.kept != "contents":
            ticks = self.plan.firings and self.plan.firings.ticks
            return ClockUse.MAY_EMIT if ticks and not ticks.event_time else ClockUse.NONE
        return ClockUse.WAITS if self.plan.closes_with_input else ClockUse.MAY_EMIT
