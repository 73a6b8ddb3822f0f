"""Wrong arguments are refused when the pipeline is built: what was expected, what came, what to do."""

from __future__ import annotations

from asyncio import Queue
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple, cast

import polars
import pytest
from pydantic import BaseModel, RootModel

from asyncstream import (
    AscendingTimestamps,
    AsyncFunction,
    BoundedOutOfOrderness,
    Count,
    GlobalWindows,
    GlobSource,
    Items,
    JsonLinesSink,
    JsonLinesSource,
    KeyedContext,
    KeyedProcessFunction,
    Pipeline,
    PipelineError,
    PunctuatedWatermarks,
    ReducingDescriptor,
    TumblingWindows,
)
from asyncstream.connectors.http import HttpLookup
from asyncstream.guards import batched, retry
from asyncstream.pipeline import Stream
from asyncstream.windowing import AggregateFunction, ProcessWindowFunction, PurgingTrigger, Trigger


async def fetch(value: int) -> int:
    return value


async def generate(value: int) -> AsyncIterator[int]:
    yield value


class Lookup(AsyncFunction[int, int]):
    pass


def plain(value: int) -> int:
    return value


def yielding(value: int) -> Iterator[int]:
    yield value


def forgetful(value: Any) -> Any:
    str(value)


def forgets_to_fold(before: Any, value: Any) -> Any:
    before.update(value)


class ForgetfulList(AggregateFunction[Any, Any]):
    def create(self) -> list[Any]:
        return []

    def add(self, accumulator: list[Any], value: Any) -> Any:
        accumulator.append(value)

    def merge(self, accumulator: list[Any], other: list[Any]) -> list[Any]:
        return accumulator + other

    def result(self, accumulator: list[Any]) -> Any:
        return accumulator


class Yielding:
    def __call__(self, value: int) -> Iterator[int]:
        yield value


class Fetch:
    async def __call__(self, value: int) -> int:
        return value

    async def method(self, value: int) -> int:
        return value


ASYNC: dict[str, Any] = {
    "async": fetch,
    "partial": partial(fetch),
    "nested_partial": partial(partial(Fetch())),
    "callable_object": Fetch(),
    "method": Fetch().method,
    "async_generator": generate,
}
"""What gives nothing before it is awaited."""


class AsyncProcess(KeyedProcessFunction[int, int]):
    async def process_element(self, value: int, ctx: KeyedContext, out: Any) -> None:  # type: ignore[override]
        out(value)


class YieldingTimer(KeyedProcessFunction[int, int]):
    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> Any:
        yield timestamp


class Declared(KeyedProcessFunction[int, int]):
    sides = ("alarms",)

    def process_element(self, value: int, ctx: KeyedContext, out: Any) -> None:
        ctx.side("alarms", value)


class OneSide(Declared):
    sides = "alarms"  # type: ignore[assignment]


class NoNames(Declared):
    sides = ("alarms", 5)  # type: ignore[assignment]


class OneSideOfWindows(ProcessWindowFunction[int]):
    sides = "alarms"  # type: ignore[assignment]

    def process(self, key: Any, contents: Any, ctx: Any, out: Any) -> None:
        ctx.side("alarms", key)


class AsyncWindow(ProcessWindowFunction[int]):
    async def process(self, key: Any, contents: Any, ctx: Any, out: Any) -> None:  # type: ignore[override]
        out(1)


class AsyncTrigger(Trigger):
    async def on_element(self, *_: Any) -> Any:  # type: ignore[override]
        return None


class AsyncCount(AggregateFunction[Any, Any]):
    async def add(self, accumulator: Any, value: Any) -> Any:
        return accumulator


def shared_source(pipeline: Pipeline) -> None:
    source = Items([1])
    pipeline.source(source, name="one")
    pipeline.source(source, name="two")


def shared_sink(stream: Stream[int]) -> None:
    sink = JsonLinesSink("never written.jsonl")
    stream.to(sink, name="one")
    stream.to(sink, name="two")


class Seat(NamedTuple):
    row: int


class Order(BaseModel):
    number: int = 5


class Orders(RootModel[list[Order]]):
    def __iter__(self) -> Iterator[Order]:  # type: ignore[override]
        return iter(self.root)


def test_what_is_called_for_what_it_does_may_return_nothing() -> None:
    stream: Any = Pipeline().source([1])
    stream.map(forgetful).to(forgetful)
    stream.key_by(forgetful).reduce(max).discard()  # one key for all


@pytest.mark.parametrize(
    "function", [yielding, Yielding(), partial(yielding)], ids=["def", "object", "partial"]
)
def test_flat_map_takes_what_yields(function: Any) -> None:
    found: list[int] = []
    pipeline = Pipeline()
    pipeline.source([1, 2]).flat_map(function).to(found)
    pipeline.run_blocking()
    assert found == [1, 2]


def test_what_gives_its_elements_in_a_way_of_its_own_is_a_source() -> None:
    found: list[Any] = []
    pipeline = Pipeline()
    for each in (Orders([Order()]), {"a": 1}.items(), {5}, StringIO("a")):
        pipeline.source(each).to(found)
    pipeline.run_blocking()
    assert sorted(map(repr, found)) == sorted(map(repr, [Order(), ("a", 1), 5, "a"]))


Build = Callable[[Any, Any], object]

WRONG: dict[str, tuple[Build, str]] = {
    # sources
    "source_text": (
        lambda p, s: p.source("file.csv"),
        "source: expected a Source, an iterable or an async iterable, got 'file.csv'; for a file "
        "CsvSource('file.csv')",
    ),
    "source_path": (lambda p, s: p.source(Path("a.JSONL")), "; for a file JsonLinesSource('a.JSONL')"),
    "source_of_no_known_ending": (
        lambda p, s: p.source("file"),
        "; for a file CsvSource(path) or JsonLinesSource(path) or ParquetSource(path)",
    ),
    "source_number": (
        lambda p, s: p.source(5),
        "source: expected a Source, an iterable or an async iterable, got 5; or a function that makes one of "
        "these; for a single element give a list of it: [...]",
    ),
    "source_dict": (
        lambda p, s: p.source({"a": 1}),
        "give its .items() or .values() or, if it",
    ),
    "source_bytes": (
        lambda p, s: p.source(bytearray(b"a")),
        "if it is one element, give a list of it: [...]",
    ),
    "source_record": (lambda p, s: p.source(Seat(5)), "it is one element, give a list of it: [...]"),
    "source_model": (lambda p, s: p.source(Order()), "it is one element, give a list of it: [...]"),
    "source_async_def": (lambda p, s: p.source(fetch), "await it before and give what it returns, or write"),
    "source_queue": (lambda p, s: p.source(Queue()), "; for what your program puts in use pipeline.subm"),
    "source_to_collect": (
        lambda p, s: p.source(polars.LazyFrame({"a": [1]})),
        "got <LazyFrame>; call its .collect() and give what it returns",
    ),
    "source_class": (lambda p, s: p.source(Items), "source: expected a Source"),
    "submissions_limit": (
        lambda p, s: p.submissions(limit=0),
        "limit: expected an integer of at least 1, got 0",
    ),
    "pipeline_name": (lambda p, s: Pipeline(""), "name: expected a non-empty text, got ''"),
    # plain steps
    "map_nothing": (lambda p, s: s.map(None), "fn: expected a function, got None"),
    "map_async": (lambda p, s: s.map(fetch), "use async_map or async_flat_map"),
    "filter_async": (lambda p, s: s.filter(fetch), "fn: expected a plain function"),
    "flat_map_result": (lambda p, s: s.flat_map([1]), "fn: expected a function, got [1]"),
    "branch_async": (lambda p, s: s.branch(fetch), "fn: expected a plain function"),
    "name_number": (lambda p, s: s.map(plain, name=5), "name: expected a non-empty text, got 5"),
    "name_empty": (lambda p, s: s.map(plain, name=""), "name: expected a non-empty text, got ''"),
    "name_of_two_lines": (
        lambda p, s: s.map(plain, name="two\nlines"),
        "name: expected a text of printable characters, got 'two\\nlines'",
    ),
    "name_taken": (
        lambda p, s: s.map(plain, name="twice").map(plain, name="twice"),
        "name: two steps are called 'twice'; give one of them another name",
    ),
    "union_nothing": (lambda p, s: s.union(), "union: expected at least one other stream, got none"),
    "union_list": (lambda p, s: s.union([s]), "; give them one by one, not in a list"),
    "union_foreign": (lambda p, s: s.union(Pipeline().source([1])), "belongs to another pipeline"),
    # event time
    "timestamp": (
        lambda p, s: s.event_time(3, AscendingTimestamps()),
        "timestamp: expected a function, got 3; or the name of a field, or of several in a tuple",
    ),
    "timestamp_async": (
        lambda p, s: s.event_time(fetch, AscendingTimestamps()),
        "timestamp: expected a plain function",
    ),
    "watermarks": (
        lambda p, s: s.event_time(plain, 5),
        "watermarks: expected a WatermarkStrategy, got 5; e.g. BoundedOutOfOrderness",
    ),
    "watermarks_class": (
        lambda p, s: s.event_time(plain, AscendingTimestamps),
        "watermarks: expected a Watermark",
    ),
    "idle_after": (
        lambda p, s: s.event_time(plain, AscendingTimestamps(), idle_after=0),
        "idle_after: expected a positive duration, got 0",
    ),
    "key": (lambda p, s: s.key_by(["airline"]), "key: expected a function, got ['airline']"),
    "key_async": (lambda p, s: s.key_by(fetch), "key: expected a plain function"),
    # async steps
    "async_map_plain": (lambda p, s: s.async_map(plain), "use map or flat_map for a plain function"),
    "async_map_lambda": (lambda p, s: s.async_map(lambda value: fetch(value)), "wrap it in an async def"),
    "aggregate_by_a_function": (
        lambda p, s: s.window_all(TumblingWindows(1)).aggregate(len),
        "got <built-in function len>; such as Count(); for a function of two elements use .reduce(fn)",
    ),
    "async_map_class": (
        lambda p, s: s.async_map(Lookup),
        "expected an async def or an AsyncFunction, got <class",
    ),
    "async_generator": (lambda p, s: s.async_flat_map(generate), "expected an async def or an AsyncFunction"),
    "order": (
        lambda p, s: s.async_map(fetch, order="sorted"),
        "order: expected one of 'ordered', 'unordered'",
    ),
    "concurrency": (
        lambda p, s: s.async_map(fetch, concurrency=0),
        "concurrency: expected an integer of at least 1",
    ),
    "buffer": (
        lambda p, s: s.async_map(fetch, concurrency=9, buffer=8),
        "buffer: expected at least the concurrency of 9, got 8",
    ),
    "timeout": (lambda p, s: s.async_map(fetch, timeout=0), "timeout: expected a positive duration, got 0"),
    "timeout_text": (
        lambda p, s: s.async_map(fetch, timeout="5s"),
        "timeout: expected a timedelta or a number of",
    ),
    "on_timeout_alone": (lambda p, s: s.async_map(fetch, on_timeout="skip"), "set timeout="),
    "on_timeout": (
        lambda p, s: s.async_map(fetch, timeout=1, on_timeout="retry"),
        "on_timeout: expected one of 'fail'",
    ),
    "on_timeout_async": (
        lambda p, s: s.async_map(fetch, timeout=1, on_timeout=fetch),
        "on_timeout: expected",
    ),
    "on_error": (
        lambda p, s: s.async_map(fetch, on_error="ignore"),
        "on_error: expected one of 'fail', 'skip', 'route'",
    ),
    "isolation": (
        lambda p, s: s.async_map(fetch, isolation="thread"),
        "isolation: expected one of 'pool', 'task'",
    ),
    "replay": (lambda p, s: s.async_map(fetch, replay="none"), "replay: expected one of 'unfinished', 'all'"),
    "option": (
        lambda p, s: s.async_map(fetch, capacity=5),
        "async_map: there is no option 'capacity'; there are: order, concurrency, buffer",
    ),
    "option_of_threads": (
        lambda p, s: s.thread_map(plain, workers=5),
        "thread_map: there is no option 'workers'; there are: threads, order, buffer, timeout",
    ),
    "option_of_policy_windows": (
        lambda p, s: s.policy_window(length=3, slid=2),
        "policy_window: there is no option 'slid'; there are: function, tumbling, time, lag",
    ),
    "per_key_unkeyed": (
        lambda p, s: s.async_map(fetch, order="per_key"),
        "order: expected a key to go with per_key, got none; put .key_by(...) before the step",
    ),
    "failed_unrouted": (
        lambda p, s: s.async_map(fetch, name="call").failed,
        "step 'call' sends nothing to .failed; give it on_error='route'",
    ),
    "timed_out_unrouted": (
        lambda p, s: s.async_map(fetch, name="call", on_error="route").timed_out,
        "step 'call' sends nothing to .timed_out; give it on_timeout='route'",
    ),
    "on_error_of_map": (
        lambda p, s: s.map(plain, on_error="drop"),
        "on_error: expected one of 'fail', 'skip', 'route'",
    ),
    "on_error_of_key_by": (lambda p, s: s.key_by(plain, on_error=True), "on_error: expected one of"),
    "name_of_key_by": (
        lambda p, s: s.key_by(plain, name="key"),
        "name: expected none, for key_by adds no step",
    ),
    "map_failed_unrouted": (
        lambda p, s: s.map(plain, on_error="skip", name="twice").failed,
        "step 'twice' sends nothing to .failed; give it on_error='route'",
    ),
    # functions that are to be awaited, or iterated over
    **{
        f"{method}_{function}": (
            lambda p, s, method=method, value=value: getattr(s, method)(value),  # type: ignore[misc]
            "expected a plain function, got",
        )
        for method in ("map", "filter", "flat_map", "branch", "key_by")
        for function, value in ASYNC.items()
    },
    "map_generator": (lambda p, s: s.map(yielding), "fn: expected a function that returns, got"),
    "filter_generator": (
        lambda p, s: s.filter(partial(yielding)),
        "fn: expected a function that returns, got",
    ),
    "key_by_generator": (lambda p, s: s.key_by(Yielding()), "key: expected a function that returns, got"),
    "event_time_async": (
        lambda p, s: s.event_time(partial(fetch), AscendingTimestamps()),
        "timestamp: expected a plain function, got",
    ),
    "watermarks_async": (
        lambda p, s: s.event_time(plain, PunctuatedWatermarks(fetch)),  # type: ignore[arg-type]
        "watermark: expected a plain function, got",
    ),
    "process_lambda": (
        lambda p, s: s.key_by(plain).process(plain),
        "; for a plain function use map or flat_map",
    ),
    "process_window_lambda": (
        lambda p, s: s.key_by(plain).count_window(2).process(plain),
        "; for a plain function use collect() and map",
    ),
    "process_element_async": (
        lambda p, s: s.key_by(plain).process(AsyncProcess()),
        "function.process_element: expected a plain method, got",
    ),
    "on_timer_generator": (
        lambda p, s: s.key_by(plain).process(YieldingTimer()),
        "YieldingTimer object>>; it is called, not iterated over; emit with out(...)",
    ),
    "window_function_async": (
        lambda p, s: s.window_all(TumblingWindows(1)).process(AsyncWindow()),
        "process.process: expected a plain method, got",
    ),
    "trigger_async": (
        lambda p, s: s.window_all(TumblingWindows(1)).trigger(AsyncTrigger()),
        "trigger.on_element: expected a plain method, got",
    ),
    "nested_trigger_async": (
        lambda p, s: s.window_all(TumblingWindows(1)).trigger(PurgingTrigger(AsyncTrigger())),
        "on_element: expected a plain method, got",
    ),
    "aggregate_async": (
        lambda p, s: s.window_all(TumblingWindows(1)).aggregate(n=AsyncCount()),
        "n.add: expected a plain method, got",
    ),
    "policy_function_async": (
        lambda p, s: s.policy_window(length=2, function=partial(fetch)),
        "function: expected a plain function, got",
    ),
    "filter_without_a_return": (
        lambda p, s: s.filter(forgetful),
        "fn: expected a function that returns something, got <function forgetful>; it gives None each time",
    ),
    "branch_without_a_return": (lambda p, s: s.branch(forgetful), "fn: expected a function that returns so"),
    "flat_map_without_a_return": (lambda p, s: s.flat_map(forgetful), "fn: expected a function that retur"),
    "timestamp_without_a_return": (
        lambda p, s: s.event_time(forgetful, AscendingTimestamps()),
        "timestamp: expected a function that returns something",
    ),
    "reduce_without_a_return": (
        lambda p, s: s.key_by(plain).reduce(forgets_to_fold),
        "fn: expected a function that returns something",
    ),
    "reduce_of_windows_without_a_return": (
        lambda p, s: s.window_all(TumblingWindows(1)).reduce(forgets_to_fold),
        "reduce: expected a function that returns something",
    ),
    "reduce_of_state_without_a_return": (
        lambda p, s: ReducingDescriptor("sum", forgets_to_fold),
        "reduce of state 'sum': expected a function that returns something",
    ),
    "aggregate_without_a_return": (
        lambda p, s: s.window_all(TumblingWindows(1)).aggregate(ForgetfulList()),
        "aggregate.add: expected a method that returns something",
    ),
    "named_aggregate_without_a_return": (
        lambda p, s: s.window_all(TumblingWindows(1)).aggregate(all=ForgetfulList()),
        "all.add: expected a method that returns something",
    ),
    "watermarks_in_place_of_a_timestamp": (
        lambda p, s: s.event_time(BoundedOutOfOrderness(5)),
        "timestamp: expected what tells when an element was, got BoundedOutOfOrderness(delay=5",
    ),
    "class_of_watermarks_in_place_of_a_timestamp": (
        lambda p, s: s.event_time(cast(Any, PunctuatedWatermarks)),
        "PunctuatedWatermarks'>; give an instance, PunctuatedWatermarks(...), not the class",
    ),
    "batched_option_by_place": (
        lambda p, s: cast(Any, batched)(fetch, 10),
        "batched: expected its options by name (size, wait), got (10,)",
    ),
    "aggregate_several_without_names": (
        lambda p, s: s.window_all(TumblingWindows(1)).aggregate(Count(), Count("id"), n=Count()),
        "got (Count(), Count(of='id'), 'n'); e.g. aggregate(n=Count()), or aggregate(Count())",
    ),
    "aggregate_one_and_named": (
        lambda p, s: s.window_all(TumblingWindows(1)).aggregate(Count(), n=Count()),
        "got (Count(), 'n'); e.g. aggregate(n=Count()), or aggregate(Count()); name= is that of the step",
    ),
    "batched_without_its_function": (
        lambda p, s: s.async_map(batched(size=2)),
        "; it is still to be given its function: batched(size=2)(fn)",
    ),
    "batched_option": (
        lambda p, s: batched(fetch, max_size=2),  # type: ignore[call-overload]
        "batched: there is no option 'max_size'; there are: size, wait",
    ),
    "windows_that_never_fire": (
        lambda p, s: s.window_all(GlobalWindows()).collect(),
        "trigger: expected one to go with GlobalWindows(), which never fires by itself, got None; e.g. Count",
    ),
    "joined_windows_that_never_fire": (
        lambda p, s: s.key_by(plain).join(s.key_by(plain)).window(GlobalWindows()),
        "trigger: expected one to go with GlobalWindows(), which never fires by itself, got None; e.g. Count",
    ),
    "place_of_an_inbox": (
        lambda p, s: p.submissions(inbox=3),
        "inbox: expected the path of a database file, got 3",
    ),
    "rate_of_a_lookup": (
        lambda p, s: HttpLookup("http://api/{}", rate=0.5),  # type: ignore[arg-type]
        "rate: expected an integer of at least 1, got 0.5",
    ),
    "cache_of_a_lookup": (
        lambda p, s: HttpLookup("http://api/{}", cache_ttl=0),
        "cache_ttl: expected a positive duration, got 0",
    ),
    # side outputs
    "side_of_windows": (
        lambda p, s: s.window_all(TumblingWindows(1)).collect().side("lates"),
        "tag: expected one of 'late', got 'lates'",
    ),
    "side_type": (
        lambda p, s: s.window_all(TumblingWindows(1)).collect().side("late", of="Flight"),
        "of: expected a class, such as Order or dict[str, int], got 'Flight'",
    ),
    "sides_text": (
        lambda p, s: s.key_by(plain).process(OneSide()),
        "sides of OneSide: expected a tuple of names, got 'alarms'; e.g. (\"late\",)",
    ),
    "sides_no_names": (
        lambda p, s: s.key_by(plain).process(NoNames()),
        "sides of NoNames: expected a non-empty text, got 5",
    ),
    "sides_of_windows_text": (
        lambda p, s: s.window_all(TumblingWindows(1)).process(OneSideOfWindows()),
        "sides of OneSideOfWindows: expected a tuple of names, got 'alarms'",
    ),
    "side_of_process": (
        lambda p, s: s.key_by(plain).process(Declared()).side("latse"),
        "tag: expected one of 'alarms', got 'latse'",
    ),
    "no_reader_of_declared_side": (
        lambda p, s: (s.key_by(plain).process(Declared(), name="watch").discard(), p.start()),
        "step 'watch' sends elements to its output .alarms, which nobody reads",
    ),
    "no_reader_of_failed_of_map": (
        lambda p, s: (s.map(plain, on_error="route", name="twice").discard(), p.start()),
        "step 'twice' sends elements to its output .failed, which nobody reads",
    ),
    "no_reader_of_union": (
        lambda p, s: (s.discard(), s.union(s.map(plain), name="both"), p.start()),
        "nobody reads step 'both'",
    ),
    # ends
    "sink": (
        lambda p, s: s.to("out.jsonl"),
        "sink: expected a Sink, a list or a function of one element, got 'out.jsonl'; for a file "
        "JsonLinesSink('out.jsonl')",
    ),
    "sink_path": (lambda p, s: s.to(Path("out.parquet")), "; for a file ParquetSink('out.parquet')"),
    "sink_set": (lambda p, s: s.to({1}), "a function of one element, got {1}; give its method, .add"),
    "sink_queue": (lambda p, s: s.to(Queue()), "got <Queue maxsize=0>; give its method, .put"),
    "sink_file": (lambda p, s: s.to(StringIO()), "; give its method, .write"),
    "sink_tuple": (
        lambda p, s: s.to(()),
        "sink: expected a Sink, a list or a function of one element, got ()",
    ),
    "sink_generator": (
        lambda p, s: s.to(generate),
        "sink: expected a Sink, a list or a function of one element",
    ),
    "results_limit": (lambda p, s: s.results(limit=0), "limit: expected an integer of at least 1, got 0"),
    "format": (lambda p, s: p.describe("html"), "format: expected one of 'text', 'mermaid', got 'html'"),
    "source_twice": (
        lambda p, s: shared_source(p),
        "steps 'one' and 'two' share one Items; give each its own, or read one step twice, or write a union",
    ),
    "sink_twice": (
        lambda p, s: shared_sink(s),
        "steps 'one' and 'two' share one JsonLinesSink; give each its own",
    ),
    "clock": (lambda p, s: p.start(clock=5), "clock: expected a Clock, got 5; e.g. SystemClock()"),
    "snapshot": (
        lambda p, s: p.start(snapshot={}),
        "snapshot: expected a JobSnapshot, as job.stop() returns it",
    ),
    # plans that cannot run
    "no_source": (
        lambda p, s: Pipeline().start(),
        "the pipeline has no source; start with pipeline.source(...)",
    ),
    "no_reader": (
        lambda p, s: p.start(),
        "nobody reads step 'numbers'; end the stream with .to(...), or with .discard()",
    ),
    "no_reader_of_failed": (
        lambda p, s: (s.async_map(fetch, on_error="route", name="call").discard(), p.start()),
        "step 'call' sends elements to its output .failed, which nobody reads; end it with",
    ),
    "no_reader_of_timed_out": (
        lambda p, s: (s.async_map(fetch, timeout=1, on_timeout="route").discard(), p.start()),
        "sends elements to its output .timed_out, which nobody reads",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_argument_is_refused_when_the_pipeline_is_built(case: str) -> None:
    build, message = WRONG[case]
    pipeline = Pipeline()
    stream: Stream[int] = pipeline.source([1, 2, 3], name="numbers")
    with pytest.raises(PipelineError) as caught:
        build(pipeline, stream)
    assert message in str(caught.value)


@pytest.mark.parametrize("use", [lambda fn: Pipeline().source([1]).async_map(fn), retry])
def test_async_function_that_was_called_is_told_not_to_be(use: Callable[[Any], object]) -> None:
    coroutine = fetch(1)
    with pytest.raises(PipelineError, match="; give the function itself, without calling it"):
        use(coroutine)
    coroutine.close()


@pytest.mark.parametrize(
    ("use", "given"),
    [
        (lambda s: Pipeline().source(JsonLinesSource), "JsonLinesSource"),  # type: ignore[arg-type]
        (lambda s: s.to(JsonLinesSink), "JsonLinesSink"),
        (lambda s: s.async_map(Lookup), "Lookup"),
        (lambda s: retry(Lookup), "Lookup"),  # type: ignore[arg-type]
        (lambda s: s.event_time(lambda value: value, AscendingTimestamps), "AscendingTimestamps"),
        (lambda s: s.key_by(lambda value: value).window(TumblingWindows), "TumblingWindows"),
        (lambda s: s.key_by(lambda value: value).count_window(2).aggregate(Count), "Count"),
        (lambda s: s.key_by(lambda value: value).process(KeyedProcessFunction), "KeyedProcessFunction"),
        (lambda s: s.key_by(str).count_window(2).process(ProcessWindowFunction), "ProcessWindowFunction"),
    ],
)
def test_class_in_place_of_an_instance_is_told_so(use: Callable[[Any], object], given: str) -> None:
    with pytest.raises(PipelineError) as caught:
        use(Pipeline().source([1]))
    assert str(caught.value).endswith(f"; give an instance, {given}(...), not the class")


def test_guard_around_a_plain_function_says_what_to_put_around_it() -> None:
    with pytest.raises(
        PipelineError, match=r"^fn: expected .*; wrap a plain function in an async def, or in in_th"
    ):
        retry(abs)


TOO_EARLY: dict[str, tuple[Callable[[Any], object], str]] = {
    "window": (
        lambda s: s.window,
        "'SourceStream' object has no attribute 'window'; put .key_by(...) directly before it, or",
    ),
    "process": (lambda s: s.map(plain).process, "'Stream' object has no attribute 'process'; put .key_by"),
    "top": (lambda s: s.top, "; put .key_by(...) directly before it"),
    "aggregate": (lambda s: s.aggregate, "; put it directly behind .key_by(...) and .window(...)"),
    "aggregate_per_key": (lambda s: s.key_by(plain).aggregate, "; put it directly behind .window(...)"),
    "end_of_windows": (
        lambda s: s.window_all(TumblingWindows(1)).to,
        "'WindowedStream' object has no attribute 'to'; say first what to compute of the windows",
    ),
    "end_of_join": (
        lambda s: s.key_by(plain).join(s.key_by(plain)).map,
        "'Join' object has no attribute 'map'; say first which elements belong together: .within(",
    ),
    "map_of_pipeline": (
        lambda s: cast(Any, Pipeline()).map,
        "'Pipeline' object has no attribute 'map'; begin a stream first: .source(...), or .submissions(...)",
    ),
    "end_of_co_group": (
        lambda s: s.key_by(plain).co_group(s.key_by(plain)).to,
        "say first which elements belong together: .window(...)",
    ),
    "end_of_connected": (
        lambda s: s.connect(s).to,
        "say first what to make of their elements: .process(...)",
    ),
    "end_of_several": (lambda s: s.connect(s, s).map, "say first what to make of their elements: .process("),
    "end_of_connected_to_broadcast": (
        lambda s: s.connect(s.broadcast()).to,
        "'ConnectedToBroadcast' object has no attribute 'to'; say first what to make of their elements",
    ),
    "map_of_broadcast": (lambda s: s.broadcast().map, "bring it to a stream first: stream.connect(it)"),
    "end_of_table": (
        lambda s: s.as_table(plain).to,
        "look its rows up first, for the elements of a stream: ",
    ),
}


@pytest.mark.parametrize("case", TOO_EARLY)
def test_method_that_comes_one_step_too_early_names_the_step(case: str) -> None:
    get, message = TOO_EARLY[case]
    with pytest.raises(AttributeError) as caught:
        get(Pipeline().source([1]))
    assert message in str(caught.value)


def test_what_no_stream_has_is_an_ordinary_error() -> None:
    stream: Any = Pipeline().source([1])
    keyed = stream.key_by(plain)
    for of in (stream, keyed, keyed.window(TumblingWindows(1)), keyed.join(stream.key_by(plain))):
        with pytest.raises(AttributeError, match=r"has no attribute 'mapp'$"):
            _ = of.mapp
        assert not hasattr(of, "__arrow_c_stream__")


def test_refused_step_leaves_the_plan_as_it_was() -> None:
    pipeline = Pipeline()
    stream: Any = pipeline.source([1], name="numbers")
    before = pipeline.describe()
    builds: list[Callable[[], object]] = [
        lambda: stream.map(fetch, name="x"),
        lambda: stream.async_map(fetch, concurrency=0, name="x"),
        lambda: stream.to("x", name="x"),
        lambda: stream.event_time(plain, 5, name="x"),
    ]
    for build in builds:
        with pytest.raises(PipelineError):
            build()
    assert pipeline.describe() == before
    stream.map(plain, name="x")


def test_second_stream_of_a_branch_must_be_read() -> None:
    pipeline = Pipeline()
    even, _odd = pipeline.source(range(4)).branch(lambda value: value % 2 == 0, name="parity")
    even.to([])

    with pytest.raises(PipelineError, match=r"step 'parity' sends elements to its output \.others"):
        pipeline.start()


def test_rejected_lines_must_be_read(tmp_path: Path) -> None:
    pipeline = Pipeline()
    lines = pipeline.source(JsonLinesSource(tmp_path / "x", on_malformed="reject"), name="lines")
    lines.to([])

    with pytest.raises(PipelineError, match=r"step 'lines' sends elements to its output \.rejected"):
        pipeline.start()


def test_source_that_rejects_nothing_has_no_such_output() -> None:
    with pytest.raises(PipelineError, match="source 'source' rejects nothing"):
        _ = Pipeline().source(range(4)).rejected
    several = GlobSource("in/*.jsonl", lambda path: JsonLinesSource(path, on_malformed="reject"))
    with pytest.raises(PipelineError, match="one of several with rejects=True besides"):
        _ = Pipeline().source(several).rejected
