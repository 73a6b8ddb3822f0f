"""Windows, triggers and evictors as recorded cases name them, and what a window operator has told."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from asyncstream.operators.base import Operator
from asyncstream.state import MISSING
from asyncstream.windowing import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    CumulativeWindows,
    DeltaEvictor,
    DeltaTrigger,
    DynamicSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    SessionWindows,
    SlidingWindows,
    TimeEvictor,
    Trigger,
    TumblingWindows,
    Window,
    WindowAssigner,
    WindowOperator,
)
from asyncstream.windowing.pane_ticks import TickingWindowOperator
from asyncstream.windowing.sessions import SessionWindowOperator


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


class Traced(WindowOperator):
    """Tells the log which timer is firing."""

    where: dict[str, Any]

    def _on_timer(self, timestamp: int, key: Any, window: Any, event_time: bool) -> bool:
        self.where["timer"] = ["e" if event_time else "p", timestamp]
        self.where["cb"] += 1
        try:
            fires = super()._on_timer(timestamp, key, window, event_time=event_time)
            self._emitter.flush()
            return fires
        finally:
            self.where["timer"] = None


class Slipping(Traced):
    """
    Has Flink's slip, so that all else can be compared.

    An element that brings exactly the window that is open already, after that had grown by merging, makes
    Flink forget where its contents are: they leak and are missing from the result. It takes gaps that
    differ from element to element.
    """

    def _join(self, key: Any, assigned: Any) -> tuple[Window, Window]:
        windows = self._merging.get(None, key)
        if windows is not MISSING and windows.state_window(assigned) is not None:
            windows.move(assigned, assigned)
        return super()._join(key, assigned)


class TracedTicks(TickingWindowOperator):
    """Tells the log which tick is firing."""

    where: dict[str, Any]

    def _tick(self, tick: int, timers: list[Any]) -> dict[int, list[Any]]:
        again: dict[int, list[Any]] = {}
        for timer in timers:
            self._emitter.flush()
            self.where["timer"] = ["e" if self._ticks.event_time else "p", tick]
            self.where["cb"] += 1
            try:
                for following, some in super()._tick(tick, [timer]).items():
                    again.setdefault(following, []).extend(some)
                self._emitter.flush()
            finally:
                self.where["timer"] = None
        return again


class TracedSessions(SessionWindowOperator):
    """Tells the log which end or tick a session fires at."""

    where: dict[str, Any]

    def _emit_one(self, window: Any, key: Any, accumulator: Any) -> None:
        if self.where["step"] == "wm":
            due = [self._due(one)[0] for one in self._sessions.peek(None, key) if one.start == window[0]]
            self.where["timer"] = ["e", due[0] - 1]
            self.where["cb"] += 1
        try:
            super()._emit_one(window, key, accumulator)
            self._emitter.flush()
        finally:
            self.where["timer"] = None


TRACED: dict[type[Operator], Any] = {
    TickingWindowOperator: TracedTicks,
    SessionWindowOperator: TracedSessions,
}
"""Of the fast operators those that fire not only at ends."""


def assigner(spec: dict[str, Any], time: Any) -> WindowAssigner:
    kind = spec["kind"]
    offset = ms(spec.get("offset") or 0)
    if kind == "tumbling":
        return TumblingWindows(ms(spec["size"]), offset=offset, time=time, stagger="stagger" in spec)
    if kind == "sliding":
        return SlidingWindows(ms(spec["size"]), ms(spec["slide"]), offset=offset, time=time)
    if kind == "cumulative":
        return CumulativeWindows(ms(spec["size"]), ms(spec["step"]), offset=offset, time=time)
    if kind == "session":
        return SessionWindows(ms(spec["gap"]), time=time)
    if kind == "dynamic_session":
        return DynamicSessionWindows(lambda element: ms(spec["base"] + spec["mul"] * element[1]), time=time)
    assert kind == "global"
    return GlobalWindows(fire_at_end=spec.get("end_of_stream", False))


def trigger(spec: dict[str, Any] | None) -> Trigger | None:
    if spec is None:
        return None
    kind = spec["kind"]
    if kind == "event_time":
        return EventTimeTrigger()
    if kind == "processing_time":
        return ProcessingTimeTrigger()
    if kind == "count":
        return CountTrigger(spec["n"])
    if kind == "continuous_event_time":
        return ContinuousEventTimeTrigger(ms(spec["interval"]))
    if kind == "continuous_processing_time":
        return ContinuousProcessingTimeTrigger(ms(spec["interval"]))
    if kind == "delta":
        return DeltaTrigger(lambda last, new: new[1] - last[1], spec["threshold"])
    of = trigger(spec["of"])
    assert of is not None
    if kind == "purging":
        return PurgingTrigger(of)
    assert kind == "processing_timeout"
    return ProcessingTimeoutTrigger(
        of,
        ms(spec["interval"]),
        reset_on_record=spec.get("reset_on_record", False),
        clear_on_timeout=spec.get("clear_on_timeout", True),
    )


def evictor(spec: dict[str, Any] | None) -> Evictor | None:
    if spec is None:
        return None
    if spec["kind"] == "count":
        return CountEvictor(spec["n"], spec["when"])
    if spec["kind"] == "time":
        return TimeEvictor(ms(spec["size"]), spec["when"])
    assert spec["kind"] == "delta"
    return DeltaEvictor(lambda element, last: last[1] - element[1], spec["threshold"], spec["when"])


def comparable_counts(found: dict[str, int]) -> dict[str, int]:
    return {"panes": found["panes"], "late_dropped": found["late_dropped"], "state": bool(found["state"])}
