from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncstream import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    Pattern,
    TumblingWindows,
)
from asyncstream.elements import EndOfInput, IdleStatus, Watermark
from asyncstream.errors import HttpError, InternalError, StateError, UserFunctionError
from asyncstream.operators.base import DISCARD, Fanout, Operator, OperatorContext, pairs
from asyncstream.testing import harness
from tests.operators.recorder import END, IDLE, Recorder, W, record


def test_operator_passes_everything_on_unchanged() -> None:
    operator = Operator()
    recorder = record(operator)
    operator.process("a", None)
    operator.process("b", 5)
    operator.process_batch(["c", "d"], [6, None])
    operator.advance_watermark(4)
    operator.set_idle(True)
    operator.advance_clock(99)
    operator.end_input()
    assert recorder.seen == [("a", None), ("b", 5), ("c", 6), ("d", None), (W, 4), (IDLE, True), (END,)]


def test_control_elements_go_to_all_outputs_and_elements_to_the_main_one() -> None:
    operator, side = Operator(), Recorder()
    operator.side["tag"] = side
    recorder = record(operator)
    operator.process(1, None)
    for control in (Watermark(3), IdleStatus(True), EndOfInput()):
        operator.pass_on(control)
    assert side.seen == [(W, 3), (IDLE, True), (END,)]
    assert recorder.seen == [(1, None), *side.seen]
    assert operator.side_output("tag") is side
    assert operator.side_output("nobody reads it") is DISCARD


def test_discard_takes_everything_and_leads_nowhere() -> None:
    DISCARD.process(1, 2)
    DISCARD.process_batch([1], None)
    DISCARD.advance_watermark(1)
    DISCARD.set_idle(True)
    DISCARD.end_input()
    assert not hasattr(DISCARD, "out")


def test_fanout_gives_every_reader_the_same_in_order() -> None:
    readers = [Recorder(), Recorder()]
    fanout = Fanout(readers)
    fanout.process(1, 2)
    fanout.process_batch([2, 3], None)
    fanout.advance_watermark(5)
    fanout.set_idle(True)
    fanout.end_input()
    assert readers[0].seen == [(1, 2), (2, None), (3, None), (W, 5), (IDLE, True), (END,)]
    assert readers[1].seen == readers[0].seen


@pytest.mark.parametrize(
    "error", [ValueError("x"), StopIteration(), HttpError("u", 500, "r", retryable=True)]
)
def test_blame_names_step_and_element_and_keeps_the_cause(error: Exception) -> None:
    operator = Operator()
    operator.open(OperatorContext("step"))
    blamed = operator.blame(7, error)
    assert isinstance(blamed, UserFunctionError)
    assert (blamed.step, blamed.element) == ("step", 7)
    assert blamed.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [UserFunctionError("other", 1, ValueError()), InternalError("x"), KeyboardInterrupt(), SystemExit()],
)
def test_blame_leaves_alone_what_is_not_the_fault_of_this_step(error: BaseException) -> None:
    assert Operator().blame(7, error) is error


class Nothing(KeyedProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        pass


class NothingOfTwo(KeyedCoProcessFunction[Any, Any, Any]):
    def process_left(self, value: Any, ctx: Any, out: Any) -> None:
        pass

    process_right = process_left


class NothingForAll(KeyedBroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        pass

    process_broadcast = process_element


def fails_with_state(value: Any) -> Any:
    raise StateError("lost") from OSError("the disk")


def is_interrupted(value: Any) -> Any:
    raise KeyboardInterrupt from OSError("the disk")


@pytest.mark.parametrize("fails", [fails_with_state, is_interrupted])
@pytest.mark.parametrize(
    "step",
    [
        lambda stream, fails: stream.map(fails),
        lambda stream, fails: stream.deduplicate(fails),
        lambda stream, fails: stream.key_by(fails).process(Nothing()),
        lambda stream, fails: stream.key_by(fails).reduce(max),
        lambda stream, fails: stream.key_by(fails).top(1, max),
        lambda stream, fails: stream.key_by(max).pattern(Pattern.begin("one", fails)),
        lambda stream, fails: stream.key_by(fails).window(TumblingWindows(1)).collect(),
        lambda stream, fails: stream.key_by(fails).join(stream.key_by(max)).within(1, 1),
        lambda stream, fails: stream.key_by(fails).as_of(stream.key_by(max)),
        lambda stream, fails: stream.lookup(stream.as_table(max), fails),
    ],
)
def test_what_stays_what_it_is_keeps_its_cause(step: Any, fails: Any) -> None:
    def play() -> None:
        with harness(lambda stream: step(stream, fails)) as tested:
            tested.push((1,), at=1)
            tested.advance(5)

    with pytest.raises((StateError, KeyboardInterrupt)) as raised:
        play()
    assert isinstance(raised.value.__cause__, OSError)


def fails_from_two_on(value: Any) -> Any:
    if value["n"] >= 2:
        raise LookupError("no key")
    return value["n"]


KEYED: dict[str, Callable[[Any, Any], Any]] = {
    "deduplicate": lambda stream, key: stream.deduplicate(key),
    "process": lambda stream, key: stream.key_by(key).process(Nothing()),
    "connect": lambda stream, key: stream.key_by(key).connect(stream.key_by(str)).process(NothingOfTwo()),
    "broadcast": lambda stream, key: stream.key_by(key).connect(stream.broadcast()).process(NothingForAll()),
    "reduce": lambda stream, key: stream.key_by(key).reduce(max),
    "top": lambda stream, key: stream.key_by(key).top(1, max),
    "pattern": lambda stream, key: stream.key_by(key).pattern(Pattern.begin("one", len)),
    "window": lambda stream, key: stream.key_by(key).window(TumblingWindows(1)).collect(),
    "count_window": lambda stream, key: stream.key_by(key).count_window(5).collect(),
    "policy_window": lambda stream, key: stream.key_by(key).policy_window(5),
    "join": lambda stream, key: stream.key_by(key).join(stream.key_by(str)).within(1, 1),
    "as_of": lambda stream, key: stream.key_by(key).as_of(stream.key_by(str)),
}


@pytest.mark.parametrize("key", [fails_from_two_on, "m"], ids=["function", "field"])
@pytest.mark.parametrize("kind", KEYED)
def test_error_of_a_key_function_says_that_it_is_one(kind: str, key: Any) -> None:
    with harness(lambda stream: KEYED[kind](stream, key)) as tested:
        tested.push({"n": 1, "m": 1}, at=1)  # from then on it is called as it is
        with pytest.raises(UserFunctionError, match=r", in its key function, on element {'n': 2}$"):
            tested.push({"n": 2}, at=2)


def test_error_of_another_function_does_not() -> None:
    with harness(lambda stream: stream.key_by(str).reduce(lambda one, other: one + other["m"])) as tested:
        tested.push({"n": 1}, at=1)
        with pytest.raises(UserFunctionError, match=r"^step 'reduce': KeyError: 'm', on element {'n': 1}$"):
            tested.push({"n": 1}, at=2)


def test_an_error_in_a_pattern_has_what_was_raised_as_its_cause() -> None:
    with harness(
        lambda stream: stream.key_by(max).pattern(Pattern.begin("one", lambda one: one / 0))
    ) as tested:
        tested.push((1,), at=1)
        with pytest.raises(UserFunctionError) as raised:
            tested.advance(5)
        assert raised.value.element == (1,)
        assert isinstance(raised.value.__cause__, TypeError)


@pytest.mark.parametrize(
    ("timestamps", "expected"), [(None, [("a", None), ("b", None)]), ([1, None], [("a", 1), ("b", None)])]
)
def test_pairs(timestamps: Any, expected: Any) -> None:
    assert list(pairs(["a", "b"], timestamps)) == expected
