"""
Snapshots of one kind of window operator as snapshots of another.

A plan may change between two runs such that another kind serves it, for instance when its process function
gets a `clear`. What all kinds have in common are the contents of each window of each key: every kind gives
them and can be made of them. So does version 0.2, in which all kinds had one form:

* contents: (key, window, accumulator), windows as plain tuples;
* merging: (key, window, state window) of each open session;
* timers: (timestamp, key, window) by domain;
* trigger, key, window: keyed state of triggers and of the function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, NamedTuple

from asyncstream.errors import CheckpointError, safe_repr
from asyncstream.state.tables import Rule, Snapshot
from asyncstream.state.upgrade import by_namespace, keyed_state, snapshot, timers
from asyncstream.windowing.aggregates import in_place
from asyncstream.windowing.functions import AggregateFunction
from asyncstream.windowing.plan import COUNTERS, Kept, WindowPlan
from asyncstream.windowing.slices import Slicing, Span, slicing_of
from asyncstream.windowing.triggers import Ticks

__all__ = (
    "RULES",
    "Contents",
    "Pane",
    "as_contents",
    "as_sessions",
    "as_windows",
    "contents_of",
    "kind_of",
    "numbered",
    "upgraded_contents",
    "whole_windows",
)

RULES: Final[dict[str, Rule]] = {
    "late_dropped": "sum",
    "outside_windows": "sum",
    "anchor_ms": "min",
    "fired_ms": "max",
    "lateness_ms": "max",
    "number": "max",
    "in_order": "max",
    "trigger": "merge",
    "key": "merge",
    "window": "merge",
}
"""Of the cells of all kinds of operators, how those of several parts become one."""

_TOLD_BY: Final[dict[str, Kept]] = {"fired_ms": "panes", "anchor_ms": "contents", "number": "sessions"}
"""By the first of these cells that is there: which kind of operator. Tables without rows may be absent."""


class Pane(NamedTuple):
    """
    One window of one key.

    Attributes:
        key: whose window.
        window: which one, as a plain tuple.
        held: what it holds, as the aggregate saved it.
        pending: whether it is still to fire at its end.
    """

    key: Any
    window: Any
    held: Any
    pending: bool


@dataclass(slots=True)
class Contents:
    """
    What a window operator remembers, of whatever kind it is.

    Attributes:
        panes: those that are pending come in the order in which they will fire.
        tables: the state of the process function.
        cells: what is counted, and the kinds of that state.
    """

    panes: list[Pane]
    tables: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, Any] = field(default_factory=dict)

    def snapshot(self, tables: Mapping[str, Any], cells: Mapping[str, Any]) -> Snapshot:
        """These tables and cells instead of the panes."""
        every = {**self.cells, **cells}
        return snapshot({**self.tables, **tables}, every, {name: RULES[name] for name in every})


def kind_of(state: Any) -> Kept | None:
    """
    Which kind of operator took a snapshot; None: one of version 0.2.

    Raises:
        CheckpointError: if that cannot be told.
    """
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"it holds {safe_repr(state)}, which another version of asyncstream kept in another form; start "
            "without it, or go on with that version"
        )
    if "tables" not in state:
        return None
    for name, kind in _TOLD_BY.items():
        if name in state["cells"]:
            return kind
    raise CheckpointError(f"it holds {', '.join(state['cells'])}, which are not of windows")


def contents_of(state: Any, plan: WindowPlan) -> Contents:
    """What a snapshot of any kind of operator holds, or of version 0.2."""
    kind = kind_of(state)
    if kind is None:
        state, kind = upgraded_contents(state), "contents"
    beside = ("key/", "window/", "trigger/", *(["timers/"] if kind == "panes" else []))
    tables = {name: rows for name, rows in state["tables"].items() if name.startswith(beside)}
    if kind == "contents" and plan.kept == "panes" and plan.firings is not None and plan.firings.ticks:
        tables |= _ticks(state["tables"], plan.firings.ticks)
    cells = {name: state["cells"][name] for name in (*COUNTERS, "key", "window")}
    return Contents(_GIVE[kind](state, plan), tables, cells)


# ------------------------------------------------------------------ what each kind gives


def _panes(contents: Iterable[Any], merging: Iterable[Any], event_timers: Iterable[Any]) -> Iterator[Pane]:
    names = {(key, tuple(place)): tuple(window) for key, window, place in merging}
    held_by: dict[tuple[Any, Any], Any] = {}
    for key, place, held in contents:
        held_by[key, names.get((key, tuple(place)), tuple(place))] = held
    for timestamp, key, place in event_timers:
        window = tuple(place)
        if window and timestamp == window[1] - 1 and (key, window) in held_by:
            yield Pane(key, window, held_by.pop((key, window)), True)
    for (key, window), held in held_by.items():
        yield Pane(key, window, held, False)


def _ticks(tables: Mapping[str, Any], ticks: Ticks) -> dict[str, Any]:
    """The timers of ticks: in event time those before the last millisecond of their window."""
    name = "timers/event" if ticks.event_time else "timers/processing"
    kept = [
        (timestamp, [row for row in rows if not ticks.event_time or timestamp < row[0][1][1] - 1])
        for timestamp, rows in tables.get(name, ())
    ]
    return {name: [[timestamp, rows] for timestamp, rows in kept if rows]}


def _of_contents(state: Snapshot, plan: WindowPlan) -> list[Pane]:
    tables = state["tables"]
    contents = ((key, place, held) for place, rows in tables.get("contents", ()) for key, held in rows)
    merging = (
        (key, window, place)
        for _, rows in tables.get("merging", ())
        for key, windows in rows
        for window, place in windows
    )
    event_timers = (
        (timestamp, key, place)
        for timestamp, rows in sorted(tables.get("timers/event", ()), key=lambda kept: kept[0])
        for (key, place), _ in rows
    )
    return list(_panes(contents, merging, event_timers))


def _of_sessions(state: Snapshot, plan: WindowPlan) -> list[Pane]:
    found = [
        ((end, number), Pane(key, (start, end), held, armed))
        for _, rows in state["tables"].get("sessions", ())
        for key, sessions in rows
        for start, end, held, number, armed in sessions
    ]
    return [pane for _, pane in sorted(found, key=lambda numbered: numbered[0])]


def _of_slices(state: Snapshot, plan: WindowPlan) -> list[Pane]:
    slicing, aggregate = slicing_of(plan.assigner), in_place(plan.folding)
    tables, cells = state["tables"], state["cells"]
    load = plan.folding.load if slicing.is_disjoint else numbered(aggregate)[1]
    slices = {
        tuple(place): {key: load(held) for key, held in rows} for place, rows in tables.get("slices", ())
    }
    closed = {
        tuple(place): {key: [load(held) for held in parts] for key, parts in rows}
        for place, rows in tables.get("closed", ())
    }
    fired_ms, lateness_ms = cells["fired_ms"], cells["lateness_ms"]
    found: dict[tuple[Any, Any], Pane] = {}
    for name in ("open", "done"):
        for place, rows in tables.get(name, ()):
            for key, held in rows:
                found[key, tuple(place)] = Pane(key, tuple(place), held, name == "open")
    for window, by_key in whole_windows(slicing, plan.folding, slices, closed).items():
        last_ms = window[1] - 1
        for key, held in by_key.items() if last_ms + lateness_ms > fired_ms else ():
            before = found.get((key, window))
            if before is not None:
                held = aggregate.merge(aggregate.load(before.held), held)
                if not before.pending:  # it fires in the order of its first element since
                    del found[key, window]
            pending = last_ms > fired_ms or (before is not None and before.pending)
            found[key, window] = Pane(key, window, aggregate.save(held), pending)
    return sorted(found.values(), key=lambda pane: (pane.window[1], not pane.pending))


_GIVE: Final[dict[Kept, Callable[[Snapshot, WindowPlan], list[Pane]]]] = {
    "panes": _of_slices,
    "sessions": _of_sessions,
    "contents": _of_contents,
}


def numbered(aggregate: AggregateFunction[Any, Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """`save` and `load` for accumulators in lists, behind each of which stands a number."""
    save, load = aggregate.save, aggregate.load
    return lambda held: [save(held), held[-1]], lambda kept: [*load(kept[0]), kept[1]]


def whole_windows(
    slicing: Slicing,
    aggregate: AggregateFunction[Any, Any],
    slices: Mapping[Span, Mapping[Any, Any]],
    closed: Mapping[Span, Mapping[Any, Sequence[Any]]],
) -> dict[Span, dict[Any, Any]]:
    """
    By window and key the accumulators, in lists, of windows that are kept in slices, which are of no use
    afterwards.

    Args:
        slices: accumulators by slice and key; where slices overlap, in lists with the number of the first
            element behind them. Keys come in the order of these.
        closed: those of epochs before.
    """
    listed = in_place(aggregate)
    if slicing.is_disjoint:
        is_listed = listed is aggregate
        return {
            window: {key: held if is_listed else [held] for key, held in slices[window].items()}
            for window in sorted(slices)
        }
    parts = [(place[0], key, held) for place, rows in slices.items() for key, held in rows.items()]
    for place, rows in closed.items():
        parts += [(place[0], key, held) for key, several in rows.items() for held in several]
    found: dict[Span, dict[Any, Any]] = {}
    for start, key, held in sorted(parts, key=lambda part: part[2][-1]):
        for window in slicing.windows_of(start):
            by_key = found.setdefault(window, {})
            by_key[key] = listed.merge(by_key[key] if key in by_key else listed.create(), held)
    return found


# ------------------------------------------------------------------ what each kind is made of


def upgraded_contents(state: Mapping[str, Any]) -> Snapshot:
    """Of version 0.2, what `WindowOperator` remembered."""
    kept = {name: keyed_state(name, state[name]) for name in ("key", "window", "trigger")}
    merging: dict[Any, list[Any]] = {}
    for key, window, place in state["merging"]:
        merging.setdefault(key, []).append([window, place])
    tables = {
        "contents": by_namespace((place, key, held) for key, place, held in state["contents"]),
        "merging": [[None, [[key, windows] for key, windows in merging.items()]]],
        **timers(state["timers"]),
    }
    cells: dict[str, Any] = {name: state[name] for name in ("anchor_ms", *COUNTERS)}
    for name, (rows, kinds) in kept.items():
        tables |= rows
        cells[name] = kinds
    return Contents([]).snapshot(tables, cells)


def as_contents(found: Contents, plan: WindowPlan) -> Snapshot:
    """A snapshot for `WindowOperator`: each window of each key has timers of its own."""
    set_timers: list[tuple[int, Any, Any]] = []
    for timestamp, rows in found.tables.get("timers/event", ()):
        set_timers += [(timestamp, key, window) for (key, window), _ in rows]
    merging: dict[Any, list[Any]] = {}
    for key, window, _, pending in found.panes:
        last_ms = window[1] - 1
        if pending:
            set_timers.append((last_ms, key, window))
        if not pending or plan.allowed_lateness_ms:
            set_timers.append((last_ms + plan.allowed_lateness_ms, key, window))
        if plan.assigner.merging:
            merging.setdefault(key, []).append([window, window])
    set_timers.sort(key=lambda timer: timer[0])
    tables = {
        "contents": by_namespace((window, key, held) for key, window, held, _ in found.panes),
        "merging": [[None, [[key, windows] for key, windows in merging.items()]]],
        **timers({"event": set_timers}),
    }
    return found.snapshot(tables, {"anchor_ms": None, "trigger": {}})


def as_sessions(found: Contents) -> Snapshot:
    """A snapshot for `SessionWindowOperator`."""
    numbers = count()
    sessions: dict[Any, list[Any]] = {}
    for key, (start, end), held, pending in found.panes:
        sessions.setdefault(key, []).append([start, end, held, next(numbers), pending])
    rows = [[key, sorted(kept, key=lambda session: session[0])] for key, kept in sessions.items()]
    return found.snapshot({"sessions": [[None, rows]]}, {"number": next(numbers)})


def as_windows(found: Contents, plan: WindowPlan, fired_ms: int) -> Snapshot:
    """
    A snapshot for `PaneWindowOperator`, which keeps windows whole that cannot be cut into slices.

    Those that are slices themselves become such again if each is to fire for all keys or for none.

    Args:
        fired_ms: event time at the beginning.

    Raises:
        CheckpointError: if there are other windows.
    """
    slicing, aggregate = slicing_of(plan.assigner), plan.folding
    pending: set[Any] = set()
    fired: set[Any] = set()
    for pane in found.panes:
        (pending if pane.pending else fired).add(pane.window)
    for window in pending | fired:
        if window not in slicing.windows_of(window[0]):
            raise CheckpointError(f"it holds a window from {window[0]} to {window[1]} ms, which is none here")
    cells = {"fired_ms": fired_ms, "lateness_ms": plan.allowed_lateness_ms, "number": 0}
    last_fired = max((end for _, end in fired), default=fired_ms)
    if slicing.is_disjoint and all(end > last_fired for _, end in pending):
        if fired:
            cells["fired_ms"] = last_fired - 1
        rows = by_namespace((window, key, held) for key, window, held, _ in found.panes)
        tables: dict[str, Any] = {"slices": rows, "open": [], "done": []}
        return found.snapshot(tables, {**cells, "in_order": False})
    in_order = slicing.is_disjoint or not all(
        aggregate.holds_order_free(aggregate.load(pane.held)) for pane in found.panes
    )
    tables = {
        name: by_namespace(
            (window, key, held) for key, window, held, is_open in found.panes if is_open == (name == "open")
        )
        for name in ("open", "done")
    }
    return found.snapshot({"slices": [], **tables}, {**cells, "in_order": in_order})
