"""
What becomes of an element whose call raised or ran out of time: the step fails, or goes on without it, or
routes it to a side output, as its settings say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncstream.async_wait.promise import PENDING, Promise, Several
from asyncstream.async_wait.settings import AsyncWaitSettings
from asyncstream.async_wait.timing import UNTIMED, CallTimes
from asyncstream.async_wait.way_out import WayOut
from asyncstream.errors import CallTimeout, UserFunctionError
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.basic import several
from asyncstream.operators.failures import FAILED
from asyncstream.operators.functions import AsyncFunction, has_timeout_hook
from asyncstream.operators.results import NotAValue, is_deferred, not_a_value

__all__ = ("Outcomes",)


class Outcomes:
    """
    Decides what comes of calls that give no result.

    Args:
        way_out: is told of outcomes that are not simply one result.
        counts: "failed" and "timed_out" of these are kept.

    Attributes:
        times: how long calls take, by how they end.
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
        # what gives no value is wrong for the step, not for an element
        choice = "fail" if isinstance(error, NotAValue) else self._settings.on_error
        outcome = self._chosen(FAILED, choice, promise, error)
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
        context = self._context
        if choice == "fail":
            failure = UserFunctionError(context.name, promise.value, error)
            failure.__cause__ = error
            self._fail(failure)
            return PENDING
        began_ms = now_ms = context.clock.now_ms()
        if promise.started.time is not None:
            began_ms -= round((self._loop.time() - promise.started.time) * 1000)
        return self._way_out.without_result(promise, tag, choice, error, began_ms, now_ms)
