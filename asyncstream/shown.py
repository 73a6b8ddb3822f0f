"""
How objects are shown, by `repr` and in plans: as they were written, or nearly so, and without what is secret.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from enum import Enum
from pathlib import PurePath
from typing import Any, Final

from asyncstream.addresses import without_secrets
from asyncstream.errors import safe_repr

__all__ = ("Shown", "name_of", "shown_length", "shown_ms", "shown_value")

_PLAIN: Final = (bool, int, float, type(None), Enum)

_SECRET: Final = re.compile("pass|secret|token|credential|auth|header|cookie|api_?key|seed", re.IGNORECASE)

_ELEMENTS: Final = ("items", "target", "frame")
"""Arguments that hold what flows, which is shown only to who asks for it."""

_SEVERAL: Final = (tuple, list, set, frozenset)

_MOST: Final = 10
"""Values of one argument that are shown: a plan has one line for each step."""

_LONGEST: Final = 200
"""Characters of one argument."""

_GIVEN: Final = "_made_from"


class Shown:
    """
    An object that is shown with what it was made from: `SlidingWindows(size=1:00:00, slide=0:00:10)`.

    Arguments become text when it is made, and are not held. A class of others with an `__init__` of its own
    is shown with public attributes, and of texts among them nobody knows whether they are secret.
    """

    __slots__ = ()

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        init = vars(cls).get("__init__")
        if init is not None and _is_ours(cls):
            cls.__init__ = _telling(init)  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._arguments())})"

    def _arguments(self) -> Iterator[str]:
        """What it was made from, each as `name=value`."""
        held = getattr(self, "__dict__", {})
        if _GIVEN in held:
            return iter(held[_GIVEN])
        if _is_ours(type(self)):
            return iter(())
        return _public(held)


def _public(held: Mapping[str, Any]) -> Iterator[str]:
    for name, value in held.items():
        if not name.startswith("_"):
            yield f"{name}={'...' if isinstance(value, (str, *_SEVERAL)) else shown_value(name, value)}"


def _telling(init: Callable[..., None]) -> Callable[..., None]:
    """`init`, which keeps what an object is given as text, unless it is called by that of a class below."""
    signature: inspect.Signature | None = None

    @functools.wraps(init)
    def told(self: Any, *args: Any, **options: Any) -> None:
        nonlocal signature
        init(self, *args, **options)
        if type(self).__init__ is told:
            signature = signature or inspect.signature(init)
            vars(self)[_GIVEN] = tuple(_texts(signature.bind(self, *args, **options)))

    return told


def _texts(given: inspect.BoundArguments) -> Iterator[str]:
    (_, made), *arguments = given.arguments.items()
    for name, value in arguments:
        kind = given.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from (shown_value(name, each) for each in value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            yield from (f"{each}={shown_value(each, option)}" for each, option in value.items())
        elif isinstance(length_ms := vars(made).get(f"{name}_ms"), int):
            yield f"{name}={shown_ms(length_ms)}"  # 60000 seconds must not look like a minute
        else:
            yield f"{name}={shown_value(name, value)}"


def shown_value(name: str, value: object) -> str:
    """
    The value of an argument; of elements there is only how many, of secrets nothing. Never raises, whatever
    the value itself does: what can be made can be shown.
    """
    try:
        text = "..." if _SECRET.search(name) else _shown(name, value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _shown(name: str, value: object) -> str:
    if isinstance(value, PurePath):
        value = str(value)
    if isinstance(value, str):
        return repr(without_secrets(value)) if name == "url" or "://" in value else safe_repr(value)
    if isinstance(value, _PLAIN):
        return str(value) if isinstance(value, Enum) else repr(value)
    if isinstance(value, timedelta):
        return shown_length(value)
    if isinstance(value, bytes | bytearray | Mapping):
        return "..."
    if isinstance(value, _SEVERAL):
        if name in _ELEMENTS or len(value) > _MOST:
            return f"<{type(value).__name__} of {len(value)}>"
        inside = ", ".join(shown_value(name, each) for each in value)
        return f"({inside}{',' * (len(value) == 1)})" if isinstance(value, tuple) else f"[{inside}]"
    if isinstance(value, Shown) or (_is_ours(type(value)) and type(value).__repr__ is not object.__repr__):
        return safe_repr(value)
    return name_of(value) or f"<{type(value).__name__}>"


def name_of(function: object) -> str | None:
    """What a function or a class is called; None: it is neither."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", None)
    return name if callable(function) and isinstance(name, str) else None


def shown_ms(length_ms: int) -> timedelta:
    """A length of time as plans show it; one that no timedelta holds as the longest that there is."""
    return timedelta(milliseconds=min(length_ms, timedelta.max // timedelta(milliseconds=1)))


def shown_length(length: timedelta) -> str:
    """A length of time as plans show it: a negative one with its sign, not as days before and hours since."""
    return f"-{-length}" if length < timedelta() else str(length)


def _is_ours(kind: type) -> bool:
    """Whether it is a class of this package."""
    return kind.__module__.partition(".")[0] == __name__.partition(".")[0]
