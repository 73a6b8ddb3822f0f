"""Wrong arguments are refused when the pipeline is built: what was expected, what came, what to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    AsyncFunction,
    Items,
    JsonLinesSink,
    JsonLinesSource,
    Pipeline,
    PipelineError,
)
from asyncstream.pipeline import Stream


async def fetch(value: int) -> int:
    return value


async def generate(value: int) -> AsyncIterator[int]:
    yield value


class Lookup(AsyncFunction[int, int]):
    pass


def plain(value: int) -> int:
    return value


def shared_source(pipeline: Pipeline) -> None:
    source = Items([1])
    pipeline.source(source, name="one")
    pipeline.source(source, name="two")


def shared_sink(stream: Stream[int]) -> None:
    sink = JsonLinesSink("never written.jsonl")
    stream.to(sink, name="one")
    stream.to(sink, name="two")


Build = Callable[[Any, Any], object]

WRONG: dict[str, tuple[Build, str]] = {
    # sources
    "source_text": (
        lambda p, s: p.source("file.csv"),
        "source: expected a Source, an iterable or an async iterable, got 'file.csv'",
    ),
    "source_number": (
        lambda p, s: p.source(5),
        "source: expected a Source, an iterable or an async iterable, got 5",
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
    "union_list": (lambda p, s: s.union([1, 2]), "others: expected streams, got [1, 2]"),
    "union_foreign": (lambda p, s: s.union(Pipeline().source([1])), "belongs to another pipeline"),
    # event time
    "timestamp": (
        lambda p, s: s.event_time("ts", AscendingTimestamps()),
        "timestamp: expected a function, got 'ts'",
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
    "key": (lambda p, s: s.key_by("airline"), "key: expected a function, got 'airline'"),
    "key_async": (lambda p, s: s.key_by(fetch), "key: expected a plain function"),
    # async steps
    "async_map_plain": (lambda p, s: s.async_map(plain), "use map or flat_map for a plain function"),
    "async_map_lambda": (lambda p, s: s.async_map(lambda value: fetch(value)), "wrap it in an async def"),
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
    # ends
    "sink": (
        lambda p, s: s.to("out.jsonl"),
        "sink: expected a Sink, a list or a function of one element, got",
    ),
    "sink_tuple": (
        lambda p, s: s.to(()),
        "sink: expected a Sink, a list or a function of one element, got ()",
    ),
    "sink_class": (
        lambda p, s: s.to(JsonLinesSink),
        "sink: expected a Sink, a list or a function of one element",
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
