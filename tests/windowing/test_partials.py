"""Elements that come folded, against the same elements one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.windowing import (
    AfterWatermark,
    Aggregates,
    Collect,
    Count,
    CountEvictor,
    CountTrigger,
    CumulativeWindows,
    Max,
    Mean,
    Min,
    ProcessWindowFunction,
    SessionWindows,
    SlidingWindows,
    Sum,
    TumblingWindows,
    WindowAssigner,
    WindowPlan,
    window_operator,
)
from asyncstream.windowing.panes import PaneWindowOperator
from asyncstream.windowing.partials import Partials, folding_of
from tests.tiers import examples
from tests.windowing.harness import Harness, ms

Element = tuple[dict[str, Any], int]

EVERY = Aggregates(n=Count(), some=Count("v"), total=Sum("v"), mean=Mean("v"), low=Min("v"), high=Max("v"))


class Telling(ProcessWindowFunction[Any]):
    """Tells of firings and of windows that go."""

    def process(self, key: Any, contents: Any, ctx: Any, out: Any) -> None:
        out((key, tuple(ctx.window), contents))

    def clear(self, key: Any, ctx: Any) -> None:
        ctx.side("gone", (key, tuple(ctx.window)))


PLANS: dict[str, Callable[[Any], WindowPlan]] = {
    "tumbling": lambda of: WindowPlan(TumblingWindows(ms(7)), aggregate=of),
    "tumbling, shifted": lambda of: WindowPlan(TumblingWindows(ms(7), offset=ms(3)), aggregate=of),
    "function": lambda of: WindowPlan(TumblingWindows(ms(7)), aggregate=of, process=Telling()),
    "sliding": lambda of: WindowPlan(SlidingWindows(ms(9), ms(3)), aggregate=of),
    "sliding, cut": lambda of: WindowPlan(SlidingWindows(ms(9), ms(4)), aggregate=of),
    "cumulative": lambda of: WindowPlan(CumulativeWindows(ms(12), ms(3)), aggregate=of),
}

AGGREGATES = {
    "every": EVERY,
    "count": Count(),
    "sum": Sum("v"),
    "mean": Mean("v"),
    "one": Aggregates(n=Min("v")),
}


def key_of(value: Any) -> Any:
    return value["key"]


def folded(plan: WindowPlan, elements: list[Element]) -> Partials:
    """What the aggregate makes of them, by slice and key."""
    folding = folding_of(plan)
    assert folding is not None
    aggregate = plan.folding
    each = list(aggregate.parts.values()) if isinstance(aggregate, Aggregates) else [aggregate]
    found: dict[tuple[int, Any], list[Any]] = {}
    for value, timestamp in elements:
        place = folding.slicing.slice_at(timestamp)[0], value["key"]
        held = found.setdefault(place, [0, *(one.create() for one in each)])
        held[0] += 1
        held[1:] = [one.add(part, value) for one, part in zip(each, held[1:], strict=True)]
    starts, keys = [start for start, _ in found], [key for _, key in found]
    rows = list(found.values())
    columns = [[row[place] for row in rows] for place in range(1, len(each) + 1)]
    return Partials(starts, keys, [row[0] for row in rows], columns)


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """Batches of elements about a rising watermark, of which some come folded, and restarts."""
    program: list[tuple[Any, ...]] = []
    watermark = draw(st.integers(-10, 10))
    for kind in draw(
        st.lists(st.sampled_from(["folded"] * 4 + ["rows", "wm", "wm", "restart"]), max_size=12)
    ):
        if kind == "wm":
            watermark += draw(st.integers(1, 9))
            program.append((kind, watermark))
        elif kind == "restart":
            program.append((kind,))
        else:
            # halves are added exactly, and tell the operator that order matters
            numbers = [*range(-3, 4), 2**62, None] + [0.5] * (kind == "rows")
            value = st.fixed_dictionaries({"key": st.sampled_from("abc"), "v": st.sampled_from(numbers)})
            timestamp = st.integers(watermark - 20, watermark + 12)
            program.append((kind, draw(st.lists(st.tuples(value, timestamp), max_size=8))))
    return [*program, ("wm", MAX_TIMESTAMP)]


@pytest.mark.parametrize("aggregate", AGGREGATES)
@pytest.mark.parametrize("windows", PLANS)
@settings(max_examples=examples(30))
@given(program=programs())
def test_folded_elements_are_as_good_as_others(
    windows: str, aggregate: str, program: list[tuple[Any, ...]]
) -> None:
    def made() -> WindowPlan:
        return PLANS[windows](AGGREGATES[aggregate])

    def run(*, fold: bool) -> tuple[list[Any], list[dict[str, int]]]:
        found = Harness(lambda: window_operator(key_of, made()), side=("gone",))
        counts = []
        for kind, *arguments in program:
            operator = found.operator
            if kind == "wm":
                found.watermark(*arguments)
            elif kind == "restart":
                found.restart()
            elif kind == "folded" and fold:
                assert isinstance(operator, PaneWindowOperator)
                operator.take_in(folded(made(), arguments[0]))
            elif arguments[0]:
                operator.process_batch(*map(list, zip(*arguments[0], strict=True)))
            counts.append(operator.metrics())
        return found.records, counts

    assert run(fold=True) == run(fold=False)


def plan_of(assigner: WindowAssigner | None = None, *, late: int = 0, **more: Any) -> WindowPlan:
    more.setdefault("aggregate", Aggregates(n=Count(), total=Sum("v")))
    return WindowPlan(assigner or TumblingWindows(ms(7)), allowed_lateness_ms=late, **more)


class Twice(Sum):
    """Does something else."""

    def add(self, accumulator: Any, value: Any) -> Any:
        return super().add(super().add(accumulator, value), value)


OTHERS = {
    "lateness": plan_of(late=1),
    "trigger": plan_of(trigger=CountTrigger(2)),
    "early": plan_of(trigger=AfterWatermark(early=CountTrigger(2))),
    "evictor": plan_of(evictor=CountEvictor(2)),
    "sessions": plan_of(SessionWindows(ms(7))),
    "gaps": plan_of(SlidingWindows(ms(3), ms(7))),
    "stagger": plan_of(TumblingWindows(ms(7), stagger=True)),
    "clock": plan_of(TumblingWindows(ms(7), time="processing")),
    "elements": plan_of(aggregate=None),
    "other": plan_of(aggregate=Collect("v")),
    "subclass": plan_of(aggregate=Twice("v")),
    "one of them": plan_of(aggregate=Aggregates(n=Count(), all=Collect("v"))),
    "whole": plan_of(aggregate=Sum()),
    "fields": plan_of(aggregate=Count(("v", "w"))),
    "function": plan_of(aggregate=Sum(lambda value: value["v"] + 1)),
}


@pytest.mark.parametrize("plan", OTHERS.values(), ids=OTHERS)
def test_elements_are_not_folded_where_one_of_them_shows(plan: WindowPlan) -> None:
    assert folding_of(plan) is None


def test_functions_that_look_at_a_field_are_as_good_as_its_name() -> None:
    assert folding_of(plan_of(aggregate=Sum(lambda value: value["v"]))) is not None
    assert folding_of(plan_of(aggregate=Sum("v"))) is not None


def test_some_of_the_partials_are_partials() -> None:
    partials = Partials([0, 7, 0], ["a", "a", "b"], [1, 2, 3], [[1, 2, 3], [None, 5, 6]])
    assert list(partials) == [(0, "a", 1, [1, None]), (7, "a", 2, [2, 5]), (0, "b", 3, [3, 6])]
    assert [partials[0], partials[-1]] == [next(iter(partials)), list(partials)[-1]]
    assert list(partials[1:]) == list(partials)[1:]
