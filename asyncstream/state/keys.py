"""
Keys that would not be found again.

A row is looked up by its key. What does not equal itself, NaN before all, is found only as the very object
that it was when it was put: each element that brings one has a row of its own, and after a restore, which
makes new objects, nothing finds any of these rows. So it is refused, when a table first meets it: to look at
every key of every element would cost what many a key function costs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from decimal import Decimal
from typing import Any, Final

from asyncstream.errors import PipelineError, safe_repr

__all__ = ("SOUND", "NoKey", "check_hash", "check_key", "check_map_key", "equals_itself")

SOUND: Final = frozenset({str, int, bytes, bool, type(None)})
"""Types of which every value equals itself, and a copy; asked before `check_key` in a loop that counts."""


_NUMBERS: Final = frozenset({float, complex, Decimal})

_GROUPS: Final = (tuple, frozenset, list)
"""They compare their parts by identity first, so that they equal themselves whatever is in them."""


class NoKey:
    """In place of a key where there is none: whatever looks one up is refused, with `why`."""

    __slots__ = ("_why",)

    def __init__(self, why: str) -> None:
        self._why = why

    def __hash__(self) -> int:
        raise PipelineError(self._why)

    def __repr__(self) -> str:
        return "no key"


def check_hash(key: Any) -> None:
    """
    Refuse a key that has no hash.

    Raises:
        TypeError: if it has none, such as a list.
        Exception: what else hashing it raises.
    """
    try:
        hash(key)
    except TypeError as error:
        advice = "have key_by return a text, a number, or a tuple of such"
        raise TypeError(f"a key must be hashable, got {safe_repr(key)}: {error}; {advice}") from error


def check_key(key: Any) -> None:
    """
    Refuse a key that does not equal itself, or is made of parts that do not, or has no hash.

    Raises:
        ValueError: if it does not, such as NaN, NaT, or a tuple with one of them.
        TypeError: if it has no hash, such as a list, a dict, or a tuple with one of them.
        Exception: what hashing it raises.
    """
    try:
        hash(key)  # not every place in which it is put does so at once
    except TypeError:
        check_hash(key)  # which says what to give; a call of it costs a third of all this
    if not equals_itself(key):
        raise ValueError(
            f"a key must equal itself, got {safe_repr(key)}: otherwise each of its elements would have a key "
            "of its own, and state that is never found again; have key_by return something else in its "
            "place, such as None, or filter such elements out before"
        )


def check_map_key(key: Any) -> None:
    """
    Refuse a key of a map in state that does not equal itself, or is made of parts that do not.

    Raises:
        ValueError: if it does not, such as NaN, NaT, or a tuple with one of them.
    """
    if not equals_itself(key):
        raise ValueError(
            f"a key of a map must equal itself, got {safe_repr(key)}: otherwise each put of it would be an "
            "entry of its own, which is never found again; put something else in its place, such as None"
        )


def equals_itself(value: Any) -> bool:
    """Whether a value does, and so do its parts."""
    kind: Any = type(value)
    if kind in SOUND:
        return True
    if isinstance(value, _GROUPS):
        return SOUND.issuperset(map(type, value)) or all(map(equals_itself, value))
    if kind in _NUMBERS:
        return bool(value == value)
    if kind.__eq__ is not object.__eq__ and not all(map(equals_itself, _attributes(value))):
        return False
    try:
        return bool(value == value)
    except TypeError:  # pandas' NA, which is neither equal to itself nor different
        return False


def _attributes(value: Any) -> Iterable[Any]:
    """Those by which an object of a class that says itself what is equal is likely to be compared."""
    if is_dataclass(value):
        return (getattr(value, field.name) for field in fields(value) if field.compare)
    return getattr(value, "__dict__", {}).values()
