"""
The names under which rows are stored: those of a namespace lie together, and the earliest comes first.

A name is

    table       4 bytes, the number of the table in its database
    namespace   a byte that says its kind, then: nothing for None; 8 bytes for an int, such that the earliest
                comes first; 16 for a pair of them, a window; else 8, the number of the namespace
    hash        8 bytes, `hash(key)`
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final

__all__ = (
    "HASH",
    "INT",
    "INTS",
    "NONE",
    "NUMBERED",
    "PAIR",
    "PAIRS",
    "TABLE",
    "ZERO",
    "as_int",
    "behind",
    "int_in",
)

TABLE: Final = Struct(">I")
HASH: Final = Struct(">q")
INT: Final = Struct(">Q")
PAIR: Final = Struct(">QQ")

KIND: Final = TABLE.size
"""Where in a name the namespace begins, with its kind."""

ZERO: Final = 1 << 63
"""Added to an int, so that negative ones come before others."""

NONE: Final = b"\0"
INTS: Final = b"\1"
PAIRS: Final = b"\2"
NUMBERED: Final = b"\3"

_NUMBERS: Final = (bool, float, int)


def as_int(namespace: Any) -> int | None:
    """The int that equals this, if there is one that fits."""
    if type(namespace) is not int:
        if not isinstance(namespace, _NUMBERS) or namespace != namespace // 1:
            return None
        namespace = int(namespace)
    return namespace if -ZERO <= namespace < ZERO else None


def int_in(name: bytes) -> int:
    """The namespace in a name, which is an int."""
    number: int = INT.unpack_from(name, KIND + 1)[0]
    return number - ZERO


def behind(prefix: bytes) -> bytes:
    """What comes after all names that begin with this."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")
