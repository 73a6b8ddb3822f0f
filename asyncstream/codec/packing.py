"""
The careful path of `JsonCodec`: makes of any value one that orjson writes without loss.

Nearly all ints and strs are fine, and orjson says so if one is not. So the first attempt trusts them and
calls no function for each; a second one, hardly ever made, looks at them too.
"""

from __future__ import annotations

import math
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from pickle import PicklingError
from types import NoneType
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson

from asyncstream.codec.arrays import is_numpy, pack_array, pack_numpy
from asyncstream.codec.base import ForeignError
from asyncstream.codec.classes import (
    Classes,
    Refused,
    arguments_of,
    held,
    is_named_tuple,
    make_error,
    members_besides,
    name_of,
)
from asyncstream.codec.enums import names_of
from asyncstream.codec.fields import MODEL_PARTS, fields_of, is_model, is_record
from asyncstream.codec.library import KINDS, is_pandas, pandas_parts
from asyncstream.errors import describe_error, safe_repr

__all__ = ("HARMLESS", "TRUSTED", "Packer")

HARMLESS: Final = frozenset({NoneType, bool})
TRUSTED: Final = HARMLESS | {int, str}

_MOST_ERRORS: Final = 100
"""Exceptions inside each other, as causes say; each of them is two levels, of which orjson bears 254."""


class Packer:
    """
    Packs the values of one `encode`: leaves are passed on as they are, others are made of these classes.
    """

    def __init__(self, leaves: frozenset[type], classes: Classes) -> None:
        self._leaves = leaves
        self._classes = classes
        self._paths: dict[type, str] = {}
        self._errors: set[int] = set()  # exceptions inside which something is packed, by identity
        self._has_circle = False  # if so, they stay there: or each were packed on every way that leads to it

    def pack(self, value: Any) -> Any:
        kind = type(value)
        if kind in self._leaves:
            return value
        pack = _PACKERS.get(kind)
        if pack is not None:
            return pack(self, value)
        if issubclass(kind, Enum):
            return {"$enum": [self._path(kind), self.pack(names_of(value))]}
        if issubclass(kind, BaseException):
            return self._error(value)
        if is_record(kind):
            return {"$dataclass": [self._path(kind), self._attributes(value)]}
        if is_named_tuple(kind) and len(value) == len(kind._fields):
            held(value, ())
            parts = {name: self._at(f".{name}", part) for name, part in zip(kind._fields, value, strict=True)}
            return {"$namedtuple": [self._path(kind), parts]}
        known = KINDS.get(kind)
        if known is not None:
            return {known.tag: self.pack(known.parts(value))}
        if is_numpy(kind):
            return pack_numpy(value, self.pack)
        if is_model(kind):
            return {"$model": [self._path(kind), self._attributes(value), *self._model_parts(value)]}
        if is_pandas(kind):
            return {"$pandas": self.pack(pandas_parts(value))}
        advice = "keep plain values, dataclasses or NamedTuples"
        if _pickle_may_keep(value):
            advice += ", or ask for codec='pickle'"
        raise Refused(f"cannot keep a {name_of(kind)}, {safe_repr(value, 80)}; {advice}")

    def _at(self, step: str, value: Any) -> Any:
        try:
            return self.pack(value)
        except Refused as refused:
            raise refused.inside(step) from None

    def items(self, values: Iterable[Any]) -> list[Any]:
        leaves, pack = self._leaves, self.pack
        packed: list[Any] = []  # its length is the path when one is refused
        try:
            for value in values:
                packed.append(value if type(value) in leaves else pack(value))
        except Refused as refused:
            raise refused.inside(f"[{len(packed)}]") from None
        return packed

    def members(self, values: Iterable[Any]) -> list[Any]:
        # a set has no order, and equal snapshots should be equal bytes
        return sorted((self._at("{…}", value) for value in values), key=orjson.dumps)

    def mapping(self, values: dict[Any, Any]) -> dict[str, Any]:
        leaves, pack = self._leaves, self.pack
        packed: dict[Any, Any] = {}
        for key, value in values.items():
            try:
                packed[key] = value if type(value) in leaves else pack(value)
            except Refused as refused:
                raise refused.inside(f"[{safe_repr(key, 40)}]") from None
        if _has_plain_keys(packed):
            return packed
        flat: list[Any] = []
        for key, value in packed.items():
            flat += self._at(f"[key {safe_repr(key, 40)}]", key), value
        return {"$dict": flat}

    def moment(self, tag: str, value: datetime | time) -> dict[str, Any]:
        zone = value.tzinfo
        if not value.fold and (zone is None or _is_said_by_offset(zone)):
            return {tag: value.isoformat()}
        naive = value.replace(tzinfo=None, fold=0).isoformat()
        return {tag: [naive, value.fold, self._at(".tzinfo", zone)]}

    def _attributes(self, value: Any) -> dict[str, Any]:
        kind: Any = type(value)
        names = [field.name for field in fields_of(kind)]
        return {name: self._at(f".{name}", part) for name, part in held(value, names).items()}

    def _model_parts(self, value: Any) -> list[Any]:
        return [self._at(f".{name}", getattr(value, name, None)) for name in MODEL_PARTS]

    def _error(self, error: BaseException) -> Any:
        kind = type(error)
        args = arguments_of(error)
        try:
            again = make_error(kind, args)
        except Exception:  # it may be anything that these arguments do to it
            return self._foreign(error)
        is_outermost, is_met = not self._errors, id(error) in self._errors
        self._has_circle |= is_met
        if is_met or len(self._errors) == _MOST_ERRORS:
            return self._foreign(error)
        attributes = {**vars(error), **members_besides(error, again)}
        self._errors.add(id(error))
        try:
            return {"$error": [self._path(kind), *map(self.pack, (args, attributes, error.__cause__))]}
        except (Refused, RecursionError):  # the latter of an attribute that is inside itself
            return self._foreign(error)
        finally:
            if is_outermost:
                self._errors.clear()
                self._has_circle = False
            elif not self._has_circle:
                self._errors.remove(id(error))

    def _foreign(self, error: BaseException) -> Any:
        """What stands in for an exception that cannot be kept."""
        foreign = ForeignError(name_of(type(error)), describe_error(error))
        parts = foreign.args, vars(foreign), None
        return {"$error": [self._path(ForeignError), *map(self.pack, parts)]}

    def _path(self, kind: type) -> str:
        path = self._paths.get(kind)
        if path is None:
            path = self._paths[kind] = self._classes.path(kind)
        return path


def _has_plain_keys(packed: dict[Any, Any]) -> bool:
    """Whether JSON can have all these keys, and they do not look like a tag."""
    if not packed:
        return True
    if set(map(type, packed)) != {str} or (len(packed) == 1 and next(iter(packed)).startswith("$")):
        return False
    return "".join(packed).isascii() or all(_pack_str(key) is key for key in packed)


def _pack_str(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return {"$str": _base64(value.encode("utf-8", "surrogatepass"))}
    return value


def _pack_zone(value: ZoneInfo) -> Any:
    try:
        value.__reduce__()
    except PicklingError:  # it was read from a file of yours: the key may mean another one
        raise Refused("cannot keep a ZoneInfo that was made by from_file") from None
    return {"$zone": value.key}


def _base64(value: bytes | bytearray) -> str:
    return b64encode(value).decode("ascii")


def _is_said_by_offset(zone: tzinfo) -> bool:
    """Whether the ISO form of a time with this zone says it; Python reads +00:00:00.000001 as UTC."""
    if type(zone) is not timezone or len(_timezone_parts(zone)) > 1:
        return False
    return zone is UTC or not timedelta(0) < abs(zone.utcoffset(None)) < timedelta(seconds=1)


def _timezone_parts(zone: timezone) -> tuple[Any, ...]:
    """The offset, and the name if it was given one."""
    parts: tuple[Any, ...] = zone.__getinitargs__()  # type: ignore[attr-defined]  # not in typeshed
    return parts


_PACKERS: Final[dict[type, Callable[[Packer, Any], Any]]] = {
    NoneType: lambda _, value: value,
    bool: lambda _, value: value,
    int: lambda _, value: value if -(2**63) <= value < 2**64 else {"$int": hex(value)},
    float: lambda _, value: value if math.isfinite(value) else {"$float": repr(value)},
    str: lambda _, value: _pack_str(value),
    list: Packer.items,
    dict: Packer.mapping,
    tuple: lambda to, value: {"$tuple": to.items(value)},
    set: lambda to, value: {"$set": to.members(value)},
    frozenset: lambda to, value: {"$frozenset": to.members(value)},
    bytes: lambda _, value: {"$bytes": _base64(value)},
    bytearray: lambda _, value: {"$bytearray": _base64(value)},
    datetime: lambda to, value: to.moment("$datetime", value),
    date: lambda _, value: {"$date": value.isoformat()},
    time: lambda to, value: to.moment("$time", value),
    timedelta: lambda _, value: {"$timedelta": [value.days, value.seconds, value.microseconds]},
    timezone: lambda to, value: {"$timezone": to.items(_timezone_parts(value))},
    ZoneInfo: lambda _, value: _pack_zone(value),
    Decimal: lambda _, value: {"$decimal": str(value)},
    UUID: lambda _, value: {"$uuid": value.hex},
    array: lambda _, value: pack_array(value),
}


def _pickle_may_keep(value: object) -> bool:
    """Whether pickle takes such a value apart, and does not refuse it as it does a lock or a generator."""
    try:
        type(value).__reduce_ex__(value, 5)
    except Exception:
        return False
    return True
