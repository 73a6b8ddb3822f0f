"""The former name of `asyncstream.validation`: gives what that has, with a warning, until version 0.4."""

from __future__ import annotations

from typing import Any

from asyncstream import validation
from asyncstream.former_names import former_name

__all__ = ()

_NOW = {name: getattr(validation, name) for name in validation.__all__}


def __getattr__(name: str) -> Any:
    return former_name(__name__, name, _NOW, "asyncstream.arguments is now asyncstream.validation")
