"""
The beginning of a running pipeline: the task that pulls a source.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, cast

from asyncstream.async_wait.tasks import end_tasks, within
from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.conduct import fault_of
from asyncstream.connectors.memory import Items
from asyncstream.connectors.submissions import Submissions
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Mark, Timestamps
from asyncstream.errors import SourceError
from asyncstream.eventtime import warn_of_unit
from asyncstream.metrics import Timings
from asyncstream.operators.base import Operator
from asyncstream.operators.flow import Gate
from asyncstream.operators.functions import unread_of
from asyncstream.operators.timestamps import AssignEventTime
from asyncstream.operators.whereabouts import Failure, TimeReached, Whereabouts
from asyncstream.runtime.aio.journeys import Followed
from asyncstream.runtime.aio.naming import close_in_time, naming
from asyncstream.runtime.aio.numbering import Numbering, position_in
from asyncstream.state import detached

__all__ = ("SourceDriver",)

log = logging.getLogger("asyncstream.job")

ACKNOWLEDGE = 0.1
"""Seconds between two looks at what can be acknowledged, without checkpoints."""

_PARTS: Final = 8
"""
Into about so many parts marks divide what is under way; by one of these, what is acknowledged lags behind
what is done. Each mark is such a part of the whole behind the one before, so they are few however much it is.
"""


class SourceDriver:
    """
    Pulls a source while there is room downstream.

    Args:
        rejected: where what the source could not read as an element goes.
        left_behind: steps that remember elements of splits that move to other jobs.

    Attributes:
        has_left: it is to read no more, though the source is not at its end.
        called: no function, as an operator may have one.
        recent_failures: none; what the source could not read goes to an output.
    """

    called: object = None
    recent_failures: Sequence[Failure] = ()
    _followed: Followed  # from `follow` on

    def __init__(
        self,
        name: str,
        source: Source[Any],
        head: Operator,
        rejected: Operator,
        left_behind: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.source = source
        self.gate = Gate(self._reopened)
        self._head = head
        self._rejected = rejected
        self._open = asyncio.Event()
        self.has_left = False
        self._knows_unit = False
        self._read = 0
        self._not_read = 0
        self._ended = False
        self._share: float | None = None
        self._is_closed = False
        self._reading_since: float | None = None
        self._numbering: Numbering | None = None
        self._finished: Any = None  # where it stood at the last mark that has been through
        self._acknowledged: Any = None
        self._marks = False  # what has been through is to be acknowledged
        self._given_at_mark = 0  # how much it had given at the last mark, ...
        self._given_through = 0  # ... and at the last one that has been through
        self._acknowledging: asyncio.Task[None] | None = None
        self._left_behind = left_behind
        self._split_names: Sequence[str] = []
        self._shared_out: Collection[str] = ()  # the splits that were this job's when it last had some
        self._by_split: list[AssignEventTime] = []

    def _reopened(self) -> None:
        self._open.set()

    def follow(self, followed: Followed) -> None:
        """Before `start`: begin journeys there."""
        self._followed = followed
        if isinstance(self.source, Submissions):
            self.source.begin_journey = partial(followed.submitted, self.name)

    def number(self, pipeline: str) -> None:
        """Before `start`: tell those behind where each element comes from."""
        self._numbering = Numbering(pipeline, self.name)

    async def start(self, patience: float) -> None:
        """Open it; what the program iterates over gets so many seconds to end when it is cancelled."""
        if isinstance(self.source, Items):
            self.source.patience = patience
        with naming(self.name, SourceError):
            await self.source.open()
            self._marks = self.source.acknowledges()

    async def seek(self, saved: Any) -> None:
        """Go on from what `saved` gave."""
        self._knows_unit = True  # the first timestamp was another run's
        with naming(self.name, SourceError):
            await self.source.seek(detached(position_in(saved)))  # it may go on in it
        if self._numbering is not None and self.source.is_replayable() and not self.source.started_over:
            self._numbering.restore(saved)

    def leave(self) -> None:
        """Read no more after what `read` may be giving now; to be cancelled next."""
        self.has_left = True

    def acknowledge_at_once(self) -> None:
        """After `start`: there are no checkpoints that say what is done for good."""
        if self._marks:
            self._acknowledging = asyncio.create_task(
                self._acknowledge_often(), name=f"asyncstream {self.name}"
            )

    @property
    def _given(self) -> int:
        return self._read + self._not_read

    def _mark(self) -> None:
        """Send a mark behind what has been read, if that is a good part of what is under way."""
        unmarked = self._given - self._given_at_mark
        if self._marks and unmarked and unmarked * _PARTS >= self._given - self._given_through:
            self._send_mark()

    def _send_mark(self) -> None:
        given, position = self._given, self.position()  # if that fails, the next batch asks again
        mark, self._given_at_mark = Mark(partial(self._through, position, given)), given
        mark.divide(2)
        self._head.pass_mark(mark)
        self._rejected.pass_mark(mark)

    def _through(self, position: Any, given: int) -> None:
        self._finished, self._given_through = position, given
        if self._given_at_mark < self._given and not self._ended:
            # not at once: a step that passes a mark on is in the middle of its work
            asyncio.get_running_loop().call_soon(self._mark)

    def finished(self) -> Any:
        """
        Where the source stood when it had given nothing but what has been through since; None: not known. It
        may have gone on without giving anything.
        """
        is_through = self._finished is not None and self._given_through == self._given
        return self.position() if is_through else self._finished

    async def _acknowledge_often(self) -> None:
        while True:
            await asyncio.sleep(ACKNOWLEDGE)
            await self._acknowledge_finished()

    async def _acknowledge_finished(self) -> None:
        with suppress(SourceError):  # one that does not know where it stands is asked again
            await self.acknowledge(self.finished())

    async def acknowledge(self, position: Any) -> None:
        """All that was given before is done for good; a failure is logged."""
        if not self._marks or position is None or position == self._acknowledged:
            return
        try:
            with naming(self.name, SourceError):
                await self.source.acknowledge(position)
        except SourceError as error:
            log.warning("what is done could not be acknowledged: %s", error)
        else:
            self._acknowledged = position

    async def stop(self, patience: float) -> None:
        if self._acknowledging is not None:
            await end_tasks({self._acknowledging}, patience)
            with suppress(TimeoutError):
                await within(patience, self._acknowledge_finished())
        with suppress(SourceError):
            self.share()  # for who asks afterwards
        self._is_closed = True
        await close_in_time(patience, self.name, SourceError, self.source)

    def share(self) -> float | None:
        """What the source says of its progress; from when it is closed, what it said last."""
        if not self._is_closed:
            with naming(self.name, SourceError, is_awaiting=False):
                self._share = self.source.progress()
        return self._share

    def position(self) -> Any:
        """Where the source stands; it may go on in the very object that it gives."""
        with naming(self.name, SourceError, is_awaiting=False):
            return detached(self.source.position())

    def saved(self) -> Any:
        """What the next run needs to go on from here; None if the source cannot."""
        position = self.position()
        return position if position is None or self._numbering is None else self._numbering.saved(position)

    def take_no_more(self) -> bool:
        """Whether the source will come to its end by itself, now that it was told to."""
        with naming(self.name, SourceError, is_awaiting=False):
            return self.source.end()

    def suspend(self) -> None:
        """The job was stopped: what the source has and cannot take again, it is to keep."""
        with naming(self.name, SourceError, is_awaiting=False):
            self.source.suspend()

    async def run(self) -> None:
        """Read until the source ends, or is left."""
        now = asyncio.get_running_loop().time
        if type(self.source).splits is not Source.splits:
            self._by_split = list(_event_times(self._head))
            for step in self._by_split:
                step.follow_splits(self._hold)
            self._look_at_splits()
        while True:
            while not self.gate.is_open():
                self._open.clear()
                await self._open.wait()
            self._reading_since = now()
            try:
                with naming(self.name, SourceError):
                    batch = await self.source.read()
            except SourceError as error:
                if not self.has_left:
                    raise
                log.warning("reading was cancelled, and failed over it: %s", error)
                return
            self._reading_since = None
            if batch is None:
                if not self.has_left:  # else it may be how the source answers to being cancelled
                    self.end()
                return
            fault = fault_of(batch, self.source.rejects)
            if fault is not None:
                raise SourceError(f"step {self.name!r}: {fault}")
            if self._by_split or batch.split is not None:
                self._look_at_splits(batch.split)
            if batch.timestamps is not None and not self._knows_unit:
                self._look_at_unit(batch.timestamps)
            if batch.started_over and batch.split is not None and self._numbering is not None:
                self._numbering.start_over(batch.split)
            self._read += len(batch.values)
            if batch.rejected:
                self._not_read += len(batch.rejected)
                self._rejected.process_batch(batch.rejected, None)
            if batch.values:
                self._push(batch)
            self._mark()
            # a source that never waits must let other tasks run
            await asyncio.sleep(0)
            if self.has_left:
                return

    def _look_at_splits(self, entered: str | None = None) -> None:
        """Tell those who follow the splits which there are now, and whose elements come next."""
        with naming(self.name, SourceError, is_awaiting=False):
            names = list(self.source.splits())  # it may add to the very object that it gives
        if entered is not None and entered not in names:
            # it was at its end with this batch, or taken away while the batch was on its way
            names = [*names, entered]
        if names != self._split_names:
            self._split_names = names
            if self._left_behind and names:
                self._tell_of_moves(names)
            for step in self._by_split:
                step.assign_splits(names)
        if entered is not None:
            for step in self._by_split:
                step.enter_split(entered)

    def _tell_of_moves(self, names: Sequence[str]) -> None:
        known, self._shared_out = self._shared_out, names
        gone, come = sorted(set(known).difference(names)), sorted(set(names).difference(known))
        if known and (gone or come):
            log.warning(
                "step %r: splits have moved between jobs: %s went, %s came; what %s remembers of them stays "
                "where it is, so results are those of a part of the elements",
                *(self.name, ", ".join(gone) or "none", ", ".join(come) or "none"),
                " and ".join(map(repr, self._left_behind)),
            )

    def _hold(self, ahead: frozenset[str]) -> None:
        with naming(self.name, SourceError, is_awaiting=False):
            self.source.hold(ahead)

    def _push(self, batch: SourceBatch[Any]) -> None:
        """Pass a batch on; each element that is followed in a batch of its own."""
        values, journeys = batch.values, batch.journeys
        timestamps = batch.timestamps if self._numbering is None else self._numbering.number(batch)
        followed = self._followed
        if not journeys and not isinstance(self.source, Submissions):
            journey = followed.read(self.name)
            journeys = {} if journey is None else {0: journey}
        if not journeys:
            self._head.process_batch(values, timestamps)
            return
        start = 0
        for place, journey in journeys.items():
            if start < place:
                self._head.process_batch(values[start:place], timestamps and timestamps[start:place])
            start = place + 1
            with followed.on(journey):
                self._head.process_batch(values[place:start], timestamps and timestamps[place:start])
        if start < len(values):
            self._head.process_batch(values[start:], timestamps and timestamps[start:])

    def _look_at_unit(self, timestamps: Timestamps) -> None:
        for timestamp in timestamps or ():
            if timestamp is not None:
                self._knows_unit = True
                warn_of_unit(self.name, timestamp)
                return

    def end(self) -> None:
        """Tell the pipeline that this source is at its end, once."""
        if not self._ended:
            self._ended = True
            if self._marks and self._given_at_mark < self._given:
                self._send_mark()  # the last one: nothing passes behind the end
            for operator in (self._head, self._rejected):
                operator.advance_watermark(MAX_TIMESTAMP)
                operator.end_input()

    def whereabouts(self) -> Whereabouts:
        """Where the elements are that the source holds, and since when it has been asked for more."""
        unread = unread_of(self.source)
        if self.gate.is_open():
            return Whereabouts(inbox=unread, doing="read", since=self._reading_since)
        return Whereabouts(downstream=unread, doing="read")

    def time_reached(self) -> TimeReached:
        """Nothing is known of event time behind it, which is given to elements further down."""
        return TimeReached(MIN_TIMESTAMP, idle=False)

    def timings(self) -> dict[str, Timings]:
        """Of nothing: how long a source waits is not how long it takes."""
        return {}

    def metrics(self) -> dict[str, int]:
        counts = {"read": self._read}
        return counts | {"rejected": self._not_read} if self.source.rejects else counts


def _event_times(head: Operator) -> Iterator[AssignEventTime]:
    """
    The steps that give event time to the very elements of a source: nothing but functions of one element is
    between, so that what reaches them while a batch is pushed is of that batch.
    """
    waiting = [head]
    while waiting:
        operator = waiting.pop()
        if operator.follows_splits:
            yield cast(AssignEventTime, operator)
        else:
            waiting.extend(reversed(operator.at_once()))
