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
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, repeat, starmap, zip_longest
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
    def add(self) -> Callable[[Promise], None]:
        """Accept a promise whose outcome will be set."""

    @property
    def add_control(self) -> Callable[[Promise], None]:
        """Accept a promise that holds a control element."""

    @property
    def finish(self) -> Callable[[Promise], None]:
        """Take note that the outcome of a promise has been set."""

    @property
    def add_block(self) -> Callable[[Block], None]:
        """Accept the elements of a block, to be taken in parts."""

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
        # methods of the containers themselves: no Python call per element
        self.add: Callable[[Promise], None] = self._entries.append
        self.add_block: Callable[[Block], None] = self._entries.append
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
        self.add: Callable[[Promise], None] = self._entries.append
        self.add_control: Callable[[Promise], None] = self._entries.append
        self.finish: Callable[[Promise], None] = self._finished.append
        self.ended: Callable[[Call], None] | None = self._calls.append

    def __len__(self) -> int:
        return len(self._entries) - self._gone

    def __iter__(self) -> Iterator[Promise]:
        return (promise for promise in _each(self._entries) if promise.value is not GONE)

    def take(self) -> list[Promise]:
        entries, finished = self._entries, self._finished.copy()
        self._finished.clear()
        if len(finished) == len(entries):  # so there is no control element among them, and no block
            entries.clear()
            return finished
        for promise in finished:
            promise.value = GONE
        self._gone += len(finished)
        ready = [*self._parts(), *finished] if self._calls or self._begun else finished
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
        self._begun[:] = [block for block in begun if block.unbegun()]
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


class SegmentedQueue:
    """
    Emits as promises finish, but only those before the first control element; then that.

    A segment, what is between two control elements, is an `UnorderedQueue`, and the `group` of all it holds.
    """

    def __init__(self) -> None:
        self._tail = UnorderedQueue()
        self._segments = deque([self._tail])
        self._controls: deque[Promise] = deque()  # one behind each segment but the last

    def __len__(self) -> int:
        return sum(map(len, self._segments)) + len(self._controls)

    def __iter__(self) -> Iterator[Promise]:
        for segment, control in zip_longest(self._segments, self._controls):
            yield from segment
            if control is not None:
                yield control

    def add(self, promise: Promise) -> None:
        promise.group = self._tail
        self._tail.add(promise)

    def add_block(self, block: Block) -> None:
        block.group = self._tail
        self._tail.add_block(block)

    def add_control(self, promise: Promise) -> None:
        self._controls.append(promise)
        self._tail = UnorderedQueue()
        self._segments.append(self._tail)

    def finish(self, promise: Promise) -> None:
        promise.group.finish(promise)

    def ended(self, call: Call) -> None:
        call[0].group.ended(call)

    def take(self) -> list[Promise]:
        ready = self._segments[0].take()
        while self._controls and not len(self._segments[0]):
            ready.append(self._controls.popleft())
            self._segments.popleft()
            ready += self._segments[0].take()
        return ready


def _each(promises: Iterable[Promise]) -> Iterator[Promise]:
    """These, and one for each element of a block."""
    for promise in promises:
        if isinstance(promise, Block):
            yield from promise.each()
        else:
            yield promise
