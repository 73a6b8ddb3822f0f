"""
What an error, or an answer that is not wanted, says of itself.

Libraries do not share a class of HTTP errors, but they share names: `status` (aiohttp) or `status_code`
(httpx, requests), `headers`, and both often on a `response`. Guards look for these and import none of
the libraries.

A group of errors, as `asyncio.TaskGroup` raises it, says of itself what all that is in it say.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from asyncstream.clock import Clock, SystemClock
from asyncstream.errors import PipelineError
from asyncstream.validation import instant_ms

__all__ = (
    "PROGRAMMING_ERRORS",
    "is_overload",
    "is_programming_error",
    "is_retryable",
    "may_pass",
    "members",
    "retry_after_seconds",
    "server_delay",
    "status_of",
)

OVERLOAD = frozenset({429, 503})


PROGRAMMING_ERRORS = (
    TypeError,
    AttributeError,
    NameError,
    ImportError,
    SyntaxError,
    AssertionError,
    NotImplementedError,
    RecursionError,
)
"""
What a mistake in the code raises, and raises again however often it is tried.

Not among them: KeyError, IndexError and ValueError, which also come of an answer that is not whole.
"""


def members(error: BaseException) -> Iterator[BaseException]:
    """What is in a group of errors, and in groups in it; of another error, itself."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from members(one)
    else:
        yield error


def is_programming_error(error: BaseException) -> bool:
    """Whether `error` says nothing about a service, but that the code is wrong."""
    return any(isinstance(one, PROGRAMMING_ERRORS) for one in members(error))


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed later: not if it says `retryable = False`, or the code is wrong."""
    return may_pass(error) and not is_programming_error(error)


def may_pass(error: BaseException) -> bool:
    """Whether neither the error itself nor its being about the plan says that it will come again."""
    return not any(
        _attribute(one, "retryable") is False or isinstance(one, PipelineError)
        for one in (error, *members(error))
    )


def _attribute(holder: object, name: str) -> object:
    """An attribute of something foreign; None where it has none, or its own code fails to tell."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def is_overload(outcome: object) -> bool:
    """Whether a service says by `outcome` that it has too much to do: 429, 503, or no answer in time."""
    return any(
        isinstance(one, TimeoutError) or status_of(one) in OVERLOAD
        for level in _levels(outcome)
        for one in level
    )


def status_of(outcome: object) -> int | None:
    """The HTTP status that an error or an answer carries, if any."""
    for holder in (outcome, _attribute(outcome, "response")):
        for name in ("status", "status_code"):
            status = _attribute(holder, name)
            if isinstance(status, int):
                return status
    return None


def server_delay(outcome: object, clock: Clock) -> float | None:
    """
    Seconds that the server asks to wait, from an error or an answer, and of several the most; None if it does
    not.
    """
    for level in _levels(outcome):
        found = [asked for one in level if (asked := _asked_by(one)) is not None]
        if found:
            delays = (retry_after_seconds(asked, clock) for asked in found)
            return max((seconds for seconds in delays if seconds is not None), default=None)
    return None


def _asked_by(outcome: object) -> Any:
    """What is said by it of when to come again, as it was said; None: nothing."""
    asked = _attribute(outcome, "retry_after")
    if asked is not None:
        return asked
    for holder in (outcome, _attribute(outcome, "response")):
        get = _attribute(_attribute(holder, "headers"), "get")
        if not callable(get):
            continue
        with suppress(Exception):  # it is foreign, and may be of something else
            # plain dicts know only the spelling that they were given
            asked = get("Retry-After") or get("retry-after")
            if asked is not None:
                return asked
    return None


def retry_after_seconds(asked: object, clock: Clock) -> float | None:
    """
    A `Retry-After` (seconds, an HTTP date, or either as an object) in seconds; None if it is neither.

    Never raises: it comes from outside, and a failure here would hide the one that it was sent with.
    """
    # a date or a number may be out of all bounds
    with suppress(ArithmeticError, LookupError, TypeError, ValueError):
        if isinstance(asked, timedelta):
            return max(0.0, asked.total_seconds())
        if isinstance(asked, str):
            asked = _parse(asked)
        if isinstance(asked, datetime):
            # an HTTP date is in GMT even where its form does not say so
            until = asked if asked.tzinfo is not None else asked.replace(tzinfo=UTC)
            # the server does not know of a clock that was set back here, and is held
            now_ms = clock.machine_ms() if isinstance(clock, SystemClock) else clock.now_ms()
            return max(0.0, (instant_ms(until) - now_ms) / 1000)
        if isinstance(asked, int | float) and math.isfinite(asked):
            return max(0.0, float(asked))
    return None


def _parse(header: str) -> float | datetime | None:
    try:
        return float(header)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(header)
    except ValueError:
        return None


def _levels(outcome: object) -> Iterator[list[object]]:
    """
    `outcome`, then what is in it, if it is a group, and what it was raised from, and so on: a wrapper hides
    nothing.
    """
    level = [outcome]
    for _ in range(5):  # a chain of causes may be a circle
        yield level
        below = {id(one): one for wrapper in level for one in _below(wrapper)}
        level = list(below.values())


def _below(wrapper: object) -> Iterator[object]:
    if isinstance(wrapper, BaseExceptionGroup):
        yield from members(wrapper)
    cause = _attribute(wrapper, "__cause__")
    if cause is not None:
        yield cause
