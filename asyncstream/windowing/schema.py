"""
What a window step's state consists of, and how it becomes that of a step with other aggregates.

The accumulators of named aggregates are found by their names, wherever they stood. How the state is kept,
which follows from the plan, is noted too, so that each operator learns of the state of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from asyncstream.state.schema import Schema, described
from asyncstream.windowing.aggregates import Aggregates
from asyncstream.windowing.assigners import GlobalWindows, WindowAssigner
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.slices import slicing_of

__all__ = ("window_schema",)


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
    if aggregate is None or plan.evictor is not None:  # all elements are kept, whatever is made of them
        settings["aggregate"] = described(aggregate)
        return Schema(form, {}, settings, _as_it_is)
    if not isinstance(aggregate, Aggregates):
        form["aggregate"] = described(aggregate)
        return Schema(form, {}, settings, _as_it_is)
    form["aggregate"] = "by name"
    parts = {name: described(part) for name, part in aggregate.parts.items()}
    return Schema(form, parts, settings, partial(_rearranged, aggregate, plan.assigner))


def _rearranged(aggregates: Aggregates, assigner: WindowAssigner, state: Any, was: Schema) -> Any:
    """A snapshot whose accumulators stand where `aggregates` has theirs; new ones have seen nothing."""
    places = {name: place for place, name in enumerate(was.parts)}
    if list(places) == list(aggregates.parts):
        return state
    parts = [(places.get(name), part) for name, part in aggregates.parts.items()]

    def moved(accumulator: Any) -> list[Any]:
        return [part.save(part.create()) if place is None else accumulator[place] for place, part in parts]

    if "tables" not in state:  # of version 0.2
        return {
            **state,
            "contents": [[key, window, moved(accumulator)] for key, window, accumulator in state["contents"]],
        }
    tables = dict(state["tables"])
    for name in {"contents", "slices", "closed", "open"} & tables.keys():
        change: Callable[[Any], Any] = moved
        if name in ("slices", "closed") and not slicing_of(assigner).is_disjoint:
            change = _numbered(moved) if name == "slices" else _each(_numbered(moved))
        tables[name] = [
            [place, [[key, change(accumulator)] for key, accumulator in rows]] for place, rows in tables[name]
        ]
    if "sessions" in tables:
        tables["sessions"] = [
            [place, [[key, [_with_held(one, moved) for one in sessions]] for key, sessions in rows]]
            for place, rows in tables["sessions"]
        ]
    return {**state, "tables": tables}


def _numbered(moved: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    """The same for what has a number behind it."""
    return lambda kept: [moved(kept[0]), kept[1]]


def _each(change: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda kept: [change(part) for part in kept]


def _with_held(session: Any, moved: Callable[[Any], Any]) -> list[Any]:
    start, end, accumulator, *rest = session
    return [start, end, moved(accumulator), *rest]


def _as_it_is(state: Any, was: Schema) -> Any:
    return state


def _kinds(trigger: Any) -> Any:
    """Of a described trigger, the types that it is made of."""
    if not isinstance(trigger, Mapping) or "type" not in trigger:
        return None
    inside = {name: _kinds(part) for name, part in trigger.items() if name != "type"}
    return {"type": trigger["type"], **{name: part for name, part in inside.items() if part is not None}}
