"""
What the user asked of an async step, checked when the pipeline is built.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, TypeAlias, TypedDict

from asyncstream.async_wait.queues import OrderedQueue, PromiseQueue, SegmentedQueue, UnorderedQueue
from asyncstream.errors import PipelineError
from asyncstream.operators.failures import OnError, on_error_choice
from asyncstream.operators.functions import AsyncFunction, call_of
from asyncstream.validation import (
    Duration,
    choice,
    count,
    duration_seconds,
    function,
    is_async_function,
    refuse,
    selector,
)

__all__ = ("AsyncWaitOptions", "AsyncWaitSettings", "OnTimeout", "OutputOrder")

OnTimeout: TypeAlias = Literal["fail", "skip", "route"] | Callable[[Any], Any]


class OutputOrder(Enum):
    """In what order results leave an async step."""

    ORDERED = "ordered"
    """In the order of the inputs."""

    UNORDERED = "unordered"
    """As calls finish. A watermark waits for the elements before it; those after it may go ahead."""

    EVENT_TIME = "event_time"
    """As calls finish, between watermarks: no element crosses one in either direction."""

    PER_KEY = "per_key"
    """In the order of the inputs within a key, whose calls run one at a time; keys run side by side."""

    def queue(self) -> PromiseQueue:
        """The promise queue that keeps this order."""
        if self is OutputOrder.ORDERED:
            return OrderedQueue()
        if self is OutputOrder.EVENT_TIME:
            return SegmentedQueue()
        return UnorderedQueue()


class AsyncWaitOptions(TypedDict, total=False):
    """
    The options of an async step, and what they are if left out.

    Attributes:
        order: an `OutputOrder`, or its value as text. "ordered".
        concurrency: how many calls may run at once; at least 1. 100.
        buffer: how many elements may be held: running, or finished and waiting for their turn to be
            emitted; at least `concurrency`. One slow call then does not keep others from starting.
            16 x `concurrency`.
        timeout: how long the call for one element may take, all its attempts together: a `timedelta` or
            seconds. It is then cancelled, and its place given to another call when it has ended. No bound.
        on_timeout: "fail" the pipeline, "skip" the element (counted), "route" it to the `timed_out`
            output, or a plain function of the element that gives what stands in for the result; an
            `Exception` of its own is treated as `on_error` says, anything else ends the job. "fail".
        on_error: "fail" the pipeline, "skip" the element (counted), "route" it to `failed`. "fail".
        isolation: "pool" makes calls in long-lived tasks; "task" gives every call one of its own, dearer by
            some microseconds, for code that keeps a handle of its task beyond its element. "pool".
        replay: what a restored snapshot calls again: "unfinished" calls, or also "all" those whose results
            still waited for their turn, as Flink does. "unfinished".
        copy_input: give each call a copy of its element, so that what is kept of it (in checkpoints and
            snapshots, `FailedCall.value`, for the timeout's function) is the element as it came, whatever the
            call did to it; attempts of a `retry` share one copy. Immutable elements are not copied. None:
            where checkpoints are kept, and what cannot be copied is then given as it is. None.
        effect: calls do something that must not be done twice: `call_context().idempotency_key` tells each
            element from all others, the same whenever its call is made, also after a restore. True: by where
            the element comes from, which must be a source that can be read again, with no windows or process
            functions on the way. For other streams a function of the element, or the name of a field, that
            gives what tells it from all others for all time: a text, a number, or a tuple. False.
        journal: with checkpoints, write down each call that has ended, before its result goes on: after a
            crash it is not made again, though it ended after the last checkpoint. Elements must have
            positions, or an identity, as for `effect`. True: survives the process; "fsync": results wait
            until they are on the disk, and survive the machine. Errors are not kept. False: not at all. None:
            as True where that can be: checkpoints are taken every so often, their store has a place for it,
            elements have positions, and results can be kept and are not large; what cannot be kept fails no
            job then, but ends the step's journal with a warning. None.
    """

    order: OutputOrder | Literal["ordered", "unordered", "event_time", "per_key"]
    concurrency: int
    buffer: int | None
    timeout: Duration | None
    on_timeout: OnTimeout
    on_error: OnError
    isolation: Literal["pool", "task"]
    replay: Literal["unfinished", "all"]
    copy_input: bool | None
    effect: bool | str | Callable[[Any], Any]
    journal: bool | Literal["fsync"] | None


@dataclass(frozen=True)
class AsyncWaitSettings:
    """
    How an async step makes its calls: `AsyncWaitOptions`, checked and resolved on creation.

    Attributes:
        function: a plain `async def` of one element, or an `AsyncFunction`.
        order, concurrency, buffer, on_timeout, on_error, isolation, replay: as of `AsyncWaitOptions`.
        copy_input, effect, journal: as of `AsyncWaitOptions`.
        timeout: seconds, or None.
        key_by: the key of an element; None unless the order is PER_KEY.
        flat: the function gives an iterable of results rather than one.
        identity: `effect`, if it is a function of the element; None if it is not.
    """

    function: Callable[[Any], Awaitable[Any]] | AsyncFunction[Any, Any]
    order: OutputOrder = OutputOrder.ORDERED
    concurrency: int = 100
    buffer: int | None = None
    timeout: float | None = None
    on_timeout: OnTimeout = "fail"
    on_error: OnError = "fail"
    isolation: Literal["pool", "task"] = "pool"
    replay: Literal["unfinished", "all"] = "unfinished"
    copy_input: bool | None = None
    effect: bool | str | Callable[[Any], Any] = False
    journal: bool | Literal["fsync"] | None = None
    key_by: Callable[[Any], Any] | None = None
    flat: bool = False
    identity: Callable[[Any], Any] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        advice = (
            "use map or flat_map for a plain function, or wrap it in an async def, which a lambda never is; "
            "for one that blocks use thread_map, or in_threads(fn, threads=...) of asyncstream.guards"
        )
        call_of("fn", self.function, "element", advice=advice, yields=self.flat)
        set_ = object.__setattr__  # frozen: only here are arguments turned into what they mean
        order = choice("order", getattr(self.order, "value", self.order), tuple(o.value for o in OutputOrder))
        set_(self, "order", OutputOrder(order))
        count("concurrency", self.concurrency)
        if self.buffer is not None and count("buffer", self.buffer) < self.concurrency:
            raise refuse("buffer", f"at least the concurrency of {self.concurrency}", self.buffer)
        if self.timeout is not None:
            set_(self, "timeout", duration_seconds("timeout", self.timeout))
        elif self.on_timeout != "fail":
            raise refuse("on_timeout", "a timeout to go with it", self.on_timeout, "set timeout=")
        if not callable(self.on_timeout):
            choice("on_timeout", self.on_timeout, ("fail", "skip", "route"))
        elif is_async_function(self.on_timeout):
            raise refuse("on_timeout", "a plain function", self.on_timeout, "there is no time left to wait")
        else:
            function("on_timeout", self.on_timeout, "element", yields=self.flat)
        on_error_choice(self.on_error)
        choice("isolation", self.isolation, ("pool", "task"))
        choice("replay", self.replay, ("unfinished", "all"))
        if self.copy_input is not None and not isinstance(self.copy_input, bool):
            raise refuse("copy_input", "True, False or None", self.copy_input)
        choice("journal", self.journal, (None, False, True, "fsync"))
        if self.journal and self.replay == "all":
            advice = "the journal is there so that they are not"
            raise refuse("replay", "'unfinished' to go with journal=", self.replay, advice)
        if not isinstance(self.effect, bool):
            set_(self, "identity", selector("effect", self.effect))
        if self.order is not OutputOrder.PER_KEY:
            set_(self, "key_by", None)
        elif self.key_by is None:
            raise PipelineError(
                "order: expected a key to go with per_key, got none; put .key_by(...) before the step"
            )

    @property
    def uses_key(self) -> bool:
        """Whether the function makes use of idempotency keys."""
        if self.effect or self.journal:
            return True
        return isinstance(self.function, AsyncFunction) and self.function.uses_key

    @property
    def buffer_size(self) -> int:
        """`buffer`, resolved."""
        return self.buffer or 16 * self.concurrency
