"""A job with checkpoints: what was accepted is finished once, whatever happens in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    CheckpointError,
    Checkpoints,
    Count,
    CumulativeWindows,
    DirectoryStore,
    KeyedContext,
    KeyedProcessFunction,
    MemoryStore,
    Pipeline,
    PipelineError,
    SessionWindows,
    SlidingWindows,
    Source,
    SourceBatch,
    Stream,
    Sum,
    TumblingWindows,
)
from asyncstream.checkpoint import History
from asyncstream.checkpoint.format import unpack_info
from asyncstream.codec import JsonCodec
from asyncstream.elements import Timestamps
from asyncstream.errors import LeaseHeld, LeaseLost, SinkError, UserFunctionError
from asyncstream.lease import Holder, Lease
from asyncstream.runtime.aio.checkpoints import LONGEST_PAUSE
from asyncstream.state import ValueDescriptor
from tests.runtime.parts import Ledger, Log, LoggedSink, sleeping


class Faulty(MemoryStore):
    """A store that fails or dawdles when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.seconds = 0.0

    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        await super().commit(lease, number, manifest)


class Crash(Exception):
    """Ends a job from inside its block, which stops it at once."""


async def crash_after(pipeline: Pipeline, checkpoints: Checkpoints, seconds: float) -> None:
    with pytest.raises(Crash):  # noqa: PT012
        async with pipeline.start(checkpoints=checkpoints):
            await asyncio.sleep(seconds)
            raise Crash


def numbers(ledger: Ledger, count: int = 200, *, seconds: float = 0.01) -> Pipeline:
    pipeline = Pipeline("numbers")
    pipeline.source(list(range(count)), name="source").async_map(
        sleeping(seconds), name="call", concurrency=5
    ).to(ledger, name="sink")
    return pipeline


# ---------------------------------------------------------------------- going on


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_nothing_is_lost_or_doubled_over_many_crashes() -> None:
    ledger, store = Ledger(), MemoryStore()
    for number in range(12):
        checkpoints = Checkpoints(store=store, every=0.02)
        await crash_after(numbers(ledger), checkpoints, 0.013 * (number % 4))
    await numbers(ledger).run(checkpoints=Checkpoints(store=store))
    assert ledger.rows == list(range(200))
    assert ledger.committed == 200


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_finished_job_started_again_writes_nothing_more() -> None:
    ledger, store = Ledger(), MemoryStore()
    for _ in range(3):
        await numbers(ledger).run(checkpoints=Checkpoints(store=store))
    assert ledger.rows == list(range(200))
    newest = (await store.numbers())[-1]
    assert unpack_info(await store.read(newest)).finished


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_first_checkpoint_is_taken_before_anything_is_read() -> None:
    store, ledger = MemoryStore(), Ledger()
    read: list[int] = []

    class Watched(list[int]):
        def __iter__(self) -> Any:
            read.append(len(store._kept))
            return super().__iter__()

    pipeline = Pipeline()
    pipeline.source(Watched([1, 2]), name="s").to(ledger, name="t")
    await pipeline.run(checkpoints=Checkpoints(store=store))
    assert ledger.rows == [1, 2]
    assert await store.numbers() == [1, 2]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_plain_sink_gets_everything_at_least_once() -> None:
    store, sink = MemoryStore(), LoggedSink(Log(), delay=0.003)

    def build() -> Pipeline:
        pipeline = Pipeline()
        pipeline.source(list(range(200)), name="s").async_map(sleeping(0.01), name="c").to(sink, name="t")
        return pipeline

    for _ in range(6):
        await crash_after(build(), Checkpoints(store=store, every=0.004), 0.012)
    await build().run(checkpoints=Checkpoints(store=store))
    assert set(sink.values) == set(range(200))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_results_that_nobody_has_taken_come_again() -> None:
    store, pipeline = MemoryStore(), Pipeline()
    pipeline.submissions(name="in").results(name="out")
    with pytest.raises(Crash):  # noqa: PT012
        async with pipeline.start(checkpoints=Checkpoints(store=store)) as job:
            await job.submit("a")
            await asyncio.sleep(0.1)
            await job.checkpoint()
            raise Crash
    async with pipeline.start(checkpoints=Checkpoints(store=store)) as job:
        assert await anext(job.results()) == "a"


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_submissions_accepted_before_a_checkpoint_are_not_lost() -> None:
    store, ledger, pipeline = MemoryStore(), Ledger(), Pipeline()
    pipeline.submissions(name="in").async_map(sleeping(5.0), name="call").to(ledger, name="out")
    with pytest.raises(Crash):  # noqa: PT012
        async with pipeline.start(checkpoints=Checkpoints(store=store)) as job:
            for number in range(10):
                await job.submit(number)
            await job.checkpoint()
            raise Crash
    async with pipeline.start(checkpoints=Checkpoints(store=store)) as job:
        await job.drain()
    assert ledger.rows == list(range(10))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_mutated_element_is_kept_as_it_was_at_the_cut() -> None:
    """User code changes its element while the checkpoint is being written."""

    store, ledger, pipeline = Faulty(), Ledger(), Pipeline()
    store.seconds = 1.0

    async def change(element: dict[str, Any]) -> dict[str, Any]:
        before = dict(element)
        await asyncio.sleep(1.5)
        element["seen"] = True
        await asyncio.sleep(100)
        return before

    pipeline.source([{"id": 1}], name="s").async_map(change, name="c").to(ledger, name="t")
    checkpoints = Checkpoints(store=store)
    with pytest.raises(Crash):  # noqa: PT012
        async with pipeline.start(checkpoints=checkpoints) as job:
            await asyncio.sleep(1)
            await job.checkpoint()
            raise Crash
    _, states = await History(store, JsonCodec()).read(2)
    assert states["c"] == [["call", {"id": 1}, None]]


# ---------------------------------------------------------------------- every kind of step


class Running(KeyedProcessFunction[Any, Any]):
    """Counts per key, and says so once the key has been silent for 30 ms."""

    def open(self, ctx: KeyedContext) -> None:
        self.count = ctx.state(ValueDescriptor[int]("count", default=0))
        self.due = ctx.state(ValueDescriptor[int]("due"))

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        self.count.set((self.count.get() or 0) + 1)
        before, due = self.due.get() or 0, ctx.timestamp + 30
        if due > before:
            ctx.delete_event_timer(before)
            ctx.register_event_timer(due)
            self.due.set(due)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        out((ctx.key, timestamp, self.count.get()))


def by_key(value: Any) -> Any:
    return value["key"]


STEPS: dict[str, Callable[[Stream[Any]], Stream[Any]]] = {
    "tumbling": lambda s: s.key_by(by_key).window(TumblingWindows(0.02)).aggregate(n=Count(), name="w"),
    "tumbling_late": lambda s: (
        s.key_by(by_key).window(TumblingWindows(0.02)).allowed_lateness(0.01).aggregate(n=Count(), name="w")
    ),
    "sliding": lambda s: s.key_by(by_key).window(SlidingWindows(0.03, 0.01)).aggregate(n=Sum("v"), name="w"),
    "cumulative": lambda s: (
        s.key_by(by_key).window(CumulativeWindows(0.04, 0.01)).aggregate(n=Sum("v"), name="w")
    ),
    "session": lambda s: s.key_by(by_key).window(SessionWindows(0.01)).aggregate(n=Count(), name="w"),
    "count": lambda s: s.key_by(by_key).count_window(5, 2).aggregate(n=Sum("v"), name="w"),
    "process": lambda s: s.key_by(by_key).process(Running(), name="w"),
    "union": lambda s: (
        s.union(s.map(lambda v: {**v, "v": 0}, name="m"), name="u")
        .key_by(by_key)
        .window(TumblingWindows(0.02))
        .aggregate(n=Sum("v"), c=Count(), name="w")
    ),
    "two_windows": lambda s: (
        s.key_by(by_key)
        .window(TumblingWindows(0.01))
        .aggregate(n=Count(), name="w")
        .key_by(lambda r: None)
        .window(TumblingWindows(0.05))
        .aggregate(n=Count(), name="w2")
    ),
    "policy": lambda s: s.map(lambda v: v["id"], name="id").policy_window(length=7, slide=3, name="w"),
}
CASES = [
    (step, order)
    for step in STEPS
    for order in ("ordered", "event_time", "per_key")
    # where it matters in what order elements of one time come, only some orders say so
    if order == "ordered" or step not in ("count", "policy") or (step, order) == ("count", "per_key")
]


@pytest.mark.parametrize(("step", "order"), CASES)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_restored_midway_gives_what_an_uninterrupted_run_gives(step: str, order: str) -> None:
    """With late elements too: a restored pipeline knows how far event time had come."""
    events: list[dict[str, Any]] = [
        {"id": n, "key": f"k{n % 4}", "v": n % 5, "at": n - (13 * n) % 11} for n in range(300)
    ]

    def build(ledger: Ledger) -> Pipeline:
        async def call(event: dict[str, Any]) -> dict[str, Any]:
            await asyncio.sleep(0.001 * (event["id"] % 7))
            return event

        pipeline = Pipeline()
        stream: Any = pipeline.source(events, name="s").event_time(
            lambda event: event["at"], BoundedOutOfOrderness(0.004), name="time"
        )
        if order == "per_key":
            stream = stream.key_by(by_key)
        results = STEPS[step](stream.async_map(call, name="call", order=order, concurrency=8))
        results.map(repr, name="text").to(ledger, name="sink")
        return pipeline

    whole, broken, store = Ledger(), Ledger(), MemoryStore()
    await build(whole).run()
    for number in range(14):
        await crash_after(build(broken), Checkpoints(store=store, every=0.005), 0.012 + 0.001 * number)
    await build(broken).run(checkpoints=Checkpoints(store=store))
    assert whole.rows, "nothing was compared"
    assert sorted(broken.rows) == sorted(whole.rows)


# ---------------------------------------------------------------------- requests


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_requests_made_while_one_is_under_way_share_the_next() -> None:
    ledger, store = Ledger(), Faulty()
    store.seconds = 1.0
    async with numbers(ledger, seconds=1.0).start(checkpoints=Checkpoints(store=store)) as job:
        first = asyncio.create_task(job.checkpoint())
        await asyncio.sleep(0.5)
        others = [asyncio.create_task(job.checkpoint()) for _ in range(5)]
        infos = await asyncio.gather(first, *others)
        assert [info.id for info in infos] == [2, 3, 3, 3, 3, 3]
        assert job.checkpoint_metrics()["taken"] == 3


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_cancelled_request_disturbs_nobody() -> None:
    ledger, store = Ledger(), Faulty()
    store.seconds = 1.0
    async with numbers(ledger).start(checkpoints=Checkpoints(store=store)) as job:
        request = asyncio.create_task(job.checkpoint())
        other = asyncio.create_task(job.checkpoint())
        await asyncio.sleep(0.1)
        request.cancel()
        assert (await other).id == 2
    assert ledger.rows == list(range(200))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_request_without_checkpoints_is_refused() -> None:
    async with numbers(Ledger()).start() as job:
        with pytest.raises(PipelineError, match="checkpoints="):
            await job.checkpoint()
        assert job.checkpoint_metrics() == {}


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_request_that_a_failure_of_the_job_overtakes_is_told_in_its_block() -> None:
    """One that is under way comes to its end; none is begun any more, and nobody waits for that."""
    ledger, store = Ledger(), Faulty()
    pipeline = Pipeline("asked")
    orders = pipeline.submissions(name="orders")
    orders.map(lambda order: 1 // order, name="divide").to(ledger, name="sink")
    with pytest.raises(UserFunctionError, match="division"):  # noqa: PT012
        async with pipeline.start(checkpoints=Checkpoints(store=store)) as job:
            store.seconds = 5.0
            begun = asyncio.create_task(job.checkpoint())
            await asyncio.sleep(1)
            asked = asyncio.create_task(job.checkpoint())
            await asyncio.sleep(1)
            await job.submit(0)
            await asyncio.wait({begun, asked}, timeout=60)
            told = [task.done() and task.exception() for task in (begun, asked)]
    assert told[0] is None
    assert isinstance(told[1], CheckpointError)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_request_that_the_end_of_the_job_overtakes_is_told() -> None:
    store = Faulty()
    with pytest.raises(Crash):  # noqa: PT012
        async with numbers(Ledger(), seconds=9.0).start(checkpoints=Checkpoints(store=store)) as job:
            store.seconds = 5.0
            request = asyncio.create_task(job.checkpoint())
            await asyncio.sleep(0.1)
            raise Crash
    with pytest.raises(CheckpointError, match="the job ended"):
        await request
    with pytest.raises(CheckpointError, match="no more"):
        await job.checkpoint()


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_so_many_are_kept() -> None:
    store = MemoryStore()
    await numbers(Ledger()).run(checkpoints=Checkpoints(store=store, every=0.01, keep=2))
    kept = await store.numbers()
    assert len(kept) == 2
    assert kept[1] > 10


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_calls_in_flight_are_neither_waited_for_nor_disturbed() -> None:
    ledger, pipeline = Ledger(), Pipeline()
    calls: list[int] = []

    async def call(value: int) -> int:
        calls.append(value)
        await asyncio.sleep(10)
        return value

    pipeline.source([1, 2, 3], name="s").async_map(call, name="c").to(ledger, name="t")
    async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=0.5)) as job:
        await asyncio.sleep(1)
        before = asyncio.get_running_loop().time()
        await job.checkpoint()
        assert asyncio.get_running_loop().time() == before
        await job.wait()
    assert calls == [1, 2, 3]
    assert ledger.rows == [1, 2, 3]


# ---------------------------------------------------------------------- failures


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_failing_store_is_borne_for_a_while_and_nothing_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ledger, store = Ledger(), Faulty()
    async with numbers(ledger).start(checkpoints=Checkpoints(store=store, tolerate=3)) as job:
        store.error = OSError(28, "No space left on device")
        for _ in range(3):
            with pytest.raises(CheckpointError, match="No space left"):
                await job.checkpoint()
        assert job.checkpoint_metrics()["failed_in_a_row"] == 3
        store.error = None
        await job.checkpoint()
        assert job.checkpoint_metrics()["failed_in_a_row"] == 0
        assert job.checkpoint_metrics()["failed"] == 3
        await job.wait()
    assert ledger.rows == list(range(200))
    assert ledger.committed == 200
    assert "No space left" in caplog.text


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_too_many_failures_in_a_row_fail_the_job_and_another_goes_on() -> None:
    ledger, store = Ledger(), Faulty()
    checkpoints = Checkpoints(store=store, every=0.01, tolerate=2)
    with pytest.raises(CheckpointError, match="read-only"):  # noqa: PT012
        async with numbers(ledger).start(checkpoints=checkpoints) as job:
            await asyncio.sleep(0.05)
            store.error = OSError(30, "read-only file system")
            await job.wait()
    assert job.checkpoint_metrics()["failed_in_a_row"] == 3
    store.error = None
    await numbers(ledger).run(checkpoints=checkpoints)
    assert ledger.rows == list(range(200))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_store_that_cannot_be_written_keeps_the_job_from_starting() -> None:
    ledger, store = Ledger(), Faulty()
    store.error = PermissionError(13, "Permission denied")
    with pytest.raises(CheckpointError, match="Permission denied"):
        await numbers(ledger).run(checkpoints=Checkpoints(store=store))
    assert ledger.rows == []


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_slow_store_does_not_hold_the_pipeline() -> None:
    ledger, store = Ledger(), Faulty()
    async with numbers(ledger).start(checkpoints=Checkpoints(store=store, every=0.01)) as job:
        store.seconds = 50.0
        await asyncio.sleep(1)
        assert job.metrics()["sink"]["written"] == 200
        store.seconds = 0.0


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_checkpoint_that_takes_too_long_has_failed() -> None:
    ledger, store = Ledger(), Faulty()
    checkpoints = Checkpoints(store=store, timeout=1)
    async with numbers(ledger, seconds=0.5).start(checkpoints=checkpoints) as job:
        store.seconds = 50.0
        with pytest.raises(CheckpointError, match="too long"):
            await job.checkpoint()
        store.seconds = 0.0
        await job.checkpoint()
        await job.drain()
    assert ledger.committed == 200


@pytest.mark.parametrize("moment", ["prepare", "commit"])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_sink_that_fails_in_a_checkpoint_costs_that_one_only(moment: str) -> None:
    ledger, store = Ledger(), MemoryStore()
    async with numbers(ledger).start(checkpoints=Checkpoints(store=store)) as job:
        ledger.fails.add(moment)
        with pytest.raises(CheckpointError, match=f"'sink'.*{moment}"):
            await job.checkpoint()
        ledger.fails.clear()
        await job.drain()
    assert ledger.rows == list(range(200))
    assert ledger.committed == 200


@pytest.mark.parametrize("moment", ["prepare", "save", "commit"])
@pytest.mark.parametrize("at", [0.05, 0.15, 0.25])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_crash_in_the_middle_of_a_checkpoint(
    moment: str, at: float, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, store = Ledger(), Faulty()
    pipeline = numbers(ledger)
    with pytest.raises(Crash):  # noqa: PT012
        async with pipeline.start(checkpoints=Checkpoints(store=store)) as job:
            await asyncio.sleep(at)
            store.seconds = 9.0 if moment == "save" else 0.0
            ledger.slow = {moment: 9.0}
            request = asyncio.create_task(job.checkpoint())
            await asyncio.sleep(1)
            raise Crash
    with pytest.raises(CheckpointError, match="the job ended"):
        await request
    assert job.checkpoint_metrics()["failed"] == 0, "it was given up"
    assert not caplog.records
    ledger.slow, store.seconds = {}, 0.0
    await numbers(ledger).run(checkpoints=Checkpoints(store=store))
    assert ledger.rows == list(range(200))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_last_checkpoint_is_tried_again() -> None:
    ledger, store = Ledger(), Faulty()
    async with numbers(ledger, 5).start(checkpoints=Checkpoints(store=store)) as job:
        store.error = OSError("busy")
        wait = asyncio.create_task(job.wait())
        await asyncio.sleep(0.2)
        store.error = None
        await wait
    assert ledger.committed == 5


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_last_checkpoint_that_fails_for_good_fails_the_job() -> None:
    ledger, store = Ledger(), Faulty()
    with pytest.raises(CheckpointError, match="busy"):  # noqa: PT012
        async with numbers(ledger, 5).start(checkpoints=Checkpoints(store=store)) as job:
            store.error = OSError("busy")
            await job.wait()
    assert ledger.committed == 0
    store.error = None
    await numbers(ledger, 5).run(checkpoints=Checkpoints(store=store))
    assert ledger.rows == list(range(5))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_last_checkpoint_that_may_fail_often_ends_the_job_in_time() -> None:
    store = Faulty()
    with pytest.raises(CheckpointError, match="busy"):  # noqa: PT012
        async with numbers(Ledger(), 5).start(checkpoints=Checkpoints(store=store, tolerate=30)) as job:
            store.error = OSError("busy")
            async with asyncio.timeout(30 * LONGEST_PAUSE):
                await job.wait()


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_value_that_cannot_be_kept_fails_the_job_and_names_its_step() -> None:
    pipeline = Pipeline()
    pipeline.source([object()], name="s").async_map(sleeping(99.0), name="call").to(Ledger(), name="t")
    with pytest.raises(CheckpointError, match=r"step 'call'.*object"):
        async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=0.1)) as job:
            await job.wait()


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_sink_without_a_position_is_told_so() -> None:
    class Forgetful(Ledger):
        async def prepare(self, epoch: int) -> Any:
            await super().prepare(epoch)

    with pytest.raises(CheckpointError, match=r"'sink'.*no position"):
        await numbers(Forgetful()).run(checkpoints=Checkpoints(store=MemoryStore()))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_a_position_is_what_it_was_when_it_was_given() -> None:
    """The sink gives one object, and changes it as it writes on while another sink still prepares."""

    class Moving(Ledger):
        def __init__(self) -> None:
            super().__init__()
            self.place = [0]

        async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
            await super().write(values, timestamps)
            self.place[0] = len(self.rows)

        async def prepare(self, epoch: int) -> Any:
            await super().prepare(epoch)
            return self.place

        async def recover(self, position: Any) -> None:
            await super().recover(position and position[0])

    slow, moving, store = Ledger(), Moving(), MemoryStore()
    slow.slow = {"prepare": 0.1}

    def build() -> Pipeline:
        pipeline = Pipeline("numbers")
        calls = pipeline.source(list(range(200)), name="source").async_map(
            sleeping(0.01), name="call", concurrency=5
        )
        calls.to(slow, name="slow")
        calls.to(moving, name="moving")
        return pipeline

    await crash_after(build(), Checkpoints(store=store, every=0.05), 0.3)
    await build().run(checkpoints=Checkpoints(store=store))
    assert slow.rows == moving.rows == list(range(200))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_pickle_keeps_what_json_refuses() -> None:
    store, sink = MemoryStore(), LoggedSink(Log())

    def build() -> Pipeline:
        pipeline = Pipeline()
        pipeline.source([complex(1, 2)], name="s").async_map(sleeping(1.0), name="c").to(sink, name="t")
        return pipeline

    await crash_after(build(), Checkpoints(store=store, every=0.1, codec="pickle"), 0.5)
    with pytest.raises(CheckpointError, match="codec='pickle'"):
        await build().run(checkpoints=Checkpoints(store=store))
    await build().run(checkpoints=Checkpoints(store=store, codec="pickle"))
    assert sink.values == [complex(1, 2)]


# ---------------------------------------------------------------------- stop and drain


@pytest.mark.parametrize("grace", [0.0, 5.0])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_stopped_job_is_taken_up_by_the_next(grace: float) -> None:
    ledger, store = Ledger(), MemoryStore()
    written = 0
    while len(ledger.rows) < 200:
        async with numbers(ledger, seconds=0.1).start(checkpoints=Checkpoints(store=store)) as job:
            await asyncio.sleep(0.55)
            if ledger.rows != list(range(200)):
                await job.stop(grace=grace)
        assert ledger.committed == len(ledger.rows), "a stop ends with a checkpoint"
        assert len(ledger.rows) > written
        written = len(ledger.rows)
    assert ledger.rows == list(range(200))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_grace_lets_calls_end_and_leaves_windows_open() -> None:
    ledger, store, calls, pipeline = Ledger(), MemoryStore(), Log(), Pipeline()

    async def call(value: int) -> int:
        calls.append(str(value))
        await asyncio.sleep(1)
        return value

    (
        pipeline.submissions(name="in")
        .event_time(lambda value: value, BoundedOutOfOrderness(0), name="time")
        .async_map(call, name="call", concurrency=3)
        .window_all(TumblingWindows(1))
        .aggregate(n=Count(), name="w")
        .map(lambda result: result.value["n"], name="m")
        .to(ledger, name="t")
    )
    async with pipeline.start(checkpoints=Checkpoints(store=store)) as job:
        for number in range(10):
            await job.submit(number)
        await asyncio.sleep(1.5)
        await job.stop(grace=60)
    assert asyncio.get_running_loop().time() < 5, "no longer than needed"
    assert ledger.rows == []
    async with pipeline.start(checkpoints=Checkpoints(store=store)) as job:
        for number in range(10, 20):
            await job.submit(number)
        await job.drain()
    assert ledger.rows == [20], "one window, not two halves"
    assert len(calls) == len(set(calls)) == 20, "no call was cut short and made again"


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_sink_that_does_not_write_in_time_costs_the_last_checkpoint_but_no_element() -> None:
    ledger, store = Ledger(), MemoryStore()
    async with numbers(ledger).start(checkpoints=Checkpoints(store=store)) as job:
        await asyncio.sleep(0.05)
        ledger.slow = {"write": 99.0}
        await asyncio.sleep(0.05)
        await job.stop(1.0)
    ledger.slow = {}
    await numbers(ledger).run(checkpoints=Checkpoints(store=store))
    assert ledger.rows == list(range(200))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_drained_job_can_be_gone_on_with() -> None:
    """The sources were not at their end: what comes after is not late, though event time was at its end."""

    ledger, store, pipeline = Ledger(), MemoryStore(), Pipeline()
    (
        pipeline.submissions(name="in")
        .event_time(lambda value: value, BoundedOutOfOrderness(0), name="time")
        .async_map(sleeping(0.001), name="call")
        .window_all(TumblingWindows(0.01))
        .aggregate(n=Count(), name="w")
        .map(lambda result: (result.start_ms, result.value["n"]), name="m")
        .to(ledger, name="out")
    )
    for start in (0, 100):
        async with pipeline.start(checkpoints=Checkpoints(store=store)) as job:
            for number in range(25):
                await job.submit(start + number)
            await job.drain()
    assert ledger.rows == [(0, 10), (10, 10), (20, 5), (100, 10), (110, 10), (120, 5)]


# ---------------------------------------------------------------------- changed pipelines


def changed(ledger: Ledger, **options: Any) -> Pipeline:
    pipeline = Pipeline()
    stream = pipeline.source(list(range(100)), name="source")
    if "extra" in options:
        stream = stream.map(lambda value: value, name="extra")  # type: ignore[assignment]
    keyed: Any = stream.key_by(lambda value: value % 3) if options.get("order") == "per_key" else stream
    call = keyed.async_map(
        sleeping(0.01),
        name=options.get("name", "call"),
        order=options.get("order", "ordered"),
        concurrency=options.get("concurrency", 20),
        buffer=options.get("buffer"),
    )
    call.to(ledger, name="sink")
    return pipeline


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 1},
        {"concurrency": 100},
        {"concurrency": 2, "buffer": 2},
        {"order": "unordered"},
        {"order": "event_time"},
        {"order": "per_key"},
        {"extra": True},
    ],
    ids=str,
)
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_settings_may_change_between_two_runs(options: dict[str, Any]) -> None:
    ledger, store = Ledger(), MemoryStore()
    await crash_after(changed(ledger), Checkpoints(store=store, every=0.01), 0.035)
    await changed(ledger, **options).run(checkpoints=Checkpoints(store=store))
    assert sorted(ledger.rows) == list(range(100))
    if options.get("order") == "per_key":
        for key in range(3):
            of_key = [value for value in ledger.rows if value % 3 == key]
            assert of_key == sorted(of_key)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_removed_step_is_refused_unless_it_may_be_dropped_or_has_a_new_name() -> None:
    ledger, store = Ledger(), MemoryStore()
    await crash_after(changed(ledger), Checkpoints(store=store, every=0.01), 0.035)
    renamed = changed(ledger, name="lookup")
    with pytest.raises(CheckpointError, match=r"'call'.*renamed=.*allow_dropped="):
        await renamed.run(checkpoints=Checkpoints(store=store))
    await crash_after(renamed, Checkpoints(store=store, renamed={"call": "lookup"}, every=0.01), 0.02)
    await renamed.run(checkpoints=Checkpoints(store=store, renamed={"call": "lookup"}))
    assert ledger.rows == list(range(100))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_dropped_step_takes_its_elements_with_it() -> None:
    ledger, store = Ledger(), MemoryStore()
    await crash_after(changed(ledger), Checkpoints(store=store, every=0.01), 0.035)
    settings = Checkpoints(store=store, allow_dropped=["call"])
    await changed(ledger, name="other").run(checkpoints=settings)
    assert 0 < len(ledger.rows) < 100


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_step_of_another_kind_does_not_get_the_state() -> None:
    ledger, store, pipeline = Ledger(), MemoryStore(), Pipeline()
    await crash_after(changed(ledger), Checkpoints(store=store, every=0.01), 0.035)
    pipeline.source([1], name="source").map(str, name="call").to(ledger, name="sink")
    with pytest.raises(CheckpointError, match="'call' was a step 'async_map', and 'call' is a step 'map'"):
        await pipeline.run(checkpoints=Checkpoints(store=store))


def test_new_name_must_be_that_of_a_step() -> None:
    with pytest.raises(PipelineError, match="no step 'lookup'"):
        changed(Ledger()).start(checkpoints=Checkpoints(store=MemoryStore(), renamed={"call": "lookup"}))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_restore_can_be_left_out_or_go_back() -> None:
    store, sink = MemoryStore(), LoggedSink(Log())
    pipeline = Pipeline()
    pipeline.source(list(range(5)), name="s").to(sink, name="t")
    await pipeline.run(checkpoints=Checkpoints(store=store))
    await pipeline.run(checkpoints=Checkpoints(store=store, restore="none"))
    assert sink.values == [*range(5), *range(5)]
    await pipeline.run(checkpoints=Checkpoints(store=store, restore=3))
    assert len(sink.values) == 15
    await pipeline.run(checkpoints=Checkpoints(store=store))
    assert len(sink.values) == 15
    with pytest.raises(CheckpointError, match="no checkpoint 99"):
        await pipeline.run(checkpoints=Checkpoints(store=store, restore=99))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_snapshot_and_checkpoints_are_two_ways_to_go_on() -> None:
    async with numbers(Ledger()).start() as job:
        snapshot = await job.stop()
    with pytest.raises(PipelineError, match="not from both"):
        numbers(Ledger()).start(snapshot=snapshot, checkpoints=Checkpoints(store=MemoryStore()))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_steps_that_remember_and_have_no_name_are_refused() -> None:
    pipeline = Pipeline()
    stream = pipeline.source([1]).map(abs).async_map(sleeping(1.0))
    stream.to(Ledger())
    stream.filter(bool).discard()  # nobody misses what waits to be thrown away
    with pytest.raises(
        PipelineError,
        match=r"'source', 'async_map', 'sink'; give each a name=, e\.g\. \.source\(.*\), that stays",
    ):
        pipeline.start(checkpoints=Checkpoints(store=MemoryStore()))
    await pipeline.run()


async def test_of_a_step_without_an_example_no_example_is_given() -> None:
    pipeline = Pipeline()
    prices, orders = (
        pipeline.source([1], name=name)
        .event_time(int, AscendingTimestamps(), name=f"{name} times")
        .key_by(int)
        for name in ("prices", "orders")
    )
    orders.as_of(prices).discard()
    with pytest.raises(
        PipelineError, match=r"'as_of'; give each a name= that stays when the pipeline changes$"
    ):
        pipeline.start(checkpoints=Checkpoints(store=MemoryStore()))


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_what_is_thrown_away_is_in_no_checkpoint() -> None:
    pipeline, store = Pipeline(), MemoryStore()
    pipeline.source([1, 2], name="s").discard()
    await pipeline.run(checkpoints=Checkpoints(store=store))
    newest = (await store.numbers())[-1]
    assert list(unpack_info(await store.read(newest)).steps) == ["s"]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_clock_set_back_between_two_runs_loses_nothing() -> None:
    class Clock:
        def __init__(self, offset_ms: int) -> None:
            self.offset_ms = offset_ms

        def now_ms(self) -> int:
            return int(asyncio.get_running_loop().time() * 1000) + self.offset_ms

    ledger, store = Ledger(), MemoryStore()

    def build() -> Pipeline:
        pipeline = Pipeline()
        (
            pipeline.source(list(range(50)), name="s")
            .async_map(sleeping(0.01), name="c", concurrency=2)
            .window_all(TumblingWindows(0.05, time="processing"))
            .aggregate(n=Count(), name="w")
            .map(lambda result: result.value["n"], name="m")
            .to(ledger, name="t")
        )
        return pipeline

    with pytest.raises(Crash):  # noqa: PT012
        async with build().start(clock=Clock(10_000_000), checkpoints=Checkpoints(store=store, every=0.01)):
            await asyncio.sleep(0.1)
            raise Crash
    await build().run(clock=Clock(0), checkpoints=Checkpoints(store=store))
    assert sum(ledger.rows) == 50


# ---------------------------------------------------------------------- guarantees


def test_guarantees_are_known_before_the_run(tmp_path: Path) -> None:
    pipeline = Pipeline()
    replayable = pipeline.source([1, 2], name="list")
    submitted = pipeline.submissions(name="submitted")
    joined = replayable.union(submitted, name="both")
    joined.to(Ledger(), name="ledger")
    joined.to(print, name="screen")
    submitted.discard()
    levels = {(way.source, way.sink): way.level for way in pipeline.guarantees()}
    assert levels == {
        ("list", "ledger"): "exactly once",
        ("list", "screen"): "at least once",
        ("submitted", "ledger"): "at most once",
        ("submitted", "screen"): "none",
    }
    assert "list -> screen  at least once: the sink cannot take back" in pipeline.describe(checkpoints=True)
    assert "at least once" not in pipeline.describe()


class Member(Source[int]):
    """A member of a group, of whose splits some move away."""

    hands_over = True

    def __init__(self) -> None:
        self.names = iter((("a", "b"), (), ("a",), ("a",)))
        self.now: tuple[str, ...] = ()

    async def read(self) -> SourceBatch[int] | None:
        now = next(self.names, None)
        if now is None:
            return None
        self.now = now
        return SourceBatch([1], [0], split=now[0]) if now else SourceBatch([])

    def splits(self) -> tuple[str, ...]:
        return self.now

    async def seek(self, position: Any) -> None: ...


def members(*, counts: bool) -> Pipeline:
    pipeline = Pipeline()
    stream = pipeline.source(Member(), name="in").async_map(sleeping(0), name="calls")
    if counts:
        stream.key_by(str).process(Running(), name="counts").to(Ledger(), name="out")
    else:
        stream.to(Ledger(), name="out")
    return pipeline


@pytest.mark.parametrize("counts", [False, True])
async def test_what_does_not_move_with_a_split_is_told_of(
    counts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    (way,) = members(counts=counts).guarantees()
    assert way.level == "at least once"
    assert ("what 'counts' remembers of a split does not move with it" in way.reason) is counts
    await members(counts=counts).run()
    told = [record.getMessage() for record in caplog.records]
    assert [text for text in told if "b went, none came; what 'counts' remembers" in text] == told
    assert len(told) == counts


async def test_checkpoints_on_disk_serve_a_job(tmp_path: Path) -> None:
    ledger = Ledger()
    checkpoints = Checkpoints(store=DirectoryStore(tmp_path / "kept"), every=0.02)
    for _ in range(3):
        try:
            async with numbers(ledger).start(checkpoints=checkpoints):
                await asyncio.sleep(0.1)
                raise Crash
        except Crash:
            pass
    await numbers(ledger).run(checkpoints=checkpoints)
    assert ledger.rows == list(range(200))


# ---------------------------------------------------------------------- one writer, one pipeline


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_second_job_on_a_store_is_refused_or_waits() -> None:
    store, ledger, other = MemoryStore(), Ledger(), Ledger()
    async with numbers(ledger, seconds=0.1).start(checkpoints=Checkpoints(store=store)) as job:
        with pytest.raises(LeaseHeld, match=r"in use by process \d+.*on_held='wait'"):
            await numbers(other).run(checkpoints=Checkpoints(store=store))
        standby = copy(ledger)  # of the same rows, as another process has it
        waiting = asyncio.create_task(
            numbers(standby).run(checkpoints=Checkpoints(store=store, on_held="wait"))
        )
        await asyncio.sleep(0.5)
        assert not waiting.done()
        await job.stop()
    await waiting
    assert ledger.rows == list(range(200))
    assert other.rows == []


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_job_waits_on_while_the_store_is_out_of_reach(caplog: pytest.LogCaptureFixture) -> None:
    class Away(MemoryStore):
        is_away = False

        async def acquire(self, holder: Holder, seconds: float) -> Lease:
            if self.is_away:
                raise OSError("stale file handle")
            return await super().acquire(holder, seconds)

    store, ledger = Away(), Ledger()
    async with numbers(ledger, seconds=0.1).start(checkpoints=Checkpoints(store=store)) as job:
        store.is_away = True
        late = Checkpoints(store=store, on_held="wait")
        with pytest.raises(
            CheckpointError, match="memory could not give a lease: OSError: stale file handle"
        ):
            await numbers(copy(ledger)).run(checkpoints=late)
        store.is_away = False
        waiting = asyncio.create_task(numbers(copy(ledger)).run(checkpoints=late))
        await asyncio.sleep(0.5)
        store.is_away = True
        await asyncio.sleep(5)
        await job.stop()
    store.is_away = False
    await waiting
    assert ledger.rows == list(range(200))
    told = [record.getMessage() for record in caplog.records if record.getMessage().startswith("waiting")]
    assert [text.split(":")[0] for text in told] == [
        "waiting",
        "waiting, though memory could not be asked",
    ]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_job_that_was_followed_ends_with_an_error_and_commits_nothing_more() -> None:
    store, ledger = MemoryStore(), Ledger()
    with pytest.raises(LeaseLost, match="taken over"):  # noqa: PT012
        async with numbers(ledger).start(checkpoints=Checkpoints(store=store, lease=3.0)) as job:
            assert store._lease is not None
            store._lease = replace(store._lease, number=store._lease.number + 1)
            committed = ledger.committed
            with pytest.raises(LeaseLost):
                await job.checkpoint()
            await job.wait()
    assert ledger.committed == committed


@pytest.mark.parametrize("restore", ["newest", "none", 1])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_checkpoints_of_another_pipeline_are_refused_unless_it_was_renamed(restore: Any) -> None:
    def named(name: str, ledger: Ledger) -> Pipeline:
        pipeline = Pipeline(name)
        pipeline.source([1, 2], name="s").to(ledger, name="t")
        return pipeline

    store, ledger = MemoryStore(), Ledger()
    await named("orders", ledger).run(checkpoints=Checkpoints(store=store))
    kept = await store.numbers()
    with pytest.raises(CheckpointError, match=r"'orders'.*'clicks'.*pipeline_was='orders'"):
        await named("clicks", ledger).run(checkpoints=Checkpoints(store=store, restore=restore))
    assert await store.numbers() == kept
    if restore == "newest":
        for _ in range(2):
            await named("clicks", ledger).run(checkpoints=Checkpoints(store=store, pipeline_was="orders"))
        assert ledger.rows == [1, 2]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_fences_are_up_before_it_is_decided_where_to_go_on_from() -> None:
    told: list[str] = []

    class Telling(Ledger):
        async def fence(self) -> None:
            assert self.writer is not None
            told.append(f"fence {self.writer.lease.number}")

        async def can_recover(self, position: Any) -> None:
            told.append("asked")

        async def recover(self, position: Any) -> None:
            told.append("taken over")
            await super().recover(position)

    class Read(MemoryStore):
        async def acquire(self, holder: Holder, seconds: float) -> Lease:
            told.append("lease")
            return await super().acquire(holder, seconds)

        async def read(self, what: int | str) -> bytes:
            told.append("read")
            return await super().read(what)

    def both() -> Pipeline:
        pipeline = Pipeline()
        source = pipeline.source([1, 2], name="s")
        source.to(first, name="first")
        source.to(second, name="second")
        return pipeline

    first, second, store = Telling(), Telling(), Read()
    await both().run(checkpoints=Checkpoints(store=store))
    told.clear()
    await both().run(checkpoints=Checkpoints(store=store))
    assert told[:4] == ["lease", "fence 2", "fence 2", "read"]
    assert [what for what in told if what != "read"][3:] == ["asked"] * 2 + ["taken over"] * 2


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_nothing_is_changed_before_all_sinks_have_agreed() -> None:
    async def refuse(position: Any) -> None:
        raise SinkError("not from there")

    store, first, second = MemoryStore(), Ledger(), Ledger()

    def both() -> Pipeline:
        pipeline = Pipeline()
        source = pipeline.source([1, 2], name="s")
        source.to(first, name="first")
        source.to(second, name="second")
        return pipeline

    await both().run(checkpoints=Checkpoints(store=store))
    first.rows.append("written after the checkpoint")
    second.can_recover = refuse  # type: ignore[method-assign]
    with pytest.raises(SinkError, match=r"'second'.*not from there"):
        await both().run(checkpoints=Checkpoints(store=store))
    assert first.rows == [1, 2, "written after the checkpoint"]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_checkpoint_that_takes_too_long_says_what_for() -> None:
    ledger, store = Ledger(), Faulty()
    checkpoints = Checkpoints(store=store, timeout=1)
    async with numbers(ledger, seconds=1.0).start(checkpoints=checkpoints) as job:
        store.seconds = 5.0
        with pytest.raises(CheckpointError, match="after 1 s it was waiting for the store, memory"):
            await job.checkpoint()
        store.seconds = 0.0
        ledger.slow = {"prepare": 5.0}
        with pytest.raises(CheckpointError, match="waiting for step 'sink' to prepare"):
            await job.checkpoint()
        ledger.slow = {}


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_no_checkpoint_is_tried_once_too_many_have_failed() -> None:
    ledger, store = Ledger(), Faulty()
    checkpoints = Checkpoints(store=store, every=1, timeout=1, tolerate=1)
    job = numbers(ledger, seconds=1.0).start(checkpoints=checkpoints)

    async def use() -> None:
        async with job:
            ledger.slow = {"prepare": 8.0}  # as the job winds down, its sink is still busy
            await job.wait()

    with pytest.raises(CheckpointError, match="waiting for step 'sink' to prepare"):
        await use()
    assert job.checkpoint_metrics()["failed"] == 2
