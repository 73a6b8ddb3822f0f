"""What fails goes on from its last checkpoint, so often, after so long; what would fail again does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from asyncstream import (
    Checkpoints,
    MemoryStore,
    Pipeline,
    PipelineError,
    Restarts,
    SinkError,
    Source,
    SourceBatch,
    SourceError,
    UserFunctionError,
)
from asyncstream.connectors import TransactionalSink
from asyncstream.elements import Timestamps
from asyncstream.pipeline import Stream

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")

COUNT = 50


class Numbers(Source[int]):
    """Fails at some reads, counted over all runs."""

    def __init__(self, fails: Sequence[int] = ()) -> None:
        self.fails = set(fails)
        self.reads = self.opened = self.closed = self.at = 0

    async def open(self) -> None:
        self.opened += 1
        self.at = 0

    async def read(self) -> SourceBatch[int] | None:
        await asyncio.sleep(0.1)
        self.reads += 1
        if self.reads in self.fails:
            raise ConnectionError("gone")
        self.at += 1
        return SourceBatch([self.at - 1]) if self.at <= COUNT else None

    def position(self) -> int:
        return self.at

    async def seek(self, position: int) -> None:
        self.at = position

    async def close(self) -> None:
        self.closed += 1


class Ledger(TransactionalSink[int]):
    """Fails at some writes, counted over all runs."""

    def __init__(self, fails: Sequence[int] = ()) -> None:
        self.fails = set(fails)
        self.rows: list[int] = []
        self.writes = self.recovered = 0

    async def recover(self, position: Any) -> None:
        self.recovered += 1
        del self.rows[position or 0 :]

    async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
        self.writes += 1
        if self.writes in self.fails:
            raise ConnectionError("gone")
        self.rows += values

    async def prepare(self, epoch: int) -> int:
        return len(self.rows)

    async def commit(self, epoch: int) -> None:
        pass


def checkpoints(**options: Any) -> Checkpoints:
    return Checkpoints(store=MemoryStore(), every=0.35, **options)


def pipeline_of(source: Any, sink: Any, call: Any = None) -> Pipeline:
    pipeline = Pipeline("it")
    stream: Stream[Any] = pipeline.source(source, name="in")
    if call is not None:
        stream = stream.async_map(call, name="call")
    stream.to(sink, name="out")
    return pipeline


@pytest.mark.parametrize("part", ["source", "sink", "call"])
async def test_goes_on_as_if_nothing_had_failed(part: str, caplog: pytest.LogCaptureFixture) -> None:
    fails = {5, 20, 33}
    source = Numbers(sorted(fails) if part == "source" else ())
    sink = Ledger(sorted(fails) if part == "sink" else ())
    calls = 0

    async def call(value: int) -> int:
        nonlocal calls
        calls += 1
        if part == "call" and calls in fails:
            raise ConnectionError("gone")
        return value

    await pipeline_of(source, sink, call).run(checkpoints=checkpoints(), restart=Restarts(3))
    assert sink.rows == list(range(COUNT))
    assert source.opened == source.closed == sink.recovered == 4
    restarts = [record.message for record in caplog.records if "restart" in record.message]
    assert [text.split(" in ")[0] for text in restarts] == [
        f"pipeline 'it': restart {number} of 3" for number in (1, 2, 3)
    ]
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 3


async def test_too_many_failures_raise_the_last_with_a_note() -> None:
    source = Numbers(range(3, 1000))

    with pytest.raises(SourceError, match="gone") as caught:
        await pipeline_of(source, []).run(checkpoints=checkpoints(), restart=Restarts(2))
    assert caught.value.__notes__ == ["pipeline 'it' had been restarted 2 times"]
    assert source.opened == source.closed == 3


async def test_only_failures_within_the_time_count() -> None:
    sink = Ledger()
    source = Numbers([5, 15, 25, 35])
    restart = Restarts(1, within=timedelta(seconds=0.9), backoff=0.01)
    await pipeline_of(source, sink).run(checkpoints=checkpoints(), restart=restart)
    assert sink.rows == list(range(COUNT))

    with pytest.raises(SourceError) as caught:
        await pipeline_of(Numbers([5, 9]), Ledger()).run(checkpoints=checkpoints(), restart=restart)
    assert "within 0.9 s" in caught.value.__notes__[0]


async def test_pauses_double_up_to_the_longest_with_a_random_part_left_out() -> None:
    restarts = Restarts(9, backoff=timedelta(seconds=2), longest=10)
    for number, full in ((1, 2), (2, 4), (3, 8), (4, 10), (9, 10), (5000, 10)):
        pauses = [restarts.pause(number) for _ in range(200)]
        assert full / 2 <= min(pauses) < max(pauses) <= full

    with pytest.raises(SourceError):
        await pipeline_of(Numbers(range(1, 99)), []).run(checkpoints=checkpoints(), restart=restarts)
    seconds = asyncio.get_running_loop().time() - 10 * 0.1
    assert (2 + 4 + 8 + 6 * 10) / 2 <= seconds <= 2 + 4 + 8 + 6 * 10 + 1


async def test_first_choice_of_a_checkpoint_is_for_the_first_run_only() -> None:
    store = MemoryStore()
    for _ in range(2):  # the second time the store is full of checkpoints that are not to count
        sink = Ledger()
        kept = Checkpoints(store=store, every=0.35, restore="none")
        await pipeline_of(Numbers([20]), sink).run(checkpoints=kept, restart=Restarts(1))
        assert sink.rows == list(range(COUNT))


async def test_sink_that_cannot_be_opened_for_a_while() -> None:
    class Away(Ledger):
        tries = 0

        async def recover(self, position: Any) -> None:
            self.tries += 1
            if self.tries < 4:
                raise ConnectionError("away")
            await super().recover(position)

    sink = Away()
    await pipeline_of(Numbers(), sink).run(checkpoints=checkpoints(), restart=Restarts(3))
    assert sink.rows == list(range(COUNT))


async def test_what_would_fail_again_is_not_tried_again() -> None:
    source = Numbers()
    missing = Checkpoints(store=MemoryStore(), restore=7)
    with pytest.raises(Exception, match="checkpoint 7"):
        await pipeline_of(source, []).run(checkpoints=missing, restart=Restarts(5))
    assert source.opened <= 1
    state = Numbers()

    def unkept(value: int) -> Any:
        return lambda: value

    pipeline = Pipeline()
    (
        pipeline.source(state, name="in")
        .map(unkept, name="m")
        .async_map(_slowly, name="call", concurrency=2)
        .to([], name="out")
    )
    with pytest.raises(Exception, match="call"):
        await pipeline.run(checkpoints=checkpoints(), restart=Restarts(5))
    assert state.opened == 1


async def _slowly(value: Any) -> Any:
    await asyncio.sleep(3)
    return value


async def test_cancellation_and_interrupts_are_no_failures() -> None:
    source = Numbers()
    task = asyncio.create_task(pipeline_of(source, []).run(checkpoints=checkpoints(), restart=Restarts(5)))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.opened == 1


@pytest.mark.parametrize("tenths", range(1, 30))
async def test_a_cancellation_ends_it_whatever_is_under_way(tenths: int) -> None:
    class Slow(Numbers):
        async def open(self) -> None:
            await super().open()
            await asyncio.sleep(0.3)

        async def close(self) -> None:
            await asyncio.sleep(0.3)
            await super().close()

    class Slowly(Ledger):
        async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
            await asyncio.sleep(0.5)
            await super().write(values, timestamps)

    source = Slow(range(2, 1000, 2))  # each run reads one element and fails
    pipeline = pipeline_of(source, Slowly())
    restarts = Restarts(attempts=1000, backoff=0.4)
    running = asyncio.ensure_future(pipeline.run(checkpoints=checkpoints(), restart=restarts))
    await asyncio.sleep(tenths / 10 + 0.05)
    running.cancel()
    await asyncio.wait({running}, timeout=20)
    assert running.cancelled()
    assert source.opened == source.closed


async def test_plans_that_cannot_be_restarted_are_refused() -> None:
    with pytest.raises(PipelineError, match="needs checkpoints="):
        await pipeline_of([1], []).run(restart=Restarts(1))
    with pytest.raises(PipelineError, match=r"source 'in' cannot be read again"):
        await pipeline_of((n for n in range(3)), []).run(checkpoints=checkpoints(), restart=Restarts(1))
    with pytest.raises(PipelineError, match=r"restart: expected Restarts"):
        await pipeline_of([1], []).run(checkpoints=checkpoints(), restart=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_wrong_settings_are_refused(wrong: tuple[int, int, int]) -> None:
    with pytest.raises(PipelineError):
        Restarts(*wrong)


async def test_errors_without_restart_are_as_they_were() -> None:
    with pytest.raises((SinkError, UserFunctionError)) as caught:
        await pipeline_of([1], Ledger([1])).run(checkpoints=checkpoints())
    assert not hasattr(caught.value, "__notes__")
