"""Objects of a class that has changed since: kept by pickle, here and on Spark, they come as from JSON."""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from asyncstream.codec import JsonCodec, PickleCodec
from asyncstream.errors import CodecError
from asyncstream.runtime.spark.wire.values import dumps_state, loads
from tests.codec.changed import CHANGES, KINDS, kept_class


def read(by: Callable[[bytes], Any], data: bytes) -> str:
    """Whatever comes of it, in words in which the three do not differ."""
    try:
        values = by(data)
    except CodecError as error:
        return (
            str(error)
            .replace("kept:Kept", "kept.Kept")
            .replace("a dataclass or attrs class", "a class with fields")
            .replace("a pydantic model", "a class with fields")
        )
    return repr(values)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_object_of_a_class_that_has_changed_comes_as_from_json_or_is_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, change: str
) -> None:
    made = kept_class(monkeypatch, kind, CHANGES["none"])
    values = [made(x=1, y=[2]), {"a": made(x="b", y=None)}]
    by_json, by_pickle = JsonCodec(), PickleCodec()
    kept = [by_json.encode(values), by_pickle.encode(values), dumps_state(values)]
    before = repr(values)
    assert by_pickle.decode(kept[1]) == loads(kept[2]) == values
    kept_class(monkeypatch, kind, CHANGES[change])
    as_json, *others = map(read, (by_json.decode, by_pickle.decode, loads), kept)
    assert others == [as_json] * 2
    assert (as_json == before) is (change == "none") or change == "another order"


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_says_once_what_a_class_has_got(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    made = kept_class(monkeypatch, kind, CHANGES["none"])
    data = PickleCodec().encode([made(x=1, y=2), made(x=3, y=4)])
    kept_class(monkeypatch, kind, CHANGES["a default"])
    with caplog.at_level(logging.INFO):
        PickleCodec().decode(data)
    [told] = caplog.messages
    assert told.endswith("Kept has a new field 'n': values that were kept without have its default")


UNKNOWN = """
    @classmethod
    def _missing_(cls, value):
        made = object.__new__(cls)
        made._name_, made._value_ = "unknown", value
        return made
"""


def kept_enum(monkeypatch: pytest.MonkeyPatch, base: str, *members: str, methods: str = "") -> Any:
    module = ModuleType("kept")
    monkeypatch.setitem(sys.modules, "kept", module)
    body = "".join(f"\n    {name} = enum.auto()" for name in members)
    exec(f"import enum\nclass Kept(enum.{base}):{body}{methods}", module.__dict__)
    return vars(module)["Kept"]


@pytest.mark.parametrize("base", ["Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"])
def test_a_member_of_an_enum_is_found_by_its_name_whatever_its_number(
    monkeypatch: pytest.MonkeyPatch, base: str
) -> None:
    by_json, by_pickle = JsonCodec(), PickleCodec()
    before = kept_enum(monkeypatch, base, "RED", "GREEN")
    values = [before.RED, {"a": before.GREEN}]
    if "Flag" in base:
        values += [before.RED | before.GREEN, before(0)]
    kept = [by_json.encode(values), by_pickle.encode(values), dumps_state(values)]
    after = kept_enum(monkeypatch, base, "BLUE", "RED", "GREEN")
    expected = [after.RED, {"a": after.GREEN}]
    if "Flag" in base:
        expected += [after.RED | after.GREEN, after(0)]
    assert [by_json.decode(kept[0]), by_pickle.decode(kept[1]), loads(kept[2])] == [expected] * 3
    kept_enum(monkeypatch, base, "RED")
    said = list(map(read, (by_json.decode, by_pickle.decode, loads), kept))
    assert said[0].startswith("the enum kept.Kept has no member 'GREEN' any more; leave the class as it was")
    assert said[1:] == said[:1] * 2


def test_what_an_enum_makes_of_a_value_that_it_does_not_know_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unknown = kept_enum(monkeypatch, "Enum", "RED", methods=UNKNOWN)(99)
    again = PickleCodec().decode(PickleCodec().encode(unknown))
    assert (again._name_, again._value_) == ("unknown", 99)


@pytest.mark.parametrize(("before", "after"), [("pydantic", "dataclass"), ("slots", "pydantic")])
def test_a_model_of_pydantic_is_not_read_as_another_class_nor_one_as_a_model(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str
) -> None:
    value = kept_class(monkeypatch, before, CHANGES["none"])(x=1, y=2)
    kept = PickleCodec().encode(value)
    kept_class(monkeypatch, after, CHANGES["none"])
    with pytest.raises(CodecError, match=r"kept\.Kept is not a .* any more; leave the class as it was"):
        PickleCodec().decode(kept)


def test_what_a_class_has_got_is_made_for_each_object(monkeypatch: pytest.MonkeyPatch) -> None:
    made = kept_class(monkeypatch, "slots", CHANGES["none"])
    data = PickleCodec().encode([made(x=1, y=2), made(x=3, y=4)])
    kept_class(monkeypatch, "slots", CHANGES["a factory"])
    first, second = PickleCodec().decode(data)
    assert first.n == second.n == []
    assert first.n is not second.n


@dataclass
class Own:
    """Says itself what pickle makes of it."""

    x: int

    def __getstate__(self) -> int:
        return self.x + 1

    def __setstate__(self, state: int) -> None:
        self.x = state * 10


@dataclass
class Node:
    """May hold itself."""

    others: list[Any]


@dataclass
class Entries(dict[str, int]):
    """Is more than its fields."""

    x: int = 0


class Pair(NamedTuple):
    x: int
    y: int


class Marked(Pair):
    """A NamedTuple with attributes."""


def both_ways(value: Any) -> list[Any]:
    by = PickleCodec()
    return [by.decode(by.encode(value)), loads(dumps_state(value))]


def test_class_that_says_itself_what_pickle_makes_of_it_does() -> None:
    assert both_ways(Own(4)) == [Own(50), Own(50)]


def test_object_comes_back_with_all_that_it_is() -> None:
    node, entries, marked = Node([]), Entries(3), Marked(1, 2)
    node.others.append(node)
    entries["a"] = 5
    marked.mark = "m"  # type: ignore[attr-defined]
    node.extra = marked  # type: ignore[attr-defined]
    for found in both_ways([node, node, entries]):
        first, second, third = found
        assert first is second is first.others[0]
        assert (third, third.x) == ({"a": 5}, 3)
        assert (first.extra, first.extra.mark, type(first.extra)) == ((1, 2), "m", Marked)


def test_what_pickle_has_kept_before_is_read() -> None:
    values = [Pair(1, 2), Node([3])]
    assert loads(pickle.dumps(values)) == PickleCodec().decode(pickle.dumps(values)) == values
