"""
JSON with types: the default codec, and its fast path.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable
from types import NoneType
from typing import Any, Final

import orjson

from asyncstream.codec.classes import Classes, Refused, name_of
from asyncstream.codec.depth import DEEPEST
from asyncstream.codec.packing import HARMLESS, TRUSTED, Packer
from asyncstream.codec.unpacking import HOLDERS, Unpacker
from asyncstream.errors import CodecError, describe_error
from asyncstream.shown import Shown

__all__ = ("JsonCodec",)


class JsonCodec(Shown):
    """
    JSON with types: keeps None, bool, int, float, complex, str, list, tuple, dict, bytes, bytearray, set,
    frozenset, range, datetime, date, time, timedelta, timezone, ZoneInfo, Decimal, Fraction, UUID,
    `array.array`, deque, Counter, OrderedDict, `defaultdict` of a built-in type, SimpleNamespace, the paths
    of `pathlib`, IP addresses and networks; the arrays and scalars of numpy; Timestamp, Timedelta, NaT and NA
    of pandas; and by class name enums, dataclasses, NamedTuples, attrs classes, pydantic models and
    exceptions; all of these in each other and as keys. Subclasses of the others are refused.

    Args:
        types: classes of the named kinds that may be named in bytes wherever they are defined. Others may be
            if their module is imported when the bytes are read: bytes never import one.

    Raises:
        PipelineError: if `types` holds anything else.
    """

    name = "json"

    def __init__(self, types: Iterable[type] = ()) -> None:
        self._classes = Classes(types)

    def encode(self, value: Any) -> bytes:
        try:
            return self._encoded(value)
        except Refused as refused:
            raise CodecError(refused.reason, refused.path) from None
        except (RecursionError, TypeError) as error:
            name, reason = name_of(type(value)), describe_error(error)
            raise CodecError(f"a {name} nested too deeply, or inside itself: {reason}", "") from error
        except Exception as error:  # of any method of any class in there
            raise CodecError(f"cannot keep a {name_of(type(value))}: {describe_error(error)}", "") from error

    def _encoded(self, value: Any) -> bytes:
        floats = _floats_of_plain(value)
        if floats is not None:
            try:
                data = orjson.dumps(value, option=_NOTHING_SPECIAL)
            except TypeError:
                pass  # orjson has no word for something in it
            else:
                if _came_through(data, floats):
                    return data
        try:
            return orjson.dumps(Packer(TRUSTED, self._classes).pack(value))
        except TypeError:
            return orjson.dumps(Packer(HARMLESS, self._classes).pack(value))

    def decode(self, data: bytes) -> Any:
        try:
            value = orjson.loads(data)
            return Unpacker(self._classes).unpack(value) if _TAGGED in data else value
        except CodecError:
            raise
        # What damaged bytes can set off: wrong shapes and types, absurd numbers and dates.
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            OSError,
            RecursionError,
            SyntaxError,
            TypeError,
            ValueError,
        ) as error:
            raise CodecError(f"these are not the bytes of a value: {describe_error(error)}") from error


# The fast path. orjson quietly turns a tuple into a list, an enum into its value, a UUID into a str and NaN
# into null; and tuples in tuples, thousands deep, make it write past its memory. So it is given what is plain
# only. Looking at each value from Python would cost ten times what orjson takes; asking the garbage
# collector's traversal for all children of a whole level at once costs two.

_NOTHING_SPECIAL: Final = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_PLAIN: Final = frozenset({NoneType, bool, int, float, str}) | HOLDERS
_TAGGED: Final = b'{"$'  # cannot occur inside a JSON string, where the quote would be escaped


_SAMPLE: Final = 1000
"""How many parts of a level are looked at to find whether some are there many times."""


def _floats_of_plain(value: Any) -> list[list[Any]] | None:
    """The parts of `value` that are floats, among others; None if it is not plain."""
    floats = []
    level = [value]  # all that is as deep inside it as the rest
    seen: set[int] | None = None  # lists and dicts, from when on some were met twice
    for _ in range(DEEPEST + 1):
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return None
        if float in kinds:
            floats.append(level)
        if kinds.isdisjoint(HOLDERS):
            return floats
        if seen is None and len(level) > 2 * _SAMPLE:
            sample = level[:: len(level) // _SAMPLE]
            if len(set(map(id, sample))) < len(sample):  # else a list often inside itself would fill memory
                seen = set()
        if seen is not None:
            new = {id(part): part for part in level if type(part) in HOLDERS and id(part) not in seen}
            seen.update(new)
            level = list(new.values())
        level = gc.get_referents(*level)
    return None  # too deep, or inside itself


def _came_through(data: bytes, floats: list[list[Any]]) -> bool:
    """Whether `data`, written by orjson of a plain value, reads back as that."""
    if b"$" in data and _TAGGED in data:  # one byte is found ten times as quickly as three
        return False
    if not floats or b"null" not in data:
        return True
    return all(math.isfinite(part) for level in floats for part in level if type(part) is float)
