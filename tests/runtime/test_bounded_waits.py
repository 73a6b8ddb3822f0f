"""No wait for the user's code is without bound when a job opens or ends, and each names the step."""

# ruff: noqa: PT012 - what a job raises comes out of its block

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence

import pytest

from asyncstream import (
    AsyncFunction,
    AsyncStreamError,
    CheckpointError,
    Checkpoints,
    MemoryStore,
    Pipeline,
    Sink,
    Source,
    SourceBatch,
    TransactionalSink,
)
from asyncstream.elements import Timestamps
from asyncstream.lease import Holder, Lease
from tests.runtime.parts import Boom, boom

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")


class Hang:
    """Waits for ever at a moment; ignores so many cancellations."""

    def __init__(self, moment: str, ignores: int = 0) -> None:
        self.moment = moment
        self.ignores = ignores

    async def at(self, moment: str) -> None:
        while moment == self.moment:
            try:
                await asyncio.sleep(100_000)
            except asyncio.CancelledError:
                self.ignores -= 1
                if self.ignores < 0:
                    raise


class BadSource(Source[int]):
    def __init__(self, hang: Hang) -> None:
        self.hang = hang
        self.count = 0

    async def open(self) -> None:
        await self.hang.at("open")

    def position(self) -> int:
        return self.count

    async def seek(self, position: int) -> None:
        await self.hang.at("seek")

    async def read(self) -> SourceBatch[int] | None:
        await self.hang.at("read")
        await asyncio.sleep(0.1)
        self.count += 1
        return SourceBatch([self.count])

    async def close(self) -> None:
        await self.hang.at("close")


class BadSink(Sink[int]):
    def __init__(self, hang: Hang) -> None:
        self.hang = hang

    async def open(self) -> None:
        await self.hang.at("open")

    async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
        await self.hang.at("write")

    async def flush(self) -> None:
        await self.hang.at("flush")

    async def close(self) -> None:
        await self.hang.at("close")


class BadFunction(AsyncFunction[int, int]):
    def __init__(self, hang: Hang) -> None:
        self.hang = hang

    async def open(self) -> None:
        await self.hang.at("open")

    async def invoke(self, value: int) -> int:
        await self.hang.at("call")
        return value

    async def close(self) -> None:
        await self.hang.at("close")


def pipeline_with(part: str, hang: Hang) -> Pipeline:
    pipeline = Pipeline()
    good = Hang("")
    stream = pipeline.source(
        BadSource(hang if part == "source" else good), name="bad" if part == "source" else "in"
    ).async_map(
        BadFunction(hang if part == "call" else good), name="bad" if part == "call" else "call", concurrency=1
    )
    stream.to(BadSink(hang if part == "sink" else good), name="bad" if part == "sink" else "out")
    return pipeline


async def end_left_tasks() -> None:
    """Nobody else will."""
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        while not task.done():
            task.cancel()
            await asyncio.sleep(0)


MOMENTS = [
    ("source", "read"),
    ("source", "close"),
    ("call", "call"),
    ("call", "close"),
    ("sink", "write"),
    ("sink", "flush"),
    ("sink", "close"),
]


@pytest.mark.parametrize("ends", ["stop", "error", "drain"])
@pytest.mark.parametrize("ignores", [0, 1, 2, 1000])
@pytest.mark.parametrize(("part", "moment"), MOMENTS)
async def test_job_ends_whatever_hangs(part: str, moment: str, ignores: int, ends: str) -> None:
    if ends == "drain" and moment in ("call", "write", "flush"):
        pytest.skip("draining is to wait for these")
    if ends == "error" and moment == "flush":
        pytest.skip("there is no time for it")

    loop = asyncio.get_running_loop()
    error: BaseException | None = None
    try:
        async with pipeline_with(part, Hang(moment, ignores)).start() as job:
            await asyncio.sleep(1)
            if ends == "stop":
                await job.stop(timeout=2)
            elif ends == "error":
                boom()
    except (AsyncStreamError, Boom) as caught:
        error = caught
    assert loop.time() < 40
    deaf = ignores == 1000
    if deaf or moment == "close":
        assert job.error is not None
        assert "'bad'" in str(job.error)
    if ends != "error" and (deaf or moment == "close"):
        assert error is job.error
    await end_left_tasks()


@pytest.mark.parametrize("ends", ["stop", "drain"])
@pytest.mark.parametrize("ignores", [0, 1, 1000])
async def test_job_ends_though_its_source_does_not_say_that_it_has_heard_what_is_done(
    ignores: int, ends: str
) -> None:
    class Acknowledging(BadSource):
        async def acknowledge(self, position: int) -> None:
            await self.hang.at("acknowledge")

    hang = Hang("acknowledge", ignores)
    pipeline = Pipeline()
    pipeline.source(Acknowledging(hang), name="bad").to(BadSink(Hang("")), name="out")

    async def run() -> None:
        async with pipeline.start() as job:
            await asyncio.sleep(1)
            if ends == "stop":
                await job.stop()

    running = asyncio.create_task(run())
    ended, _ = await asyncio.wait({running}, timeout=40)
    hang.ignores = 0
    for task in asyncio.all_tasks() - {asyncio.current_task(), running}:
        task.cancel()
    await asyncio.wait({running})
    assert ended


@pytest.mark.parametrize("hangs", ["forget", "delete"])
async def test_checkpoints_go_on_though_what_is_old_is_not_let_go(
    hangs: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(BadSource):
        async def forget(self, position: int) -> None:
            await self.hang.at("forget")

    class Store(MemoryStore):
        async def delete(self, lease: Lease, numbers: Collection[int], parts: Collection[str]) -> None:
            await hang.at("delete")
            await super().delete(lease, numbers, parts)

    hang = Hang("")
    pipeline = Pipeline()
    pipeline.source(Forgetful(hang), name="in").to(BadSink(Hang("")), name="out")
    settings = Checkpoints(store=Store(), every=1_000, keep=1, timeout=30)
    async with asyncio.timeout(200), pipeline.start(checkpoints=settings) as job:
        hang.moment = hangs
        began = asyncio.get_running_loop().time()
        for _ in range(2):
            await job.checkpoint()
        await job.stop()
    assert 90 <= asyncio.get_running_loop().time() - began < 95
    assert job.checkpoint_metrics()["taken"] == 4
    assert "took too long to let old checkpoints go" in caplog.text


class BadStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.hang = Hang("")

    async def acquire(self, holder: Holder, seconds: float) -> Lease:
        await self.hang.at("give a lease")
        return await super().acquire(holder, seconds)

    async def numbers(self) -> list[int]:
        await self.hang.at("say which checkpoints there are")
        return await super().numbers()

    async def parts(self) -> list[str]:
        await self.hang.at("say which parts there are")
        return await super().parts()

    async def read(self, what: int | str) -> bytes:
        await self.hang.at("give 2")
        return await super().read(what)

    async def delete(self, lease: Lease, numbers: Collection[int], parts: Collection[str]) -> None:
        await self.hang.at("delete what is old")
        await super().delete(lease, numbers, parts)


@pytest.mark.parametrize(
    "hangs",
    [
        "give a lease",
        "say which checkpoints there are",
        "say which parts there are",
        "give 2",
        "delete what is old",
    ],
)
async def test_store_that_does_not_answer_at_the_start_is_named_and_its_job_ends(hangs: str) -> None:
    store = BadStore()
    settings = Checkpoints(store=store, timeout=30, keep=1)

    def build() -> Pipeline:
        pipeline = Pipeline("stored")
        pipeline.source(BadSource(Hang("")), name="in").to(BadSink(Hang("")), name="out")
        return pipeline

    async with build().start(checkpoints=settings) as job:
        await job.stop()
    store.hang.moment = hangs
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(200):
        with pytest.raises(CheckpointError, match=f"memory did not {hangs} within 30 s"):
            async with build().start(checkpoints=settings):
                pass
    assert 30 <= asyncio.get_running_loop().time() - began < 60


@pytest.mark.parametrize("ignores", [0, 1000])
@pytest.mark.parametrize("part", ["source", "call", "sink"])
async def test_step_that_does_not_open_is_named_and_its_job_ends(
    part: str, ignores: int, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    with pytest.raises(AsyncStreamError, match=r"step 'bad': .*it did not open within 60 s"):
        async with pipeline_with(part, Hang("open", ignores)).start(open_timeout=60):
            pass
    assert 60 <= loop.time() < 90
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(5), pipeline_with(part, Hang("open", ignores)).start():
            pass
    assert loop.time() < 120
    await end_left_tasks()
    assert any("step 'bad'" in record.message for record in caplog.records)


async def test_nothing_is_closed_that_is_still_being_opened_however_often_its_job_is_given_up() -> None:
    said: list[str] = []

    class Slow(Sink[int]):
        async def open(self) -> None:
            try:
                await asyncio.sleep(100)
            finally:
                await asyncio.sleep(0.5)
                said.append("opened")

        async def write(self, values: Sequence[int], timestamps: Timestamps) -> None: ...

        async def close(self) -> None:
            said.append("closed")

    pipeline = Pipeline("given up")
    pipeline.source([1]).to(Slow())

    async def body() -> None:
        async with pipeline.start():
            pass

    job = asyncio.create_task(body())
    for _ in range(2):
        await asyncio.sleep(0.1)
        job.cancel()
    await asyncio.wait({job})
    assert job.cancelled()
    assert said == ["opened", "closed"]


async def test_source_that_does_not_find_its_place_is_named_and_its_job_ends() -> None:
    loop = asyncio.get_running_loop()
    async with pipeline_with("source", Hang("")).start() as job:
        snapshot = await job.stop()
    began = loop.time()
    with pytest.raises(AsyncStreamError, match="step 'bad': it did not open within 60 s"):
        async with pipeline_with("source", Hang("seek")).start(snapshot=snapshot, open_timeout=60):
            pass
    assert 60 <= loop.time() - began < 90


class Wary(BadSink, TransactionalSink[int]):
    async def fence(self) -> None:
        await self.hang.at("fence")

    async def can_recover(self, position: object) -> None:
        await self.hang.at("can_recover")

    async def recover(self, position: object) -> None:
        pass

    async def prepare(self, epoch: int) -> int:
        return epoch

    async def commit(self, epoch: int) -> None:
        pass


class WarySource(BadSource):
    async def can_seek(self, position: int) -> None:
        await self.hang.at("can_seek")


@pytest.mark.parametrize(("part", "moment"), [("out", "fence"), ("out", "can_recover"), ("in", "can_seek")])
async def test_end_that_does_not_say_whether_it_can_go_on_is_named_and_its_job_ends(
    part: str, moment: str
) -> None:
    def build(hang: Hang) -> Pipeline:
        pipeline = Pipeline("wary")
        pipeline.source(WarySource(hang), name="in").to(Wary(hang), name="out")
        return pipeline

    settings = Checkpoints(store=MemoryStore())
    async with build(Hang("")).start(checkpoints=settings) as job:
        await job.stop()
    began = asyncio.get_running_loop().time()
    with pytest.raises(AsyncStreamError, match=f"step '{part}': it did not open within 60 s"):
        async with build(Hang(moment)).start(checkpoints=settings, open_timeout=60):
            pass
    assert 60 <= asyncio.get_running_loop().time() - began < 90
    async with build(Hang("")).start(checkpoints=settings):
        pass  # its lease was given back


async def test_sink_that_goes_on_when_it_is_cancelled_is_given_no_more() -> None:
    class Swallows(Sink[int]):
        writes = 0

        async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
            self.writes += 1
            try:
                await asyncio.sleep(100_000)
            except asyncio.CancelledError:
                pass

    pipeline = Pipeline()
    sink = Swallows()
    pipeline.source(BadSource(Hang("")), name="in").to(sink, name="out")
    with pytest.raises(Boom):
        async with pipeline.start():
            await asyncio.sleep(1)
            boom()
    assert sink.writes == 1


async def test_sink_that_does_not_prepare_when_all_is_written_leaves_no_task_behind() -> None:
    class Unplaced(Source[int]):
        has_ended = False

        async def read(self) -> SourceBatch[int] | None:
            self.has_ended = True
            return None

        def position(self) -> int:
            return boom() if self.has_ended else 0

    class Unprepared(BadSink, TransactionalSink[int]):
        async def recover(self, position: object) -> None:
            pass

        async def prepare(self, epoch: int) -> int:
            if epoch > 1:
                await asyncio.sleep(100_000)
            return epoch

        async def commit(self, epoch: int) -> None:
            pass

    pipeline = Pipeline()
    pipeline.source(Unplaced(), name="in").to(Unprepared(Hang("")), name="out")
    settings = Checkpoints(store=MemoryStore(), every=None, tolerate=0)
    with pytest.raises(CheckpointError):
        async with pipeline.start(checkpoints=settings) as job:
            await job.wait()
    assert len(asyncio.all_tasks()) == 1


async def test_source_that_swallows_one_cancellation_ends_with_what_it_then_gave() -> None:
    class Swallows(Source[int]):
        count = 0

        async def read(self) -> SourceBatch[int] | None:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                pass
            self.count += 1
            return SourceBatch([self.count])

    seen: list[int] = []
    source = Swallows()
    pipeline = Pipeline()
    pipeline.source(source, name="in").to(seen, name="out")

    async with pipeline.start() as job:
        await asyncio.sleep(3.5)
        await job.drain()
    assert seen == list(range(1, source.count + 1)) == [1, 2, 3, 4]


async def test_drain_that_takes_long_names_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60), pipeline_with("call", Hang("call")).start() as job:
            await asyncio.sleep(1)
            await job.drain()
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["pipeline 'pipeline' takes in no more, and has waited 30 s for: 'bad'"]


@pytest.mark.parametrize("seconds", [0, 1], ids=["while it runs", "when it has finished"])
async def test_job_that_was_drained_waits_for_nothing_in_the_rest_of_its_block(
    caplog: pytest.LogCaptureFixture, seconds: float
) -> None:
    pipeline = Pipeline()
    pipeline.source([1, 2]).to([])
    async with pipeline.start() as job:
        await asyncio.sleep(seconds)
        await job.drain()
        await asyncio.sleep(60)
    assert caplog.records == []


async def test_source_that_ends_while_sinks_still_write_is_none_that_ignored_its_cancellation() -> None:
    class Slow(Sink[int]):
        async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
            await asyncio.sleep(15)

    pipeline = Pipeline()
    # of the cancellations, one each second, the last that it gets in its time is the tenth
    source = SlowToEnd(seconds=12)
    pipeline.source(source, name="in").to(Slow(), name="out")
    async with pipeline.start() as job:
        await asyncio.sleep(0.1)
        snapshot = await job.stop(timeout=60)
    assert snapshot.sources == {"in": 1}
    assert job.state == "stopped"


class SlowToEnd(Source[int]):
    """Gives one element; a read that is cancelled goes on for so many seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.count = 0

    def position(self) -> int:
        return self.count

    async def read(self) -> SourceBatch[int] | None:
        if not self.count:
            self.count = 1
            return SourceBatch([1])
        now, until = asyncio.get_running_loop().time, None
        while until is None or now() < until:
            try:
                await asyncio.sleep(1_000 if until is None else until - now())
            except asyncio.CancelledError:
                until = until or now() + self.seconds
        return SourceBatch([])
