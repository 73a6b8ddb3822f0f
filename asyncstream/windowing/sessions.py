"""
Fast sessions with a fixed gap.

Theory. Each key has its open sessions sorted by start; they never touch each other, and the last one takes
nearly every element. A session is *armed* until it fires; armed ones wait in a bucket of the time at which
they would end, and there is a heap of those times. When a session grows it stays where it is (deferred
re-arm): once its bucket is due and its end is not, it moves to the bucket of its end. So growing costs no
timer, and a bucket never holds a session too late: ends only grow.

Sessions that end at the same time fire in the order in which they got their present window, which is when
`WindowOperator` registers its timer; `number` keeps that.

Within the allowed lateness a session that has fired stays, and grows and merges like the others.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain, count
from operator import attrgetter
from typing import Any

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.errors import InternalError
from asyncstream.operators.base import pairs
from asyncstream.state import Frozen, freeze_items
from asyncstream.windowing.assigners import SessionWindows
from asyncstream.windowing.operator import check_timestamp
from asyncstream.windowing.plain import PlainWindowOperator
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.windows import TimeWindow

__all__ = ("SessionOperator",)


class _Session:
    """One session; `open` until it is cleaned up or has merged into another."""

    __slots__ = ("armed", "end", "held", "key", "number", "open", "start")

    def __init__(self, key: Any, start: int, end: int, held: Any, number: int) -> None:
        self.key = key
        self.start = start
        self.end = end
        self.held = held
        self.number = number
        self.armed = False
        self.open = True


_START = attrgetter("start")
_NUMBER = attrgetter("number")
_FIELDS = attrgetter("key", "start", "end", "held", "number", "armed")


class SessionOperator(PlainWindowOperator):
    """Sessions that end when their key has been silent for a fixed gap."""

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        if not isinstance(plan.assigner, SessionWindows):
            raise InternalError(f"{type(plan.assigner).__name__} has no fixed gap")
        self._gap_ms = plan.assigner.gap_ms
        self._sessions: dict[Any, list[_Session]] = {}
        self._buckets: dict[int, list[_Session]] = {}
        self._to_fire: list[int] = []
        self._to_clean: list[tuple[int, int, _Session]] = []
        self._numbers = count()

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        key_by, add, sessions_of = self._key_by, self._aggregate.add, self._sessions.get
        gap, numbers = self._gap_ms, self._numbers
        value: Any = None
        timestamp: Any = None
        try:
            for value, timestamp in pairs(values, timestamps):
                key = key_by(value)
                sessions = sessions_of(key)
                if sessions is not None and type(timestamp) is int:
                    session = sessions[-1]
                    if session.start <= timestamp <= session.end and session.armed:
                        end = timestamp + gap
                        if end > session.end and session.end < MAX_TIMESTAMP:
                            session.end = end if end < MAX_TIMESTAMP else MAX_TIMESTAMP
                            session.number = next(numbers)
                        session.held = add(session.held, value)
                        continue
                self._place(key, sessions, value, timestamp)
        except BaseException as error:
            raise self._failed(value, timestamp, error) from error
        self._emitter.flush()

    def _place(self, key: Any, sessions: list[_Session] | None, value: Any, timestamp: int | None) -> None:
        """Put an element where it belongs, in all cases but the common one."""
        if timestamp is not None:
            check_timestamp(timestamp)
        start = MIN_TIMESTAMP if timestamp is None else timestamp
        end = min(start + self._gap_ms, MAX_TIMESTAMP)
        touched = sessions and [one for one in sessions if one.start <= end and start <= one.end]
        if touched:
            session = self._merge(touched, start, end)
        elif end - 1 + self._lateness_ms <= self._watermark:
            self._leave_out(value, timestamp, start)
            return
        else:
            session = _Session(key, start, end, self._aggregate.create(), next(self._numbers))
            insort(self._sessions.setdefault(key, []), session, key=_START)
        session.held = self._aggregate.add(session.held, value)
        if session.end - 1 > self._watermark:
            if not session.armed:
                self._arm(session)
            return
        if not touched:
            self._clean_later(session)
        self._emit(session.start, session.end, [(key, session.held)])

    def _merge(self, touched: list[_Session], start: int, end: int) -> _Session:
        """One session for those that `start` to `end` touches, and for that."""
        session = touched[0]
        covered = (min(start, session.start), max(end, touched[-1].end))
        if covered != (session.start, session.end) or not session.armed:
            session.start, session.end = covered
            session.number = next(self._numbers)
        for other in touched[1:]:
            session.held = self._aggregate.merge(session.held, other.held)
            self._close(other)
        return session

    def _close(self, session: _Session) -> None:
        session.open = session.armed = False
        sessions = self._sessions[session.key]
        sessions.remove(session)
        if not sessions:
            del self._sessions[session.key]

    def _arm(self, session: _Session) -> None:
        """Have the session fire at its end."""
        session.armed = True
        bucket = self._buckets.get(session.end)
        if bucket is None:
            self._buckets[session.end] = [session]
            heappush(self._to_fire, session.end)
        else:
            bucket.append(session)

    def _clean_later(self, session: _Session) -> None:
        """Have a session that has fired let go at the end of its allowed lateness."""
        entry = (session.end - 1 + self._lateness_ms, next(self._numbers), session)
        heappush(self._to_clean, entry)

    def _fire(self, watermark: float) -> None:
        while self._to_fire and self._to_fire[0] - 1 <= watermark:
            end = heappop(self._to_fire)
            due = []
            for session in self._buckets.pop(end):
                if session.end == end and session.armed:
                    due.append(session)
                elif session.armed:
                    self._arm(session)
            if len(due) > 1:
                due.sort(key=_NUMBER)
            for session in due:
                self._emit(session.start, end, [(session.key, session.held)])
                if self._lateness_ms:
                    session.armed = False
                    self._clean_later(session)
                else:
                    self._close(session)
        while self._to_clean and self._to_clean[0][0] <= watermark:
            session = heappop(self._to_clean)[2]
            if session.open and not session.armed:
                if session.end - 1 + self._lateness_ms <= watermark:
                    self._close(session)
                else:
                    self._clean_later(session)  # it has grown since it fired

    def _held(self) -> Iterator[tuple[TimeWindow, bool, Iterable[tuple[Any, Any]]]]:
        every = [session for sessions in self._sessions.values() for session in sessions]
        for session in sorted(every, key=_NUMBER):
            yield TimeWindow(session.start, session.end), session.armed, ((session.key, session.held),)

    def _give(self) -> Any:
        every = (session for sessions in self._sessions.values() for session in sessions)
        fields: Iterable[tuple[Any, ...]] = map(_FIELDS, every)
        if not self._is_own_form:
            save = self._aggregate.save
            fields = ((key, start, end, save(held), *rest) for key, start, end, held, *rest in fields)
        return list(fields), next(self._numbers)

    def _take(self, held: Any) -> None:
        fields, number = held
        if not self._is_own_form:
            load = self._aggregate.load
            fields = [(key, start, end, load(held), *rest) for key, start, end, held, *rest in fields]
        self._thaw([fields])
        self._numbers = count(number)
        for session in sorted(chain.from_iterable(self._sessions.values()), key=_NUMBER):
            if session.armed:
                self._arm(session)
            else:
                self._clean_later(session)

    def due_ms(self) -> int | None:
        due = [end - 1 for end in self._to_fire[:1]]
        return min([*due, *(entry[0] for entry in self._to_clean[:1])], default=None)

    def _freeze(self) -> list[Frozen[Any]]:
        return [freeze_items(map(_FIELDS, chain.from_iterable(self._sessions.values())))]

    def _thaw(self, parts: list[Any]) -> None:
        for key, start, end, held, number, armed in parts[0]:
            session = _Session(key, start, end, held, number)
            session.armed = armed
            self._sessions.setdefault(key, []).append(session)

    def _take_up(self, state: Any) -> None:
        for kept in (self._sessions, self._buckets, self._to_fire, self._to_clean):
            kept.clear()
        for key, window, held, pending in self._cells_of(state):
            session = _Session(key, window.start_ms, window.end_ms, held, next(self._numbers))
            insort(self._sessions.setdefault(key, []), session, key=_START)
            if pending:
                self._arm(session)
            else:
                self._clean_later(session)

    def _count_open(self) -> int:
        return sum(map(len, self._sessions.values()))
