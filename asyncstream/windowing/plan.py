"""
Which window step the user described, checked as a whole: some parts do not go together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from asyncstream.errors import PipelineError
from asyncstream.validation import count, plain_methods, refuse
from asyncstream.windowing.aggregates import ELEMENTS, ELEMENTS_OF_SESSIONS
from asyncstream.windowing.assigners import GlobalWindows, SessionWindows, WindowAssigner
from asyncstream.windowing.evictors import CountEvictor, Evictor
from asyncstream.windowing.functions import AggregateFunction, ProcessWindowFunction, can_merge, clears
from asyncstream.windowing.slices import has_slices
from asyncstream.windowing.triggers import CountTrigger, PurgingTrigger, Trigger, fires_at_end_only

__all__ = ("COUNTERS", "Kept", "WindowPlan")

Kept: TypeAlias = Literal["panes", "sessions", "contents"]
"""
What a window operator keeps: slices of time for all keys together; the open sessions of each key; or,
whatever the windows are and the trigger is, the contents of each window of each key, with timers.
"""

COUNTERS = ("late_dropped", "outside_windows")
"""What all window operators count."""


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
        for name, part, kind, optional in (
            ("window", self.assigner, WindowAssigner, False),
            ("trigger", self.trigger, Trigger, True),
            ("evictor", self.evictor, Evictor, True),
            ("aggregate", self.aggregate, AggregateFunction, True),
            ("process", self.process, ProcessWindowFunction, True),
        ):
            if not (isinstance(part, kind) or (optional and part is None)):
                raise refuse(name, f"a {kind.__name__}", part)
            if part is not None:
                # what an assigner or an evictor gives is iterated over: it may yield
                plain_methods(name, part, kind, yields=kind in (WindowAssigner, Evictor))
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
        """The aggregate, or the one that gives all elements."""
        if self.aggregate is not None:
            return self.aggregate
        return ELEMENTS_OF_SESSIONS if self.assigner.merging else ELEMENTS

    @property
    def kept(self) -> Kept:
        """
        What an operator keeps that does what is asked for, fastest.

        Where each event-time window just gives its result at its end, there is no trigger to ask, and no
        timer needed for each key.
        """
        is_plain = (
            self.assigner.event_time
            and fires_at_end_only(self.effective_trigger, self.allowed_lateness_ms > 0)
            and self.evictor is None
            and (self.process is None or not clears(self.process))
        )
        kind = type(self.assigner)  # a subclass may assign otherwise
        if is_plain and kind is SessionWindows:
            return "sessions"
        return "panes" if is_plain and has_slices(self.assigner) else "contents"

    @property
    def closes_with_input(self) -> bool:
        """Whether windows end with the clock, so that those that are open at the end fire then."""
        return not (self.assigner.event_time or isinstance(self.assigner, GlobalWindows))

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
