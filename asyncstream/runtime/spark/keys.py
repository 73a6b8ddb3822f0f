"""
Which key group a key belongs to: the same one in every process, on every machine, after every restart.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from numbers import Number
from typing import Any
from zlib import crc32

from asyncstream.codec import JsonCodec

__all__ = ("KeyGroups",)

CACHED = 100_000
"""Keys whose group is remembered, so that a key is hashed once and not with every element."""


class KeyGroups:
    """
    Gives keys their group.

    Args:
        count: how many groups there are.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._known: dict[Any, int] = {}

    def of(self, key: Any) -> int:
        """
        The group of `key`, from 0 on.

        Raises:
            TypeError: if the key cannot be hashed.
            CodecError: if it is of a type that has no fixed bytes.
        """
        group = self._known.get(key)
        if group is None:
            if len(self._known) >= CACHED:
                self._known.clear()
            group = self._known[key] = _stable_hash(key) % self._count
        return group


def _stable_hash(key: Any) -> int:
    # Python's own hash of text differs from process to process; that of numbers does not, and equal numbers
    # of different types have the same one
    if isinstance(key, str):
        return crc32(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return crc32(key)
    if isinstance(key, Number):
        return hash(key)
    if isinstance(key, tuple):
        mixed = 0
        for part in key:
            mixed = (mixed * 1_000_003 ^ _stable_hash(part)) & 0xFFFFFFFF
        return mixed
    # equal keys of these kinds may look different inside: 1 and 1.0, or one instant in two time zones
    if isinstance(key, frozenset):
        return sum(map(_stable_hash, key))
    if isinstance(key, datetime) and key.tzinfo is not None:
        key = key.astimezone(UTC)
    elif is_dataclass(key) and not isinstance(key, type):
        return _stable_hash(tuple(getattr(key, field.name) for field in fields(key) if field.compare))
    return crc32(JsonCodec().encode(key))
