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
from importlib import import_module
from pkgutil import walk_packages
from typing import Any, Protocol, is_typeddict

import pytest

import asyncstream

PACKAGES = (
    "asyncstream",
    *(found.name for found in walk_packages(asyncstream.__path__, "asyncstream.") if found.ispkg),
)

GIVEN = frozenset({"cursor", "graph", "left", "maps", "out", "room", "states", "stream", "streams"})
"""Arguments of constructors that programs do not call: they are given the objects."""


def public_names() -> dict[str, Any]:
    """The classes and functions, each by the first package that has it."""
    pytest.importorskip("pyspark")
    found: dict[int, tuple[str, Any]] = {}
    for package in PACKAGES:
        module = import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found.setdefault(id(value), (f"{package}.{name}", value))
    return dict(found.values())


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
