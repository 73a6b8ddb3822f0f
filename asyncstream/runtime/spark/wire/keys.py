"""
Which key group a key belongs to: the same one in every process, on every machine, after every restart.

Hashes are mixed, so that keys which have a pattern (multiples of the number of groups, ids shifted left,
times of whole minutes) are spread as evenly as all others.

Spark hashes the number of a group once more to find its partition, which leaves half of two hundred
partitions empty. So it is not shown the number but a label, of which its hash makes that number: group g goes
to partition g modulo their number, however many there are.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, time, timedelta
from enum import Enum, Flag
from functools import cache
from numbers import Number
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID
from zlib import crc32

from asyncstream.codec import JsonCodec
from asyncstream.errors import CodecError
from asyncstream.state.keys import check_key

__all__ = ("GROUPING", "KeyGroups", "group_of", "key_groups", "label_of")

GROUPING = 2
"""The rule by which keys have groups; one number more whenever it changes. State is divided by it."""

CACHED = 100_000
"""Keys whose group is remembered, so that a key is hashed once and not with every element."""


class KeyGroups:
    """Gives keys their group, one of `count`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._known: dict[Any, int] = {}

    def of(self, key: Any) -> int:
        """
        The group of `key`, from 0 on.

        Raises:
            TypeError: if the key cannot be hashed, or compared with one of another worker.
            ValueError: if it does not equal itself.
            CodecError: if it has parts of a type that has no fixed bytes.
        """
        try:
            group = self._known.get(key)
        except TypeError:  # it cannot be hashed
            check_key(key)
            raise
        if group is None:
            if len(self._known) >= CACHED:
                self._known.clear()
            check_key(key)
            group = self._known[key] = _stable_hash(key) % self._count
        return group


@cache
def key_groups(count: int) -> KeyGroups:
    """Those of this process: a stream has the keys of a task again in the next ones."""
    return KeyGroups(count)


def _stable_hash(key: Any) -> int:
    # Python's own hash of text differs from process to process; that of numbers does not, and equal numbers
    # of different types have the same one
    if isinstance(key, str):
        return _mixed(crc32(key.encode("utf-8", "surrogatepass")))
    if isinstance(key, bytes):
        return _mixed(crc32(key))
    if type(key).__module__ == "numpy":
        key = _of_python(key)
    if isinstance(key, Number):
        return _mixed(hash(key) if key == key else 0)  # not a number has a hash by its address
    if isinstance(key, tuple):
        mixed = len(key)
        for part in key:
            mixed = _mixed(mixed ^ _stable_hash(part))
        return mixed
    # equal keys of these kinds may look different inside: 1 and 1.0, or one instant in two time zones
    if isinstance(key, frozenset):
        return _mixed(sum(map(_stable_hash, key)))
    if isinstance(key, range):
        return _stable_hash((len(key), *key[:1], *key[-1:]))
    if isinstance(key, datetime | timedelta) and key == key:
        nanoseconds = getattr(key, "nanosecond", 0) or getattr(
            key, "nanoseconds", 0
        )  # those of pandas have them
        if nanoseconds:
            return _stable_hash((_plain(key), nanoseconds))
        key = _plain(key)
    elif isinstance(key, time):
        if (offset := key.utcoffset()) is not None:
            return _stable_hash(("time", timedelta(0, _seconds(key), key.microsecond) - offset))
        key = key.replace(fold=0)
    elif isinstance(key, UUID):  # clients of databases have classes of their own
        key = UUID(int=key.int)
    elif isinstance(key, PurePosixPath):
        key = PurePosixPath(key)
    elif is_dataclass(key) and not isinstance(key, type):
        return _stable_hash(tuple(getattr(key, field.name) for field in fields(key) if field.compare))
    elif isinstance(key, Enum):
        return _stable_hash((type(key).__qualname__, key.value if isinstance(key, Flag) else key.name))
    try:
        return _mixed(crc32(JsonCodec().encode(key)))
    except CodecError:
        own: Any = type(key).__eq__
        if own is object.__eq__:
            raise TypeError(
                f"a {type(key).__qualname__} is equal to itself only, and each worker makes its own; use a "
                "dataclass, a NamedTuple or plain values as keys"
            ) from None
    return _hash_of_parts(key.__getstate__())


def _of_python(key: Any) -> Any:
    """What equals a scalar of NumPy, of a class of Python's or pandas', where that is not a number."""
    import numpy as np
    import pandas as pd

    if isinstance(key, np.bool_):
        return bool(key)
    if isinstance(key, np.datetime64 | np.timedelta64):
        with suppress(ValueError):  # it is too long ago, or counts months
            return pd.Timestamp(key) if isinstance(key, np.datetime64) else pd.Timedelta(key)
    return key


def _seconds(key: time) -> int:
    return (key.hour * 60 + key.minute) * 60 + key.second


def _plain(key: datetime | timedelta) -> datetime | timedelta:
    """One of Python's own, of which equal ones have the same parts."""
    if isinstance(key, timedelta):
        return timedelta(key.days, key.seconds, key.microseconds)
    # of an hour that the clock shows twice, Python takes both for the same
    key = datetime.combine(key.date(), key.time().replace(fold=0), key.tzinfo)
    return key if key.tzinfo is None else key.astimezone(UTC)


def _hash_of_parts(state: Any) -> int:
    """Of an object of any other class: two that are equal must have equal attributes."""
    if isinstance(state, dict):
        return _mixed(sum(_stable_hash((name, _hash_of_parts(part))) for name, part in state.items()))
    if isinstance(state, list | tuple):
        return _stable_hash(tuple(map(_hash_of_parts, state)))
    return _stable_hash(state)


def _mixed(number: int) -> int:
    """Sixty-four bits of which each depends on all of `number`'s; after Steele's SplitMix64."""
    number = (number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ number >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
    number = ((number ^ number >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
    return number ^ number >> 31


# Spark's hash of an int is Murmur3 (x86, 32 bits) of its four bytes with the seed 42: steps that can all be
# taken back.

SEED = 42
WORD = 0xFFFFFFFF
FIRST, SECOND, THIRD, FOURTH, FIFTH = 0xCC9E2D51, 0x1B873593, 5, 0x85EBCA6B, 0xC2B2AE35


def label_of(group: int) -> int:
    """The int of Spark's whose hash is `group`."""
    number = _unshifted(group & WORD, 16)
    number = _unshifted(number * _inverse(FIFTH) & WORD, 13)
    number = _unshifted(number * _inverse(FOURTH) & WORD, 16) ^ 4
    number = _rotated((number - 0xE6546B64) * _inverse(THIRD) & WORD, 32 - 13) ^ SEED
    number = _rotated(number * _inverse(SECOND) & WORD, 32 - 15) * _inverse(FIRST) & WORD
    return number - (number >> 31 << 32)


def group_of(label: int) -> int:
    """The group that goes by `label`: Spark's hash of it."""
    number = _rotated(label * FIRST & WORD, 15) * SECOND & WORD
    number = _rotated(number ^ SEED, 13) * THIRD + 0xE6546B64 & WORD ^ 4
    number = (number ^ number >> 16) * FOURTH & WORD
    number = (number ^ number >> 13) * FIFTH & WORD
    return number ^ number >> 16


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & WORD


def _unshifted(number: int, bits: int) -> int:
    """Takes back `number ^ number >> bits`."""
    found = number
    for _ in range(32 // bits):
        found = number ^ found >> bits
    return found


def _inverse(factor: int) -> int:
    return pow(factor, -1, 1 << 32)
