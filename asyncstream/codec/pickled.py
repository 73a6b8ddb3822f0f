"""
Python's pickle as a codec, for what it can read again.

Many a class pickles without complaint, and fails only when it is read: an exception whose arguments are not
those of its `__init__`, say. That would be found out after a crash. So the first instance of each class, and
every exception, is read again when it is written.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, Final

from asyncstream.codec.arrays import reduced
from asyncstream.codec.base import ForeignError
from asyncstream.codec.classes import name_of
from asyncstream.codec.records import by_name
from asyncstream.errors import CodecError, describe_error
from asyncstream.shown import Shown

__all__ = ("PROTOCOL", "PickleCodec")

_SETS: Final = (pickle.EMPTY_SET, pickle.FROZENSET)
"""The opcodes that make a set."""

PROTOCOL: Final = 4
"""Of pickle. With 5, a `PickleBuffer` is read as `bytes`; this one refuses it."""


class PickleCodec(Shown):
    """Python's pickle. Decoding runs whatever code the bytes ask for: only for stores that you trust."""

    name = "pickle"

    def __init__(self) -> None:
        self._readable: set[type] = set()

    def encode(self, value: Any) -> bytes:
        try:
            return _pickled(value, self._readable)
        except Exception as error:  # any `__reduce__` of any class may have raised it
            raise CodecError(f"pickle refuses a {name_of(type(value))}: {describe_error(error)}") from error

    def encode_ordered(self, value: Any) -> bytes:
        """
        Bytes that are the same for equal values in every process, and cannot be read: sets, which come in
        another order in each, are in one.

        Raises:
            CodecError: as `encode`.
        """
        data = self.encode(value)
        if not any(opcode in data for opcode in _SETS):  # perhaps of a text; then it is done for nothing
            return data
        return _pickled(value, self._readable, _Ordered)

    def decode(self, data: bytes) -> Any:
        try:
            return pickle.loads(data)
        except CodecError:
            raise
        except Exception as error:
            raise CodecError(f"pickle cannot read these bytes: {describe_error(error)}") from error


class _Pickler(pickle.Pickler):
    """
    Reads again what it has not seen; classes with an instance that was read are `readable` from then on.
    """

    def __init__(self, file: io.BytesIO, readable: set[type]) -> None:
        super().__init__(file, PROTOCOL)
        self._readable = readable

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        altered = reduced(value)
        if altered is not None:
            return altered
        if kind is type:
            return NotImplemented
        if kind in self._readable:
            return by_name(value) or NotImplemented
        if isinstance(value, BaseException):
            if _why_lost(value) is None:
                return NotImplemented
            return ForeignError, (name_of(kind), describe_error(value))
        self._readable.add(kind)  # before its parts, for it may be inside itself
        why = _why_lost(value)
        if why is not None:
            self._readable.discard(kind)
            raise pickle.PicklingError(why)
        return by_name(value) or NotImplemented


class _Ordered(_Pickler):
    """Has the members of a set in the order of their bytes."""

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if not issubclass(kind, set | frozenset):
            return None
        return name_of(kind), sorted(_pickled(member, self._readable, _Ordered) for member in value)


def _pickled(value: Any, readable: set[type], pickler: type[_Pickler] = _Pickler) -> bytes:
    buffer = io.BytesIO()
    pickler(buffer, readable).dump(value)
    return buffer.getvalue()


def _why_lost(value: Any) -> str | None:
    """Why a value cannot be written, or what is made of it read again; None: it can."""
    kind = type(value)
    try:
        data = pickle.dumps(value, PROTOCOL)
    except Exception as error:
        return f"a {name_of(kind)} cannot be written ({describe_error(error)})"
    try:
        found = type(pickle.loads(data))
    except Exception as error:
        return f"what it makes of a {name_of(kind)} cannot be read again ({describe_error(error)})"
    return None if found is kind else f"what it makes of a {name_of(kind)} is read as a {name_of(found)}"
