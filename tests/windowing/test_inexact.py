"""Aggregates that need not be exact to the last digit: windows that overlap share the work on floats, too."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.state import described
from asyncstream.windowing import (
    AggregateFunction,
    Aggregates,
    Count,
    Max,
    Mean,
    Min,
    SlidingWindows,
    Sum,
    WindowOperator,
    WindowPlan,
    window_operator,
)
from tests.windowing.harness import Harness, Step, ms

VALUE = itemgetter(1)
Make = Callable[..., AggregateFunction[Any, Any]]


def plan_of(aggregate: Any) -> WindowPlan:
    return WindowPlan(SlidingWindows(ms(40), ms(2)), allowed_lateness_ms=10, aggregate=aggregate)


def a_run(*plans: WindowPlan, make: Any = window_operator) -> Harness:
    return Harness(*(lambda plan=plan: make(itemgetter(0), plan) for plan in plans))


def measures(value: Callable[[random.Random], Any], restarts: tuple[int, ...] = ()) -> list[Step]:
    """Elements out of order, some of them late."""
    rng = random.Random(7)
    script: list[Step] = []
    for time in range(0, 200, 2):
        script += [("el", (rng.choice("ab"), value(rng)), time - rng.randrange(15)) for _ in range(3)]
        script.append(("wm", time))
        if time in restarts:
            script += [("restart",), ("known", time)]
    return [*script, ("wm", MAX_TIMESTAMP)]


def shared(run: Harness) -> bool:
    return not len(run.operator.tables["open"])


def results(run: Harness) -> list[Any]:
    return [record[1] for record in run.records if record[0] == "out"]


def numbers(found: list[Any]) -> list[float]:
    return [part for result in found for part in result.value.values()]


def check_is_about(found: list[Any], expected: list[Any]) -> None:
    assert [result[:3] for result in found] == [result[:3] for result in expected]
    assert numbers(found) == pytest.approx(numbers(expected))


def means(*, exact: bool) -> Aggregates:
    return Aggregates(n=Count(), total=Sum(VALUE, exact=exact), mean=Mean(VALUE, exact=exact))


def test_sums_of_floats_are_those_of_slices() -> None:
    script = measures(lambda rng: rng.choice([rng.uniform(-1e3, 1e3), 3]))
    expected, found = (
        a_run(plan_of(means(exact=True)), make=WindowOperator),
        a_run(plan_of(means(exact=False))),
    )
    expected.run(script)
    half = len(script) // 2
    found.run(script[:half])
    assert shared(found)
    found.run(script[half:])
    check_is_about(results(found), results(expected))


@pytest.mark.parametrize("first", [True, False])
def test_whether_a_sum_is_exact_may_be_changed_by_a_restart(first: bool) -> None:
    plans = [plan_of(means(exact=exact)) for exact in (first, not first)]
    assert described(plans[0].aggregate) == described(plans[1].aggregate)
    script = measures(lambda rng: rng.uniform(-1e3, 1e3), restarts=(30, 80, 130))
    expected, found = a_run(plan_of(means(exact=True)), make=WindowOperator), a_run(*plans)
    expected.run(script)
    found.run(script)
    check_is_about(results(found), results(expected))


@pytest.mark.parametrize("make", [Min, Max])
def test_extremes_of_floats_that_are_whole_are_those_of_slices(make: Make) -> None:
    script = measures(lambda rng: float(rng.randrange(-5, 5)))
    plan = plan_of(Aggregates(best=make(VALUE, exact=False)))
    expected, found = a_run(plan, make=WindowOperator), a_run(plan)
    expected.run(script)
    half = len(script) // 2
    found.run(script[:half])
    assert shared(found)
    found.run(script[half:])
    assert found.records == expected.records


@pytest.mark.parametrize(
    ("make", "values"), [(Sum, ["a", "b"]), (Min, [1.0, float("nan")]), (Max, [2.0, 1.0, float("nan")])]
)
@pytest.mark.parametrize("named", [True, False])
def test_values_that_cannot_come_in_any_order_do_not(make: Make, values: list[Any], named: bool) -> None:
    aggregate = make(VALUE, exact=False)
    plan = plan_of(Aggregates(part=aggregate) if named else aggregate)
    script = measures(lambda rng: rng.choice(values))
    expected, found = a_run(plan, make=WindowOperator), a_run(plan)
    assert repr(found.run(script)) == repr(expected.run(script))


def test_subclasses_are_asked_themselves() -> None:
    class Rounded(Sum):
        def add(self, accumulator: Any, value: Any) -> Any:
            return super().add(accumulator, ("", round(VALUE(value), 3)))

    plan = plan_of(Aggregates(part=Rounded(VALUE, exact=False)))
    script = measures(lambda rng: rng.uniform(-1e3, 1e3))
    expected = a_run(replace(plan, aggregate=Aggregates(part=Rounded(VALUE))), make=WindowOperator)
    expected.run(script)
    found = a_run(plan)
    found.run(script[:200])
    assert shared(found)
    found.run(script[200:])
    check_is_about(results(found), results(expected))


@pytest.mark.parametrize(
    ("size", "exact", "told"), [(40, True, 1), (40, False, 0), (8, True, 0)], ids=["many", "inexact", "few"]
)
def test_that_windows_share_no_work_is_told_once(
    size: int, exact: bool, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    plan = WindowPlan(SlidingWindows(ms(size), ms(2)), aggregate=means(exact=exact))
    run = a_run(plan)
    for _ in range(2):  # all are shared again when none is left
        run.run(measures(lambda rng: rng.choice([1, 0.5]))[:100])
        run.watermark(1_000)
    messages = [record.getMessage() for record in caplog.records if "exact=False" in record.getMessage()]
    assert len(messages) == told
    assert not told or "step 'windows' adds elements to each of their 20 windows" in messages[0]
