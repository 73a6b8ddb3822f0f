"""
Chooses the operator for a window step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from asyncstream.operators.base import Operator
from asyncstream.windowing.assigners import SessionWindows, SlidingWindows, TumblingWindows
from asyncstream.windowing.disjoint import DisjointWindowOperator
from asyncstream.windowing.functions import can_merge
from asyncstream.windowing.operator import WindowOperator
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.sessions import SessionOperator
from asyncstream.windowing.sliding import SlidingWindowOperator

__all__ = ("operator_class", "window_operator")

WindowOperatorClass: TypeAlias = (
    type[DisjointWindowOperator] | type[SlidingWindowOperator] | type[SessionOperator] | type[WindowOperator]
)


def window_operator(key_by: Callable[[Any], Any], plan: WindowPlan) -> Operator:
    """The fastest operator that does what `plan` says; all give the same results and snapshots."""
    return operator_class(plan)(key_by, plan)


def operator_class(plan: WindowPlan) -> WindowOperatorClass:
    """Its class."""
    assigner, aggregate = plan.assigner, plan.aggregate
    if plan.plain and aggregate is not None:
        kind = type(assigner)  # a subclass may assign otherwise
        if kind is TumblingWindows and not assigner.stagger:  # type: ignore[attr-defined]
            return DisjointWindowOperator
        if isinstance(assigner, SlidingWindows) and kind is SlidingWindows:
            if assigner.slide_ms >= assigner.size_ms:
                return DisjointWindowOperator
            if aggregate.order_free and can_merge(aggregate):
                return SlidingWindowOperator
        if kind is SessionWindows:
            return SessionOperator
    return WindowOperator
