"""
JSON as it was written: whole numbers come out whole, whatever their size. What is nested deeper than anything
that comes from a program is refused, for checkpoints and sinks could not keep it.

orjson makes floats of those that 64 bits cannot hold, without a word: of 2**64 + 1, say, it takes away the 1.
It still reads everything first, and says what is no JSON; where there may be such a number, json reads it
again. That looks for a run of digits, which costs a fifth of what orjson does. Whole numbers that no float
holds it refuses; it is given fewer digits of them.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import repeat
from operator import add
from typing import Any, Final

import orjson

from asyncstream.codec.depth import check_depth

__all__ = ("LEVELS", "are_for_loads", "loads")

LEVELS: Final = 100
"""
Lists and objects inside each other. A checkpoint needs two levels for some of them, has some of its own, and
no more than 254 altogether.
"""

_STRETCH: Final = 1024
"""Bytes of JSON in which brackets are counted together."""

_ZEROS: Final = bytes.maketrans(b"123456789[", b"000000000{")
"""With one bracket for both, or each would be looked for."""

_LONG: Final = b"0" * 19
"""The digits of the shortest number that 64 bits do not hold, which is negative."""

_ENDLESS: Final = re.compile(rb"(?<![0-9.eE+])([0-9]{20})[0-9]{289,}(?![0-9.eE])")
"""The digits of a whole number that a float may not hold: there are 309 at least."""


def _has_long_number(digits: bytes) -> bool:
    """Whether there may be a whole number in some JSON that 64 bits do not hold; by `_ZEROS` of it."""
    place = digits.find(_LONG)
    while place >= 0:
        before = digits[max(0, place - 1) : place]
        if before not in (b".", b"0"):  # else it is of a fraction, as many floats have
            return True
        place = digits.find(_LONG, place + len(_LONG))
    return False


def are_for_loads(data: bytes, texts: Sequence[bytes]) -> bool:
    """Whether `loads` may read some of these texts, which stand side by side in `data`, unlike orjson."""
    digits = data.translate(_ZEROS)
    if _has_long_number(digits):
        return True
    longest = max(map(len, texts), default=0)
    if longest <= 2 * LEVELS:
        return False
    step = max(longest, _STRETCH)  # so that none is in more than two stretches
    counts = (digits.count(b"{", begin, begin + step) for begin in range(0, len(digits), step))
    return any(count > LEVELS // 2 for count in counts) and _may_be_deep(texts)


def _may_be_deep(texts: Sequence[bytes]) -> bool:
    """Whether the JSON of some of these may be nested deeper than `LEVELS`."""
    if max(map(len, texts), default=0) <= 2 * LEVELS:
        return False
    lists, objects = map(bytes.count, texts, repeat(b"[")), map(bytes.count, texts, repeat(b"{"))
    most: int = max(map(add, lists, objects))
    return most > LEVELS


def loads(data: bytes | str) -> Any:
    """The value of some JSON; raises `orjson.JSONDecodeError` if it is none, or nested too deep."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    text = data if data.__class__ is bytes else bytes(data)
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        shorter, count = _ENDLESS.subn(rb"\1", text)
        if not count:
            raise
        orjson.loads(shorter)
        value = _whole(text)
    else:
        digits = text.translate(_ZEROS)
        if _LONG in digits and _has_long_number(digits):
            value = _whole(text)
    if len(text) > 2 * LEVELS and _may_be_deep((text,)):
        try:
            check_depth(value, LEVELS)
        except TypeError:
            raise orjson.JSONDecodeError(f"nested more than {LEVELS} levels deep", "", 0) from None
    return value


def _whole(text: bytes) -> Any:
    """The value of some JSON, with whole numbers of any size."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise orjson.JSONDecodeError("nested too deeply", "", 0) from error
    except ValueError as error:
        most = sys.get_int_max_str_digits()
        raise orjson.JSONDecodeError(f"a whole number of more than {most} digits", "", 0) from error
