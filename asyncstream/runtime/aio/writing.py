"""
The end of a running pipeline: the operator that feeds a sink.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any, TypeAlias

from asyncstream.aside import Tasks, heed, is_at_work
from asyncstream.async_wait.tasks import end_tasks
from asyncstream.connectors.base import Sink, TransactionalSink
from asyncstream.connectors.conduct import way_to_write
from asyncstream.connectors.outlets import Results
from asyncstream.connectors.writer import Writer
from asyncstream.elements import Control, Mark, Timestamps
from asyncstream.errors import SinkBroken, SinkError, safe_repr
from asyncstream.metrics import Timings
from asyncstream.operators.failures import Failures, OnError
from asyncstream.operators.flow import Intake
from asyncstream.operators.journey import Journey, Span
from asyncstream.operators.whereabouts import SEVERAL, Whereabouts
from asyncstream.runtime.aio.naming import close_in_time, naming
from asyncstream.state import Frozen, detached, freeze

__all__ = ("Batch", "SinkOperator")

SINK_LIMIT = 1024
"""Elements that may wait for a sink before the pipeline is held."""


Batch: TypeAlias = tuple[list[Any], list[int | None]]
"""Values, and a timestamp or None for each."""


class _Cut:
    """
    The end of an epoch, among what waits for a sink: what came before, and the position that `prepare` gives.
    """

    def __init__(self, epoch: int, batch: Batch) -> None:
        self.epoch = epoch
        self.batch = batch
        self.position: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.position.add_done_callback(heed)

    def succeed(self, position: Any) -> None:
        if not self.position.done():
            self.position.set_result(position)

    def fail(self, error: Exception) -> None:
        if not self.position.done():
            self.position.set_exception(error)


class SinkOperator(Intake):
    """
    Collects what arrives, and writes it to a sink in batches from a task of its own.

    Emits when: the sink fails on an element and is told to route it, and on the outputs for these what
        control elements came behind elements that are written or refused.
    Backpressures when: `limit` elements wait while a write is under way.
    Completes when: the input has ended and everything is written and flushed.
    Snapshot holds: the elements not yet written, those of a write under way included.

    A `TransactionalSink` in a job with checkpoints is fed in epochs (`join_epochs`). A checkpoint `cut`s what
    waits in two: what came before is written and prepared, and is no part of the checkpoint; what comes
    after belongs to the next one. The sink is busy with one thing at a time, which `_turn` sees to.
    """

    def __init__(self, sink: Sink[Any], on_error: OnError = "fail") -> None:
        super().__init__(SINK_LIMIT, self._reopened)
        self.sink = sink
        self._takes_batches = way_to_write(sink) == "write_batch"
        self._may_emit = asyncio.Event()
        self._failures = Failures(self, on_error)
        self._controls: deque[tuple[int, Control]] = deque()  # each behind so many elements
        self.has_epochs = False
        self._position: Any = None
        self._confirm: Callable[[], Awaitable[None]] | None = None
        self._cuts: deque[_Cut] = deque()
        self._preparing = Tasks()  # what is prepared when all is written
        self._turn = asyncio.Lock()
        self._flushed = False
        self._done = False
        self._abandoned = False
        self._part = 0  # how many elements the write under way is given; 0: none has begun
        self._values: list[Any] = []
        self._timestamps: list[int | None] = []
        self._writing: Batch = ([], [])
        self._ended = False
        self._input_ended = False
        self._changed = asyncio.Event()
        self._written = 0
        self._doing: tuple[str, float] | None = None  # what the sink is busy with, and since when
        self._journeys: deque[tuple[int, Journey, Span | None]] = deque()  # each behind so many elements
        self._end_to_end = Timings()

    async def start(self) -> None:
        if self._confirm is not None:
            await self._confirm()
        with naming(self.context.name, SinkError):
            if self.has_epochs and isinstance(self.sink, TransactionalSink):
                await self.sink.recover(self._position)
            else:
                await self.sink.open()

    async def run(self) -> None:
        """Write until the input has ended."""
        me = asyncio.current_task()
        try:
            while not self._abandoned:  # it might ignore its cancellation in a write
                if self._cuts:
                    await self._prepare(self._cuts[0])
                elif self._values:
                    batch = (self._values, self._timestamps)
                    self._values, self._timestamps = [], []
                    await self._write(batch)
                elif self._ended and self._flushed:
                    self._done = True
                    if self._input_ended:
                        for output in self.side.values():
                            output.end_input()
                    return
                elif self._ended:
                    with self._busy("flush"):
                        await self.sink.flush()
                    self._flushed = True
                else:
                    self._changed.clear()
                    await self._changed.wait()
        finally:
            for cut in self._cuts if is_at_work(me) else ():
                # not at once: the job must hear why this task ended before the checkpoint fails over it
                stopped = SinkError(f"step {self.context.name!r}: the sink was stopped")
                cut.position.get_loop().call_soon(cut.fail, stopped)

    async def _write(self, batch: Batch) -> None:
        self._writing = batch
        self._release_if_drained()
        size = len(batch[0])
        while self._writing[0] and not self._abandoned:
            values, timestamps = self._writing
            try:
                await self._write_part(values[:size], timestamps[:size])
            except Exception as error:
                cause = error.__cause__ or error
                is_over_one = self._writing[0] and not isinstance(error, SinkBroken)
                if not is_over_one or not self._failures.bears(cause):
                    raise
                if size == 1 or self.sink.one_by_one:
                    await self._refuse_first(cause)
                else:
                    size = 1  # to see which one it was
            self._pass_controls()

    async def _write_part(self, values: list[Any], timestamps: list[int | None]) -> None:
        async with self._turn:
            self._part, taken = len(values), 0
            try:
                self._doing = "write", asyncio.get_running_loop().time()
                with naming(self.context.name, SinkError):  # not `_busy`: writes may be of one element
                    if self._takes_batches:
                        await self.sink.write_batch(values)
                    else:
                        await self.sink.write(values, timestamps)
                taken = self._part  # whatever the sink has made of its list
            except BaseException:
                taken = len(self._writing[0]) - len(self._untaken()[0])
                raise
            finally:
                self._part = 0
                self._doing = None
                self._written += taken
                self._writing = self._writing[0][taken:], self._writing[1][taken:]

    @contextmanager
    def _busy(self, doing: str) -> Iterator[None]:
        """What the sink is asked for in this block is under way, and its errors name the step."""
        self._doing = doing, asyncio.get_running_loop().time()
        try:
            with naming(self.context.name, SinkError):
                yield
        finally:
            self._doing = None

    async def _refuse_first(self, error: BaseException) -> None:
        """The sink does not take the first of what is being written."""
        if self._abandoned:  # it may be over its cancellation that it fails, and no element
            return
        while not self.emitting.is_open():
            self._may_emit.clear()
            await self._may_emit.wait()
        values, timestamps = self._writing
        self._failures.take(values[0], timestamps[0], error)
        self._writing = values[1:], timestamps[1:]

    def _reopened(self) -> None:
        self._may_emit.set()

    def _add_control(self, control: Control) -> None:
        """Pass it on when all that came before it is written or refused."""
        if self.side or isinstance(control, Mark):
            self._controls.append((self._ahead(), control))
            self._pass_controls()

    def _ahead(self) -> int:
        """How many elements have come so far."""
        return self._written + self._failures.failed + len(self._writing[0]) + self.waiting()

    def _follow(self, journey: Journey) -> None:
        """The element that comes next is followed."""
        span = None if journey.trace is None else journey.trace.begin("write", self.context.name)
        self._journeys.append((self._ahead(), journey, span))

    def _pass_controls(self) -> None:
        handled = self._written + self._failures.failed
        while self._journeys and self._journeys[0][0] < handled:
            _, journey, span = self._journeys.popleft()
            now = asyncio.get_running_loop().time()
            self._end_to_end.add(now - journey.began, now)
            if span is not None:
                span.end()
        while self._controls and self._controls[0][0] <= handled:
            self.pass_on(self._controls.popleft()[1])

    def _untaken(self) -> Batch:
        """What the sink has not taken for good, of the write under way."""
        values, timestamps = self._writing
        if not self._part:
            return self._writing
        with naming(self.context.name, SinkError, is_awaiting=False):
            taken = self.sink.taken()
            if not isinstance(taken, int) or not 0 <= taken <= self._part:
                raise SinkError(f"taken() gave {safe_repr(taken)}, of a write of {self._part} elements")
        return values[taken:], timestamps[taken:]

    async def _prepare(self, cut: _Cut) -> None:
        if cut.batch[0]:
            batch, cut.batch = cut.batch, ([], [])
            await self._write(batch)
        try:
            cut.succeed(await self._prepared(cut.epoch))
        except Exception as error:  # the checkpoint has failed, but not the sink
            cut.fail(error)
        self._cuts.popleft()

    async def _prepared(self, epoch: int) -> Any:
        assert isinstance(self.sink, TransactionalSink)
        async with self._turn:
            with self._busy("prepare"):
                return detached(await self.sink.prepare(epoch))  # it may write on in that very object

    # ------------------------------------------------------------------ epochs

    def join_epochs(self, position: Any, writer: Writer, confirm: Callable[[], Awaitable[None]]) -> None:
        """
        Before `start`: write in epochs, from `position` on. `confirm` sees, just before the sink is changed,
        whether the job may still write; raises if not.
        """
        assert isinstance(self.sink, TransactionalSink)
        self.sink.writer = writer
        self._confirm = confirm
        self.has_epochs = True
        self._position = position

    def cut(self, epoch: int) -> asyncio.Future[Any]:
        """End an epoch here; gives the sink's position when all before is written and safe."""
        if self._done:
            position = self._preparing.start(self._prepared(epoch))
            position.add_done_callback(heed)
            return position
        cut = _Cut(epoch, (self._values, self._timestamps))
        self._values, self._timestamps = [], []
        self._cuts.append(cut)
        self._changed.set()
        return cut.position

    async def commit(self, epoch: int) -> None:
        """What came before the cut of `epoch` stays."""
        assert isinstance(self.sink, TransactionalSink)
        async with self._turn:
            with self._busy("commit"):
                await self.sink.commit(epoch)

    def is_done(self) -> bool:
        """Whether the input has ended and everything is written and flushed."""
        return self._done and not self.waiting()

    def abandon(self) -> None:
        """Begin no write any more; the task is to be cancelled next."""
        self._abandoned = True

    async def stop(self) -> None:
        await end_tasks(self._preparing, self.context.patience)
        await close_in_time(self.context.patience, self.context.name, SinkError, self.sink)

    def process(self, value: Any, timestamp: int | None) -> None:
        if self.context.journeys.current is not None:
            self._follow(self.context.journeys.current)
        self._values.append(value)
        self._timestamps.append(timestamp)
        self._changed.set()
        self._hold_if_full()

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        if self.context.journeys.current is not None:
            self._follow(self.context.journeys.current)
        self._values += values
        self._timestamps += repeat(None, len(values)) if timestamps is None else timestamps
        self._changed.set()
        self._hold_if_full()

    def restore_watermark(self, timestamp: int) -> None:
        for output in self.side.values():
            output.restore_watermark(timestamp)

    def end_input(self) -> None:
        self._input_ended = True
        self.write_rest()

    def write_rest(self) -> None:
        """Write what is here, and end: nothing follows, though the input may go on another day."""
        self._ended = True
        self._changed.set()

    def waiting(self) -> int:
        waiting = len(self._values)
        for cut in self._cuts:
            waiting += len(cut.batch[0])
        return waiting

    def is_at_rest(self) -> bool:
        """Whether nothing waits and no write is under way."""
        return not self.waiting() and not self._writing[0]

    def timings(self) -> dict[str, Timings]:
        """From where they were accepted to when they were written, of elements that were followed."""
        return {"end_to_end": self._end_to_end}

    def whereabouts(self) -> Whereabouts:
        try:
            untaken = self._untaken()[0]
        except SinkError:  # what it says it has taken is nonsense; its write ends the job over that
            untaken = self._writing[0]
        if self._doing is None:
            return Whereabouts(inbox=self.waiting() + len(untaken))
        doing, since = self._doing
        element = untaken[0] if self._part == 1 and untaken else SEVERAL
        return Whereabouts(self.waiting(), call=len(untaken), doing=doing, since=since, element=element)

    def metrics(self) -> dict[str, int]:
        return {"written": self._written, "waiting": self.waiting(), **self._failures.metrics()}

    def snapshot(self) -> Any:
        batches = (self._untaken(), *(cut.batch for cut in self._cuts), (self._values, self._timestamps))
        return [list(chain.from_iterable(part)) for part in zip(*batches, strict=True)]

    def capture(self) -> Frozen[Any]:
        values, timestamps = self.snapshot()
        if isinstance(self.sink, Results):  # written, but to this process, which may be gone with them
            untaken = self.sink.untaken()
            values, timestamps = [*untaken, *values], [*repeat(None, len(untaken)), *timestamps]
        return freeze([values, timestamps])

    def restore(self, state: Any) -> None:
        self.process_batch(*state)
