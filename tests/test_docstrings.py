"""
Every public name says what it is, and what its arguments are: the reference is made of it.

A public name is one in the `__all__` of a package. What a function returns is said by its first sentence, or
under "Returns".
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Protocol, is_typeddict

from tests.public_names import public_names

GIVEN = frozenset({"cursor", "graph", "left", "maps", "out", "room", "states", "stream", "streams"})
"""Arguments of constructors that programs do not call: they are given the objects."""

INNER = ("asyncstream.checkpoint.match", "asyncstream.state.", "asyncstream.windowing.policies.WindowManager")
"""What operators and backends are made of, whose functions do nothing unless they are given."""


def arguments(value: Any) -> list[str]:
    """The arguments that a program passes."""
    if is_typeddict(value):
        return list(value.__annotations__)
    if inspect.isclass(value) and not dataclasses.is_dataclass(value) and not hasattr(value, "_fields"):
        if issubclass(value, BaseException | Enum) or Protocol in value.__mro__[1:]:
            return []
        if value.__init__ is object.__init__:
            return []
    names = [name for name in inspect.signature(value).parameters if name[0] != "_"]
    return [] if inspect.isclass(value) and GIVEN & set(names) else names


def described(docstring: str) -> set[str]:
    """The names that are explained under "Args" and "Attributes"."""
    found: set[str] = set()
    for section in re.split(r"^(?=\w[\w ]*:$)", docstring, flags=re.MULTILINE):
        if section.startswith(("Args:", "Attributes:")):
            for names in re.findall(r"^    \**(\w+(?:, \w+)*):", section, re.MULTILINE):
                found.update(names.split(", "))
    return found


def complaints(name: str, value: Any) -> Iterator[str]:
    docstring = value.__dict__.get("__doc__") if inspect.isclass(value) else value.__doc__
    if not docstring:
        yield f"{name} has no docstring"
        return
    missing = set(arguments(value)) - described(inspect.cleandoc(docstring))
    if missing:
        yield f"{name} does not explain {', '.join(sorted(missing))}"


def test_every_public_name_is_explained_with_its_arguments() -> None:
    found = [complaint for name, value in public_names().items() for complaint in complaints(name, value)]
    assert not found, "\n".join(found)


def test_help_shows_no_address_and_no_private_base() -> None:
    wrong = []
    for name, value in public_names().items():
        called = [value]
        if inspect.isclass(value):
            wrong += [f"{name}({base.__name__})" for base in value.__mro__ if _is_private(base)]
            called += [member for key, member in vars(value).items() if inspect.isfunction(member)]
        for one in filter(_has_signature, called):
            for parameter in inspect.signature(one).parameters.values():
                if not name.startswith(INNER) and " at 0x" in repr(parameter.default):
                    wrong.append(f"{name}: {getattr(one, '__qualname__', one)}: {parameter.name}")
    assert not wrong, "\n".join(wrong)


def _is_private(base: type) -> bool:
    return base.__name__.startswith("_") and base.__module__.startswith("asyncstream.")


def _has_signature(value: Any) -> bool:
    try:
        inspect.signature(value)
    except (TypeError, ValueError):
        return False
    return True


def test_what_is_not_explained_is_found() -> None:
    def shift(value: int, by: int) -> int:
        """
        The value, moved.

        Args:
            value: any number.
        """
        return value + by

    class Silent:
        def __init__(self, size: int) -> None: ...

    assert list(complaints("shift", shift)) == ["shift does not explain by"]
    assert list(complaints("Silent", Silent)) == ["Silent has no docstring"]
