"""
Values to bytes and back, for snapshots: the same value and the same types, or an error that says where.

`JsonCodec` is the default. Most of what is snapshotted is plain JSON and goes through orjson as it is.
What JSON has no word for is written as an object of one member whose name begins with `$`, which is the
only rule a reader has to know:

    (1, b"x")  ->  {"$tuple":[1,{"$bytes":"eA=="}]}

A plain dict that happens to look like that is written as `$dict`. Classes are named, never stored: reading
looks up an importable class and fills an instance with the stored parts. Of the class's own code nothing is
called (no `__init__`, no `__new__`, no `__reduce__`), and no class is filled that is not an enum, a
dataclass, a NamedTuple or an exception. Importing the module that a class lives in is all that runs.

What is not kept: that two places hold the same object (each gets its own), and of an exception its traceback
and context. `PickleCodec` keeps nearly everything and runs whatever the bytes say; it has to be asked for.
"""

from __future__ import annotations

import gc
import importlib
import math
import pickle
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag
from functools import cached_property
from types import NoneType
from typing import Any, Final, Protocol
from uuid import UUID
from zoneinfo import ZoneInfo

import orjson

from asyncstream.arguments import refuse
from asyncstream.errors import CodecError, describe_error, safe_repr

__all__ = ("Codec", "ForeignError", "JsonCodec", "PickleCodec", "codec")


class Codec(Protocol):
    """
    Turns values into bytes and back.

    Attributes:
        name: what a snapshot notes, so that it is read with the codec that wrote it.
    """

    name: str

    def encode(self, value: Any) -> bytes:
        """
        The bytes from which `decode` makes an equal value of the same types.

        Raises:
            CodecError: if that cannot be done; names the type and the path inside the value.
        """

    def decode(self, data: bytes) -> Any:
        """
        The value that `encode` was given.

        Raises:
            CodecError: if `data` is damaged, or names a class that is no longer there.
        """


class ForeignError(Exception):
    """
    Stands in, after a restore, for an exception that could not be kept itself.

    An exception is kept if its class can be imported and its arguments and attributes can be kept. Others
    must not make a snapshot fail, for they come from libraries, and what matters of them is what they say.

    Attributes:
        kind: qualified name of the exception's class.
        text: type and message, as a log would show them.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(kind, text)
        self.kind = kind
        self.text = text

    def __str__(self) -> str:
        return self.text


class JsonCodec:
    """
    JSON with types: keeps None, bool, int, float, str, list, tuple, dict, bytes, bytearray, set, frozenset,
    datetime, date, time, timedelta, timezone, ZoneInfo, Decimal, UUID, and by class name enums, dataclasses,
    NamedTuples and exceptions, in each other and as keys. Subclasses of these are refused, unless they are
    one of the named kinds.
    """

    name = "json"

    def encode(self, value: Any) -> bytes:
        try:
            data = orjson.dumps(value, option=_NOTHING_SPECIAL)
            if _came_through(value, data):
                return data
        except TypeError:
            pass  # orjson has no word for something in it
        try:
            try:
                return orjson.dumps(_Packer(_TRUSTED).pack(value))
            except TypeError:
                return orjson.dumps(_Packer(_HARMLESS).pack(value))
        except _Refused as refused:
            raise CodecError(f"value{refused.path}: {refused.reason}") from None
        except (RecursionError, TypeError) as error:
            raise CodecError(
                f"value: a {_name(type(value))} nested too deeply, or inside itself: {describe_error(error)}"
            ) from error

    def decode(self, data: bytes) -> Any:
        try:
            value = orjson.loads(data)
            return _Unpacker().unpack(value) if _TAGGED in data else value
        except CodecError:
            raise
        # What damaged bytes can set off: wrong shapes and types, absurd numbers and dates.
        except (
            ArithmeticError,
            AttributeError,
            LookupError,
            OSError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise CodecError(f"these are not the bytes of a value: {describe_error(error)}") from error


class PickleCodec:
    """Python's pickle. Decoding runs whatever code the bytes ask for: only for stores that you trust."""

    name = "pickle"

    def encode(self, value: Any) -> bytes:
        try:
            return pickle.dumps(value, protocol=5)
        except Exception as error:  # any `__reduce__` of any class may have raised it
            raise CodecError(f"pickle refuses a {_name(type(value))}: {describe_error(error)}") from error

    def decode(self, data: bytes) -> Any:
        try:
            return pickle.loads(data)
        except Exception as error:
            raise CodecError(f"pickle cannot read these bytes: {describe_error(error)}") from error


def codec(name: str | Codec) -> Codec:
    """The codec called `name` ("json" or "pickle"), or the codec that was passed."""
    if name == "json":
        return JsonCodec()
    if name == "pickle":
        return PickleCodec()
    if isinstance(name, str) or not (hasattr(name, "encode") and hasattr(name, "decode")):
        raise refuse("codec", "'json', 'pickle' or a Codec", name)
    return name


# The fast path. orjson quietly turns a tuple into a list, an enum into its value, a UUID into a str and NaN
# into null, so what it wrote must be checked. Looking at each value from Python would cost ten times what
# orjson takes; asking the garbage collector's traversal for all children of a whole level at once costs two.
# It runs after orjson, which has found out by then whether the value contains itself.

_NOTHING_SPECIAL: Final = (
    orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
)
_HOLDERS: Final = frozenset({list, dict})
_PLAIN: Final = frozenset({NoneType, bool, int, float, str}) | _HOLDERS
_TAGGED: Final = b'{"$'  # cannot occur inside a JSON string, where the quote would be escaped


def _came_through(value: Any, data: bytes) -> bool:
    """Whether `data`, written by orjson, reads back as `value`."""
    if _TAGGED in data:
        return False
    may_hide_nan = b"null" in data
    level = [value]
    while level:
        kinds = set(map(type, level))
        if not kinds <= _PLAIN:
            return False
        if may_hide_nan and float in kinds:
            floats = [child for child in level if type(child) is float]
            if not all(map(math.isfinite, floats)):
                return False
        if kinds.isdisjoint(_HOLDERS):
            break
        level = gc.get_referents(*level)
    return True


# The careful path: `_Packer` makes of any value one that orjson writes without loss, `_Unpacker` undoes it.
# Nearly all ints and strs are fine, and orjson says so if one is not. So the first attempt trusts them and
# calls no function for each; a second one, hardly ever made, looks at them too.

_HARMLESS: Final = frozenset({NoneType, bool})
_TRUSTED: Final = _HARMLESS | {int, str}


class _Refused(Exception):
    """Carries the path inside the value from where it is refused up to where it is reported."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = ""

    def inside(self, step: str) -> _Refused:
        self.path = step + self.path
        return self


class _Packer:
    """
    Packs the values of one `encode`.

    Args:
        leaves: the types whose values are passed on as they are.
    """

    def __init__(self, leaves: frozenset[type]) -> None:
        self._leaves = leaves
        self._paths: dict[type, str] = {}

    def pack(self, value: Any) -> Any:
        kind = type(value)
        if kind in self._leaves:
            return value
        pack = _PACKERS.get(kind)
        if pack is not None:
            return pack(self, value)
        if issubclass(kind, Enum):
            return {"$enum": [self._path(kind), self._enum_member(value)]}
        if issubclass(kind, BaseException):
            return self._error(value)
        if is_dataclass(kind):
            return {"$dataclass": [self._path(kind), self._dataclass_fields(value)]}
        if _is_named_tuple(kind):
            _refuse_more_than((), value)
            return {
                "$named": [self._path(kind), *map(self._at, [f".{name}" for name in kind._fields], value)]
            }
        raise _Refused(
            f"cannot keep a {_name(kind)}, {safe_repr(value, 80)}; "
            "keep plain values, dataclasses or NamedTuples, or ask for codec='pickle'"
        )

    def _at(self, step: str, value: Any) -> Any:
        try:
            return self.pack(value)
        except _Refused as refused:
            raise refused.inside(step) from None

    def items(self, values: Iterable[Any]) -> list[Any]:
        leaves, pack = self._leaves, self.pack
        packed: list[Any] = []  # its length is the path when one is refused
        try:
            for value in values:
                packed.append(value if type(value) in leaves else pack(value))
        except _Refused as refused:
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
            except _Refused as refused:
                raise refused.inside(f"[{safe_repr(key, 40)}]") from None
        if _has_plain_keys(packed):
            return packed
        flat: list[Any] = []
        for key, value in packed.items():
            flat += self._at(f"[key {safe_repr(key, 40)}]", key), value
        return {"$dict": flat}

    def moment(self, tag: str, value: datetime | time) -> dict[str, Any]:
        zone = value.tzinfo
        if not value.fold and (zone is None or (type(zone) is timezone and len(_timezone_parts(zone)) == 1)):
            return {tag: value.isoformat()}
        naive = value.replace(tzinfo=None, fold=0).isoformat()
        return {tag: [naive, value.fold, self._at(".tzinfo", zone)]}

    def _enum_member(self, value: Enum) -> Any:
        # a combination of flags is no member, but a number that the flags are made from
        return self.pack(value.name if value.name in type(value).__members__ else value.value)

    def _dataclass_fields(self, value: Any) -> dict[str, Any]:
        names = [field.name for field in fields(value)]
        _refuse_more_than(names, value)
        return {name: self._at(f".{name}", getattr(value, name)) for name in names if hasattr(value, name)}

    def _error(self, error: BaseException) -> Any:
        kind = type(error)
        # an OSError tells its file names only there; a class of yours is not asked
        args = kind.__reduce__(error)[1] if kind.__module__ == "builtins" else error.args
        try:
            _make_error(kind, args)
        except Exception:  # it may be anything that these arguments do to it
            return self._error(ForeignError(_name(kind), describe_error(error)))
        try:
            return {"$error": [self._path(kind), *map(self.pack, (args, vars(error), error.__cause__))]}
        except _Refused:
            return self._error(ForeignError(_name(kind), describe_error(error)))

    def _path(self, kind: type) -> str:
        """The name by which `_find_class` finds this class."""
        path = self._paths.get(kind)
        if path is None:
            path = f"{kind.__module__}:{kind.__qualname__}"
            try:
                found = _find_class(path)
            except CodecError:
                found = None
            if found is not kind:
                raise _Refused(
                    f"cannot keep a {_name(kind)}: its class is not found by that name; define it in a module"
                )
            if is_dataclass(kind) and not issubclass(kind, Enum | BaseException):
                _refuse_built_in_base(kind)
            self._paths[kind] = path
        return path


def _has_plain_keys(packed: dict[Any, Any]) -> bool:
    """Whether JSON can have all these keys, and they do not look like a tag."""
    if not packed:
        return True
    if set(map(type, packed)) != {str} or (len(packed) == 1 and next(iter(packed)).startswith("$")):
        return False
    return "".join(packed).isascii() or all(_pack_str(key) is key for key in packed)


def _pack_int(value: int) -> Any:
    return value if -(2**63) <= value < 2**64 else {"$int": hex(value)}


def _pack_float(value: float) -> Any:
    return value if math.isfinite(value) else {"$float": repr(value)}


def _pack_str(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return {"$str": _base64(value.encode("utf-8", "surrogatepass"))}
    return value


def _pack_zone(value: ZoneInfo) -> Any:
    if value.key is None:
        raise _Refused("cannot keep a ZoneInfo without a key")
    return {"$zone": value.key}


def _base64(value: bytes | bytearray) -> str:
    return b64encode(value).decode("ascii")


def _timezone_parts(zone: timezone) -> tuple[Any, ...]:
    """The offset, and the name if it was given one."""
    parts: tuple[Any, ...] = zone.__getinitargs__()  # type: ignore[attr-defined]  # not in typeshed
    return parts


def _refuse_built_in_base(kind: type) -> None:
    """Refuse a dataclass that is a dict, say, as well: its fields are not all of it."""
    try:
        object.__new__(kind)
    except TypeError:
        raise _Refused(
            f"cannot keep the dataclass {_name(kind)}: it also derives from a built-in type"
        ) from None


def _refuse_more_than(names: Sequence[str], value: Any) -> None:
    """Refuse an object that carries attributes besides `names`, for they would be lost."""
    for name in getattr(value, "__dict__", ()):
        if name not in names and not isinstance(getattr(type(value), name, None), cached_property):
            raise _Refused(
                f"cannot keep a {_name(type(value))} with the attribute {name!r}, which is no field"
            )


def _is_named_tuple(kind: type) -> bool:
    names = getattr(kind, "_fields", None)
    return issubclass(kind, tuple) and isinstance(names, tuple) and all(type(name) is str for name in names)


def _make_error(kind: type[BaseException], args: Any) -> BaseException:
    """An exception of this class with these arguments, made by Python's own code alone."""
    if kind.__module__ == "builtins":
        return kind(*args)  # some keep arguments in fields that only their __init__ fills
    for base in kind.__mro__:
        if base.__module__ == "builtins":
            error: BaseException = base.__new__(kind, *args)
            error.args = args
            return error
        if "__new__" in vars(base):
            break
    raise CodecError(f"cannot make a {_name(kind)}, which has its own __new__")


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _find_class(path: str) -> Any:
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = vars(found)[part]
    except Exception as error:  # importing runs the module, which may raise anything
        raise CodecError(f"the class {path} is not there any more: {describe_error(error)}") from error
    if not isinstance(found, type):
        raise CodecError(f"{path} is not a class")
    return found


_PACKERS: Final[dict[type, Callable[[_Packer, Any], Any]]] = {
    NoneType: lambda _, value: value,
    bool: lambda _, value: value,
    int: lambda _, value: _pack_int(value),
    float: lambda _, value: _pack_float(value),
    str: lambda _, value: _pack_str(value),
    list: _Packer.items,
    dict: _Packer.mapping,
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
}


class _Unpacker:
    """Unpacks the values of one `decode`."""

    def __init__(self) -> None:
        self._classes: dict[str, Any] = {}

    def unpack(self, value: Any) -> Any:
        kind = type(value)
        if kind is dict:
            return self._dict(value)
        return self.items(value) if kind is list else value

    def items(self, values: list[Any]) -> list[Any]:
        unpack = self.unpack
        return [unpack(item) if type(item) in _HOLDERS else item for item in values]

    def _dict(self, values: dict[str, Any]) -> Any:
        if len(values) == 1:
            ((tag, packed),) = values.items()
            if tag.startswith("$"):
                unpack_tagged = _UNPACKERS.get(tag)
                if unpack_tagged is None:
                    raise CodecError(
                        f"the tag {tag!r} is unknown: a newer version wrote it, or another program"
                    )
                return unpack_tagged(self, packed)
        unpack = self.unpack
        return {key: unpack(item) if type(item) in _HOLDERS else item for key, item in values.items()}

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
        kind = self._class(path)
        if not issubclass(kind, Enum):
            raise CodecError(f"{path} is not an enum any more")
        if issubclass(kind, Flag) and type(member) is int:
            return kind(member)
        if member not in kind.__members__:
            raise CodecError(f"the enum {path} has no member {member!r} any more")
        return kind.__members__[member]

    def named(self, packed: list[Any]) -> Any:
        path, *values = packed
        kind = self._class(path)
        if not _is_named_tuple(kind) or len(kind._fields) != len(values):
            raise CodecError(f"{path} is not a NamedTuple of {len(values)} fields any more")
        return tuple.__new__(kind, self.items(values))

    def dataclass(self, packed: list[Any]) -> Any:
        path, values = packed
        kind: type = self._class(path)
        if not is_dataclass(kind):
            raise CodecError(f"{path} is not a dataclass any more")
        unknown = values.keys() - {field.name for field in fields(kind)}
        if unknown:
            raise CodecError(f"the dataclass {path} has no field {min(unknown)!r} any more")
        made: Any = object.__new__(kind)
        for name, value in values.items():
            object.__setattr__(made, name, self.unpack(value))
        return made

    def error(self, packed: list[Any]) -> BaseException:
        path, args, attributes, cause = packed
        kind = self._class(path)
        if not issubclass(kind, BaseException):
            raise CodecError(f"{path} is not an exception any more")
        error = _make_error(kind, self.unpack(args))
        vars(error).update(self.unpack(attributes))
        error.__cause__ = self.unpack(cause)
        return error

    def _class(self, path: str) -> Any:
        kind = self._classes.get(path)
        if kind is None:
            kind = self._classes[path] = _find_class(path)
        return kind


_UNPACKERS: Final[dict[str, Callable[[_Unpacker, Any], Any]]] = {
    "$int": lambda _, text: int(text, 16),
    "$float": lambda _, text: float(text),
    "$str": lambda _, text: b64decode(text).decode("utf-8", "surrogatepass"),
    "$dict": _Unpacker.mapping,
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
    "$enum": _Unpacker.enum,
    "$named": _Unpacker.named,
    "$dataclass": _Unpacker.dataclass,
    "$error": _Unpacker.error,
}
