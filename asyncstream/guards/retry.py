"""
Retry: call again after a failure that may pass, later and later, until it works or patience ends.

The whole state of a retry (attempt, back-off, deadline) is local to the `invoke` of one element, so two
elements that wait at the same time do not disturb each other. The vocabulary is stamina's.

In a step with a journal, the outermost retry writes down each attempt that failed. After a crash the call
goes on with the next one, when that would have been due; the time in between does not count. A clock that was
set back does not make it wait for longer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random as _random
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, TypeVar
from weakref import WeakSet

from asyncstream.clock import Clock, SystemClock, checked_clock
from asyncstream.errors import RetriesExhausted, describe_error
from asyncstream.guards.guard import Call, Guard, guards_in, usable_as_decorator
from asyncstream.guards.outcomes import (
    PROGRAMMING_ERRORS,
    is_programming_error,
    may_pass,
    members,
    server_delay,
)
from asyncstream.metrics import ATTEMPTS, Distribution
from asyncstream.operators.call_context import kept_call, on_behalf_of_none
from asyncstream.operators.call_log import Retried
from asyncstream.validation import Duration, count, duration_seconds, function, real_number, refuse

__all__ = (
    "WAIT_INITIAL",
    "Attempt",
    "Retry",
    "RetryOn",
    "attempts_in",
    "check_waits",
    "current_attempt",
    "of_no_attempt",
    "retry",
)

log = logging.getLogger("asyncstream.guards")

In = TypeVar("In")
Out = TypeVar("Out")

RetryOn: TypeAlias = (
    type[Exception] | tuple[type[Exception], ...] | Callable[[Exception], bool | float | timedelta]
)
"""Which errors to retry: types, or a predicate, which may also answer how long to wait (seconds)."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """
    Which try of a call this is.

    Attributes:
        number: starts at 1.
        idempotency_key: the same for all attempts of one element; None unless the retry, or one around it,
            makes one.
    """

    number: int = 1
    idempotency_key: Any = None


_FIRST = Attempt()
_attempt: ContextVar[Attempt] = ContextVar("asyncstream_attempt", default=_FIRST)


def current_attempt() -> Attempt:
    """
    The attempt that the caller is part of; a first one outside of any retry, and for a batch or a renewal in
    the background, whatever retries its elements are in.
    """
    return _attempt.get()


def of_no_attempt() -> None:
    """What the running task calls from now on is part of no single element's call, nor of its attempts."""
    on_behalf_of_none()
    _attempt.set(_FIRST)


WAIT_INITIAL: Final = 0.1
"""Seconds, by default, before a second attempt."""


class _Told(WeakSet[Any]):
    """Guards around one that tells them of something, which does not keep them; a copy tells their copies."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Told, (list(self),)


def _by_chance() -> float:
    # not random.random itself, which is pickled with its state: all Spark workers would draw the same numbers
    return _random.random()


class Retry(Guard[In, Out]):
    """
    Calls again when a call failed with an error that may pass, or `on_result` refuses its result.

    Before attempt n + 1 it waits `wait_initial * wait_exp_base ** (n - 1)`, at most `wait_max`, changed by
    the jitter; and never less than the server's `Retry-After` asks for, up to `retry_after_max`. That is
    read from `retry_after`, `headers` or `response.headers` of the error or of the refused result.

    No attempt starts after `timeout`: it gives up at once if the wait would end later. A running attempt
    is not cut short: the step's own timeout does that, and bounds all attempts, because it cancels this
    guard.

    Args:
        fn: the async function that it wraps.
        attempts: calls at most, the first one included; None: as many as `timeout` allows.
        timeout: total time of all attempts and waits; None: as long as `attempts` allows.
        wait_initial: back-off after the first attempt; at most `wait_max`.
        wait_max: the longest back-off.
        wait_jitter: "full": anywhere between nothing and the back-off, evenly; a duration: up to this much
            is added, evenly, within `wait_max`; 0: none.
        wait_exp_base: by how much the back-off grows; at least 1.
        on: which errors to retry. A predicate answers whether, or how long to wait before. Unless a predicate
            decides, an error with `retryable = False` is not retried; nor are TypeError, AttributeError,
            NameError, ImportError, SyntaxError, AssertionError, NotImplementedError and RecursionError,
            unless they, or subclasses of them, are named: trying again does not mend code. An
            `ExceptionGroup` is retried if all that is in it would be, or if groups are named.
        on_result: whether to refuse a result and try again.
        retry_after_max: the longest wait that the server may ask for.
        idempotency_key: function of the element that makes a key, which `current_attempt()` tells every
            attempt; `lambda value: uuid4()` serves where an element has none by nature.
        random: gives numbers in [0, 1); None: the module of that name does.
        clock: tells the time of day, for a `Retry-After` that is a date.

    Raises:
        RetriesExhausted: when the last attempt failed too. An error that is not retried is raised as it is,
            with `attempts` set on it if there was more than one.
    """

    counted = ("retries", "recovered", "retries_exhausted")
    keeps_attempts = True
    """For `operators.call_log`: attempts go on over a crash."""

    def __init__(
        self,
        fn: Call[In, Out],
        *,
        attempts: int | None = 10,
        timeout: Duration | None = 45.0,
        wait_initial: Duration = WAIT_INITIAL,
        wait_max: Duration = 5.0,
        wait_jitter: Duration | Literal["full"] = "full",
        wait_exp_base: float = 2.0,
        on: RetryOn = Exception,
        on_result: Callable[[Any], bool] | None = None,
        retry_after_max: Duration = 60.0,
        idempotency_key: Callable[[Any], Any] | None = None,
        random: Callable[[], float] | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(fn)
        if attempts is None and timeout is None:
            raise refuse("attempts and timeout", "at least one of them", None)
        real_number("wait_exp_base", wait_exp_base, "a number of at least 1", lambda n: 1 <= n < math.inf)
        self._attempts = None if attempts is None else count("attempts", attempts)
        self._timeout = None if timeout is None else duration_seconds("timeout", timeout)
        self._wait_initial = duration_seconds("wait_initial", wait_initial, zero=True)
        self._wait_max = duration_seconds("wait_max", wait_max, zero=True)
        check_waits(self._wait_initial, self._wait_max)
        self._wait_jitter = (
            None if wait_jitter == "full" else duration_seconds("wait_jitter", wait_jitter, zero=True)
        )
        self._wait_exp_base = wait_exp_base
        self._on = on
        self._types = _error_types(on)
        self._named = tuple(kind for kind in self._types or () if issubclass(kind, PROGRAMMING_ERRORS))
        # all but what names every group; a group of the user's may be of a class of the user's, too
        self._groups = tuple(kind for kind in self._types or () if kind is not Exception)
        self._on_result = None if on_result is None else function("on_result", on_result, "result")
        self._retry_after_max = duration_seconds("retry_after_max", retry_after_max, zero=True)
        self._idempotency_key = (
            None if idempotency_key is None else function("idempotency_key", idempotency_key, "element")
        )
        self._random = _by_chance if random is None else function("random", random)
        self._clock = checked_clock(clock) or SystemClock()
        self._is_innermost = not any(isinstance(guard, Retry) for guard in guards_in(fn))
        self._at_once = 0  # calls that ended with their first attempt
        self._more_attempts: Counter[int] = Counter()  # the others, by how many they had
        self.told = _Told()
        """Whose `attempt_failed` hears of each failure (error or refused result) that a retry follows."""

    async def invoke(self, value: In) -> Out:
        began = attempt_began = self._time()
        around = _attempt.get()
        key = None if self._idempotency_key is None else self._idempotency_key(value)
        if key is None:
            key = around.idempotency_key
        backoff = self._wait_initial
        number = 1
        call = kept_call(self)
        try:
            if call is not None and (before := call.log.retried(call.origin)) is not None:
                number = before.attempts + 1
                if self._attempts is not None:
                    number = min(number, self._attempts)
                backoff = min(self._wait_max, before.backoff)
                await asyncio.sleep(min(before.wait, (before.next_ms - self._clock.now_ms()) / 1000))
                attempt_began = self._time()
                began = attempt_began - before.seconds
            while True:
                # most calls are a first attempt without a key, which is what the default says
                is_told = number == around.number and key is around.idempotency_key
                marked = None if is_told else _attempt.set(Attempt(number, key))
                failure: Any
                try:
                    result = await self._call(value)
                except Exception as error:
                    asked = self._asks(error)
                    if asked is False:
                        self._count_attempts(number)
                        if number > 1 or self._is_innermost:
                            _note_attempts(error, number)
                        raise
                    wait = self._wait(error, asked, backoff)
                    if (why := self._ends(number, began, wait)) is not None:
                        raise RetriesExhausted(number, error, why) from error
                    failure = error
                else:
                    if self._on_result is None or not self._on_result(result):
                        if number == 1:
                            self._at_once += 1
                        else:
                            self._count_attempts(number)
                            self._counts["recovered"] += 1
                        return result
                    wait = self._wait(result, asked=True, backoff=backoff)
                    if (why := self._ends(number, began, wait)) is not None:
                        raise RetriesExhausted(number, None, why)
                    failure = result
                finally:
                    if marked is not None:
                        with suppress(ValueError):  # collected after its loop, in a context of others
                            _attempt.reset(marked)
                if log.isEnabledFor(logging.DEBUG):
                    is_error = isinstance(failure, Exception)
                    said = describe_error(failure) if is_error else "its result was refused"
                    fields = {"attempt": number, "wait_seconds": wait}
                    log.debug("attempt %d: %s; the next in %.3g s", number, said, wait, extra=fields)
                for guard in self.told:
                    guard.attempt_failed(failure, attempt_began)
                del failure  # an error refers to this frame
                backoff = min(self._wait_max, backoff * self._wait_exp_base)
                if call is not None:
                    next_ms = self._clock.now_ms() + round(wait * 1000)
                    seconds = self._time() + wait - began
                    call.log.note(call.origin, Retried(number, seconds, backoff, next_ms, wait))
                await asyncio.sleep(wait)
                attempt_began = self._time()
                self._counts["retries"] += 1
                number += 1
        finally:
            if call is not None:
                call.log.end_retries(call.origin)

    def _asks(self, error: Exception) -> bool | float:
        """Whether to try again after `error`, or after how many seconds."""
        if self._types is not None:
            is_group = isinstance(error, BaseExceptionGroup) and isinstance(error, self._groups)
            return (is_group or all(map(self._names, members(error)))) and may_pass(error)
        answer = self._on(error)  # type: ignore[operator]
        return answer if isinstance(answer, bool) else duration_seconds("on", answer, zero=True)

    def _names(self, error: BaseException) -> bool:
        """Whether `on` names this error, which is no group."""
        return isinstance(error, self._named if is_programming_error(error) else self._types or ())

    def _wait(self, failure: object, asked: bool | float, backoff: float) -> float:
        """Seconds until the next attempt."""
        if asked is not True:
            return asked
        backoff = min(self._wait_max, backoff)
        if self._wait_jitter is None:
            wait = backoff * self._random()
        else:
            wait = min(self._wait_max, backoff + self._wait_jitter * self._random())
        servers = server_delay(failure, self._clock)
        return wait if servers is None else max(wait, min(servers, self._retry_after_max))

    def _ends(self, number: int, began: float, wait: float) -> str | None:
        """Why no attempt follows after `wait` seconds, in addition to how many there were; None: one does."""
        why = ""
        if number != self._attempts:
            if self._timeout is None or self._time() + wait < began + self._timeout:
                return None
            limit = f"the timeout of {self._timeout:g} s for all"
            why = f", for the next one in {wait:.3g} s would be past {limit}"
        self._count_attempts(number)
        self._counts["retries_exhausted"] += 1
        return why

    def _count_attempts(self, number: int) -> None:
        """A call has ended that had so many."""
        if number == 1:
            self._at_once += 1
        else:
            self._more_attempts[number] += 1

    def attempts(self) -> Distribution:
        """
        How many attempts the calls had that have ended by themselves: one that was cancelled, by the timeout
        of its step or with the job, might have had more.
        """
        counts = [self._at_once, *[0] * len(ATTEMPTS)]
        for number, calls in self._more_attempts.items():
            counts[bisect_left(ATTEMPTS, number)] += calls
        more = sum(number * calls for number, calls in self._more_attempts.items())
        return Distribution(ATTEMPTS, counts, float(self._at_once + more))


def check_waits(initial: float, longest: float) -> None:
    """Refuse a first wait, in seconds, above the longest one; that of by default is cut to it."""
    if initial > longest and initial != WAIT_INITIAL:
        expected = f"at most wait_max={longest:g}"
        raise refuse("wait_initial", expected, initial, "give a longer wait_max= with it")


def _note_attempts(error: Exception, number: int) -> None:
    """
    Set `attempts` on `error`, which may be of a frozen class, and must not be lost over it; one is what an
    error without it says, but that of a batch is of other elements, too, which may have had more.
    """
    with suppress(Exception):  # of a class that hides its attributes; then so be it
        if number > 1 or "attempts" in vars(error):
            vars(error)["attempts"] = number


def _error_types(on: object) -> tuple[type[Exception], ...] | None:
    """The types that `on` is; None if it is a predicate."""
    types = on if isinstance(on, tuple) else (on,)
    if types and all(isinstance(one, type) and issubclass(one, Exception) for one in types):
        return types
    if not callable(on) or isinstance(on, type):
        raise refuse("on", "an exception type, a tuple of them, or a predicate", on, classes=True)
    function("on", on, "error")
    return None


def attempts_in(function: object) -> Distribution | None:
    """How many attempts the calls of all retries in a function had; None: there is no retry in it."""
    found: Distribution | None = None
    for part in guards_in(function):
        if isinstance(part, Retry):
            found = part.attempts() if found is None else found + part.attempts()
    return found


retry = usable_as_decorator(Retry)
