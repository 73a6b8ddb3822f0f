"""Sessions that end close together in time: what shares a page of the calendar, or is torn out of one."""

from __future__ import annotations

import math
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.windowing import (
    AfterWatermark,
    Aggregates,
    Collect,
    Count,
    CountEvictor,
    CountTrigger,
    DynamicSessionWindows,
    Evictor,
    First,
    SessionWindows,
    WindowOperator,
    WindowPlan,
    window_operator,
)
from asyncstream.windowing import sessions as sessions_module
from asyncstream.windowing.base import WindowStep
from asyncstream.windowing.session_calendar import Calendar
from asyncstream.windowing.sessions import SessionWindowOperator
from tests.windowing.harness import Harness, Step, ms

TIMES = st.integers(-100, 200)


@given(st.lists(st.tuples(st.sampled_from(["register", "pop"]), TIMES), max_size=40))
def test_calendar_gives_every_time_once_it_has_come_and_none_before(steps: list[tuple[str, int]]) -> None:
    calendar = Calendar()
    left: list[tuple[int, Any]] = []
    for number, (what, time_ms) in enumerate(steps):
        if what == "register":
            calendar.register(time_ms, number)
            left.append((time_ms, number))
            continue
        found = []
        while (come := calendar.pop(time_ms)) is not None:
            until, some = come
            assert some
            assert until <= time_ms
            assert all(when <= until for when, _ in some)
            found += some
            left = [entry for entry in left if entry not in some]
            assert all(when > until for when, _ in left)
        assert all(when > time_ms for when, _ in left)
        assert calendar.earliest() == min((when for when, _ in left), default=None)
    rest = []
    while (come := calendar.pop(math.inf)) is not None:
        rest += come[1]
    assert sorted(rest) == sorted(left)


OFFSETS = st.integers(-60, 60) | st.sampled_from([0, 1])  # often the same, for keys that end together
ELEMENT = st.tuples(st.just("el"), st.tuples(st.sampled_from("abc"), st.just(1)), OFFSETS)
WATERMARK = st.tuples(st.just("wm"), st.integers(0, 70))


@given(
    st.lists(ELEMENT | ELEMENT | WATERMARK | st.tuples(st.just("restart")), min_size=10, max_size=50),
    st.sampled_from([1, 5, 31, 32, 33, 70]),
    st.sampled_from([0, 3, 50]),
    st.integers(-150, 150) | st.just(MAX_TIMESTAMP - 150),
    st.booleans(),
    st.sampled_from([0, 500]),
)
def test_sessions_are_those_of_the_general_operator_where_many_end_within_a_page(
    steps: list[Step], gap_ms: int, lateness_ms: int, first_ms: int, batched: bool, few: int
) -> None:
    script: list[Step] = [("wm", first_ms)]  # whoever knows of it after a restart has had it before
    reached = first_ms
    for kind, *rest in steps:
        if kind == "el":
            script.append(("el", rest[0], min(reached + rest[1], MAX_TIMESTAMP)))
        elif kind == "wm":
            reached = min(reached + rest[0], MAX_TIMESTAMP)
            script.append(("wm", reached))
        else:
            script += [("restart",), ("known", reached)]
    script.append(("wm", MAX_TIMESTAMP))
    plan = WindowPlan(SessionWindows(ms(gap_ms)), aggregate=Count(), allowed_lateness_ms=lateness_ms)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions_module, "_FEW", few)
        expected, found = (
            Harness(lambda make=make: make(itemgetter(0), plan)).run(script, batched)  # type: ignore[misc]
            for make in (WindowOperator, SessionWindowOperator)
        )
    assert found == expected


@pytest.mark.parametrize("general", [False, True])
def test_elements_of_the_earlier_session_come_first_however_many_have_merged(general: bool) -> None:
    plan = WindowPlan(DynamicSessionWindows(lambda value: ms(value[1])))
    make = WindowOperator if general else SessionWindowOperator
    apart = [("two", 6, 0), ("two", 6, 0), ("one", 1, 10), *[("three", 1, 20)] * 3]
    script: list[Step] = [("el", (name, gap_ms), at_ms) for name, gap_ms, at_ms in [*apart, ("all", 30, 5)]]
    records = Harness(lambda: make(lambda value: "k", plan)).run([*script, ("wm", MAX_TIMESTAMP)])
    assert [name for name, _ in records[0][1].value] == ["two"] * 2 + ["one"] + ["three"] * 3 + ["all"]


@pytest.mark.parametrize("evictor", [None, CountEvictor(100)])
def test_an_evictor_leaves_merged_sessions_in_their_order(evictor: Evictor | None) -> None:
    aggregate = Aggregates(first=First(), all=Collect())
    plan = WindowPlan(SessionWindows(ms(5)), evictor=evictor, aggregate=aggregate)
    script: list[Step] = [("el", ("a", at_ms), at_ms) for at_ms in (0, 10, 11, 5)]
    records = Harness(lambda: window_operator(itemgetter(0), plan)).run([*script, ("wm", MAX_TIMESTAMP)])
    assert records[0][1].value == {"first": ("a", 0), "all": [("a", at_ms) for at_ms in (0, 10, 11, 5)]}


def test_an_element_does_not_look_at_each_of_the_sessions_that_are_open() -> None:
    open_ones = 150_000  # which would take minutes
    plan = WindowPlan(SessionWindows(ms(5)), aggregate=Count())
    run = Harness(lambda: window_operator(itemgetter(0), plan))
    times = [10 * number for number in range(open_ones)]
    run.operator.process_batch([("a", 1)] * open_ones, times)
    run.operator.process_batch([("a", 1)] * 3, [14, 5, 31])
    assert run.operator.metrics()["windows_open"] == open_ones - 1
    run.watermark(48)
    found = [(result.start_ms, result.end_ms, result.value) for result in run.outputs()]
    assert found == [(0, 19, 4), (20, 25, 1), (30, 36, 2), (40, 45, 1)]


class Moved(list[Any]):
    """Counts in `total` how often the sessions of a key are moved by what goes before them."""

    total = 0

    def __delitem__(self, place: Any) -> None:
        super().__delitem__(place)
        Moved.total += 1

    def remove(self, session: Any) -> None:
        super().remove(session)
        Moved.total += 1


@pytest.mark.parametrize("lateness_ms", [0, 3])
def test_sessions_that_are_done_go_together_from_many(lateness_ms: int) -> None:
    plan = WindowPlan(SessionWindows(ms(5)), aggregate=Count(), allowed_lateness_ms=lateness_ms)
    run = Harness(lambda: window_operator(itemgetter(0), plan))
    run.operator.process_batch([("a", 1)] * 4_000, [10 * number for number in range(4_000)])
    (rows,) = (table.rows() for table in run.operator.tables if table.name == "sessions")
    rows["a"] = Moved(rows["a"])
    Moved.total = 0
    run.operator.advance_watermark(10 * 3_000)
    assert run.operator.metrics()["windows_open"] == len(rows["a"]) == 1_000
    assert Moved.total < 100


def test_two_sessions_of_a_key_fire_at_the_end_of_time_though_both_end_in_its_last_page() -> None:
    plan = WindowPlan(SessionWindows(ms(2)), aggregate=Count())
    script: list[Step] = [("el", ("a", 1), MAX_TIMESTAMP - 5), ("el", ("a", 1), MAX_TIMESTAMP - 1)]
    records = Harness(lambda: SessionWindowOperator(itemgetter(0), plan)).run(
        [*script, ("wm", MAX_TIMESTAMP)]
    )
    ends = [value.end_ms for name, value, *_ in records if name == "out"]
    assert ends == [MAX_TIMESTAMP - 3, MAX_TIMESTAMP]


@pytest.mark.parametrize("batched", [False, True])
def test_a_session_that_grows_ends_with_time_at_the_latest(batched: bool) -> None:
    plan = WindowPlan(SessionWindows(ms(2)), aggregate=Count())
    script: list[Step] = [("el", ("a", 1), MAX_TIMESTAMP - before) for before in (3, 1)]
    records = Harness(lambda: SessionWindowOperator(itemgetter(0), plan)).run(
        [*script, ("wm", MAX_TIMESTAMP)], batched
    )
    found = [value for name, value, *_ in records if name == "out"]
    assert found == [("a", MAX_TIMESTAMP - 3, MAX_TIMESTAMP, 2)]


def test_a_session_that_two_have_merged_into_fires_once_where_it_stays_for_late_elements() -> None:
    plan = WindowPlan(SessionWindows(ms(5)), aggregate=Count(), allowed_lateness_ms=50)
    script: list[Step] = [*(("el", ("a", 1), time_ms) for time_ms in (0, 8, 4)), ("wm", 40)]
    records = Harness(lambda: SessionWindowOperator(itemgetter(0), plan)).run(script)
    assert [value for name, value, *_ in records if name == "out"] == [("a", 0, 13, 3)]


def test_the_second_time_of_two_sessions_that_have_become_one_since_a_restart_fires_no_later_one() -> None:
    plan = WindowPlan(SessionWindows(ms(5)), aggregate=Count())
    script: list[Step] = [
        *(("el", ("a", 1), time_ms) for time_ms in (0, 8, 40)),
        ("restart",),
        ("el", ("a", 1), 4),
    ]
    run = Harness(lambda: SessionWindowOperator(itemgetter(0), plan))
    run.run([*script, ("wm", 30)])
    assert run.outputs() == [("a", 0, 13, 3)]


@pytest.mark.parametrize("steps", [[(150, 0), (75, 50)], [(150, 270), (75, 290)]], ids=["merges", "fires"])
def test_a_session_without_an_end_leaves_no_trail_of_times_at_which_it_might_have_ended(
    steps: list[tuple[int, int]],
) -> None:
    plan = WindowPlan(SessionWindows(ms(100)), aggregate=Count(), allowed_lateness_ms=500)
    run = Harness(lambda: SessionWindowOperator(itemgetter(0), plan))
    for start in range(0, 30_000, 150):
        for element_ms, watermark_ms in steps:
            run.element(("a", 1), start + element_ms)
            run.watermark(start + watermark_ms)
    waiting = run.operator._waiting  # type: ignore[attr-defined]
    assert waiting.open == 1
    for calendar in (waiting.to_fire, waiting.to_clean):
        assert sum(map(len, calendar._pages.values())) < 10


@pytest.mark.parametrize("plain", [True, False])
def test_a_session_that_grows_after_it_has_fired_is_kept_as_its_new_end_allows(plain: bool) -> None:
    plan = WindowPlan(SessionWindows(ms(10)), None, None, 100, Count())
    kind = SessionWindowOperator if plain else WindowOperator
    run = Harness(lambda: kind(itemgetter(0), plan))
    run.element(("a", 1), 0)
    run.watermark(20)
    run.element(("a", 1), 5)
    run.watermark(110)
    run.element(("a", 1), 12)
    assert [record[1].value for record in run.records if record[0] == "out"] == [1, 2, 3]
    run.watermark(120)
    assert run.operator.metrics()["windows_open"] == 1
    run.watermark(121)
    assert run.operator.metrics()["windows_open"] == 0


@pytest.mark.parametrize("lateness", [(5, 0), (0, 5)])
def test_sessions_that_fire_late_go_on_with_another_lateness_that_makes_them_plain(
    lateness: tuple[int, int],
) -> None:
    trigger = AfterWatermark(late=CountTrigger(2))
    plans = [WindowPlan(SessionWindows(ms(5)), trigger, None, late_ms, Count()) for late_ms in lateness]
    makers = [partial(window_operator, itemgetter(0), plan) for plan in plans]
    run = Harness(*makers)
    assert type(run.operator) is SessionWindowOperator
    script: list[Step] = [("el", ("a", 1), 0), ("el", ("a", 1), 3), ("restart",), ("el", ("a", 1), 4)]
    run.run([*script, ("wm", 20)])
    assert [value.value for value in run.outputs()] == [3]


@pytest.mark.parametrize("kind", [SessionWindowOperator, WindowOperator], ids=["sessions", "general"])
@pytest.mark.parametrize("ended_ms", [[], [-6]], ids=["one", "several"])
@pytest.mark.parametrize("late", [None, CountTrigger(3)], ids=["at_once", "counted"])
def test_a_session_that_is_due_since_a_restart_fires_though_what_comes_late_gives_it_another_window(
    kind: type[WindowStep], ended_ms: list[int], late: CountTrigger | None
) -> None:
    plan = WindowPlan(SessionWindows(ms(5)), AfterWatermark(late=late), None, 90, Count())
    run = Harness(lambda: kind(itemgetter(0), plan))
    run.run([*(("el", ("a", 1), time_ms) for time_ms in ended_ms), ("wm", -1), ("el", ("a", 1), 4)])
    run.outputs()
    run.run([("restart",), ("known", 50), ("el", ("a", 1), -1), ("wm", 51)])
    fired = {(-6 if ended_ms else -1, 9, 2 + len(ended_ms))}
    assert {tuple(value[1:]) for value in run.outputs()} == fired
    run.watermark(200)
    assert run.operator.metrics()["windows_open"] == 0
    assert not run.outputs()
