"""What Flink's interval join and its joins in windows do, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from asyncstream.joins.interval import IntervalJoinOperator
from asyncstream.joins.window_join import CoGrouped, WindowJoinOperator
from asyncstream.operators.base import Operator
from asyncstream.pipeline.joined import bounds_ms
from asyncstream.windowing import Trigger, WindowPlan
from asyncstream.windowing.upgrade import panes_of
from tests.vectors.cases import Case, cases
from tests.vectors.two_inputs import check, play
from tests.vectors.windows import Slipping, assigner, comparable_counts, evictor, ms, trigger

INTERVALS, WINDOWS = "flink_interval_join.jsonl", "flink_window_join.jsonl"

INCLUSIVE = {(True, True): "both", (True, False): "before", (False, True): "after", (False, False): "neither"}


def key_of(element: Any) -> Any:
    return element[0]


# ---------------------------------------------------------------------- interval join


def buffered(operator: Operator) -> dict[str, int]:
    """
    How many elements may still be joined; and how many timers Flink has for them: one for each time of a key
    and side.
    """
    assert isinstance(operator, IntervalJoinOperator)
    held = [
        (key, side.table.name, time)
        for side in (operator._left, operator._right)
        for _, key, buffer in side.table.items()
        for time in buffer[0]
        if side.is_exact or time + side.keeps_ms > operator._timers.watermark
    ]
    sides = [name for _, name, _ in held]
    return {"left": sides.count("left"), "right": sides.count("right"), "event_timers": len(set(held))}


def run_interval(case: Case, how: Any, *, on_disk: bool = False) -> Any:
    where: dict[str, Any] = {"op": 0}

    def make() -> Operator:
        inclusive: Any = INCLUSIVE[case["lower_inclusive"], case["upper_inclusive"]]
        lower_ms, upper_ms = bounds_ms(ms(-case["lower"]), ms(case["upper"]), inclusive)
        return IntervalJoinOperator((key_of, key_of), lower_ms, upper_ms, how)

    sides = {"late_left": "left", "late_right": "right"} if case["side_output"] else {}
    return play(case, make, sides, buffered, where, on_disk=on_disk, shown=as_recorded)


def as_recorded(emitted: Any) -> Any:
    """Elements are (key, value, time), so that pairs can be told as in the case."""
    if not isinstance(emitted[0], tuple) and emitted[0] is not None:
        return list(emitted[:2])  # a late element
    left, right = (each or (None, None, None) for each in emitted)
    return [left[0] or right[0], left[1], right[1], left[2], right[2]]


@pytest.mark.parametrize("case", cases(INTERVALS, "interval_join"))
def test_interval_join_does_what_flink_does(case: Case) -> None:
    check(case, run_interval(case, "inner"), dict)


@pytest.mark.parametrize("case", cases(INTERVALS, "interval_join")[::5])
def test_interval_join_does_the_same_with_its_state_on_disk(case: Case) -> None:
    check(case, run_interval(case, "inner", on_disk=True), dict)


@pytest.mark.parametrize("case", cases(INTERVALS, "interval_join")[::3])
def test_pairs_are_the_same_whatever_becomes_of_those_without(case: Case) -> None:
    records, final = run_interval(case, "full")
    pairs = [record for record in records if "out" not in record or None not in record["out"][3:]]
    check(case, (pairs, final), dict)


# ---------------------------------------------------------------------- joins in windows


class TracedJoin(WindowJoinOperator, Slipping):
    """Tells the log which timer is firing, and has Flink's slip, as `Slipping` does."""


def run_windows(case: Case, *, on_disk: bool = False) -> Any:
    where: dict[str, Any] = {"op": 0, "cb": 0, "timer": None}
    plan = WindowPlan(
        sided(assigner, case["assigner"], case["time"]),
        trigger=sided(trigger, case["trigger"]),
        evictor=sided(evictor, case["evictor"]),
        allowed_lateness_ms=case["allowed_lateness"],
    )

    def make() -> Operator:
        operator = TracedJoin((key_of, key_of), plan, "inner" if case["mode"] == "join" else "groups")
        operator.where = where
        return operator

    def shown(emitted: Any) -> Any:
        if isinstance(emitted, CoGrouped):
            lists = ([value for _, value, _ in side] for side in (emitted.left, emitted.right))
            told = [emitted.key, *lists]
        else:
            (key, left, _), (_, right, _) = emitted
            told = [key, left, right]
        return (where["timer"], where["cb"], told)

    def counts(operator: Operator) -> dict[str, int]:
        kept = operator.snapshot()
        return {
            "panes": len(panes_of(kept, plan)),
            "late_dropped": operator.metrics()["late_dropped"],
            "state": any(rows for name, rows in kept["tables"].items() if not name.startswith("timers/")),
        }

    return play(case, make, {}, counts, where, on_disk=on_disk, shown=shown)


def sided(make: Any, *arguments: Any) -> Any:
    """The same assigner, trigger or evictor, whose function gets the side of an element too."""
    made = inner = make(*arguments)
    while inner is not None:
        for name, part in list(vars(inner).items()):
            if callable(part) and not isinstance(part, Trigger):
                setattr(inner, name, lambda *sides, part=part: part(*(element for _, element in sides)))
        inner = getattr(inner, "of", None)
    return made


@pytest.mark.parametrize("case", cases(WINDOWS, "window_join"))
def test_join_in_windows_does_what_flink_does(case: Case) -> None:
    check(case, run_windows(case), comparable_counts)


@pytest.mark.parametrize("case", cases(WINDOWS, "window_join")[::5])
def test_join_in_windows_does_the_same_with_its_state_on_disk(case: Case) -> None:
    check(case, run_windows(case, on_disk=True), comparable_counts)
