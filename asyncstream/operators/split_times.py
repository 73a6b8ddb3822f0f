"""
How far event time has come in each split of a source, and in all of them together.

Theory. A split is in order, or nearly so; splits beside each other are not, for one is read faster than the
other. A single generator of watermarks would go with the fastest, and what the others bring would be late. So
each split has a generator of its own, and the stream's watermark is the smallest of theirs. After Flink's
WatermarkOutputMultiplexer:

* a split that has brought nothing yet is waited for, and so is one that comes back from idleness: the
  watermark of the stream, which never goes back, stands still until that one has caught up;
* an idle split is waited for no more, nor is one that is gone. When all are idle, so is the stream; and when
  there have been none for as long, before the first file of a folder say, or behind the last.

*Alignment*: a split that is more than `max_drift_ms` ahead of the slowest is to wait, lest what is behind the
step fills up with its elements. While it waits, its silence says nothing about it.

There may be a thousand splits, and a watermark with each element. So those that are waited for stand in a
heap, by a watermark that each has had: only the first of them is looked at, and put where it belongs if it
has moved since. And as long as the limit of alignment does not go back, only splits that have moved can have
come to be ahead of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from heapq import heappop, heappush, heapreplace
from typing import Any, Final

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.eventtime import WatermarkGenerator, WatermarkStrategy
from asyncstream.eventtime.strategy import kept_ms

__all__ = ("SplitTimes",)

_NONE: Final = ""
"""What stands where splits would while there are none: it brings nothing, and turns idle as they do."""


class _Split:
    """
    Event time in one split.

    Attributes:
        number: which of the splits it is; set with `is_listed`, whether it is in the heap.
    """

    __slots__ = ("generator", "heard_ms", "idle", "is_listed", "number", "watermark")

    number: int
    is_listed: bool

    def __init__(self, generator: WatermarkGenerator, now_ms: int) -> None:
        self.generator = generator
        self.watermark = MIN_TIMESTAMP
        self.idle = False
        self.heard_ms = now_ms


class SplitTimes:
    """
    The event times of the splits of one source; the arguments are those of `EventTime`, for each split.

    Attributes:
        ahead: the splits that are to wait for the others.
    """

    def __init__(
        self, strategy: WatermarkStrategy, idle_after_ms: int | None, max_drift_ms: int | None
    ) -> None:
        self._strategy = strategy
        self._idle_after_ms = idle_after_ms
        self._max_drift_ms = max_drift_ms
        self._splits: dict[str, _Split] = {}
        self._kept: dict[str, list[Any]] = {}  # of an earlier run, of splits that are not there yet
        self._current: _Split | None = None
        self._awaited: list[tuple[int, int, _Split]] = []  # a heap; has some that are idle by now
        self._moved: set[str] = set()  # since it was last seen which are to wait
        self._limit_ms = math.inf  # as it was then; of other splits, there is none
        self.ahead: frozenset[str] = frozenset()

    def assign(self, names: Iterable[str], now_ms: int) -> None:
        """These are the splits from now on; those that are new begin at the beginning."""
        before, self._splits = self._splits, {}
        for name in [*names] or [_NONE]:
            self._splits[name] = before.get(name) or self._begun(name, now_ms)
        self._limit_ms = math.inf
        self._moved.clear()
        self._awaited.clear()
        for number, split in enumerate(self._splits.values()):
            split.number, split.is_listed = number, False
            self._await(split)

    def _await(self, split: _Split) -> None:
        if not split.is_listed:
            split.is_listed = True
            heappush(self._awaited, (split.watermark, split.number, split))

    def _begun(self, name: str, now_ms: int) -> _Split:
        split = _Split(self._strategy.generator(), now_ms)
        if name in self._kept:
            generator, split.watermark, was_idle = self._kept.pop(name)
            split.generator.restore(generator)
            split.idle = was_idle and self._idle_after_ms is not None
        return split

    def enter(self, name: str, now_ms: int) -> WatermarkGenerator:
        """The elements that come next are of this split; gives its generator."""
        self._current = split = self._splits[name]
        self._moved.add(name)
        if split.idle:
            split.idle = False
            self._await(split)
        split.heard_ms = now_ms
        return split.generator

    def advance(self, watermark: int) -> int:
        """The split that was entered has come to this; gives what all together have come to."""
        split = self._current
        if split is not None and watermark > split.watermark:
            split.watermark = watermark
        return self.watermark()

    def watermark(self) -> int:
        """The smallest of those that are waited for; before all time if all are idle."""
        awaited = self._awaited
        while awaited:
            had_ms, number, split = awaited[0]
            if split.idle:
                heappop(awaited)
                split.is_listed = False
            elif split.watermark > had_ms:
                heapreplace(awaited, (split.watermark, number, split))
            else:
                return had_ms
        return MIN_TIMESTAMP

    @property
    def is_idle(self) -> bool:
        """Whether all splits are idle."""
        self.watermark()
        return not self._awaited

    def align(self, now_ms: int) -> bool:
        """See which splits are to wait; whether that has changed. One that has waited was not silent."""
        if self._max_drift_ms is None:
            return False
        splits, limit_ms = self._splits, self.watermark() + self._max_drift_ms
        names = splits.keys() if limit_ms < self._limit_ms else splits.keys() & (self.ahead | self._moved)
        ahead = {name for name in names if not splits[name].idle and splits[name].watermark > limit_ms}
        self._limit_ms = limit_ms
        self._moved.clear()
        if ahead == self.ahead:
            return False
        for name in self.ahead - ahead:
            if name in self._splits:
                self._splits[name].heard_ms = now_ms
        self.ahead = frozenset(ahead)
        return True

    def look(self, now_ms: int, excused: bool) -> int | None:
        """
        See which splits are idle, unless they are `excused`: the source may not be read, so that silence says
        nothing. Gives when to look next; None: not before a split that is idle has brought something.
        """
        if self._idle_after_ms is None:
            return None
        due_ms = None
        for name, split in self._splits.items():
            if split.idle:
                continue
            if excused or name in self.ahead:
                split.heard_ms = now_ms
            until_ms = split.heard_ms + self._idle_after_ms
            if until_ms <= now_ms:
                split.idle = True
            elif due_ms is None or until_ms < due_ms:
                due_ms = until_ms
        return due_ms

    def snapshot(self) -> dict[str, Any]:
        """By name: what the generator has, the watermark, and whether it is idle."""
        now = {
            name: [split.generator.snapshot(), split.watermark, split.idle]
            for name, split in self._splits.items()
        }
        return {**self._kept, **now}

    def restore(self, state: dict[str, Any]) -> None:
        """Take up what `snapshot` gave, for splits that are assigned from now on."""
        self._kept = {
            name: [generator, kept_ms(watermark), idle]
            for name, (generator, watermark, idle) in state.items()
        }
