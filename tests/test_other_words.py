"""What is said to a function that asks its context, its state or its `out` in words of another framework."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from asyncstream import (
    BroadcastContext,
    KeyedContext,
    KeyedProcessFunction,
    ListDescriptor,
    MapDescriptor,
    Pipeline,
    ProcessWindowFunction,
    TumblingWindows,
    UserFunctionError,
    ValueDescriptor,
    WindowContext,
)
from asyncstream.operators.emitting import BufferedEmitter
from asyncstream.operators.process import KeyedFunction
from asyncstream.other_words import WORDS, word_for
from asyncstream.state import AggregatingState, ListState, MapState, ReducingState, ValueState
from asyncstream.testing import harness
from asyncstream.windowing import TriggerContext

CLASSES: tuple[type, ...] = (
    KeyedContext,
    BroadcastContext,
    WindowContext,
    TriggerContext,
    ValueState,
    ListState,
    MapState,
    ReducingState,
    AggregatingState,
    KeyedFunction,
)
KINDS: dict[str, Any] = {kind.__name__: kind for kind in CLASSES} | {
    "BufferedEmitter.emit": BufferedEmitter.emit
}


@pytest.mark.parametrize("name", WORDS)
def test_word_is_missing_there_and_what_it_is_called_here_is_not(name: str) -> None:
    kind = KINDS[name]
    there = {attribute.replace("_", "").lower() for attribute in dir(kind) if not attribute.startswith("_")}
    assert not there & set(WORDS[name])
    for here in WORDS[name].values():
        for attribute in re.findall(r"^(?:ctx|state)\.(\w+)", here):
            assert hasattr(kind, attribute), here


class Asks(KeyedProcessFunction[int, int]):
    def __init__(self, ask: Callable[[Any, Any, Any], object]) -> None:
        self.ask = ask

    def process_element(self, value: int, ctx: KeyedContext, out: Any) -> None:
        self.ask(self, ctx, out)


ASKED: dict[str, tuple[Callable[[Any, Any, Any], object], str]] = {
    "timer": (lambda self, ctx, out: ctx.timer_service(), "ctx.register_event_timer(timestamp)"),
    "timer in Java": (
        lambda self, ctx, out: ctx.registerEventTimeTimer(5),
        "ctx.register_event_timer(timestamp)",
    ),
    "out": (lambda self, ctx, out: out.collect(1), "out(value)"),
    "value": (
        lambda self, ctx, out: ctx.state(ValueDescriptor("n")).value(),
        "state.get()",
    ),
    "list": (
        lambda self, ctx, out: ctx.state(ListDescriptor("n")).append(1),
        "state.add(value)",
    ),
    "map": (lambda self, ctx, out: ctx.state(MapDescriptor("n")).keys(), "list(state)"),
    "runtime": (lambda self, ctx, out: self.get_runtime_context(), "the ctx that open is given"),
}


@pytest.mark.parametrize("case", ASKED)
def test_function_that_asks_in_other_words_is_told_ours(case: str) -> None:
    ask, here = ASKED[case]
    with harness(Asks(ask), key_by=str) as tested, pytest.raises(UserFunctionError) as caught:
        tested.push(1, at=1)
    said = re.search("has no attribute '.*'; here it is (.*), on element 1$", str(caught.value))
    assert said is not None
    assert said[1] == here


def test_so_is_one_that_asks_while_it_is_opened() -> None:
    class Opens(Asks):
        def open(self, ctx: Any) -> None:
            ctx.get_state(ValueDescriptor("n"))

    pipeline = Pipeline()
    pipeline.source([1]).key_by(str).process(Opens(print)).discard()
    with pytest.raises(UserFunctionError, match=r"; here it is ctx\.state\(descriptor\), when it was op"):
        pipeline.run_blocking()


def test_so_is_one_of_windows() -> None:
    class Asking(ProcessWindowFunction[int]):
        def process(self, key: Any, contents: Any, ctx: Any, out: Any) -> None:
            ctx.output("late", 1)

    with harness(Asking(), key_by=str, window=TumblingWindows(1)) as tested:
        tested.push(1, at=1)
        with pytest.raises(UserFunctionError, match=r"; here it is ctx\.side\(tag, value\), on TimeWindow"):
            tested.advance(5000)


class ValueStore:
    """One of the user's."""


def test_of_objects_of_the_user_nothing_is_known() -> None:
    ValueStore.__qualname__ = "ValueState"
    with pytest.raises(AttributeError) as caught:
        ValueStore().value  # type: ignore[attr-defined]  # noqa: B018
    assert word_for(caught.value) is None
    assert word_for(AttributeError("of no object")) is None
