"""Whatever is put in comes back as exactly what it was, or is refused; no codec, and no copy, alters it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from types import SimpleNamespace
from typing import Any, ClassVar, Generic, TypeVar

import attrs
import numpy as np
import pydantic
import pytest

from asyncstream.codec import Codec, ForeignError, JsonCodec, PickleCodec
from asyncstream.errors import CodecError
from asyncstream.state import freeze
from tests.values import KEPT, PICKLED, REFUSED, Derived, NotAgain, Point, Reading, WithHiddenSlot, same

AROUND: dict[str, Callable[[Any], Any]] = {
    "alone": lambda value: value,
    "in a list, twice": lambda value: [value, [value], 1],
    "in a dict": lambda value: {"a": {"b": value}},
    "in a tuple": lambda value: (1, (value,)),
    "in a dataclass": lambda value: Derived(Reading("a", value), [value]),
    "in a named tuple": lambda value: Point(value, None),
}


def named(*groups: dict[str, Any]) -> list[Any]:
    return [pytest.param(value, id=name) for group in groups for name, value in group.items()]


@pytest.mark.parametrize("value", named(KEPT))
@pytest.mark.parametrize("by", [JsonCodec(), PickleCodec()], ids=["json", "pickle"])
def test_kept_value_comes_back_as_it_was(by: Codec, value: Any) -> None:
    for wrap in AROUND.values():
        assert same(by.decode(by.encode(wrap(value))), wrap(value))


@pytest.mark.parametrize("value", named(PICKLED))
def test_other_value_is_refused_by_default_and_comes_back_from_pickle(value: Any) -> None:
    pickled = PickleCodec()
    for wrap in AROUND.values():
        with pytest.raises(CodecError):
            JsonCodec().encode(wrap(value))
        assert same(pickled.decode(pickled.encode(wrap(value))), wrap(value))


@pytest.mark.parametrize("value", named(REFUSED))
@pytest.mark.parametrize("by", [JsonCodec(), PickleCodec()], ids=["json", "pickle"])
def test_what_cannot_be_kept_is_refused_when_it_is_written(by: Codec, value: Any) -> None:
    for wrap in AROUND.values():
        with pytest.raises(CodecError):
            by.encode(wrap(value))


class Other:
    """Pickles as something else."""

    def __reduce__(self) -> Any:
        return dict, ()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (
            {"lock": SimpleNamespace(held=Lock())},
            r"SimpleNamespace cannot be written \(.*cannot pickle '_thread",
        ),
        ([lambda: 1], r"function cannot be written \(.*Can't"),
        ([NotAgain()], r"NotAgain cannot be read again \(TypeError: .* takes 1 positional argument but 3"),
        ([Other()], "Other is read as a dict"),
    ],
    ids=["inside", "itself", "not again", "as another"],
)
def test_pickle_says_why_it_refuses(value: Any, why: str) -> None:
    with pytest.raises(CodecError, match=why):
        PickleCodec().encode(value)


@pytest.mark.parametrize("value", named(KEPT, PICKLED, REFUSED))
def test_held_value_is_thawed_as_it_was(value: Any) -> None:
    for wrap in AROUND.values():
        frozen = freeze([wrap(value)])
        try:
            (thawed,) = frozen.thaw()
        except TypeError:
            assert type(value).__name__ == "NotAgain"  # which has no bytes that could be told apart
            continue
        assert frozen.is_live or same(thawed, wrap(value))


def test_array_that_comes_back_can_be_written_to() -> None:
    for value in KEPT.values():
        if isinstance(value, np.ndarray):
            back = JsonCodec().decode(JsonCodec().encode(value))
            assert back.flags.writeable
            assert back.flags.f_contiguous or not value.flags.f_contiguous


def test_numpy_keys_are_found_again() -> None:
    counts = {np.int64(1): "a", np.str_("b"): "b", np.datetime64("2024-01-01"): "c"}
    back = JsonCodec().decode(JsonCodec().encode(counts))
    assert same(back, counts)
    assert back[1] == "a"
    assert back["b"] == "b"


def test_one_thing_in_many_places_is_not_copied_for_each_of_them() -> None:
    table = {f"k{number}": number for number in range(20_000)}
    frozen = freeze([{"n": number, "table": table} for number in range(2000)])
    assert frozen.size < 10_000_000
    assert frozen.thaw()[-1] == {"n": 1999, "table": table}


def test_what_is_inside_itself_is_held_too() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    thawed = freeze(loop).thaw()
    assert thawed[1] is thawed


def test_slot_that_is_no_field_is_refused() -> None:
    value = WithHiddenSlot(1)
    assert same(JsonCodec().decode(JsonCodec().encode(value)), value)
    value.hidden = 2  # type: ignore[attr-defined]  # a slot of its base
    with pytest.raises(CodecError, match="the attribute 'hidden', which is no field"):
        JsonCodec().encode(value)


class OddError(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"odd {code}")
        self.detail = detail


@pytest.mark.parametrize("by", [JsonCodec(), PickleCodec()], ids=["json", "pickle"])
def test_exception_that_could_not_be_read_again_is_not_written(by: Codec) -> None:
    back = by.decode(by.encode({"error": OddError(3, detail="x")}))["error"]
    assert str(back) == ("odd 3" if type(back) is OddError else "OddError: odd 3")
    assert isinstance(back, OddError if by.name == "json" else ForeignError)


def test_fields_of_built_in_exceptions_come_back() -> None:
    for error in (
        ImportError("no", name="a", path="b"),
        NameError("n", name="x"),
        AttributeError("n", name="x", obj=object()),
        SystemExit(3),
        StopIteration(5),
        FileNotFoundError(2, "No such file", "a"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    ):
        back = JsonCodec().decode(JsonCodec().encode(error))
        assert type(back) is type(error)
        for name in ("name", "path", "code", "value", "errno", "filename", "reason", "args"):
            assert getattr(back, name, None) == getattr(error, name, None)


@pytest.mark.parametrize(
    "data",
    [
        b'{"$numpy":["|O","AAAAAAAAAAA="]}',
        b'{"$ndarray":["|O",[1],"AAAAAAAAAAA=","C"]}',
        b'{"$ndarray":[[["a","|O"]],[1],"AAAAAAAAAAA=","C"]}',
        b'{"$ndarray":["<i8",[2],"AAAAAAAAAAA=","C"]}',
        b'{"$ndarray":["<i8",[-1],"AAAAAAAAAAA=","C"]}',
        b'{"$ndarray":[null,[1000000000000],[]]}',
        b'{"$ndarray":["|,0",[1],"AAAAAAAAAAA=","C"]}',
        b'{"$ndarray":["os.system",[1],"AAAAAAAAAAA=","C"]}',
        b'{"$array":["i",3,"AAAA"]}',
        b'{"$array":["z",4,"AAAA"]}',
        b'{"$array":["i",4,"AAA="]}',
    ],
)
def test_bytes_of_no_array_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        JsonCodec().decode(data)


@pytest.mark.parametrize("dtype", ["<U0", "|S0", "|V0"])
def test_array_of_nothing_takes_no_memory_whatever_its_shape(dtype: str) -> None:
    """Of one of these bytes made a shape that no memory has room for."""
    back = JsonCodec().decode(f'{{"$ndarray":["{dtype}",[1000000,1000000000],"","C"]}}'.encode())
    assert (back.dtype, back.nbytes) == (np.dtype(dtype), 0)


class Grown(pydantic.BaseModel):
    a: int
    b: list[int] = pydantic.Field(default_factory=list)
    _seen: int = 0


@attrs.define
class GrownToo:
    a: int
    b: list[int] = attrs.field(factory=list)
    c: int = 3


@dataclass(slots=True)
class GrownInside:
    a: int
    b: list[int] = field(init=False, default_factory=list)


@attrs.define
class GrownInsideToo:
    a: int
    b: list[int] = attrs.field(init=False, factory=list)


@pytest.mark.parametrize("kind", [Grown, GrownToo, GrownInside, GrownInsideToo])
def test_field_that_a_class_has_got_since_holds_its_default(kind: Any) -> None:
    by = JsonCodec()
    first, second = (by.decode(by.encode(kind(a=1)).replace(b'"b":[]', b'"a":2')) for _ in range(2))
    assert first == kind(a=2)
    assert first.b is not second.b
    with pytest.raises(CodecError, match="new field 'a'"):
        by.decode(by.encode(kind(a=1)).replace(b'"a":1', b'"b":[1]'))
    with pytest.raises(CodecError, match="no field 'z'"):
        by.decode(by.encode(kind(a=1)).replace(b'"a":1', b'"a":1,"z":1'))


class Private(pydantic.BaseModel):
    a: int
    _seen: int = 3
    _held: list[int] = pydantic.PrivateAttr(default_factory=list)
    _unset: int


@pytest.mark.parametrize(
    ("kept", "seen"), [(b"null", 3), (b"{}", 3), (b'{"_seen":5}', 5), (b'{"_seen":7,"_held":[]}', 7)]
)
def test_private_attribute_that_a_model_has_got_since_holds_its_default(kept: bytes, seen: int) -> None:
    by = JsonCodec()
    before, _, _ = by.encode(Private.model_validate({"a": 1})).partition(b",null,")
    first, second = (by.decode(before + b",null," + kept + b"]}") for _ in range(2))
    assert (first._seen, first._held) == (seen, [])
    assert first._held is not second._held
    assert not hasattr(first, "_unset")


class Doubled(pydantic.BaseModel):
    a: int
    b: int = pydantic.Field(default_factory=lambda data: 2 * data["a"])


@attrs.define
class DoubledToo:
    a: int
    b: int = attrs.field(default=attrs.Factory(lambda made: 2 * made.a, takes_self=True))


@pytest.mark.parametrize("kind", [Doubled, DoubledToo])
def test_field_whose_default_looks_at_others_is_refused_if_it_has_come_since(kind: Any) -> None:
    by = JsonCodec()
    assert by.decode(by.encode(kind(a=1))) == kind(a=1)
    with pytest.raises(CodecError, match="new field 'b', which older values lack"):
        by.decode(by.encode(kind(a=1)).replace(b',"b":2', b""))


class Watched:
    """Its properties and hooks say when they are called."""

    called: ClassVar[list[str]] = []

    def __setattr__(self, name: str, value: Any) -> None:
        self.called.append(name)
        object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        self.called.append(name)
        raise AttributeError(name)


@dataclass
class WatchedRecord(Watched):
    a: int
    b: int = field(init=False)


def test_no_code_of_a_class_is_called() -> None:
    value = WatchedRecord(1)
    Watched.called.clear()
    back = JsonCodec().decode(JsonCodec().encode(value))
    assert (type(back), vars(back)) == (WatchedRecord, {"a": 1})
    assert Watched.called == []


T = TypeVar("T")


@dataclass
class Box(Generic[T]):
    inside: T


def test_object_of_a_class_with_parameters_is_kept() -> None:
    back = JsonCodec().decode(JsonCodec().encode(Box[int](1)))
    assert (type(back), back) == (Box, Box(1))


@pytest.mark.parametrize(
    "data",
    [
        b'{"$path":["PosixPath",1]}',
        b'{"$path":["NoPath","a"]}',
        b'{"$deque":[-1,[]]}',
        b'{"$deque":[1,5]}',
        b'{"$counter":5}',
        b'{"$defaultdict":["eval",{}]}',
        b'{"$fraction":[1,0]}',
        b'{"$range":[1,2,0]}',
        b'{"$complex":["1+",2]}',
        b'{"$namespace":[[1]]}',
        b'{"$address":["IPv4Address","x"]}',
        b'{"$pandas":["Timestamp",1,"No/Where",0]}',
        b'{"$pandas":["DataFrame"]}',
        b'{"$model":["tests.codec.test_values:Box",{},null,null,null]}',
        b'{"$model":["tests.codec.test_values:Grown",{"a":1}]}',
        b'{"$model":["tests.codec.test_values:Grown",{"a":1},5,null,null]}',
        b'{"$model":["tests.codec.test_values:Grown",{"a":1},null,[1],null]}',
        b'{"$dataclass":["tests.codec.test_values:Grown",{"a":1}]}',
    ],
)
def test_bytes_of_no_value_are_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        JsonCodec().decode(data)


def nested(depth: int, around: Callable[[Any], Any]) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = around(value)
    return value


def inside_itself(count: int) -> list[Any]:
    made: list[Any] = []
    made += [made] * count
    return made


@pytest.mark.parametrize("around", [lambda v: [v], lambda v: (1, v), lambda v: {"a": v}, Box, ValueError])
def test_what_is_nested_too_deeply_is_refused(around: Callable[[Any], Any]) -> None:
    for depth in (300, 1000, 5000):
        with pytest.raises(CodecError):
            JsonCodec().encode(nested(depth, around))


@pytest.mark.parametrize("count", [1, 2, 1999, 50_000])
def test_what_is_inside_itself_is_refused_at_once(count: int) -> None:
    with pytest.raises(CodecError, match="inside itself"):
        JsonCodec().encode(inside_itself(count))


class HatesHashing(type):
    def __hash__(cls) -> int:
        raise ValueError("no hash")


class Unhashable(metaclass=HatesHashing):
    pass


class Unshowable:
    def __repr__(self) -> str:
        raise ValueError("no repr")


class Nowhere:
    pass


Nowhere.__module__ = None  # type: ignore[assignment]  # as `type(...)` may do


@pytest.mark.parametrize("kind", [Unhashable, Unshowable, Nowhere])
def test_object_that_misbehaves_is_refused(kind: type) -> None:
    for wrap in AROUND.values():
        with pytest.raises(CodecError):
            JsonCodec().encode(wrap(kind()))
