"""
Chooses the operator for a window step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from asyncstream.operators.base import Operator
from asyncstream.windowing.operator import WindowOperator
from asyncstream.windowing.panes import PaneWindowOperator
from asyncstream.windowing.plan import Kept, WindowPlan
from asyncstream.windowing.sessions import SessionWindowOperator
from asyncstream.windowing.step import WindowStep
from asyncstream.windowing.ticking import TickingWindowOperator

__all__ = ("operator_class", "window_operator")

_KINDS: Final[dict[Kept, type[WindowStep]]] = {
    "panes": PaneWindowOperator,
    "sessions": SessionWindowOperator,
    "contents": WindowOperator,
}


def window_operator(key_by: Callable[[Any], Any], plan: WindowPlan) -> Operator:
    """
    The fastest operator that does what `plan` says; all give the same results.

    Args:
        key_by: gives the key of an element.
        plan: windows, trigger, evictor and function.
    """
    return operator_class(plan)(key_by, plan)


def operator_class(plan: WindowPlan) -> type[WindowStep]:
    """Its class."""
    ticks = plan.kept == "panes" and plan.firings is not None and plan.firings.ticks
    return TickingWindowOperator if ticks else _KINDS[plan.kept]
