"""Whatever user code raises, and wherever it does, ends the job with that error and the step's name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from asyncstream import (
    AsyncFunction,
    BoundedOutOfOrderness,
    Count,
    KeyedContext,
    KeyedProcessFunction,
    NoWatermarks,
    Pipeline,
    PunctuatedWatermarks,
    SlidingWindows,
    TumblingWindows,
    UserFunctionError,
)
from asyncstream.operators.emitting import Emitter
from asyncstream.pipeline import Stream
from asyncstream.windowing import (
    AggregateFunction,
    CountEvictor,
    EventTimeTrigger,
    ProcessWindowFunction,
)
from tests.runtime.parts import VirtualClock, run

ERRORS: list[BaseException] = [
    ValueError("x"),
    StopIteration("x"),
    StopAsyncIteration("x"),
    asyncio.CancelledError("x"),
    GeneratorExit("x"),
    BaseExceptionGroup("x", [GeneratorExit()]),
    type("Own", (BaseException,), {})("x"),
]
ENDS: list[BaseException] = [KeyboardInterrupt("x"), SystemExit("x")]

Raise = Callable[..., Any]
STEP = "the step"


class InElement(KeyedProcessFunction[Any, Any]):
    def __init__(self, fails: Raise, domain: str) -> None:
        self.fails, self.domain = fails, domain

    def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        if self.domain == "element":
            self.fails()
        elif self.domain == "event":
            ctx.register_event_timer(5)
        else:
            ctx.register_processing_timer(ctx.now_ms + 5)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.fails()


class InResult(AggregateFunction[Any, Any]):
    def __init__(self, fails: Raise, where: str) -> None:
        self.fails, self.where = fails, where

    def _at(self, where: str) -> None:
        if where == self.where:
            self.fails()

    def create(self) -> Any:
        self._at("create")
        return []

    def add(self, accumulator: Any, value: Any) -> Any:
        self._at("add")
        return [*accumulator, value]

    def merge(self, one: Any, other: Any) -> Any:
        self._at("merge")
        return one + other

    def result(self, accumulator: Any) -> Any:
        self._at("result")
        return accumulator


class InWindow(ProcessWindowFunction[Any]):
    def __init__(self, fails: Raise, where: str) -> None:
        self.fails, self.where = fails, where

    def process(self, key: Any, elements: Any, ctx: Any, out: Any) -> None:
        if self.where == "process":
            self.fails()

    def clear(self, key: Any, ctx: Any) -> None:
        if self.where == "clear":
            self.fails()


class InTrigger(EventTimeTrigger):
    def __init__(self, fails: Raise, where: str) -> None:
        self.fails, self.where = fails, where

    def on_element(self, value: Any, timestamp: Any, window: Any, ctx: Any) -> Any:
        if self.where == "on_element":
            self.fails()
        return super().on_element(value, timestamp, window, ctx)

    def on_event_time(self, timestamp: int, window: Any, ctx: Any) -> Any:
        if self.where == "on_event_time":
            self.fails()
        return super().on_event_time(timestamp, window, ctx)

    def clear(self, window: Any, ctx: Any) -> None:
        if self.where == "clear":
            self.fails()


class InEvictor(CountEvictor):
    def __init__(self, fails: Raise, where: str) -> None:
        super().__init__(1)
        self.fails, self.where = fails, where

    def before(self, elements: Any, window: Any) -> Any:
        if self.where == "before":
            self.fails()
        return super().before(elements, window)

    def after(self, elements: Any, window: Any) -> Any:
        if self.where == "after":
            self.fails()
        return super().after(elements, window)


def generator(fails: Raise) -> Callable[[Any], Iterator[Any]]:
    def results(value: Any) -> Iterator[Any]:
        yield value
        fails()

    return results


def timed(stream: Stream[Any]) -> Stream[Any]:
    return stream.event_time(lambda value: value, BoundedOutOfOrderness(0, every=0), name="time")


def keyed(stream: Stream[Any]) -> Any:
    return timed(stream).key_by(lambda value: 0)


def processing(stream: Stream[Any]) -> Any:
    return stream.key_by(lambda value: 0).window(TumblingWindows(0.1, time="processing"))


async def waited(value: Any, fails: Raise) -> Any:
    await asyncio.sleep(0.001)
    fails()


async def late(value: Any) -> None:
    await asyncio.sleep(10)


def in_window(**options: Any) -> Callable[[Stream[Any]], Any]:
    def build(stream: Stream[Any]) -> Any:
        windows = keyed(stream).window(TumblingWindows(0.01))
        for name, option in options.items():
            windows = getattr(windows, name)(option)
        return windows.aggregate(n=Count(), name=STEP)

    return build


def in_aggregate(assigner: Any, where: str, stream: Stream[Any], fails: Raise) -> Any:
    return keyed(stream).window(assigner).aggregate(InResult(fails, where), name=STEP)


def in_function(where: str, stream: Stream[Any], fails: Raise) -> Any:
    return keyed(stream).window(TumblingWindows(0.01)).process(InWindow(fails, where), name=STEP)


def in_trigger(where: str, stream: Stream[Any], fails: Raise) -> Any:
    return in_window(trigger=InTrigger(fails, where))(stream)


def in_evictor(where: str, stream: Stream[Any], fails: Raise) -> Any:
    return in_window(evictor=InEvictor(fails, where))(stream)


PLACES: dict[str, Callable[[Stream[Any], Raise], Any]] = {
    "map": lambda s, f: s.map(f, name=STEP),
    "filter": lambda s, f: s.filter(f, name=STEP),
    "flat_map": lambda s, f: s.flat_map(f, name=STEP),
    "generator of flat_map": lambda s, f: s.flat_map(generator(f), name=STEP),
    "timestamp": lambda s, f: s.event_time(f, NoWatermarks(), name=STEP),
    "watermark": lambda s, f: s.event_time(lambda v: v, PunctuatedWatermarks(f), name=STEP),
    "process_element": lambda s, f: keyed(s).process(InElement(f, "element"), name=STEP),
    "event timer": lambda s, f: keyed(s).process(InElement(f, "event"), name=STEP),
    "processing timer": lambda s, f: keyed(s).process(InElement(f, "processing"), name=STEP),
    "key of process": lambda s, f: s.key_by(f).process(InElement(f, "event"), name=STEP),
    **{
        f"{where} of {type(assigner).__name__}": partial(in_aggregate, assigner, where)
        for where in ("create", "add", "result")
        for assigner in (TumblingWindows(0.01), SlidingWindows(0.02, 0.01))
    },
    "result in processing time": lambda s, f: processing(s).aggregate(InResult(f, "result"), name=STEP),
    **{f"window function's {where}": partial(in_function, where) for where in ("process", "clear")},
    "window function in processing time": lambda s, f: processing(s).process(
        InWindow(f, "process"), name=STEP
    ),
    **{
        f"trigger's {where}": partial(in_trigger, where) for where in ("on_element", "on_event_time", "clear")
    },
    **{f"evictor's {where}": partial(in_evictor, where) for where in ("before", "after")},
    "policy function by count": lambda s, f: timed(s).policy_window(length=2, function=f, name=STEP),
    "policy function by time": lambda s, f: timed(s).policy_window(
        length=timedelta(milliseconds=2), tumbling=True, watermark_interval=0.01, function=f, name=STEP
    ),
    "policy function by clock": lambda s, f: s.policy_window(
        length=timedelta(milliseconds=5), tumbling=True, time="processing", function=f, name=STEP
    ),
    "policy stream_of": lambda s, f: timed(s).policy_window(
        length=2, streams=["a"], stream_of=f, function=repr, name=STEP
    ),
    "policy key": lambda s, f: timed(s).key_by(f).policy_window(length=2, name=STEP),
    "call": lambda s, f: s.async_map(partial(waited, fails=f), name=STEP),
    "on_timeout": lambda s, f: s.async_map(late, timeout=0.01, on_timeout=f, name=STEP),
    "key of a call": lambda s, f: s.key_by(f).async_map(late, order="per_key", name=STEP),
}

AS_CALLS_MAY = {  # Python itself makes a RuntimeError of these when a coroutine or a generator raises them
    ("call", StopIteration),
    ("call", StopAsyncIteration),
    ("generator of flat_map", StopIteration),
}


def job_with(place: str, error: BaseException) -> None:
    def fails(*arguments: Any) -> Any:
        raise error

    async def endless() -> Any:
        for number in range(100):
            yield number
            await asyncio.sleep(0.001)
        await asyncio.sleep(1000)

    async def main() -> None:
        pipeline = Pipeline()
        PLACES[place](pipeline.source(endless(), name="in"), fails).to([], name="out")
        async with asyncio.timeout(100):
            await pipeline.run(clock=VirtualClock())

    run(main())


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", PLACES)
def test_error_of_any_kind_ends_the_job_and_names_the_step(place: str, error: BaseException) -> None:
    error.__traceback__ = error.__context__ = error.__cause__ = None
    with pytest.raises(UserFunctionError, match=STEP) as raised:
        job_with(place, error)
    cause = raised.value.__cause__
    if (place, type(error)) in AS_CALLS_MAY and isinstance(cause, RuntimeError):
        cause = cause.__cause__
    assert cause is error or type(cause) is type(error)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("place", PLACES)
def test_what_asks_the_process_to_end_goes_up_and_names_the_step(place: str, error: BaseException) -> None:
    with pytest.raises(type(error)):
        job_with(place, error)
    if place != "call":
        assert any(STEP in note for note in getattr(error, "__notes__", ()))
    if hasattr(error, "__notes__"):
        error.__notes__.clear()


class InLife(AsyncFunction[Any, Any]):
    def __init__(self, error: BaseException, moment: str) -> None:
        self.error, self.moment = error, moment

    async def open(self) -> None:
        if self.moment == "opened":
            raise self.error

    async def invoke(self, value: Any) -> Any:
        return value

    async def close(self) -> None:
        if self.moment == "closed":
            raise self.error


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("moment", ["opened", "closed"])
def test_error_of_any_kind_of_what_opens_and_closes_names_the_step(moment: str, error: BaseException) -> None:
    pipeline = Pipeline()
    pipeline.source([1]).async_map(InLife(error, moment), name=STEP).discard()
    with pytest.raises(UserFunctionError, match=f"{STEP}.* when it was {moment}"):
        run(pipeline.run())
