"""What is said to those who know the words of another framework, or leave out what a class is there for."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest

from asyncstream import (
    AsyncFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    Pipeline,
    PipelineError,
    TumblingWindows,
)
from asyncstream.pipeline import KeyedStream, SideStreams
from asyncstream.pipeline.joined import Join
from asyncstream.pipeline.keyed import WindowedStream
from asyncstream.pipeline.missing_methods import PIPELINE_WORDS, WORDS
from asyncstream.windowing import AggregateFunction, ProcessWindowFunction, WindowAssigner


@pytest.mark.parametrize("word", WORDS)
def test_word_of_another_framework_is_answered_with_methods_that_there_are(word: str) -> None:
    keyed: Any = Pipeline().source([1]).key_by(str)
    with pytest.raises(AttributeError, match="; here it is ") as caught:
        getattr(keyed, word)
    for method in re.findall(r"\.(\w+)\(", str(caught.value)):
        assert any(hasattr(kind, method) for kind in (SideStreams, KeyedStream, WindowedStream, Join)), method


@pytest.mark.parametrize("word", PIPELINE_WORDS)
def test_word_for_a_pipeline_is_answered_with_methods_of_ours(word: str) -> None:
    with pytest.raises(
        AttributeError, match=r"'Pipeline' object has no attribute '\w+'; here it is "
    ) as caught:
        getattr(Pipeline(), word)
    for method in re.findall(r"\.(\w+)\(", str(caught.value)):
        assert hasattr(Pipeline, method)


@pytest.mark.parametrize("method", ["run", "start", "describe"])
def test_method_of_the_pipeline_is_not_sought_in_vain_on_a_stream(method: str) -> None:
    with pytest.raises(AttributeError, match=f"'{method}'; it is a method of the pipeline$"):
        getattr(Pipeline().source([1]), method)


def test_word_for_a_pipeline_that_a_stream_is_asked_for_is_told_whose_it_is() -> None:
    stream: Any = Pipeline().source([1])
    with pytest.raises(AttributeError, match=r"here it is await pipeline.run\(\), .* of the pipeline$"):
        _ = stream.execute


def test_word_of_another_framework_behind_windows_asks_for_what_to_compute() -> None:
    windows: Any = Pipeline().source([1]).key_by(str).window(TumblingWindows(1))
    with pytest.raises(
        AttributeError, match=r"no attribute 'sum'; say first what to compute of the windows: "
    ):
        _ = windows.sum


FUNCTIONS: dict[type[Any], str] = {
    KeyedProcessFunction: "stream.key_by(...).process(...)",
    KeyedCoProcessFunction: "a.connect(b).process(...)",
    KeyedBroadcastProcessFunction: "a.connect(b.broadcast()).process(...)",
    ProcessWindowFunction: "stream.window(...).process(...)",
}


@pytest.mark.parametrize(("wanted", "given"), list(permutations(FUNCTIONS, 2)))
def test_process_function_of_another_kind_is_told_its_step(wanted: type[Any], given: type[Any]) -> None:
    stream: Any = Pipeline().source([1]).key_by(str)
    step = {
        KeyedProcessFunction: stream,
        KeyedCoProcessFunction: stream.connect(stream),
        KeyedBroadcastProcessFunction: stream.connect(stream.broadcast()),
        ProcessWindowFunction: stream.window(TumblingWindows(1)),
    }[wanted]
    told = f"a {given.__name__} belongs in {FUNCTIONS[given]}"
    with pytest.raises(PipelineError, match=f"expected a {wanted.__name__}, .*; {re.escape(told)}$"):
        step.process(given())


class Nothing(KeyedProcessFunction[int, int]):
    """It has a name for its method that is not ours."""

    def process(self, value: int, ctx: Any, out: Any) -> None:
        out(value)


class OneSide(KeyedCoProcessFunction[int, int, int]):
    def process_left(self, value: int, ctx: Any, out: Any) -> None:
        out(value)


class OfElements(KeyedBroadcastProcessFunction[int, int, int]):
    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        out(value)


class Unfolded(AggregateFunction[int, int]):
    def create(self) -> int:
        return 0

    def add(self, accumulator: int, value: int) -> int:
        return accumulator + value


class Unmade(ProcessWindowFunction[int]):
    pass


class Unasked(AsyncFunction[int, int]):
    pass


MISSING: dict[str, tuple[Callable[[Any], object], str]] = {
    "process": (lambda k: k.process(Nothing()), "function: expected one that overrides process_element, got"),
    "connect": (lambda k: k.connect(k).process(OneSide()), "overrides process_right, got"),
    "broadcast": (
        lambda k: k.connect(k.broadcast()).process(OfElements()),
        "overrides process_broadcast, got",
    ),
    "aggregate": (lambda k: k.window(TumblingWindows(1)).aggregate(Unfolded()), "overrides result, got"),
    "aggregates": (lambda k: k.window(TumblingWindows(1)).aggregate(n=Unfolded()), "n: expected one that"),
    "window": (lambda k: k.window(TumblingWindows(1)).process(Unmade()), "overrides process, got"),
    "assigner": (lambda k: k.window(WindowAssigner()).collect(), "overrides assign, got"),
    "async_map": (lambda k: k.async_map(Unasked()), "fn: expected one that overrides invoke, got"),
}


@pytest.mark.parametrize("case", MISSING)
def test_class_without_the_method_that_it_is_there_for_is_refused_when_the_pipeline_is_built(
    case: str,
) -> None:
    build, message = MISSING[case]
    with pytest.raises(PipelineError) as caught:
        build(Pipeline().source([1]).key_by(str))
    assert message in str(caught.value)
