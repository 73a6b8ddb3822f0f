"""Sinks that define `write_batch` get whole batches, and those with `write` go on as they did."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import AscendingTimestamps, MemoryStore, Pipeline, PipelineError, Sink
from asyncstream.checkpoint import Checkpoints
from asyncstream.connectors import ListSink
from asyncstream.elements import Timestamps
from asyncstream.testing import sink_contract, verify

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")


class Batches(Sink[Any]):
    """Keeps what it is given, batch by batch; refuses a batch with one of `poison`."""

    def __init__(self, *poison: Any, delay: float = 0.0) -> None:
        self.batches: list[list[Any]] = []
        self.poison = set(poison)
        self.delay = delay

    async def write_batch(self, values: Sequence[Any]) -> None:
        await asyncio.sleep(self.delay)
        if self.poison & set(values):
            raise ConnectionError("refused")
        self.batches.append(list(values))

    @property
    def values(self) -> list[Any]:
        return [value for batch in self.batches for value in batch]


class Both(Batches):
    def __init__(self) -> None:
        super().__init__()
        self.singles: list[Any] = []

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.singles += values


class BothInOne(Sink[Any]):
    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        raise AssertionError("write_batch is there")

    async def write_batch(self, values: Sequence[Any]) -> None:
        self.batches.append(list(values))


class Neither(Sink[Any]):
    pass


async def echo(value: int) -> int:
    return value


async def test_results_of_calls_arrive_in_batches() -> None:
    sink = Batches()
    pipeline = Pipeline()
    pipeline.source(range(2000)).map(lambda n: n + 1).async_map(echo).filter(lambda n: n % 2 == 0).to(sink)

    await pipeline.run()
    assert sink.values == list(range(2, 2001, 2))
    assert len(sink.batches) <= 10


async def test_a_slow_sink_gets_all_that_has_come_meanwhile_as_one_batch() -> None:
    async def ticks() -> Any:
        for number in range(8):
            yield number
            await asyncio.sleep(1)

    sink = Batches(delay=3.5)
    pipeline = Pipeline()
    pipeline.source(ticks()).to(sink)

    await pipeline.run()
    assert sink.batches == [[0], [1, 2, 3], [4, 5, 6], [7]]


@given(st.lists(st.integers(), max_size=30), st.sets(st.integers(0, 29)))
def test_elements_that_are_refused_are_skipped_and_the_others_written_once(
    values: list[int], places: set[int]
) -> None:
    poison = {values[place] for place in places if place < len(values)}
    sink = Batches(*poison)
    pipeline = Pipeline()
    pipeline.source(values).to(sink, on_error="skip")

    asyncio.run(pipeline.run())
    assert sink.values == [value for value in values if value not in poison]


@pytest.mark.parametrize("change", [list.clear, list.pop])
async def test_what_a_sink_makes_of_its_list_is_no_matter_of_the_pipeline(change: Any) -> None:
    class Changes(Batches):
        async def write_batch(self, values: Any) -> None:
            assert len(self.batches) < 10, "a batch is written again and again"
            await super().write_batch(values)
            change(values)

    sink, other = Changes(), list[int]()
    pipeline = Pipeline()
    stream = pipeline.source(range(5))
    stream.to(sink)
    stream.to(other)

    await pipeline.run()
    assert sink.values == other == list(range(5))


async def test_stopped_job_writes_again_what_a_batch_under_way_had() -> None:
    store = MemoryStore()
    first, second = Batches(delay=100.0), Batches()

    def plan(sink: Batches) -> Pipeline:
        pipeline = Pipeline()
        pipeline.source(range(5), name="in").to(sink, name="out")
        return pipeline

    async with plan(first).start(checkpoints=Checkpoints(store=store)) as job:
        await asyncio.sleep(1)
        await job.stop()
    await plan(second).run(checkpoints=Checkpoints(store=store))
    assert (first.values, second.values) == ([], list(range(5)))


@pytest.mark.parametrize(
    ("kind", "way"), [(Batches, "write_batch"), (Both, "write"), (BothInOne, "write_batch")]
)
async def test_what_the_class_nearest_defines_is_called(kind: type[Any], way: str) -> None:
    sink = kind()
    pipeline = Pipeline()
    pipeline.source(range(3)).to(sink)

    await pipeline.run()
    assert (sink.batches == [[0, 1, 2]]) == (way == "write_batch")
    assert (getattr(sink, "singles", []) == [0, 1, 2]) == (way == "write")


async def test_each_way_to_write_serves_callers_of_its_own() -> None:
    sink = Batches()
    await sink.write([1, 2], [10, 20])
    assert sink.batches == [[1, 2]]
    single = Singles()
    await single.write_batch([1, 2])
    assert single.values == [1, 2]


class Singles(Sink[Any]):
    """Keeps what it is given, by way of `write`."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.values += values


class Doubles:
    async def write_batch(self, values: Sequence[Any]) -> None:
        await super().write_batch([2 * value for value in values])  # type: ignore[misc]


class DoubledSingles(Doubles, Singles):
    pass


class DoubledBatches(Doubles, Batches):
    pass


class DoubledNothing(Doubles, Sink[Any]):
    pass


@pytest.mark.parametrize("kind", [DoubledSingles, DoubledBatches])
async def test_batch_goes_on_to_the_base_whichever_way_that_writes(kind: type[Any]) -> None:
    sink = kind()
    pipeline = Pipeline()
    pipeline.source(range(3)).to(sink)

    await pipeline.run()
    await sink.write_batch([3])
    assert sink.values == [0, 2, 4, 6]
    with pytest.raises(TypeError, match="DoubledNothing defines neither write nor write_batch"):
        await DoubledNothing().write_batch([1])


def test_sink_without_a_way_to_write_is_refused() -> None:
    with pytest.raises(
        PipelineError, match=r"a way to write.*define write\(values, timestamps\), or write_batch"
    ):
        Pipeline().source([1]).to(Neither())


async def test_list_that_is_a_sink_may_be_derived_from_with_write() -> None:
    stamped: list[Any] = []

    class Stamped(ListSink[int]):
        async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
            stamped.extend(zip(values, timestamps or (), strict=True))

    pipeline = Pipeline()
    pipeline.source([1, 2]).event_time(lambda n: n * 1000, AscendingTimestamps()).to(Stamped([]))

    await pipeline.run()
    assert stamped == [(1, 1000), (2, 2000)]


@pytest.mark.parametrize(
    "check",
    sink_contract(
        lambda folder: Kept(folder),
        lambda folder: Kept(folder).read(),
        list(range(16)),
        transactional=False,
        durable=False,
    ),
    ids=str,
)
async def test_sink_of_batches_keeps_the_contract(check: Any, tmp_path: Any) -> None:
    await check(tmp_path)


class Kept(Sink[int]):
    """Appends numbers to a file."""

    def __init__(self, folder: Any) -> None:
        self.path = folder / "numbers"

    async def write_batch(self, values: Sequence[int]) -> None:
        with self.path.open("a") as file:
            file.writelines(f"{value}\n" for value in values)

    def read(self) -> list[int]:
        return [int(line) for line in self.path.read_text().split()] if self.path.exists() else []


async def test_contract_finds_two_ways_to_write_that_differ(tmp_path: Any) -> None:
    class Forgets(Kept):
        async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
            await super().write_batch(values)

        async def write_batch(self, values: Sequence[int]) -> None:
            await super().write_batch(values[1:])

    checks = sink_contract(
        Forgets, lambda folder: Kept(folder).read(), list(range(16)), transactional=False, durable=False
    )
    with pytest.raises(Exception, match="what readers see at the end"):
        await verify([check for check in checks if "batches_are_written" in str(check)])
