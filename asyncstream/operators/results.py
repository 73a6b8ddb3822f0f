"""
What a function must not return: something that is still to be awaited, or to be iterated over.

A plain function that is declared `async def`, or yields, is refused when the pipeline is built. A lambda that
calls one looks like any other, so its results are looked at. So are those of an `async def`, which has
forgotten an `await` if it gives a coroutine. Such a function is wrong for the step, not for an element: the
job fails, whatever `on_error` says. What a function returns that emits with `out(...)` goes nowhere; that is
said in the log.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Iterable, Sequence
from inspect import iscoroutine
from typing import Any, Final

from asyncstream.errors import MissingField, safe_repr
from asyncstream.state.keys import check_hash
from asyncstream.validation import Fields, named_fields

__all__ = (
    "KEY_ADVICE",
    "PROBATION",
    "FirstKeys",
    "Kinds",
    "NotAValue",
    "close_all",
    "is_coroutine",
    "is_deferred",
    "is_of_key",
    "not_a_value",
    "nothing_returned",
)


log = logging.getLogger("asyncstream.elements")

KEY_ADVICE: Final = "a key is taken from the element; find it in an async_map before key_by"


PROBATION: Final = 1024
"""Results that are all looked at; from then on one of each batch is, which costs nothing."""


def is_coroutine(value: object) -> bool:
    """Whether it is a coroutine: what else an async function gives, another step may iterate over."""
    return isinstance(value, Coroutine)


def is_deferred(value: object) -> bool:
    """Whether it is no value yet: a coroutine, a future, a generator."""
    return isinstance(value, Awaitable | AsyncGenerator | Generator)


class Kinds:
    """
    The types that a function has been seen to return, all of them of values; `is_deferred` tells what is
    none.
    """

    __slots__ = ("_is_deferred", "known")

    def __init__(self, is_deferred: Callable[[object], bool] = is_deferred) -> None:
        self._is_deferred = is_deferred
        self.known: set[type] = set()

    def first_deferred(self, results: Sequence[Any]) -> int | None:
        """The place of the first of the results that is no value yet; None: all are."""
        new = set(map(type, results)) - self.known
        if new:
            for place, result in enumerate(results):
                if type(result) in new:
                    if self._is_deferred(result):
                        return place
                    self.known.add(type(result))
        return None


class FirstKeys:
    """
    The key function of an operator until it has been seen to give keys.

    It is called as the function is, and puts the function in its own place once a key has come: looking at
    each key for ever would cost what many a key function costs. A coroutine can be hashed like any key, and
    every element would have one of its own.

    Args:
        owner: has the key function in this attribute.
        function: gives the key of an element.
    """

    __slots__ = ("_attribute", "_function", "_owner")

    def __init__(self, owner: Any, function: Callable[[Any], Any], attribute: str = "_key_by") -> None:
        self._owner = owner
        self._attribute = attribute
        if isinstance(function, FirstKeys):
            function = function._function
        self._function: Callable[[Any], Any] = function

    def __call__(self, value: Any) -> Any:
        key = self._function(value)
        if is_deferred(key):
            raise not_a_value([key], KEY_ADVICE)
        check_hash(key)
        setattr(self._owner, self._attribute, self._function)
        return key


def is_of_key(error: BaseException, keys: Iterable[Callable[[Any], Any]]) -> bool:
    """Whether one of these functions, which give keys, has raised it; of a built-in one it cannot be told."""
    if isinstance(error, MissingField):
        return any(error.field in _names(named_fields(key)) for key in keys)
    trace = error.__traceback__
    while trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("asyncstream."):
        trace = trace.tb_next
    return trace is not None and any(getattr(key, "__code__", None) is trace.tb_frame.f_code for key in keys)


def _names(fields: Fields | None) -> tuple[str, ...]:
    return (fields,) if isinstance(fields, str) else fields or ()


class NotAValue(TypeError):
    """Raised when a plain function returned something that is no value yet."""


def nothing_returned(result: object, kinds: Kinds, step: str) -> None:
    """
    Look at what a function returned that emits with `out(...)`: of each type it is said once. Raises
    `NotAValue` if it is no value yet, so that the function has done nothing.
    """
    if type(result) in kinds.known:
        return
    if kinds.first_deferred([result]) is not None:
        raise not_a_value([result], "emit with out(...), and ask a service in an async_map before or after")
    kind = type(result).__name__
    log.warning(
        "step %r: its function returned a value of type %s, which goes nowhere; emit with out(...)",
        step,
        kind,
        extra={"step": step},
    )


def not_a_value(results: Sequence[Any], advice: str, what: str = "a plain function") -> NotAValue:
    """
    The error for a function whose results, to be used no more, are no values yet; to be raised by the caller.
    The first result is the one to complain of.
    """
    error = NotAValue(f"{what} must return its result, got {safe_repr(results[0])}; {advice}")
    close_all(results)
    return error


def close_all(results: Sequence[Any]) -> None:
    """Close the coroutines among results that are not used: else Python warns that none awaited them."""
    for result in results:
        if iscoroutine(result):
            result.close()
