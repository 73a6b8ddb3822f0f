"""
What a user hands to an async step: an `AsyncFunction` object (or a plain `async def`), and what such a
step hands back for a call that gave no result: a `FailedCall`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from asyncstream.errors import CallTimeout
from asyncstream.sharing import hold, release

__all__ = ("AsyncFunction", "FailedCall", "has_timeout_hook")

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)


class AsyncFunction(Generic[In, Out]):
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

    async def invoke(self, value: In) -> Out:
        """
        The call for one element. Many run at once in one event loop.

        When the step's timeout passes, or the job stops, `asyncio.CancelledError` is raised inside.
        """
        raise TypeError(f"{type(self).__name__} does not override invoke")

    def timeout(self, value: In) -> Out:
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


def has_timeout_hook(function: AsyncFunction[Any, Any]) -> bool:
    """Whether `function` has a `timeout` of its own, by its class or, as guards have, by the instance."""
    return getattr(function.timeout, "__func__", None) is not AsyncFunction.timeout
