"""
What a user hands to an async step: an `AsyncFunction` object (or a plain `async def`), and what such a
step hands back for a call that gave no result: a `FailedCall`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from inspect import isasyncgenfunction
from numbers import Integral, Real
from typing import Any, Final, Generic, Self, TypeVar
from weakref import WeakValueDictionary

from asyncstream.errors import CallTimeout, describe_error, safe_repr
from asyncstream.sharing import hold, release
from asyncstream.shown import Shown
from asyncstream.validation import is_async_function, overrides, refuse, takes

__all__ = (
    "AsyncFunction",
    "FailedCall",
    "call_of",
    "counters_of",
    "figures_of",
    "has_timeout_hook",
    "unread_of",
)

log = logging.getLogger("asyncstream.job")

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)


class AsyncFunction(Shown, Generic[In, Out]):
    """
    An async function that holds something open while its step runs: a client, a connection pool.

    A plain `async def` serves where nothing is held. Subclasses override `invoke`, and what they need
    of the rest.
    """

    @property
    def uses_key(self) -> bool:
        """Its calls make use of `call_context().idempotency_key`, where elements have one."""
        return False

    async def open(self) -> None:
        """Called once in the event loop of the job, before the first `invoke`."""

    async def invoke(self, value: In, /) -> Out:
        """
        The call for one element. Many run at once in one event loop.

        When the step's timeout passes, or the job stops, `asyncio.CancelledError` is raised inside.
        """
        raise TypeError(f"{type(self).__name__} does not override invoke")

    def timeout(self, value: In, /) -> Out:
        """
        What stands in for the result of a call that timed out. Called only if a subclass overrides it.

        Raises:
            CallTimeout: always, here.
        """
        raise CallTimeout(f"{type(self).__name__} timed out")

    def metrics(self) -> dict[str, int]:
        """Counters and gauges by name, shown with those of the step."""
        return {}

    def counter_names(self) -> tuple[str, ...]:
        """Those of `metrics` that are counters: they only ever grow, and add up over processes."""
        return ()

    async def close(self) -> None:
        """Called once after the last `invoke` has ended, also when `open` or the job failed."""

    async def __aenter__(self) -> Self:
        """
        For use outside a pipeline: `async with` opens it, and closes it at the end. Jobs that use it at the
        same time, and blocks inside this one, find it open, and the last of all of them closes it.
        """
        try:
            await hold(self)
        except BaseException:
            await release(self)
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await release(self)


@dataclass(frozen=True, slots=True)
class FailedCall:
    """
    An element whose call gave no result: what the `failed` and `timed_out` outputs carry.

    Attributes:
        value: the element, as the function was given it.
        error: what the function raised; a `CallTimeout` if its time was up.
        attempts: how many times the function was tried; starts at 1.
        timestamp: the element's event time, milliseconds since the epoch, or None.
        first_ms: processing time at which the call began, milliseconds since the epoch.
        last_ms: processing time at which it was given up.
        origin: what tells the element from all others, where the step keeps track of that (`effect=`): fed
            back with it (`DeadLetterSource`), its call has the same idempotency key.
    """

    value: Any
    error: BaseException
    attempts: int
    timestamp: int | None
    first_ms: int
    last_ms: int
    origin: tuple[Any, ...] | None = None


def call_of(
    name: str,
    fn: Any,
    *arguments: str,
    expected: str = "an async def or an AsyncFunction",
    advice: str = "",
    yields: bool = True,
) -> Callable[..., Awaitable[Any]]:
    """
    What calls `fn`, an `async def` or an `AsyncFunction`.

    Args:
        name: of the argument.
        arguments: what it is called with, in order.
        expected: what it is to be, for the message.
        advice: what to do about a plain function.
        yields: its timeout hook may be a generator.

    Raises:
        PipelineError: if it is neither, or cannot be called so.
    """
    if isinstance(fn, AsyncFunction):
        overrides(name, fn, AsyncFunction, "invoke", yields=yields)
        fn = fn.invoke
    elif not is_async_function(fn):
        if isasyncgenfunction(fn):
            advice = "it must return its results, in a list for async_flat_map, not yield them"
        raise refuse(name, expected, fn, advice)
    takes(name, fn, *arguments)
    call: Callable[..., Awaitable[Any]] = fn
    return call


def has_timeout_hook(function: AsyncFunction[Any, Any]) -> bool:
    """Whether `function` has a `timeout` of its own, by its class or, as guards have, by the instance."""
    return getattr(function.timeout, "__func__", None) is not AsyncFunction.timeout


_told: Final[WeakValueDictionary[tuple[int, str], Any]] = WeakValueDictionary()
"""By id, since not all can be hashed, and method: whose figures the log has told of."""


def figures_of(function: Any) -> dict[str, int]:
    """
    What `function.metrics()` gives, as far as these are names and numbers; nothing if it has no such method.

    Who looks at a job is not to fail over the rest, nor over what it raises: the log tells of that once.
    """
    found: dict[str, Any] = {}
    metrics = getattr(function, "metrics", None)
    if not callable(metrics):
        return found
    wrong: str | None = None
    try:
        for name, value in metrics().items():
            if isinstance(name, str) and name.isprintable() and isinstance(value, Real):
                # not as it is: JSON has no numbers of numpy
                found[name] = int(value) if isinstance(value, Integral) else float(value)
            else:
                wrong = f"{safe_repr(name)} with {safe_repr(value)}"
    except Exception as error:  # of the user's function, or of what it gave
        wrong = describe_error(error)
    if wrong is not None:
        _tell(function, "metrics", "a dict of names and numbers", wrong)
    return found


def counters_of(function: AsyncFunction[Any, Any]) -> tuple[str, ...]:
    """What `function.counter_names()` gives, as `figures_of`; where that is no names, all are gauges."""
    try:
        found: Any = function.counter_names()
        names = tuple(found)
        if not isinstance(found, str) and all(isinstance(name, str) for name in names):
            return names
        wrong = safe_repr(found)
    except Exception as error:  # of the user's function, or of what it gave
        wrong = describe_error(error)
    _tell(function, "counter_names", "a tuple of names", wrong)
    return ()


def unread_of(source: Any) -> int:
    """What `source.unread()` gives, as `figures_of`; 0 where that is no number."""
    try:
        found: Any = source.unread()
        if isinstance(found, Integral):
            return int(found)
        wrong = safe_repr(found)
    except Exception as error:  # of the user's source
        wrong = describe_error(error)
    _tell(source, "unread", "a number", wrong)
    return 0


def _tell(owner: Any, method: str, expected: str, wrong: str) -> None:
    """Say, once for each method of a function or source, what is left out of its figures."""
    if (id(owner), method) not in _told:
        with suppress(TypeError):  # there are no weak references to some: of these it tells again
            _told[id(owner), method] = owner
        kind = type(owner).__name__
        log.warning("%s() of %s: expected %s, left out is %s", method, kind, expected, wrong)
