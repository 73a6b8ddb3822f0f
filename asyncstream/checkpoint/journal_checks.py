"""
What is written beside a call to tell for which element it was made: its position alone does not.

A source that is read again from a checkpoint is to give the same elements in the same order, and not every
one keeps to that: messages expire, a log is compacted, a row is committed late. Then the position of one
element is that of another, and the result of its call would be taken for that of the other's. So a check of
the element stands beside the result, and a result is taken only where the element is the same.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import repeat
from typing import Any, Final
from zlib import crc32

from asyncstream.codec import Codec
from asyncstream.errors import CodecError

__all__ = ("check", "checks")

_VERSION: Final = 0
"""Of marshal: its bytes do not say which values are one object, or interned, so those of equals are equal."""


def checks(elements: Iterable[Any], codec: Codec) -> list[int | None]:
    """The check of each element; of a number it is the number, which is the quickest."""
    elements = list(elements)
    kinds = set(map(type, elements))
    if kinds == {int}:
        return elements
    if int not in kinds:
        with suppress(ValueError):  # one of them is made of more than Python's own types
            return list(map(crc32, map(marshal.dumps, elements, repeat(_VERSION))))
    return [check(element, codec) for element in elements]


def check(element: Any, codec: Codec) -> int | None:
    """
    A number that is the same for equal elements, in every process; None: there is none for this one.

    Args:
        codec: makes bytes of what is made of more than Python's own types; by `encode_ordered`, if those
            that `encode` makes differ from process to process.
    """
    if type(element) is int:
        return element
    with suppress(ValueError):
        return crc32(marshal.dumps(element, _VERSION))
    encode: Callable[[Any], bytes] = getattr(codec, "encode_ordered", codec.encode)
    try:
        return crc32(encode(element))
    except CodecError:
        return None
