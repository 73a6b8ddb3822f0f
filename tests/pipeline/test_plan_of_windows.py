"""How plans show windows: with the settings that somebody chose."""

from __future__ import annotations

from typing import Any

from asyncstream import Count, NoWatermarks, Pipeline
from asyncstream.windowing import (
    AfterWatermark,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DynamicSessionWindows,
    SlidingWindows,
    TimeWindow,
    Trigger,
    TumblingWindows,
    WindowAssigner,
)
from asyncstream.windowing.assigners import SlicedWindows


def shown(assigner: WindowAssigner, trigger: Trigger | None = None) -> str:
    pipeline = Pipeline()
    windows = pipeline.source([1]).window_all(assigner)
    (windows if trigger is None else windows.trigger(trigger)).collect(name="w").discard()
    line = next(line for line in pipeline.describe().splitlines() if line.startswith("  w "))
    return line[line.index("(") + 1 : -1]


def test_assigners_show_their_lengths() -> None:
    assert shown(TumblingWindows(3600)) == "window=TumblingWindows(size=1:00:00)"
    sliding = SlidingWindows(60, 10, offset=2, time="processing")
    assert shown(sliding) == (
        "window=SlidingWindows(size=0:01:00, slide=0:00:10, offset=0:00:02, time='processing')"
    )
    assert shown(DynamicSessionWindows(float)) == "window=DynamicSessionWindows(gap_of=float)"


def test_triggers_show_what_they_are_made_of() -> None:
    early = AfterWatermark(early=ContinuousProcessingTimeTrigger(5), late=CountTrigger(1))
    assert shown(TumblingWindows(60), early).endswith(
        "trigger=AfterWatermark(early=ContinuousProcessingTimeTrigger(interval=0:00:05), "
        "late=CountTrigger(n=1))"
    )


def test_count_windows_show_trigger_and_evictor() -> None:
    pipeline = Pipeline()
    keyed = pipeline.source([1]).key_by(float)
    keyed.count_window(3).collect().discard()
    keyed.count_window(3, 2).collect().discard()
    tumbling, sliding = (line for line in pipeline.describe().splitlines() if "GlobalWindows()" in line)
    assert "trigger=PurgingTrigger(of=CountTrigger(n=3))" in tumbling
    assert "trigger=CountTrigger(n=2), evictor=CountEvictor(n=3)" in sliding


def test_length_and_slide_of_policy_windows_may_be_given_by_place() -> None:
    pipeline = Pipeline()
    stream = pipeline.source([1])
    stream.policy_window(4, 2, name="placed").discard()
    stream.policy_window(length=4, slide=2, name="named").discard()
    placed, named = (line.partition("(")[2] for line in pipeline.describe().splitlines() if "length" in line)
    assert placed == named == "length=4, slide=2)"


def test_assigner_of_ones_own_is_shown_by_its_name() -> None:
    class Slotted(WindowAssigner):
        __slots__ = ()

        def assign(self, value: object, time_ms: int) -> list[TimeWindow]:
            return [TimeWindow(0, 1)]

    assert shown(Slotted()) == "window=Slotted()"


def test_what_cannot_show_itself_is_shown_by_the_name_of_its_class() -> None:
    class Hidden(CountTrigger):
        def __repr__(self) -> str:
            raise ValueError

    class Unseen(TumblingWindows):
        def __repr__(self) -> str:
            raise ValueError

    unseen = "<Unseen whose repr failed>"
    assert shown(Unseen(1), Hidden(2)) == f"window={unseen}, trigger=<Hidden whose repr failed>"
    assert unseen in repr(Pipeline().source([1]).window_all(Unseen(1)))


class Seconds(SlicedWindows):
    """Windows on a grid of the user's own."""

    is_disjoint = True

    def slice_at(self, timestamp: int) -> tuple[int, int]:
        start = timestamp // 1000 * 1000
        return start, start + 1000


async def test_grid_of_ones_own_needs_only_its_slices() -> None:
    found: list[Any] = []
    pipeline = Pipeline()
    timed = pipeline.source([5, 6, 1500]).event_time(int, NoWatermarks())
    timed.window_all(Seconds()).aggregate(Count()).to(found)
    await pipeline.run()
    assert [(one.start_ms, one.end_ms, one.value) for one in found] == [(0, 1000, 2), (1000, 2000, 1)]
    # what checkpoints say of it, by which they are known again
    assert Seconds().state_schema() == {"type": "Seconds of the program"}
