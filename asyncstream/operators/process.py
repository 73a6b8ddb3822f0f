"""
Keyed process functions: the user's own state machine for each key, with state, timers and side outputs.

What they are given besides the element is in `keyed_context` and `emitting`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.errors import CheckpointError, PipelineError, naming_step
from asyncstream.operators.base import OperatorContext, pairs
from asyncstream.operators.emitting import BufferedEmitter, Emitter
from asyncstream.operators.exclusive import give_back, take
from asyncstream.operators.failures import Failures, OnError
from asyncstream.operators.keyed_context import KeyedContext, TimeDomain
from asyncstream.operators.results import FirstKeys, Kinds, nothing_returned
from asyncstream.operators.timed import ClockedOperator, TimedOperator
from asyncstream.state import KeyedState
from asyncstream.state.keys import NoKey
from asyncstream.state.snapshots import is_snapshot
from asyncstream.state.timer_queue import OnTimer, Timer
from asyncstream.state.upgrade import upgraded_process

__all__ = ("KeyedFunction", "KeyedFunctionOperator", "KeyedProcessFunction", "KeyedProcessOperator")

RUNAWAY = 1_000_000
"""Timers that callbacks may set, beyond one for each that is left, while the end of input fires these."""

In = TypeVar("In")
Out = TypeVar("Out")

_NOT_YET: Final = NoKey(
    "open comes before the first key, so there is no keyed state and no timer yet; fetch handles there with "
    "ctx.state(descriptor), and use them in process_element and on_timer"
)

_EVENT: Final = TimeDomain.EVENT
"""The same, without the detour that a member of an `Enum` is looked up by in 3.11."""


class KeyedFunction:
    """
    What all user functions that work on one key at a time have in common.

    One object serves all keys, so keep what belongs to a key in state, not in attributes.

    With `on_error="skip"` or `"route"`, an element for which the function raises emits nothing, neither by
    `out` nor by `ctx.side`. Its changes to state and timers up to then stay, so make them last, when nothing
    can fail any more. A timer is not an element: an `on_timer` that raises always fails the job.

    Attributes:
        sides: the tags that it sends to with `ctx.side`, where they are known: each must then have a reader,
            and there is no other to read; None: they are found out as it runs.
    """

    sides: ClassVar[tuple[str, ...] | None] = None

    def open(self, ctx: Any, /) -> None:
        """Called once before the first element: fetch state handles here, with `ctx.state`."""

    def on_timer(self, timestamp: int, ctx: Any, out: Emitter[Any], /) -> None:
        """
        Handle a timer of `ctx.key`, which has one timer for each millisecond at most, whatever it is for.

        At the end of input event time goes to its end, and every timer of it fires; the clock does not run on
        to those of processing time. A function that sets the next timer with each would go on for ever: it
        stops when `ctx.watermark` is `MAX_TIMESTAMP`.

        What an event-time timer emits carries the timer's timestamp; of one beyond the end of time, where
        `ctx.timestamp` + a minute may be, the last that there is. What a processing-time timer emits carries
        none, since its time has nothing to do with event time.
        """

    def close(self) -> None:
        """Called once, at the end, also after a failure."""


class KeyedProcessFunction(KeyedFunction, Generic[In, Out]):
    """
    Your code for one key at a time: override `process_element`, and whatever else you need.

    See `KeyedFunction` for the rules of all such functions.
    """

    def open(self, ctx: KeyedContext, /) -> None:
        """Called once before the first element: fetch state handles here, with `ctx.state`."""

    def process_element(self, value: In, ctx: KeyedContext, out: Emitter[Out], /) -> None:
        """Handle one element; `out(result)` emits with the element's timestamp."""
        raise TypeError(f"{type(self).__name__} does not override process_element")

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Out], /) -> None:
        """Handle a timer of `ctx.key`; see `KeyedFunction`."""


class KeyedFunctionOperator(ClockedOperator, TimedOperator):
    """
    Base of operators that run a `KeyedFunction`: they say what takes the elements.

    Emits when the function does, for an element or for a timer; processing-time timers wait while there is no
    room for what they emit. Passes a watermark on after all that its
    timers emitted. Completes with its input; processing-time timers that are pending then do not fire.
    Snapshot holds: keyed state and timers.
    """

    declares: ClassVar[type[KeyedFunction]]
    """What such functions are subclasses of."""

    def __init__(self, function: KeyedFunction, on_error: OnError = "fail") -> None:
        """`function` belongs to this operator alone."""
        super().__init__()
        self._function = function
        self._on_timer: Callable[..., object] = function.on_timer
        self._failures = Failures(self, on_error)
        self._emitter = BufferedEmitter(self)
        self._emit: Emitter[Any] = self._emitter.emit
        self._kinds = Kinds()
        self._ended = False

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._state = KeyedState(context.clock, self.tables)
        self._timers = self._new_timers(self._firing(is_event=True), self._firing(is_event=False))
        self._ctx = self._new_context()
        if getattr(self._on_timer, "__func__", None) is self.declares.on_timer:
            self._ctx._refuse_timers(type(self._function).__name__)
        take(self, self.context.name, self._function)
        self._ctx.key = self._state.key = _NOT_YET
        with naming_step(context.name, PipelineError, CheckpointError):
            self._function.open(self._ctx)

    def _new_context(self) -> KeyedContext:
        """What the function may ask for."""
        return KeyedContext(self._emitter, self._state, self._timers, self.context.clock)

    def process_with(
        self,
        values: Sequence[Any],
        timestamps: Timestamps,
        key_by: Callable[[Any], Any],
        process_element: Callable[..., object],
    ) -> None:
        """
        Have elements processed in order, by this method of the function. Of one that fails, where the job
        goes on all the same, nothing is emitted.
        """
        elements = pairs(values, timestamps)
        ctx, state, emitter, emit = self._ctx, self._state, self._emitter, self._emitter.emit
        is_borne = not self._failures.fatal
        ctx.domain = None
        value = timestamp = mark = None
        is_done = False
        while not is_done:
            try:
                for value, timestamp in elements:
                    if is_borne:
                        mark = emitter.mark()
                    ctx.key = state.key = key_by(value)
                    if timestamp is not None:
                        ctx.timestamp = emitter.timestamp = timestamp
                    else:
                        emitter.timestamp = None
                        if ctx.timestamp_or_none is not None:
                            ctx._forget_timestamp()
                    if (result := process_element(value, ctx, emit)) is not None:
                        nothing_returned(result, self._kinds, self.context.name)
                is_done = True
            except BaseException as error:
                if mark is not None:
                    emitter.take_back(mark)
                emitter.flush()
                self._failures.take(value, timestamp, error)
        emitter.flush()

    def _advancing(self, timestamp: int) -> Iterator[None]:
        if timestamp == MAX_TIMESTAMP:
            self._ctx._limit_timers(len(self._timers.event) + RUNAWAY)
        self._ctx.domain = _EVENT
        return super()._advancing(timestamp)

    def advance_clock(self, now_ms: int) -> None:
        if not self._ended:
            self._ctx.domain = TimeDomain.PROCESSING
            super().advance_clock(now_ms)

    def end_input(self) -> None:
        self._ended = True
        super().end_input()

    def _catch_up(self) -> None:
        self._ctx.domain = TimeDomain.PROCESSING
        super()._catch_up()

    def upgraded(self, state: Any) -> Any:
        return state if is_snapshot(state) else upgraded_process(state)

    def close(self) -> None:
        if give_back(self, self._function):
            self._function.close()

    def metrics(self) -> dict[str, int]:
        return {**self._failures.metrics(), "state_entries": len(self._state), **super().metrics()}

    def _firing(self, is_event: bool) -> OnTimer:
        """
        What has the function handle a timer, of event time or of processing time.

        It is no method: that would look four things up for each timer.
        """
        state, emitter, emit, on_timer = self._state, self._emitter, self._emit, self._on_timer

        def fire(timestamp: int, key: Any, namespace: Any) -> None:
            ctx = self._ctx
            ctx.key = state.key = key
            # a timer may be where no timestamp may; two comparisons cost less than a chain of them
            at_ms = timestamp
            if timestamp > MAX_TIMESTAMP or timestamp < MIN_TIMESTAMP:
                at_ms = max(MIN_TIMESTAMP, min(timestamp, MAX_TIMESTAMP))
            ctx.timestamp = at_ms
            emitter.timestamp = at_ms if is_event else None
            try:
                if (result := on_timer(timestamp, ctx, emit)) is not None:
                    nothing_returned(result, self._kinds, self.context.name)
            except BaseException as error:
                emitter.flush()
                self.fail_on(Timer(timestamp, key, None), error)

        return fire


class KeyedProcessOperator(KeyedFunctionOperator):
    """Runs a `KeyedProcessFunction`."""

    declares = KeyedProcessFunction
    _function: KeyedProcessFunction[Any, Any]

    def __init__(
        self,
        key_by: Callable[[Any], Any],
        function: KeyedProcessFunction[Any, Any],
        on_error: OnError = "fail",
    ) -> None:
        """As a `KeyedFunctionOperator`; keys are hashable and compare by value."""
        super().__init__(function, on_error)
        self._key_by: Callable[[Any], Any] = FirstKeys(self, key_by)

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.process_with(values, timestamps, self._key_by, self._function.process_element)
