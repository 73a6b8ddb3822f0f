"""
What a plain function must not return: something that is still to be awaited or iterated over.

A function that is declared `async def`, or yields, is refused when the pipeline is built. A lambda that calls
one looks like any other, so its results are looked at. Such a function is wrong for the step, not for an
element: the job fails, whatever `on_error` says.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Generator, Sequence
from inspect import iscoroutine
from typing import Any

from asyncstream.errors import safe_repr

__all__ = ("Kinds", "NotAValue", "close_all", "is_deferred", "not_a_value")


def is_deferred(value: object) -> bool:
    """Whether it is no value yet: a coroutine, a future, a generator."""
    return isinstance(value, Awaitable | AsyncGenerator | Generator)


class Kinds:
    """The types that a function has been seen to return, all of them of values."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: set[type] = set()

    def first_deferred(self, results: Sequence[Any]) -> int | None:
        """The place of the first of the results that is no value yet; None: all are."""
        new = set(map(type, results)) - self.known
        if new:
            for place, result in enumerate(results):
                if type(result) in new:
                    if is_deferred(result):
                        return place
                    self.known.add(type(result))
        return None


class NotAValue(TypeError):
    """Raised when a plain function returned something that is no value yet."""


def not_a_value(results: Sequence[Any], advice: str) -> NotAValue:
    """
    The error for a function whose results are no values yet, to be raised by the caller.

    Args:
        results: what it returned, to be used no more; the first is the one to complain of.
        advice: what to do instead.
    """
    error = NotAValue(f"a plain function must return its result, got {safe_repr(results[0])}; {advice}")
    close_all(results)
    return error


def close_all(results: Sequence[Any]) -> None:
    """Close the coroutines among results that are not used: else Python warns that none awaited them."""
    for result in results:
        if iscoroutine(result):
            result.close()
