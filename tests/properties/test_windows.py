"""
The window operators against each other, and against a model that looks at all elements each time.

The fast operators must give exactly what the general one gives: the same results in the same order, the
same late elements, and snapshots that each can take up from the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from operator import itemgetter
from typing import Any

from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

from asyncstream.codec import PickleCodec
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.errors import UserFunctionError
from asyncstream.operators.base import Operator
from asyncstream.state import ListDescriptor, ValueDescriptor
from asyncstream.windowing import (
    AfterWatermark,
    Aggregates,
    Collect,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    Count,
    CountDistinct,
    CountTrigger,
    CumulativeWindows,
    DynamicSessionWindows,
    First,
    Last,
    Max,
    Mean,
    Min,
    ProcessWindowFunction,
    SessionWindows,
    SlidingWindows,
    Sum,
    Trigger,
    TumblingWindows,
    WindowAssigner,
    WindowOperator,
    WindowPlan,
    WindowResult,
    window_operator,
)
from asyncstream.windowing.assigners import Sessions
from asyncstream.windowing.upgrade import Pane
from tests.windowing.harness import Harness, Step, ms

ORDER_FREE = Aggregates(
    n=Count(),
    total=Sum(itemgetter(1)),
    mean=Mean(itemgetter(1)),
    low=Min(itemgetter(1)),
    high=Max(itemgetter(1)),
    kinds=CountDistinct(itemgetter(1)),
)
ORDERED = Aggregates(
    all=Collect(itemgetter(1)), first=First(itemgetter(1)), last=Last(itemgetter(1)), n=Count()
)

KEYS = st.sampled_from("aabbc")

MANY = st.integers(12, 50)
"""Slices of a window, of which blocks are made."""


@st.composite
def scripts(draw: st.DrawFn, restarts: bool = True, clock: bool = False, known: bool = False) -> list[Step]:
    """
    Elements about the watermark, some far behind; rising watermarks; restarts; the end of time.

    Args:
        known: after some restarts it is known how far event time had come, perhaps further than before.
    """
    script: list[Step] = []
    watermark = draw(st.integers(-30, 30))
    number, now = 0, 0
    kinds = ["el"] * 6 + ["wm"] * 3 + (["restart"] * 2 if restarts else []) + (["pt"] * 3 if clock else [])
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=40)):
        if kind == "el":
            number += 1
            timestamp = watermark + draw(st.integers(-16, 12))
            script.append(("el", (draw(KEYS), number), timestamp))
        elif kind == "wm":
            watermark += draw(st.integers(1, 9))
            script.append(("wm", watermark))
        elif kind == "pt":
            now += draw(st.integers(1, 6))
            script.append(("pt", now))
        else:
            script.append(("restart",))
            if known and draw(st.booleans()):
                watermark += draw(st.integers(0, 9))
                script.append(("known", watermark))
    if [kind for kind, *_ in script if kind in ("known", "wm")][-1:] == ["known"]:
        script.append(("wm", watermark))  # what has gone by then is let go with the next one only
    if draw(st.booleans()):
        script.append(("wm", MAX_TIMESTAMP))
    return script


def gap_of(value: tuple[str, int]) -> timedelta:
    return ms(1 + value[1] * 5 % 9)


@st.composite
def assigners(draw: st.DrawFn) -> WindowAssigner:
    kind = draw(st.sampled_from(["tumbling", "sliding", "session", "dynamic", "cumulative"]))
    if kind == "cumulative":
        step = draw(st.integers(1, 5))
        return CumulativeWindows(ms(step * draw(st.integers(1, 4) | MANY)), ms(step))
    if kind == "session":
        return SessionWindows(ms(draw(st.integers(1, 9))))
    if kind == "dynamic":
        return DynamicSessionWindows(gap_of)
    size = draw(st.integers(1, 14))
    if kind == "tumbling":
        return TumblingWindows(ms(size), offset=ms(draw(st.integers(1 - size, size - 1))))
    slide = draw(st.integers(1, 16))
    if draw(st.booleans()):
        slide = draw(st.integers(1, 2))
        size = slide * draw(MANY) + draw(st.integers(0, slide - 1))
    return SlidingWindows(ms(size), ms(slide), offset=ms(draw(st.integers(1 - slide, slide - 1))))


def told(pane: Pane) -> str:
    """A pane as text, the same for equal ones: a set may come in any order."""
    held = [sorted(part) if isinstance(part, set) else part for part in pane.held]
    return repr(pane._replace(held=held))


COUNTED: list[Trigger | None] = [
    AfterWatermark(late=CountTrigger(2)),
    AfterWatermark(early=CountTrigger(2)),
    AfterWatermark(early=CountTrigger(3), late=CountTrigger(2)),
    AfterWatermark(early=CountTrigger(1), late=CountTrigger(1)),
]

LATENESS = st.sampled_from([0, 1, 5, 12, 20])


@st.composite
def ticking(draw: st.DrawFn) -> tuple[WindowAssigner, Trigger]:
    """Windows on a grid that also fire by time; most do not tick when another one ends."""
    unit = draw(st.integers(1, 4))
    interval, apart = ms(unit * draw(st.integers(1, 4))), unit * draw(st.integers(1, 4))
    size, offset = apart * draw(st.integers(1, 4)), draw(st.integers(0, apart - 1))
    assigner: WindowAssigner = draw(
        st.sampled_from(
            [
                TumblingWindows(ms(size), offset=ms(offset)),
                SlidingWindows(ms(size), ms(apart), offset=ms(offset)),
                SlidingWindows(ms(size + draw(st.integers(0, 3))), ms(apart), offset=ms(offset)),
                CumulativeWindows(ms(size), ms(apart), offset=ms(offset)),
            ]
        )
    )
    by_time, by_clock = ContinuousEventTimeTrigger(interval), ContinuousProcessingTimeTrigger(interval)
    late = draw(st.none() | st.just(CountTrigger(2)))
    early = [AfterWatermark(early=one, late=late) for one in (by_time, by_clock)]
    return assigner, draw(st.sampled_from([by_time, *early]))


def general(plan: WindowPlan) -> Callable[[], Operator]:
    return lambda: WindowOperator(itemgetter(0), plan)


def chosen(plan: WindowPlan) -> Callable[[], Operator]:
    return lambda: window_operator(itemgetter(0), plan)


@settings(max_examples=400, deadline=None)
@example(  # a key comes late into a window that is due
    [("el", ("a", 1), 0), ("restart",), ("known", 1), ("el", ("b", 2), 1), ("wm", 2)],
    TumblingWindows(ms(2)),
    1,
    None,
    None,
    False,
    False,
)
@example(  # an element with which order matters comes while windows are due, which do not outlive their end
    [("el", ("a", 1), 0), ("restart",), ("known", 30), ("el", ("a", 0.5), 40), ("wm", 50)],
    SlidingWindows(ms(4), ms(2)),
    0,
    ORDER_FREE,
    None,
    False,
    False,
)
@given(
    scripts(known=True),
    assigners(),
    LATENESS,
    st.sampled_from([ORDERED, ORDER_FREE, None]),
    st.sampled_from([None, AfterWatermark(), *COUNTED]),
    st.booleans(),
    st.booleans(),
)
def test_fast_operators_give_what_the_general_one_gives(
    script: list[Step],
    assigner: WindowAssigner,
    lateness: int,
    aggregate: Aggregates | None,
    trigger: Trigger | None,
    aside: bool,
    on_disk: bool,
) -> None:
    plan = WindowPlan(assigner, trigger, allowed_lateness_ms=lateness, aggregate=aggregate)
    event(type(chosen(plan)()).__name__)
    if assigner.merging:  # late elements may extend those that are due
        script = [step for step in script if step[0] != "known"]
    side = ("late",) if aside else ()
    one = Harness(general(plan), side=side)
    expected = one.run(script)
    for makers in ((chosen(plan),), (chosen(plan), general(plan)), (general(plan), chosen(plan))):
        for batched in (False, True):
            other = Harness(*makers, side=side, on_disk=on_disk)
            assert other.run(script, batched) == expected
            left, right = one.operator.metrics(), other.operator.metrics()
            assert left["late_dropped"] == right["late_dropped"]
            assert left["outside_windows"] == right["outside_windows"]
            assert firing(one.panes(plan)) == firing(other.panes(plan))
            assert sorted(map(told, one.panes(plan))) == sorted(map(told, other.panes(plan)))


@settings(max_examples=120, deadline=None)
@example(  # the general operator goes on with a window that fires early, and is to go with its clean-up timer
    [("el", ("a", 1), 26), ("restart",), ("wm", 27), ("wm", 29)],
    (TumblingWindows(ms(3), offset=ms(2)), ContinuousEventTimeTrigger(ms(1))),
    1,
    None,
    False,
    False,
)
@given(
    scripts(clock=True, known=True),
    ticking(),
    LATENESS,
    st.sampled_from([ORDERED, ORDER_FREE, None]),
    st.booleans(),
    st.booleans(),
)
def test_windows_that_fire_by_time_do_so_as_with_the_general_operator(
    script: list[Step],
    windows: tuple[WindowAssigner, Trigger],
    lateness: int,
    aggregate: Aggregates | None,
    tells: bool,
    on_disk: bool,
) -> None:
    assigner, trigger = windows
    plan = WindowPlan(assigner, trigger, allowed_lateness_ms=lateness, aggregate=aggregate)
    assume(plan.kept == "panes")
    event("share elements" if not plan.slicing.is_disjoint else "stand alone")

    def made(make: Callable[..., Operator]) -> Callable[[], Operator]:
        return lambda: make(itemgetter(0), replace(plan, process=Telling() if tells else None))

    def ticks(run: Harness) -> list[Any]:
        tables = run.operator.snapshot()["tables"]
        kept = [*tables.get("trigger/tick", ()), *tables.get("trigger/early/tick", ())]
        return sorted((*window, *row) for window, rows in kept for row in rows)

    one = Harness(made(WindowOperator))
    expected = one.run(script)
    event("fires early" if any(kind == "out" for kind, *_ in expected) else "fires late")
    for makers in ([window_operator], [window_operator, WindowOperator], [WindowOperator, window_operator]):
        for batched in (False, True):
            other = Harness(*map(made, makers), on_disk=on_disk)
            assert other.run(script, batched) == expected
            assert firing(one.panes(plan)) == firing(other.panes(plan))
            assert other.operator.due_ms() == one.operator.due_ms()
            assert ticks(one) == ticks(other)


class Telling(ProcessWindowFunction[Any]):
    """Emits what its window came to."""

    def process(self, key: Any, contents: Any, ctx: Any, out: Callable[[Any], None]) -> None:
        out((key, ctx.window, contents))


class Remembering(ProcessWindowFunction[Any]):
    """Tells how often a window has fired, and which ones of its key have gone."""

    firings = ValueDescriptor[int]("firings", default=0)
    gone = ListDescriptor[int]("gone")

    def process(self, key: Any, contents: Any, ctx: Any, out: Callable[[Any], None]) -> None:
        firings = ctx.window_state(self.firings)
        firings.set(firings.get() + 1)
        told = {"contents": contents, "firings": firings.get(), "gone": ctx.key_state(self.gone).get()}
        out(WindowResult(key, ctx.window.start_ms, ctx.window.end_ms, told))

    def clear(self, key: Any, ctx: Any) -> None:
        ctx.window_state(self.firings).clear()
        ctx.key_state(self.gone).add(ctx.window.start_ms)


@settings(max_examples=200, deadline=None)
@given(scripts(known=True), st.integers(2, 9), LATENESS, st.sampled_from([None, *COUNTED]), st.booleans())
def test_windows_go_for_a_function_as_they_do_with_the_general_one(
    script: list[Step], size: int, lateness: int, trigger: Trigger | None, on_disk: bool
) -> None:
    # otherwise one window goes when another fires, and which is first hangs on when their keys first came
    assume(not lateness or lateness % size)
    plan = WindowPlan(TumblingWindows(ms(size)), trigger, None, lateness, ORDERED)
    check_is_as_the_general_one(plan, Remembering, script, on_disk, "key/gone", "window/firings")


class Gone(Remembering):
    """The same where windows may merge: it tells which ones of its key have gone."""

    def process(self, key: Any, contents: Any, ctx: Any, out: Callable[[Any], None]) -> None:
        out((key, ctx.window, contents, ctx.key_state(self.gone).get()))

    def clear(self, key: Any, ctx: Any) -> None:
        ctx.key_state(self.gone).add(ctx.window.start_ms)


@settings(max_examples=200, deadline=None)
@given(scripts(), assigners(), st.sampled_from([None, *COUNTED]), st.booleans())
def test_windows_that_share_elements_go_for_a_function_as_they_do_with_the_general_one(
    script: list[Step], assigner: WindowAssigner, trigger: Trigger | None, on_disk: bool
) -> None:
    plan = WindowPlan(assigner, None if assigner.merging else trigger, aggregate=ORDERED)
    assert plan.kept == replace(plan, process=Gone()).kept != "contents"
    check_is_as_the_general_one(plan, Gone, script, on_disk, "key/gone")


@settings(max_examples=100, deadline=None)
@given(scripts(clock=True), ticking(), st.booleans())
def test_windows_that_fire_by_time_go_for_a_function_as_they_do_with_the_general_one(
    script: list[Step], windows: tuple[WindowAssigner, Trigger], on_disk: bool
) -> None:
    plan = WindowPlan(*windows, aggregate=ORDERED)
    assume(plan.kept == "panes")
    check_is_as_the_general_one(plan, Gone, script, on_disk, "key/gone")


def check_is_as_the_general_one(
    plan: WindowPlan, process: type[Remembering], script: list[Step], on_disk: bool, *names: str
) -> None:
    """Results and these tables are those of the general operator, also where one goes on from the other."""

    def made(make: Callable[..., Operator]) -> Callable[[], Operator]:
        return lambda: make(itemgetter(0), replace(plan, process=process()))

    def left(run: Harness) -> list[list[Any]]:
        tables = run.operator.tables
        return [sorted(tables[name].items()) if name in tables else [] for name in names]

    one = Harness(made(WindowOperator))
    expected = one.run(script)
    for makers in ([window_operator], [window_operator, WindowOperator], [WindowOperator, window_operator]):
        for batched in (False, True):
            other = Harness(*map(made, makers), on_disk=on_disk)
            assert other.run(script, batched) == expected
            assert left(other) == left(one)


def firing(panes: list[Pane]) -> list[Any]:
    """What is to fire, in order."""
    return [(pane.window, pane.key) for pane in panes if pane.pending]


@settings(max_examples=200, deadline=None)
@given(scripts(restarts=False), assigners(), LATENESS)
def test_operators_give_what_a_model_gives(
    script: list[Step], assigner: WindowAssigner, lateness: int
) -> None:
    plan = WindowPlan(assigner, allowed_lateness_ms=lateness, aggregate=Collect(itemgetter(1)))
    expected = model(script, assigner, lateness)
    for make in (general(plan), chosen(plan)):
        found = Harness(make).run(script)
        assert by_step(found) == by_step(expected)


def model(script: list[Step], assigner: WindowAssigner, lateness: int) -> list[Any]:
    """Keeps every element that was accepted, and works all windows out anew after each step."""
    accepted: list[tuple[str, int, int]] = []  # key, value, timestamp
    watermark = MIN_TIMESTAMP
    records: list[Any] = []

    def windows() -> dict[tuple[str, int, int], list[int]]:
        found: dict[tuple[str, int, int], list[int]] = {}
        if isinstance(assigner, Sessions):
            for key in sorted({key for key, _, _ in accepted}):
                start: int | None = None
                end = 0
                values: list[int] = []
                for timestamp, value in sorted((t, v) for k, v, t in accepted if k == key):
                    if start is None or timestamp > end:
                        start, end, values = timestamp, timestamp, []
                    else:
                        del found[key, start, end]
                    end = max(end, timestamp + assigner.gap_after((key, value)))
                    values = [*values, value]
                    found[key, start, end] = values
        else:
            for key, value, timestamp in accepted:
                for window in assigner.assign((key, value), timestamp):
                    assert window.start_ms is not None
                    found.setdefault((key, window.start_ms, window.end_ms), []).append(value)
        return {w: values for w, values in found.items() if w[2] - 1 + lateness > watermark}

    def emit(found: dict[tuple[str, int, int], list[int]]) -> None:
        for (key, start, end), values in sorted(found.items(), key=lambda item: item[0][2]):
            records.append(("out", WindowResult(key, start, end, sorted(values)), end - 1))

    for kind, *arguments in script:
        if kind == "el":
            (key, value), timestamp = arguments
            # what is late by now must not come to life again by merging
            alive = {value for values in windows().values() for value in values}
            accepted = [old for old in accepted if old[1] in alive]
            accepted.append((key, value, timestamp))
            mine = {w: v for w, v in windows().items() if w[0] == key and value in v}
            if not mine:
                accepted.pop()
                if timestamp + lateness <= watermark:
                    records.append(("late", (key, value), timestamp))
            emit({w: v for w, v in mine.items() if w[2] - 1 <= watermark})
        else:
            before, watermark_now = watermark, arguments[0]
            emit({w: v for w, v in windows().items() if before < w[2] - 1 <= watermark_now})
            watermark = watermark_now
            records.append(("wm", watermark))
    return records


def by_step(records: list[Any]) -> list[Any]:
    """Results between two watermarks in no order, each list of values sorted."""
    steps: list[Any] = [[]]
    for record in records:
        if record[0] == "wm":
            steps += [record, []]
        elif record[0] == "out":
            result = record[1]
            steps[-1].append(repr((result._replace(value=sorted(result.value)), record[2])))
        else:
            steps[-1].append(repr(record))
    return [sorted(step) if isinstance(step, list) else step for step in steps]


VALUES = st.one_of(
    st.none() | st.integers(-3, 3) | st.integers(),
    st.sampled_from([0.1, 0.2, 0.3, 1e16, 1.0, 0.0, -0.0, math.inf, -math.inf, math.nan]) | st.floats(),
    st.booleans() | st.fractions(max_denominator=9) | st.decimals(-9, 9, places=1),
)
KINDS = st.sampled_from(
    [
        VALUES,
        st.integers(-5, 5),
        st.integers(-5, 5) | st.just(0.1),
        st.floats(),
        st.text("ab", max_size=2),
        st.lists(st.integers(0, 3), max_size=2),
        st.decimals(-9, 9, places=2),
    ]
)


class Subclassed(Min):
    """One that is not written out where several are compiled into one."""


@settings(max_examples=200, deadline=None)
@given(scripts(), st.data(), LATENESS)
def test_values_whose_order_matters_are_taken_in_their_order(
    script: list[Step], data: st.DataObject, lateness: int
) -> None:
    kind = data.draw(KINDS)
    script = [("el", (step[1][0], data.draw(kind)), step[2]) if step[0] == "el" else step for step in script]
    makers = (Sum, Mean, Min, Max, Count, CountDistinct, First, Last, Collect, Subclassed)
    parts = [maker(itemgetter(1)) for maker in makers]
    one = data.draw(st.sampled_from(parts))
    several = Aggregates(n=Count(), x=data.draw(st.sampled_from(parts)), y=one)
    size, slide = data.draw(st.sampled_from([(10, 5), (10, 4), (7, 3), (9, 1)]))
    for aggregate in (one, several):
        plan = WindowPlan(SlidingWindows(ms(size), ms(slide)), None, None, lateness, aggregate)
        expected = outcome(script, general(plan))
        for makes in ((chosen(plan),), (general(plan), chosen(plan)), (chosen(plan), general(plan))):
            assert outcome(script, *makes) == expected
            assert outcome(script, *makes, batched=True) == expected
        assert outcome(script, chosen(plan), batched=True, on_disk=True) == expected


def outcome(
    script: list[Step], *makers: Callable[[], Operator], batched: bool = False, on_disk: bool = False
) -> str:
    """All that comes out, to the last digit; or what values of kinds that do not go together raise."""
    run = Harness(*makers, codec=PickleCodec(), on_disk=on_disk)  # which keeps fractions
    try:
        return repr(run.run(script, batched))
    except UserFunctionError as error:
        return type(error.__cause__).__name__


EDGES = (MIN_TIMESTAMP, -1, 0, 4_102_444_800_000, MAX_TIMESTAMP)


@st.composite
def edge_scripts(draw: st.DrawFn) -> list[Step]:
    """Elements all over time, most at its ends; watermarks that rise; restarts; the end of time."""
    near = st.builds(lambda edge, off: edge + off, st.sampled_from(EDGES), st.integers(-30, 30))
    times = near.map(lambda time: max(MIN_TIMESTAMP, min(time, MAX_TIMESTAMP)))
    script: list[Step] = []
    for number, timestamp in enumerate(draw(st.lists(times, min_size=1, max_size=12))):
        script.append(("el", (draw(KEYS), number), timestamp))
    for watermark in sorted(draw(st.lists(times, max_size=5))):
        script.insert(draw(st.integers(0, len(script))), ("wm", watermark))
    if draw(st.booleans()):
        script.insert(draw(st.integers(0, len(script))), ("restart",))
    highest = MIN_TIMESTAMP
    for place, step in enumerate(script):
        if step[0] == "wm":
            highest = max(highest, step[1])
            script[place] = ("wm", highest)
    return [*script, ("wm", MAX_TIMESTAMP)]


WIDE = st.sampled_from([1, 7, 3_600_000, 3_600_001, 10_800_000])


@st.composite
def wide_assigners(draw: st.DrawFn) -> WindowAssigner:
    size = draw(WIDE)
    kind = draw(st.sampled_from(["tumbling", "sliding", "session", "cumulative", "dynamic"]))
    if kind == "tumbling":
        return TumblingWindows(ms(size), offset=ms(draw(st.integers(1 - size, size - 1))))
    if kind == "sliding":
        slide = draw(WIDE.filter(lambda slide: size // slide < 100))
        return SlidingWindows(ms(size), ms(slide), offset=ms(draw(st.integers(1 - slide, slide - 1))))
    if kind == "cumulative":
        return CumulativeWindows(ms(3 * size), ms(size))
    return SessionWindows(ms(size)) if kind == "session" else DynamicSessionWindows(lambda _: ms(size))


@settings(max_examples=300, deadline=None)
@given(edge_scripts(), wide_assigners(), LATENESS, st.booleans())
def test_no_element_vanishes_at_the_ends_of_time(
    script: list[Step], assigner: WindowAssigner, lateness: int, aside: bool
) -> None:
    plan = WindowPlan(assigner, allowed_lateness_ms=lateness, aggregate=ORDER_FREE)
    one = Harness(general(plan), side=("late",) if aside else ())
    expected = one.run(script)
    other = Harness(chosen(plan), side=("late",) if aside else ())
    assert other.run(script, batched=True) == expected
    on_disk = Harness(chosen(plan), side=("late",) if aside else (), on_disk=True)
    assert on_disk.run(script, batched=True) == expected
    everything = Harness(general(replace(plan, aggregate=Collect(itemgetter(1)))))
    records = everything.run(script)
    shown = {
        number for kind, result, _ in filter(of_elements, records) if kind == "out" for number in result.value
    }
    late = {element[1] for kind, element, _ in filter(of_elements, records) if kind == "late"}
    outside = everything.operator.metrics()["outside_windows"]
    assert len(shown | late) + outside == sum(step[0] == "el" for step in script)
    assert all(MIN_TIMESTAMP <= record[2] <= MAX_TIMESTAMP for record in filter(of_elements, records))
    assert one.operator.metrics()["windows_open"] == other.operator.metrics()["windows_open"] == 0


def of_elements(record: Any) -> bool:
    return bool(record[0] != "wm")


PLANS = st.sampled_from(
    [
        WindowPlan(
            DynamicSessionWindows(lambda value: ms(1 + value[1] % 7)), aggregate=Collect(itemgetter(1))
        ),
        WindowPlan(TumblingWindows(ms(7)), trigger=CountTrigger(2), allowed_lateness_ms=3),
        WindowPlan(SessionWindows(ms(6)), trigger=CountTrigger(3), allowed_lateness_ms=3),
        WindowPlan(SlidingWindows(ms(9), ms(4))),
    ]
)


@settings(max_examples=100, deadline=None)
@given(scripts(restarts=False), PLANS, st.data())
def test_a_restart_loses_nothing(script: list[Step], plan: WindowPlan, data: st.DataObject) -> None:
    """
    Restarts just before watermarks leave the transcript as it is.

    (Elsewhere they may not: the watermark is before all time after them, so late elements get in.)
    """
    restarted: list[Step] = []
    for step in script:
        if step[0] == "wm" and data.draw(st.booleans()):
            restarted.append(("restart",))
        restarted.append(step)
    assert Harness(general(plan)).run(restarted) == Harness(general(plan)).run(script)


GAPS = st.integers(1, 9).map(lambda gap: SessionWindows(ms(gap)))
SESSIONS = GAPS | st.just(DynamicSessionWindows(gap_of))


@settings(max_examples=200, deadline=None)
@example(  # it comes before a session that is due, and into it
    [("el", ("a", 1), 0), ("restart",), ("known", 20), ("el", ("a", 2), -2), ("wm", 21)],
    SessionWindows(ms(3)),
    0,
)
@given(scripts(known=True), SESSIONS, LATENESS)
def test_sessions_that_are_due_since_a_restart_fire_once_with_all_that_has_come(
    script: list[Step], assigner: WindowAssigner, lateness: int
) -> None:
    plan = WindowPlan(assigner, allowed_lateness_ms=lateness, aggregate=Collect(itemgetter(1)))
    records = Harness(chosen(plan)).run([*script, ("wm", MAX_TIMESTAMP)])
    results = [(*result[:3], *result.value) for kind, result, *_ in records if kind == "out"]
    assert len(set(results)) == len(results)
    shown = {number for _, _, _, *numbers in results for number in numbers}
    late = {element[1] for kind, element, *_ in records if kind == "late"}
    assert shown | late == {step[1][1] for step in script if step[0] == "el"}


TICKS = st.integers(1, 8).map(lambda interval: ContinuousEventTimeTrigger(ms(interval)))
COUNTS = st.integers(1, 4).map(CountTrigger)
FIRINGS = st.builds(AfterWatermark, early=TICKS | TICKS | COUNTS, late=st.none() | COUNTS)


EARLY_TICKS = AfterWatermark(early=ContinuousEventTimeTrigger(ms(7)))


@settings(max_examples=300, deadline=None)
@example(  # of two keys that tick together the first has grown last
    [("el", ("a", 1), 0), ("el", ("b", 2), 0), ("el", ("a", 3), 1), ("restart",), ("wm", 7), ("wm", 8)],
    SessionWindows(ms(10)),
    EARLY_TICKS,
    0,
    False,
    False,
)
@example(  # neither has grown since their last tick
    [("el", ("a", 1), 0), ("el", ("b", 2), 0), ("el", ("a", 3), 1), ("wm", 7), ("wm", 14)],
    SessionWindows(ms(20)),
    EARLY_TICKS,
    0,
    False,
    False,
)
@example(  # the one that has begun first has ticked since the other began
    [("el", ("a", 1), 0), ("el", ("b", 2), 8), ("wm", 7), ("restart",), ("wm", 14)],
    SessionWindows(ms(20)),
    EARLY_TICKS,
    0,
    False,
    False,
)
@example(  # one ticks twice before the other does, with the same watermark
    [("el", ("a", 1), 0), ("el", ("b", 2), 20), ("wm", 31)],
    SessionWindows(ms(30)),
    EARLY_TICKS,
    0,
    False,
    False,
)
@example(  # the one that ticks first ends last
    [("el", ("b", 7), 0), ("el", ("a", 5), 0), ("restart",), ("wm", 7)],
    DynamicSessionWindows(gap_of),
    EARLY_TICKS,
    0,
    False,
    False,
)
@example(  # the tick of the end that it had at first comes, though it has grown
    [("el", ("a", 1), 0), ("el", ("a", 2), 3), ("wm", 4), ("wm", 8)],
    SessionWindows(ms(5)),
    EARLY_TICKS,
    0,
    False,
    False,
)
@example(  # two sessions have become one, and what each waited for comes at once
    [("el", ("a", 1), 0), ("el", ("a", 2), 6), ("el", ("a", 3), 3), ("wm", 40)],
    SessionWindows(ms(5)),
    EARLY_TICKS,
    0,
    False,
    False,
)
@example(  # one that has fired has become one with another that ticks
    [("el", ("a", 1), 0), ("wm", 9), ("el", ("a", 2), 11), ("el", ("a", 3), 6), ("wm", 14), ("wm", 15)],
    SessionWindows(ms(5)),
    EARLY_TICKS,
    30,
    False,
    False,
)
@example(  # what has come before an end does not count for the next one
    [("el", ("a", 1), 0), ("el", ("a", 2), 1), ("wm", 10), ("el", ("a", 3), 9), ("wm", 11)],
    SessionWindows(ms(10)),
    AfterWatermark(early=CountTrigger(3)),
    20,
    False,
    False,
)
@example(  # what has come late into two sessions counts together in the one that they become
    [*(("el", ("a", time), time) for time in (0, 7)), ("wm", 15), *(("el", ("a", t), t) for t in (1, 8, 4))],
    SessionWindows(ms(5)),
    AfterWatermark(late=CountTrigger(3)),
    30,
    False,
    False,
)
@given(scripts(), SESSIONS, TICKS | FIRINGS, LATENESS, st.booleans(), st.booleans())
def test_sessions_fire_between_as_with_the_general_operator(
    script: list[Step],
    assigner: WindowAssigner,
    trigger: Trigger,
    lateness: int,
    tells: bool,
    on_disk: bool,
) -> None:
    plan = WindowPlan(assigner, trigger, allowed_lateness_ms=lateness, aggregate=ORDERED)

    def made(make: Callable[..., Operator]) -> Callable[[], Operator]:
        process = Telling() if tells else None
        return lambda: make(itemgetter(0), replace(plan, process=process))

    one = Harness(made(WindowOperator))
    expected = one.run(script)
    results = sum(kind == "out" for kind, *_ in expected)
    event(f"{'some' if results > 10 else 'few'} results")
    for makers in ([window_operator], [window_operator, WindowOperator], [WindowOperator, window_operator]):
        for batched in (False, True):
            other = Harness(*map(made, makers), on_disk=on_disk)
            assert other.run(script, batched) == expected
            assert firing(one.panes(plan)) == firing(other.panes(plan))
            assert other.operator.metrics()["late_dropped"] == one.operator.metrics()["late_dropped"]
