"""Chains of steps of any length run, or are refused before they do; none ends in an error of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    Count,
    KeyedContext,
    KeyedProcessFunction,
    Pipeline,
    PipelineError,
    TumblingWindows,
    UserFunctionError,
)
from asyncstream.operators.emitting import Emitter
from asyncstream.pipeline import Stream


class PassOn(KeyedProcessFunction[Any, Any]):
    def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out(value)
        ctx.register_event_timer(1)

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None: ...


def first_of_branch(stream: Stream[Any]) -> Stream[Any]:
    main, others = stream.branch(lambda value: True)
    others.discard()
    return main


async def call(value: Any) -> Any:
    return value


def timed(stream: Stream[Any]) -> Stream[Any]:
    return stream.event_time(lambda value: 5, BoundedOutOfOrderness(0))


STEPS: dict[str, Callable[[Stream[Any]], Stream[Any]]] = {
    "map": lambda stream: stream.map(lambda value: value),
    "filter": lambda stream: stream.filter(lambda value: True),
    "flat_map": lambda stream: stream.flat_map(lambda value: [value]),
    "branch": first_of_branch,
    "event_time": timed,
    "process": lambda stream: stream.key_by(lambda value: 0).process(PassOn()),
    "window": lambda stream: (
        stream.event_time(lambda value: 5, BoundedOutOfOrderness(0))
        .window_all(TumblingWindows(1))
        .aggregate(n=Count())
    ),
    "async": lambda stream: stream.async_map(call, concurrency=1),
}


def chained(kind: str, length: int) -> tuple[Pipeline, list[Any]]:
    done: list[Any] = []
    pipeline = Pipeline()
    stream: Stream[Any] = pipeline.source([1, 2])
    if kind == "union":  # with watermarks, which take more calls than elements
        stream, other = timed(stream), timed(pipeline.source([]))
    for _ in range(length):
        stream = stream.union(other) if kind == "union" else STEPS[kind](stream)
    stream.to(done)
    return pipeline, done


def is_allowed(kind: str, length: int) -> bool:
    try:
        chained(kind, length)[0].start()
    except PipelineError:
        return False
    return True


@pytest.mark.parametrize("kind", ["branch", "event_time", "process", "window", "union"])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_longest_chain_that_is_allowed_runs(kind: str) -> None:
    shortest, longest = 10, 1000
    while longest - shortest > 1:
        middle = (shortest + longest) // 2
        shortest, longest = (middle, longest) if is_allowed(kind, middle) else (shortest, middle)
    pipeline, done = chained(kind, shortest)
    await pipeline.run()
    assert len(done) == (1 if kind == "window" else 2)


def test_chain_that_is_too_long_names_its_step_and_what_to_do() -> None:
    pipeline, _ = chained("process", 500)
    with pytest.raises(PipelineError, match=r"step 'process-\d+': too many steps in a row"):
        pipeline.start()


@pytest.mark.parametrize("kind", ["map", "filter", "flat_map", "async"])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_steps_without_memory_and_async_ones_chain_for_ever(kind: str) -> None:
    pipeline, done = chained(kind, 1500 if kind != "async" else 300)
    await pipeline.run()
    assert done == [1, 2]
    assert pipeline.describe()
    assert pipeline.describe("mermaid")


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_single_elements_go_through_a_long_chain_too() -> None:
    done: list[Any] = []
    pipeline = Pipeline()
    failed: Stream[Any] = pipeline.source([0]).map(lambda value: 1 // value, on_error="route")
    stream: Stream[Any] = failed.failed.map(lambda call: call.value)
    failed.discard()
    for _ in range(1200):
        stream = stream.map(lambda value: value + 1)
    stream.filter(lambda value: True).to(done)
    await pipeline.run()
    assert done == [1200]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_failures_all_along_a_chain_leave_the_others_in_order() -> None:
    def fails_at(bad: int) -> Callable[[int], int]:
        def function(value: int) -> int:
            if value == bad:
                raise ValueError
            return value

        return function

    done: list[int] = []
    pipeline = Pipeline()
    stream: Stream[int] = pipeline.source(range(200))
    for bad in range(0, 200, 2):
        stream = stream.map(fails_at(bad), on_error="skip")
    stream.to(done)
    await pipeline.run()
    assert done == list(range(1, 200, 2))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_function_that_calls_itself_too_often_is_blamed_on_its_step() -> None:
    def endless(value: int) -> int:
        return endless(value)

    pipeline = Pipeline()
    pipeline.source([1]).map(endless, name="endless").discard()
    with pytest.raises(UserFunctionError, match="step 'endless': RecursionError"):
        await pipeline.run()
