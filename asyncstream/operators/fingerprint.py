"""
What tells a function from another one of the same name: its code, the constants in it, and its defaults, as
far as they are numbers and texts; of a `partial` also what it gives.

Of an object, its class stands for it, and what it says of itself (`told_apart_by`). What the function calls,
and what it closes over, is not looked at: it may change while the function is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from inspect import isroutine
from operator import attrgetter, itemgetter, methodcaller
from types import CodeType
from typing import Any, Protocol, runtime_checkable

from asyncstream.operators.origins import digest

__all__ = ("fingerprint",)


def fingerprint(function: Any) -> str:
    """The same for the same code, in every process that runs the same version of Python."""
    told: list[str] = []
    while (inner := getattr(function, "__dict__", {}).get("inner")) is not None:  # no mock has that by itself
        told += _told(function)
        function = inner  # a guard is told by what it guards
    found = _innermost(function)
    return digest(found, *told) if told else found


def _innermost(function: Any) -> str:
    if isinstance(function, partial):
        given = [*function.args, *(part for pair in sorted(function.keywords.items()) for part in pair)]
        return digest(fingerprint(function.func), *_plain(given))
    if isinstance(function, itemgetter | attrgetter | methodcaller):
        return digest(type(function).__qualname__, *_plain(function.__reduce__()[1]))
    if hasattr(function, "__wrapped__") and not hasattr(function, "__defaults__"):
        return fingerprint(function.__wrapped__)  # an object in place of a function, as decorators make
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    if type(code) is CodeType:  # as which an AsyncMock passes itself off
        defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
        return digest(function.__module__ or "", function.__qualname__, *_parts(code), *_plain(defaults))
    kind = function if isinstance(function, type) else type(function)
    method = kind.__dict__.get("invoke") or kind.__dict__.get("__call__")
    code = getattr(method, "__code__", None)
    parts = _parts(code) if isinstance(code, CodeType) else []
    if isroutine(function):  # built in
        parts += [str(getattr(function, "__module__", None)), function.__qualname__]
    return digest(kind.__module__, kind.__qualname__, *parts, *_told(function))


@runtime_checkable
class _Told(Protocol):
    """An object that does what it was given to do."""

    def told_apart_by(self) -> Iterable[object]:
        """Functions, numbers and texts, without which its class does not say what it does."""


def _told(function: Any) -> list[str]:
    """What an object says of itself."""
    if not issubclass(type(function), _Told):  # a mock itself has whatever it is asked for
        return []
    return [fingerprint(one) if callable(one) else repr(one) for one in function.told_apart_by()]


def _plain(values: Iterable[object]) -> list[str]:
    """What values are, of which not every process knows more than the class."""
    plain = (str, int, float, bytes, type(None))
    return [repr(value) if isinstance(value, plain) else type(value).__qualname__ for value in values]


def _parts(code: CodeType) -> list[str | bytes]:
    parts: list[str | bytes] = [code.co_code, repr(code.co_names)]
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            parts += _parts(constant)
        elif isinstance(constant, frozenset):  # of texts, whose order changes from process to process
            parts.append(repr(sorted(map(repr, constant))))
        else:
            parts.append(repr(constant))
    return parts
