"""A pipeline as a picture in a notebook: every step and arrow, nothing that covers another, no script."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from asyncstream import Count, Pipeline, Stream, TumblingWindows

SVG = "{http://www.w3.org/2000/svg}"


async def ask(value: int) -> int:
    return value


def picture(pipeline: Pipeline) -> ElementTree.Element:
    return ElementTree.fromstring(pipeline._repr_html_())


def example() -> Pipeline:
    pipeline = Pipeline("orders <script>alert(1)</script>")
    orders = pipeline.source([1], name="orders")
    asked = orders.async_map(ask, name="ask & <b>wait</b>", concurrency=7, on_error="route")
    asked.failed.to([], name="failed")
    counted = asked.key_by(lambda value: value).window(TumblingWindows(60)).aggregate(n=Count(), name="count")
    counted.to([], name="counts")
    orders.union(asked, name="both").to([], name="out")
    return pipeline


def test_every_step_is_there_with_its_settings_and_every_arrow() -> None:
    drawn = picture(example())
    tips = [title.text or "" for title in drawn.iter("title")]
    assert {tip.splitlines()[0] for tip in tips} == {
        "orders",
        "ask & <b>wait</b>",
        "failed",
        "count",
        "counts",
        "both",
        "out",
    }
    assert any("concurrency=7" in tip for tip in tips)
    texts = [text.text for text in drawn.iter("text")]
    assert "ask & <b>wait</b>" in texts
    assert "failed" in texts  # on its arrow
    paths = list(drawn.iter("path"))
    assert len(paths) == 7
    assert sum("stroke-dasharray" in path.attrib for path in paths) == 1


def test_nothing_in_it_runs_or_is_loaded() -> None:
    text = example()._repr_html_()
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"https?://|url\(|\bon\w+=", text)


def test_pipeline_without_steps_has_a_picture() -> None:
    assert [element.tag for element in picture(Pipeline("empty"))] == ["figcaption", "svg"]


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=3), max_size=12))
def test_no_step_covers_another_and_no_arrow_crosses_one(reads: list[list[int]]) -> None:
    pipeline = Pipeline("drawn")
    streams: list[Stream[int]] = [pipeline.source([1], name="first")]
    for number, places in enumerate(reads):
        read = [streams[place % len(streams)] for place in dict.fromkeys(places)]
        first, *others = dict.fromkeys(read)
        name = f"step {number} {'x' * (number * 7 % 40)}"
        streams.append(first.union(*others, name=name) if others else first.map(abs, name=name))
    drawn = picture(pipeline)
    boxes = [
        tuple(float(rect.attrib[key]) for key in ("x", "y", "width", "height")) for rect in drawn.iter("rect")
    ]
    assert len(boxes) == len(streams)
    for index, (x, y, width, height) in enumerate(boxes):
        for x2, y2, width2, height2 in boxes[:index]:
            assert x + width <= x2 or x2 + width2 <= x or y + height <= y2 or y2 + height2 <= y
    (svg,) = drawn.iter("svg")
    assert all(x + width <= float(svg.attrib["width"]) for x, _, width, _ in boxes)
    # arrows are level wherever they pass a layer: there they must miss the boxes
    for path in drawn.iter("path"):
        for level, end in re.findall(r",([\d.]+) H([\d.]+)", path.attrib["d"]):
            for x, y, width, height in boxes:
                if x <= float(end) <= x + width:
                    assert not y < float(level) < y + height
