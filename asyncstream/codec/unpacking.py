"""
Undoes what `packing` did.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from asyncstream.codec.arrays import array_of, numpy_array, numpy_scalar
from asyncstream.codec.base import ForeignError
from asyncstream.codec.classes import Classes, NotImported, fill, is_named_tuple, make_error
from asyncstream.codec.enums import member_of
from asyncstream.codec.fields import (
    MODEL_PARTS,
    Field,
    changed,
    check_fields,
    default_of,
    fields_of,
    is_model,
    is_record,
    private_fields_of,
    tell_of,
)
from asyncstream.codec.library import MAKERS
from asyncstream.errors import CodecError

__all__ = ("HOLDERS", "NAMED", "Unpacker")


HOLDERS: Final = frozenset({list, dict})
"""The types of what orjson reads that have parts."""

NAMED: Final[dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "$enum": ("an enum", lambda kind: issubclass(kind, Enum)),
    "$named": ("a NamedTuple", is_named_tuple),
    "$namedtuple": ("a NamedTuple", is_named_tuple),
    "$dataclass": ("a dataclass or attrs class", is_record),
    "$model": ("a pydantic model", is_model),
    "$error": ("an exception", lambda kind: issubclass(kind, BaseException)),
}
"""By the tag that the name of a class comes under, what the class must be."""


class Unpacker:
    """Unpacks the values of one `decode`, which may be made of these classes."""

    def __init__(self, classes: Classes) -> None:
        self._known = classes
        self._classes: dict[tuple[str, str], Any] = {}  # by tag and name

    def unpack(self, value: Any) -> Any:
        kind = type(value)
        if kind is dict:
            return self._dict(value)
        return self.items(value) if kind is list else value

    def items(self, values: list[Any]) -> list[Any]:
        unpack = self.unpack
        return [unpack(item) if type(item) in HOLDERS else item for item in values]

    def _dict(self, values: dict[str, Any]) -> Any:
        if len(values) == 1:
            ((tag, packed),) = values.items()
            if tag.startswith("$"):
                unpack_tagged = _UNPACKERS.get(tag)
                if unpack_tagged is None and tag in MAKERS:
                    return MAKERS[tag](self.unpack(packed))
                if unpack_tagged is None:
                    raise CodecError(
                        f"the tag {tag!r} is unknown: a newer version wrote it, or another program"
                    )
                return unpack_tagged(self, packed)
        unpack = self.unpack
        return {key: unpack(item) if type(item) in HOLDERS else item for key, item in values.items()}

    def mapping(self, flat: list[Any]) -> dict[Any, Any]:
        items = iter(self.items(flat))
        return dict(zip(items, items, strict=True))

    def moment(self, kind: type[datetime] | type[time], packed: str | list[Any]) -> datetime | time:
        if isinstance(packed, str):
            return kind.fromisoformat(packed)
        naive, fold, zone = packed
        return kind.fromisoformat(naive).replace(fold=fold, tzinfo=self.unpack(zone))

    def enum(self, packed: list[Any]) -> Any:
        path, member = packed[0], self.unpack(packed[1])
        kind = self._class("$enum", path)
        return member_of(kind, path, member)

    def named_tuple(self, packed: list[Any]) -> Any:
        path, parts = packed
        kind = self._class("$namedtuple", path)
        attributes = self._attributes(kind, path, parts)
        return tuple.__new__(kind, map(attributes.__getitem__, kind._fields))

    def named(self, packed: list[Any]) -> Any:
        path, *values = packed
        kind = self._class("$named", path)
        if len(kind._fields) != len(values):
            raise changed(f"{path} is not a NamedTuple of {len(values)} fields")
        return tuple.__new__(kind, self.items(values))

    def record(self, packed: list[Any]) -> Any:
        path, values = packed
        kind: type = self._class("$dataclass", path)
        made: Any = object.__new__(kind)
        fill(made, self._attributes(kind, path, values))
        return made

    def model(self, packed: list[Any]) -> Any:
        path, values, *parts = packed
        kind: type = self._class("$model", path)
        made: Any = object.__new__(kind)
        # as `model_construct` does: nothing is validated again, and no default replaces what was there
        object.__setattr__(made, "__dict__", self._attributes(kind, path, values))
        for name, part in zip(MODEL_PARTS, map(self.unpack, parts), strict=True):
            if type(part) not in (NoneType, MODEL_PARTS[name]):
                raise CodecError(f"{path} has a {type(part).__name__} as its {name}")
            if name == "__pydantic_private__" and (private := private_fields_of(kind)):
                part = self._with_defaults({} if part is None else part, private, path)
            if part is not None or getattr(kind, name, part) is not None:
                object.__setattr__(made, name, part)
        return made

    def _attributes(self, kind: type, path: str, values: dict[str, Any]) -> dict[str, Any]:
        """The attributes of an object, with the defaults of fields that its class has got since."""
        check_fields(kind, path, values)
        attributes = {name: self.unpack(value) for name, value in values.items()}
        return self._with_defaults(attributes, fields_of(kind), path)

    def _with_defaults(
        self, attributes: dict[str, Any], known: tuple[Field, ...], path: str
    ) -> dict[str, Any]:
        for field in known:
            if field.name not in attributes and field.is_expected:
                attributes[field.name] = default_of(field, path)
                if (path, field.name) not in self._known.grown:  # it is said once for all values
                    self._known.grown.add((path, field.name))
                    tell_of(field, path)
        return attributes

    def error(self, packed: list[Any]) -> BaseException:
        path, args, attributes, cause = packed
        args, attributes, cause = map(self.unpack, (args, attributes, cause))
        try:
            kind = self._class("$error", path)
        except NotImported:  # of a library that is not in use yet; what it says is known all the same
            name = path.replace(":", ".")
            error: BaseException = ForeignError(name, f"{name}: {', '.join(map(str, args))}")
            attributes = {}
        else:
            error = make_error(kind, args)
        fill(error, attributes)
        error.__cause__ = cause
        return error

    def _class(self, tag: str, path: str) -> Any:
        kind = self._classes.get((tag, path))
        if kind is None:
            kind = self._known.find(path)
            what, is_one = NAMED[tag]
            if not is_one(kind):
                raise changed(f"{path} is not {what}")
            self._classes[tag, path] = kind
        return kind


_UNPACKERS: Final[dict[str, Callable[[Unpacker, Any], Any]]] = {
    "$int": lambda _, text: int(text, 16),
    "$float": lambda _, text: float(text),
    "$str": lambda _, text: b64decode(text).decode("utf-8", "surrogatepass"),
    "$dict": Unpacker.mapping,
    "$tuple": lambda by, items: tuple(by.items(items)),
    "$set": lambda by, items: set(by.items(items)),
    "$frozenset": lambda by, items: frozenset(by.items(items)),
    "$bytes": lambda _, text: b64decode(text),
    "$bytearray": lambda _, text: bytearray(b64decode(text)),
    "$datetime": lambda by, packed: by.moment(datetime, packed),
    "$date": lambda _, text: date.fromisoformat(text),
    "$time": lambda by, packed: by.moment(time, packed),
    "$timedelta": lambda _, parts: timedelta(*parts),
    "$timezone": lambda by, parts: timezone(*by.items(parts)),
    "$zone": lambda _, key: ZoneInfo(key),
    "$decimal": lambda _, text: Decimal(text),
    "$uuid": lambda _, text: UUID(text),
    "$array": lambda _, packed: array_of(packed),
    "$numpy": lambda by, packed: numpy_scalar(packed, by.unpack),
    "$ndarray": lambda by, packed: numpy_array(packed, by.unpack),
    "$enum": Unpacker.enum,
    "$named": Unpacker.named,  # of version 0.2, without names of fields
    "$namedtuple": Unpacker.named_tuple,
    "$dataclass": Unpacker.record,
    "$model": Unpacker.model,
    "$error": Unpacker.error,
}
