"""
What becomes of an element whose call raised or ran out of time: the step fails, or goes on without it, or
routes it to a side output, as its settings say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncstream.async_wait.promise import DROPPED, PENDING, Promise, Routed, Several
from asyncstream.async_wait.settings import AsyncWaitSettings
from asyncstream.async_wait.timing import UNTIMED, CallTimes
from asyncstream.async_wait.way_out import WayOut
from asyncstream.errors import CallTimeout, UserFunctionError
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.basic import several
from asyncstream.operators.failures import FAILED, attempts_of
from asyncstream.operators.functions import AsyncFunction, FailedCall, has_timeout_hook
from asyncstream.operators.results import NotAValue, is_deferred, not_a_value
from asyncstream.operators.whereabouts import RecentFailures

__all__ = ("Outcomes",)


class Outcomes:
    """
    Decides what comes of calls that give no result.

    Args:
        way_out: is told of outcomes that are not simply one result.
        counts: "failed", "timed_out" and "skipped" of these are kept.

    Attributes:
        times: how long calls take, by how they end.
        recent_failures: the last elements that the job went on without.
    """

    def __init__(
        self,
        settings: AsyncWaitSettings,
        way_out: WayOut,
        counts: dict[str, int],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._settings = settings
        self._way_out = way_out
        self._counts = counts
        self._fail = fail
        self.times = CallTimes()
        self.recent_failures = RecentFailures()
        function = settings.function
        self._on_timeout = settings.on_timeout
        if (
            isinstance(function, AsyncFunction)
            and settings.on_timeout == "fail"
            and has_timeout_hook(function)
        ):
            self._on_timeout = function.timeout

    def open(self, context: OperatorContext, loop: asyncio.AbstractEventLoop) -> None:
        """Called once, before all else."""
        self._context = context
        self._loop = loop

    def of_error(self, promise: Promise, error: BaseException) -> Any:
        """The outcome of a call that raised; PENDING if the job fails over it."""
        self._counts["failed"] += 1
        outcome = self._chosen(FAILED, self._settings.on_error, promise, error)
        since = promise.started.time
        if since is not None:
            now = self._loop.time()
            self.times.failed.add(now - since, now)
            promise.started = UNTIMED  # or it would be taken for one that ended well
        return outcome

    def of_timeout(self, promise: Promise) -> Any:
        """The outcome of a call whose time is up; PENDING if the job fails over it."""
        self._counts["timed_out"] += 1
        since = promise.started.time
        if since is not None:
            now = self._loop.time()
            self.times.timed_out.add(now - since, now)
        on_timeout = self._on_timeout
        if not callable(on_timeout):
            error = CallTimeout(f"no result within {self._settings.timeout} s")
            return self._chosen("timed_out", on_timeout, promise, error)
        try:
            outcome = on_timeout(promise.value)
            if self._settings.flat:
                return self.several(outcome)
            if is_deferred(outcome):
                raise not_a_value([outcome], "there is no time left to wait")
            return outcome
        except (KeyboardInterrupt, SystemExit):
            raise
        except NotAValue as wrong:
            return self._chosen(FAILED, "fail", promise, wrong)
        except Exception as raised:
            return self._chosen(FAILED, self._settings.on_error, promise, raised)
        except BaseException as raised:  # is not about this element either: never skipped or routed
            return self._chosen(FAILED, "fail", promise, raised)

    def several(self, results: Any) -> Several:
        """The outcome of a flat map that has given these results."""
        outcome = Several(several(results))
        self._way_out.special += 1
        return outcome

    def _chosen(self, tag: str, choice: object, promise: Promise, error: BaseException) -> Any:
        self._way_out.special += 1
        name = self._context.name
        if choice != "fail":
            now_ms = self._context.clock.now_ms()
            self.recent_failures.note(name, promise.value, error, now_ms, skipped=choice == "skip")
        if choice == "skip":
            self._counts["skipped"] += 1
            return DROPPED
        if choice == "route":
            return Routed(tag, self._failed_call(promise, error))
        failure = UserFunctionError(name, promise.value, error)
        failure.__cause__ = error
        self._fail(failure)
        return PENDING

    def _failed_call(self, promise: Promise, error: BaseException) -> FailedCall:
        now_ms = self._context.clock.now_ms()
        began_ms, since = now_ms, promise.started.time
        if since is not None:
            began_ms -= round((self._loop.time() - since) * 1000)
        value, timestamp, attempts = promise.value, promise.timestamp, attempts_of(error)
        return FailedCall(value, error, attempts, timestamp, began_ms, now_ms, promise.origin)
