from __future__ import annotations

import html
import re
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from asyncstream import AsyncFunction, BoundedOutOfOrderness, KeyedProcessFunction, Pipeline, Stream
from asyncstream.guards import cached, retry


async def with_plane(flight: int) -> int:
    return flight


class Lookup(AsyncFunction[int, int]):
    async def invoke(self, value: int) -> int:
        return value


def add(one: int, two: int) -> int:
    return one + two


class Scale:
    def __call__(self, value: int) -> int:
        return value


class Aside(KeyedProcessFunction[int, int]):
    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        """Nothing: only its step is looked at."""


def flights() -> Pipeline:
    pipeline = Pipeline("flights")
    source = pipeline.source([1, 2], name="departures")
    stamped = source.event_time(
        lambda flight: flight, BoundedOutOfOrderness(timedelta(seconds=5)), idle_after=timedelta(seconds=1)
    )
    enriched = stamped.async_map(with_plane, timeout=2, on_error="route", name="plane")
    enriched.failed.to([], name="failures")
    big, small = enriched.branch(lambda flight: flight > 1)
    big.union(small).to([])
    return pipeline


def test_text_has_a_line_for_each_step() -> None:
    text = flights().describe()
    assert text.splitlines()[0] == "pipeline 'flights'"
    lines = {line.split()[0]: line for line in text.splitlines()[1:]}
    assert list(lines) == ["departures", "event_time", "plane", "failures", "branch", "union", "sink-2"]
    assert "<- event_time" in lines["plane"]
    assert "fn=with_plane, order=ordered, concurrency=100, buffer=1600, timeout=2.0" in lines["plane"]
    assert "<- plane.failed" in lines["failures"]
    assert "<- branch, branch.others" in lines["union"]
    assert "idle_after=0:00:01" in lines["event_time"]
    assert len({line.index(" <- ") for line in lines.values() if " <- " in line}) == 1


def test_mermaid_has_a_node_for_each_step_and_an_arrow_for_each_input() -> None:
    lines = flights().describe("mermaid").splitlines()
    assert lines[0] == "flowchart LR"
    nodes = [line for line in lines[1:] if '"' in line]
    arrows = [line.strip() for line in lines[1:] if "->" in line]
    assert len(nodes) == 7
    assert nodes[0].startswith('  s0(["departures')
    assert nodes[2].startswith('  s2[["plane')
    assert nodes[6].startswith('  s6[("sink')
    assert arrows == [
        "s0 --> s1",
        "s1 --> s2",
        "s2 -. failed .-> s3",
        "s2 --> s4",
        "s4 --> s5",
        "s4 -. others .-> s5",
        "s5 --> s6",
    ]


def test_nothing_that_a_user_names_can_break_the_picture() -> None:
    names = ['say "hi"', "<script>alert(1)</script>", "a & b", "back`tick", "#quot;", "[(end", "100%"]
    pipeline = Pipeline("odd")
    stream: Stream[int] = pipeline.source([1])
    for name in names:
        stream = stream.map(abs, name=name)
    stream.to([])
    picture = pipeline.describe("mermaid")
    lines = picture.splitlines()
    nodes = [line for line in lines if '"' in line]
    assert len(nodes) == len(names) + 2
    for line in nodes:
        label = re.fullmatch(r'  s\d+\S{1,2}"([^"]*)"\S{1,2}', line)
        assert label, line
        # only our own line breaks are markup, and # and & only start what we escaped
        bare = label[1].replace("<br/>", "")
        assert not re.search(r"[<>]", bare), line
        assert not re.search(r"#(?!\d+;|(?:quot|amp|lt|gt);)", bare), line
    assert "#35;quot;" in picture
    assert len(lines) == 1 + len(nodes) + len(names) + 1


@pytest.mark.parametrize("tag", ["late.clicks", "1. late", "a .-> b", "a.-", "`late`"])
def test_side_output_does_not_end_the_text_of_its_arrow(tag: str) -> None:
    # Mermaid's dotted arrows end their text at a dot; a backtick begins Markdown
    pipeline = Pipeline()
    pipeline.source([1]).key_by(str).process(Aside(), name=tag).side(tag).discard()
    _, step, _, _, second = pipeline.describe("mermaid").splitlines()[1:]
    assert "`" not in step
    text = re.fullmatch(r"  s1 -\. ([^.`]+) \.-> s2", second)
    assert text
    assert html.unescape(re.sub(r"#(\d+);", r"&#\1;", text[1])) == tag


def test_functions_are_shown_by_name_and_never_by_address() -> None:
    pipeline = Pipeline()
    numbers = pipeline.source([1]).map(partial(add, 1)).map(Scale())
    numbers.map(str).map("x".join).discard()
    stream = numbers.async_map(Lookup())
    stream.filter(lambda value: value).to(print)
    text = pipeline.describe()
    assert "fn=add" in text
    assert "fn=Scale" in text
    assert "fn=join" in text
    assert "fn=Lookup" in text
    assert "fn=<lambda>" in text
    assert "to=print" in text
    assert " at 0x" not in text


def test_guards_are_shown_around_their_function_as_they_are_written() -> None:
    pipeline = Pipeline()
    found = pipeline.source([1]).async_map(cached(retry(with_plane, attempts=2), ttl=1))
    found.async_map(retry(Lookup())).discard()
    text = pipeline.describe()
    assert "fn=cached(retry(with_plane))," in text
    assert "fn=retry(Lookup)," in text


def test_empty_pipeline_can_be_described() -> None:
    assert Pipeline("empty").describe() == "pipeline 'empty'"
    assert Pipeline("empty").describe("mermaid") == "flowchart LR"


def test_reprs_say_what_things_are() -> None:
    pipeline = Pipeline("flights")
    stream = pipeline.source([1], name="departures")
    assert repr(stream) == "<SourceStream of departures>"
    _, odd = stream.branch(lambda value: value % 2 == 0)
    assert repr(odd) == "<Stream of branch.others>"
    assert repr(pipeline) == "<Pipeline 'flights' of 2 steps>"
