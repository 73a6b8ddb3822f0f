"""Names that a module had once: they give what has another name now, with a warning, for a version or two."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

__all__ = ("former_name",)


def former_name(module: str, name: str, now: Mapping[str, Any], message: str) -> Any:
    """
    What a module gives for a name that it does not have; called by its `__getattr__`.

    Args:
        module: its `__name__`.
        name: what was asked for.
        now: what the former names mean.
        message: how the warning begins; `{name}` is the name that was asked for, `{now}` the one it has now.

    Raises:
        AttributeError: if it is no former name either.
    """
    if name not in now:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    found = now[name]
    said = message.format(name=name, now=getattr(found, "__name__", name))
    warnings.warn(f"{said}; the old name goes with version 0.4", DeprecationWarning, stacklevel=3)
    return found
