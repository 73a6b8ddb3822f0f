"""
The promise queues: passive, synchronous, and the only place that knows about output order.

    add(promise)       an element was accepted; its call is running or about to
    finish(promise)    its outcome is set
    take()             everything that may be emitted now, in the order in which it is to be

Control elements (watermarks, idle status, end of input) are promises that are completed from the start; no
queue lets one overtake the elements before it. A queue is never asked to wait, and does the same whatever
the time and the caller, so its order is tested in straight lines of code.

`OrderedQueue` is a FIFO whose head must be finished. `SegmentedQueue`, after Flink's
UnorderedStreamElementQueue, cuts its contents at every control element, and no element crosses one in either
direction. `UnorderedQueue` lets elements go ahead of a control element before them: one that comes before
its watermark is early, never late, and a slow call holds back watermarks but no results.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import groupby, repeat, starmap
from operator import itemgetter
from typing import Final, Protocol

from asyncstream.async_wait.blocks import Block, Call, Part
from asyncstream.async_wait.promise import PENDING, Passage, Promise

__all__ = ("OrderedQueue", "PromiseQueue", "SegmentedQueue", "UnorderedQueue")

GONE: Final = object()
"""Stands in for the value of a promise that has left its queue."""


class PromiseQueue(Protocol):
    """Holds promises from acceptance to emission."""

    def __len__(self) -> int:
        """How many promises are held; a block is one."""

    def __iter__(self) -> Iterator[Promise]:
        """All that are held, in input order within each segment, and one for each element of a block."""

    @property
    def ahead(self) -> Sized:
        """Not empty: a result that is there now, of an element not in the queue, must queue up too."""

    @property
    def add(self) -> Callable[[Promise], None]:
        """Accept a promise whose outcome will be set."""

    @property
    def add_control(self) -> Callable[[Promise], None]:
        """Accept a promise that holds a control element."""

    @property
    def finish(self) -> Callable[[Promise], None]:
        """Take note that the outcome of a promise has been set."""

    @property
    def add_block(self) -> Callable[[Block], None] | None:
        """Accept the elements of a block, to be taken in parts; None: each must be added for itself."""

    @property
    def ended(self) -> Callable[[Call], None] | None:
        """
        Take note that a call of an element of a block has ended after it had suspended; None if this need not
        be known.
        """

    def take(self) -> list[Promise]:
        """Remove and return what may be emitted, in order."""


class OrderedQueue:
    """Emits in input order."""

    ended: Callable[[Call], None] | None = None

    def __init__(self) -> None:
        self._entries: deque[Promise] = deque()
        self._finished: list[Promise] = []
        self.ahead: Sized = self._entries
        # methods of the containers themselves: no Python call per element
        self.add: Callable[[Promise], None] = self._entries.append
        self.add_block: Callable[[Block], None] | None = self._entries.append
        self.add_control: Callable[[Promise], None] = self._entries.append
        self.finish: Callable[[Promise], None] = self._finished.append

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Promise]:
        return _each(self._entries)

    def take(self) -> list[Promise]:
        entries = self._entries
        if len(self._finished) == len(entries):  # since the last time, everything: no head to look for
            self._finished.clear()
            ready = list(entries)
            entries.clear()
            return ready
        self._finished.clear()
        ready = []
        while True:
            finished = 0
            for promise in entries:
                if promise.outcome is PENDING:
                    break
                finished += 1
            ready += starmap(entries.popleft, repeat((), finished))
            block = entries[0] if entries else None
            if not isinstance(block, Block):
                return ready
            part = block.take_first()
            if part is not None:
                ready.append(part)
            if block.left:
                return ready
            entries.popleft()


class UnorderedQueue:
    """Emits as promises finish; a control element when everything before it has been emitted."""

    def __init__(self) -> None:
        # in input order; what has left stays, marked GONE, until it is at the front or there is too much
        self._entries: deque[Promise] = deque()
        self._gone = 0
        self._finished: list[Promise] = []
        self._calls: list[Call] = []
        self._begun: list[Block] = []  # blocks of which calls may have begun since the last time
        self.ahead: Sized = self._finished
        self.add: Callable[[Promise], None] = self._entries.append
        self.add_control: Callable[[Promise], None] = self._entries.append
        self.finish: Callable[[Promise], None] = self._finished.append
        self.ended: Callable[[Call], None] | None = self._calls.append

    def __len__(self) -> int:
        return len(self._entries) - self._gone

    def __iter__(self) -> Iterator[Promise]:
        return (promise for promise in _each(self._entries) if promise.value is not GONE)

    def take(self) -> list[Promise]:
        entries, ready = self._entries, self._finished.copy()
        self._finished.clear()
        if len(ready) == len(entries):  # so there is no control element among them
            entries.clear()
            return ready
        for promise in ready:
            promise.value = GONE
        self._gone += len(ready)
        if self._calls or self._begun:
            ready += self._parts()
        while entries:
            first = entries[0]
            if first.value is GONE:
                self._gone -= 1
            elif isinstance(first.outcome, Passage):
                ready.append(first)
            else:
                break
            entries.popleft()
        if self._gone > len(entries) // 2 + 64:  # behind one slow call; now and then, so O(1) an element
            kept = [promise for promise in entries if promise.value is not GONE]
            entries.clear()
            entries.extend(kept)
            self._gone = 0
        return ready

    def add_block(self, block: Block) -> None:
        self._entries.append(block)
        self._begun.append(block)

    def _parts(self) -> Iterator[Promise]:
        """What may leave blocks."""
        calls, begun = self._calls.copy(), self._begun.copy()
        self._calls.clear()
        self._begun[:] = begun[-1:] if begun and begun[-1].unbegun() else ()
        for block, some in groupby(calls, itemgetter(0)):
            yield self._left(block, block.take_from(list(map(itemgetter(1), some)), GONE))
        for block in begun:
            part = block.take_begun(GONE)
            if part is not None:
                yield self._left(block, part)

    def _left(self, block: Block, part: Part) -> Part:
        if not block.left:
            block.value = GONE
            self._gone += 1
        return part


class _Segment:
    """The elements between two control elements, and the one that closes it."""

    __slots__ = ("control", "finished", "members")

    def __init__(self) -> None:
        # a dict for its order: members leave from anywhere, a snapshot lists them as they came
        self.members: dict[Promise, None] = {}
        self.finished: list[Promise] = []
        self.control: Promise | None = None


class SegmentedQueue:
    """Emits as promises finish, but only those of the first segment; then the control element closing it."""

    add_block: Callable[[Block], None] | None = None
    ended: Callable[[Call], None] | None = None

    def __init__(self) -> None:
        self._tail = _Segment()
        self._segments = deque([self._tail])
        self.ahead: list[Promise] = []  # what has finished or waits to pass, while there is any

    def __len__(self) -> int:
        return sum(len(segment.members) for segment in self._segments) + len(self._segments) - 1

    def __iter__(self) -> Iterator[Promise]:
        for segment in self._segments:
            yield from segment.members
            if segment.control is not None:
                yield segment.control

    def add(self, promise: Promise) -> None:
        promise.group = segment = self._tail
        segment.members[promise] = None

    def add_control(self, promise: Promise) -> None:
        self.ahead[:] = (promise,)  # one of them says it; more would pile up
        self._tail.control = promise
        self._tail = _Segment()
        self._segments.append(self._tail)

    def finish(self, promise: Promise) -> None:
        self.ahead[:] = (promise,)
        promise.group.finished.append(promise)

    def take(self) -> list[Promise]:
        ready: list[Promise] = []
        while True:
            head = self._segments[0]
            for promise in head.finished:
                del head.members[promise]
            ready += head.finished
            head.finished.clear()
            if head.control is None or head.members:
                if len(self._segments) == 1:
                    self.ahead.clear()
                return ready
            ready.append(head.control)
            self._segments.popleft()


def _each(promises: Iterable[Promise]) -> Iterator[Promise]:
    """These, and one for each element of a block."""
    for promise in promises:
        if isinstance(promise, Block):
            yield from promise.each()
        else:
            yield promise
