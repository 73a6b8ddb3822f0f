"""
The timers of one domain of time, over a table.

A timer is (timestamp, key, namespace). Registering it again changes nothing; it fires once and is gone.
Timers fire in the order of their timestamps, those of one timestamp in the order of their registration, so
that a replay meets them in the same order.

Theory. Most timers share their timestamp with others. So a queue is a table whose namespaces are timestamps
and whose rows are a *bucket*, the (key, namespace) of each timer in the order of registration; and the
timestamps in order. A timer that shares its timestamp with no other has no bucket: it is a lone row
(`state.key_table`). Timestamps later than all before them stand in a *run*, at whose ends nothing needs to be
compared; the others in a heap. What always holds:

* a timestamp that has a timer is in the run or in the heap, in the heap only if it is not later than the
  last that was put into the run: so one that is later has no timers yet, and nothing needs to be looked up;
* what is there besides is *stale*: its timers are gone, since taking a number out of the middle is dear.
  Stale ones are counted and swept out once they are the majority, so that a timer moved ahead with every
  element (a session, a time-out) does not leave a trail behind.

Run and heap follow from the table, so they are not kept. Before a bucket fires, all of it is made young.

Where the old rows of the table are elsewhere, there may be more timestamps than memory. Then run and heap
have those only that are in memory, and the table is asked for the earliest of the others: those that are due
are made young, some at a time, before anything later fires. When rows have moved there both are made anew.

A callback may register and delete timers, also of the very bucket that is firing, and also earlier ones
that are due already: those fire in the same pass. Between passes a timer that is due waits for the next.

Rejected: a heap of all timers with lazy deletion, which is slower where timestamps are shared and keeps what
was deleted; a timing wheel, which fires too late what callbacks register; sorted lists, slower than both.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple, TypeAlias

from asyncstream.errors import safe_repr
from asyncstream.state.generations import Delta
from asyncstream.state.key_table import KeyTable, whole_key
from asyncstream.state.keys import SOUND, check_key
from asyncstream.state.rows import MISSING, SLICE, plain_namespace, run_through, same
from asyncstream.state.table import Table

__all__ = ("EndlessTimers", "OnTimer", "Timer", "TimerQueue", "timer_table")


class Timer(NamedTuple):
    """
    A timer as snapshots and error messages show it.

    Attributes:
        timestamp: when it fires, milliseconds since the epoch.
        key: whose timer it is.
        namespace: tells apart timers of one key, such as those of its windows.
    """

    timestamp: int
    key: Any
    namespace: Any

    def told(self) -> str:
        """What it was that a function failed on when it fired, for a message: the timer, or the window."""
        of_key = f"of key {safe_repr(self.key)}"
        if self.namespace is None:
            return f"on the timer {of_key} at {self.timestamp}"
        return f"on {safe_repr(self.namespace)} {of_key}, at {self.timestamp}"


OnTimer: TypeAlias = Callable[[int, Any, Any], object]
"""Called with the timestamp, key and namespace of a timer that fires."""

Blame: TypeAlias = Callable[[Timer, BaseException], BaseException]
"""Gives the error to raise over a timer, of what has happened."""


def _blame_nobody(timer: Timer, error: BaseException) -> BaseException:
    return error


TIMERS: Final = 250
"""How many fire in one slice: a fraction of a millisecond, if what they call is quick."""

_SWEEP = 64
"""Stale timestamps that are not worth sweeping out."""

_RUNAWAY = 1_000_000
"""Timers, beyond four for each that there is, that may fire in a row and not be later than those before."""


class EndlessTimers(RecursionError):
    """Callbacks set timers for ever that are due already."""

    def __init__(self) -> None:
        super().__init__(
            f"{_RUNAWAY} timers have fired in a row that were due when they were set; set later ones"
        )


class _Progress:
    """
    How far a pass over timers has come, looked at after each slice.

    Args:
        table: where the timers are.
        blame: gives the error to raise where they fire for ever.
    """

    def __init__(self, table: KeyTable, blame: Blame) -> None:
        self._table, self._blame = table, blame
        self._reached = -math.inf
        self._repeats, self._most = 0, _RUNAWAY

    def check(self, latest: float, timestamp: int, timer: Any) -> None:
        """Raises if timers fire for ever that are due when set: the last may be long before the `latest`."""
        if latest > self._reached:
            self._reached, self._repeats, self._most = latest, 0, _RUNAWAY
            return
        self._repeats += TIMERS
        if self._repeats > self._most:
            if self._most > _RUNAWAY:
                raise self._blame(Timer(timestamp, *whole_key(timer)), EndlessTimers())
            # each of them may set an earlier one and go on after it
            self._most += 4 * len(self._table) + 1


class TimerQueue:
    """
    The timers of one domain.

    Args:
        table: where they are kept, made by `timer_table`; None: in one of its own.
        coming: told the keys of timers that come into memory since they are due soon.
    """

    def __init__(
        self, table: KeyTable | None = None, coming: Callable[[list[Any]], None] | None = None
    ) -> None:
        self._coming = coming
        self._table = timer_table("timers") if table is None else table
        self._run: deque[int] = deque()
        self._last = -math.inf  # the last that was put into the run, which may have fired since
        self._heap: list[int] = []
        self._stale = 0
        self._advancing = False
        # of buckets that fire, also while earlier timers do: what has not fired, and what was deleted of it
        self._left: dict[int, Iterator[tuple[Any, Any]]] = {}
        self._deleted: dict[int, set[tuple[Any, Any]]] = {}
        self._away = math.inf  # the earliest timestamp with timers that may not be in memory
        self._merges = 0
        self._rebuild()

    def register(self, timestamp: int, key: Hashable, namespace: Hashable = None) -> None:
        """
        Have a timer at `timestamp`, milliseconds since the epoch; nothing changes if it is there. Raises
        `ValueError` if the key would not be found again, see `state.keys`.
        """
        table = self._table
        if type(timestamp) is int and timestamp > self._last and type(key) in SOUND and not table.is_remote:
            self._last = timestamp  # as most are: nothing needs to be looked up
            table.lone[timestamp] = key if namespace is None else (key, namespace)
            self._run.append(timestamp)
            return
        bucket = table.young.get(timestamp)
        if bucket is None:
            if type(timestamp) is not int:
                raise _no_time(timestamp)
            if table.has_older and table.is_remote:
                self._register_beside(timestamp, (key, namespace))
                return
            if type(key) in SOUND:
                timer = key if namespace is None else (key, namespace)
            else:
                check_key(key)
                timer = (key, namespace)
            if timestamp > self._last:
                self._last = timestamp
                table.lone[timestamp] = timer
                self._run.append(timestamp)
                return
            if not table.has_older or timestamp not in table:
                alone = table.lone.get(timestamp, MISSING)
                if alone is MISSING:
                    table.lone[timestamp] = timer
                    heappush(self._heap, timestamp)
                elif timer not in {alone}:
                    table.rows(timestamp)[key, namespace] = None
                return
        elif (key, namespace) in bucket:
            return
        elif not table.has_older:
            if type(key) not in SOUND:
                check_key(key)
            bucket[key, namespace] = None
            return
        if table.peek(timestamp, (key, namespace)) is MISSING:
            table.put(timestamp, (key, namespace), None)

    def register_all(self, timestamp: int, timers: Sequence[tuple[Hashable, Hashable]]) -> None:
        """Have timers at `timestamp`, of keys that have had some before, given by key and namespace."""
        if not timers:
            return
        self.register(timestamp, *timers[0])
        if len(timers) > 1:
            self._table.rows(timestamp).update(dict.fromkeys(timers))

    def _register_beside(self, timestamp: int, timer: tuple[Any, Any]) -> None:
        """Register a timer, of whose timestamp others may be elsewhere."""
        table = self._table
        if self._merges != table.merges and not self._advancing:
            self._rebuild()
        if table.peek(timestamp, timer) is MISSING:
            table.put(timestamp, timer, None)
            self._put_down(timestamp)

    def has(self, timestamp: int, key: Hashable, namespace: Hashable = None) -> bool:
        """Whether there is such a timer."""
        return self._table.peek(timestamp, (key, namespace)) is not MISSING

    def delete(self, timestamp: int, key: Hashable, namespace: Hashable = None) -> None:
        """Have no such timer any more."""
        if type(timestamp) is not int:
            raise _no_time(timestamp)
        table = self._table
        alone = table.lone.get(timestamp, MISSING)
        is_short = namespace is None and type(key) in SOUND and alone == key
        if is_short or (key, namespace) in {alone}:  # as a dict compares, by hash first
            del table.lone[timestamp]
            is_stale = True
        else:
            is_stale = table.remove(timestamp, (key, namespace)) and timestamp not in table
            if timestamp in self._left:
                self._deleted.setdefault(timestamp, set()).add((key, namespace))
        if is_stale:
            self._stale += 1
            if self._stale > _SWEEP and not self._advancing:
                self._sweep()

    def advance(self, until: float, fire: OnTimer, blame: Blame = _blame_nobody) -> None:
        """Run through all of `advancing`."""
        run_through(self.advancing(until, fire, blame))

    def advancing(self, until: float, fire: OnTimer, blame: Blame = _blame_nobody) -> Iterator[None]:
        """
        Fires all timers up to and including `until`, those too that `fire` registers meanwhile, in slices:
        between two of them timers are only looked at.

        Args:
            blame: gives the error to raise where callbacks set a timer for ever, and that timer.

        Raises:
            EndlessTimers: if these are for ever not later than the one that fires.
        """
        heap, run, table = self._heap, self._run, self._table
        if is_remote := table.is_remote:
            self._look_away()
        buckets, pop_lone, parts, deleted = table.young, table.lone.pop, self._left, self._deleted
        progress, left_of_slice, latest = _Progress(table, blame), TIMERS, -math.inf
        self._advancing = True
        try:
            while True:
                if is_remote and self._away <= until and self._first() >= self._away:
                    self._bring(until)
                if run and not (heap and heap[0] < run[0]):
                    timestamp = latest = run.popleft()  # the run rises
                    if timestamp > until:
                        run.appendleft(timestamp)
                        break
                elif heap and heap[0] <= until:
                    timestamp = heappop(heap)
                    if timestamp > latest:
                        latest = timestamp
                else:
                    break
                timer = pop_lone(timestamp, MISSING)
                if timer is not MISSING:  # the usual case by far where they are not shared
                    if type(timer) is tuple:
                        fire(timestamp, timer[0], timer[1])
                    else:
                        fire(timestamp, timer, None)
                    left_of_slice -= 1
                    if not left_of_slice:
                        left_of_slice = TIMERS
                        progress.check(latest, timestamp, timer)
                        yield
                    continue
                if table.has_older and timestamp in table:
                    table.adopt(timestamp)
                bucket = buckets.get(timestamp)
                if bucket is None:
                    self._stale -= self._stale > 0
                    continue
                left = parts.pop(timestamp, None)
                if left is None or len(bucket) < 2:
                    left = iter(tuple(bucket))
                    deleted.pop(timestamp, None)
                if len(bucket) < 2:
                    del buckets[timestamp]
                else:
                    heappush(heap, timestamp)
                    parts[timestamp] = left
                for timer in left:
                    if deleted and timer in deleted.get(timestamp, ()):
                        continue  # by the callback of one before it; it may be set again, behind the others
                    if bucket.pop(timer, MISSING) is MISSING:
                        continue
                    fire(timestamp, timer[0], timer[1])
                    left_of_slice -= 1
                    if not left_of_slice:
                        left_of_slice = TIMERS
                        progress.check(latest, timestamp, timer)
                        yield
                    if self._first() != timestamp:
                        break  # that callback registered an earlier one, which is due as well
                else:
                    parts.pop(timestamp, None)
        finally:
            self._advancing = False
            if parts or deleted:
                parts.clear()
                deleted.clear()
        if self._stale > _SWEEP:
            self._sweep()

    def pop(self, until: float) -> tuple[int, list[tuple[int, Any]]] | None:
        """As `take`, with the timestamp and its key for each timer."""
        found = self.take(until)
        if found is None:
            return None
        timestamp, timers = found
        return timestamp, [(timestamp, key) for key, _ in timers]

    def take(self, until: float) -> tuple[int, list[tuple[Any, Any]]] | None:
        """The earliest timestamp with timers, up to `until`, and key and namespace of each; they are gone."""
        table = self._table
        if table.is_remote:
            self._look_away()
        while True:
            if self._away <= until and self._first() >= self._away:
                self._bring(until)
            if not (self._run or self._heap) or self._first() > until:
                return None
            timestamp = self._pop_first()
            timer = table.lone.pop(timestamp, MISSING)
            if timer is not MISSING:
                return timestamp, [whole_key(timer)]
            if table.has_older:
                table.adopt(timestamp)
            bucket = table.young.pop(timestamp, None)
            if bucket:
                return timestamp, list(bucket)
            self._stale -= self._stale > 0

    def fill(self, timers: Sequence[tuple[int, Any]]) -> None:
        """Have these timers, given by timestamp and key, in no order; `rebuilding` is to follow."""
        self._table.put_old((timestamp, [((key, None), None)]) for timestamp, key in timers)

    def earliest(self) -> int | None:
        """The earliest timestamp with a timer, or None."""
        if self._table.is_remote:
            self._look_away()
        while (first := self._first()) < math.inf and not self._advancing and first not in self._table:
            self._pop_first()
            self._stale -= self._stale > 0
        earliest = min(first, self._away)
        return None if earliest == math.inf else int(earliest)

    def clear(self) -> None:
        """Have no timers."""
        for timestamp in list(self._table.namespaces()):
            self._table.drop(timestamp)
        self._rebuild()

    def rebuilding(self) -> Iterator[None]:
        """
        To be run through when the table holds other timers than before: slices.

        Of timers that go on from a queue like this their order is known.
        """
        table = self._table
        before: TimerQueue | None = table.derived
        if before is not None and before is not self:
            self._run, self._heap, self._stale = before._run, before._heap, before._stale
            self._last = before._last
            table.derived = self
            return
        self._rebuild(())
        for number, timestamp in enumerate(table.here() if table.is_remote else table.namespaces()):
            if number % SLICE == 0:
                yield
            if type(timestamp) is not int:
                raise _no_time(timestamp)
            if not table.is_remote:
                self._put_down(timestamp)

    def follow(self, table: Table, delta: Delta) -> None:
        """
        Have a table apply what others have changed, with the timers of which this goes on.

        Args:
            table: that of another queue, which goes on with this one's order.
        """
        for timestamp in delta.rows:
            if timestamp not in table:
                self._put_down(timestamp)
        left = [timestamp for timestamp in {*delta.dropped, *delta.gone} if timestamp in table]
        table.apply(delta)
        self._stale += sum(timestamp not in table for timestamp in left)

    def _put_down(self, timestamp: int) -> None:
        """Have a timestamp among the others."""
        if timestamp > self._last:
            self._last = timestamp
            self._run.append(timestamp)
        else:
            heappush(self._heap, timestamp)

    def _first(self) -> float:
        """The earliest timestamp, which may be stale."""
        heap, first = self._heap, self._run[0] if self._run else math.inf
        return heap[0] if heap and heap[0] < first else first

    def _pop_first(self) -> int:
        """The same, which is gone then."""
        run, heap = self._run, self._heap
        return heappop(heap) if not run or (heap and heap[0] < run[0]) else run.popleft()

    def _rebuild(self, timestamps: Iterable[int] | None = None) -> None:
        """Look all timers over again that are in memory, or those of these timestamps."""
        table = self._table
        if table.is_remote:
            timestamps = table.here()
        self._heap.clear()
        self._run.clear()
        self._run.extend(sorted(table.namespaces() if timestamps is None else timestamps))
        self._last = self._run[-1] if self._run else -math.inf
        self._stale = 0
        table.derived = self
        if table.is_remote:
            self._merges = table.merges
            self._note_away()

    def _look_away(self) -> None:
        """See which timers are not in memory."""
        if self._merges == self._table.merges:
            self._note_away()
        elif not self._advancing:
            self._rebuild()

    def _note_away(self) -> None:
        first = self._table.first_away()
        self._away = math.inf if first is None else first

    def _bring(self, until: float) -> None:
        """Have some of the earliest timers in memory that are not."""
        brought = self._table.adopt_first(until)
        for timestamp in brought:
            self._put_down(timestamp)
        self._note_away()
        if self._coming is not None:
            young = self._table.young
            self._coming([key for timestamp in brought for key, _ in young[timestamp]])

    def __len__(self) -> int:
        return len(self._table)

    def __iter__(self) -> Iterator[Timer]:
        """All timers in the order in which they would fire."""
        for timestamp in sorted(self._table.namespaces()):
            for key, namespace in self._table.whole(timestamp):
                yield Timer(timestamp, key, namespace)

    def _sweep(self) -> None:
        if self._stale * 2 > len(self._heap) + len(self._run):
            self._rebuild()


def _no_time(timestamp: object) -> TypeError:
    return TypeError(
        f"a timer needs an int (milliseconds since the epoch), got {safe_repr(timestamp)}; "
        "a minute later is ctx.timestamp + 60_000"
    )


def timer_table(name: str, namespace_of: Callable[[Any], Any] = same) -> KeyTable:
    """
    A table for a `TimerQueue`; `namespace_of` makes the namespace of a timer of what the codec gives back.
    """
    plain = namespace_of is same
    return KeyTable(
        name,
        save_key=same if plain else lambda timer: (timer[0], plain_namespace(timer[1])),
        load_key=same if plain else lambda timer: (timer[0], namespace_of(timer[1])),
        compound=True,
    )
