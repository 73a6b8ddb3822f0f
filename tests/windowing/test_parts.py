"""Assigners, evictors and merging by themselves."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any

import pytest

from asyncstream.errors import PipelineError, UserFunctionError
from asyncstream.testing import harness
from asyncstream.windowing import (
    GLOBAL_WINDOW,
    AfterWatermark,
    Collect,
    CountEvictor,
    CountTrigger,
    CumulativeWindows,
    DeltaEvictor,
    DeltaTrigger,
    DynamicSessionWindows,
    GlobalWindows,
    MergingWindowSet,
    ProcessingTimeoutTrigger,
    PurgingTrigger,
    SessionWindows,
    SlidingWindows,
    TimeEvictor,
    TimeWindow,
    TumblingWindows,
    WindowAssigner,
)
from asyncstream.windowing.windows import window_from
from tests.windowing.harness import ms


def test_assigners_place_a_time_in_their_windows() -> None:
    assert TumblingWindows(ms(10)).assign(None, 10) == [TimeWindow(10, 20)]
    assert TumblingWindows(ms(10)).assign(None, -1) == [TimeWindow(-10, 0)]
    sliding = SlidingWindows(ms(10), ms(4))
    assert sliding.assign(None, 9) == [TimeWindow(8, 18), TimeWindow(4, 14), TimeWindow(0, 10)]
    assert SlidingWindows(ms(2), ms(5)).assign(None, 4) == []
    cumulative = CumulativeWindows(ms(6), ms(2))
    assert cumulative.assign(None, 8) == [TimeWindow(6, 10), TimeWindow(6, 12)]
    assert cumulative.assign(None, 5) == [TimeWindow(0, 6)]
    assert SessionWindows(ms(3)).assign(None, 5) == (TimeWindow(5, 8),)
    assert DynamicSessionWindows(lambda gap: gap).assign(ms(4), 5) == (TimeWindow(5, 9),)
    assert GlobalWindows().assign(None, 5) == [GLOBAL_WINDOW]


@pytest.mark.parametrize(
    "make",
    [
        lambda: TumblingWindows(0),
        lambda: TumblingWindows(-1),
        lambda: TumblingWindows("1"),  # type: ignore[arg-type]
        lambda: TumblingWindows(timedelta(microseconds=1)),
        lambda: TumblingWindows(1, offset=1),
        lambda: TumblingWindows(1, offset="1"),  # type: ignore[arg-type]
        lambda: TumblingWindows(1, time="wall"),  # type: ignore[arg-type]
        lambda: SlidingWindows(1, 0),
        lambda: SlidingWindows(10, 2, offset=2),
        lambda: CumulativeWindows(10, 3),
        lambda: SlidingWindows(10_000_010, 10),  # a million and more for each element
        lambda: CumulativeWindows(10_000_010, 10),
        lambda: SessionWindows(0),
        lambda: DynamicSessionWindows(5),  # type: ignore[arg-type]
        lambda: CountTrigger(0),
        lambda: DeltaTrigger(lambda a, b: 0.0, "1"),  # type: ignore[arg-type]
        lambda: PurgingTrigger(CountTrigger),  # type: ignore[arg-type]
        lambda: ProcessingTimeoutTrigger(CountTrigger(1), 0),
        lambda: AfterWatermark(early=1),  # type: ignore[arg-type]
        lambda: CountEvictor(-1),
        lambda: CountEvictor(1, "while"),  # type: ignore[arg-type]
        lambda: TimeEvictor(0),
        lambda: DeltaEvictor(lambda a, b: 0.0, None),  # type: ignore[arg-type]
    ],
)
def test_wrong_arguments_are_refused(make: Any) -> None:
    with pytest.raises(PipelineError):
        make()


def test_evictors_keep_what_they_say() -> None:
    elements: Any = [(1, 10), (5, 4), (2, 12), (4, 7)]
    window = TimeWindow(0, 20)
    assert CountEvictor(3).kept(elements, window) == elements[1:]
    assert CountEvictor(0).kept(elements, window) == []
    assert CountEvictor(9).kept(elements, window) == elements
    assert TimeEvictor(ms(5)).kept(elements, window) == [(1, 10), (2, 12)]
    assert DeltaEvictor(lambda a, last: last - a, 2).kept(elements, window) == [(5, 4), (4, 7)]
    unknown: Any = [(math.nan, 4), (5, 7)]
    assert DeltaEvictor(lambda a, last: last - a, 2).kept(unknown, window) == unknown
    for evictor in (CountEvictor(1), TimeEvictor(1), DeltaEvictor(lambda a, b: 0.0, 1)):
        assert evictor.kept([], window) == []
    without: Any = [(1, None), (2, None)]
    assert TimeEvictor(ms(5)).kept(without, window) == without
    with pytest.raises(ValueError, match="without a timestamp"):
        TimeEvictor(ms(5)).kept([(1, 3), (2, None)], window)
    with pytest.raises(ValueError, match="without a timestamp"):
        TimeEvictor(ms(5)).kept([(1, None), (2, 3)], window)


def test_windows_that_touch_at_exactly_the_gap_merge() -> None:
    windows = MergingWindowSet()
    windows.add(TimeWindow(0, 5))
    assert windows.add(TimeWindow(5, 10)).window == TimeWindow(0, 10)
    assert windows.add(TimeWindow(11, 16)).window == TimeWindow(11, 16)
    assert len(windows) == 2
    windows.retire(TimeWindow(0, 10))
    assert list(windows) == [(TimeWindow(11, 16), TimeWindow(11, 16))]
    assert windows.state_window(TimeWindow(0, 10)) is None


def test_an_element_that_brings_the_window_that_is_open_does_not_lose_its_contents() -> None:
    windows = MergingWindowSet()
    windows.add(TimeWindow(0, 5))
    windows.add(TimeWindow(0, 9))
    merge = windows.add(TimeWindow(0, 9))
    assert (merge.window, merge.merged) == (TimeWindow(0, 9), [])
    assert windows.state_window(merge.window) == TimeWindow(0, 5)


def test_contents_stay_with_the_bigger_session_when_moved_there() -> None:
    windows = MergingWindowSet()
    windows.add(TimeWindow(0, 5))
    windows.add(TimeWindow(8, 13))
    merge = windows.add(TimeWindow(4, 9))
    assert merge == (
        TimeWindow(0, 13),
        [TimeWindow(0, 5), TimeWindow(8, 13)],
        [TimeWindow(0, 5), TimeWindow(8, 13)],
    )
    windows.move(merge.window, merge.state_windows[1])
    assert windows.state_window(merge.window) == TimeWindow(8, 13)


def test_windows_equal_the_plain_tuples_that_snapshots_keep() -> None:
    assert hash(TimeWindow(1, 2)) == hash((1, 2))
    assert window_from((1, 2)) == TimeWindow(1, 2)
    assert window_from(()) is GLOBAL_WINDOW
    assert repr(GLOBAL_WINDOW) == "GlobalWindow()"


@pytest.mark.parametrize("answer", [TimeWindow(0, 1000), [(0, 1000)], None, [1]])
def test_assigner_that_answers_no_list_of_windows_is_told_what_to_answer(answer: Any) -> None:
    class Assigner(WindowAssigner):
        def assign(self, value: Any, time_ms: int, /) -> Any:
            return answer if value else [TimeWindow(0, 1000)]

    with harness(Collect(), window=Assigner(), key_by=str) as tested:
        tested.push(0, at=0)
        told = r"an assigner answers a list of windows, such as \[TimeWindow\(start_ms, end_ms\)\]; got "
        with pytest.raises(UserFunctionError, match=f"{told}{re.escape(repr(answer))}, on element 1"):
            tested.push(1, at=0)


def test_gap_that_is_no_function_is_told_whose_it_is() -> None:
    gap: Any = 5
    with pytest.raises(PipelineError, match=r"gap_of: .* got 5; one gap for all: SessionWindows"):
        DynamicSessionWindows(gap)
