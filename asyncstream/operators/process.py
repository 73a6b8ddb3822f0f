"""
Keyed process functions: the user's own state machine for each key, with state, timers and side outputs.

Also what every keyed operator with user code needs: `Emitter`, the `out` that such code is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Any, ClassVar, Final, Generic, TypeVar

from asyncstream.clock import Clock
from asyncstream.elements import MAX_TIMESTAMP, Timestamps
from asyncstream.errors import PipelineError
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.operators.exclusive import give_back, take
from asyncstream.operators.failures import Failures, OnError
from asyncstream.operators.results import FirstKeys, Kinds, nothing_returned
from asyncstream.operators.timed import TimedOperator
from asyncstream.state import (
    KeyedState,
    State,
    StateDescriptor,
)
from asyncstream.state.tables import is_snapshot
from asyncstream.state.timer_queue import Timer
from asyncstream.state.upgrade import upgraded_process
from asyncstream.timers import TimerService

__all__ = (
    "BURST",
    "Emitter",
    "KeyedContext",
    "KeyedFunction",
    "KeyedFunctionOperator",
    "KeyedProcessFunction",
    "KeyedProcessOperator",
    "TimeDomain",
)

RUNAWAY = 1_000_000
"""Timers that callbacks may set, one after the other, while the end of input fires all that are left."""

S = TypeVar("S", bound=State)
T = TypeVar("T")
In = TypeVar("In")
Out = TypeVar("Out")


BURST: Final = 250
"""
Results that `Emitter.extend` holds at most before it hands them on, so that a burst does not pile up.

Each may be some objects: fewer than make Python's collector look at all that is new, 700 in 3.11.
"""


class TimeDomain(Enum):
    """Which time a timer waits for."""

    EVENT = "event"
    PROCESSING = "processing"


_EVENT: Final = TimeDomain.EVENT
"""The same, without the detour that a member of an `Enum` is looked up by in 3.11."""


class Emitter(Generic[Out]):
    """
    The `out` of user functions: `out(value)` emits one result.

    Results are collected and handed on in batches, before anything else leaves the operator.

    Args:
        operator: what results leave.
        whole: hand on nothing before `flush`, so that it can be taken back until then.

    Attributes:
        timestamp: what the next results carry, milliseconds since the epoch, or None.
    """

    __slots__ = ("_aside", "_operator", "_timestamps", "_values", "timestamp", "whole")

    def __init__(self, operator: Operator, *, whole: bool = False) -> None:
        self.timestamp: int | None = None
        self._operator = operator
        self.whole = whole
        self._values: list[Out] = []
        self._timestamps: list[int | None] = []
        self._aside: list[tuple[int, str, Any, int | None]] = []
        """What goes aside, each with the number of results that go before it."""

    def __call__(self, value: Out) -> None:
        self._values.append(value)
        self._timestamps.append(self.timestamp)

    def extend(self, values: list[Out], timestamp: int | None) -> None:
        """Emit several results that carry the same timestamp."""
        self._values += values
        self._timestamps += [timestamp] * len(values)
        if not self.whole:
            self.relieve()

    def aside(self, tag: str, value: Any, timestamp: int | None) -> None:
        """
        Send `value` to the side output `tag`, after what was emitted before it.

        Raises:
            PipelineError: if nothing reads that output, so that the value would be lost.
        """
        if tag not in self._operator.side:
            raise PipelineError(
                f"nothing reads the side output {tag!r}; read it with .side({tag!r}).to(...), "
                f"or say that it is not needed with .side({tag!r}).discard()"
            )
        self._aside.append((len(self._values), tag, value, timestamp))

    def flush(self) -> None:
        """Hand on what was collected, in its order."""
        if not self._values and not self._aside:
            return
        values, timestamps, aside = self._values, self._timestamps, self._aside
        self._values, self._timestamps, self._aside = [], [], []
        start = 0
        for place, tag, value, timestamp in aside:
            if place > start:
                self._operator.out.process_batch(values[start:place], timestamps[start:place])
                start = place
            self._operator.side_output(tag).process(value, timestamp)
        if start < len(values):
            if start:
                values, timestamps = values[start:], timestamps[start:]
            self._operator.out.process_batch(values, timestamps)

    def relieve(self) -> None:
        """Hand on what was collected if it is much."""
        if len(self._values) + len(self._aside) >= BURST:
            self.flush()

    def mark(self) -> tuple[int, int]:
        """How much is collected now, for `take_back`."""
        return len(self._values), len(self._aside)

    def take_back(self, mark: tuple[int, int]) -> None:
        """Forget what was collected since `mark`; only if the emitter is `whole`."""
        del self._values[mark[0] :], self._timestamps[mark[0] :], self._aside[mark[1] :]


class KeyedContext:
    """
    What a `KeyedProcessFunction` may ask for.

    Attributes:
        key: whose element or timer this is; state and timers are this key's.
        timestamp: the element's event time (None without `event_time` before the step) or the timer's time,
            in milliseconds since the epoch.
        domain: which time the firing timer waited for; None while an element is processed.
    """

    __slots__ = ("_clock", "_out", "_register", "_state", "_timers", "domain", "key", "timestamp")

    def __init__(self, out: Emitter[Any], state: KeyedState, timers: TimerService, clock: Clock) -> None:
        self.key: Any = None
        self.timestamp: int | None = None
        self.domain: TimeDomain | None = None
        self._out = out
        self._state = state
        self._timers = timers
        self._register = timers.event.register
        self._clock = clock

    @property
    def watermark(self) -> int:
        """The event time reached, in milliseconds; `MIN_TIMESTAMP` before the first watermark."""
        return self._timers.watermark

    @property
    def now_ms(self) -> int:
        """Processing time, milliseconds since the epoch."""
        return self._clock.now_ms()

    def register_event_timer(self, timestamp: int) -> None:
        """
        Have `on_timer` called once the watermark reaches `timestamp`, milliseconds since the epoch.

        A timer that is due already waits for the next watermark; one registered by `on_timer` does not.
        """
        register = self._register  # called as an attribute, it would be looked up as a method first
        register(timestamp, self.key)

    def delete_event_timer(self, timestamp: int) -> None:
        """Have no event-time timer at `timestamp`."""
        self._timers.event.delete(timestamp, self.key)

    def register_processing_timer(self, timestamp: int) -> None:
        """Have `on_timer` called once the clock reaches `timestamp`, milliseconds since the epoch."""
        self._timers.register_processing(timestamp, self.key)

    def delete_processing_timer(self, timestamp: int) -> None:
        """Have no processing-time timer at `timestamp`."""
        self._timers.processing.delete(timestamp, self.key)

    def side(self, tag: str, value: Any) -> None:
        """
        Send `value` to the side output `tag`, with the timestamp of this element or timer.

        Raises:
            PipelineError: if nothing reads that output; `.side(tag).discard()` says that it is not needed.
        """
        self._out.aside(tag, value, self.timestamp)

    def state(self, descriptor: StateDescriptor[S]) -> S:
        """The handle for a piece of state; it always works on the current key. Fetch it once, in `open`."""
        return self._state.state(descriptor)


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

        At the end of input event time goes to its end, and every timer fires. A function that sets the next
        timer with each would go on for ever: it stops when `ctx.watermark` is `MAX_TIMESTAMP`.

        What an event-time timer emits carries the timer's timestamp. What a processing-time timer emits
        carries none, since its time has nothing to do with event time.
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


class KeyedFunctionOperator(TimedOperator):
    """
    Base of operators that run a `KeyedFunction`: they say what takes the elements.

    Emits when the function does, for an element or for a timer; processing-time timers wait while there is no
    room for what they emit. Passes a watermark on after all that its
    timers emitted. Completes with its input; processing-time timers that are pending then do not fire.
    Snapshot holds: keyed state and timers.
    """

    def __init__(self, function: KeyedFunction, on_error: OnError = "fail") -> None:
        """`function` belongs to this operator alone."""
        super().__init__()
        self._function = function
        self._on_timer: Callable[..., object] = function.on_timer
        self._failures = Failures(self, on_error)
        self._emitter: Emitter[Any] = Emitter(self, whole=not self._failures.fatal)
        self._kinds = Kinds()
        self._timers_left: int | None = None  # that may fire at the end of time
        self._ended = False

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self._state = KeyedState(context.clock, self.tables)
        self._timers = TimerService(
            self._fire,
            self._fire,
            context.wake_at,
            self._has_room,
            context.wake_with_room,
            tables=self.tables,
            blame=self.blame,
        )
        self._ctx = self._new_context()
        take(self, self._function)
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
        """Have elements processed in order, by this method of the function."""
        elements = pairs(values, timestamps)
        if not self._failures.fatal:
            self._process_each(elements, key_by, process_element)
            return
        ctx, state, out = self._ctx, self._state, self._emitter
        ctx.domain = None
        value = None
        try:
            for value, timestamp in elements:
                ctx.key = state.key = key_by(value)
                ctx.timestamp = out.timestamp = timestamp
                if (result := process_element(value, ctx, out)) is not None:
                    nothing_returned(result, self._kinds, self.context.name)
        except BaseException as error:
            out.flush()
            self.fail_on(value, error)
        out.flush()

    def _process_each(
        self,
        elements: Iterator[tuple[Any, int | None]],
        key_by: Callable[[Any], Any],
        process_element: Callable[..., object],
    ) -> None:
        """As `process_with`, and of an element that fails nothing is emitted."""
        ctx, state, out = self._ctx, self._state, self._emitter
        ctx.domain = None
        for value, timestamp in elements:
            mark = out.mark()
            try:
                ctx.key = state.key = key_by(value)
                ctx.timestamp = out.timestamp = timestamp
                if (result := process_element(value, ctx, out)) is not None:
                    nothing_returned(result, self._kinds, self.context.name)
            except BaseException as error:
                out.take_back(mark)
                out.flush()
                self._failures.take(value, timestamp, error)
        out.flush()

    def advance_watermark(self, timestamp: int) -> None:
        if timestamp == MAX_TIMESTAMP:
            self._catch_up()
            self._timers_left = len(self._timers.event) + RUNAWAY
        self._ctx.domain = _EVENT
        self._timers.advance_watermark(timestamp)
        self._emitter.flush()
        super().advance_watermark(timestamp)

    def advance_clock(self, now_ms: int) -> None:
        if not self._ended:
            self._ctx.domain = TimeDomain.PROCESSING
            self._timers.advance_clock(now_ms)
            self._emitter.flush()

    def end_input(self) -> None:
        self._catch_up()
        self._emitter.flush()
        self._ended = True
        super().end_input()

    def _catch_up(self) -> None:
        """Fire the processing-time timers that have waited for room."""
        self._ctx.domain = TimeDomain.PROCESSING
        self._timers.catch_up(self.context.clock.now_ms() - 1)

    def upgraded(self, state: Any) -> Any:
        return state if is_snapshot(state) else upgraded_process(state)

    def close(self) -> None:
        if give_back(self, self._function):
            self._function.close()

    def metrics(self) -> dict[str, int]:
        return {
            **self._failures.metrics(),
            "state_entries": len(self._state),
            **self._timers.metrics(),
        }

    def _has_room(self) -> bool:
        self._emitter.relieve()
        return self.context.has_room()

    def _fire(self, timestamp: int, key: Any, namespace: Any) -> None:
        """Have the function handle a timer of the domain that the context is in."""
        if self._timers_left is not None:
            self._timers_left -= self._ctx.domain is _EVENT
            if self._timers_left < 0:
                endless = RecursionError(
                    f"{RUNAWAY} timers that on_timer has set since the end of input have fired; "
                    "set none when ctx.watermark is MAX_TIMESTAMP"
                )
                raise self.blame(Timer(timestamp, key, None), endless)
        ctx, out, on_timer = self._ctx, self._emitter, self._on_timer
        ctx.key = self._state.key = key
        ctx.timestamp = timestamp
        out.timestamp = timestamp if ctx.domain is _EVENT else None
        try:
            if (result := on_timer(timestamp, ctx, out)) is not None:
                nothing_returned(result, self._kinds, self.context.name)
        except BaseException as error:
            out.flush()
            self.fail_on(Timer(timestamp, key, None), error)


class KeyedProcessOperator(KeyedFunctionOperator):
    """Runs a `KeyedProcessFunction`."""

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
