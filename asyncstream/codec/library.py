"""
Values of the standard library and of pandas that are made of plain ones: taken apart, and made again.

A subclass is not one of these kinds: what it adds would be lost. pandas is no dependency; a value of its
types can only be there if it is imported, and reading imports it by this name and no other.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import PosixPath, PurePath, PurePosixPath, PureWindowsPath, WindowsPath
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from asyncstream.codec.classes import Refused, held, name_of
from asyncstream.errors import CodecError, safe_repr

__all__ = ("KINDS", "MAKERS", "Kind", "is_pandas", "pandas_parts")


class Kind(NamedTuple):
    """
    A type of values made of plain ones.

    Attributes:
        tag: what stands for it in JSON.
        parts: takes a value apart into plain ones.
        make: makes the value of its parts again.
    """

    tag: str
    parts: Callable[[Any], Any]
    make: Callable[[Any], Any]


_PATHS: Final = {kind.__name__: kind for kind in (PurePosixPath, PureWindowsPath, PosixPath, WindowsPath)}
_ADDRESSES: Final = {
    kind.__name__: kind
    for kind in (IPv4Address, IPv4Network, IPv4Interface, IPv6Address, IPv6Network, IPv6Interface)
}
_PLAIN: Final = (int, float, complex, bool, str, bytes, bytearray, list, tuple, dict, set, frozenset)
_FACTORIES: Final[dict[str, type]] = {kind.__name__: kind for kind in (*_PLAIN, deque, Counter, OrderedDict)}
"""What a `defaultdict` may make its values with: without arguments they make the same everywhere."""


def _path_parts(path: PurePath) -> list[str]:
    if type(path)(str(path)) != path:
        raise Refused(f"cannot keep {safe_repr(path, 80)}, whose text is another path")
    return [type(path).__name__, str(path)]


def _path(parts: list[str]) -> PurePath:
    name, text = parts
    try:
        return _PATHS[name](text)
    except NotImplementedError as error:
        raise CodecError(f"a {name} cannot be made on this system") from error


def _mapping_parts(value: Any) -> dict[Any, Any]:
    held(value, ())
    return dict(value.items())  # dict(value) has not the order of an OrderedDict


def _counter(parts: dict[Any, Any]) -> Counter[Any]:
    made: Counter[Any] = Counter()
    dict.update(made, parts)  # not as a Counter does it, which would add numbers to what is none
    return made


def _default_parts(value: defaultdict[Any, Any]) -> list[Any]:
    factory: Any = value.default_factory
    if factory is None:
        return [None, dict(value)]
    if not any(factory is kind for kind in _FACTORIES.values()):
        raise Refused(
            f"cannot keep a defaultdict of {safe_repr(factory, 60)}; one of a built-in type, such as int or "
            "list, can be kept"
        )
    return [factory.__name__, dict(value)]


def _default(parts: list[Any]) -> defaultdict[Any, Any]:
    factory, values = parts
    return defaultdict(None if factory is None else _FACTORIES[factory], values)


def _namespace(parts: dict[Any, Any]) -> SimpleNamespace:
    made = SimpleNamespace()
    vars(made).update(parts)
    return made


_PATH: Final = Kind("$path", _path_parts, _path)
_ADDRESS: Final = Kind(
    "$address", lambda value: [type(value).__name__, str(value)], lambda parts: _ADDRESSES[parts[0]](parts[1])
)

KINDS: Final[dict[type, Kind]] = {
    complex: Kind("$complex", lambda value: [value.real, value.imag], lambda parts: complex(*parts)),
    range: Kind("$range", lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts)),
    Fraction: Kind(
        "$fraction", lambda value: [value.numerator, value.denominator], lambda parts: Fraction(*parts)
    ),
    deque: Kind("$deque", lambda value: [value.maxlen, list(value)], lambda parts: deque(parts[1], parts[0])),
    Counter: Kind("$counter", _mapping_parts, _counter),
    OrderedDict: Kind("$ordered", _mapping_parts, OrderedDict),
    defaultdict: Kind("$defaultdict", _default_parts, _default),
    SimpleNamespace: Kind("$namespace", lambda value: dict(vars(value)), _namespace),
    **dict.fromkeys(_PATHS.values(), _PATH),
    **dict.fromkeys(_ADDRESSES.values(), _ADDRESS),
}
"""The types of the standard library that are kept this way."""


# ------------------------------------------------------------------ pandas


def is_pandas(kind: type) -> bool:
    """Whether these are the scalars of pandas: its points in time, lengths of time, and what is missing."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or str(kind.__module__).partition(".")[0] != "pandas":
        return False
    return kind in (pandas.Timestamp, pandas.Timedelta, type(pandas.NaT), type(pandas.NA))


def pandas_parts(value: Any) -> list[Any]:
    """
    A scalar of pandas taken apart, as `Kind.parts` does it; raises `Refused` if it would be another one, for
    its time zone is not found by its name.
    """
    pandas: Any = sys.modules["pandas"]
    if value is pandas.NaT or value is pandas.NA:
        return ["NaT" if value is pandas.NaT else "NA"]
    if type(value) is pandas.Timedelta:
        return ["Timedelta", value.to_timedelta64()]
    zone = value.tzinfo
    # zones of pytz, as the pandas before 3 makes them, are kept by name
    named = str(zone) if type(zone).__module__.partition(".")[0] == "pytz" else zone
    moment = value.to_datetime64()
    try:
        made = _moment(pandas, moment, named, value.fold)
    except (KeyError, ValueError):  # there is no such name
        made = None
    if made != value or made.tzinfo is not zone or (made.unit, made.fold) != (value.unit, value.fold):
        raise Refused(f"cannot keep a {name_of(type(value))} in {safe_repr(zone, 80)}")
    return ["Timestamp", moment, named, value.fold]


def _moment(pandas: Any, moment: Any, zone: Any, fold: int) -> Any:
    made = pandas.Timestamp(moment)
    if zone is not None:
        return made.tz_localize("UTC").tz_convert(zone)
    return made.replace(fold=fold) if fold else made


def _of_pandas(parts: list[Any]) -> Any:
    import pandas

    name, *rest = parts
    if name == "Timestamp":
        return _moment(pandas, *rest)
    if name == "Timedelta":
        return pandas.Timedelta(*rest)
    return {"NaT": pandas.NaT, "NA": pandas.NA}[name]


MAKERS: Final[dict[str, Callable[[Any], Any]]] = {
    **{kind.tag: kind.make for kind in KINDS.values()},
    "$pandas": _of_pandas,
}
"""What makes a value of its unpacked parts, by tag."""
