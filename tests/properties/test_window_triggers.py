"""
Triggers that are asked about few elements, against the same ones asked about all of them.

An operator puts an element along the cells of its key if its trigger need not be asked about it. What comes
out is to be the same as if it asked, whatever the windows, the trigger and the time, and whatever happens
between.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.windowing import (
    AfterWatermark,
    Aggregates,
    Collect,
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    Count,
    CountEvictor,
    CountTrigger,
    CumulativeWindows,
    EventTimeTrigger,
    GlobalWindows,
    NeverTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SlidingWindows,
    Sum,
    Trigger,
    TriggerContext,
    TriggerResult,
    TumblingWindows,
    Window,
    WindowAssigner,
    WindowOperator,
    WindowPlan,
)
from tests.windowing.harness import Harness, Step, ms

VALUE = itemgetter(1)


class Asked(Trigger):
    """As another trigger, but asked about each element."""

    def __init__(self, of: Trigger) -> None:
        self.of = of
        self.can_merge = of.can_merge
        self.on_event_time = of.on_event_time  # type: ignore[method-assign]
        self.on_processing_time = of.on_processing_time  # type: ignore[method-assign]
        self.clear = of.clear  # type: ignore[method-assign]

    def on_element(
        self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
    ) -> TriggerResult:
        return self.of.on_element(value, timestamp, window, ctx)


INTERVALS = st.integers(1, 8).map(ms)
COUNTS = st.integers(1, 4).map(CountTrigger)
PARTS = st.one_of(
    COUNTS,
    INTERVALS.map(ContinuousProcessingTimeTrigger),
    INTERVALS.map(ContinuousEventTimeTrigger),
    st.just(ProcessingTimeTrigger()),
    st.builds(ProcessingTimeoutTrigger, COUNTS, INTERVALS),
)
ANY = st.one_of(
    PARTS,
    st.just(EventTimeTrigger()),
    st.just(NeverTrigger()),
    st.builds(AfterWatermark, early=st.none() | PARTS, late=st.none() | PARTS),
)
TRIGGERS = ANY | ANY.map(PurgingTrigger)


@st.composite
def assigners(draw: st.DrawFn) -> WindowAssigner:
    time: Any = draw(st.sampled_from(["event", "event", "processing"]))
    kind = draw(st.sampled_from(["tumbling", "sliding", "cumulative", "global", "staggered"]))
    size = draw(st.integers(1, 14))
    if kind == "global":
        return GlobalWindows(fire_at_end=True)
    if kind == "sliding":
        return SlidingWindows(ms(size), ms(draw(st.integers(1, 16))), time=time)
    if kind == "cumulative":
        return CumulativeWindows(ms(3 * size), ms(size), time=time)
    return TumblingWindows(ms(size), time=time, stagger=kind == "staggered")


@st.composite
def scripts(draw: st.DrawFn) -> list[Step]:
    """Elements about a rising watermark, some far behind; a clock of its own; restarts."""
    script: list[Step] = []
    watermark, now, number = draw(st.integers(-20, 20)), 0, 0
    kinds = ["el"] * 9 + ["wm", "wm", "pt", "pt", "restart"]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=50)):
        if kind == "el":
            number += 1
            timestamp = watermark + draw(st.sampled_from([2, 3, 3, 3, 4, 12, -1, -9]))
            script.append(("el", (draw(st.sampled_from("aab")), number), timestamp))
        elif kind == "wm":
            watermark += draw(st.integers(1, 6))
            script.append(("wm", watermark))
        elif kind == "pt":
            now += draw(st.integers(1, 6))
            script.append(("pt", now))
        else:
            script.append(("restart",))
    return [*script, ("pt", now + 50), ("wm", MAX_TIMESTAMP)]


CONTENTS = st.sampled_from(
    [
        WindowPlan(GlobalWindows(), aggregate=Aggregates(n=Count(), total=Sum(VALUE), all=Collect(VALUE))),
        WindowPlan(GlobalWindows(), aggregate=Sum(VALUE)),
        WindowPlan(GlobalWindows(), evictor=CountEvictor(2)),
        WindowPlan(GlobalWindows(), evictor=CountEvictor(2, "after"), aggregate=Collect(VALUE)),
        WindowPlan(GlobalWindows()),
    ]
)


@settings(max_examples=300, deadline=None)
@given(scripts(), assigners(), TRIGGERS, st.sampled_from([0, 1, 5, 20]), CONTENTS, st.booleans())
def test_asking_less_gives_the_same(
    script: list[Step],
    assigner: WindowAssigner,
    trigger: Trigger,
    lateness: int,
    contents: WindowPlan,
    on_disk: bool,
) -> None:
    plan = replace(contents, assigner=assigner, trigger=trigger, allowed_lateness_ms=lateness)
    one = Harness(lambda: WindowOperator(itemgetter(0), replace(plan, trigger=Asked(trigger))))
    expected = one.run(script)
    event("fires early" if any(kind == "out" for kind, *_ in expected[:-20]) else "fires late")
    for batched in (False, True):
        other = Harness(lambda: WindowOperator(itemgetter(0), plan), on_disk=on_disk)
        assert other.run(script, batched) == expected
        assert other.operator.metrics() == one.operator.metrics()


def test_a_trigger_that_changes_another_is_asked_about_each_element() -> None:
    class Every(EventTimeTrigger):
        def on_element(
            self, value: Any, timestamp: int | None, window: Window, ctx: TriggerContext
        ) -> TriggerResult:
            return TriggerResult.FIRE

    for trigger in (Every(), AfterWatermark(early=Every()), PurgingTrigger(AfterWatermark(early=Every()))):
        run = Harness(partial(WindowOperator, itemgetter(0), WindowPlan(TumblingWindows(1), trigger)))
        for number in range(3):
            run.element(("a", number), number)
        assert len(run.outputs()) == 3
