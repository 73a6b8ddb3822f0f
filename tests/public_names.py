"""What programs import: the names in the `__all__` of packages."""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest

import asyncstream

PACKAGES = (
    "asyncstream",
    *(found.name for found in walk_packages(asyncstream.__path__, "asyncstream.") if found.ispkg),
)


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
