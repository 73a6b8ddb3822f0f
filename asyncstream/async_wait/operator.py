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

1. makes promises for the calls that have suspended, stamps them with the time, and sets their deadlines;
2. emits what has passed and what the promise queue lets go, in batches;
3. lets those who feed us go on when the inbox has drained;
4. if input is left, wakes or makes 1, 2, 4, … workers, and comes back in the loop's next pass. Input that
   is left when a turn runs means that the workers woken before have suspended in user code.

So at saturation no task is woken at all: a worker whose call ends takes the next element itself.

A promise is made only when it is needed: the next call that starts, the turn that finds a call
suspended, an error, a snapshot. So of the workers in `_unstamped`, those whose call may have started since
the last turn, only the last can be without, and promises enter the queue in the order of their elements:
a worker is appended before its first call, and a call that has suspended does not go on before the turn.
The result of a call that never suspended **passes** straight to the next emission, provided that nothing
in the queue, and no call suspended a moment ago, is ahead of it.

What is always true
-------------------
* Whenever a callback of the loop begins, each element accepted and not emitted is in the inbox, in the
  queue, among the passed, or (until the turn that is then scheduled) in the hands of a worker that is in
  `_unstamped`. A snapshot is a walk over these.
* A promise is completed once, by the first of result, error and timeout. It leaves the queue by emission.
* At most `concurrency` calls run. A timed-out call is cancelled, its element completed at once, and its
  worker stays taken until the coroutine has really ended; then that worker is retired.
* At most `buffer` elements are held, control elements included.
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
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from itertools import repeat
from typing import Any

from asyncstream.async_wait.deadlines import Deadlines
from asyncstream.async_wait.entries import (
    MARKED,
    REACHED,
    UNCALLED,
    Finished,
    Known,
    entry_of,
    inbox_item,
)
from asyncstream.async_wait.follow import call_followed
from asyncstream.async_wait.journaled import Journaled
from asyncstream.async_wait.key_serializer import KeySerializer
from asyncstream.async_wait.looking import whereabouts
from asyncstream.async_wait.promise import (
    DROPPED,
    PENDING,
    SPECIAL,
    Arrived,
    Passage,
    Promise,
    Routed,
    Several,
)
from asyncstream.async_wait.settings import AsyncWaitSettings, OutputOrder
from asyncstream.async_wait.tasks import end_tasks, within
from asyncstream.async_wait.timing import CallTimes
from asyncstream.async_wait.worker import UNMADE, Worker
from asyncstream.elements import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    EndOfInput,
    IdleStatus,
    Mark,
    Timestamps,
    Watermark,
)
from asyncstream.errors import CallTimeout, InternalError, UserFunctionError, describe_error
from asyncstream.metrics import Timings
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.basic import several
from asyncstream.operators.call_context import CURRENT, KEEP, identified
from asyncstream.operators.call_log import retry_of
from asyncstream.operators.failures import FAILED, attempts_of
from asyncstream.operators.flow import Intake
from asyncstream.operators.functions import AsyncFunction, FailedCall, has_timeout_hook
from asyncstream.operators.origins import Origin, Placed
from asyncstream.operators.whereabouts import LIMITED, Progress, RecentFailures, Whereabouts
from asyncstream.sharing import hold, release
from asyncstream.state.capture import IMMUTABLE, detached
from asyncstream.validation import is_async_function

__all__ = ("COUNTED", "AsyncWaitOperator")

_log = logging.getLogger("asyncstream.async_wait")

INBOX_LIMIT = 1024
"""Elements that may wait to be taken; large enough that waking the feeder costs little per element."""

LARGEST_BURST = 256
"""Workers woken in one turn at the most, so that a turn stays short."""

SOILED_LIMIT = 3
"""Workers lost to changed context variables before every call gets a task, and a context, of its own."""

_CONTROLS = frozenset({Watermark, IdleStatus, EndOfInput, Mark})


_OF_THIS_RUN = (["end"], ["watermark", MAX_TIMESTAMP], ["mark"])
"""Entries that are left out of a snapshot: that nothing follows, and marks of the sources."""


COUNTED = ("elements_in", "results_out", "failed", "timed_out", "skipped")
"""What every async step counts."""


class AsyncWaitOperator(Intake):
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
        super().__init__(max(INBOX_LIMIT, 4 * settings.concurrency), self._schedule_turn)
        self.settings = settings
        self.called = settings.function
        self._inbox: deque[tuple[Any, Any]] = deque()
        self._queue = settings.order.queue()
        self._room = settings.buffer_size  # 0 once settled or halted: nothing is taken any more
        self._held = 0  # elements taken from the inbox and not emitted
        # the origins are as many where they are kept track of, and none elsewhere
        self._passed: tuple[list[Any], list[int | None], list[Origin | None]] = ([], [], [])
        self._special = 0  # at least as many as outcomes in the queue that are not simply one result
        self._serializer = None if settings.key_by is None else KeySerializer(settings.key_by)
        self._workers: set[Worker] = set()
        self._most_running = 0
        self._idle_workers: list[Worker] = []
        self._unstamped: list[Worker] = []
        self._deadlines: Deadlines | None = None
        self._burst = 1
        self._turning = False
        self._halted = False
        self._settled = False
        self._soiled = 0
        self._watermark = MIN_TIMESTAMP  # the last that was emitted
        self._is_restored = False
        self._times = CallTimes()
        self.recent_failures = self._recent_failures = RecentFailures()
        self._counts = dict.fromkeys(COUNTED, 0)
        self._object = settings.function if isinstance(settings.function, AsyncFunction) else None
        self._function: Callable[[Any], Awaitable[Any]] = (
            settings.function if self._object is None else self._object.invoke  # type: ignore[assignment]
        )
        self._called = self._function  # by elements that are followed, each in a context of its own
        self._holds = False
        self._copies = False
        self._uncopied = False  # something could not be copied, which has been said
        self._journaled: Journaled | None = None
        self._waits = False  # results wait until they are written down
        self._tracks = False  # each element's origin is kept with it, and told to its call
        self._on_timeout = settings.on_timeout
        if self._object is not None and settings.on_timeout == "fail" and has_timeout_hook(self._object):
            self._on_timeout = self._object.timeout

    # ------------------------------------------------------------------ the operator contract

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        copies = self.settings.copy_input
        self._copies = context.keeps_checkpoints if copies is None else copies
        self._journeys = context.journeys
        self._loop = asyncio.get_running_loop()
        self._base: Context = copy_context()
        self._tracks = context.tracks or self.settings.identity is not None
        if context.call_log is not None:
            self._journaled = Journaled(context.call_log, self._queue.finish, self._schedule_turn)
            self._waits = self._journaled.waits
        if self.settings.isolation == "task":
            self._isolate()
        if self.settings.timeout is not None:
            self._deadlines = Deadlines(self.settings.timeout, self.settings.concurrency, self._time_out)

    async def start(self) -> None:
        if self._object is not None:
            self._holds = True
            token = KEEP.set(self._keep if self.context.checkpoint is not None else None)
            try:
                await hold(self._object)
            finally:
                KEEP.reset(token)

    def _keep(self) -> None:
        """Ask for a checkpoint, unless it is too late for one."""
        if self.context.checkpoint is not None and not self._halted:
            self.context.checkpoint(lambda is_safe: None)

    def process(self, value: Any, timestamp: int | None) -> None:
        self._inbox.append((value, timestamp))
        self._counts["elements_in"] += 1
        self._accepted(1)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        stamps: Iterable[Any] = repeat(None) if timestamps is None else timestamps
        if self._tracks:
            origins = timestamps.origins if isinstance(timestamps, Placed) else repeat(None)
            stamps = zip(stamps, origins, strict=False)
        self._inbox.extend(zip(values, stamps, strict=False))
        self._counts["elements_in"] += len(values)
        self._accepted(len(values))

    def advance_watermark(self, timestamp: int) -> None:
        self._inbox.append((None, Watermark(timestamp)))
        self._accepted()

    def set_idle(self, idle: bool) -> None:
        self._inbox.append((None, IdleStatus(idle)))
        self._accepted()

    def pass_mark(self, mark: Mark) -> None:
        self._inbox.append((None, mark))
        self._accepted()

    def end_input(self) -> None:
        self._inbox.append((None, EndOfInput()))
        self._accepted()

    def waiting(self) -> int:
        return len(self._inbox)

    def is_at_rest(self) -> bool:
        if not self._settled:
            return not self._inbox and not self._held
        writing = self._journaled is not None and self._journaled.is_writing()
        busy = self._turning or writing or self._passed[0]
        return not (busy or any(w.promise is not None for w in self._workers))

    def _accepted(self, elements: int = 0) -> None:
        journey = self._journeys.current
        if journey is not None and elements:  # the first of what has come of it goes on with it
            value, timestamp = self._inbox[-elements]
            timestamp, origin = timestamp if timestamp.__class__ is tuple else (timestamp, None)
            self._inbox[-elements] = value, Known(timestamp, origin, journey)
        if not self._turning:
            self._schedule_turn()
        self._hold_if_full()

    def settle(self) -> None:
        self._settled = True
        self._room = 0

    def halt(self) -> None:
        self._halted = True
        self._room = 0
        if self._deadlines is not None:
            self._deadlines.cancel()

    async def stop(self) -> None:
        self.halt()
        patience = self.context.patience
        running = await end_tasks((worker.task for worker in self._workers), patience)
        if self._journaled is not None:
            self._write(self._journaled)  # calls that ended when nothing was emitted any more
        if self._object is not None and self._holds:
            self._holds = False
            try:
                await within(patience, release(self._object))
            except TimeoutError as error:
                raise UserFunctionError(self.context.name, None, error, when="when it was closed") from error
        if running:
            raise UserFunctionError(
                self.context.name,
                [worker.entry[0] for worker in self._workers if worker.promise is not None],
                TimeoutError(f"{len(running)} calls ignored their cancellation for {patience:g} s"),
            )

    def metrics(self) -> dict[str, int]:
        running = sum(worker.promise is not None for worker in self._workers)
        return {
            **({} if self._object is None else self._object.metrics()),
            **self._counts,
            "running": running,
            "most_running": self._most_running,
            "overdue": sum(worker.doomed for worker in self._workers),
            **({} if self._journaled is None else {"spared": self._journaled.spared}),
            "held": self._held,
            "waiting": len(self._inbox),
        }

    def timings(self) -> dict[str, Timings]:
        times = self._times
        return {"success": times.succeeded, "error": times.failed, "timeout": times.timed_out}

    def progress(self) -> Progress:
        return Progress(self._watermark, None)

    def whereabouts(self) -> Whereabouts:
        known = {} if self._object is None else self._object.metrics()
        return whereabouts(
            self.settings.order,
            sum(kind.__class__ not in _CONTROLS for _, kind in self._inbox),
            self._queue,
            self._workers,
            passed=len(self._passed[0]),
            limited=known.get(LIMITED, 0),
            may_emit=self.emitting.is_open(),
            now=self._loop.time() if self._workers else 0.0,
        )

    # ------------------------------------------------------------------ the turn

    def _schedule_turn(self) -> None:
        if not self._turning and not self._halted:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        if self._halted:
            return
        try:
            if self._times.began:
                self._times.settle(self._loop.time())
            if self._unstamped:
                self._stamp()
            if self._journaled is not None:
                self._write(self._journaled)
            if self.emitting.is_open():
                self._emit()
            self._release_if_drained()
        except BaseException as error:  # of an operator downstream
            self._fail(error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return
        self._promote()

    def _write(self, journaled: Journaled) -> None:
        values, _, origins = self._passed
        journaled.write(origins, values)

    def _emit(self) -> None:
        values, timestamps, origins = self._passed
        if values:
            self._held -= len(values)
            self._push(values.copy(), self._with(timestamps.copy(), origins.copy()))
            for passed in self._passed:
                passed.clear()
            if self._journaled is not None:
                self._journaled.emitted()
        ready = self._queue.take()
        if not ready:
            return
        self._held -= len(ready)
        tracks = self._tracks
        if not self._special:
            timestamps = [promise.timestamp for promise in ready]
            if tracks:
                timestamps = Placed(timestamps, [promise.origin for promise in ready])
            self._push([promise.outcome for promise in ready], timestamps)
            return
        values, timestamps, origins = [], [], []
        for promise in ready:
            outcome = promise.outcome
            if outcome.__class__ not in SPECIAL:
                values.append(outcome)
                timestamps.append(promise.timestamp)
                if tracks:
                    origins.append(promise.origin)
                continue
            self._special -= 1
            if isinstance(outcome, Several):
                values += outcome.results
                timestamps += [promise.timestamp] * len(outcome.results)
                if tracks:
                    origins += self._origins(promise, outcome)
            elif isinstance(outcome, Arrived):
                self._push(values, self._with(timestamps, origins))
                values, timestamps, origins = [], [], []
                result = outcome.outcome
                found = result if isinstance(result, Several) else Several([result])
                stamps: list[int | None] = [promise.timestamp] * len(found.results)
                with self._journeys.on(outcome.journey):
                    self._push(found.results, self._with(stamps, self._origins(promise, found)))
            elif isinstance(outcome, Routed):
                stamps = self._with([promise.timestamp], [promise.origin])
                self.side_output(outcome.tag).process_batch([outcome.failed], stamps)
            elif isinstance(outcome, Passage):
                self._push(values, self._with(timestamps, origins))
                values, timestamps, origins = [], [], []  # the old ones belong to their receiver
                self.pass_on(outcome.control)
                if isinstance(outcome.control, Watermark) and outcome.control.timestamp < MAX_TIMESTAMP:
                    self._watermark = outcome.control.timestamp
        self._push(values, self._with(timestamps, origins))

    def _with(self, timestamps: list[int | None], origins: list[Origin | None]) -> list[int | None]:
        """Timestamps with the origins of their elements, where they are tracked."""
        return Placed(timestamps, origins) if self._tracks else timestamps

    def _origins(self, promise: Promise, outcome: Several) -> list[Origin | None]:
        """Those of the results of one call."""
        count, origin = len(outcome.results), promise.origin
        if origin is None or not self.settings.flat:  # of the others there is one
            return [origin] * count
        return [(*origin, place) for place in range(count)]

    def _push(self, values: list[Any], timestamps: list[int | None]) -> None:
        if values:
            self._counts["results_out"] += len(values)
            self.out.process_batch(values, timestamps)

    def _promote(self) -> None:
        """If elements wait without a worker, wake more workers, and look again in the next pass."""
        if not self._idle_workers and len(self._workers) >= self.settings.concurrency:
            return  # all are busy; the first to finish takes the next one
        if self._halted or not self._has_work():
            return
        released = 0 if self._serializer is None else len(self._serializer.released)
        wanted = min(released + len(self._inbox), self._burst)
        for _ in range(wanted):
            if self._idle_workers:
                parked = self._idle_workers.pop().parked
                if parked is not None and not parked.done():  # else: cancelled by who kept its task
                    parked.set_result(None)
            elif len(self._workers) < self.settings.concurrency:
                self._hire()
            else:
                return
        self._burst = min(self._burst * 2, LARGEST_BURST)
        self._schedule_turn()

    def _has_work(self) -> bool:
        if self._serializer is not None and self._serializer.released and not self._settled:
            return True
        return bool(self._inbox) and self._held < self._room

    # ------------------------------------------------------------------ workers

    def _hire(self) -> None:
        worker = Worker()
        self._workers.add(worker)
        self._most_running = max(self._most_running, len(self._workers))
        # a context of its own: elements must not see each other's variables
        worker.task = asyncio.Task(self._work(worker), loop=self._loop, context=self._base.copy())

    async def _work(self, worker: Worker) -> None:
        # The one loop that runs per element: what can be a local is one.
        inbox, base, unstamped, finish = self._inbox, self._base, self._unstamped, self._queue.finish
        (values, timestamps, origins), ahead = self._passed, self._queue.ahead
        flat, serializer = self.settings.flat, self._serializer
        ended = self._times.began.append
        direct, cancelling = not flat and serializer is None and not self._waits, worker.task.cancelling
        add, in_order = self._queue.add, self.settings.order is OutputOrder.ORDERED
        suspends = False  # the call before this one did
        copies, tracks, journaled = self._copies, self._tracks, self._journaled
        note = None if journaled is None or journaled.waits else journaled.ended.append
        name, identifies = self.context.name, self.settings.identity is not None
        awaited: Mapping[Origin, Any] = {} if journaled is None else journaled.known
        log, retries = self.context.call_log, retry_of(self.settings.function)
        try:
            while True:
                journey = None
                if serializer is not None:
                    worker.promise = promise = self._next_of_a_free_key(serializer)
                    if promise is None:
                        await self._park(worker)
                        continue
                    known = promise.timestamp
                    if known.__class__ is tuple:
                        promise.timestamp, promise.origin = known
                    elif known.__class__ is Known:
                        journey, promise.timestamp, promise.origin = (
                            known.journey,
                            known.timestamp,
                            known.origin,
                        )
                    worker.origin = promise.origin
                    worker.entry = value, timestamp = promise.value, promise.timestamp
                else:
                    if not inbox or self._held >= self._room:
                        await self._park(worker)
                        continue
                    worker.entry = value, timestamp = inbox.popleft()
                    self._held += 1
                    if timestamp.__class__ in MARKED:
                        if timestamp.__class__ is tuple:
                            timestamp, worker.origin = timestamp
                        elif timestamp.__class__ is Known:
                            journey, worker.origin, timestamp = (
                                timestamp.journey,
                                timestamp.origin,
                                timestamp.timestamp,
                            )
                        else:
                            self._add_uncalled(value, timestamp)
                            continue
                        worker.entry = value, timestamp
                    elif tracks:
                        worker.origin = None
                    worker.promise = UNMADE
                if not unstamped or unstamped[-1] is not worker:
                    if unstamped and unstamped[-1].promise is UNMADE:
                        self._make_promise(unstamped[-1])
                    unstamped.append(worker)
                    if suspends and serializer is None:
                        self._make_promise(worker)  # now, while all that it takes is at hand
                if journey is not None and worker.promise is UNMADE:
                    self._make_promise(worker)  # which keeps the journey with the result
                if not self._turning:
                    self._schedule_turn()
                try:
                    given = self._copy(value) if copies and value.__class__ not in IMMUTABLE else value
                    known = None
                    if tracks:
                        if identifies:
                            self._identify(worker)
                        CURRENT.set((name, worker.origin, log, retries))
                        base = copy_context()  # the next call sets its own
                        if awaited and journaled is not None:
                            known = journaled.take(worker.origin)
                    if known is not None:
                        outcome = known
                        self._promise_of(worker)  # for it is none that passes
                    elif journey is None:
                        outcome = await self._function(given)
                    else:
                        outcome = await call_followed(self._called, given, journey, self.context.name)
                    if flat and known is None:
                        outcome = Several(several(outcome))
                    self._special += flat or known is not None
                    if journey is not None:
                        outcome = Arrived(outcome, journey)
                        self._special += not flat
                except BaseException as error:
                    outcome = self._failed(worker, error)
                made = worker.promise
                if made is UNMADE and direct and outcome is not PENDING:
                    if not ahead and (not in_order or unstamped[0] is worker):
                        values.append(outcome)
                        timestamps.append(timestamp)
                        if tracks:
                            origins.append(worker.origin)
                    else:
                        promise = Promise()
                        promise.value, promise.timestamp, promise.outcome = value, timestamp, outcome
                        promise.started, promise.origin = None, worker.origin
                        add(promise)
                        finish(promise)
                        if note is not None:
                            note(promise)
                    worker.promise = None
                else:
                    if made is UNMADE or made is None:
                        made = self._promise_of(worker)
                    promise, worker.promise = made, None
                    began = promise.started
                    suspends = began is not None
                    if outcome is not PENDING and promise.outcome is PENDING:
                        if journaled is None or note is not None:
                            promise.outcome = outcome
                            finish(promise)
                            if note is not None:
                                note(promise)
                        else:
                            journaled.add(promise, outcome)
                        if began is not None:
                            ended(began)
                    if serializer is not None:
                        serializer.leave(promise)
                    if not self._turning:
                        self._schedule_turn()
                try:
                    if copy_context() == base and not worker.doomed and not cancelling():
                        continue
                except Exception:  # to compare contexts is to compare the user's values
                    pass
                self._soil(worker)
                return
        except BaseException as error:  # not of the call: of a key whose hash has changed, say
            if self._is_asked_to_end(worker, error):
                raise
            self._fail(self.blame(worker.entry[0], error))
        finally:
            self._retire(worker)

    def _identify(self, worker: Worker) -> None:
        """Have the element's origin be what the user says tells it from others."""
        assert self.settings.identity is not None
        worker.origin = identified(self.settings.identity, self.context.pipeline, worker.entry[0])
        if isinstance(worker.promise, Promise):
            worker.promise.origin = worker.origin

    def _copy(self, value: Any) -> Any:
        """What a call is given, to do with as it likes."""
        try:
            return detached(value)
        except Exception as error:
            if self.settings.copy_input:
                raise TypeError(
                    f"copy_input: the element cannot be copied: {describe_error(error)}"
                ) from error
            if not self._uncopied:
                self._uncopied = True
                _log.warning(
                    "step %r: elements of type %s cannot be copied; a call that changes one changes what "
                    "checkpoints keep of it (copy_input=False says that it does not)",
                    self.context.name,
                    type(value).__name__,
                )
            return value

    def _promise_of(self, worker: Worker) -> Promise:
        """The promise for the element of a busy worker; made now if it does not exist yet."""
        if worker.promise is UNMADE:
            self._make_promise(worker)
        assert isinstance(worker.promise, Promise)
        return worker.promise

    def _make_promise(self, worker: Worker) -> None:
        worker.promise = promise = Promise()
        promise.value, promise.timestamp = worker.entry
        promise.outcome, promise.started, promise.origin = PENDING, None, worker.origin
        self._queue.add(promise)

    def _make_last_promise(self) -> None:
        """If the call that started last runs without a promise, make it: something comes behind it."""
        if self._unstamped and self._unstamped[-1].promise is UNMADE:
            self._make_promise(self._unstamped[-1])

    def _add_uncalled(self, value: Any, what: Any) -> None:
        self._make_last_promise()
        self._special += 1
        promise = Promise()
        if isinstance(what, Finished):
            promise.value, promise.timestamp, promise.outcome = value, what.timestamp, what.outcome
            promise.started, promise.origin = None, what.origin
            self._queue.add(promise)
            self._queue.finish(promise)
        else:
            promise.value, promise.timestamp, promise.outcome = None, None, Passage(what)
            promise.started = promise.origin = None
            self._queue.add_control(promise)
        self._schedule_turn()

    async def _park(self, worker: Worker) -> None:
        self._burst = 1
        worker.parked = self._loop.create_future()
        self._idle_workers.append(worker)
        try:
            await worker.parked
        finally:
            worker.parked = None

    def _soil(self, worker: Worker) -> None:
        if not worker.doomed and not worker.task.cancelling():
            self._soiled += 1
            if self._soiled == SOILED_LIMIT and self.settings.isolation == "pool":
                self._isolate()

    def _isolate(self) -> None:
        """From now on, make every call in a task and a context of its own."""
        function, loop, base = self._function, self._loop, self._base
        name = f"asyncstream {self.context.name}"  # whose it is, should it hold the loop

        async def whole(value: Any) -> Any:  # what gives a future, say, does part of its work before
            return await function(value)

        call: Callable[[Any], Any] = function if is_async_function(function) else whole

        async def in_own_task(value: Any) -> Any:
            context = base.copy()
            if self._tracks:
                context.run(CURRENT.set, CURRENT.get())
            return await asyncio.Task(call(value), loop=loop, name=name, context=context)

        self._function = in_own_task

    def _retire(self, worker: Worker) -> None:
        self._workers.discard(worker)
        if self._loop.is_closed():
            return
        if worker.promise is not None:
            promise = self._promise_of(worker)
            if promise.outcome is PENDING:
                error = InternalError("the task of this call ended without an outcome")
                self._fail(UserFunctionError(self.context.name, promise.value, error))
        self._schedule_turn()

    def _next_of_a_free_key(self, serializer: KeySerializer) -> Promise | None:
        """The next promise whose key has no call running; None if there is none, or no room."""
        while not (self._halted or self._settled):
            if serializer.released:
                return serializer.released.popleft()
            if not self._inbox or self._held >= self._room:
                break
            value, timestamp = self._inbox.popleft()
            self._held += 1
            if timestamp.__class__ in UNCALLED:
                self._add_uncalled(value, timestamp)
                continue
            promise = Promise()
            promise.value, promise.timestamp, promise.outcome = value, timestamp, PENDING
            promise.started = promise.origin = None
            self._queue.add(promise)
            try:
                if serializer.enter(promise):
                    return promise
                self._schedule_turn()  # the inbox has drained by one, though no call has started
            except BaseException as error:
                self._fail(self.blame(value, error))
                if isinstance(error, KeyboardInterrupt | SystemExit):
                    raise
        return None

    # ------------------------------------------------------------------ errors and timeouts

    def _fail(self, error: BaseException) -> None:
        if not self._halted:
            self.halt()
            self.context.fail(error)

    def _failed(self, worker: Worker, error: BaseException) -> Any:
        """The outcome of a call that raised; PENDING if it has none."""
        promise = self._promise_of(worker)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            self._fail(error)  # not about this element: the process is asked to stop
            raise error
        if isinstance(error, GeneratorExit) and asyncio.current_task(self._loop) is not worker.task:
            raise error  # not raised by the call but thrown into it: the loop is torn down
        if worker.doomed:
            return PENDING  # its timeout has completed the promise
        if self._halted:
            if isinstance(error, asyncio.CancelledError):
                raise error
            return PENDING  # kept for the snapshot
        self._counts["failed"] += 1
        outcome = self._outcome_of(FAILED, self.settings.on_error, worker, promise, error)
        if promise.started is not None:
            now = self._loop.time()
            self._times.failed.add(now - promise.started, now)
            promise.started = None  # or it would be taken for one that ended well
        return outcome

    def _is_asked_to_end(self, worker: Worker, error: BaseException) -> bool:
        """Whether `error` was thrown into the task of a worker, or asks the process to end."""
        if isinstance(error, asyncio.CancelledError):
            return self._halted or worker.task.cancelling() > 0
        if isinstance(error, GeneratorExit):
            return asyncio.current_task(self._loop) is not worker.task
        return isinstance(error, KeyboardInterrupt | SystemExit)

    def _outcome_of(
        self, tag: str, choice: object, worker: Worker, promise: Promise, error: BaseException
    ) -> Any:
        self._special += 1
        if choice != "fail":
            name, now_ms = self.context.name, self.context.clock.now_ms()
            self._recent_failures.note(name, promise.value, error, now_ms, skipped=choice == "skip")
        if choice == "skip":
            self._counts["skipped"] += 1
            return DROPPED
        if choice == "route":
            return Routed(tag, self._failed_call(worker, promise, error))
        failure = UserFunctionError(self.context.name, promise.value, error)
        failure.__cause__ = error
        self._fail(failure)
        return PENDING

    def _failed_call(self, worker: Worker, promise: Promise, error: BaseException) -> FailedCall:
        now_ms = self.context.clock.now_ms()
        began_ms = now_ms
        if promise.started is not None:
            began_ms -= round((self._loop.time() - promise.started) * 1000)
        value, timestamp, attempts = promise.value, promise.timestamp, attempts_of(error)
        return FailedCall(value, error, attempts, timestamp, began_ms, now_ms, promise.origin)

    def _stamp(self) -> None:
        """Note since when the calls run that have suspended since the last turn."""
        self._make_last_promise()
        now = self._loop.time() if self._deadlines is None else self._deadlines.stamp()
        suspended = [worker for worker in self._unstamped if worker.promise is not None]
        self._unstamped.clear()
        for worker in suspended:
            worker.promise.started = now  # type: ignore[union-attr]  # none of them is without
        if suspended and self._deadlines is not None:
            self._deadlines.add(suspended, now)

    def _time_out(self, worker: Worker, promise: Promise) -> bool:
        """Complete a promise whose time is up, and have its call end; False if the step has halted."""
        self._counts["timed_out"] += 1
        if promise.started is not None:
            now = self._loop.time()
            self._times.timed_out.add(now - promise.started, now)
        on_timeout = self._on_timeout
        if callable(on_timeout):
            try:
                outcome = on_timeout(promise.value)
                if self.settings.flat:
                    outcome = Several(several(outcome))
                    self._special += 1
            except (KeyboardInterrupt, SystemExit) as end:
                self._fail(self.blame(promise.value, end))
                raise  # not about this element: the process is asked to stop
            except Exception as raised:
                outcome = self._outcome_of(FAILED, self.settings.on_error, worker, promise, raised)
            except BaseException as raised:  # is not about this element either: never skipped or routed
                outcome = self._outcome_of(FAILED, "fail", worker, promise, raised)
        else:
            error = CallTimeout(f"no result within {self.settings.timeout} s")
            outcome = self._outcome_of("timed_out", on_timeout, worker, promise, error)
        worker.doomed = True
        worker.task.cancel()
        if outcome is not PENDING:
            if self._journaled is None:
                promise.outcome = outcome
                self._queue.finish(promise)
            else:
                self._journaled.add(promise, outcome)
        self._schedule_turn()
        return not self._halted

    # ------------------------------------------------------------------ snapshot

    def snapshot(self) -> Any:
        self._make_last_promise()
        values, timestamps, origins = self._passed
        passed = (
            ["emitted", result, timestamp, *([list(origin)] if origin else [])]
            for result, timestamp, origin in zip(values, timestamps, origins or repeat(None), strict=False)
        )
        unwritten = {} if self._journaled is None else self._journaled.outcomes
        kept: Iterable[tuple[Promise, Any]] = (
            (promise, unwritten.get(promise, promise.outcome)) for promise in self._queue
        )
        if self._serializer is not None:
            kept = self._serializer.kept(kept)
        held = (
            entry_of(promise.value, promise.timestamp, outcome, promise.origin if self._tracks else None)
            for promise, outcome in kept
        )
        waiting = (entry_of(value, timestamp) for value, timestamp in self._inbox)
        # not the end of input: the sources say it again, and after a drain they go on
        entries = [entry for entry in (*passed, *held, *waiting) if entry not in _OF_THIS_RUN]
        if self._watermark > MIN_TIMESTAMP:  # those downstream are to know again what is late
            entries.insert(0, [REACHED, self._watermark])
        return entries

    def restore(self, state: Any) -> None:
        call_all = self.settings.replay == "all"
        reached = [entry[1] for entry in state if entry[0] == REACHED]
        entries = [entry for entry in state if entry[0] != REACHED]
        self._watermark = max([self._watermark, *reached])
        self._is_restored = True
        if self._serializer is not None:
            entries = list(self._serializer.in_order(entries))
        self._inbox.extend(inbox_item(entry, call_all=call_all) for entry in entries)
        self._accepted()

    def resume(self) -> None:
        if self._watermark > MIN_TIMESTAMP:
            super().restore_watermark(self._watermark)

    def restore_watermark(self, timestamp: int) -> None:
        if not self._is_restored:  # else upstream is ahead of what has been emitted here
            self._watermark = timestamp
            super().restore_watermark(timestamp)
