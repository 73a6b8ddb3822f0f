"""Elements that steps fail on, in a whole pipeline: each is at one end, once, and the job goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    Collect,
    Inbox,
    JsonLinesSource,
    KeyedContext,
    KeyedProcessFunction,
    MemoryStore,
    Pipeline,
)
from asyncstream.connectors.json_values import LEVELS
from asyncstream.errors import CodecError
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.functions import FailedCall
from asyncstream.pipeline import Stream


class Remainders(KeyedProcessFunction[int, int]):
    def process_element(self, value: int, ctx: KeyedContext, out: Emitter[int]) -> None:
        out(value)
        fails_at(6)(value)


def fails_at(bad: int) -> Any:
    def function(value: int) -> int:
        if value % 10 == bad:
            raise ValueError(value)
        return value

    return function


STEPS = ("map", "filter", "flat_map", "event_time", "key_by", "process")


def chain(stream: Stream[int], on_error: Any, failed: list[list[FailedCall]]) -> Stream[Any]:
    """Six steps, of which each fails on another tenth of the elements, under their names."""

    def step(stream: Stream[Any]) -> Stream[Any]:
        if on_error == "route":
            failed.append([])
            stream.failed.to(failed[-1])
        return stream

    stream = step(stream.map(fails_at(1), on_error=on_error, name="map"))
    stream = step(
        stream.filter(lambda value: fails_at(2)(value) is not None, on_error=on_error, name="filter")
    )
    stream = step(stream.flat_map(lambda value: [fails_at(3)(value)], on_error=on_error, name="flat_map"))
    times = BoundedOutOfOrderness(0)
    stream = step(stream.event_time(fails_at(4), times, on_error=on_error, name="event_time"))
    keyed = stream.key_by(fails_at(5), on_error=on_error, name="key_by")
    step(keyed)
    return step(keyed.process(Remainders(), on_error=on_error, name="process"))


@pytest.mark.parametrize("on_error", ["skip", "route"])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_every_step_takes_its_own_failures_and_no_others(on_error: str) -> None:
    done: list[int] = []
    failed: list[list[FailedCall]] = []
    pipeline = Pipeline()
    chain(pipeline.source(range(1000)), on_error, failed).to(done)

    async def main() -> dict[str, dict[str, int]]:
        async with pipeline.start() as job:
            await job.wait()
            return job.metrics()

    metrics = await main()

    assert done == [value for value in range(1000) if value % 10 not in range(1, 7)]
    for step in STEPS:
        assert metrics[step]["failed"] == 100
        assert metrics[step]["skipped"] == (100 if on_error == "skip" else 0)
    for bad, calls in enumerate(failed, 1):
        assert [call.value for call in calls] == list(range(bad, 1000, 10))
        assert [repr(call.error) for call in calls[:1]] == [f"ValueError({bad})"]


def test_settings_are_described() -> None:
    pipeline = Pipeline()
    stream = pipeline.source([1]).map(str, on_error="skip", name="text")
    stream.discard()
    assert "on_error=skip" in pipeline.describe()


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_side_output_that_is_not_needed_is_discarded() -> None:
    class Aside(KeyedProcessFunction[int, int]):
        def process_element(self, value: int, ctx: KeyedContext, out: Emitter[int]) -> None:
            out(value)
            ctx.side("copy", value)

    done: list[int] = []
    pipeline = Pipeline()
    results = pipeline.source(range(3)).key_by(lambda value: 0).process(Aside())
    results.to(done)
    results.side("copy").discard()
    await pipeline.run()

    assert done == [0, 1, 2]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_json_that_no_checkpoint_could_hold_is_malformed_and_all_other_is_kept(tmp_path: Path) -> None:
    """For an object of one name with a $ the codec needs two levels; a failure has its element inside."""

    async def hang(value: Any) -> Any:
        await asyncio.Event().wait()

    async def fail(value: Any) -> Any:
        raise ValueError(value) from KeyError(value)

    path = tmp_path / "in.jsonl"
    deep = ['{"$a": ' * levels + "1" + "}" * levels for levels in (1, LEVELS, LEVELS + 1, 250, 900)]
    path.write_text("\n".join(deep))
    rejected: list[Any] = []
    pipeline = Pipeline("poison")
    lines = pipeline.source(JsonLinesSource(path, on_malformed="reject"), name="lines")
    lines.rejected.to(rejected, name="rejected")
    lines.async_map(hang, name="running").discard(name="ran")
    failing = lines.async_map(fail, on_error="route", name="failing")
    failing.discard(name="went well")
    failing.failed.async_map(hang, name="failed").discard(name="seen")
    keyed = lines.key_by(lambda value: len(value))
    keyed.count_window(10).aggregate(all=Collect(), name="window").discard(name="windows")
    async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore())) as job:
        await asyncio.sleep(1)
        await job.checkpoint()
    assert [line.line_number for line in rejected] == [3, 4, 5]
    assert "nested more than 100 levels deep" in rejected[0].reason


@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_what_no_checkpoint_could_hold_is_refused_to_who_submits_it(
    tmp_path: Path, is_durable: bool
) -> None:
    """Of 250 levels an inbox can hold what a checkpoint cannot, with what is around it there."""

    async def hang(value: Any) -> Any:
        await asyncio.Event().wait()

    def nested(levels: int) -> Any:
        return orjson.loads('{"$a": ' * levels + "1" + "}" * levels)

    pipeline = Pipeline("poison")
    inbox = Inbox(tmp_path / "inbox.sqlite") if is_durable else None
    pipeline.submissions(inbox=inbox, name="in").async_map(hang, name="hang").discard(name="out")
    async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore())) as job:
        assert await job.submit(nested(LEVELS))
        for deep in (nested(LEVELS) | {"more": nested(LEVELS)}, [[nested(250)]]):
            with pytest.raises(CodecError, match="nested more than 100 levels deep"):
                await job.submit(deep)
        await asyncio.sleep(1)
        await job.checkpoint()
