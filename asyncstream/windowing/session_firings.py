"""
Sessions that fire by count besides at their end, or by event time before it: `sessions` with firings.

Theory. What a trigger would remember of a session stands in the session itself: how many elements have come
since it fired early, or late, and its next *tick*. So nothing is moved from one window to the next when a
session grows. Its key waits for what comes first, the tick or the end.

`WindowOperator` sets the timer of a tick anew whenever the session has another window, and when the tick
before it fires. Ticks and ends of the same time come in the order in which their timers were set, so a tick
has a number of its own, and the later of both counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.sessions import Session, SessionWindowOperator

__all__ = ("FiringSessionOperator",)


@dataclass(slots=True, eq=False)
class _FiringSession(Session):
    """
    One session of a key.

    Attributes:
        early, late: how many elements have come before its end, or behind it, since it fired for that.
        tick: when it fires next before its end; None: it does not do so by time.
        ticked: when that was set, as `number`.
    """

    most = 4

    early: int = 0
    late: int = 0
    tick: int | None = None
    ticked: int = 0

    def firings(self) -> Sequence[Any]:
        return [self.early, self.late, self.tick, self.ticked]


class FiringSessionOperator(SessionWindowOperator):
    """
    Sessions that fire besides with every so many-th element, early or late, or at ticks of event time.

    Snapshot holds: the open sessions of each key, what they have counted, and their next ticks.
    """

    _made = _FiringSession

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        firings = plan.firings
        assert firings is not None
        self._early, self._late, self._ticks = firings

    def _count_early(self, key: Any, session: Any) -> None:
        session.early += 1
        if session.early >= self._early:
            session.early = 0
            self._emit_one((session.start, session.end), key, session.accumulator)

    def _count_late(self, key: Any, session: Any) -> None:
        session.late += 1
        if session.late >= self._late:
            session.late = 0
            self._emit_one((session.start, session.end), key, session.accumulator)

    def _join(self, session: Any, other: Any) -> None:
        super()._join(session, other)
        session.early += other.early
        session.late += other.late
        if session.tick is None:  # else it is the earlier one, and the session waits for that
            session.tick = other.tick

    def _clean_later(self, key: Any, session: Any) -> None:
        session.early, session.tick = 0, None  # it has fired at its end
        super()._clean_later(key, session)

    # ------------------------------------------------------------------ time

    def _arm(self, key: Any, session: Any, time_ms: int) -> None:
        if self._ticks is not None and session.tick is None:
            self._set_tick(session, self._ticks.first(time_ms, session.end - 1))
        super()._arm(key, session, time_ms)

    def _set_tick(self, session: _FiringSession, tick: int) -> None:
        session.tick, session.ticked = tick, next(self._numbers)

    def _due(self, session: Any) -> tuple[int, int]:
        if session.tick is None or session.tick + 1 >= session.end:
            return session.end, session.number
        return session.tick + 1, max(session.number, session.ticked)

    def _tick_on(self, session: Any) -> None:
        assert self._ticks is not None
        self._set_tick(session, self._ticks.after(session.tick, session.end - 1))
