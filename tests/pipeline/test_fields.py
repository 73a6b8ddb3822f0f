"""Wherever a step is about something of an element, the name of a field does as well as a function."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    Collect,
    Count,
    MissingField,
    Pipeline,
    PipelineError,
    Stream,
    Sum,
    TumblingWindows,
    UserFunctionError,
)


@dataclass(frozen=True, slots=True)
class Order:
    id: int
    at: int
    ok: bool
    items: tuple[str, ...]


class Row(NamedTuple):
    id: int
    at: int
    ok: bool
    items: tuple[str, ...]


class WithProperty:
    @property
    def id(self) -> int:
        raise AttributeError("inside")


FIELDS: list[dict[str, Any]] = [
    {"id": 1, "at": 1000, "ok": True, "items": ("a", "b")},
    {"id": 2, "at": 2000, "ok": False, "items": ()},
    {"id": 1, "at": 3000, "ok": True, "items": ("c",)},
]
KINDS: dict[str, Callable[..., Any]] = {
    "dict": dict,
    "mapping": lambda **fields: MappingProxyType(fields),
    "dataclass": Order,
    "named tuple": Row,
    "object": SimpleNamespace,
}


def results(build: Callable[[Stream[Any]], Stream[Any]], elements: list[Any]) -> list[Any]:
    found: list[Any] = []
    pipeline = Pipeline()
    build(pipeline.source(elements, name="in")).to(found)
    asyncio.run(pipeline.run())
    return found


@pytest.fixture(params=KINDS)
def elements(request: pytest.FixtureRequest) -> list[Any]:
    return [KINDS[request.param](**fields) for fields in FIELDS]


def test_elements_of_every_kind_have_fields(elements: list[Any]) -> None:
    assert results(lambda stream: stream.map("id"), elements) == [1, 2, 1]
    assert results(lambda stream: stream.map(("id", "at")), elements) == [(1, 1000), (2, 2000), (1, 3000)]
    assert results(lambda stream: stream.filter("ok").map("at"), elements) == [1000, 3000]
    assert results(lambda stream: stream.flat_map("items"), elements) == ["a", "b", "c"]

    def others(stream: Stream[Any]) -> Stream[Any]:
        good, bad = stream.branch("ok")
        good.discard()
        return bad.map("at")

    assert results(others, elements) == [2000]


def test_keys_times_and_aggregates_are_fields(elements: list[Any]) -> None:
    def windows(key: Any) -> list[Any]:
        return results(
            lambda stream: (
                stream.event_time("at", BoundedOutOfOrderness(1))
                .key_by(key)
                .window(TumblingWindows(60))
                .aggregate(n=Count(), total=Sum("at"), both=Collect(("id", "ok")))
                .map(lambda result: (result.key, *result.value.values()))
            ),
            elements,
        )

    assert windows("id") == [(1, 2, 4000, [(1, True), (1, True)]), (2, 1, 2000, [(2, False)])]
    assert windows(("id", "ok")) == [
        ((1, True), 2, 4000, [(1, True), (1, True)]),
        ((2, False), 1, 2000, [(2, False)]),
    ]


STEPS: dict[str, Callable[[Stream[Any]], Stream[Any]]] = {
    "map": lambda stream: stream.map("x", name="step"),
    "map of two": lambda stream: stream.map(("id", "x"), name="step"),
    "filter": lambda stream: stream.filter("x", name="step"),
    "flat_map": lambda stream: stream.flat_map("x", name="step"),
    "branch": lambda stream: Stream.union(*stream.branch("x", name="step")),
    "event_time": lambda stream: stream.event_time("x", BoundedOutOfOrderness(1), name="step"),
    "key_by": lambda stream: stream.key_by("x").window(TumblingWindows(60)).collect(name="step"),
    "aggregate": lambda stream: stream.window_all(TumblingWindows(60)).aggregate(name="step", n=Sum("x")),
}


@pytest.mark.parametrize("step", STEPS)
def test_missing_field_is_named_with_its_step_and_those_that_there_are(
    step: str, elements: list[Any]
) -> None:
    def build(stream: Stream[Any]) -> Stream[Any]:
        if step in ("key_by", "aggregate"):
            stream = stream.event_time("at", BoundedOutOfOrderness(1))
        return STEPS[step](stream)

    with pytest.raises(UserFunctionError, match=r"step 'step': MissingField: no field 'x' in a") as caught:
        results(build, elements)
    assert isinstance(caught.value.__cause__, MissingField)
    assert caught.value.__cause__.field == "x"
    for name in FIELDS[0]:
        assert name in str(caught.value)


def test_missing_field_is_an_error_as_any_other() -> None:
    elements: list[dict[str, int]] = [{"a": 1}, {"b": 2}]
    assert results(lambda stream: stream.map("a", on_error="skip"), elements) == [1]
    error = MissingField("x", {"a": 1})
    assert isinstance(error, KeyError)
    assert isinstance(error, AttributeError)
    assert str(error) == "no field 'x' in a dict; there are: 'a'"
    assert str(MissingField("x", {})) == "no field 'x' in a dict; there are: none"


def test_dot_is_part_of_a_name() -> None:
    elements = [{"a.b": 1, "a": {"b": 2}}, SimpleNamespace(**{"a.b": 3, "a": SimpleNamespace(b=4)})]
    assert results(lambda stream: stream.map("a.b"), elements) == [1, 3]
    keys = results(lambda stream: stream.key_by("a.b").count_window(1).aggregate(n=Count()), elements)
    assert [result.key for result in keys] == [1, 3]
    for element in ({"a": {"b": 2}}, SimpleNamespace(a=SimpleNamespace(b=4))):
        with pytest.raises(UserFunctionError, match="a dot is part of a name: for a field within a field"):
            results(lambda stream: stream.map("a.b"), [element])
    assert "a dot is part" not in str(MissingField("x.y", {"a": 1}))


@pytest.mark.parametrize("text", ["a > 1", "b + a", "upper(a)", "a IS NOT NULL", "-a", "a.b + 1"])
def test_text_is_no_expression(text: str) -> None:
    advice = "a dot is part" if "." in text else "a text is a name, and nothing is computed"
    for element in ({"a": 1}, SimpleNamespace(a=1)):
        with pytest.raises(UserFunctionError, match=advice):
            results(lambda stream: stream.filter(text), [element])
    assert results(lambda stream: stream.map(text), [{text: 1}]) == [1]
    assert "computed" not in str(MissingField(text, {"c": 1}))


def test_property_that_fails_is_no_missing_field() -> None:
    with pytest.raises(UserFunctionError, match="AttributeError: inside"):
        results(lambda stream: stream.map("id"), [WithProperty()])


@pytest.mark.parametrize("wrong", [3, None, "", (), ("",), ("a", 3), ["a"]])
def test_what_is_neither_function_nor_field_is_refused(wrong: Any) -> None:
    stream = Pipeline().source([1])
    for build in (stream.map, stream.filter, stream.flat_map, stream.branch, stream.key_by):
        with pytest.raises(PipelineError, match=r"(fn|key): expected"):
            build(wrong)
    with pytest.raises(PipelineError, match="timestamp: expected"):
        stream.event_time(wrong, BoundedOutOfOrderness(1))
