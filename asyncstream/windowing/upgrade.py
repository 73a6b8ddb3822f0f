"""
Snapshots of one kind of window operator as snapshots of another.

A plan may change between two runs such that another kind serves it, for instance when its process function
gets a `clear`. What all kinds have in common are the contents of each window of each key: every kind gives
them and can be made of them. So does version 0.2, in which all kinds had the form of `WindowOperator`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from operator import itemgetter
from typing import Any, Final, NamedTuple, TypeAlias

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.errors import CheckpointError, safe_repr
from asyncstream.state.snapshots import Snapshot
from asyncstream.state.tables import Tables
from asyncstream.state.upgrade import by_namespace, keyed_state, snapshot, timers
from asyncstream.windowing.pane_store import PaneStore
from asyncstream.windowing.plan import AT_END, COUNTERS, RULES, Kept, WindowPlan
from asyncstream.windowing.windows import max_timestamp

__all__ = ("Pane", "in_tables", "panes_of", "upgraded")

_TOLD_BY: Final[dict[str, Kept]] = {"fired_ms": "panes", "anchor_ms": "contents", "number": "sessions"}
"""By the first of these cells that is there: which kind of operator. Tables without rows may be absent."""


def upgraded(state: Any, plan: WindowPlan, kind: Kept) -> Snapshot:
    """
    A snapshot of any version and kind of operator as one of this kind.

    Raises:
        CheckpointError: if it is none, or its windows are not of the plan.
    """
    found = in_tables(state)
    was = _kind_of(found)
    if was == kind:
        return found
    kept = {name: found["cells"][name] for name in (*COUNTERS, "key", "window")}
    beside = _named(found["tables"], "trigger/", "timers/")
    if was == "sessions":
        beside = _beside_sessions(found["tables"], plan)
    tables, cells = _KINDS[kind][1](panes_of(found, plan), beside, plan)
    return _snapshot(_named(found["tables"], "key/", "window/") | tables, kept | cells)


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


def in_tables(state: Any) -> Snapshot:
    """
    A snapshot in the form of today: in version 0.2 all of them were of `WindowOperator`.

    Raises:
        CheckpointError: if it is none.
    """
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"it holds {safe_repr(state)}, which another version of asyncstream kept in another form; start "
            "without it, or go on with that version"
        )
    if "tables" in state:
        return dict(state)
    merging: dict[Any, list[Any]] = {}
    for key, window, place in state["merging"]:
        merging.setdefault(key, []).append([window, place])
    tables = {
        "contents": by_namespace((place, key, held) for key, place, held in state["contents"]),
        "merging": [[None, [[key, windows] for key, windows in merging.items()]]],
        **timers(state["timers"]),
    }
    cells: dict[str, Any] = {name: state[name] for name in ("anchor_ms", *COUNTERS)}
    for name in ("key", "window", "trigger"):
        rows, cells[name] = keyed_state(name, state[name])
        tables |= rows
    return _snapshot(tables, cells)


def _named(tables: Mapping[str, Any], *beginnings: str) -> dict[str, Any]:
    return {name: rows for name, rows in tables.items() if name.startswith(beginnings)}


def _snapshot(tables: dict[str, Any], cells: dict[str, Any]) -> Snapshot:
    return snapshot(tables, cells, {name: RULES[name] for name in cells})


def _kind_of(state: Snapshot) -> Kept:
    for name, kind in _TOLD_BY.items():
        if name in state["cells"]:
            return kind
    raise CheckpointError(f"it holds {', '.join(state['cells'])}, which are not of windows")


def panes_of(state: Snapshot, plan: WindowPlan) -> list[Pane]:
    """What a snapshot of any kind of operator holds; what is pending in the order in which it will fire."""
    return _KINDS[_kind_of(state)][0](state, plan)


# ------------------------------------------------------------------ what each kind gives


def _beside_sessions(tables: Mapping[str, Any], plan: WindowPlan) -> dict[str, Any]:
    """What `WindowOperator` keeps beside the contents: what a trigger has counted, its ticks, and timers."""
    early, late, tick = _names(plan)
    kept: dict[str, list[Any]] = {early: [], late: [], tick: []}
    set_timers: list[tuple[int, int, Any, Any]] = []
    for key, (start, end, _, number, armed, *firings) in _sessions_in(tables):
        window = (start, end)
        if armed:
            set_timers.append((end - 1, number, key, window))
        if firings:
            counted_early, counted_late, next_tick, ticked = firings
            kept[early] += [(window, key, counted_early)] if counted_early else []
            kept[late] += [(window, key, counted_late)] if counted_late else []
            if next_tick is not None:
                kept[tick].append((window, key, next_tick))
                set_timers.append((next_tick, max(number, ticked), key, window))
    in_turn = [(when, key, window) for when, _, key, window in sorted(set_timers, key=itemgetter(0, 1))]
    return {name: by_namespace(rows) for name, rows in kept.items() if rows} | timers({"event": in_turn})


def _names(plan: WindowPlan) -> tuple[str, str, str]:
    """Of the tables of what a trigger has counted, early and late, and of its ticks."""
    tick = plan.ticks.state if plan.ticks else "tick"
    return "trigger/early/count", "trigger/late/count", f"trigger/{tick}"


def _sessions_in(tables: Mapping[str, Any]) -> Iterator[tuple[Any, list[Any]]]:
    """(key, what is kept of a session of it)."""
    for _, rows in tables.get("sessions", ()):
        for key, sessions in rows:
            yield from ((key, session) for session in sessions)


def _of_contents(state: Snapshot, plan: WindowPlan) -> list[Pane]:
    tables = state["tables"]
    names = {
        (key, tuple(place)): tuple(window)
        for _, rows in tables.get("merging", ())
        for key, windows in rows
        for window, place in windows
    }
    held_by: dict[tuple[Any, Any], Any] = {}
    for place, rows in tables.get("contents", ()):
        for key, held in rows:
            held_by[key, names.get((key, tuple(place)), tuple(place))] = held
    found: list[Pane] = []
    for timestamp, key, window in sorted(_timers_in(tables), key=itemgetter(0)):
        if window and timestamp == max_timestamp(window) and (key, window) in held_by:
            found.append(Pane(key, window, held_by.pop((key, window)), pending=True))
    return found + [Pane(key, window, held, pending=False) for (key, window), held in held_by.items()]


def _of_sessions(state: Snapshot, plan: WindowPlan) -> list[Pane]:
    in_turn = sorted(_sessions_in(state["tables"]), key=lambda kept: (kept[1][1], kept[1][3]))  # end, number
    return [Pane(key, (start, end), held, armed) for key, (start, end, held, _, armed, *_) in in_turn]


def _of_panes(state: Snapshot, plan: WindowPlan) -> list[Pane]:
    tables, fired_ms = state["tables"], state["cells"]["fired_ms"]
    again = {
        (key, tuple(window)): number
        for window, rows in tables.get("again", ())
        for number, (key, _) in enumerate(rows)
    }
    places = tables.get("slices", ())
    if not plan.slicing.is_disjoint:
        parts = {name: tables.get(name, ()) for name in ("slices", "closed", "open")}
        gone_ms = fired_ms - state["cells"]["lateness_ms"]
        places = _merged(parts, plan, gone_ms, {window for _, window in again})
    panes = [
        Pane(key, tuple(place), held, max_timestamp(place) > fired_ms or (key, tuple(place)) in again)
        for place, rows in places
        for key, held in rows
    ]
    return sorted(panes, key=lambda pane: (pane.window[1], not pane.pending, again.get(pane[:2], 0)))


def _merged(kept: dict[str, Any], plan: WindowPlan, gone_ms: int, pending: Container[Any]) -> list[Any]:
    """The rows of windows, of those of slices and of whole windows; as `PaneStore.make_whole`."""
    tables = Tables()
    panes = PaneStore(plan, tables)
    tables.restore(snapshot(kept, {}, {}))
    panes.index()
    panes.make_whole(gone_ms, pending)
    merged: list[Any] = tables.snapshot()["tables"]["open"]
    return merged


# ------------------------------------------------------------------ what each kind is made of


Made: TypeAlias = tuple[dict[str, Any], dict[str, Any]]
"""Tables and cells."""


def _as_contents(panes: list[Pane], beside: Mapping[str, Any], plan: WindowPlan) -> Made:
    """For `WindowOperator`: each window of each key has timers of its own."""
    set_timers = dict.fromkeys(_timers_in(beside))
    merging: dict[Any, list[Any]] = {}
    for key, window, _, pending in panes:
        last_ms = max_timestamp(window)
        goes_ms = last_ms + plan.allowed_lateness_ms
        # without a timer for that, one that fires early would have one set a millisecond later
        for due_ms in (last_ms, goes_ms) if pending else (goes_ms,):
            set_timers.setdefault((due_ms, key, window))
        if plan.assigner.merging:
            merging.setdefault(key, []).append([window, window])
    tables = {
        **beside,
        "contents": by_namespace((window, key, held) for key, window, held, _ in panes),
        "merging": [[None, [[key, windows] for key, windows in merging.items()]]],
        **timers({"event": sorted(set_timers, key=itemgetter(0))}),
    }
    return tables, {"anchor_ms": None, "trigger": {}}


def _timers_in(tables: Mapping[str, Any]) -> Iterator[tuple[int, Any, Any]]:
    """The timers of event time: when, of which key and window."""
    for timestamp, rows in tables.get("timers/event", ()):
        yield from ((timestamp, key, tuple(window)) for (key, window), _ in rows)


def _as_sessions(panes: list[Pane], beside: Mapping[str, Any], plan: WindowPlan) -> Made:
    # numbers tell the turns of one time: from the last on, so that a tick has a higher one than its session
    timers_set = sorted(_timers_in(beside), key=itemgetter(0), reverse=True)
    numbers = {timer: number for number, timer in enumerate(timers_set)}
    early, late, ticks = (
        {(tuple(window), key): kept for window, rows in beside.get(name, ()) for key, kept in rows}
        for name in _names(plan)
    )
    sessions: dict[Any, list[Any]] = {}
    for key, window, held, pending in panes:
        start, end = window
        session = [start, end, held, numbers.get((end - 1, key, window), 0), pending]
        if plan.firings != AT_END:
            place = (window, key)
            tick = ticks.get(place)
            ticked = 0 if tick is None else numbers.get((tick, key, window), 0)
            session += [early.get(place, 0), late.get(place, 0), tick, ticked]
        sessions.setdefault(key, []).append(session)
    rows = [[key, sorted(kept, key=itemgetter(0))] for key, kept in sessions.items()]
    return {"sessions": [[None, rows]]}, {"number": len(numbers)}


def _as_panes(panes: list[Pane], beside: Mapping[str, Any], plan: WindowPlan) -> Made:
    """For `PaneWindowOperator`, which keeps windows whole that cannot be cut into slices."""
    slicing, aggregate = plan.slicing, plan.folding
    for window in {pane.window for pane in panes}:
        if window not in slicing.windows_of(window[0]):
            raise CheckpointError(f"it holds a window from {window[0]} to {window[1]} ms, which is none here")
    fired_ms = max((max_timestamp(pane.window) for pane in panes if not pane.pending), default=MIN_TIMESTAMP)
    again = [pane for pane in panes if pane.pending and max_timestamp(pane.window) <= fired_ms]
    in_order = not slicing.is_disjoint and not all(
        aggregate.holds_order_free(aggregate.load(pane.held)) for pane in panes
    )
    tables = {
        **_named(beside, "trigger/"),
        **_ticks(beside, plan),
        "slices" if slicing.is_disjoint else "open": by_namespace(
            (window, key, held) for key, window, held, _ in panes
        ),
        "again": by_namespace((window, key, None) for key, window, _, _ in again),
    }
    cells = {"fired_ms": fired_ms, "lateness_ms": plan.allowed_lateness_ms, "number": 0, "in_order": in_order}
    return tables, cells


def _ticks(beside: Mapping[str, Any], plan: WindowPlan) -> dict[str, Any]:
    """The timers of ticks: in event time those before the last millisecond of their window."""
    if (ticks := plan.ticks) is None:
        return {}
    name = "timers/event" if ticks.event_time else "timers/processing"
    kept = [
        (timestamp, [row for row in rows if not ticks.event_time or timestamp < row[0][1][1] - 1])
        for timestamp, rows in beside.get(name, ())
    ]
    return {name: [[timestamp, rows] for timestamp, rows in kept if rows]}


Gives: TypeAlias = Callable[[Snapshot, WindowPlan], list[Pane]]
Makes: TypeAlias = Callable[[list[Pane], Mapping[str, Any], WindowPlan], Made]

_KINDS: Final[dict[Kept, tuple[Gives, Makes]]] = {
    "panes": (_of_panes, _as_panes),
    "sessions": (_of_sessions, _as_sessions),
    "contents": (_of_contents, _as_contents),
}
