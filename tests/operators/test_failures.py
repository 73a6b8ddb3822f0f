"""An element on which a function raises is failed on, left out or sent aside; no other is lost or doubled."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import (
    BoundedOutOfOrderness,
    Count,
    ManualClock,
    NoWatermarks,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
)
from asyncstream.errors import PipelineError, UserFunctionError
from asyncstream.operators.base import Operator
from asyncstream.operators.basic import Branch, CheckKey, Filter, FlatMap, Map
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.failures import FAILED, Failures, OnError
from asyncstream.operators.functions import FailedCall
from asyncstream.operators.keyed_context import KeyedContext
from asyncstream.operators.process import KeyedProcessFunction, KeyedProcessOperator
from asyncstream.operators.timestamps import AssignEventTime
from asyncstream.state import ValueDescriptor
from asyncstream.windowing import WindowPlan, window_operator
from asyncstream.windowing.policies import policy_window
from tests.operators.recorder import Recorder, W, record


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


# ---------------------------------------------------------------------- event time, keys, process functions


def test_element_without_a_time_leaves_the_stream_and_moves_no_watermark() -> None:
    stamps: dict[str, Any] = {"a": 10, "b": "soon", "c": 30, "d": None, "e": 20, "f": 40}
    for batch in (1, 2, 6):
        operator = AssignEventTime(stamps.__getitem__, BoundedOutOfOrderness(5, every=0), on_error="route")
        recorder = joined(operator, FAILED)
        names = [*stamps, "g"]
        for start in range(0, len(names), batch):
            operator.process_batch(names[start : start + batch], None)

        assert [v.value if isinstance(v, FailedCall) else v for v, *_ in recorder.seen if v != W] == names
        # both outputs are told of watermarks
        assert [*dict.fromkeys(entry for entry in recorder.seen if not isinstance(entry[0], FailedCall))] == [
            ("a", 10),
            (W, 10 - 5001),
            ("c", 30),
            (W, 30 - 5001),
            ("e", 20),
            ("f", 40),
            (W, 40 - 5001),
        ]
        assert operator.metrics() == {"failed": 3, "skipped": 0}


@pytest.mark.usefixtures("strict")
def test_time_that_is_still_to_be_awaited_ends_the_job() -> None:
    operator = AssignEventTime(asked, NoWatermarks(), on_error="skip")  # type: ignore[arg-type]
    joined(operator)
    with pytest.raises(UserFunctionError, match="must return its result"):
        operator.process_batch([1], None)


class Picky(KeyedProcessFunction[Any, Any]):
    """Emits on both sides, counts, and then fails on some."""

    def open(self, ctx: KeyedContext) -> None:
        self.seen = ctx.state(ValueDescriptor[int]("seen", default=0))

    def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.seen.set((self.seen.get() or 0) + 1)
        out((value, self.seen.get()))
        ctx.side("aside", value)
        if value % 3 == 0:
            raise Poison(value)
        out(value)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        raise Poison("timer")


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_of_an_element_that_fails_nothing_is_emitted_and_its_state_stays(batch: int) -> None:
    operator = KeyedProcessOperator(lambda value: 1 // (value - 5) * 0, Picky(), "route")
    recorder = joined(operator, FAILED, "aside")
    values = [1, 2, 3, 4, 5, 7, 6]
    for start in range(0, len(values), batch):
        part = values[start : start + batch]
        operator.process_batch(part, part)

    assert [v.value if isinstance(v, FailedCall) else v for v, _ in recorder.seen] == [
        *((1, 1), 1, 1),
        *((2, 2), 2, 2),
        3,
        *((4, 4), 4, 4),
        5,  # which has no key
        *((7, 5), 7, 7),
        6,
    ]
    assert operator.metrics()["failed"] == 3


def test_timer_that_fails_ends_the_job_whatever_was_chosen() -> None:
    class Timed(Picky):
        def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
            ctx.register_event_timer(5)

    operator = KeyedProcessOperator(lambda value: 0, Timed(), "skip")
    joined(operator)
    operator.process(1, 1)
    with pytest.raises(UserFunctionError, match="Poison: timer"):
        operator.advance_watermark(5)


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_side_output_that_is_not_read_is_refused_at_its_first_element(on_error: OnError) -> None:
    operator = KeyedProcessOperator(lambda value: 0, Picky(), on_error)
    joined(operator)
    with pytest.raises(UserFunctionError, match=r"nothing reads the side output 'aside'.*\.discard\(\)"):
        operator.process_batch([1], None)


def test_downstream_of_a_side_output_fails_past_the_function_that_feeds_it() -> None:
    class Careless(KeyedProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
            with suppress(Exception):
                ctx.side("aside", value)

    class BrokenAside(Recorder):
        def process(self, value: Any, timestamp: int | None) -> None:
            raise ValueError("downstream")

    operator = KeyedProcessOperator(lambda value: 0, Careless(), "skip")
    joined(operator)
    operator.side["aside"] = BrokenAside()
    with pytest.raises(ValueError, match="downstream"):
        operator.process_batch([1], None)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("name", ["process_element", "on_timer"])
@pytest.mark.parametrize("result", [asked, yielded, streamed])
def test_process_function_that_does_nothing_unless_awaited_is_refused(
    name: str, result: Callable[[Any], Any]
) -> None:
    class Timed(KeyedProcessFunction[Any, Any]):
        def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
            ctx.register_event_timer(5)

    function = Timed()
    setattr(function, name, lambda *_: result(0))
    operator = KeyedProcessOperator(lambda value: 0, function, "skip")
    joined(operator)
    with pytest.raises(UserFunctionError, match="must return its result"):  # noqa: PT012 - one of the two
        operator.process(1, 1)
        operator.advance_watermark(5)


KEYED: dict[str, Callable[[Callable[[Any], Any], OnError], Operator]] = {
    "process": lambda key, on_error: KeyedProcessOperator(key, Picky(), on_error),
    "tumbling": lambda key, _: window_operator(key, WindowPlan(TumblingWindows(1), aggregate=Count())),
    "sliding": lambda key, _: window_operator(key, WindowPlan(SlidingWindows(2, 1), aggregate=Count())),
    "session": lambda key, _: window_operator(key, WindowPlan(SessionWindows(1), aggregate=Count())),
    "collect": lambda key, _: window_operator(key, WindowPlan(TumblingWindows(1))),
    "policy": lambda key, _: policy_window(2, 1, key_by=key),
    "check": lambda key, on_error: CheckKey(key, on_error),
}


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize("kind", KEYED)
def test_key_that_is_still_to_be_awaited_is_refused(kind: str) -> None:
    operator = KEYED[kind](lambda value: asked(value), "skip")
    recorder = joined(operator, "aside")
    with pytest.raises(UserFunctionError, match="find it in an async_map before key_by"):
        operator.process_batch([1, 2], [1, 2])
    assert recorder.seen == []


@pytest.mark.parametrize("kind", KEYED)
def test_key_without_a_hash_is_answered_with_what_has_one(kind: str) -> None:
    operator = KEYED[kind](lambda value: [value], "fail")
    joined(operator, "aside")
    told = r"must be hashable, got \[1\]: .*; have key_by return a text, a number, or a tuple of such"
    with pytest.raises(UserFunctionError, match=told):
        operator.process_batch([1, 2], [1, 2])


def test_key_function_is_called_as_it_is_once_it_has_given_a_key() -> None:
    def key(value: Any) -> Any:
        return 0

    operator = KeyedProcessOperator(key, Timeless())
    joined(operator)
    operator.process(1, 1)
    assert operator._key_by is key


class Timeless(KeyedProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out(value)


def test_element_without_a_key_leaves_the_stream() -> None:
    operator = CheckKey(lambda value: [[], 1 // value][value % 2], "route")
    recorder = joined(operator, FAILED)
    operator.process_batch([1, 2, 3], [10, 20, 30])
    assert [(v.value if isinstance(v, FailedCall) else v, stamp) for v, stamp in recorder.seen] == [
        (1, 10),
        (2, 20),
        (3, 30),
    ]
    assert operator.metrics()["failed"] == 1
