"""
Elements that are taken from the inbox together: one entry of a promise queue for all of them, in columns.

Most elements are alike: a value, a timestamp, a call whose one result replaces them. An object for each would
cost more than all else that is done for it. So a worker that finds elements in the inbox takes as many as
there is room for, as one `Block`; the calls of a block begin in order, whichever worker takes the next; each
puts its outcome in its place; and what is ready leaves as a slice. What a single element of a block is to
others (to a snapshot, to what decides about a failed call) is told by a `Promise` that is made then.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import compress, count, repeat
from operator import is_, is_not, length_hint
from typing import Any, TypeAlias

from asyncstream.async_wait.inbox import Columns
from asyncstream.async_wait.promise import PENDING, Promise, completed
from asyncstream.async_wait.timing import UNTIMED, Stamp
from asyncstream.operators.origins import Origin

__all__ = ("Block", "Call", "Part")


class Part(Promise):
    """
    Elements of a block that leave together: their columns, and whether some have outcomes that are not simply
    one result; if not, no one asks for the elements.
    """

    __slots__ = ("is_special", "origins", "outcomes", "timestamps", "values")

    values: list[Any]
    timestamps: list[int | None]
    origins: list[Origin | None]
    outcomes: list[Any]
    is_special: bool

    def promises(self) -> list[Promise]:
        """One for each of its elements."""
        origins = self.origins or repeat(None)
        return list(map(completed, self.values, self.timestamps, self.outcomes, origins))


class Block(Part):
    """
    Consecutive elements, each with its outcome, PENDING until its call has ended.

    Args:
        values, timestamps: of the elements; at least one.
        origins: of them, where they are tracked; otherwise empty.

    Attributes:
        calls: gives, for each element in order, this block, its place in it, and the element.
        left: how many have not left it.
    """

    __slots__ = (
        "_ends",
        "_first",
        "_has_holes",
        "_head",
        "_pending",
        "_rest",
        "_stamped",
        "_stamps",
        "_taken",
        "calls",
        "left",
    )

    def __init__(self, values: list[Any], timestamps: list[int | None], origins: list[Origin | None]) -> None:
        self.value, self.timestamp, self.outcome = None, None, PENDING  # for a queue: not to be let go whole
        self.values, self.timestamps, self.origins = values, timestamps, origins
        self.outcomes: list[Any] = [PENDING] * len(values)
        self.is_special = False
        self.left = len(values)
        self._rest: Any = iter(values)  # of a list: tells how many are left
        self.calls: Iterator[Call] = zip(repeat(self), count(), self._rest, strict=False)
        self._stamped = 0  # calls of the elements before this place have been looked at by a turn
        self._stamps: list[Stamp] = []
        self._ends: list[int] = []  # behind the last place that has the stamp
        self._first = 0  # what was before this place has left
        self._taken = 0  # before this place, `take_begun` has taken what had ended
        self._has_holes = False  # something behind that place has been taken
        self._head = 0  # nothing before this place is pending
        outcomes = iter(self.outcomes)
        next(outcomes)
        # compared by identity, and each looked at once: an element's own == may do anything
        self._pending: Iterator[int] = compress(count(1), map(is_, outcomes, repeat(PENDING)))

    def unbegun(self) -> int:
        """How many calls have not begun."""
        return length_hint(self._rest)

    def head(self) -> int:
        """The first place whose call has not ended."""
        if self._head < len(self.outcomes) and self.outcomes[self._head] is not PENDING:
            self._head = next(self._pending, len(self.outcomes))
        return self._head

    def is_pending(self, start: int, end: int) -> bool:
        """Whether there is a call among these places that has not ended."""
        head = self.head()
        if head >= end or not self.left:
            return False
        return head >= start or any(map(is_, self.outcomes[start:end], repeat(PENDING)))

    def stamp_begun(self, stamp: Stamp) -> tuple[int, int] | None:
        """
        The calls that have begun since the last time have this stamp. Gives from which place to which these
        are; None if they have all ended, and took no time.
        """
        start, self._stamped = self._stamped, len(self.values) - self.unbegun()
        if not self.is_pending(start, self._stamped):
            return None
        self._stamps.append(stamp)
        self._ends.append(self._stamped)
        return start, self._stamped

    def promise_of(self, place: int) -> Promise:
        """What is known of one element."""
        origin = self.origins[place] if self.origins else None
        promise = completed(self.values[place], self.timestamps[place], self.outcomes[place], origin)
        index = bisect_right(self._ends, place)
        promise.started = self._stamps[index] if index < len(self._stamps) else UNTIMED
        return promise

    def each(self) -> Iterator[Promise]:
        """What is known of each element that has not left in front."""
        return map(self.promise_of, range(self._first, len(self.values)))

    def take_unbegun(self) -> Columns:
        """Remove the elements whose calls have not begun; each has an origin then, or None for one."""
        begun = len(self.values) - self.unbegun()
        unbegun = Columns(self.values[begun:], self.timestamps[begun:], self.origins[begun:])
        if not self.origins:
            unbegun.origins.extend(repeat(None, len(unbegun.values)))
        for column in (self.values, self.timestamps, self.origins, self.outcomes):
            del column[begun:]
        self._head = min(self._head, begun)
        self.left -= len(unbegun.values)
        return unbegun

    def take_first(self) -> Part | None:
        """Remove the elements in front whose calls have ended; None if there are none."""
        start, self._first = self._first, self.head()
        return None if start == self._first else self._take_run(start, self._first, None)

    def take_begun(self, gone: object) -> Part | None:
        """
        Remove the elements whose calls began since this was asked, and have ended; None if there are none.
        What has been taken is `gone` in its place.
        """
        start, self._taken = self._taken, len(self.values) - self.unbegun()
        if start < self._taken <= self.head() and not self._has_holes:
            return self._take_run(start, self._taken, gone)
        has_holes, self._has_holes = self._has_holes, False
        ended = map(is_not, self.outcomes[start : self._taken], repeat(PENDING))
        places = list(compress(range(start, self._taken), ended))
        if has_holes:
            places = [place for place in places if self.outcomes[place] is not gone]
        return self.take_from(places, gone) if places else None

    def take_from(self, places: list[int], gone: object) -> Part:
        """Remove the elements in these places; `gone` takes the place of each."""
        in_order = sorted(places)
        start, end = in_order[0], in_order[-1] + 1
        self._has_holes = self._has_holes or end > self._taken
        if end - start == len(places) and places == in_order:  # as replies come, as a rule
            return self._take_run(start, end, gone)
        values = [self.values[place] for place in places] if self.is_special else []
        origins = [self.origins[place] for place in places] if self.origins else []
        timestamps = [self.timestamps[place] for place in places]
        part = self._part(values, timestamps, origins, [self.outcomes[place] for place in places])
        if self.left:
            for place in places:
                self.values[place] = self.outcomes[place] = gone
        return part

    def _take_run(self, start: int, end: int, gone: object) -> Part:
        values = self.values[start:end] if self.is_special else []
        timestamps, origins = self.timestamps[start:end], self.origins[start:end]
        part = self._part(values, timestamps, origins, self.outcomes[start:end])
        if self.left:  # what has left is not to be kept alive by what has not
            self.values[start:end] = self.outcomes[start:end] = [gone] * (end - start)
        return part

    def _part(
        self, values: list[Any], timestamps: list[Any], origins: list[Any], outcomes: list[Any]
    ) -> Part:
        part = Part()
        part.values, part.timestamps, part.origins, part.outcomes = values, timestamps, origins, outcomes
        part.is_special = self.is_special
        self.left -= len(outcomes)
        if not self.left:  # deadlines may know it for a long time yet
            self.values, self.timestamps, self.origins, self.outcomes = [], [], [], []
            self._rest, self.calls, self._pending = iter(()), iter(()), iter(())  # they know them, too
        return part


Call: TypeAlias = tuple[Block, int, Any]
"""A call of an element of a block: the block, the place in it, the element."""
