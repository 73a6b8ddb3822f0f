"""
The spec of a window step: which operator does it, what its state consists of, and how that becomes the state
of a step with other aggregates.

The accumulators of named aggregates are found by their names, wherever they stood. How the state is kept,
which follows from the plan, is noted too, so that each operator learns of the state of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from asyncstream.operators.base import Operator
from asyncstream.operators.fields import fields_read
from asyncstream.operators.spec import ClockUse, KeyedSpec
from asyncstream.state.schema import Schema, described
from asyncstream.windowing.aggregates import Aggregates, Count, FieldAggregate
from asyncstream.windowing.assigners import DynamicSessionWindows, GlobalWindows
from asyncstream.windowing.base import WindowStep
from asyncstream.windowing.operator import WindowOperator
from asyncstream.windowing.pane_ticks import TickingWindowOperator
from asyncstream.windowing.panes import PaneWindowOperator
from asyncstream.windowing.plan import COUNTERS, WindowPlan
from asyncstream.windowing.sessions import SessionWindowOperator
from asyncstream.windowing.upgrade import in_tables

__all__ = ("WindowSpec", "window_operator", "window_schema")


@dataclass(frozen=True)
class WindowSpec(KeyedSpec):
    """
    Groups the elements of each key by windows.

    Attributes:
        key_by: gives the key of an element.
        plan: which windows, and what is made of them.
    """

    plan: WindowPlan

    counters = COUNTERS

    def __post_init__(self) -> None:
        self.plan.check_firing()

    def build(self) -> Operator:
        return window_operator(self.key_by, self.plan)

    @property
    def operator(self) -> type[Operator]:
        return _operator_class(self.plan)

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(self.plan.process.sides or ()) if self.plan.process is not None else ()

    @property
    def owns(self) -> object:
        return self.plan.process

    @property
    def reads(self) -> frozenset[str] | None:
        plan = self.plan
        if plan.kept == "contents" or type(plan.assigner) is DynamicSessionWindows:
            return None
        aggregate, values = plan.folding, [self.key_by]
        for part in aggregate.parts.values() if type(aggregate) is Aggregates else (aggregate,):
            if not isinstance(part, FieldAggregate) or "does" not in vars(type(part)):
                return None  # a built-in one looks at nothing but its value; a subclass may do otherwise
            if part.of is not None or type(part) is not Count:
                values.append(part.value_of)
        return fields_read(values)

    def passes_on(self, tag: str | None) -> bool:
        return tag is not None

    @property
    def schema(self) -> Schema:
        return window_schema(self.plan)

    @property
    def clock(self) -> ClockUse:
        if self.plan.kept != "contents":
            ticks = self.plan.ticks
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
    if plan.kept == "panes":
        return TickingWindowOperator if plan.ticks else PaneWindowOperator
    return SessionWindowOperator if plan.kept == "sessions" else WindowOperator


def window_schema(plan: WindowPlan) -> Schema:
    """
    The schema of the state that operators of this plan keep.

    Of a trigger the form holds what kinds it is made of, since each kind keeps state of its own; its figures
    are settings. On a global window, though, trigger and evictor say what a window is.

    Args:
        plan: windows, trigger, evictor and function.
    """
    aggregate = plan.aggregate
    trigger, evictor = described(plan.effective_trigger), described(plan.evictor)
    form: dict[str, Any] = {"window": described(plan.assigner)}
    settings: dict[str, Any] = {"allowed_lateness_ms": plan.allowed_lateness_ms, "kept": plan.kept}
    if isinstance(plan.assigner, GlobalWindows):
        form |= {"trigger": trigger, "evictor": evictor}
    else:
        form |= {"trigger": _kinds(trigger), "evictor": evictor is not None}
        settings |= {"trigger": trigger, "evictor": evictor}
    if plan.process is not None:
        settings["function"] = type(plan.process).__name__
    if isinstance(aggregate, Aggregates) and plan.evictor is None:
        form["aggregate"] = "by name"
        parts = {name: described(part) for name, part in aggregate.parts.items()}
        return Schema(form, parts, settings, partial(_rearranged, aggregate, plan))
    # with an evictor all elements are kept, whatever is made of them
    where = settings if aggregate is None or plan.evictor is not None else form
    where["aggregate"] = described(aggregate)
    return Schema(form, {}, settings, lambda state, was: state)


def _rearranged(aggregates: Aggregates, plan: WindowPlan, state: Any, was: Schema) -> Any:
    """A snapshot whose accumulators stand where `aggregates` has theirs; new ones have seen nothing."""
    places = {name: place for place, name in enumerate(was.parts)}
    if list(places) == list(aggregates.parts):
        return state
    state = in_tables(state)
    parts = [(places.get(name), part) for name, part in aggregates.parts.items()]

    def moved(accumulator: Any) -> list[Any]:
        return [part.save(part.create()) if place is None else accumulator[place] for place, part in parts]

    tables = dict(state["tables"])
    is_numbered = bool({"slices", "closed"} & tables.keys()) and not plan.slicing.is_disjoint

    def numbered(kept: Any) -> Any:
        return [moved(kept[0]), kept[1]] if is_numbered else moved(kept)

    changes: dict[str, Callable[[Any], Any]] = {
        "contents": moved,
        "open": moved,
        "slices": numbered,
        "closed": lambda parts: [numbered(part) for part in parts],
        "sessions": lambda sessions: [[*one[:2], moved(one[2]), *one[3:]] for one in sessions],
    }
    for name in changes.keys() & tables.keys():
        change = changes[name]
        tables[name] = [[place, [[key, change(kept)] for key, kept in rows]] for place, rows in tables[name]]
    return {**state, "tables": tables}


def _kinds(trigger: Any) -> Any:
    """Of a described trigger, the types that it is made of."""
    if not isinstance(trigger, Mapping) or "type" not in trigger:
        return None
    inside = {name: _kinds(part) for name, part in trigger.items() if name != "type"}
    return {"type": trigger["type"], **{name: part for name, part in inside.items() if part is not None}}
