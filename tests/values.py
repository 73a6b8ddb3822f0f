"""
Values of every kind that users put into elements, keys and state, for tests that keep them.

`KEPT` come back from the default codec; `PICKLED` from pickle only; `REFUSED` from neither.
"""

from __future__ import annotations

import array
import collections
import ctypes
import datetime as dt
import decimal
import enum
import fractions
import functools
import ipaddress
import math
import mmap
import pathlib
import pickle
import re
import uuid
import zoneinfo
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import attrs
import numpy as np
import pandas as pd
import pydantic
import pydantic.dataclasses

__all__ = ("KEPT", "PICKLED", "REFUSED", "same")


class Colour(enum.Enum):
    RED = "r"


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    ANN = "ann"


class Right(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Mask(enum.IntFlag):
    A = 1
    B = 2


class Titled(enum.Enum):
    """One whose members tell another name than that by which they are found."""

    FIRST = 1

    @property
    def name(self) -> str:
        return "The first"


class Point(NamedTuple):
    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Reading:
    sensor: str
    value: Any = None


@dataclass
class Base:
    a: Any


@dataclass
class Derived(Base):
    b: Any = field(default=None, repr=False)
    c: Any = field(init=False, default=3)


class SlotBase:
    __slots__ = ("hidden",)


@dataclass(slots=True)
class WithHiddenSlot(SlotBase):
    n: int


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Real(float):
    pass


class Raw(bytes):
    pass


class Rows(list[Any]):
    pass


class Table(dict[str, Any]):
    pass


class Pair(tuple[Any, ...]):
    __slots__ = ()


class NoZone(dt.tzinfo):
    def utcoffset(self, when: dt.datetime | None) -> dt.timedelta:
        return dt.timedelta(hours=1)

    def dst(self, when: dt.datetime | None) -> None:
        return None

    def tzname(self, when: dt.datetime | None) -> str:
        return "X"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoZone)

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "NoZone()"


class Plain:
    def __init__(self, n: int) -> None:
        self.n = n

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plain) and other.n == self.n

    def __hash__(self) -> int:
        return self.n


def three() -> int:
    return 3


class NotAgain:
    """Pickles, and cannot be read again."""

    def __init__(self) -> None:
        self.n = 1

    def __reduce__(self) -> Any:
        return NotAgain, (1, 2)


@attrs.define(slots=False)
class Sized:
    size: int
    parts: list[Any] = attrs.field(factory=list, alias="others")


@attrs.frozen
class Slotted:
    size: int
    double: int = attrs.field(init=False, default=2)


class Model(pydantic.BaseModel):
    a: int
    b: list[Model] = []


class OpenModel(pydantic.BaseModel, extra="allow", frozen=True):
    a: int

    @functools.cached_property
    def twice(self) -> int:
        return self.a * 2


class PrivateModel(pydantic.BaseModel):
    a: int = 1
    _seen: list[int] = pydantic.PrivateAttr(default_factory=list)


def private_model() -> PrivateModel:
    made = PrivateModel()
    made._seen.append(5)
    return made


class RootModel(pydantic.RootModel[list[int]]):
    pass


@pydantic.dataclasses.dataclass
class Validated:
    a: int


class Counted(collections.Counter[Any]):
    pass


def _moved(values: collections.OrderedDict[Any, Any]) -> collections.OrderedDict[Any, Any]:
    values.move_to_end("a")
    return values


STRUCTURED = np.dtype([("id", "<i4"), ("name", "U3"), ("grid", "f4", (2, 2))])
LOOSE = np.dtype({"names": ["a", "b"], "formats": ["u1", "f8"], "offsets": [0, 16], "itemsize": 32})
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


def _objects(*items: Any) -> Any:
    made = np.empty(len(items), object)
    made[:] = items
    return made


KEPT: dict[str, Any] = {
    # numpy's numbers, each a subclass of something or other
    "float64": np.float64(1.5),
    "float64 nan": np.float64("nan"),
    "float64 minus zero": np.float64(-0.0),
    "float32": np.float32(0.1),
    "float16": np.float16(0.1),
    "longdouble": np.longdouble("0.1"),
    "int64": np.int64(-7),
    "int8": np.int8(-7),
    "uint64": np.uint64(2**64 - 1),
    "longlong": np.longlong(5),
    "numpy bool": np.bool_(True),
    "complex64": np.complex64(1 + 2j),
    "complex128": np.complex128(1 + 2j),
    "numpy str": np.str_("ü\0"),
    "numpy empty str": np.str_(""),
    "numpy bytes": np.bytes_(b"a\0"),
    "datetime64": np.datetime64("2024-03-10T02:30:00.000000001"),
    "datetime64 of 25 seconds": np.datetime64(3, ("s", 25)),
    "not a time": np.datetime64("NaT", "s"),
    "timedelta64": np.timedelta64(-5, "D"),
    "a row": np.array([(1, "ab", [[1, 2], [3, 4]])], STRUCTURED)[0],
    # and its arrays
    "array": np.arange(3),
    "array of float32": np.arange(6, dtype="f4").reshape(2, 3),
    "array without an axis": np.array(3.5),
    "empty array": np.zeros((0, 3), "i2"),
    "array of empty texts": np.array(["", ""]),
    "strided array": np.arange(10)[::3],
    "reversed array": np.arange(4)[::-1],
    "Fortran array": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "big-endian array": np.arange(3, dtype=">i4"),
    "big-endian row": np.array((1, 2), [("a", ">i2"), ("b", "<i2")])[()],
    "array of bools": np.array([True, False]),
    "array of texts": np.array(["a", "üx"]),
    "array of times": np.array(["2024-01-01", "NaT"], "M8[D]"),
    "structured array": np.array([(1, "ab", [[1, 2], [3, 4]])], STRUCTURED),
    "structured array with gaps": np.zeros(2, LOOSE),
    "array of objects": _objects(None, "a", (1, 2), [3], np.int8(1)),
    "array of arrays": _objects(np.arange(2), np.arange(3)),
    "read-only array": np.frombuffer(b"abcd", "u1"),
    # others that have the buffer protocol
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"xy"),
    "array.array of ints": array.array("i", [1, -2]),
    "array.array of floats": array.array("d", [1.5, math.inf]),
    "empty array.array": array.array("H"),
    # the plain ones, and what resembles them
    "none": None,
    "bools": [True, 1, False, 0, 1.0, 0.0, -0.0],
    "floats": [math.nan, math.inf, -math.inf, 5e-324, 1e308, 0.1],
    "large numbers": [2**63, -(2**63) - 1, 2**64, 10**400],
    "texts": ["", "ü", "\ud800", "\0", '{"$tuple":[1]}'],
    "keys": {True: 1, "1": 2, 1.5: 3, None: 4, (1, b"x"): 5, b"1": 6},
    "a dict that looks like a tag": {"$numpy": [["<f8"], "x"]},
    "sets": [{1, "a"}, frozenset({(1,)}), set()],
    "nested": {"a": [(1, {"b": ({2},)})]},
    "enum with a name of its own": Titled.FIRST,
    "enums": [Colour.RED, Level.LOW, Name.ANN, Right.READ | Right.WRITE, Right(0), Mask.A, Mask(6)],
    "named tuple": Point(1, Point(2.5, [3])),
    "dataclasses": [Reading("a", (1,)), Derived(1, [2])],
    "datetimes": [
        dt.datetime(2024, 3, 10, 2, 30),
        dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN),
        dt.datetime(2024, 3, 10, tzinfo=dt.UTC),
        dt.datetime(2024, 3, 10, tzinfo=dt.timezone(dt.timedelta(hours=-3, seconds=5), "ODD")),
        dt.datetime.max,
    ],
    "dates and times": [dt.date(1, 1, 1), dt.time(1, 2, 3, 4, tzinfo=dt.UTC), dt.timedelta(-1, 3, 5)],
    "zones": [BERLIN, dt.UTC, dt.timezone(dt.timedelta(minutes=5))],
    "decimals": [decimal.Decimal("1.10"), decimal.Decimal("-0"), decimal.Decimal("Infinity")],
    "uuid": uuid.UUID(int=5),
    # of the standard library
    "complex": 1 + 2j,
    "range": range(1, 9, 2),
    "complex not a number": complex(-0.0, math.inf),
    "empty range": range(5, 5),
    "large range": range(0, 10**30, 10**29),
    "fraction": fractions.Fraction(1, 3),
    "path": pathlib.PurePosixPath("a/b"),
    "windows path": pathlib.PureWindowsPath("a\\b"),
    "deque": collections.deque([1, 2], maxlen=2),
    "endless deque": collections.deque([(1,), [2]]),
    "counter": collections.Counter("abca"),
    "ordered dict": collections.OrderedDict(b=1, a=2),
    "default dict": collections.defaultdict(list, a=[1]),
    "counter of anything": collections.Counter({"a": [1], (1, 2): -1}),
    "moved ordered dict": _moved(collections.OrderedDict[Any, Any](a=1, b=2, c=3)),
    "default dict of sets": collections.defaultdict(set, {(1, 2): {3}}),
    "default dict of nothing": collections.defaultdict(None, {1: 2}),
    "path here": pathlib.Path("a/../b"),
    "path that is no text": pathlib.Path("a\udcff"),
    "address": ipaddress.ip_address("10.0.0.1"),
    "network": ipaddress.ip_network("10.0.0.0/8"),
    "scoped address": ipaddress.ip_address("fe80::1%eth0"),
    "interface": ipaddress.ip_interface("10.0.0.1/8"),
    "namespace": SimpleNamespace(a=1),
    # with fields, of other libraries
    "attrs object": Sized(1, [2]),
    "attrs object with slots": Slotted(1),
    "model": Model(a=1, b=[Model(a=2)]),
    "model of which less was set": Model.model_construct(a="not a number"),
    "open model": OpenModel(a=1, more=(2,)),  # type: ignore[call-arg]
    "model with private attributes": private_model(),
    "model of a root": RootModel([1]),
    "pydantic dataclass": Validated(3),
    # of pandas
    "moments of pandas": [
        pd.Timestamp("2024-03-10T02:30:00.000000001"),
        pd.Timestamp(np.datetime64("2024-03-10T02:30", "s")),
        pd.Timestamp("2024-07-01", tz="Europe/Berlin"),
        pd.Timestamp("2024-07-01", tz="UTC"),
        pd.Timestamp(dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=BERLIN)),
        pd.Timestamp("2024-07-01T00:00+05:30"),
    ],
    "lengths of pandas": [pd.Timedelta(5, "ns"), pd.Timedelta(np.timedelta64(-5, "s"))],
    "missing of pandas": [pd.NaT, pd.NA, {"a": pd.NA}],
}

PICKLED: dict[str, Any] = {
    "slice": slice(1, None, 2),
    "ellipsis": ...,
    "pattern": re.compile("a+", re.I),
    "odd time zone": dt.datetime(2024, 1, 1, tzinfo=NoZone()),
    "str subclass": Text("a"),
    "int subclass": Number(1),
    "float subclass": Real(1.5),
    "bytes subclass": Raw(b"a"),
    "list subclass": Rows([1]),
    "dict subclass": Table(a=1),
    "tuple subclass": Pair((1, 2)),
    "counter subclass": Counted("a"),
    "default dict of something": collections.defaultdict(three, a=1),
    "object": Plain(3),
    "masked array": np.ma.MaskedArray([1, 2], [True, False]),
    "record": np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])[0],
    "array with objects in fields": np.array([(1, decimal.Decimal(1))], [("a", "i4"), ("b", "O")]),
}

REFUSED: dict[str, Any] = {
    "memoryview": memoryview(b"zz"),
    "read-write memoryview": memoryview(bytearray(b"zz")),
    "mmap": mmap.mmap(-1, 16),
    "ctypes array": (ctypes.c_int * 3)(1, 2, 3),
    "pickle buffer": pickle.PickleBuffer(b"abc"),
    "function": lambda: 1,
    "generator": (number for number in (1, 2)),
    "mapping proxy": MappingProxyType({"a": 1}),
    "object that cannot be made again": NotAgain(),
}


def same(left: Any, right: Any) -> bool:
    """Equal, with equal types at every depth; NaN is the same as NaN, and the order of a dict counts."""
    if type(left) is not type(right):
        return False
    if isinstance(left, np.ma.MaskedArray) or type(left).__name__ == "memmap":
        return repr(left) == repr(right)
    if isinstance(left, np.ndarray):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        if left.dtype.names is not None:  # what is in its gaps does not matter
            return same(left.tolist(), right.tolist())
        if left.dtype.hasobject:
            return same(list(left.flat), list(right.flat))
        return bool(left.tobytes() == right.tobytes())
    if isinstance(left, np.void) and left.dtype.hasobject:
        return bool(left.dtype == right.dtype) and same(left.item(), right.item())
    if isinstance(left, np.generic):
        return bool(left.dtype == right.dtype and left.tobytes() == right.tobytes())
    if isinstance(left, collections.deque):
        return left.maxlen == right.maxlen and same(list(left), list(right))
    if isinstance(left, collections.defaultdict) and left.default_factory is not right.default_factory:
        return False
    if isinstance(left, pydantic.BaseModel):
        return same(left.__getstate__(), right.__getstate__())
    if left is pd.NaT or left is pd.NA:
        return left is right
    if isinstance(left, pd.Timestamp | pd.Timedelta) and left.unit != right.unit:
        return False
    if isinstance(left, complex):
        return repr(left) == repr(right)
    if isinstance(left, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    if isinstance(left, dt.datetime | dt.time):
        return bool(left == right) and (repr(left.tzinfo), left.fold) == (repr(right.tzinfo), right.fold)
    if isinstance(left, SimpleNamespace):
        return same(vars(left), vars(right))
    if is_dataclass(left) and not isinstance(left, type):
        return all(same(getattr(left, part.name), getattr(right, part.name)) for part in fields(left))
    return bool(left == right)
