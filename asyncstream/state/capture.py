"""
Values as they are now, to be looked at later, while the running operator changes its own.

`detached` copies objects for objects, `freeze` into bytes, which another thread may turn back.

The event loop stands still in the instant of a checkpoint. A copy as bytes, made by `pickle`, takes a tenth
of the time of a walk in Python, and leaves nothing for the garbage collector to look at. The bytes never
leave the process.

Plain values are pickled without a memo of what was seen already, in half the time. That writes an object once
for each place that holds it; so it is given up where there is a class, of which two may be told apart, and
where it makes more bytes than such values usually have. Rejected: `marshal`, which takes arrays for `bytes`.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from asyncstream.codec.arrays import reduced
from asyncstream.codec.pickled import PROTOCOL

__all__ = ("IMMUTABLE", "Frozen", "detached", "freeze")

T = TypeVar("T")

IMMUTABLE = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types whose values need no copy."""

_MUCH = 4 * 2**20
"""Bytes that a copy of plain values is allowed: more of them, and one large thing is there many times."""


def detached(value: Any) -> Any:
    """
    `value`, sharing nothing mutable with the original.

    Plain containers are walked here, several times faster than `copy.deepcopy`, which does the rest, and
    those that hold themselves. Exceptions are taken as immutable: many cannot be made again from their
    arguments.

    Args:
        value: containers, which are walked, or anything that can be copied.
    """
    if type(value) in IMMUTABLE:
        return value
    try:
        return _walked(value)
    except RecursionError:
        return copy.deepcopy(value)


def _walked(value: Any) -> Any:
    kind = type(value)
    if kind in IMMUTABLE:
        return value
    if kind is list:
        return [_walked(part) for part in value]
    if kind is tuple:
        parts = [_walked(part) for part in value]
        if all(part is original for part, original in zip(parts, value, strict=True)):
            return value
        return tuple(parts)
    if kind is dict:
        if IMMUTABLE.issuperset(map(type, value.values())):  # like most records
            return value.copy()
        return {key: _walked(part) for key, part in value.items()}
    if kind is set:  # its members are hashable, taken as immutable like the keys of a dict
        return set(value)
    if isinstance(value, BaseException):
        return value
    return copy.deepcopy(value)


@dataclass(frozen=True, slots=True)
class Frozen(Generic[T]):
    """
    A value as it was.

    Attributes:
        thaw: gives the value; call it once. From any thread, unless `is_live`.
        size: about how many bytes were copied.
        is_live: it could not be copied: `thaw` gives the thing itself, to be used before anything else runs.
    """

    thaw: Callable[[], T]
    size: int = 0
    is_live: bool = field(default=False, kw_only=True)


def freeze(value: Any) -> Frozen[Any]:
    """
    Hold `value` fast; it is used as a whole, so it should not be large.

    Args:
        value: anything that can be copied.
    """
    data: io.BytesIO = _Bounded()
    try:
        _PlainPickler(data).dump(value)
    except (ValueError, RecursionError, pickle.PicklingError):  # a class, too much, or inside itself
        data = io.BytesIO()
        try:
            _Pickler(data, PROTOCOL).dump(value)
        except Exception:  # of any class in there
            return Frozen(lambda: value, is_live=True)
    return Frozen(lambda: pickle.loads(data.getbuffer()), data.tell())


class _Bounded(io.BytesIO):
    """Memory for `_MUCH` bytes."""

    def write(self, data: Any) -> int:
        if self.tell() > _MUCH:
            raise pickle.PicklingError
        return super().write(data)


class _PlainPickler(pickle.Pickler):
    """Takes plain values only, and does not look whether it has seen them."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, PROTOCOL)
        self.fast = True

    def reducer_override(self, value: Any) -> Any:
        raise pickle.PicklingError


class _Pickler(pickle.Pickler):
    """Refuses exceptions: many cannot be made again from their arguments, which shows only when read."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            raise pickle.PicklingError("an exception")
        altered = reduced(value)
        return NotImplemented if altered is None else altered
