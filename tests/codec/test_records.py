"""Objects of a class that has changed since: kept by pickle, here and on Spark, they come as from JSON."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass
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
