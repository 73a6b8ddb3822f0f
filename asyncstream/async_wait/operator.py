"""
`AsyncWaitOperator`: many calls of an async function at once, results in the order that was asked for.

Theory of operation
-------------------
An element goes through three places::

    inbox            accepted, call not started
    promise queue    call running, or finished and waiting for its turn to be emitted
    downstream       emitted; from then on it is no longer ours

Calls are made by a pool of at most `concurrency` long-lived **workers** (asyncio tasks). A worker takes
from the inbox back to back with a plain `await function(value)`. A call that does not suspend (a cache hit)
never leaves that loop and costs a fraction of a microsecond; a task per element costs ten times as much
before the user's code has run.

How does a second worker start when the first one suspends? Everything else is done by the **turn**, one
`loop.call_soon` callback that is scheduled whenever something has changed: input came, a call started or
finished, the way downstream opened. A turn

1. sets a deadline, and the time of the stamp that they share, for all calls that have begun since the turn
   before and have not ended;
2. emits what the promise queue lets go, in batches;
3. lets those who feed us go on when the inbox has drained;
4. if input is left, wakes or makes 1, 2, 4, … workers, and comes back in the loop's next pass. Input that
   is left when a turn runs means that the workers woken before have suspended in user code.

So at saturation no task is woken at all: a worker whose call ends takes the next element itself.

Most elements are alike, and then none has an object of its own (`blocks`): a worker takes all elements for
which there is room into one entry of the queue, whose columns the calls fill in, and what is ready leaves in
slices. Where something has to be known of each single call (keys, flat maps, journals that results wait for),
of elements that are followed, and where a few stand between control elements, each has a promise.

The rooms: here what an operator is asked from outside, and the turn; `inbox` what waits; `pool` the workers;
`block_calls` and `promise_calls` the loops in which they make calls; `outcomes` what comes of errors and
timeouts; `way_out` what has not left; `queues` what order means; `holding` what it shares with batch jobs.

What is always true
-------------------
* Each element accepted and not emitted is in the inbox or in the queue. A snapshot is a walk over both.
* A promise is completed once, by the first of result, error and timeout. It leaves the queue by emission.
* At most `concurrency` calls run. A timed-out call is cancelled, its element completed at once, and its
  worker stays taken until the coroutine has really ended; then that worker is retired. One that goes on, as
  one may that is retried, is cancelled again now and then.
* At most `buffer` elements are held, control elements included, and those of a block not yet called for.
* Downstream operators run in turns, never in a worker: their exceptions cannot be blamed on an element
  of ours, nor see its context variables.
* A worker is used again only if the call left no trace on it: context variables as they were, no pending
  cancellation. A function that keeps leaving traces gets a task per element (`isolation="task"`).

Not chosen: stepping the coroutine by hand (`send(None)`) to see whether it suspends is slower than the pool
and runs the first step under the wrong task, so that `asyncio.timeout()` in user code cancels the feeder.
Eager tasks (3.12) are sound, at about four times the cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from asyncstream.async_wait.entries import OF_THIS_RUN, REACHED, entry_of, inbox_item, reached_in
from asyncstream.async_wait.holding import Holding
from asyncstream.async_wait.pool import WorkerPool
from asyncstream.async_wait.promise import PENDING, Promise
from asyncstream.async_wait.settings import AsyncWaitSettings
from asyncstream.async_wait.tasks import end_tasks
from asyncstream.async_wait.way_out import WayOut
from asyncstream.async_wait.whereabouts import whereabouts
from asyncstream.elements import CONTROLS, MIN_TIMESTAMP, Control, Timestamps
from asyncstream.errors import UserFunctionError
from asyncstream.metrics import Timings
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.functions import AsyncFunction, figures_of
from asyncstream.operators.origins import Placed
from asyncstream.operators.whereabouts import LIMITED, Whereabouts
from asyncstream.sharing import hold

__all__ = ("COUNTED", "AsyncWaitOperator")

INBOX_LIMIT = 1024
"""Elements that may wait to be taken; large enough that waking the feeder costs little per element."""

COUNTED = ("elements_in", "results_out", "failed", "timed_out", "skipped")
"""What every async step counts."""


class AsyncWaitOperator(Holding):
    """
    Runs an async function on each element, many at once.

    Emits when: a call has ended and its `OutputOrder` lets the result go; in a batch per loop pass.
    Backpressures when: `concurrency` calls run or `buffer` elements are held, and the inbox is full; or
        when downstream is full.
    Completes when: the input has ended and every call has.
    Cancels when: `stop` is called: running calls are cancelled and awaited.
    Snapshot holds: every element not yet emitted, in input order within each segment, control elements
        in their places, with the results of the calls that have finished.

    Args:
        settings: how to run the calls.
    """

    def __init__(self, settings: AsyncWaitSettings) -> None:
        self._counts = dict.fromkeys(COUNTED, 0)
        way_out = self._way_out = WayOut(self, settings.order.queue(), self._counts, flat=settings.flat)
        pool = self._pool = WorkerPool(settings, way_out, self._counts, self._turn, self.blame)
        super().__init__(max(INBOX_LIMIT, 4 * settings.concurrency), pool.schedule_turn)
        self.settings = settings
        self.called = settings.function
        self._inbox = pool.inbox
        self._object = settings.function if isinstance(settings.function, AsyncFunction) else None
        self._holds = False

    # ------------------------------------------------------------------ the operator contract

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._way_out.journeys = context.journeys
        self._way_out.tracks = context.tracks or self.settings.identity is not None
        self._pool.open(context)

    async def start(self) -> None:
        if self._object is not None:
            self._holds = True
            await hold(self._object)

    def process(self, value: Any, timestamp: int | None) -> None:
        self._inbox.add(value, timestamp)
        self._counts["elements_in"] += 1
        self._accepted(1)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        origins = timestamps.origins if self._way_out.tracks and isinstance(timestamps, Placed) else None
        self._inbox.add_elements(values, timestamps, origins)
        self._counts["elements_in"] += len(values)
        self._accepted(len(values))

    def _add_control(self, control: Control) -> None:
        self._inbox.add(None, control)
        self._accepted()

    def waiting(self) -> int:
        return self._pool.waiting()

    def is_at_rest(self) -> bool:
        pool = self._pool
        if not pool.settled:
            return not pool.waiting() and not pool.held()
        writing = pool.journaled is not None and pool.journaled.is_writing()
        return not (pool.turning or writing or pool.busy())

    def _accepted(self, elements: int = 0) -> None:
        journey = self.context.journeys.current
        if journey is not None and elements:  # the first of what has come of it goes on with it
            self._inbox.follow(journey, elements)
        self._pool.schedule_turn()
        self._hold_if_full()

    def settle(self) -> None:
        self._pool.settle()

    def halt(self) -> None:
        self._pool.halt()

    async def stop(self) -> None:
        self.halt()
        patience = self.context.patience
        self._pool.dismiss_idle()
        running = await end_tasks((worker.task for worker in self._pool.busy()), patience)
        await asyncio.sleep(0)  # then the idle ones have ended, too
        try:
            self._write()  # calls that ended when nothing was emitted any more
        finally:
            if self._object is not None and self._holds:
                self._holds = False
                await self._let_go(self._object)
        if running:
            raise UserFunctionError(
                self.context.name,
                [worker.element() for worker in self._pool.busy()],
                TimeoutError(f"{len(running)} calls ignored their cancellation for {patience:g} s"),
            )

    def metrics(self) -> dict[str, int]:
        pool = self._pool
        return {
            **figures_of(self._object),
            **self._counts,
            "running": len(pool.busy()),
            "most_running": pool.most_running,
            "overdue": sum(worker.doomed for worker in pool.workers),
            **({} if pool.journaled is None else {"spared": pool.journaled.spared}),
            "held": pool.held(),
            "waiting": pool.waiting(),
        }

    def timings(self) -> dict[str, Timings]:
        times = self._pool.outcomes.times
        return {"success": times.succeeded, "error": times.failed, "timeout": times.timed_out}

    def whereabouts(self) -> Whereabouts:
        unbegun, queue = self._pool.unbegun(), self._way_out.queue
        return whereabouts(
            self.settings.order,
            unbegun + sum(kind.__class__ not in CONTROLS for _, kind, _ in self._inbox),
            islice(queue, self._way_out.promised - unbegun) if unbegun else queue,
            self._pool.workers,
            limited=figures_of(self._object).get(LIMITED, 0),
            may_emit=self.emitting.is_open(),
            now=self._pool.now() if self._pool.workers else 0.0,
        )

    # ------------------------------------------------------------------ the turn

    def _turn(self) -> None:
        pool, way_out = self._pool, self._way_out
        pool.turning = False
        if pool.halted:
            return
        try:
            now, times = asyncio.get_running_loop().time(), pool.outcomes.times
            if times.began:
                times.settle(now)
            pool.stamp_calls(now)
            self._write()
            if self.emitting.is_open():
                way_out.emit_ready()
            self._release_if_drained()
        except BaseException as error:  # of an operator downstream
            pool.fail(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return
        pool.promote()

    def _write(self) -> None:
        """Write down what has ended since the last time, if that is wanted."""
        if self._pool.journaled is not None:
            self._pool.journaled.write(single=not self._way_out.special)

    # ------------------------------------------------------------------ snapshot

    def snapshot(self) -> Any:
        pool, way_out = self._pool, self._way_out
        unwritten = {} if pool.journaled is None else pool.journaled.outcomes
        kept: Iterable[tuple[Promise, Any]] = (
            (promise, unwritten.get(promise, promise.outcome)) for promise in way_out.queue
        )
        if pool.serializer is not None:
            kept = pool.serializer.kept(kept)
        held = (
            entry_of(promise.value, promise.timestamp, outcome, promise.origin if way_out.tracks else None)
            for promise, outcome in kept
        )
        waiting = (entry_of(value, timestamp, PENDING, origin) for value, timestamp, origin in self._inbox)
        entries = [entry for entry in (*held, *waiting) if entry not in OF_THIS_RUN]
        if way_out.watermark > MIN_TIMESTAMP:  # those downstream are to know again what is late
            entries.insert(0, [REACHED, way_out.watermark])
        return entries

    def restore(self, state: Any) -> None:
        call_all = self.settings.replay == "all"
        self._restore_reached(reached_in(state))
        entries = [entry for entry in state if entry[0] != REACHED]
        if self._pool.serializer is not None:
            entries = list(self._pool.serializer.in_order(entries))
        for entry in entries:
            self._inbox.add(*inbox_item(entry, call_all=call_all))
        self._accepted()
