"""
Rows as they are stored on disk: names, of which those of a namespace lie together and the earliest comes
first, and entries, which stand under them.

A name is

    table       4 bytes, the number of the table in its database
    namespace   a byte that says its kind, then: nothing for None; 8 bytes for an int, such that the earliest
                comes first; 16 for a pair of them, a window; else 8, the number of the namespace
    hash        8 bytes, `hash(key)`

An entry is the pickle of (key, place, value), where the places give the order in which rows were first put;
for a pair of numbers, and for a namespace that is numbered, as an int of more than 64 bits is, the namespace
itself comes last. Keys that share a hash share a name: a list of such rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any, Final

from asyncstream.errors import StateError, describe_error, safe_repr
from asyncstream.state.keys import SOUND
from asyncstream.state.rows import Entry
from asyncstream.state.stored import Stored

__all__ = ("HASH", "Names", "as_int", "behind", "int_in", "pickled", "row_of", "with_row")

HASH: Final = Struct(">q")

_TABLE: Final = Struct(">I")
_INT: Final = Struct(">Q")
_PAIR: Final = Struct(">QQ")

_ZERO: Final = 1 << 63
"""Added to an int, so that negative ones come before others."""

_NONE: Final = b"\0"
_INTS: Final = b"\1"
_PAIRS: Final = b"\2"
_NUMBERED: Final = b"\3"

_NUMBERS: Final = (bool, float, int)


def as_int(namespace: Any) -> int | None:
    """The int that equals this, if there is one that fits."""
    if type(namespace) is not int:
        if not isinstance(namespace, _NUMBERS) or namespace != namespace // 1:
            return None
        namespace = int(namespace)
    return namespace if -_ZERO <= namespace < _ZERO else None


def int_in(name: bytes) -> int:
    """The namespace in a name, which is an int."""
    number: int = _INT.unpack_from(name, _TABLE.size + 1)[0]
    return number - _ZERO


def behind(prefix: bytes) -> bytes:
    """What comes after all names that begin with this."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


class Names:
    """
    What names of one table begin with.

    Args:
        number: of the table.
        numbered: namespaces that have a number, in the order of these.

    Attributes:
        all: every name.
        behind_ints: comes after those of all namespaces that are ints.
    """

    __slots__ = ("_numbers", "_own", "all", "behind_ints", "number", "numbered")

    def __init__(self, number: int, numbered: Iterable[Any] = ()) -> None:
        self.number, self.numbered = number, list(numbered)
        self.all = _TABLE.pack(number)
        self.behind_ints = self.all + _PAIRS
        self._own = self.all + _NONE
        self._numbers = {namespace: number for number, namespace in enumerate(self.numbered)}

    def of(self, namespace: Any) -> bytes:
        """Those of a namespace."""
        if namespace is None:
            return self._own
        number = as_int(namespace)
        if number is not None:
            return self.all + _INTS + _INT.pack(number + _ZERO)
        if isinstance(namespace, tuple) and len(namespace) == 2:
            start, end = map(as_int, namespace)
            if start is not None and end is not None:
                return self.all + _PAIRS + _PAIR.pack(start + _ZERO, end + _ZERO)
        number = self._numbers.setdefault(namespace, len(self.numbered))
        if number == len(self.numbered):
            self.numbered.append(namespace)
        return self.all + _NUMBERED + _INT.pack(number)

    def namespace(self, name: bytes, row: Any) -> Any:
        """The namespace of a row that stands under a name."""
        if len(row) > 3:
            return row[3]
        return None if name.startswith(self._own) else int_in(name)


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
    if type(key) not in SOUND:
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
    if type(key) is tuple and SOUND.issuperset(map(type, key)):
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
