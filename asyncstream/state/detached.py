"""
Copies for snapshots: a snapshot must not change when the running operator does, and the other way round.
"""

from __future__ import annotations

import copy
from typing import Any

__all__ = ("IMMUTABLE", "detached")

IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types whose values need no copy."""


def detached(value: Any) -> Any:
    """
    `value`, sharing nothing mutable with the original.

    Plain containers are walked here, several times faster than `copy.deepcopy`, which does the rest.
    Exceptions are taken as immutable: many cannot be made again from their arguments.
    """
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is list:
        return [detached(part) for part in value]
    if kind is tuple:
        parts = [detached(part) for part in value]
        if all(part is original for part, original in zip(parts, value, strict=True)):
            return value
        return tuple(parts)
    if kind is dict:
        if IMMUTABLE.issuperset(map(type, value.values())):  # like most records
            return value.copy()
        return {key: detached(part) for key, part in value.items()}
    if kind is set:  # its members are hashable, taken as immutable like the keys of a dict
        return set(value)
    if isinstance(value, BaseException):
        return value
    return copy.deepcopy(value)
