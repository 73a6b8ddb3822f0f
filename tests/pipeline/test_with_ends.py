"""The same plan with other sources and sinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncstream import JsonLinesSink, JsonLinesSource, Pipeline, PipelineError
from asyncstream.connectors import CallbackSink, ListSink

SHARED = CallbackSink(print)

pytestmark = pytest.mark.usefixtures("virtual_time")


def production() -> Pipeline:
    pipeline = Pipeline("orders")
    orders = pipeline.source(JsonLinesSource("not there"), name="orders")
    doubled = orders.union(pipeline.submissions(name="more")).map(lambda order: order * 2, name="double")
    doubled.to(JsonLinesSink("not there/either"), name="doubled")
    doubled.results(name="answers")
    doubled.discard()
    return pipeline


async def test_other_ends_are_read_and_written() -> None:
    doubled: list[int] = []
    seen: list[int] = []
    pipeline = production()
    other = pipeline.with_ends(
        sources={"orders": [1, 2], "more": lambda: iter([3])},
        sinks={"doubled": doubled, "answers": seen.append},
    )
    await other.run()
    assert sorted(doubled) == sorted(seen) == [2, 4, 6]
    assert "ListSink" not in pipeline.describe()
    assert other.name == pipeline.name


async def test_function_of_what_is_there_gives_the_sinks() -> None:
    asked: dict[str, str] = {}
    results: dict[str, list[int]] = {}

    def stand_in(name: str, sink: Any) -> Any:
        asked[name] = type(sink).__name__
        return results.setdefault(name, [])

    await production().with_ends(sources={"orders": [1], "more": ()}, sinks=stand_in).run()
    assert asked == {"doubled": "JsonLinesSink", "answers": "Results"}
    assert results == {"doubled": [2], "answers": [2]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda plan: plan.with_ends(sources={"order": []}), "no source 'order'; there is 'orders', 'more'"),
        (
            lambda plan: plan.with_ends(sinks={"orders": []}),
            "'orders'; there is 'doubled', 'answers'",
        ),
        (lambda plan: plan.with_ends(sources={"orders": 3}), "source: expected"),
        (lambda plan: plan.with_ends(sinks={"doubled": ListSink}), "sink: expected"),
        (lambda plan: plan.with_ends(sinks=dict.fromkeys(["doubled", "answers"], SHARED)), "share one"),
    ],
)
async def test_what_does_not_fit_is_refused(change: Callable[[Pipeline], Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        change(production())
