"""
Chooses the operator for a window step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncstream.operators.base import Operator
from asyncstream.windowing.assigners import SessionWindows, SlidingWindows, TumblingWindows
from asyncstream.windowing.disjoint import DisjointWindowOperator
from asyncstream.windowing.functions import can_merge
from asyncstream.windowing.operator import WindowOperator
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.sessions import SessionOperator
from asyncstream.windowing.sliding import SlidingWindowOperator

__all__ = ("window_operator",)


def window_operator(key_by: Callable[[Any], Any], plan: WindowPlan) -> Operator:
    """The fastest operator that does what `plan` says; all give the same results and snapshots."""
    assigner, aggregate = plan.assigner, plan.aggregate
    if plan.plain and aggregate is not None:
        kind = type(assigner)  # a subclass may assign otherwise
        if kind is TumblingWindows and not assigner.stagger:  # type: ignore[attr-defined]
            return DisjointWindowOperator(key_by, plan)
        if isinstance(assigner, SlidingWindows) and kind is SlidingWindows:
            if assigner.slide_ms >= assigner.size_ms:
                return DisjointWindowOperator(key_by, plan)
            if aggregate.order_free and can_merge(aggregate):
                return SlidingWindowOperator(key_by, plan)
        if kind is SessionWindows:
            return SessionOperator(key_by, plan)
    return WindowOperator(key_by, plan)
