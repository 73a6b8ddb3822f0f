from __future__ import annotations

import enum
import logging
import math
import pickle
from array import array
from collections import ChainMap, OrderedDict, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.codec import Codec, ForeignError, JsonCodec, PickleCodec, codec
from asyncstream.elements import EndOfInput, IdleStatus, Watermark
from asyncstream.errors import CallTimeout, CodecError, PipelineError, UserFunctionError
from asyncstream.operators.functions import FailedCall


class Colour(enum.Enum):
    RED = "r"
    BLUE = ("b", 2)


class Level(enum.IntEnum):
    LOW = 1


class Name(enum.StrEnum):
    ANN = "ann"


class Right(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Overlapping(enum.Flag):
    """Of its bits, none is a member by itself."""

    LOW = 3
    HIGH = 6


class Point(NamedTuple):
    x: float
    y: float


Pair = namedtuple("Pair", "a b")


@dataclass(frozen=True, slots=True)
class Reading:
    sensor: str
    values: tuple[float, ...] = ()


@dataclass
class Counter:
    n: int
    log: list[Any] = field(default_factory=list)
    total: int = field(init=False)

    def __post_init__(self) -> None:
        self.total = 0

    @cached_property
    def twice(self) -> int:
        return self.n * 2


@dataclass
class Bag(dict[str, int]):
    n: int = 0


class Outer:
    @dataclass(frozen=True)
    class Inner:
        n: int


class OddError(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"odd {code}")
        self.code = code
        self.detail = detail


class HandleError(Exception):
    def __init__(self) -> None:
        super().__init__("no handle")
        self.handle = object()


class PickyError(Exception):
    def __new__(cls, code: int) -> PickyError:
        return super().__new__(cls, "no handle")

    def __init__(self, code: int) -> None:
        super().__init__("no handle")


class Opaque:
    def __repr__(self) -> str:
        return "<opaque>"


JSON = JsonCodec()
BERLIN = ZoneInfo("Europe/Berlin")


def there_and_back(value: Any, by: Codec = JSON) -> Any:
    return by.decode(by.encode(value))


def same(left: Any, right: Any) -> bool:
    """Equal, with equal types at every depth; NaN is the same as NaN, and the order of a dict counts."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return (math.isnan(left) and math.isnan(right)) or (
            left == right and math.copysign(1, left) == math.copysign(1, right)
        )
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return same(list(left), list(right)) and same(list(left.values()), list(right.values()))
    if isinstance(left, set | frozenset):
        return len(left) == len(right) and all(any(same(one, other) for other in right) for one in left)
    if isinstance(left, datetime | time):
        return repr(left) == repr(right)  # includes the zone and the fold
    if isinstance(left, Decimal):
        return str(left) == str(right)
    if is_dataclass(left) and not isinstance(left, type):
        return all(same(getattr(left, part.name), getattr(right, part.name)) for part in fields(left))
    return bool(left == right)


KEPT = [
    pytest.param(value, id=name)
    for name, value in {
        "none": None,
        "bools in a list": [True, False, 1, 0, 1.0, 0.0, -0.0],
        "the widest integers of orjson": [2**64 - 1, -(2**63)],
        "integers beyond orjson": [2**64, -(2**63) - 1, 10**5000],
        "not a number": [math.nan, math.inf, -math.inf, None, 1.5],
        "lone surrogate": {"a\ud800": "\udfff", "é": "ü"},
        "tuple": (1, (2, ()), [3]),
        "keys of many types": {
            1: "int",
            "1": "str",
            (1, "a"): "tuple",
            None: 0,
            2.5: 1,
            b"b": 2,
            7: 3,
        },
        "a key like a tag": [{"$tuple": [1]}, {"$": 1}, {"$x": {"$y": 1}}, {"$a": 1, "b": 2}],
        "a text like a tag": ['{"$tuple":[1]}', {"a": '{"$'}],
        "bytes": [b"", b"\x00\xff", bytearray(b"ab")],
        "sets": [set(), {1, "a", (2,)}, frozenset({frozenset({1})})],
        "naive times": [datetime(2013, 1, 1, 5, 0, 0, 1), date(1, 1, 1), time(23, 59, 59, 999999)],
        "times in UTC": [datetime(2013, 1, 1, tzinfo=UTC), time(1, tzinfo=UTC), UTC],
        "fixed offsets": [
            datetime(2013, 1, 1, tzinfo=timezone(timedelta(hours=-5, seconds=3, microseconds=1))),
            datetime(2013, 1, 1, tzinfo=timezone(timedelta(microseconds=-1))),
            datetime(2013, 1, 1, tzinfo=timezone(timedelta(hours=1), "CET")),
        ],
        "time zones": [BERLIN, datetime(2013, 7, 1, tzinfo=BERLIN), time(2, tzinfo=BERLIN)],
        "both two o'clocks": [datetime(2013, 10, 27, 2, 30, fold=f, tzinfo=BERLIN) for f in (0, 1)]
        + [datetime(2013, 10, 27, fold=1, tzinfo=UTC), datetime(2013, 10, 27, fold=1)],
        "durations": [timedelta(days=-3, microseconds=1), timedelta.max, timedelta.min],
        "decimals": [
            Decimal("1.10"),
            Decimal("-0E+5"),
            Decimal("NaN123"),
            Decimal("sNaN"),
            Decimal("-Infinity"),
        ],
        "uuid": {UUID(int=5): UUID(int=2**128 - 1)},
        "enums": [Colour.RED, Colour.BLUE, Level.LOW, Name.ANN, {Level.LOW: Colour.RED}],
        "flags": [Right.READ, Right.READ | Right.WRITE, Right(0), Overlapping.LOW | Overlapping.HIGH],
        "named tuples": [Point(1, 2.5), Pair((1,), [Point(0, 0)]), {Point(1, 1): 1}],
        "dataclasses": [Reading("a", (1.0, 2.0)), Counter(3, [(1,)]), Outer.Inner(1), {Reading("k"): {1}}],
        "our own elements": [Watermark(-5), IdleStatus(True), EndOfInput()],
    }.items()
]


@pytest.mark.parametrize("value", KEPT)
def test_value_comes_back_with_its_types(value: Any) -> None:
    back = there_and_back(value)
    assert same(back, value), back


def keys_and_values() -> st.SearchStrategy[Any]:
    zones = (
        st.none()
        | st.just(UTC)
        | st.just(BERLIN)
        | st.timedeltas(min_value=timedelta(hours=-23), max_value=timedelta(hours=23)).map(timezone)
    )
    keys = (
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False)
        | st.text(st.characters(), max_size=5)
        | st.binary(max_size=5)
        | st.decimals(allow_nan=False)
        | st.uuids()
        | st.dates()
        | st.timedeltas()
        | st.datetimes(timezones=zones, allow_imaginary=True)
        | st.sampled_from([Colour.RED, Level.LOW, Name.ANN, Right.READ | Right.WRITE, "$tuple", "$dict", "$"])
    )
    keys = st.recursive(
        keys,
        lambda inner: (
            st.tuples(inner, inner)
            | st.frozensets(inner, max_size=3)
            | st.builds(Point, inner, inner)
            | st.builds(Reading, st.text(max_size=3), st.tuples(inner))
        ),
        max_leaves=4,
    )
    return st.recursive(
        keys | st.floats(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(keys, inner, max_size=4)
            | st.dictionaries(st.text(max_size=3), inner, max_size=4)
            | st.tuples(inner)
            | st.sets(keys, max_size=3)
            | st.builds(Counter, st.integers(), st.lists(inner, max_size=2))
        ),
        max_leaves=12,
    )


@given(keys_and_values())
def test_any_keepable_value_comes_back_with_its_types(value: Any) -> None:
    back = there_and_back(value)
    assert same(back, value), back


def test_plain_values_are_written_as_orjson_writes_them() -> None:
    row = {"carrier": "UA", "delay": 2.5, "ok": True, "dest": None, "tags": ["a", {"b": 1}], "note": "null"}
    assert JSON.encode([row]) == orjson.dumps([row])


def test_equal_sets_are_equal_bytes() -> None:
    forwards, backwards = [f"k{n}" for n in range(50)], [f"k{n}" for n in reversed(range(50))]
    assert JSON.encode(set(forwards)) == JSON.encode(set(backwards))


@dataclass(slots=True)
class Grown:
    old: int
    number: int = 7
    made: list[int] = field(default_factory=list)
    unset: int = field(init=False)


@dataclass
class Demanding:
    old: int
    new: int


def test_fields_that_a_dataclass_has_got_since_have_their_defaults(caplog: pytest.LogCaptureFixture) -> None:
    codec = JsonCodec()
    with caplog.at_level(logging.INFO):
        one, other = (
            codec.decode(b'{"$dataclass":["tests.codec.test_json:Grown",{"old":1}]}') for _ in range(2)
        )
    assert (one.old, one.number, one.made, hasattr(one, "unset")) == (1, 7, [], False)
    assert one.made is not other.made
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"{__name__}:Grown has a new field {name!r}: values that were kept without have its default"
        for name in ("number", "made")
    ]


def test_a_new_field_without_a_default_is_refused() -> None:
    with pytest.raises(CodecError, match=r"Demanding has a new field 'new', .* give it a default"):
        JSON.decode(b'{"$dataclass":["tests.codec.test_json:Demanding",{"old":1}]}')


class Place(NamedTuple):
    row: int
    column: int
    sheet: str = "one"


def test_fields_of_a_named_tuple_are_found_by_name() -> None:
    for kept, made in (
        ('"column":2,"row":1,"sheet":"two"', Place(1, 2, "two")),
        ('"row":1,"column":2', Place(1, 2, "one")),
    ):
        assert JSON.decode(f'{{"$namedtuple":["{__name__}:Place",{{{kept}}}]}}'.encode()) == made
    for kept, words in (
        ('"row":1,"col":2', "Place has no field 'col' any more"),
        ('"row":1', "Place has a new field 'column', .* give it a default"),
    ):
        with pytest.raises(CodecError, match=words):
            JSON.decode(f'{{"$namedtuple":["{__name__}:Place",{{{kept}}}]}}'.encode())


def test_flags_are_kept_by_their_names() -> None:
    kept = JSON.encode(Right.READ | Right.WRITE)
    assert kept.endswith(b'["READ","WRITE"]]}')
    with pytest.raises(CodecError, match="Right has no member 'GONE' any more"):
        JSON.decode(kept.replace(b"WRITE", b"GONE"))


def test_restoring_a_dataclass_does_not_run_its_code() -> None:
    counter = Counter(3)
    counter.total = 9
    assert there_and_back(counter).total == 9


def test_cached_property_is_left_behind() -> None:
    counter = Counter(3)
    assert counter.twice == 6
    assert vars(there_and_back(counter)) == {"n": 3, "log": [], "total": 0}


class Tallying(Counter):
    """Has a plain attribute where its base class computes something."""

    twice: Any = 0


def test_attribute_that_a_base_class_computes_is_not_dropped() -> None:
    counter = Tallying(3, [])
    counter.twice += 5
    with pytest.raises(CodecError, match="the attribute 'twice', which is no field"):
        there_and_back(counter)


@attrs.frozen
class Slotted:
    n: int

    @cached_property
    def twice(self) -> int:
        return self.n * 2


@attrs.frozen
class SlottedMore(Slotted):
    m: int = 0

    @cached_property
    def thrice(self) -> int:
        return self.n * 3


def test_cached_property_that_attrs_keeps_in_a_slot_is_left_behind() -> None:
    value = SlottedMore(3)
    assert (value.twice, value.thrice) == (6, 9)
    back = there_and_back(value)
    assert back == value
    for name in ("twice", "thrice"):
        with pytest.raises(AttributeError):
            object.__getattribute__(back, name)
    assert (back.twice, back.thrice) == (6, 9)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Opaque(), "value: cannot keep a tests.codec.test_json.Opaque, <opaque>"),
        ({"a": [1, 2, 3, Opaque()]}, "value['a'][3]: cannot keep a tests.codec.test_json.Opaque"),
        (Counter(1, [{"x": (1, Opaque())}]), "value.log[0]['x'][1]: "),
        (Point(1.0, Opaque()), "value.y: "),  # type: ignore[arg-type]
        ({(1, Opaque()): 1}, "value[key (1, <opaque>)][1]: "),
        ([{Opaque()}], "value[0]{…}: "),
        ([lambda: 1], "value[0]: cannot keep a function"),
        ([slice(3)], "value[0]: cannot keep a slice"),
        ([ChainMap()], "value[0]: cannot keep a collections.ChainMap"),
        (
            Bag(),
            "value: cannot keep a tests.codec.test_json.Bag: it also derives from a built-in",
        ),
    ],
)
def test_refusal_names_the_type_and_the_path(value: Any, path: str) -> None:
    with pytest.raises(CodecError) as caught:
        JSON.encode(value)
    assert str(caught.value).startswith(path)


@pytest.mark.parametrize(("value", "may"), [(Opaque(), True), (Lock(), False), (slice(3), True)])
def test_pickle_is_proposed_for_what_it_does_not_refuse_itself(value: Any, may: bool) -> None:
    with pytest.raises(CodecError) as caught:
        JSON.encode(value)
    assert ("or ask for codec='pickle'" in str(caught.value)) is may


def test_class_inside_a_function_is_refused() -> None:
    @dataclass
    class Local:
        n: int

    with pytest.raises(CodecError, match=r"value\['a'\]: cannot keep a .*Local: .* define it in a module"):
        JSON.encode({"a": Local(1)})


def test_attribute_that_is_no_field_is_refused() -> None:
    counter = Counter(3)
    counter.more = 1  # type: ignore[attr-defined]
    with pytest.raises(CodecError, match="the attribute 'more', which is no field"):
        JSON.encode(counter)


def test_value_inside_itself_is_refused() -> None:
    loop: list[Any] = []
    loop += loop, loop
    with pytest.raises(CodecError, match="inside itself"):
        JSON.encode(loop)
    with pytest.raises(CodecError, match="inside itself"):
        JSON.encode((loop,))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"$new":1}',
        b'{"$tuple":1}',
        b'{"$date":[]}',
        b'{"$decimal":"x"}',
        b'{"$zone":"No/Where"}',
        b'{"$zone":"Europe"}',
        b'{"$bytes":"a"}',
        b'{"$dict":[1]}',
        b'{"$dict":[[],1]}',
        b'{"$timedelta":[1e300]}',
        b'{"$enum":["tests.codec.test_json:Colour","GREEN"]}',
        b'{"$enum":["tests.codec.test_json:Point","x"]}',
        b'{"$named":["tests.codec.test_json:Point",1]}',
        b'{"$namedtuple":["tests.codec.test_json:Point"]}',
        b'{"$namedtuple":["tests.codec.test_json:Point",[1,2]]}',
        b'{"$namedtuple":["tests.codec.test_json:Place",{"__class__":1}]}',
        b'{"$enum":["tests.codec.test_json:Right",[]]}',
        b'{"$enum":["tests.codec.test_json:Right",[[]]]}',
        b'{"$enum":["tests.codec.test_json:Level",["LOW"]]}',
        b'{"$dataclass":["tests.codec.test_json:Reading",{"gone":1}]}',
        b'{"$dataclass":["tests.codec.test_json:Absent",{}]}',
        b'{"$dataclass":["no.such.module:X",{}]}',
        b'{"$dataclass":[7,{}]}',
        b'{"$error":["tests.codec.test_json:Point",{"$tuple":[]},{},null]}',
    ],
)
def test_damaged_bytes_are_an_error_of_ours(data: bytes) -> None:
    with pytest.raises(CodecError):
        JSON.decode(data)


@pytest.mark.parametrize("tag", ["dataclass", "named", "enum", "error"])
@pytest.mark.parametrize(
    "path", ["subprocess:Popen", "os:system", "tests.codec.test_json:Opaque", "builtins:eval"]
)
def test_bytes_cannot_make_other_classes(tag: str, path: str) -> None:
    with pytest.raises(CodecError):
        JSON.decode(orjson.dumps({f"${tag}": [path, {}, {}, None][: 4 if tag == "error" else 2]}))


def test_bytes_cannot_set_what_is_no_field() -> None:
    with pytest.raises(CodecError, match="no field '__class__'"):
        JSON.decode(b'{"$dataclass":["tests.codec.test_json:Counter",{"__class__":1}]}')


def test_pickled_bytes_are_not_unpickled_by_default() -> None:
    with pytest.raises(CodecError):
        JSON.decode(pickle.dumps([1]))


def test_failed_call_keeps_its_error() -> None:
    cause = ValueError("bad", 3)
    error = UserFunctionError("enrich", (1, 2), cause)
    error.__cause__ = cause
    failed = FailedCall(Point(1, 2), error, 3, 17, 1, 2)
    back = there_and_back(failed)
    assert type(back.error) is UserFunctionError
    assert (back.error.step, back.error.element, str(back.error)) == ("enrich", (1, 2), str(error))
    assert type(back.error.__cause__) is ValueError
    assert back.error.__cause__.args == ("bad", 3)
    assert (back.value, back.attempts, back.timestamp, back.first_ms, back.last_ms) == (
        Point(1, 2),
        3,
        17,
        1,
        2,
    )


@pytest.mark.parametrize(
    "error",
    [
        CallTimeout("late"),
        FileNotFoundError(2, "No such file", "a.txt"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        ExceptionGroup("several", [ValueError(1), KeyError("k")]),
        OddError(3, detail="x"),
        ConnectionResetError(104, "reset"),
        KeyError({2**64}, "a\ud800"),
    ],
)
def test_exception_comes_back_as_it_was(error: Exception) -> None:
    error.add_note("seen twice")
    back = there_and_back(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert repr(back.args) == repr(error.args)
    assert repr(vars(back)) == repr(vars(error))


@pytest.mark.parametrize("error", [HandleError(), PickyError(1)])
def test_exception_that_cannot_be_kept_leaves_what_it_said(error: Exception) -> None:
    back = there_and_back([error])[0]
    assert type(back) is ForeignError
    assert back.kind == f"tests.codec.test_json.{type(error).__name__}"
    assert str(back) == f"{type(error).__name__}: no handle"
    again = there_and_back(back)
    assert (type(again), again.kind, str(again)) == (ForeignError, back.kind, str(back))


def error_with(cause: BaseException | None = None, **attributes: Any) -> BaseException:
    error = ValueError("no")
    error.__cause__ = cause
    vars(error).update(attributes)
    return error


def inside_itself() -> Iterator[BaseException]:
    error = error_with()
    error.__cause__ = error
    yield error
    error = error_with(errors=[])
    vars(error)["errors"].append(error)
    yield error
    items: list[Any] = []
    items.append(items)
    yield error_with(items=items)
    for _ in range(3000):
        error = error_with(error)
    yield error


@pytest.mark.parametrize("error", [*inside_itself()], ids=["cause", "attribute", "list", "chain"])
def test_exception_that_has_no_end_is_kept_as_far_as_may_be(error: BaseException) -> None:
    assert str(there_and_back([error])[0]).endswith("no")


def test_exceptions_that_all_hold_each_other_are_each_kept_once() -> None:
    history: list[BaseException] = []
    history += [error_with(history=history) for _ in range(7)]
    assert len(JSON.encode(history)) < 100_000  # on each way from one to the others: megabytes
    shared = error_with()
    again = there_and_back(error_with(shared, errors=[shared]))
    assert [type(again.__cause__), *map(type, again.errors)] == [ValueError, ValueError]  # here is no circle
    circle, *_ = inside_itself()
    _, *beside = there_and_back([circle, again, shared, shared])  # nor is one beside it
    kept = [*beside, beside[0].__cause__, *beside[0].errors]
    assert list(map(type, kept)) == [ValueError] * 5


def test_pickle_is_there_for_who_asks() -> None:
    by = codec("pickle")
    assert isinstance(by, PickleCodec)
    assert same(there_and_back({1: OrderedDict(a=3j)}, by), {1: OrderedDict(a=3j)})
    with pytest.raises(CodecError, match="pickle refuses a function"):
        by.encode(lambda: 1)
    with pytest.raises(CodecError, match="cannot read"):
        by.decode(b"junk")


def test_codec_is_found_by_name_or_passed_through() -> None:
    assert isinstance(codec("json"), JsonCodec)
    assert codec(JSON) is JSON
    for wrong in ("yaml", 3):
        with pytest.raises(PipelineError, match="codec: expected 'json', 'pickle' or a Codec"):
            codec(wrong)  # type: ignore[arg-type]


def test_what_version_0_2_wrote_is_read() -> None:
    old = b'[{"$named":["tests.codec.test_json:Point",1,2]},{"$enum":["tests.codec.test_json:Right",3]}]'
    assert JSON.decode(old) == [Point(1, 2), Right.READ | Right.WRITE]


def test_bytes_are_the_same_in_every_version() -> None:
    values: dict[Any, Any] = {
        "a": (1, 2**64, 1.5, math.inf, "\ud800", b"x", bytearray(b"y"), Right.READ | Right.WRITE, Level.LOW),
        Point(1, 2): [
            datetime(2024, 1, 2, tzinfo=BERLIN),
            time(1, fold=1),
            timedelta(1),
            Decimal("1.0"),
            UUID(int=1),
        ],
        3: FileNotFoundError(2, "gone", "a"),
        4: [np.float32(0.5), np.arange(2, dtype="i2"), array("i", [1]), np.str_("a")],
    }
    assert JSON.encode(values).decode() == (
        '{"$dict":["a",{"$tuple":[1,{"$int":"0x10000000000000000"},1.5,{"$float":"inf"},{"$str":"7aCA"},'
        '{"$bytes":"eA=="},{"$bytearray":"eQ=="},{"$enum":["tests.codec.test_json:Right",["READ","WRITE'
        '"]]},{"$enum":["tests.codec.test_json:Level","LOW"]}]},{"$namedtuple":["tests.codec.test_json:Po'
        'int",{"x":1,"y":2}]},[{"$datetime":["2024-01-02T00:00:00",0,{"$zone":"Europe/Berlin"}]},{"$time":["01:00:00",1,null]},{"$time'
        'delta":[1,0,0]},{"$decimal":"1.0"},{"$uuid":"00000000000000000000000000000001"}],3,{"$error":["'
        'builtins:FileNotFoundError",{"$tuple":[2,"gone","a"]},{},null]},4,[{"$numpy":["<f4","AAAAPw=="]'
        '},{"$ndarray":["<i2",[2],"AAABAA==","C"]},{"$array":["i",4,"AQAAAA=="]},{"$numpy":["str","a"]}]'
        "]}"
    )
