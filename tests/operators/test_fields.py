"""Which fields functions look at, by their byte code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from operator import itemgetter
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.operators.fields import fields_read
from asyncstream.validation import selector

row: Any = {"global": 1}


def several_lines(element: Any) -> Any:
    total = 0
    for _ in range(3):
        total += element["a"] if element["b"] else element["c"]["inner"]
    if total > 3:
        return None
    with nullcontext(element["d"]) as text:
        return f"{text} {element['e']:>4}"


def yielding(element: Any) -> Any:
    yield element["a"]
    yield from element["b"]


def with_default(element: Any, scale: int = 2, *, by: str = "a") -> Any:
    return element["a"] * scale, by


def named_like_a_global(row: Any) -> Any:
    return row["a"]


def of_the_global(element: Any) -> Any:
    return row["global"]


def of_either(element: Any, other: Any = row) -> Any:
    return (other if other else element)["a"]


KNOWN: list[tuple[Callable[[Any], Any], set[str]]] = [
    (lambda element: element["a"], {"a"}),
    (lambda element: element["a"] > 3 and element["b"] != "x", {"a", "b"}),
    (lambda element: (element["a"], element["b"].lower()), {"a", "b"}),
    (lambda element: {"n": element["a"]["deep"], **element["b"]}, {"a", "b"}),
    (lambda element: 1, set()),
    (several_lines, {"a", "b", "c", "d", "e"}),
    (yielding, {"a", "b"}),
    (with_default, {"a"}),
    (named_like_a_global, {"a"}),
    (of_the_global, set()),
    (of_either, {"a"}),
    (itemgetter("a", "b"), {"a", "b"}),
    (selector("key", ("a", "b")), {"a", "b"}),
]


def changes(element: Any) -> Any:
    element["a"] = 1
    return element["b"]


def adds_to(element: Any) -> Any:
    element["a"] += 1


def forgets(element: Any) -> Any:
    del element["a"]


def begins_anew(element: Any) -> Any:
    element = dict(row)
    return element["a"]


def sees_locals(element: Any) -> Any:
    return locals()["element"]["b"], element["a"]


def sees_its_frame(element: Any) -> Any:
    return sys._getframe().f_locals["element"]["b"], element["a"]


def evaluates(element: Any) -> Any:
    return eval("element['b']")


def caught(element: Any) -> Any:
    def field(name: str) -> Any:
        return element[name]

    return field("b")


def matches(element: Any) -> Any:
    match element:
        case {"a": value}:
            return value


UNKNOWN: list[Callable[..., Any]] = [
    lambda element: element,
    lambda element: element.get("a"),
    lambda element: element["a" if element["b"] else "c"],
    lambda element: element[row["global"]],
    lambda element: element[1],
    lambda element: {**element, "a": 1},
    lambda element: "a" in element and element["a"],
    lambda element: len(element),
    lambda element: [other["a"] for other in [element]],
    lambda *elements: elements[0]["a"],
    lambda **given: 1,
    changes,
    adds_to,
    forgets,
    begins_anew,
    sees_locals,
    sees_its_frame,
    evaluates,
    caught,
    matches,
    partial(named_like_a_global),
    len,
    dict,
]


@pytest.mark.parametrize(("function", "fields"), KNOWN)
def test_fields_that_a_function_takes_are_told(function: Callable[[Any], Any], fields: set[str]) -> None:
    assert fields_read([function]) == frozenset(fields)


@pytest.mark.parametrize("function", UNKNOWN)
def test_function_that_does_something_else_may_look_at_any_field(function: Callable[..., Any]) -> None:
    assert fields_read([function]) is None


def test_fields_of_several_functions_are_told_together() -> None:
    known = [function for function, _ in KNOWN]
    assert fields_read(known) == frozenset().union(*(fields for _, fields in KNOWN))
    assert fields_read([*known, UNKNOWN[0]]) is None
    assert fields_read([]) == frozenset()


class Watched(dict[str, Any]):
    """Notes which fields are taken, and whether anything else is asked of it."""

    def __init__(self) -> None:
        super().__init__(a=1, b=0, c={"a": 1})
        self.taken = set[str]()
        self.is_asked = False

    def __getitem__(self, name: str) -> Any:
        self.taken.add(name)
        return super().__getitem__(name)

    def __iter__(self) -> Any:
        self.is_asked = True
        return super().__iter__()

    def __len__(self) -> int:
        self.is_asked = True
        return super().__len__()

    def keys(self) -> Any:
        self.is_asked = True
        return super().keys()


LEAVES = ["row['a']", "row['b']", "row['c']", "row", "other", "1", "'a'"]

FORMS = [
    "({0} if {1} else {2})",
    "({0} and {1} or {2})",
    "({0})[{1}]",
    "(row if {0} else other)['b']",
    "row['a' if {0} else 'b']",
    "[{0}, *({1},), {2}]",
    "{{**other, 'z': {0}}}",
    "{{**{0}}}",
    "[{0} for row in [{1}]]",
    "[({0}, {1}) for one in [{2}]]",
    "(lambda: {0})()",
    "str({0})",
]

EXPRESSIONS = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.tuples(st.sampled_from(FORMS), inner, inner, inner).map(
        lambda of: of[0].format(*of[1:])
    ),
    max_leaves=8,
)


@given(st.lists(EXPRESSIONS, max_size=3), EXPRESSIONS)
def test_no_other_field_is_looked_at(before: list[str], last: str) -> None:
    lines = [*(f"    other = {expression}" for expression in before), f"    return {last}"]
    scope: dict[str, Any] = {}
    with catch_warnings():
        simplefilter("ignore", SyntaxWarning)  # such as of a number that has no fields
        exec("\n".join(["def looks(row, other={'a': 1, 'b': 2}):", *lines]), scope)
    fields, row, found = fields_read([scope["looks"]]), Watched(), None
    if fields is not None:
        with suppress(Exception):
            found = scope["looks"](row)
        assert row.taken <= fields
        assert not row.is_asked
        assert not is_in(row, found)


def is_in(row: Watched, found: Any) -> bool:
    if found is row or not isinstance(found, list | tuple | dict):
        return found is row
    return any(is_in(row, part) for part in (found.values() if isinstance(found, dict) else found))
