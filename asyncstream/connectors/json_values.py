"""
JSON as it was written: whole numbers come out whole, whatever their size.

orjson makes floats of those that 64 bits cannot hold, without a word: of 2**64 + 1, say, it takes away the 1.
It still reads everything first, and says what is no JSON; where there may be such a number, json reads it
again. That looks for a run of digits, which costs a fifth of what orjson does.
"""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

__all__ = ("has_long_number", "loads")

_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG: Final = b"0" * 19
"""The digits of the shortest number that 64 bits do not hold, which is negative."""


def has_long_number(data: bytes) -> bool:
    """Whether there may be a whole number in some JSON that 64 bits do not hold."""
    digits = data.translate(_ZEROS)
    place = digits.find(_LONG)
    while place >= 0:
        before = digits[max(0, place - 1) : place]
        if before not in (b".", b"0"):  # else it is of a fraction, as many floats have
            return True
        place = digits.find(_LONG, place + len(_LONG))
    return False


def loads(data: bytes | str) -> Any:
    """The value of some JSON; raises `orjson.JSONDecodeError` if it is none."""
    value = orjson.loads(data)
    if not has_long_number(data.encode() if isinstance(data, str) else bytes(data)):
        return value
    try:
        return json.loads(data)
    except RecursionError as error:
        raise orjson.JSONDecodeError("nested too deeply", "", 0) from error
