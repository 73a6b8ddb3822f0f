"""
What an error, or an answer that is not wanted, says of itself.

Libraries do not share a class of HTTP errors, but they share names: `status` (aiohttp) or `status_code`
(httpx, requests), `headers`, and both often on a `response`. Guards look for these and import none of
the libraries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from asyncstream.clock import Clock
from asyncstream.errors import PipelineError
from asyncstream.validation import instant_ms

__all__ = (
    "PROGRAMMING_ERRORS",
    "is_overload",
    "is_programming_error",
    "is_retryable",
    "may_pass",
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


def is_programming_error(error: BaseException) -> bool:
    """Whether `error` says nothing about a service, but that the code is wrong."""
    return isinstance(error, PROGRAMMING_ERRORS)


def is_retryable(error: BaseException) -> bool:
    """Whether the same call may succeed later: not if it says `retryable = False`, or the code is wrong."""
    return may_pass(error) and not is_programming_error(error)


def may_pass(error: BaseException) -> bool:
    """Whether neither the error itself nor its being about the plan says that it will come again."""
    return _attribute(error, "retryable") is not False and not isinstance(error, PipelineError)


def _attribute(holder: object, name: str) -> object:
    """An attribute of something foreign; None where it has none, or its own code fails to tell."""
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def is_overload(outcome: object) -> bool:
    """Whether a service says by `outcome` that it has too much to do: 429, 503, or no answer in time."""
    return any(isinstance(one, TimeoutError) or status_of(one) in OVERLOAD for one in _causes(outcome))


def status_of(outcome: object) -> int | None:
    """The HTTP status that an error or an answer carries, if any."""
    for holder in (outcome, _attribute(outcome, "response")):
        for name in ("status", "status_code"):
            status = _attribute(holder, name)
            if isinstance(status, int):
                return status
    return None


def server_delay(outcome: object, clock: Clock) -> float | None:
    """Seconds that the server asks to wait, from an error or an answer; None if it does not."""
    for one in _causes(outcome):
        asked = _attribute(one, "retry_after")
        if asked is not None:
            return retry_after_seconds(asked, clock)
        for holder in (one, _attribute(one, "response")):
            get = _attribute(_attribute(holder, "headers"), "get")
            if callable(get):
                # plain dicts know only the spelling that they were given
                asked = get("Retry-After") or get("retry-after")
                if asked is not None:
                    return retry_after_seconds(asked, clock)
    return None


def retry_after_seconds(asked: object, clock: Clock) -> float | None:
    """
    A `Retry-After` (seconds, an HTTP date, or either as an object) in seconds; None if it is neither.

    Never raises: it comes from outside, and a failure here would hide the one that it was sent with.
    """
    try:
        if isinstance(asked, timedelta):
            return max(0.0, asked.total_seconds())
        if isinstance(asked, str):
            asked = _parse(asked)
        if isinstance(asked, datetime):
            # an HTTP date is in GMT even where its form does not say so
            until = asked if asked.tzinfo is not None else asked.replace(tzinfo=UTC)
            return max(0.0, (instant_ms(until) - clock.now_ms()) / 1000)
        if isinstance(asked, int | float) and math.isfinite(asked):
            return max(0.0, float(asked))
    except (
        ArithmeticError,
        LookupError,
        TypeError,
        ValueError,
    ):  # a date or a number that is out of all bounds
        pass
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


def _causes(outcome: object) -> Iterator[object]:
    """`outcome` and, of an error that was raised from another, that one: a wrapper hides nothing."""
    seen = 0
    while outcome is not None and seen < 5:  # a chain of causes may be a circle
        yield outcome
        outcome = _attribute(outcome, "__cause__")
        seen += 1
