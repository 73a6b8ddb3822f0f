"""
Windows of many slices, which are merged of blocks of these: results are those of windows that are not, and
there is less to merge.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream.state.tables import Tables
from asyncstream.windowing import (
    AggregateFunction,
    Aggregates,
    Collect,
    Count,
    CountDistinct,
    CumulativeWindows,
    First,
    Last,
    Max,
    SlidingWindows,
    Sum,
    TumblingWindows,
    WindowAssigner,
    WindowOperator,
    WindowPlan,
    pane_store,
    window_operator,
)
from asyncstream.windowing.pane_blocks import Blocks
from asyncstream.windowing.pane_schedule import Schedule
from asyncstream.windowing.pane_store import PaneStore
from tests.tiers import examples
from tests.windowing.harness import Harness, Step, ms

VALUE = itemgetter(1)
ALL = Aggregates(n=Count(), total=Sum(VALUE), high=Max(VALUE), kinds=CountDistinct(VALUE))
ORDERED = Aggregates(all=Collect(VALUE), first=First(VALUE), last=Last(VALUE), n=Count())
END = 100
"""Of event time, in a stream that begins at 0."""


class Merging(AggregateFunction[Any, Any]):
    """A count that counts how often counts are merged."""

    order_free = True

    def __init__(self) -> None:
        self.merges = 0

    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: Any) -> int:
        return accumulator + 1

    def merge(self, accumulator: int, other: int) -> int:
        self.merges += 1
        return accumulator + other

    def result(self, accumulator: int) -> int:
        return accumulator


@st.composite
def streams(draw: st.DrawFn) -> list[Step]:
    """Elements about a watermark that goes from one millisecond to the next, some behind it, and restarts."""
    script: list[Step] = []
    restarts = draw(st.sets(st.integers(0, END), max_size=1))
    apart = draw(st.integers(0, 9))
    for watermark in range(END):
        if draw(st.integers(0, 9)) >= apart:
            timestamp = watermark + draw(st.integers(-20, 12))
            script.append(("el", (draw(st.sampled_from("abc")), draw(st.integers(-9, 9))), timestamp))
        if watermark in restarts:
            script += [("restart",), ("known", watermark - 1)] if watermark else []
        script.append(("wm", watermark))
    return script


@st.composite
def windows(draw: st.DrawFn) -> WindowAssigner:
    step, steps = draw(st.integers(1, 2)), draw(st.integers(12, 50))
    if draw(st.booleans()):
        return CumulativeWindows(
            ms(steps * step), ms(step), offset=ms(draw(st.integers(-40, 40)) % (steps * step))
        )
    return SlidingWindows(ms(steps * step + draw(st.integers(0, step - 1))), ms(step))


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
@settings(max_examples=examples(40), deadline=None)
@given(
    script=streams(),
    assigner=windows(),
    lateness=st.sampled_from([0, 10, 30]),
    aggregate=st.sampled_from([ALL, ORDERED]),
    few=st.sampled_from([0, 500]),
)
def test_windows_of_many_slices_give_what_the_general_operator_gives(
    script: list[Step], assigner: WindowAssigner, lateness: int, aggregate: Any, few: int, on_disk: bool
) -> None:
    plan = WindowPlan(assigner, allowed_lateness_ms=lateness, aggregate=aggregate)
    expected = Harness(lambda: WindowOperator(itemgetter(0), plan)).run(script)
    found = Harness(lambda: window_operator(itemgetter(0), plan), on_disk=on_disk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pane_store, "_FEW", few)
        assert found.run(script) == expected


def test_windows_that_are_one_slice_each_are_kept_in_no_order() -> None:
    """It would be moved for each that opens or goes: in a stream without watermarks there may be millions."""
    panes = PaneStore(WindowPlan(TumblingWindows(ms(5)), aggregate=Count()), Tables())
    for start in (10, 0, 5):
        panes.open((start, start + 5))
        panes.put((start, start + 5), "key", start)
    assert not panes.starts
    panes.index()
    assert not panes.starts
    assert list(panes.each((5, 10))) == [("key", 1)]
    for start in (0, 10, 5):
        assert not panes.is_empty()
        panes.drop((start, start + 5))
    assert panes.is_empty()
    assert not list(panes.each((5, 10)))


class Moved(list[int]):
    """Counts in `total` how often starts are moved by what goes before them."""

    total = 0

    def __delitem__(self, place: Any) -> None:
        super().__delitem__(place)
        Moved.total += 1


def test_slices_that_are_done_go_together_from_many() -> None:
    panes = PaneStore(WindowPlan(SlidingWindows(ms(10), ms(5)), aggregate=Count()), Tables())
    for start in range(0, 20_000, 5):
        panes.open((start, start + 5))
    panes.starts = Moved(panes.starts)
    Moved.total = 0
    for start in (*range(0, 10_000, 5), 12_000):
        panes.drop((start, start + 5))
    panes.drop_starts()
    assert panes.starts == sorted(panes.ends)
    assert len(panes.starts) == 1_999
    for start in range(10_000, 20_000, 5):
        if start != 12_000:
            panes.drop((start, start + 5))
    panes.drop_starts()
    assert panes.is_empty()
    assert not panes.starts
    assert Moved.total < 10


@pytest.mark.parametrize(
    ("assigner", "most"), [(SlidingWindows(ms(256), ms(1)), 24), (CumulativeWindows(ms(256), ms(1)), 12)]
)
def test_a_window_of_hundreds_of_slices_is_merged_of_few_blocks(assigner: WindowAssigner, most: int) -> None:
    count = Merging()
    run = Harness(lambda: window_operator(itemgetter(0), WindowPlan(assigner, aggregate=count)))

    def go_on(begin: int, end: int) -> int:
        """How often counts are merged for a window, in the mean."""
        before = count.merges
        for time in range(begin, end):
            run.element(("a", 1), time)
            run.watermark(time)
        return (count.merges - before) // (end - begin)

    go_on(0, 512)
    assert go_on(512, 1024) <= most


def test_late_elements_have_windows_merged_of_blocks_that_there_are() -> None:
    count = Merging()
    plan = WindowPlan(SlidingWindows(ms(256), ms(1)), allowed_lateness_ms=64, aggregate=count)
    run = Harness(lambda: window_operator(itemgetter(0), plan))
    for time in range(512):
        run.element(("a", 1), time)
        run.watermark(time)
    run.outputs()
    before = count.merges
    run.element(("a", 1), 480)
    found = run.outputs()
    assert [result.value for result in found] == [257] * 32
    assert count.merges - before <= 32 * 40


@pytest.mark.parametrize("assigner", [SlidingWindows(ms(256), ms(1)), CumulativeWindows(ms(256), ms(1))])
def test_slice_arms_no_window_that_the_slice_before_it_is_in(
    assigner: WindowAssigner, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed: list[Any] = []
    arm = Schedule.arm

    def counted(self: Schedule, window: Any) -> None:
        armed.append(window)
        arm(self, window)

    monkeypatch.setattr(Schedule, "arm", counted)
    run = Harness(lambda: window_operator(itemgetter(0), WindowPlan(assigner, aggregate=Count())))
    for time in range(256):
        run.element(("a", 1), time)
    assert len(armed) <= 512
    run.watermark(1_000)
    found = [(record[1].start_ms, record[1].end_ms) for record in run.records if record[0] == "out"]
    assert len(found) == len(set(found)) == len(set(armed))


def test_blocks_go_with_their_slices() -> None:
    starts = list(range(64))
    ends = {start: start + 1 for start in starts}
    blocks = Blocks(1, 64, ends, starts, lambda places: dict.fromkeys(places))
    assert list(blocks.cover((0, 64), makes=False)) == list(ends.items())
    for _ in range(3):
        covered = list(blocks.cover((1, 64), makes=True))
    assert covered == [(1, 2), (2, 3), (3, 4), (4, 8), (8, 12), (12, 16), (16, 32), (32, 48), (48, 64)]
    assert blocks.rows((16, 32)) == dict.fromkeys([(16, 20), (20, 24), (24, 28), (28, 32)])
    blocks.drop(17)
    assert blocks.rows((16, 32)) is blocks.rows((16, 20)) is None
    assert (20, 24) in blocks.cover((1, 64), makes=False)
    while starts:
        del ends[starts[0]]
        blocks.drop(starts.pop(0))
    assert not blocks.rows((4, 8))
    assert not list(blocks.cover((0, 64), makes=False))


def test_an_operator_has_no_blocks_of_slices_that_have_gone() -> None:
    run = Harness(
        lambda: window_operator(itemgetter(0), WindowPlan(SlidingWindows(ms(64), ms(1)), aggregate=Count()))
    )
    for time in range(100):
        run.element(("a", 1), time)
        run.watermark(time)
    rows = run.operator._panes._blocks._rows  # type: ignore[attr-defined]
    assert rows
    run.watermark(200)
    assert not rows


def test_an_operator_that_is_restored_while_it_runs_has_no_blocks_of_before() -> None:
    plan = WindowPlan(SlidingWindows(ms(64), ms(1)), aggregate=Count())
    runs = [Harness(lambda: window_operator(itemgetter(0), plan)) for _ in range(2)]
    for time in range(100):
        for elements, run in enumerate(runs, 1):
            run.operator.process_batch([("a", 1)] * elements, [time] * elements)
            run.watermark(time)
    one, other = runs
    other.outputs()
    other.operator.restore(one.operator.snapshot())
    other.operator.restore_watermark(99)
    other.watermark(100)
    assert [result.value for result in other.outputs()] == [63]


def test_slices_that_lie_far_apart_are_looked_at_alone() -> None:
    starts = [-1_000, 7, 1_000_000]
    ends = {start: start + 1 for start in starts}
    merged: list[list[Any]] = []

    def merge(places: Any) -> Any:
        merged.append(list(places))
        return {}

    blocks = Blocks(1, 10_000_000, ends, starts, merge)
    for _ in range(3):
        covered = list(blocks.cover((-5_000, 5_000_000), makes=True))
    assert covered == [(-1_000, -999), (0, 4**10)]
    assert merged == [[(7, 8), (1_000_000, 1_000_001)]]
