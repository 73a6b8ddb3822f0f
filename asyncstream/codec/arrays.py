"""
Arrays and scalars of numpy, and `array.array`: what they are made of, and the bytes of their memory.

numpy is no dependency. A value of its types can only be there if it is imported, and reading imports it by
this name and no other. Memory is never read as pointers: arrays of objects are kept item by item.
"""

from __future__ import annotations

import math
import sys
from array import array
from base64 import b64decode, b64encode
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from asyncstream.codec.classes import Refused, name_of
from asyncstream.errors import CodecError

__all__ = ("array_of", "is_numpy", "numpy_array", "numpy_scalar", "pack_array", "pack_numpy", "reduced")

_TEXTS = ("str", "bytes")
_KINDS = frozenset("biufcmMSUV")
"""Kinds of dtypes whose items are all in the array's own memory, by numpy's letters."""


def is_numpy(kind: type) -> bool:
    """Whether these are numpy's arrays or scalars themselves; a subclass may hold more than they do."""
    return kind.__module__ == "numpy" and (
        kind is (numpy := sys.modules["numpy"]).ndarray or issubclass(kind, numpy.generic)
    )


def pack_numpy(value: Any, pack: Callable[[Any], Any]) -> Any:
    """An array or scalar as what JSON can hold; `pack` does that to what is inside."""
    numpy: Any = sys.modules["numpy"]
    if isinstance(value, numpy.str_):  # an array cuts off trailing zeros, and so does its str()
        return {"$numpy": ["str", pack(str.__str__(value))]}
    if isinstance(value, numpy.bytes_):
        return {"$numpy": ["bytes", pack(bytes(value))]}
    dtype = value.dtype
    if type(value) is numpy.ndarray:
        shape = list(value.shape)
        if dtype.char == "O":
            return {"$ndarray": [None, shape, pack(list(value.flat))]}
        order = "F" if value.flags.f_contiguous and not value.flags.c_contiguous else "C"
        described = pack(_described(dtype, dtype.type.__name__))
        return {"$ndarray": [described, shape, _text(value.tobytes(order)), order]}
    if type(value) is not dtype.type:
        raise Refused(f"cannot keep a {name_of(type(value))}")
    return {"$numpy": [pack(_described(dtype, dtype.type.__name__)), _text(value.tobytes())]}


def reduced(value: Any) -> tuple[Any, ...] | None:
    """
    How pickle is to make this value, where numpy's own way alters it; None for all others.

    numpy pickles a scalar as an array would hold it: texts lose their trailing zeros, and of two types that
    are of one size it gives one. Arrays it gives in the machine's byte order, whichever they had.
    """
    kind = type(value)
    if not is_numpy(kind):
        return None
    if issubclass(kind, str):
        return kind, (str.__str__(value),)
    if issubclass(kind, bytes):
        return kind, (bytes(value),)
    if kind is sys.modules["numpy"].ndarray:
        if value.dtype.isnative or not _is_flat(value.dtype):
            return None
        return _filled, (value.shape, value.dtype, value.tobytes(), "C")
    return (kind, (int(value),)) if value.dtype.kind in "iu" else None


def numpy_scalar(packed: list[Any], unpack: Callable[[Any], Any]) -> Any:
    """The scalar that `pack_numpy` was given."""
    import numpy

    kind, data = packed
    if kind in _TEXTS:
        text = unpack(data)
        return numpy.str_(text) if kind == "str" else numpy.bytes_(text)
    return _filled((), _dtype(unpack(kind)), b64decode(data), "C")[()]


def numpy_array(packed: list[Any], unpack: Callable[[Any], Any]) -> Any:
    """The array that `pack_numpy` was given."""
    import numpy

    described, shape, data, *order = packed
    if described is not None:
        return _filled(tuple(shape), _dtype(unpack(described)), b64decode(data), *order)
    items = unpack(data)
    if math.prod(shape) != len(items):
        raise CodecError(f"{len(items)} items are no array of the shape {shape}")
    made = numpy.empty(len(items), object)
    for number, item in enumerate(items):
        made[number] = item  # not made[:] = items: numpy would look for arrays in the items
    return made.reshape(shape)


def _filled(shape: tuple[int, ...], dtype: Any, data: bytes, order: Any) -> Any:
    import numpy

    memory = bytearray(data)  # which can be written to, as a new array can
    if math.prod(shape) * dtype.itemsize != len(memory):
        raise CodecError(f"{len(memory)} bytes are no array of the shape {shape} of {dtype}")
    if not memory and not dtype.itemsize:  # numpy makes texts of one character of those that have none
        return numpy.zeros(shape, [("item", dtype)], order)["item"]
    if not memory:
        return numpy.zeros(shape, dtype, order)
    return numpy.ndarray(shape, dtype, memory, order=order)


@lru_cache(maxsize=1000)
def _described(dtype: Any, kind: str) -> Any:
    """
    A dtype as plain values that `_dtype` makes it of again; the name of the type of its scalars tells it from
    equal ones. Raises `Refused` if there are none, or its items are elsewhere than in the array.
    """
    from numpy.lib.format import dtype_to_descr

    if _is_flat(dtype):
        # as a file of numpy's has it, and the letter that tells apart types of one size
        for way in (dtype.str if dtype.names is None else dtype_to_descr(dtype), dtype.char):
            try:
                made = _dtype(way)
            except (CodecError, TypeError, ValueError):
                continue
            if made == dtype and made.type.__name__ == kind:
                return way
    raise Refused(f"cannot keep what has the numpy dtype {dtype!r}")


def _is_flat(dtype: Any) -> bool:
    if dtype.hasobject or dtype.metadata:
        return False
    if dtype.subdtype is not None:
        return _is_flat(dtype.subdtype[0])
    if dtype.names is not None:
        return all(_is_flat(dtype.fields[name][0]) for name in dtype.names)
    return dtype.kind in _KINDS


def _dtype(described: Any) -> Any:
    from numpy.lib.format import descr_to_dtype

    made: Any = descr_to_dtype(described)
    if not _is_flat(made):
        raise CodecError(f"{described!r} describes no plain memory")
    return made


def pack_array(value: array[Any]) -> Any:
    """An `array.array` as what JSON can hold."""
    return {"$array": [value.typecode, value.itemsize, _text(_little_endian(value).tobytes())]}


def array_of(packed: list[Any]) -> array[Any]:
    """The array that `pack_array` was given."""
    typecode, itemsize, data = packed
    made: array[Any] = array(typecode)
    if made.itemsize != itemsize:
        raise CodecError(f"items of array({typecode!r}) have {made.itemsize} bytes here, not {itemsize}")
    made.frombytes(b64decode(data))
    return _little_endian(made)


def _little_endian(value: array[Any]) -> array[Any]:
    if sys.byteorder == "little":
        return value
    turned = value[:]
    turned.byteswap()
    return turned


def _text(data: bytes) -> str:
    return b64encode(data).decode("ascii")
