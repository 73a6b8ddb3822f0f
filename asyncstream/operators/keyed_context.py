"""
What the user's function for each key may ask for: its key, times, timers, state and side outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from itertools import count
from typing import Any, ClassVar, TypeVar

from asyncstream.clock import Clock
from asyncstream.errors import PipelineError
from asyncstream.operators.emitting import BufferedEmitter
from asyncstream.state import KeyedState, State, StateDescriptor
from asyncstream.timers import TimerService

__all__ = ("KeyedContext", "TimeDomain")

S = TypeVar("S", bound=State)


class TimeDomain(Enum):
    """Which time a timer waits for."""

    EVENT = "event"
    PROCESSING = "processing"


class KeyedContext:
    """
    What a `KeyedProcessFunction` may ask for.

    Attributes:
        key: whose element or timer this is; state and timers are this key's.
        timestamp: the element's event time, or the timer's time, in milliseconds since the epoch; never
            beyond the ends of time, where timers may be. To read it raises `PipelineError` where there is
            none: without `event_time` before the step, and in `open`.
        domain: which time the firing timer waited for; None while an element is processed.
    """

    __slots__ = (
        "_clock",
        "_out",
        "_register_event",
        "_register_processing",
        "_state",
        "_timers",
        "domain",
        "key",
        "timestamp",
    )

    timestamp: int

    def __init__(self, out: BufferedEmitter, state: KeyedState, timers: TimerService, clock: Clock) -> None:
        self.key: Any = None
        self.domain: TimeDomain | None = None
        self._out = out
        self._state = state
        self._timers = timers
        self._register_event: Callable[[int, Any], object] = timers.event.register
        self._register_processing: Callable[[int, Any], object] = timers.register_processing
        self._clock = clock
        self._forget_timestamp()

    @property
    def timestamp_or_none(self) -> int | None:
        """`timestamp`, or None where there is none: for functions that work with and without event time."""
        return self.timestamp

    def _forget_timestamp(self) -> None:
        """There is no timestamp until one is set; for whoever drives the function."""
        kind: Any = type(self)
        self.__class__ = _without_timestamp(kind)

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

        Raises:
            PipelineError: as `register_processing_timer` does, if the function has no `on_timer`.
        """
        register = self._register_event  # called as an attribute, it would be looked up as a method first
        register(timestamp, self.key)

    def delete_event_timer(self, timestamp: int) -> None:
        """Have no event-time timer at `timestamp`."""
        self._timers.event.delete(timestamp, self.key)

    def register_processing_timer(self, timestamp: int) -> None:
        """Have `on_timer` called once the clock reaches `timestamp`, milliseconds since the epoch."""
        register = self._register_processing
        register(timestamp, self.key)

    def _refuse_timers(self, function: str) -> None:
        """This function, told by its class, has no `on_timer`; for whoever drives it."""

        def register(timestamp: int, key: Any) -> None:
            hash(key)  # to have no key is worse
            raise PipelineError(
                f"{function} has set a timer and has no on_timer, so nothing would come of it; "
                "add def on_timer(self, timestamp, ctx, out)"
            )

        self._register_event = self._register_processing = register

    def _limit_timers(self, most: int) -> None:
        """No more event-time timers than these are to be set from now on; for whoever drives the function."""
        register, numbers = self._register_event, count(1)

        def counted(timestamp: int, key: Any) -> None:
            if next(numbers) > most:
                raise RecursionError(
                    f"on_timer has set {most} timers since the end of input; "
                    "set none when ctx.watermark is MAX_TIMESTAMP"
                )
            register(timestamp, key)

        self._register_event = counted

    def delete_processing_timer(self, timestamp: int) -> None:
        """Have no processing-time timer at `timestamp`."""
        self._timers.processing.delete(timestamp, self.key)

    def side(self, tag: str, value: Any) -> None:
        """
        Send `value` to the side output `tag`, with the timestamp of this element or timer.

        Raises:
            PipelineError: if nothing reads that output; `.side(tag).discard()` says that it is not needed.
        """
        self._out.aside(tag, value, self.timestamp_or_none)

    def state(self, descriptor: StateDescriptor[S]) -> S:
        """The handle for a piece of state; it always works on the current key. Fetch it once, in `open`."""
        return self._state.state(descriptor)


class _WithoutTimestamp:
    """
    What a context is besides while there is no timestamp; the next one that is set makes it what it was.

    So `timestamp` is a plain slot while there is one: that it might be None costs nothing to who reads it. As
    a property it would cost each reader 40 ns in Python 3.11, of the 100 that an element costs.
    """

    __slots__ = ()

    timed: ClassVar[type[KeyedContext]]
    """What it is with one, which has the same slots."""

    timestamp_or_none: ClassVar[None] = None

    @property
    def timestamp(self) -> int:
        raise PipelineError(
            "ctx.timestamp: the element has no timestamp; put .event_time(...) before the step (in a test, "
            "push(value, at=...)), or ask for ctx.timestamp_or_none"
        )

    @timestamp.setter
    def timestamp(self, timestamp: int) -> None:
        self.__class__ = self.timed  # type: ignore[assignment]
        self.timestamp = timestamp


@cache
def _without_timestamp(kind: type[KeyedContext]) -> type[KeyedContext]:
    """What contexts of this class are without a timestamp: a subclass that Python's errors call the same."""
    if issubclass(kind, _WithoutTimestamp):
        return kind
    named = {name: getattr(kind, name) for name in ("__module__", "__qualname__")}
    return type(kind.__name__, (_WithoutTimestamp, kind), {"__slots__": (), "timed": kind, **named})
