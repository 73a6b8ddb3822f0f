"""
Entries of rows on disk: what stands under one name.

An entry is the pickle of (key, place, value), where the places give the order in which rows were first put;
for a pair of numbers, and for a namespace that is numbered, as an int of more than 64 bits is, the namespace
itself comes last. Keys that share a hash share a name: a list of such rows.
"""

from __future__ import annotations

from typing import Any, Final

from asyncstream.errors import StateError, describe_error, safe_repr
from asyncstream.state.row_names import as_int
from asyncstream.state.rows import Entry
from asyncstream.state.stored import Stored

__all__ = ("pickled", "row_of", "with_row")

_PLAIN: Final = frozenset({type(None), bool, int, str, bytes})
"""Types of keys that are equal to their copies."""


def row_of(held: Any, key: Any) -> Any:
    """The row of an entry that has this key, or None."""
    if type(held) is tuple:
        return held if held[0] == key else None
    for row in held:
        if row[0] == key:
            return row
    return None


def with_row(stored: Stored, held: Any, entry: Entry, place: int) -> tuple[Any, bool]:
    """
    What is held under a name when it has this row as well, and whether the row is new.

    Args:
        held: what is there already, or `NOTHING`.
        place: of the row if it is new.

    Raises:
        StateError: if the row is new and its key would not be found again.
    """
    namespace, key, value = entry
    row: tuple[Any, ...]
    found = row_of(held, key)
    if found is not None:
        row = (*found[:2], value, *found[3:])
        return [row if each is found else each for each in held] if type(held) is list else row, False
    if type(key) not in _PLAIN:
        _check_key(key, stored)
    row = (key, place, value)
    if namespace is not None and (type(namespace) is not int or as_int(namespace) is None):
        row = (*row, namespace)
    if not held:
        return row, True
    return [*held, row] if type(held) is list else [held, row], True


def pickled(stored: Stored, held: Any) -> bytes:
    """An entry as it is stored; raises `StateError` if pickle refuses it."""
    try:
        return stored.dumps(held)
    except Exception as error:  # of any class in there
        key = held[0][0] if type(held) is list else held[0]
        raise StateError(
            f"what is remembered of key {safe_repr(key)} cannot be kept on disk: pickle refuses it: "
            f"{describe_error(error)}"
        ) from error


def _check_key(key: Any, stored: Stored) -> None:
    """
    Refuse a key that would not be found again; raises `StateError` if it does not equal a copy of it, such as
    NaN, or an object of a class without `__eq__`.
    """
    if type(key) is tuple and all(type(part) in _PLAIN for part in key):
        return
    try:
        copy = stored.loads(stored.dumps(key))
        is_found = bool(copy == key) and hash(copy) == hash(key)
    except Exception as error:
        raise StateError(
            f"key {safe_repr(key)} cannot be kept on disk: pickle refuses it: {describe_error(error)}"
        ) from error
    if not is_found:
        raise StateError(
            f"key {safe_repr(key)} cannot be kept on disk: it does not equal a copy of itself; use a key "
            f"that compares by value"
        )
