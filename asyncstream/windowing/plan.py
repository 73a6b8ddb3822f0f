"""
Which window step the user described, checked as a whole: some parts do not go together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from asyncstream.errors import InternalError, PipelineError
from asyncstream.operators.process_spec import check_sides
from asyncstream.state.snapshots import Rule
from asyncstream.validation import count, instance, refuse
from asyncstream.windowing.aggregates import ELEMENTS
from asyncstream.windowing.assigners import (
    DynamicSessionWindows,
    GlobalWindows,
    SessionWindows,
    SlicedWindows,
    WindowAssigner,
    sliced,
)
from asyncstream.windowing.composite_triggers import AfterWatermark, PurgingTrigger
from asyncstream.windowing.evictors import CountEvictor, Evictor
from asyncstream.windowing.functions import (
    FOLDING,
    AggregateFunction,
    ProcessWindowFunction,
    can_merge,
    clears,
)
from asyncstream.windowing.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    Ticks,
    Trigger,
)

__all__ = ("AT_END", "COUNTERS", "RULES", "Firings", "Kept", "WindowPlan")

Kept: TypeAlias = Literal["panes", "sessions", "contents"]
"""
What a window operator keeps: slices of time for all keys together; the open sessions of each key; or,
whatever the windows are and the trigger is, the contents of each window of each key, with timers.
"""

COUNTERS = ("late_dropped", "outside_windows")
"""What all window operators count."""

RULES: Final[dict[str, Rule]] = {
    "late_dropped": "sum",
    "outside_windows": "sum",
    "anchor_ms": "min",
    "fired_ms": "max",
    "lateness_ms": "max",
    "number": "max",
    "in_order": "max",
    "trigger": "merge",
    "key": "merge",
    "window": "merge",
}
"""Of the cells of all kinds of operators, how those of several parts become one."""


class Firings(NamedTuple):
    """
    When a window of event time fires besides at its end.

    Attributes:
        early: before that, with every so many-th element of a key; 0: not at all.
        late: after that, with every so many-th; at least 1.
        ticks: before that, by time; None: not at all.
    """

    early: int
    late: int
    ticks: Ticks | None = None


AT_END: Final = Firings(0, 1)
"""As with an `EventTimeTrigger`."""


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """
    All that a window operator needs to know but the key.

    Attributes:
        assigner: which windows an element belongs to.
        trigger: when a window fires; None: the assigner's default, at its end.
        evictor: which elements are thrown out at a firing; None: none.
        allowed_lateness_ms: how long, in event time, a window outlives its end for late elements; of no
            effect in processing time, where nothing is late.
        aggregate: folds elements as they come; None: they are kept as a list.
        process: called at each firing; None: a `WindowResult` is emitted.

    Raises:
        PipelineError: if a part is not what it should be, or two of them do not go together.
    """

    assigner: WindowAssigner
    trigger: Trigger | None = None
    evictor: Evictor | None = None
    allowed_lateness_ms: int = 0
    aggregate: AggregateFunction[Any, Any] | None = None
    process: ProcessWindowFunction[Any] | None = None

    def __post_init__(self) -> None:
        # what an assigner or an evictor gives is iterated over: it may yield
        advice = "e.g. TumblingWindows(60)"
        instance("window", self.assigner, WindowAssigner, "assign", advice=advice, yields=True)
        if self.trigger is not None:
            instance("trigger", self.trigger, Trigger, advice="such as CountTrigger(10)")
        if self.evictor is not None:
            instance("evictor", self.evictor, Evictor, advice="such as CountEvictor(10)", yields=True)
        if self.aggregate is not None:
            advice = "such as Count(); for a function of two elements use .reduce(fn)"
            instance("aggregate", self.aggregate, AggregateFunction, *FOLDING, advice=advice, gives="add")
        if self.process is not None:
            instance("process", self.process, ProcessWindowFunction, "process")
            check_sides(self.process)
        if type(self.allowed_lateness_ms) is not int or self.allowed_lateness_ms < 0:
            raise refuse("allowed_lateness", "a duration of at least 0", self.allowed_lateness_ms)
        if self.assigner.merging:
            self._check_merging()

    @classmethod
    def counting(
        cls,
        size: int,
        slide: int | None = None,
        *,
        aggregate: AggregateFunction[Any, Any] | None = None,
        process: ProcessWindowFunction[Any] | None = None,
    ) -> WindowPlan:
        """
        Windows of `size` elements of a key; with `slide`, the last `size` elements at every `slide`-th one.

        Without `slide`, elements that do not fill a window any more are not emitted.
        """
        size = count("size", size)
        if slide is None:
            trigger: Trigger = PurgingTrigger(CountTrigger(size))
            return cls(GlobalWindows(), trigger, aggregate=aggregate, process=process)
        trigger = CountTrigger(count("slide", slide))
        return cls(GlobalWindows(), trigger, CountEvictor(size), aggregate=aggregate, process=process)

    @property
    def effective_trigger(self) -> Trigger:
        """The trigger, or the assigner's default."""
        return self.assigner.default_trigger() if self.trigger is None else self.trigger

    @property
    def folding(self) -> AggregateFunction[Any, Any]:
        """What elements are folded with as they come: the aggregate, or what keeps them all."""
        return ELEMENTS if self.aggregate is None or self.evictor is not None else self.aggregate

    @property
    def kept(self) -> Kept:
        """
        What an operator keeps that does what is asked for, fastest.

        Where each event-time window just gives its result at its end, there is no trigger to ask, and no
        timer needed for each key.
        """
        is_plain = self.assigner.event_time and self.firings is not None and self.evictor is None
        if not is_plain:
            return "contents"
        # a function is told of each window that goes, in the order of time: after their ends only slices that
        # are windows themselves go like that
        is_told = self.process is not None and clears(self.process) and self.allowed_lateness_ms > 0
        if type(self.assigner) in (SessionWindows, DynamicSessionWindows):  # a subclass may assign otherwise
            return "contents" if is_told or self._ticks_go_on else "sessions"
        slicing = sliced(self.assigner)
        if slicing is None:
            return "contents"
        # panes do not remember whose element came first into two windows of which one ticks as the other ends
        return "panes" if slicing.is_disjoint or not (is_told or self._has_ties(slicing)) else "contents"

    @property
    def slicing(self) -> SlicedWindows:
        """The assigner, whose windows are made of slices."""
        if (slicing := sliced(self.assigner)) is None:
            raise InternalError(f"{type(self.assigner).__name__} has no slices")
        return slicing

    @property
    def firings(self) -> Firings | None:
        """When windows fire in event time, if that can be said."""
        return _firings_of(self.effective_trigger, self.allowed_lateness_ms > 0)

    @property
    def ticks(self) -> Ticks | None:
        """When windows fire by time before their end, if that can be said; None: not at all."""
        firings = self.firings
        return None if firings is None else firings.ticks

    @property
    def _ticks_go_on(self) -> bool:
        """Whether sessions tick by the clock, or behind their ends, too, as with Flink's trigger."""
        if (ticks := self.ticks) is None:
            return False
        return not ticks.event_time or (self.allowed_lateness_ms > 0 and not ticks.again)

    @property
    def closes_with_input(self) -> bool:
        """Whether windows end with the clock, so that those that are open at the end fire then."""
        return not (self.assigner.event_time or isinstance(self.assigner, GlobalWindows))

    def check_firing(self) -> None:
        """
        See that the windows fire, now that the plan is whole.

        Raises:
            PipelineError: if they wait for a trigger, and there is none.
        """
        if self.trigger is None and isinstance(self.assigner.default_trigger(), NeverTrigger):
            expected = f"one to go with {self.assigner!r}, which never fires by itself"
            advice = "e.g. CountTrigger(100), or GlobalWindows(fire_at_end=True)"
            raise refuse("trigger", expected, None, advice)

    def _has_ties(self, slicing: SlicedWindows) -> bool:
        """Whether a window may tick, in event time, just when another one ends that overlaps it."""
        ticks = self.ticks
        if ticks is None or not ticks.event_time:
            return False
        step_ms, longest_ms = slicing.overlap_ms()
        last_ms = slicing.offset_ms + longest_ms - 1  # of one window; the others end some steps from it
        return last_ms % gcd(step_ms, ticks.interval_ms) == 0

    def _check_merging(self) -> None:
        trigger, aggregate = self.effective_trigger, self.aggregate
        if not trigger.can_merge:
            raise PipelineError(
                f"{type(trigger).__name__} cannot be used with sessions: it cannot merge windows"
            )
        if aggregate is not None and self.evictor is None and not can_merge(aggregate):
            raise PipelineError(
                f"{type(aggregate).__name__} cannot be used with sessions: it does not override merge"
            )


def _firings_of(trigger: Trigger, is_kept: bool) -> Firings | None:
    """
    When windows fire with a trigger, if that can be said of it; not of a subclass, which may do otherwise. If
    it `is_kept`, a window lives on after its end.
    """
    kind = type(trigger)
    if kind is PurgingTrigger and not is_kept:
        return AT_END if _firings_of(trigger.of, is_kept) == AT_END else None  # type: ignore[attr-defined]
    if kind is ContinuousEventTimeTrigger:
        return Firings(0, 1, trigger.ticks()._replace(again=False))  # type: ignore[attr-defined]
    if kind is not AfterWatermark:
        return AT_END if kind is EventTimeTrigger else None
    assert isinstance(trigger, AfterWatermark)
    early, late = trigger.early, trigger.late if is_kept else None
    ticks = None
    if type(early) in (ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger):
        ticks, early = early.ticks(), None  # type: ignore[union-attr]
    if any(type(part) is not CountTrigger for part in (early, late) if part is not None):
        return None
    counts = [getattr(part, "n", usual) for part, usual in ((early, 0), (late, 1))]
    return Firings(counts[0], counts[1], ticks and ticks._replace(state=f"early/{ticks.state}"))
