"""
Sessions with a fixed gap.

Theory. Each key has its open sessions sorted by start; they never touch each other, and the last one takes
nearly every element. A session is *armed* until it fires; the key of an armed one waits in a calendar at the
time at which that would end. When a session grows its key stays where it is (deferred re-arm): once that time
has come and the session's end has not, it is put down again, for that end. So growing costs no timer, and a
time never comes too late: ends only grow. Of a session that has merged into another the key waits in vain.

Sessions that end at the same time fire in the order in which they got their present window, which is when
`WindowOperator` registers its timer; `number` keeps that.

Within the allowed lateness a session that has fired stays, and grows and merges like the others; its key
waits in another calendar for the time of its clean-up.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from operator import attrgetter
from typing import Any

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.errors import InternalError
from asyncstream.operators.base import pairs
from asyncstream.state import MISSING, SLICE, Cell, Table, detached
from asyncstream.windowing.assigners import SessionWindows
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.step import PlainWindowOperator, check_timestamp
from asyncstream.windowing.upgrade import RULES, Contents, as_sessions

__all__ = ("SessionWindowOperator",)


class _Session:
    """
    One session of a key.

    Attributes:
        armed: it has not fired.
        due: the time at which its key waits in a calendar.
    """

    __slots__ = ("armed", "due", "end", "held", "number", "start")

    def __init__(self, start: int, end: int, held: Any, number: int, armed: bool = False) -> None:
        self.start = start
        self.end = end
        self.held = held
        self.number = number
        self.armed = armed
        self.due = end

    def __deepcopy__(self, memo: Any) -> _Session:
        copied = _Session(self.start, self.end, detached(self.held), self.number, self.armed)
        copied.due = self.due
        return copied


_START = attrgetter("start")


class _Calendar:
    """Keys by the times at which something is to be done about them."""

    __slots__ = ("_keys", "times")

    def __init__(self) -> None:
        self.times: list[int] = []
        self._keys: dict[int, list[Any]] = {}

    def add(self, time_ms: int, key: Any, session: _Session) -> None:
        session.due = time_ms
        keys = self._keys.get(time_ms)
        if keys is None:
            self._keys[time_ms] = [key]
            heappush(self.times, time_ms)
        else:
            keys.append(key)

    def pop(self) -> tuple[int, list[Any]]:
        """The earliest time, and the keys."""
        time_ms = heappop(self.times)
        return time_ms, self._keys.pop(time_ms)

    def clear(self) -> None:
        self.times.clear()
        self._keys.clear()


class SessionWindowOperator(PlainWindowOperator):
    """
    Sessions that end when their key has been silent for a fixed gap.

    Snapshot holds: the open sessions of each key.
    """

    keeps = "sessions"

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        if plan.kept != self.keeps or plan.aggregate is None or not isinstance(plan.assigner, SessionWindows):
            raise InternalError(f"{type(self).__name__} cannot do {plan!r}")
        self._aggregate = plan.aggregate
        self._gap_ms = plan.assigner.gap_ms
        self._sessions = self.tables.declare(Table("sessions", save=self._saved, load=self._loaded))
        self._numbers = count()
        self.tables.declare_cell("number", Cell(self._next_number, self._count_from, RULES["number"]))
        self._to_fire = _Calendar()
        self._to_clean = _Calendar()

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        key_by, add, sessions_of = self._key_by, self._aggregate.add, self._sessions.rows().get
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
        if sessions is None and (found := self._sessions.take(None, key)) is not MISSING:
            sessions = found
        touched = sessions and [one for one in sessions if one.start <= end and start <= one.end]
        if touched:
            session = self._merge(sessions, touched, start, end)  # type: ignore[arg-type]
        elif end - 1 + self._lateness_ms <= self._watermark:
            self._leave_out(value, timestamp, start)
            return
        else:
            session = _Session(start, end, self._aggregate.create(), next(self._numbers))
            if sessions:
                insort(sessions, session, key=_START)
            else:
                self._sessions.put(None, key, [session])
        session.held = self._aggregate.add(session.held, value)
        if session.end - 1 > self._watermark:
            if not session.armed:
                session.armed = True
                self._to_fire.add(session.end, key, session)
            return
        if not touched:
            self._clean_later(key, session)
        self._emit(session.start, session.end, [(key, session.held)], self._aggregate.result)

    def _merge(self, sessions: list[_Session], touched: list[_Session], start: int, end: int) -> _Session:
        """One session for those that `start` to `end` touches, and for that."""
        session = touched[0]
        covered = (min(start, session.start), max(end, touched[-1].end))
        if covered != (session.start, session.end) or not session.armed:
            session.start, session.end = covered
            session.number = next(self._numbers)
        for other in touched[1:]:
            session.held = self._aggregate.merge(session.held, other.held)
            sessions.remove(other)
        return session

    def _clean_later(self, key: Any, session: _Session) -> None:
        """Have a session that has fired let go at the end of its allowed lateness."""
        self._to_clean.add(session.end - 1 + self._lateness_ms, key, session)

    def _fire(self, watermark: float) -> None:
        table, result_of = self._sessions, self._aggregate.result
        while self._to_fire.times and self._to_fire.times[0] - 1 <= watermark:
            end, keys = self._to_fire.pop()
            due: dict[Any, int] = {}
            for key in keys:
                sessions = table.peek(None, key)
                for session in sessions if sessions is not MISSING else ():
                    if session.due != end or not session.armed:
                        continue
                    if session.end == end:
                        due[key] = session.number
                    else:
                        self._to_fire.add(session.end, key, session)
            for key in due if len(due) == 1 else sorted(due, key=due.__getitem__):
                sessions = table.get(None, key)
                session = next(session for session in sessions if session.end == end)
                self._emit(session.start, end, [(key, session.held)], result_of)
                if self._lateness_ms:
                    session.armed = False
                    self._clean_later(key, session)
                else:
                    self._close(key, sessions, session)
        while self._to_clean.times and self._to_clean.times[0] <= watermark:
            when, keys = self._to_clean.pop()
            for key in keys:
                sessions = table.get(None, key)
                for session in list(sessions) if sessions is not MISSING else ():
                    if session.due != when or session.armed:
                        continue
                    if session.end - 1 + self._lateness_ms <= watermark:
                        self._close(key, sessions, session)
                    else:
                        self._clean_later(key, session)  # it has grown since it fired

    def _close(self, key: Any, sessions: list[_Session], session: _Session) -> None:
        if len(sessions) > 1:
            sessions.remove(session)
        else:
            self._sessions.remove(None, key)

    def due_ms(self) -> int | None:
        due = [end - 1 for end in self._to_fire.times[:1]]
        return min([*due, *self._to_clean.times[:1]], default=None)

    # ------------------------------------------------------------------ state

    def restored(self) -> None:
        for _ in self.rebuilding():
            pass

    def rebuilding(self) -> Iterator[None]:
        self._to_fire.clear()
        self._to_clean.clear()
        for number, (_, key, sessions) in enumerate(self._sessions.items()):
            if number % SLICE == 0:
                yield
            for session in sessions:
                if session.armed:
                    self._to_fire.add(session.end, key, session)
                else:
                    self._clean_later(key, session)

    def _saved(self, sessions: list[_Session]) -> list[list[Any]]:
        save = self._aggregate.save
        return [[one.start, one.end, save(one.held), one.number, one.armed] for one in sessions]

    def _loaded(self, kept: list[list[Any]]) -> list[_Session]:
        load = self._aggregate.load
        return [_Session(start, end, load(held), number, armed) for start, end, held, number, armed in kept]

    def _next_number(self) -> int:
        number = next(self._numbers)
        self._count_from(number)
        return number

    def _count_from(self, number: int) -> None:
        self._numbers = count(number)

    def _snapshot_of(self, found: Contents) -> Any:
        return as_sessions(found)

    def _count_open(self) -> int:
        return sum(len(sessions) for _, _, sessions in self._sessions.items())
