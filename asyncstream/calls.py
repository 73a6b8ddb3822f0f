"""The former name of `asyncstream.guards`: gives what that has, with a warning, until version 0.4."""

from __future__ import annotations

import warnings
from typing import Any

from asyncstream import guards

__all__ = ()


def __getattr__(name: str) -> Any:
    if name not in guards.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = "asyncstream.calls is now asyncstream.guards; the old name goes with version 0.4"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return getattr(guards, name)
