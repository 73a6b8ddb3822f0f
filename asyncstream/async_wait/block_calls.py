"""
The calls of elements that are taken in blocks: the loop that runs per element in most pipelines.

Each worker takes the next call of the block that is open; when there is none left, another one is opened with
what waits in the inbox. A call that has not suspended costs little more than the call; one that has finds
another stamp than it left, for the turn has run meanwhile, and by this it is told. What is not simply to be
called (a control element, one that is followed) ends a block, and is left to the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import Context, copy_context
from itertools import chain
from typing import TYPE_CHECKING

from asyncstream.async_wait.blocks import Block, Call
from asyncstream.async_wait.promise import PENDING, Promise
from asyncstream.async_wait.timing import UNTIMED
from asyncstream.async_wait.worker import Worker
from asyncstream.operators.call_context import CURRENT, NOWHERE
from asyncstream.state.capture import IMMUTABLE

if TYPE_CHECKING:
    from asyncstream.async_wait.pool import WorkerPool

__all__ = ("BlockCalls",)

SMALLEST = 4
"""Elements in a block at the least: fewer cost less with a promise each."""


class BlockCalls:
    """Makes the calls of a pool's elements in blocks."""

    __slots__ = ("_add", "_began", "_calls", "_ended", "_note", "_note_ended", "_open", "_pool")

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._add = pool.way_out.queue.add_block
        self._ended = pool.way_out.queue.ended
        # bound once for all workers: an object for each would be one more that has left the processor's cache
        # when its worker wakes
        self._note = pool.outcomes.times.began.append
        self._note_ended = None if pool.journaled is None else pool.journaled.calls.append
        self._open: Block | None = None
        self._began: list[Block] = []  # blocks with calls that may have begun since the last turn
        self._calls: Iterator[Call] = iter(())  # those that have not begun, block after block

    def unbegun(self) -> int:
        """How many elements were taken from the inbox, and their calls have not begun."""
        return 0 if self._open is None else self._open.unbegun()

    def open(self) -> bool:
        """Have calls to begin, if enough elements wait and there is room for them; whether there are any."""
        if self.unbegun():
            return True
        pool = self._pool
        if pool.journaled is not None and pool.journaled.known:  # by each single element
            return False
        inbox, way_out = pool.inbox, pool.way_out
        wanted = min(inbox.unmarked(), pool.room - way_out.promised)
        if wanted < SMALLEST:
            return False
        values, timestamps, origins = inbox.take(wanted)
        block = self._open = Block(values, timestamps, origins if way_out.tracks else [])
        way_out.promised += wanted
        self._add(block)
        self._began.append(block)
        return True

    def _by_block(self) -> Iterator[Iterator[Call]]:
        while self.open() and self._open is not None:
            yield self._open.calls

    def close(self) -> None:
        """Give the elements whose calls have not begun back to the inbox."""
        if self._open is not None:
            self._pool.way_out.promised -= self._open.unbegun()
            self._pool.inbox.put_back(self._open.take_unbegun())
        self._open = None

    def take_begun(self) -> list[Block]:
        """The blocks with calls that may have begun since this was asked."""
        began = self._began
        self._began = began[-1:] if self.unbegun() else []  # the last one is the open one
        return began

    def give_up(self, worker: Worker, call: Call, promise: Promise) -> None:
        """Complete an element whose call goes on; its worker has only the promise of it from now on."""
        block, place, value = call
        block.is_special = True
        block.outcomes[place] = promise.outcome
        if self._ended is not None:
            self._ended(call)
        if self._pool.journaled is not None:
            self._pool.journaled.calls.append(call)
        worker.promise, worker.value, worker.call = promise, value, None

    async def work(self, worker: Worker, context: Context) -> None:
        """What a worker does, in its task and this context of its own."""
        # The one loop that runs per element: what can be a local is one.
        pool, base, task = self._pool, worker.base, worker.task
        cancelling = asyncio.Task.cancelling  # not of the task: that would be looked for each time
        ended, note, note_ended = self._ended, self._note, self._note_ended
        copies, tells = pool.copies, pool.promises.tells
        is_plain = copies is None and not tells
        stamp = pool.stamp
        call: Call | None
        block: Block | None
        pool.schedule_turn()
        try:
            while True:
                for call in self._calls:
                    worker.call = call
                    block, place, value = call
                    try:
                        if not is_plain:
                            if tells:
                                CURRENT.set(block.origins[place] or NOWHERE)
                                base = copy_context()  # the next call sets its own
                            if copies is not None and value.__class__ not in IMMUTABLE:
                                value = copies.of(value)
                        function = pool.function  # the interpreter would look for a method of the pool
                        outcome = await function(value)
                    except BaseException as error:
                        outcome = pool.failed(worker, error)
                        if outcome is PENDING:  # its timeout has completed it, or the job fails
                            worker.call = worker.promise = None
                            return
                        block.is_special = True
                        if pool.stamp is not stamp:
                            stamp = UNTIMED  # or it would be taken for one that ended well
                    if pool.stamp is not stamp:  # it has suspended
                        if worker.doomed:
                            worker.call = worker.promise = None
                            return
                        block.outcomes[place] = outcome
                        if ended is not None:
                            ended(call)
                        note(stamp)
                        stamp = pool.stamp
                        if not pool.turning:
                            pool.schedule_turn()
                    else:
                        block.outcomes[place] = outcome
                    if note_ended is not None:
                        note_ended(call)
                    try:
                        if context == base and not cancelling(task):
                            continue
                    except Exception:  # to compare contexts is to compare the user's values
                        pass
                    pool.soil(worker)
                    return
                worker.call = call = block = value = outcome = None  # kept alive by no worker that waits
                if not self.open() and not await pool.promises.make_calls(worker, context):
                    return
                self._calls = chain.from_iterable(self._by_block())
                stamp = pool.stamp
                pool.schedule_turn()  # the calls that begin now may be those of a block that has had its turn
        except BaseException as error:
            pool.end_with(worker, error)
        finally:
            pool.retire(worker)
