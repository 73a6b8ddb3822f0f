"""An element on which a function raises is failed on, left out or sent aside; no other is lost or doubled."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import ManualClock
from asyncstream.errors import PipelineError, UserFunctionError
from asyncstream.operators.base import Operator
from asyncstream.operators.basic import Branch, Filter, FlatMap, Map
from asyncstream.operators.failures import FAILED, Failures, OnError
from asyncstream.operators.functions import FailedCall
from tests.operators.recorder import Recorder, record


class Poison(Exception):
    pass


Make = Callable[[Callable[[Any], Any], OnError], Operator]

PER_ELEMENT: dict[str, tuple[Make, Callable[[int], Any], Callable[[int], list[Any]]]] = {
    "map": (Map, lambda value: value * 2, lambda value: [value * 2]),
    "filter": (Filter, lambda value: value % 3, lambda value: [value] if value % 3 else []),
    "branch": (Branch, lambda value: value % 3 == 0, lambda value: [value]),
    "flat_map": (FlatMap, lambda value: range(value % 4), lambda value: list(range(value % 4))),
}
"""By name: the operator, a function for it, and what comes out for an element, whichever output it takes."""


def joined(operator: Operator, *tags: str) -> Recorder:
    """One recorder behind all outputs, so that it sees their common order."""
    recorder = record(operator, ManualClock(1_000))
    operator.side.update(dict.fromkeys(tags, recorder))
    return recorder


@pytest.mark.parametrize("kind", PER_ELEMENT)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=20),
    st.integers(1, 6),
    st.sampled_from(["skip", "route"]),
    st.booleans(),
)
def test_failures_leave_the_others_as_they_are(
    kind: str, elements: list[tuple[int, bool]], size: int, on_error: OnError, stamped: bool
) -> None:
    make, plain, results = PER_ELEMENT[kind]
    called: list[int] = []

    def function(place: int) -> Any:
        called.append(place)
        value, fails = elements[place]
        if fails:
            raise Poison(place)
        return plain(value)

    # elements are known by their place; only a map and a flat map change them
    operator = make(function, on_error)
    recorder = joined(operator, FAILED, Branch.OTHERS)
    places = range(len(elements))
    for start in range(0, len(elements), size):
        part = list(places[start : start + size])
        operator.process_batch(part, [place * 10 for place in part] if stamped else None)

    assert called == list(places)
    expected: list[tuple[Any, int | None]] = []
    for place, (value, fails) in enumerate(elements):
        stamp = place * 10 if stamped else None
        if not fails:
            keeps = kind in ("filter", "branch")
            expected += [(place if keeps else result, stamp) for result in results(value)]
        elif on_error == "route":
            expected.append((place, stamp))
    seen = [(v.value if isinstance(v, FailedCall) else v, stamp) for v, stamp in recorder.seen]
    if kind == "branch":  # the two outputs take turns by batch
        seen, expected = sorted(seen), sorted(expected)
    assert seen == expected
    failed = sum(fails for _, fails in elements)
    assert operator.metrics() == {"failed": failed, "skipped": failed if on_error == "skip" else 0}
    assert operator.counters() == ("failed", "skipped")


def poisoned(value: Any) -> Any:
    raise Poison


@pytest.mark.parametrize("make", [Map, Filter, Branch, FlatMap])
def test_routed_element_says_what_happened_and_when(make: Make) -> None:
    operator = make(poisoned, "route")
    recorder = joined(operator, FAILED)
    operator.process("x", 7)

    ((failed, timestamp),) = recorder.seen
    assert isinstance(failed.error, Poison)
    assert timestamp == 7
    assert (failed.value, failed.attempts, failed.timestamp) == ("x", 1, 7)
    assert (failed.first_ms, failed.last_ms) == (1_000, 1_000)


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("make", [Map, Filter, FlatMap])
def test_what_is_no_exception_ends_the_job_whatever_was_chosen(
    make: Make, error: type[BaseException]
) -> None:
    def function(value: int) -> Any:
        if value == 2:
            raise error
        return [value]

    operator = make(function, "skip")
    recorder = joined(operator)
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - which one, the next line says
        operator.process_batch([1, 2, 3], None)
    assert error in (type(caught.value), type(caught.value.__cause__))
    assert len(recorder.values()) == 1


class Broken(Recorder):
    def process_batch(self, values: Any, timestamps: Any) -> None:
        raise ValueError("downstream")


@pytest.mark.parametrize("make", [Map, Filter, FlatMap])
def test_error_of_an_operator_downstream_is_not_taken_for_one_of_the_function(make: Make) -> None:
    operator = make(lambda value: [value], "skip")
    joined(operator)
    operator.out = Broken()
    with pytest.raises(ValueError, match="downstream"):
        operator.process_batch([1, 2], None)
    assert operator.metrics()["failed"] == 0


def test_without_a_choice_nothing_is_counted() -> None:
    assert Map(str).metrics() == {}
    assert Map(str).counters() == ()


def test_choice_is_checked() -> None:
    with pytest.raises(PipelineError, match="on_error: expected one of 'fail', 'skip', 'route', got 'drop'"):
        Failures(Operator(), "drop")  # type: ignore[arg-type]


# ---------------------------------------------------------------------- results that are no values


async def asked(value: object) -> bool:
    return True


async def streamed(value: object) -> AsyncIterator[bool]:
    yield True


def yielded(value: object) -> Iterator[bool]:
    yield True


class Later:
    def __await__(self) -> Iterator[Any]:
        return iter(())


@pytest.fixture
def strict() -> Iterator[None]:
    """A coroutine that nobody awaited is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("result", [asked, streamed, lambda value: Later()])
@pytest.mark.parametrize("make", [Map, Filter, Branch, FlatMap])
@pytest.mark.parametrize("on_error", ["fail", "skip", "route"])
@pytest.mark.parametrize("bad", [0, 2])
def test_result_that_is_still_to_be_awaited_is_refused(
    make: Make, result: Callable[[Any], Any], on_error: OnError, bad: int
) -> None:
    operator = make(lambda value: result(value) if value >= bad else [value], on_error)
    recorder = joined(operator)
    with pytest.raises(UserFunctionError, match=r"must return its result, got .*async") as caught:
        operator.process_batch([0, 1, 2, 3], None)
    assert caught.value.element == bad
    assert len(recorder.seen) == bad
    with pytest.raises(UserFunctionError, match="must return its result"):
        operator.process(3, None)


@pytest.mark.parametrize("make", [Map, Filter])
def test_generator_in_place_of_a_value_is_refused(make: Make) -> None:
    operator = make(yielded, "fail")
    joined(operator)
    with pytest.raises(UserFunctionError, match="must return its result, got <generator"):
        operator.process_batch([1], None)


@pytest.mark.usefixtures("strict")
def test_map_that_has_proven_itself_is_still_looked_at() -> None:
    operator = Map(lambda value: asked(value) if value < 0 else value)
    joined(operator)
    for _ in range(3):
        operator.process_batch(list(range(1000)), None)
    with pytest.raises(UserFunctionError, match="use async_map"):
        operator.process_batch([-1, 1], None)


def test_verdict_that_was_never_given_is_refused() -> None:
    class Half:
        def __eq__(self, other: object) -> Any:
            return NotImplemented

        __hash__ = None  # type: ignore[assignment]

    operator = Filter(lambda value: value.__eq__(1))
    recorder = joined(operator)
    with pytest.raises(UserFunctionError, match="got NotImplemented"):
        operator.process_batch([1, Half()], None)
    assert recorder.values() == [1]


class Undecided:
    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


def test_verdict_that_cannot_be_read_is_the_failure_of_its_element() -> None:
    operator = Filter(lambda value: Undecided() if value == 2 else value, "route")
    recorder = joined(operator, FAILED)
    operator.process_batch([1, 2, 3, 0], [10, 20, 30, 40])
    assert [(v.value if isinstance(v, FailedCall) else v, stamp) for v, stamp in recorder.seen] == [
        (1, 10),
        (2, 20),
        (3, 30),
    ]
