"""
Sessions whose gap is fixed, or comes with each element. They fire at their ends, and besides by count, or by
event time before that.

Theory. Each key has its open sessions sorted by start, and so by end, for they never touch each other. The
last one takes nearly every element; others are found by bisection. A session is *armed* until it fires; the
key of an armed one waits in a calendar at a time at which the session would have ended once. Only when that
has come is it put down again, for the end that the session has by then. So growing costs no timer, and a time
never comes too late: ends only grow. The session that a time is about lies in the one that has grown over it,
also if several have merged into that: then the latest of their times speaks for all, and the key is not put
down again for the others.

Sessions that end at the same time fire in the order in which they got their present window, which is when
`WindowOperator` registers its timer; `number` keeps that. Within the allowed lateness a session that has
fired stays, and grows and merges like the others; its key waits in another calendar for its clean-up.

What a trigger would remember of a session stands in the session itself: how many elements have come since it
fired early, or late, and its next *tick*. So nothing is moved from one window to the next when a session
grows. Its key waits for what comes first, the tick or the end. `WindowOperator` sets the timer of a tick anew
whenever the session has another window, and when the tick before it fires. Ticks and ends of the same time
come in the order in which their timers were set, so a tick has a number of its own, and the later of both
counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from operator import attrgetter, itemgetter
from typing import Any, ClassVar, Final

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.operators.base import OperatorContext, pairs
from asyncstream.operators.emitting import BURST
from asyncstream.state import MISSING, SLICE, Cell, Table, detached
from asyncstream.state.rows import NO_ROWS
from asyncstream.state.timer_queue import TimerQueue, timer_table
from asyncstream.windowing.aggregates import joined
from asyncstream.windowing.assigners import Sessions
from asyncstream.windowing.base import PlainWindowOperator, check_timestamp
from asyncstream.windowing.plan import AT_END, RULES, WindowPlan
from asyncstream.windowing.session_calendar import Calendar, Waiting

__all__ = ("Session", "SessionWindowOperator")


@dataclass(slots=True, eq=False)
class Session:
    """
    One session of a key; armed if it has not fired.

    Attributes:
        most: how many `firings` there are.
        waits: the latest time for which its key was put down, as far as that is known; never too late a one.
    """

    most: ClassVar[int] = 0

    start: int
    end: int
    accumulator: Any
    number: int
    armed: bool = False
    waits: int = MIN_TIMESTAMP

    def __deepcopy__(self, memo: Any) -> Session:
        made, (start, end, held, *others) = self.__reduce__()
        return made(start, end, detached(held), *others)

    def __reduce__(self) -> tuple[type[Session], tuple[Any, ...]]:
        kept = (self.start, self.end, self.accumulator, self.number, self.armed, self.waits)
        return type(self), (*kept, *self.firings())

    def firings(self) -> Sequence[Any]:
        """What is kept besides of a `_FiringSession`."""
        return ()


@dataclass(slots=True, eq=False)
class _FiringSession(Session):
    """
    One that fires not only at its end.

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


def _session_at(sessions: Any, time_ms: int) -> Any:
    """The session that has, or had, its end here; None if there is none. `sessions` may be `MISSING`."""
    if sessions is MISSING:
        return None
    place = bisect_left(sessions, time_ms, key=_END)
    found = place < len(sessions) and sessions[place].start <= time_ms
    return sessions[place] if found else None


_START = attrgetter("start")
_END = attrgetter("end")
_TIME_AND_NUMBER = itemgetter(0, 1)

_FEW: Final = 500
"""As many sessions of a key are moved in a list before it costs more than to remember one that goes."""


class SessionWindowOperator(PlainWindowOperator):
    """
    Sessions that end when their key has been silent for a gap.

    Snapshot holds: the open sessions of each key; where they fire besides at their ends, what they have
    counted, and their next ticks.
    """

    keeps = "sessions"

    def __init__(self, key_by: Callable[[Any], Any], plan: WindowPlan) -> None:
        super().__init__(key_by, plan)
        assigner = plan.assigner
        assert isinstance(assigner, Sessions)
        self._early, self._late, self._ticks = self._firings
        self._fires_besides = self._firings != AT_END
        self._made = _FiringSession if self._fires_besides else Session
        self._aggregate = plan.folding
        self._gap_after = assigner.gap_after
        self._gap_ms = assigner.gap_ms  # 0: asked of each element
        self._sessions = self.tables.declare(
            Table(
                "sessions",
                save=partial(_saved, self._aggregate.save),
                load=partial(_loaded, self._made, self._aggregate.load),
            )
        )
        self._numbers = count()
        self.tables.declare_cell("number", Cell(self._next_number, self._count_from, RULES["number"]))
        self._waiting = Waiting(Calendar(), Calendar())
        self._closed: dict[Any, list[Session]] = {}  # by key, in order; in this slice, and still in its list
        self.tables.on_restored(self._rebuilding)

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        if self._sessions.is_remote:
            fetch = partial(self._sessions.fetch, None)
            to_fire, to_clean = (
                TimerQueue(self.tables.declare_derived(timer_table(name)), fetch)
                for name in ("to fire", "to clean")
            )
            self._waiting = Waiting(to_fire, to_clean)
        self._sessions.derived = self._waiting

    def process(self, value: Any, timestamp: int | None) -> None:
        table = self._sessions
        if table.is_remote:
            self.process_batch((value,), (timestamp,))
            return
        try:  # as in the loop over a batch, whose preparation would cost as much again
            key = self._key_by(value)
            sessions = table.rows().get(key)
            if sessions is not None and type(timestamp) is int:
                session = sessions[-1]
                if session.start <= timestamp <= session.end and session.armed:
                    end = timestamp + (self._gap_ms or self._gap_after(value))
                    if end > session.end and session.end < MAX_TIMESTAMP:
                        session.end = end if end < MAX_TIMESTAMP else MAX_TIMESTAMP
                        session.number = next(self._numbers)
                    session.accumulator = self._aggregate.add(session.accumulator, value)
                    if self._early:
                        self._count_early(key, session)
                        self._emitter.flush()
                    return
            self._place(key, sessions, value, timestamp)
        except BaseException as error:
            self._fail(value, timestamp, error)
        self._emitter.flush()

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        key_by = self._key_by
        if self._sessions.is_remote:
            keys, key_by = self._keys_ahead(values)
            self._sessions.fetch(None, keys)
        add, gap, gap_after, numbers = self._aggregate.add, self._gap_ms, self._gap_after, self._numbers
        sessions_of, early = self._sessions.rows().get, self._early
        value: Any = None
        timestamp: Any = None
        try:
            for value, timestamp in pairs(values, timestamps):
                key = key_by(value)
                sessions = sessions_of(key)
                if sessions is not None and type(timestamp) is int:
                    session = sessions[-1]
                    if session.start <= timestamp <= session.end and session.armed:
                        end = timestamp + (gap or gap_after(value))
                        if end > session.end and session.end < MAX_TIMESTAMP:
                            session.end = end if end < MAX_TIMESTAMP else MAX_TIMESTAMP
                            session.number = next(numbers)
                        session.accumulator = add(session.accumulator, value)
                        if early:
                            self._count_early(key, session)
                        continue
                self._place(key, sessions, value, timestamp)
        except BaseException as error:
            self._fail(value, timestamp, error)
        self._emitter.flush()

    def _place(self, key: Any, sessions: list[Session] | None, value: Any, timestamp: int | None) -> None:
        """Put an element where it belongs, in all cases but the common one."""
        if timestamp is not None:
            check_timestamp(timestamp)
        start = self._untimed() if timestamp is None else timestamp
        end = min(start + self._gap_after(value), MAX_TIMESTAMP)
        if sessions is None and not self._sessions.is_remote:  # or it would have been fetched
            found = self._sessions.take(None, key)
            sessions = None if found is MISSING else found
        sessions = sessions or []
        first = bisect_left(sessions, start, key=_END)
        touched = slice(first, bisect_right(sessions, end, first, key=_START))
        is_alone = touched.start == touched.stop
        if not is_alone:
            session = self._merge(key, sessions, touched, start, end)
        elif end - 1 + self._lateness_ms <= self._watermark:
            self._leave_out(value, timestamp, start)
            return
        else:
            session = self._made(start, end, self._aggregate.create(), next(self._numbers))
            self._waiting.open += 1
            sessions.insert(first, session)
            if len(sessions) == 1:
                self._sessions.put(None, key, sessions)
        session.accumulator = self._aggregate.add(session.accumulator, value)
        if not session.armed and session.end - 1 > self._watermark:
            self._arm(key, session, start)
        if session.armed:  # also one that is due since a restore: the next watermark fires it
            if self._early:
                self._count_early(key, session)
            return
        if is_alone:
            self._clean_later(key, session)
        self._count_late(key, session)

    def _merge(self, key: Any, sessions: list[Session], touched: slice, start: int, end: int) -> Session:
        """One session for those that `start` to `end` touches, and for that."""
        session, *others = sessions[touched]
        covered = (min(start, session.start), max(end, sessions[touched.stop - 1].end))
        if covered != (session.start, session.end) or not session.armed:
            session.start, session.end = covered
            session.number = next(self._numbers)
        if others:
            session.accumulator = joined(self._aggregate, [one.accumulator for one in sessions[touched]])
        for other in others:
            if self._fires_besides:
                self._join(session, other)
            if other.armed and not session.armed:
                self._arm(key, session, start)
        sessions[touched] = [session]
        self._waiting.open -= len(others)
        return session

    def _join(self, session: Any, other: Any) -> None:
        """Have a session remember what another one does, which is none any more."""
        session.early += other.early
        session.late += other.late
        if session.tick is None:  # else it is the earlier one, and the session waits for that
            session.tick = other.tick

    def _arm(self, key: Any, session: Any, time_ms: int) -> None:
        """Have a session fire, into which an element of this time has come."""
        if self._ticks and session.tick is None:
            self._set_tick(session, self._ticks.first(time_ms, session.end - 1))
        session.armed = True
        session.waits = self._due(session)[0] if self._ticks else session.end  # the same, without a call
        self._waiting.to_fire.register(session.waits, key)

    def _set_tick(self, session: Any, tick: int) -> None:
        session.tick, session.ticked = tick, next(self._numbers)

    def _due(self, session: Any) -> tuple[int, int]:
        """When a session that is armed is to fire, and its number there."""
        if not self._ticks or session.tick is None or session.tick + 1 >= session.end:
            return session.end, session.number
        return session.tick + 1, max(session.number, session.ticked)

    def _count_early(self, key: Any, session: Any) -> None:
        """An element has come before the end of its session."""
        session.early += 1
        if session.early >= self._early:
            session.early = 0
            self._emit_one((session.start, session.end), key, session.accumulator)

    def _count_late(self, key: Any, session: Any) -> None:
        """An element has come behind it."""
        if self._fires_besides:
            session.late += 1
            if session.late < self._late:
                return
            session.late = 0
        self._emit_one((session.start, session.end), key, session.accumulator)

    def _clean_later(self, key: Any, session: Any) -> None:
        """Have a session that has fired let go at the end of its allowed lateness."""
        if self._fires_besides:
            session.early, session.tick = 0, None
        session.waits = session.end - 1 + self._lateness_ms
        self._waiting.to_clean.register(session.waits, key)

    def _firing(self, watermark: float) -> Iterator[None]:
        yield from self._firing_armed(watermark)
        table, to_clean, left_of_slice = self._sessions, self._waiting.to_clean, BURST
        while (come := to_clean.pop(watermark)) is not None:
            for time_ms, key in come[1]:
                sessions = table.get(None, key)
                session = _session_at(sessions, time_ms + 1 - self._lateness_ms)
                if session is None or session.armed or time_ms < session.waits:
                    continue
                if session.end - 1 + self._lateness_ms <= watermark:
                    self._close(key, sessions, session)
                else:
                    self._clean_later(key, session)  # it has grown since it fired
            left_of_slice -= len(come[1])
            if left_of_slice <= 0:
                left_of_slice = BURST
                self._let_go()
                yield
        self._let_go()

    def _firing_armed(self, watermark: float) -> Iterator[None]:
        """Emits what is due by `watermark`, in slices."""
        table, to_fire, ticks = self._sessions, self._waiting.to_fire, self._ticks
        left_of_slice = BURST
        young = table.young.get(None, NO_ROWS)
        while (come := to_fire.pop(watermark + 1)) is not None:
            until, keys = come
            due: list[tuple[int, int, Any]] = []
            for time_ms, key in keys:
                sessions = young.get(key, ())
                alone = len(sessions) == 1
                session = sessions[0] if alone else _session_at(table.peek(None, key), time_ms)
                if session is None or not session.armed or time_ms < session.waits:
                    continue
                at_ms, number = self._due(session) if ticks else (session.end, session.number)
                if at_ms <= until:
                    due.append((at_ms, number, key))
                else:
                    session.waits = at_ms
                    to_fire.register(at_ms, key)
            due.sort(key=_TIME_AND_NUMBER)
            for at_ms, _, key in due:
                sessions = table.get(None, key)
                session = _session_at(sessions, at_ms)
                if session is None or not session.armed or at_ms < session.waits:
                    continue  # its key stood there twice, since sessions have merged
                self._emit_one((session.start, session.end), key, session.accumulator)
                left_of_slice -= 1
                if not left_of_slice:
                    left_of_slice = BURST
                    self._let_go()
                    yield
                if ticks and at_ms < session.end:
                    self._set_tick(session, ticks.after(session.tick, session.end - 1))
                    session.waits, number = self._due(session)
                    if session.waits <= until:
                        insort(due, (session.waits, number, key), key=_TIME_AND_NUMBER)  # behind this one
                    else:
                        to_fire.register(session.waits, key)
                elif self._lateness_ms:
                    session.armed = False
                    self._clean_later(key, session)
                else:
                    self._close(key, sessions, session)
        self._let_go()

    def _close(self, key: Any, sessions: list[Session], session: Session) -> None:
        self._waiting.open -= 1
        if len(sessions) > _FEW:
            session.waits = MAX_TIMESTAMP + 1
            self._closed.setdefault(key, []).append(session)
        elif len(sessions) > 1:
            sessions.remove(session)
        else:
            self._sessions.remove(None, key)
        if self._clears:
            self._clear((session.start, session.end), key)

    def _let_go(self) -> None:
        """Have none any more in the lists of their keys that have closed in this slice."""
        while self._closed:
            key, closed = self._closed.popitem()
            sessions = self._sessions.get(None, key)
            if len(closed) == len(sessions):
                self._sessions.remove(None, key)
                continue
            first = bisect_left(sessions, closed[0].end, key=_END)
            if sessions[first : first + len(closed)] == closed:
                del sessions[first : first + len(closed)]  # together: one by one would move all behind each
                continue
            for session in closed:
                sessions.remove(session)

    def due_ms(self) -> int | None:
        end, when = self._waiting.to_fire.earliest(), self._waiting.to_clean.earliest()
        due = [] if end is None else [end - 1]
        return min(due if when is None else [*due, when], default=None)

    # ------------------------------------------------------------------ state

    def _rebuilding(self) -> Iterator[None]:
        before: Waiting | None = self._sessions.derived
        if before is not None and before is not self._waiting:  # they go on from an operator like this
            self._waiting = before
            return
        self._sessions.derived = waiting = self._waiting
        waiting.to_fire.clear()
        waiting.to_clean.clear()
        waiting.open = 0
        kept = self._sessions.unordered()
        while some := list(islice(kept, SLICE)):
            found = [(key, session) for _, key, sessions in some for session in sessions]
            waiting.open += len(found)
            late_ms = self._lateness_ms - 1
            waiting.to_fire.fill([(self._due(one)[0], key) for key, one in found if one.armed])
            waiting.to_clean.fill([(one.end + late_ms, key) for key, one in found if not one.armed])
            yield
        yield from waiting.to_fire.rebuilding()
        yield from waiting.to_clean.rebuilding()

    def _next_number(self) -> int:
        number = next(self._numbers)
        self._count_from(number)
        return number

    def _count_from(self, number: int) -> None:
        self._numbers = count(number)

    def _count_open(self) -> int:
        return self._waiting.open


def _saved(save: Callable[[Any], Any], sessions: list[Session]) -> list[list[Any]]:
    return [
        [one.start, one.end, save(one.accumulator), one.number, one.armed, *one.firings()] for one in sessions
    ]


def _loaded(made: type[Session], load: Callable[[Any], Any], kept: list[list[Any]]) -> list[Session]:
    return [
        made(start, end, load(accumulator), number, armed, MIN_TIMESTAMP, *firings[: made.most])
        for start, end, accumulator, number, armed, *firings in kept
    ]
