"""The window operators at their boundaries: bad input, process functions, triggers, evictors, the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import pytest

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.errors import InternalError, PipelineError, UserFunctionError
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.emitting import BURST
from asyncstream.state import ListDescriptor, ValueDescriptor
from asyncstream.windowing import (
    AfterWatermark,
    AggregateFunction,
    Aggregates,
    Collect,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    Count,
    CountEvictor,
    CountTrigger,
    CumulativeWindows,
    DeltaTrigger,
    DynamicSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    Last,
    NeverTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    ProcessWindowFunction,
    PurgingTrigger,
    Quantile,
    Reduce,
    SessionWindows,
    SlidingWindows,
    Sum,
    Trigger,
    TriggerContext,
    TumblingWindows,
    WindowAssigner,
    WindowContext,
    WindowOperator,
    WindowPlan,
    WindowResult,
    window_operator,
)
from asyncstream.windowing.panes import PaneWindowOperator
from asyncstream.windowing.sessions import SessionWindowOperator
from asyncstream.windowing.triggers import TriggerResult
from asyncstream.windowing.windows import Window
from tests.naming import shown
from tests.windowing.harness import Harness, ms

SUM = Reduce[Any](lambda a, b: (a[0], a[1] + b[1]))
COUNT = Aggregates(n=Count())


def harness(plan: WindowPlan, general: bool = False, **more: Any) -> Harness:
    make: Callable[..., Operator] = WindowOperator if general else window_operator
    return Harness(lambda: make(itemgetter(0), plan), **more)


def values(run: Harness) -> list[Any]:
    return [result.value for result in run.outputs()]


def rows(run: Harness, prefix: str) -> list[Any]:
    """What tables hold whose names begin so."""
    tables = run.operator.snapshot()["tables"]
    return [row for name, kept in tables.items() if name.startswith(prefix) for row in kept]


# Choice of the operator


def test_the_factory_takes_a_fast_operator_where_there_is_one() -> None:
    size, slide = ms(10), ms(5)

    def choice(*arguments: Any, **more: Any) -> type:
        return type(window_operator(itemgetter(0), WindowPlan(*arguments, **more)))

    assert choice(TumblingWindows(size), aggregate=SUM) is PaneWindowOperator
    assert choice(SlidingWindows(slide, size), aggregate=SUM) is PaneWindowOperator
    assert choice(SlidingWindows(size, slide), aggregate=COUNT) is PaneWindowOperator
    assert choice(SlidingWindows(size, slide), aggregate=SUM) is PaneWindowOperator
    assert choice(SlidingWindows(size, slide), aggregate=Collect()) is PaneWindowOperator
    assert choice(CumulativeWindows(size, slide), aggregate=SUM) is PaneWindowOperator
    assert choice(SessionWindows(size), aggregate=SUM) is SessionWindowOperator
    assert choice(TumblingWindows(size), aggregate=SUM, process=Plain()) is PaneWindowOperator
    assert choice(TumblingWindows(size), aggregate=SUM, process=Telling()) is PaneWindowOperator  # it clears
    assert choice(SlidingWindows(size, slide), aggregate=SUM, process=Telling()) is PaneWindowOperator
    assert choice(SlidingWindows(size, slide), None, None, 5, SUM, Telling()) is WindowOperator
    assert choice(SessionWindows(size), aggregate=SUM, process=Telling()) is SessionWindowOperator
    assert choice(SessionWindows(size), None, None, 5, SUM, Telling()) is WindowOperator
    assert choice(TumblingWindows(size)) is PaneWindowOperator
    assert choice(SlidingWindows(size, slide), process=Plain()) is PaneWindowOperator
    assert choice(SessionWindows(size)) is SessionWindowOperator
    assert choice(SessionWindows(size), PurgingTrigger(AfterWatermark())) is SessionWindowOperator
    assert choice(TumblingWindows(size), AfterWatermark(late=CountTrigger(2))) is PaneWindowOperator
    assert choice(TumblingWindows(size), AfterWatermark(late=CountTrigger(2)), None, 1) is PaneWindowOperator
    assert choice(SlidingWindows(size, slide), AfterWatermark(early=CountTrigger(2))) is PaneWindowOperator
    assert choice(SessionWindows(size), AfterWatermark(early=CountTrigger(2))) is SessionWindowOperator
    assert choice(TumblingWindows(size), PurgingTrigger(EventTimeTrigger()), None, 1) is WindowOperator
    assert choice(TumblingWindows(size), AfterWatermark(early=CountTrigger(2))) is PaneWindowOperator
    assert choice(TumblingWindows(size), AfterWatermark(early=NeverTrigger())) is WindowOperator
    assert choice(TumblingWindows(size, stagger=True), aggregate=SUM) is WindowOperator
    assert choice(TumblingWindows(size, time="processing"), aggregate=SUM) is WindowOperator
    assert choice(TumblingWindows(size), CountTrigger(2), aggregate=SUM) is WindowOperator
    assert choice(DynamicSessionWindows(lambda value: size), aggregate=SUM) is SessionWindowOperator


@pytest.mark.parametrize("total", [Sum(itemgetter(1)), Aggregates(total=Sum(itemgetter(1)))])
@pytest.mark.parametrize("size", [10, 8])
@pytest.mark.parametrize("integers", [0, 2])  # ahead of them, which slices share
def test_floats_are_added_in_their_order_without_asking_the_assigner(
    total: Any, size: int, integers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = WindowPlan(SlidingWindows(ms(size), ms(5)), aggregate=total)
    script = [
        *[("el", ("a", value), at) for at, value in [(7, 1), (8, 2)][:integers]],
        *[("el", ("a", value), at) for at, value in [(7, 0.1), (2, 1e16), (6, -1e16), (8, 0.1), (1, 0.3)]],
        ("wm", 11),
        *[("el", ("a", value), at) for at, value in [(12, 1e16), (6, 0.7), (16, 0.1), (13, -1e16)]],
        ("wm", 100),
    ]
    expected = harness(plan, True).run(script)

    def asked(*_: Any) -> None:
        raise AssertionError("the general operator was at work")

    monkeypatch.setattr(SlidingWindows, "assign", asked)
    assert harness(plan, False).run(script) == expected
    assert harness(plan, False).run(script, batched=True) == expected


def test_a_fast_operator_refuses_what_it_cannot_do() -> None:
    with pytest.raises(InternalError):
        PaneWindowOperator(itemgetter(0), WindowPlan(TumblingWindows(1), CountTrigger(2)))
    with pytest.raises(InternalError):
        SessionWindowOperator(itemgetter(0), WindowPlan(TumblingWindows(1), aggregate=SUM))


# Bad input

PLAIN = [
    WindowPlan(TumblingWindows(ms(10)), aggregate=COUNT),
    WindowPlan(SlidingWindows(ms(10), ms(5)), aggregate=COUNT),
]
SESSION = WindowPlan(SessionWindows(ms(10)), aggregate=COUNT)


@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize("plan", PLAIN)
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("timestamp", [None, "5", 5.5])
def test_an_element_that_cannot_be_placed_in_time_is_an_error_that_names_it(
    plan: WindowPlan, general: bool, on_disk: bool, timestamp: Any
) -> None:
    run = harness(plan, general, on_disk=on_disk)
    with pytest.raises(UserFunctionError, match=r"step 'windows'.*timestamp.*\('a', 1\)"):
        run.element(("a", 1), timestamp)


@pytest.mark.parametrize("general", [True, False])
def test_sessions_take_elements_without_timestamp_as_before_all_time(general: bool) -> None:
    run = harness(SESSION, general)
    run.element(("a", 1))
    run.element(("a", 2), 5)
    run.element(("a", 1))
    run.operator.process_batch([("a", 1)], None)
    run.watermark(14)
    assert [(one.end_ms, one.value["n"]) for one in run.outputs()] == [(-(2**63) + 10, 3), (15, 1)]
    run.element(("a", 3))
    assert run.records == [("late", ("a", 3), None)]


@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("plan", [*PLAIN, SESSION])
def test_unhashable_keys_and_failing_functions_name_the_element(
    plan: WindowPlan, on_disk: bool, general: bool
) -> None:
    make: Callable[..., Operator] = WindowOperator if general else window_operator
    unhashable = Harness(lambda: make(lambda value: [value], plan), on_disk=on_disk)
    with pytest.raises(UserFunctionError, match=r"unhashable.*\('a', 1\)"):
        unhashable.element(("a", 1), 5)
    failing = Harness(lambda: make(lambda value: 1 // value[1], plan), on_disk=on_disk)
    with pytest.raises(UserFunctionError, match="ZeroDivisionError") as caught:
        failing.operator.process_batch([("a", 1), ("b", 0)], [5, 6])
    assert caught.value.element == ("b", 0)
    assert failing.operator.metrics()["windows_open"] > 0  # what came before it is there


@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("plan", [*PLAIN, SESSION])
def test_a_key_function_that_finds_nothing_to_iterate_over_says_so(
    plan: WindowPlan, on_disk: bool, general: bool
) -> None:
    make: Callable[..., Operator] = WindowOperator if general else window_operator
    run = Harness(lambda: make(lambda value: next(iter(value)), plan), on_disk=on_disk)
    with pytest.raises(UserFunctionError) as caught:
        run.operator.process_batch([["a"], [], ["b"]], [5, 6, 7])
    assert caught.value.element == []
    assert type(caught.value.__cause__) is StopIteration
    assert run.operator.metrics()["windows_open"] > 0  # what came before it is there


@pytest.mark.parametrize("timestamp", ["5", 5.5, 2**63])
@pytest.mark.parametrize("general", [True, False])
def test_sessions_refuse_what_is_no_timestamp(general: bool, timestamp: Any) -> None:
    run = harness(SESSION, general)
    with pytest.raises(UserFunctionError, match=r"step 'windows'.*timestamp.*\('a', 1\)"):
        run.element(("a", 1), timestamp)


@pytest.mark.parametrize("assigner", [TumblingWindows(ms(10)), SessionWindows(ms(5))], ids=shown)
@pytest.mark.parametrize("general", [True, False])
def test_a_failing_result_names_key_and_window(assigner: WindowAssigner, general: bool) -> None:
    class Failing(Count):
        def result(self, accumulator: int) -> int:
            raise RuntimeError("no")

    run = harness(WindowPlan(assigner, aggregate=Failing()), general)
    run.element(("a", 1), 5)
    window = r"on TimeWindow\(start_ms=\d, end_ms=10\) of key 'a', at 9$"
    with pytest.raises(UserFunctionError, match=f"step 'windows': RuntimeError: no, {window}"):
        run.watermark(9)


class Broken(ProcessWindowFunction[Any]):
    def process(self, key: Any, contents: Any, ctx: WindowContext, out: Callable[[Any], None]) -> None:
        out(contents)

    def clear(self, key: Any, ctx: WindowContext) -> None:
        raise RuntimeError("no")


@pytest.mark.parametrize("lateness", [0, 1])
@pytest.mark.parametrize("assigner", [TumblingWindows(ms(10)), SessionWindows(ms(5))], ids=shown)
@pytest.mark.parametrize("general", [True, False])
def test_failing_to_clear_a_window_names_it_behind_its_result(
    assigner: WindowAssigner, lateness: int, general: bool
) -> None:
    run = harness(WindowPlan(assigner, None, None, lateness, Count(), Broken()), general)
    run.element(("a", 1), 5)
    with pytest.raises(UserFunctionError, match=r"on TimeWindow\(start_ms=\d, end_ms=10\) of key 'a'"):
        run.watermark(10)
    assert run.records == [("out", 1, 9)]


def test_a_gap_that_is_none_names_the_element() -> None:
    run = harness(WindowPlan(DynamicSessionWindows(itemgetter(1)), aggregate=COUNT))
    with pytest.raises(UserFunctionError, match=r"gap of an element.*\('a', 0\)"):
        run.element(("a", 0), 5)


# Plans


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"trigger": DeltaTrigger(lambda a, b: 1.0, 1)}, "DeltaTrigger cannot be used with sessions"),
        ({"trigger": PurgingTrigger(DeltaTrigger(lambda a, b: 1.0, 1))}, "PurgingTrigger cannot be used"),
        ({"aggregate": "sum"}, "aggregate: expected an AggregateFunction"),
        ({"trigger": CountTrigger}, "trigger: expected a Trigger"),
        ({"evictor": 3}, "evictor"),
        ({"process": print}, "process"),
        ({"allowed_lateness_ms": -1}, "allowed_lateness"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        WindowPlan(SessionWindows(1), **arguments)


def test_an_aggregate_without_merge_is_refused_for_sessions_only() -> None:
    class Longest(Collect):
        merge = AggregateFunction.merge

    with pytest.raises(
        PipelineError, match="Longest cannot be used with sessions: it does not override merge"
    ):
        WindowPlan(SessionWindows(1), aggregate=Longest())
    plan = WindowPlan(SlidingWindows(ms(20), ms(10)), aggregate=Longest())
    for general in (True, False):
        run = harness(plan, general)
        for number, timestamp in enumerate((3, 12, 4)):
            run.element(("a", number), timestamp)
        run.watermark(29)
        assert [[number for _, number in window] for window in values(run)] == [[0, 2], [0, 1, 2], [1]]


# Counting


class Batches(Operator):
    """Notes how many results come at once."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def process_batch(self, values: Any, timestamps: Any) -> None:
        self.sizes.append(len(values))

    def advance_watermark(self, timestamp: int) -> None:
        pass


@pytest.mark.parametrize("make", [WindowOperator, window_operator])
@pytest.mark.parametrize("process", [False, True], ids=["plain", "process"])
def test_the_results_of_many_keys_are_handed_on_in_parts(
    make: Callable[..., Operator], process: bool
) -> None:
    keys = 4 * BURST + 1
    plan = WindowPlan(TumblingWindows(ms(10)), aggregate=COUNT, process=Plain() if process else None)
    operator, found = make(itemgetter(0), plan), Batches()
    operator.out = found
    operator.open(OperatorContext())
    operator.process_batch([(key, 1) for key in range(keys)], [1] * keys)
    operator.advance_watermark(MAX_TIMESTAMP)
    operator.close()
    assert max(found.sizes) <= BURST
    assert sum(found.sizes) == keys


def test_windows_of_a_count() -> None:
    run = harness(WindowPlan.counting(2))
    for number in range(5):
        run.element(("a", number))
    run.watermark(MAX_TIMESTAMP)
    assert values(run) == [[("a", 0), ("a", 1)], [("a", 2), ("a", 3)]]


def test_sliding_windows_share_slices_although_order_matters() -> None:
    aggregate = Aggregates(all=Collect(itemgetter(1)), last=Last(itemgetter(1)), n=Count())
    run = harness(WindowPlan(SlidingWindows(ms(20), ms(10)), aggregate=aggregate))
    for number, timestamp in enumerate([3, 12, 4, 14, 13, 5]):
        run.element(("a", number), timestamp)
        run.element(("b", number), 15)
    assert len(run.operator.tables["open"]) == 0  # of whole windows, each of which takes each element
    run.watermark(100)
    found = {(result.key, result.start_ms): result.value for result in run.outputs()}
    assert found["a", -10] == {"all": [0, 2, 5], "last": 5, "n": 3}
    assert found["a", 0] == {"all": [0, 1, 2, 3, 4, 5], "last": 5, "n": 6}
    assert found["a", 10] == {"all": [1, 3, 4], "last": 4, "n": 3}
    assert found["b", 0] == {"all": [0, 1, 2, 3, 4, 5], "last": 5, "n": 6}
    assert run.operator.metrics()["windows_open"] == 0


def test_windows_of_a_count_that_slide() -> None:
    run = harness(WindowPlan.counting(3, 2, aggregate=Collect(itemgetter(1))))
    for number in range(6):
        run.element(("a", number), number)
    assert run.outputs() == [WindowResult("a", None, None, kept) for kept in ([0, 1], [1, 2, 3], [3, 4, 5])]


# Snapshots


@pytest.mark.parametrize("general", [True, False])
def test_an_accumulator_that_is_not_plain_is_saved_by_its_aggregate(general: bool) -> None:
    pytest.importorskip("datasketches")
    aggregate = Aggregates(median=Quantile(0.5, itemgetter(1)), n=Count())
    run = harness(WindowPlan(SessionWindows(ms(5)), aggregate=aggregate), general)
    run.element(("a", 1), 0)
    run.element(("a", 2), 8)
    run.restart()
    run.element(("a", 3), 4)
    run.restart()
    run.watermark(12)
    assert values(run) == [{"median": 2.0, "n": 3}]


@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize(
    "assigner", [SessionWindows(ms(5)), TumblingWindows(ms(5)), SlidingWindows(ms(5), ms(1))], ids=shown
)
def test_after_a_restart_windows_fire_again_in_the_order_in_which_elements_came_for_them(
    assigner: Any, general: bool
) -> None:
    run = harness(WindowPlan(assigner, allowed_lateness_ms=50, aggregate=COUNT), general)
    for key in "abc":
        run.element((key, 1), 4)
    run.watermark(20)
    run.outputs()
    run.restart()
    for key in "cb":
        run.element((key, 1), 4)
    run.watermark(21)
    found = [(result.key, result.value["n"]) for result in run.outputs()]
    assert found == [("c", 2), ("b", 2)] * (5 if isinstance(assigner, SlidingWindows) else 1)


@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize("aggregate", [COUNT, Sum(itemgetter(1))], ids=["shared", "in order"])
@pytest.mark.parametrize("assigner", [TumblingWindows(ms(5)), CumulativeWindows(ms(5), ms(1))], ids=shown)
def test_after_two_restarts_windows_fire_again_for_all_that_came_since_the_first(
    assigner: Any, aggregate: Any, general: bool
) -> None:
    run = harness(WindowPlan(assigner, aggregate=aggregate), general)
    run.watermark(4)
    run.element(("a", 0.5), 5)
    for key in "bab":
        run.restart()
        run.element((key, 0.25), 4)
    run.watermark(4)
    assert [result.key for result in run.outputs()] == ["b", "a"]
    run.watermark(9)
    found = {result.key: result.value for result in run.outputs()}
    assert found == {"a": 0.5 if isinstance(aggregate, Sum) else {"n": 1}}


@pytest.mark.parametrize("general", [True, False])
@pytest.mark.parametrize("plan", [*PLAIN, SESSION])
@pytest.mark.parametrize("value", [1, 0.5])  # for sums of fractions, order matters
def test_restored_operator_knows_what_is_late(plan: WindowPlan, general: bool, value: float) -> None:
    run = harness(replace(plan, aggregate=Aggregates(n=Sum(itemgetter(1)))), general)
    run.element(("a", value), 1)
    run.watermark(1_000)
    run.restart()
    run.operator.restore_watermark(1_000)
    run.records.clear()
    run.element(("a", value), 2)
    assert run.records == [("late", ("a", value), 2)]


SHARED = WindowPlan(
    SlidingWindows(ms(20), ms(10)), allowed_lateness_ms=3, aggregate=Aggregates(total=Sum(itemgetter(1)))
)


@pytest.mark.parametrize("general", [True, False])
def test_windows_that_had_not_fired_do_so_where_elements_come_first(general: bool) -> None:
    run = harness(SHARED, general)
    run.element(("a", 1), 5)
    run.element(("b", 2), 15)
    run.restart()
    run.operator.restore_watermark(19)
    run.element(("c", 4), 22)
    run.element(("d", 8), 18)  # late for the window of the others
    run.watermark(29)
    found = [(result.start_ms, result.key, result.value["total"]) for result in run.outputs()]
    assert sorted(found) == [
        (-10, "a", 1),
        (0, "a", 1),
        (0, "b", 2),
        (0, "d", 8),
        (10, "b", 2),
        (10, "c", 4),
        (10, "d", 8),
    ]


@pytest.mark.parametrize("general", [True, False])
def test_an_element_does_not_come_late_into_a_window_that_had_not_fired(general: bool) -> None:
    run = harness(replace(SHARED, allowed_lateness_ms=0), general)
    run.element(("a", 1), 5)
    run.restart()
    run.operator.restore_watermark(9)
    run.element(("a", 2), 5)  # shares a slice with what is there, and one window of two
    run.watermark(19)
    found = [(result.start_ms, result.value["total"]) for result in run.outputs()]
    assert found == [(-10, 1), (0, 3)]


@pytest.mark.parametrize("general", [True, False])
def test_a_window_that_fired_late_does_not_fire_again_after_a_restart(general: bool) -> None:
    run = harness(replace(SHARED, allowed_lateness_ms=50), general)
    found = []
    for value in (1, 2):
        run.restart()
        run.operator.restore_watermark(25)
        found.append(values(run))
        run.element(("a", value), 15)
        found.append(values(run))
    assert found == [[], [{"total": 1}], [], [{"total": 3}]]
    run.watermark(26)
    assert values(run) == []


@pytest.mark.parametrize("general", [True, False])
def test_results_come_in_the_order_in_which_their_keys_came(general: bool) -> None:
    run = harness(SHARED, general)
    for key, timestamp in [("b", 15), ("a", 5), ("d", 5), ("c", 15), ("a", 15)]:
        run.element((key, 1), timestamp)
    run.watermark(19)
    assert [one.key for one in run.outputs() if one.start_ms == 0] == ["b", "a", "d", "c"]


def test_windows_share_slices_again_when_those_are_gone_of_which_the_order_mattered() -> None:
    run = harness(SHARED)
    for value, timestamp, whole in [(1, 5, 0), (0.5, 6, 2), (1, 15, 3), (1, 65, 0)]:
        run.element(("a", value), timestamp)
        assert len(run.operator.tables["open"]) == whole
        run.watermark(timestamp - 10 if timestamp < 15 else 50)
    run.watermark(100)
    assert [one.value["total"] for one in run.outputs()] == [1.5, 2.5, 1, 1, 1]


@pytest.mark.parametrize("general", [True, False])
def test_a_window_that_fired_anew_after_a_restart_keeps_what_came_since(general: bool) -> None:
    run = harness(SHARED, general)
    run.element(("a", 1), 5)
    run.element(("a", 4), 15)
    run.watermark(22)  # the window up to 20 has gone just now
    run.restart()
    run.element(("a", 2), 15)  # it is not known again yet how far event time had come
    run.watermark(19)
    run.outputs()
    run.element(("a", 0.5), 16)
    assert [(result.start_ms, result.value["total"]) for result in run.outputs()] == [(0, 2.5)]


@pytest.mark.parametrize("general", [True, False])
def test_what_a_trigger_has_counted_outlives_a_restart(general: bool) -> None:
    trigger = AfterWatermark(early=CountTrigger(2), late=CountTrigger(2))
    run = harness(WindowPlan(TumblingWindows(ms(10)), trigger, None, 50, Count()), general)
    found = []
    for watermark in (0, 9):
        for _ in range(3):
            run.element(("a", 1), 5)
            run.restart()
            run.operator.restore_watermark(watermark)
            found.append(values(run))
        run.watermark(9)
        found.append(values(run))
    assert found == [[], [2], [], [3], [], [5], [], []]


@pytest.mark.parametrize("watermark", [4, 9, 15])
@pytest.mark.parametrize("assigner", [TumblingWindows(ms(10)), SessionWindows(ms(5))], ids=shown)
def test_the_general_operator_lets_windows_go_in_time_that_it_took_over(
    assigner: WindowAssigner, watermark: int
) -> None:
    plan = WindowPlan(assigner, allowed_lateness_ms=20, aggregate=Count())
    run = Harness(*(partial(make, itemgetter(0), plan) for make in (window_operator, WindowOperator)))
    run.element(("a", 1), 5)
    run.watermark(watermark)
    run.restart()
    for reached, count in ((28, 1), (29, 0)):
        run.watermark(reached)
        assert run.operator.metrics()["windows_open"] == count
    assert values(run) == [1]
    assert rows(run, "timers/") == rows(run, "merging") == []


def test_a_snapshot_does_not_change_with_the_operator() -> None:
    for general in (True, False):
        run = harness(WindowPlan(TumblingWindows(ms(10)), aggregate=Collect(itemgetter(1))), general)
        run.element(("a", 1), 0)
        kept = run.operator.snapshot()
        table = kept["tables"]["contents" if general else "slices"]
        run.element(("a", 2), 1)
        assert table == [[(0, 10), [["a", [1]]]]]
        run.operator.restore(kept)
        run.element(("a", 3), 1)
        assert table == [[(0, 10), [["a", [1]]]]]


# Process functions


class Plain(ProcessWindowFunction[Any]):
    def process(self, key: Any, contents: Any, ctx: WindowContext, out: Callable[[Any], None]) -> None:
        out((key, tuple(ctx.window), contents, ctx.watermark))


class Telling(ProcessWindowFunction[Any]):
    def process(self, key: Any, contents: Any, ctx: WindowContext, out: Callable[[Any], None]) -> None:
        firings = ctx.window_state(ValueDescriptor[int]("firings", default=0))
        firings.set((firings.get() or 0) + 1)
        total = ctx.key_state(ValueDescriptor[int]("firings", default=0))
        total.set((total.get() or 0) + 1)
        out((key, tuple(ctx.window), contents, firings.get(), total.get(), ctx.watermark))
        ctx.side("aside", key)

    def clear(self, key: Any, ctx: WindowContext) -> None:
        ctx.window_state(ValueDescriptor[int]("firings", default=0)).clear()


def test_a_process_function_gets_the_result_of_the_aggregate_and_keeps_state() -> None:
    plan = WindowPlan(
        TumblingWindows(ms(10)), allowed_lateness_ms=5, aggregate=Sum(itemgetter(1)), process=Telling()
    )
    run = harness(plan, side=("aside",))
    run.element(("a", 1), 5)
    run.watermark(9)
    run.element(("a", 2), 6)
    run.restart()
    run.element(("a", 4), 15)
    run.watermark(20)
    assert run.records == [
        ("out", ("a", (0, 10), 1, 1, 1, 9), 9),
        ("aside", "a", 9),
        ("wm", 9),
        ("out", ("a", (0, 10), 3, 2, 2, 9), 9),
        ("aside", "a", 9),
        ("out", ("a", (10, 20), 4, 1, 3, 20), 19),
        ("aside", "a", 19),
        ("wm", 20),
    ]
    run.watermark(30)
    assert rows(run, "window/") == []
    assert run.operator.metrics()["windows_open"] == 0


class Asking(ProcessWindowFunction[Any]):
    def process(self, key: Any, contents: Any, ctx: WindowContext, out: Callable[[Any], None]) -> Any:
        async def asked() -> None:
            out(key)

        return asked()


@pytest.mark.parametrize("general", [False, True])
def test_what_a_process_function_returns_is_not_lost_if_it_is_to_be_awaited(general: bool) -> None:
    run = harness(WindowPlan(TumblingWindows(ms(10)), aggregate=COUNT, process=Asking()), general)
    run.element(("a", 1), 5)
    with pytest.raises(UserFunctionError, match="emit with out"):
        run.watermark(9)


@pytest.mark.parametrize("general", [False, True])
def test_what_a_window_beyond_the_end_of_time_sends_aside_carries_the_last_timestamp(general: bool) -> None:
    plan = WindowPlan(TumblingWindows(ms(1000)), aggregate=Count(), process=Telling())
    run = harness(plan, side=("aside",), general=general)
    run.element(("a", 1), MAX_TIMESTAMP)
    run.watermark(MAX_TIMESTAMP)
    told = [(name, timestamp) for name, *_, timestamp in run.records]
    assert told == [(name, MAX_TIMESTAMP) for name in ("out", "aside", "wm")]


class Clearing(ProcessWindowFunction[Any]):
    """Tells which windows of its key go, and when."""

    gone = ListDescriptor[Any]("gone")

    def process(self, key: Any, contents: Any, ctx: WindowContext, out: Callable[[Any], None]) -> None:
        ctx.window_state(ValueDescriptor[int]("firings")).set(1)

    def clear(self, key: Any, ctx: WindowContext) -> None:
        ctx.window_state(ValueDescriptor[int]("firings")).clear()
        ctx.key_state(self.gone).add(ctx.window.start_ms)


@pytest.mark.parametrize("assigner", [TumblingWindows(ms(10)), SlidingWindows(ms(10), ms(5))])
@pytest.mark.parametrize("after", [0, 5, 20, 40])
@pytest.mark.parametrize("make", [window_operator, WindowOperator])
def test_windows_that_live_on_are_cleared_when_lateness_has_become_another(
    make: Callable[..., Operator], after: int, assigner: WindowAssigner
) -> None:
    def maker(lateness: int) -> Callable[[], Operator]:
        plan = WindowPlan(assigner, None, None, lateness, Sum(itemgetter(1)), Clearing())
        return lambda: make(itemgetter(0), plan)

    run = Harness(maker(20), maker(after))
    for key, timestamp in (("a", 5), ("b", 7), ("a", 16)):
        run.element((key, 1), timestamp)
    run.watermark(15)  # those that begin at 0 and 5 have fired, and may do so again
    fired, open_ = ([0, 5], [10, 15]) if isinstance(assigner, SlidingWindows) else ([0], [10])
    assert len(rows(run, "window/")) == len(fired)
    run.restart()
    run.watermark(16)
    run.watermark(MAX_TIMESTAMP)
    [(_, gone)] = rows(run, "key/gone")
    assert {key: sorted(starts) for key, starts in gone} == {"a": fired + open_, "b": fired}
    assert rows(run, "window/") == []


@pytest.mark.parametrize("has_fired", [False, True])
@pytest.mark.parametrize("at", [1, 3])  # within the session, and behind its end
@pytest.mark.parametrize("assigner", [SessionWindows(ms(2)), DynamicSessionWindows(lambda value: ms(2))])
def test_a_session_that_is_kept_for_longer_than_it_would_be_now_takes_late_elements_and_goes(
    assigner: WindowAssigner, at: int, has_fired: bool
) -> None:
    def maker(lateness: int) -> Callable[[], Operator]:
        plan = WindowPlan(assigner, None, None, lateness, Sum(itemgetter(1)))
        return lambda: window_operator(itemgetter(0), plan)

    run = Harness(maker(20), maker(0))
    for timestamp in (0, 1):
        run.element(("a", 1), timestamp)
    if has_fired:
        run.watermark(10)
        assert values(run) == [2]
    run.restart()
    run.operator.restore_watermark(10)
    run.element(("a", 1), at)
    run.watermark(11)
    assert values(run)[-1] == 3
    assert run.operator.metrics()["windows_open"] == 0
    run.watermark(22)  # for which the run before had set a timer
    assert rows(run, "") == []


class Firings(ProcessWindowFunction[Any]):
    """Remembers of a window how often it has fired."""

    def process(self, key: Any, contents: Any, ctx: WindowContext, out: Callable[[Any], None]) -> None:
        ctx.window_state(ValueDescriptor[int]("firings")).set(1)

    def clear(self, key: Any, ctx: WindowContext) -> None:
        ctx.window_state(ValueDescriptor[int]("firings")).clear()


@pytest.mark.parametrize("after", [0, 2, 7, 9])
@pytest.mark.parametrize(
    ("trigger", "evictor"),
    [
        (PurgingTrigger(ContinuousEventTimeTrigger(ms(3))), None),
        (PurgingTrigger(CountTrigger(1)), None),
        (EventTimeTrigger(), CountEvictor(0, "after")),
    ],
    ids=["ticks", "counts", "evicts"],
)
@pytest.mark.parametrize(
    "assigner", [TumblingWindows(ms(4)), SlidingWindows(ms(4), ms(2)), SessionWindows(ms(4))]
)
def test_windows_without_contents_go_when_lateness_has_become_another(
    assigner: WindowAssigner, trigger: Trigger, evictor: Evictor | None, after: int
) -> None:
    """What their triggers and functions remember went never, and neither did a session itself."""
    process = None if isinstance(assigner, SessionWindows) else Firings()
    plans = [WindowPlan(assigner, trigger, evictor, lateness, process=process) for lateness in (7, after)]
    run = Harness(*(partial(window_operator, itemgetter(0), plan) for plan in plans))
    run.element(("a", 1), 1)
    run.watermark(5)
    assert rows(run, "contents") == []
    assert rows(run, "") != []
    run.restart()
    run.watermark(100)
    assert rows(run, "") == []


def test_sessions_have_no_window_state() -> None:
    run = harness(WindowPlan(SessionWindows(ms(10)), process=Telling()))
    run.element(("a", 1), 5)
    with pytest.raises(UserFunctionError, match="sessions have no window state"):
        run.watermark(20)


def test_a_firing_hands_out_a_list_of_its_own() -> None:
    run = harness(WindowPlan(GlobalWindows(), CountTrigger(1)))
    run.element(("a", 1))
    run.element(("a", 2))
    assert values(run) == [[("a", 1)], [("a", 1), ("a", 2)]]


def test_global_window_that_fires_at_the_end_of_time_does_not_fire_for_what_comes_behind_it() -> None:
    run = harness(WindowPlan(GlobalWindows(fire_at_end=True)))
    run.element(("a", 1), 5)
    run.watermark(MAX_TIMESTAMP)
    run.element(("a", 2), 6)
    assert values(run) == [[("a", 1)]]
    run.restart()
    run.element(("b", 3), 7)
    run.watermark(MAX_TIMESTAMP)
    assert values(run) == [[("a", 1), ("a", 2)], [("b", 3)]]


# Triggers


def test_after_watermark_fires_early_on_time_and_late_each_as_it_is_told() -> None:
    trigger = AfterWatermark(early=CountTrigger(2), late=CountTrigger(3))
    plan = WindowPlan(TumblingWindows(ms(10)), trigger, allowed_lateness_ms=10, aggregate=Count())
    run = harness(plan)
    found = []
    for step in range(5):
        run.element(("a", step), step)
        found.append(values(run))
    run.watermark(9)
    found.append(values(run))
    for step in range(4):
        run.element(("a", step), step)
        found.append(values(run))
    run.watermark(19)
    assert found == [[], [2], [], [4], [], [5], [], [], [8], []]
    assert rows(run, "trigger/") == []


def test_what_was_counted_late_goes_with_its_window_also_where_windows_share_slices() -> None:
    trigger = AfterWatermark(late=CountTrigger(3))
    run = harness(WindowPlan(SlidingWindows(ms(10), ms(5)), trigger, None, 10, Count()))
    run.element(("a", 1), 3)
    run.watermark(9)
    run.element(("a", 2), 3)
    assert rows(run, "trigger/")
    run.watermark(40)
    assert rows(run, "trigger/") == []


@pytest.mark.parametrize("watermark", [9, 20])
def test_late_elements_are_shown_at_the_next_tick_of_the_clock_however_often_they_come(
    watermark: int,
) -> None:
    trigger = AfterWatermark(late=ContinuousProcessingTimeTrigger(ms(5)))
    run = harness(WindowPlan(TumblingWindows(ms(10)), trigger, None, 1000, aggregate=Count()))
    run.time(101)
    run.element(("a", 1), 3)
    run.watermark(watermark)
    assert values(run) == [1]
    for number, tick in enumerate((105, 120, 125), start=1):
        run.time(tick - 4)
        run.element(("a", 2), 3)
        run.element(("a", 3), 4)
        run.time(tick - 1)
        assert values(run) == []
        run.time(tick)
        assert values(run) == [1 + 2 * number]


@pytest.mark.parametrize("has_gone", [False, True])
def test_late_elements_wait_for_the_clock_also_when_another_window_has_gone(has_gone: bool) -> None:
    trigger = AfterWatermark(late=ContinuousProcessingTimeTrigger(ms(5)))
    run = harness(WindowPlan(TumblingWindows(ms(10)), trigger, None, 100, aggregate=Count()))
    run.time(1001)
    if has_gone:
        run.element(("a", 1), 3)
        run.watermark(200)
        assert values(run) == [1]
    run.element(("a", 1), 303)
    run.watermark(309)
    assert values(run) == [1]
    run.element(("a", 2), 304)
    run.time(1004)
    assert values(run) == []
    run.time(1005)
    assert values(run) == [2]


def test_a_window_that_begins_after_its_end_has_the_tick_of_its_end_first() -> None:
    """Flink's ContinuousProcessingTimeTrigger caps a tick at the window's end, also one that is to come."""
    run = harness(
        WindowPlan(
            TumblingWindows(ms(10)), ContinuousProcessingTimeTrigger(ms(5)), None, 1000, aggregate=Count()
        )
    )
    run.time(101)
    run.watermark(20)
    run.element(("a", 1), 3)
    run.element(("a", 2), 4)
    run.time(102)
    assert values(run) == [2]
    run.element(("a", 3), 5)
    run.time(104)
    assert values(run) == []
    run.time(105)
    assert values(run) == [3]


def test_a_time_out_leaves_to_the_trigger_inside_whether_contents_are_forgotten() -> None:
    trigger = ProcessingTimeoutTrigger(PurgingTrigger(EventTimeTrigger()), ms(4))
    run = harness(WindowPlan(TumblingWindows(ms(10)), trigger, None, 20, Count()))
    run.element(("a", 1), 3)
    run.watermark(9)
    run.element(("a", 2), 3)
    assert values(run) == [1, 1]


@pytest.mark.parametrize("assigner", [TumblingWindows(ms(10)), SlidingWindows(ms(10), ms(10))])
@pytest.mark.parametrize(
    "of",
    [
        EventTimeTrigger(),
        ContinuousEventTimeTrigger(ms(5)),
        AfterWatermark(early=ContinuousEventTimeTrigger(ms(5))),
    ],
    ids=shown,
)
def test_a_window_goes_though_a_time_out_deletes_the_timer_at_its_end(of: Trigger, assigner: Any) -> None:
    trigger = ProcessingTimeoutTrigger(of, ms(4))
    run = Harness(lambda: WindowOperator(itemgetter(0), WindowPlan(assigner, trigger)))
    run.element(("a", 1), 3)
    if isinstance(of, EventTimeTrigger):
        run.time(5)
    run.watermark(5)
    run.watermark(9)
    run.watermark(11)
    assert values(run) == [[("a", 1)]]
    metrics = run.operator.metrics()
    assert (metrics["windows_open"], metrics["event_timers"], metrics["processing_timers"]) == (0, 0, 0)


class Later(EventTimeTrigger):
    """Fires 20 ms behind the end of a window for what came late."""

    def on_element(self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext) -> Any:
        if window.max_timestamp > ctx.watermark:
            return super().on_element(value, timestamp, window, ctx)
        ctx.register_event_timer(window.max_timestamp + 20)
        return TriggerResult.CONTINUE

    def on_event_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> Any:
        return TriggerResult.FIRE


def test_what_came_late_is_shown_though_less_lateness_is_allowed_since() -> None:
    plans = [WindowPlan(TumblingWindows(ms(10)), Later(), None, lateness, COUNT) for lateness in (50, 0)]
    run = Harness(*(partial(WindowOperator, itemgetter(0), plan) for plan in plans))
    run.element(("a", 1), 3)
    run.watermark(9)
    run.element(("a", 2), 4)
    assert [one["n"] for one in values(run)] == [1]
    run.restart()
    run.watermark(70)
    assert [one["n"] for one in values(run)] == [2]
    assert run.operator.metrics()["windows_open"] == 0


def test_after_watermark_merges_what_its_parts_counted() -> None:
    trigger = AfterWatermark(early=CountTrigger(3))
    run = harness(WindowPlan(SessionWindows(ms(5)), trigger, allowed_lateness_ms=2, aggregate=Count()))
    run.element(("a", 0), 0)
    run.element(("a", 0), 8)
    run.element(("a", 0), 4)
    assert values(run) == [3]
    run.watermark(12)
    assert values(run) == [3]
    run.element(("a", 0), 7)  # late: fires at once
    assert values(run) == [4]


def test_after_watermark_without_parts_does_what_the_default_does() -> None:
    plans = [WindowPlan(TumblingWindows(ms(4)), t, aggregate=Count()) for t in (None, AfterWatermark())]
    runs = [harness(plan) for plan in plans]
    for run in runs:
        for step in range(12):
            run.element(("a", step), step)
            run.watermark(step)
    assert runs[0].records == runs[1].records


def test_early_ticks_of_processing_time_stop_with_the_window() -> None:
    trigger = AfterWatermark(early=ContinuousProcessingTimeTrigger(ms(10)))
    run = harness(WindowPlan(TumblingWindows(ms(100)), trigger, aggregate=Count()))
    run.element(("a", 1), 1)
    run.time(25)
    run.watermark(99)
    run.time(500)
    assert values(run) == [1, 1, 1]
    assert run.operator.metrics()["processing_timers"] == 0


@pytest.mark.parametrize("ticks", [ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger])
def test_ticks_go_on_where_another_operator_takes_over(ticks: Callable[..., Trigger]) -> None:
    plans = [
        WindowPlan(
            TumblingWindows(ms(100)),
            AfterWatermark(early=ticks(ms(10)), late=DeltaTrigger(lambda one, other: other[1] - one[1], 5)),
            allowed_lateness_ms=lateness,
            aggregate=Count(),
        )
        for lateness in (0, 20, 0)  # within it, the general operator asks the trigger about late elements
    ]
    assert [plan.kept for plan in plans] == ["panes", "contents", "panes"]
    run = Harness(*(partial(window_operator, itemgetter(0), plan) for plan in plans))
    run.element(("a", 1), 1)
    for now in (25, 45, 65):
        run.time(now)
        run.watermark(now)
        assert values(run) == [1, 1]
        run.restart()
    run.watermark(99)
    run.time(500)
    assert values(run) == ([1] * 4 if ticks is ContinuousEventTimeTrigger else [1])
    assert rows(run, "trigger/") == rows(run, "timers/") == []


@pytest.mark.parametrize("general", [False, True])
def test_a_key_keeps_its_tick_when_earlier_elements_come_after_a_restart(general: bool) -> None:
    run = harness(
        WindowPlan(TumblingWindows(ms(30)), ContinuousEventTimeTrigger(ms(10)), aggregate=Count()), general
    )
    run.element(("a", 1), 15)
    run.watermark(5)
    run.restart()
    run.element(("a", 2), 2)  # it is not known again yet how far event time had come
    found = []
    for watermark in (12, 20, 29):
        run.watermark(watermark)
        found.append(values(run))
    assert found == [[], [2], [2]]


def test_ticks_on_a_global_window_end_with_time() -> None:
    run = harness(WindowPlan(GlobalWindows(), ContinuousEventTimeTrigger(ms(10)), aggregate=Count()))
    run.element(("a", 1), 3)
    run.element(("b", 1))  # without timestamp there is no tick until one comes that has one
    run.watermark(25)
    assert values(run) == [1, 1]
    run.element(("c", 1))  # or event time has come somewhere
    run.watermark(30)
    assert [(result.key, result.value) for result in run.outputs()] == [("a", 1), ("c", 1)]
    run.watermark(MAX_TIMESTAMP)
    fired = [(result.key, result.value) for result in run.outputs()]
    assert sorted(fired) == [("a", 1), ("a", 1), ("b", 1), ("c", 1), ("c", 1)]


@pytest.mark.parametrize(
    "trigger",
    [
        ContinuousEventTimeTrigger(ms(5)),
        ContinuousProcessingTimeTrigger(ms(5)),
        ProcessingTimeoutTrigger(CountTrigger(9), ms(5)),
        AfterWatermark(early=ContinuousEventTimeTrigger(ms(5))),
        EventTimeTrigger(),
        CountTrigger(1),
    ],
    ids=shown,
)
def test_a_global_window_goes_on_firing_where_there_is_more_input_after_the_end(trigger: Trigger) -> None:
    """A file has grown when the job is run again. One key was there before the end, the other was not."""
    run = harness(WindowPlan(GlobalWindows(), trigger))
    run.element(("a", 1), 3)
    run.watermark(MAX_TIMESTAMP)
    run.operator.end_input()
    run.restart()
    run.outputs()
    for key in "ab":
        run.element((key, 2), 12)
    run.watermark(21)
    run.time(9)
    run.watermark(MAX_TIMESTAMP)
    fired = [result.key for result in run.outputs()]
    assert fired.count("a") == fired.count("b") > 0


@pytest.mark.parametrize(
    "windows", [SessionWindows(ms(5)), TumblingWindows(ms(10)), SlidingWindows(ms(9), ms(3))]
)
@pytest.mark.parametrize("restarts", [False, True])
def test_after_the_end_of_time_everything_is_late(windows: WindowAssigner, restarts: bool) -> None:
    run = harness(WindowPlan(windows, None, None, 50, COUNT))
    run.watermark(MAX_TIMESTAMP)
    if restarts:
        run.restart()
        run.operator.restore_watermark(MAX_TIMESTAMP)
    run.records.clear()
    run.element(("a", 1), MAX_TIMESTAMP)
    assert run.records == [("late", ("a", 1), MAX_TIMESTAMP)]


class SetsItsLastTick(ContinuousEventTimeTrigger):
    """As earlier versions did, when time had ended."""

    def on_event_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> TriggerResult:
        result = super().on_event_time(timestamp, window, ctx)
        if timestamp < ctx.watermark == MAX_TIMESTAMP:
            self._set(ctx.state(self._tick), MAX_TIMESTAMP, ctx)
        return result


def test_ticks_go_on_where_an_earlier_version_has_set_the_last() -> None:
    def made(trigger: Trigger) -> WindowOperator:
        return WindowOperator(itemgetter(0), WindowPlan(GlobalWindows(), trigger, aggregate=Count()))

    run = Harness(lambda: made(SetsItsLastTick(ms(5))), lambda: made(ContinuousEventTimeTrigger(ms(5))))
    run.element(("a", 1), 3)
    run.watermark(MAX_TIMESTAMP)
    run.restart()
    run.outputs()
    run.element(("a", 2), 12)
    run.watermark(21)
    assert values(run) == [2, 2]


def test_never_fires() -> None:
    run = harness(WindowPlan(TumblingWindows(ms(10)), NeverTrigger()))
    run.element(("a", 1), 3)
    run.watermark(MAX_TIMESTAMP)
    assert values(run) == []
    assert run.operator.metrics()["windows_open"] == 0


# Time


def test_elements_between_windows_are_counted() -> None:
    for general in (True, False):
        run = harness(WindowPlan(SlidingWindows(ms(2), ms(5)), aggregate=COUNT), general, side=())
        for timestamp in range(10):
            run.element(("a", 1), timestamp)
        run.watermark(20)
        run.element(("a", 1), 3)
        run.element(("a", 1), 1)
        metrics = run.operator.metrics()
        assert (metrics["outside_windows"], metrics["late_dropped"]) == (6, 2)
        assert values(run) == [{"n": 2}, {"n": 2}]


def test_a_staggered_window_keeps_its_place_over_a_restart() -> None:
    run = harness(WindowPlan(TumblingWindows(ms(10), time="processing", stagger=True), aggregate=Count()))
    run.time(1)
    run.operator.process_batch([], [])
    run.time(3)
    run.element(("a", 1))
    run.time(7)
    run.restart()
    run.element(("a", 1))
    run.time(12)
    assert run.outputs() == [WindowResult("a", 3, 13, 2)]


def test_the_end_of_input_fires_processing_time_windows() -> None:
    run = harness(WindowPlan(TumblingWindows(ms(10), time="processing"), aggregate=Count()))
    run.element(("a", 1))
    run.operator.end_input()
    assert run.outputs() == [WindowResult("a", 0, 10, 1)]
    assert run.operator.metrics()["windows_open"] == 0


class DeclaresTwice(EventTimeTrigger):
    """Asks for one state with two defaults."""

    def on_element(self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext) -> Any:
        for default in (None, None, 1):
            ctx.state(ValueDescriptor[int]("seen", default))
        return super().on_element(value, timestamp, window, ctx)


def test_state_that_a_trigger_asks_for_in_two_ways_is_refused() -> None:
    run = harness(WindowPlan(TumblingWindows(1), DeclaresTwice(), aggregate=Count()))
    with pytest.raises(UserFunctionError, match=r"default=None\) and as .*default=1\)"):
        run.element(("a", 1), 0)


class LooksBefore(ProcessingTimeTrigger):
    """Is asked a millisecond before the end of a window, too, about which it does nothing."""

    def on_element(self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext) -> Any:
        ctx.register_processing_timer(window.max_timestamp - 1)
        return super().on_element(value, timestamp, window, ctx)

    def on_processing_time(self, timestamp: int, window: Window, ctx: TriggerContext) -> Any:
        return TriggerResult.FIRE if timestamp == window.max_timestamp else TriggerResult.CONTINUE


@pytest.mark.parametrize(
    "trigger",
    [
        LooksBefore(),
        ContinuousProcessingTimeTrigger(ms(2)),
        PurgingTrigger(ContinuousProcessingTimeTrigger(ms(2))),
        ProcessingTimeoutTrigger(CountTrigger(9), ms(3)),
        ProcessingTimeoutTrigger(ContinuousProcessingTimeTrigger(ms(2)), ms(3), clear_on_timeout=False),
        ProcessingTimeoutTrigger(ProcessingTimeTrigger(), ms(3), clear_on_timeout=False),
    ],
)
@pytest.mark.parametrize(
    "assigner",
    [
        TumblingWindows(1000, time="processing"),
        SessionWindows(1000, time="processing"),
        DynamicSessionWindows(lambda value: 1000, time="processing"),
    ],
)
def test_at_the_end_of_input_a_processing_time_window_fires_once_and_goes(
    assigner: WindowAssigner, trigger: Trigger
) -> None:
    if assigner.merging and not trigger.can_merge:
        return
    run = harness(WindowPlan(assigner, trigger, aggregate=Count()))
    run.time(1_000_000_000)
    run.element(("a", 1))
    run.element(("b", 1))
    run.operator.process_batch([("a", 2), ("a", 3)], None)
    run.operator.end_input()
    assert [(result.key, result.value) for result in run.outputs()] == [("a", 3), ("b", 1)]
    metrics = run.operator.metrics()
    assert (metrics["windows_open"], metrics["processing_timers"]) == (0, 0)
    assert rows(run, "trigger/") == []


def test_at_the_end_of_input_each_processing_time_window_fires_in_the_order_of_ends() -> None:
    plan = WindowPlan(SlidingWindows(ms(6), ms(3), time="processing"), aggregate=Count())
    run = harness(plan)
    for now in (3, 4):
        run.time(now)
        run.element(("a", now))
    run.operator.end_input()
    assert run.outputs() == [
        WindowResult("a", 0, 6, 2),
        WindowResult("a", 3, 9, 2),
    ]


def test_a_window_whose_trigger_never_fires_is_cleared_once_at_the_end_of_input() -> None:
    cleared: list[Any] = []

    class Clears(ProcessWindowFunction[Any]):
        def process(self, key: Any, contents: Any, ctx: WindowContext, out: Any) -> None:
            out(contents)

        def clear(self, key: Any, ctx: WindowContext) -> None:
            cleared.append((key, ctx.window))

    for trigger in (CountTrigger(9), ContinuousProcessingTimeTrigger(ms(2)), None):
        cleared.clear()
        assigner = TumblingWindows(1, time="processing")
        run = harness(WindowPlan(assigner, trigger, process=Clears()))
        run.element(("a", 1))
        run.operator.end_input()
        assert cleared == [("a", (0, 1000))]


@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("assigner", [TumblingWindows(ms(10)), SlidingWindows(ms(20), ms(10))], ids=shown)
def test_a_result_that_fails_names_its_key_behind_those_before_it(
    assigner: WindowAssigner, general: bool
) -> None:
    class Share(AggregateFunction[Any, float]):
        order_free = True

        def create(self) -> int:
            return 0

        def add(self, accumulator: int, value: Any) -> int:
            return accumulator + int(value[1])

        def merge(self, accumulator: int, other: int) -> int:
            return accumulator + other

        def result(self, accumulator: int) -> float:
            return 1 / accumulator

    run = harness(WindowPlan(assigner, aggregate=Aggregates(share=Share())), general)
    for key, value in (("a", 1), ("b", 0), ("c", 2)):
        run.element((key, value), 5)
    with pytest.raises(UserFunctionError) as caught:
        run.watermark(9)
    assert "of key 'b'" in str(caught.value)
    assert [result.key for result in run.outputs()] == ["a"]


@pytest.mark.parametrize("timestamp", [2**63, -(2**63) - 1, 10**30])
@pytest.mark.parametrize(
    "assigner", [TumblingWindows(1), SlidingWindows(2, 1), SlidingWindows(3, 2), SessionWindows(1)]
)
@pytest.mark.parametrize("is_general", [False, True])
def test_a_timestamp_beyond_all_time_is_refused(
    assigner: WindowAssigner, timestamp: int, is_general: bool
) -> None:
    run = harness(WindowPlan(assigner, aggregate=Count()), general=is_general)
    with pytest.raises(UserFunctionError, match="a timestamp of 64 bits"):
        run.element(("a", 1), timestamp)


def test_windows_cost_by_the_slices_that_there_are() -> None:
    day, hour = 86_400_000, 3_600_000
    plan = WindowPlan(SlidingWindows(ms(day), ms(hour + 1)), aggregate=Count(), allowed_lateness_ms=hour)
    fast, slow = harness(plan), harness(plan, general=True)
    for run in (fast, slow):
        for timestamp in (0, hour, hour + 1, day, 4_102_444_800_000, 5):
            run.element(("a", 1), timestamp)
        run.watermark(day + hour)
        run.element(("a", 1), day)
        run.restart()
        run.watermark(MAX_TIMESTAMP)
    assert fast.records == slow.records


def test_cumulative_windows_cost_by_the_slices_that_there_are() -> None:
    size, late = 1_000_000, 5_000  # to look at as many slices each time would take minutes
    run = harness(WindowPlan(CumulativeWindows(ms(size), ms(1)), aggregate=Count(), allowed_lateness_ms=10))
    run.element(("a", 1), size - 2)
    run.watermark(size)
    for _ in range(late):
        run.element(("a", 1), size - 1)
    assert values(run) == [1, 1, *range(2, late + 2)]


def test_windows_before_the_epoch_and_offsets() -> None:
    run = harness(WindowPlan(TumblingWindows(ms(10), offset=ms(-3)), aggregate=Count()))
    run.element(("a", 1), -4)
    run.element(("a", 1), 6)
    run.element(("a", 1), 7)
    run.watermark(MAX_TIMESTAMP)
    spans = [(result.start_ms, result.end_ms, result.value) for result in run.outputs()]
    assert spans == [(-13, -3, 1), (-3, 7, 1), (7, 17, 1)]


def test_a_window_that_is_to_fire_again_does_so_in_the_order_of_what_came_since() -> None:
    plan = WindowPlan(SlidingWindows(ms(9), ms(1)), aggregate=COUNT, allowed_lateness_ms=1)

    def chosen() -> Operator:
        return window_operator(itemgetter(0), plan)

    def general() -> Operator:
        return WindowOperator(itemgetter(0), plan)

    before = [("el", ("b", 1), 0), ("el", ("a", 2), 0), ("wm", 3), ("restart",), ("restart",)]
    script = [*before, ("el", ("a", 3), 3), ("el", ("b", 4), 3), ("restart",), ("wm", MAX_TIMESTAMP)]
    found = [Harness(*makers).run(script) for makers in ((general,), (chosen,), (chosen, general))]
    assert found[0] == found[1] == found[2]


# The loop that rests between elements


def test_what_restores_tell_of_event_time_counts_from_the_next_element_on() -> None:
    run = harness(WindowPlan(TumblingWindows(ms(10)), aggregate=COUNT), general=True, side=("late",))
    run.element(("a", 1), 5)
    run.operator.restore_watermark(20)
    run.element(("a", 2), 6)
    assert [record[:2] for record in run.records] == [("late", ("a", 2))]


@pytest.mark.parametrize("batched", [False, True])
def test_operator_takes_elements_after_one_over_which_it_failed(batched: bool) -> None:
    run = harness(WindowPlan.counting(2, aggregate=Aggregates(total=Sum(itemgetter(1)))))
    wrong = [("el", ("a", 1), 0), ("el", ("a", "b"), 0)]
    with pytest.raises(UserFunctionError):
        run.run(wrong, batched)
    run.run([("el", ("c", 1), 0), ("el", ("c", 2), 0)], batched)
    assert values(run) == [{"total": 3}]


def test_elements_come_in_order_behind_a_later_slice_in_which_one_failed() -> None:
    plan = WindowPlan(SlidingWindows(ms(10), ms(5)), aggregate=Collect(itemgetter(1)))
    run = harness(plan)
    run.element(("a", 1), 1)
    with pytest.raises(UserFunctionError):
        run.operator.process_batch([("b", 2), ()], [6, 7])
    run.element(("b", 3), 3)
    run.watermark(9)
    assert values(run) == [[1], [3], [1], [2, 3]]
