"""
The spec of a window step, and which operator does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from asyncstream.operators.base import Operator
from asyncstream.operators.spec import ClockUse, KeyBy, Spec
from asyncstream.state.schema import Schema
from asyncstream.windowing.base import WindowStep
from asyncstream.windowing.operator import WindowOperator
from asyncstream.windowing.pane_ticks import TickingWindowOperator
from asyncstream.windowing.panes import PaneWindowOperator
from asyncstream.windowing.plan import COUNTERS, Kept, WindowPlan
from asyncstream.windowing.schema import window_schema
from asyncstream.windowing.sessions import SessionWindowOperator

__all__ = ("WindowSpec", "window_operator")

_KINDS: Final[dict[Kept, type[WindowStep]]] = {
    "panes": PaneWindowOperator,
    "sessions": SessionWindowOperator,
    "contents": WindowOperator,
}


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
        return _operator_class(self.plan)

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


def window_operator(key_by: Callable[[Any], Any], plan: WindowPlan) -> Operator:
    """
    The fastest operator that does what `plan` says; all give the same results.

    Args:
        key_by: gives the key of an element.
        plan: windows, trigger, evictor and function.
    """
    return _operator_class(plan)(key_by, plan)


def _operator_class(plan: WindowPlan) -> type[WindowStep]:
    ticks = plan.kept == "panes" and plan.firings is not None and plan.firings.ticks
    return TickingWindowOperator if ticks else _KINDS[plan.kept]
