"""A job that keeps its state on disk gives what one in memory gives, in little memory, or fails in words."""

from __future__ import annotations

import asyncio
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    DiskState,
    KeyedProcessFunction,
    KeyedStream,
    MemoryStore,
    Pipeline,
    PipelineError,
    SessionWindows,
    SlidingWindows,
    StateError,
    Sum,
    TumblingWindows,
)
from asyncstream.lease import Lease
from asyncstream.pipeline import WindowedStream
from asyncstream.runtime.aio import table_log
from asyncstream.runtime.aio.spilling import Spilling
from asyncstream.state import ListDescriptor, StateBackend, Stored, StoredFile, ValueDescriptor
from asyncstream.windowing import AfterWatermark, CountTrigger

KEYS = 3_000


class Adds(KeyedProcessFunction[Any, Any]):
    """Adds up for each key, notes what comes, and tells at the key's time."""

    total = ValueDescriptor[int]("total")
    notes = ListDescriptor[int]("notes")

    def open(self, ctx: Any) -> None:
        self.state = ctx.state(self.total)
        self.noted = ctx.state(self.notes)

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        key, amount, at = value
        if self.state.get() is None:
            ctx.register_event_timer(1000 + key % 700)
        if amount == 7:
            ctx.delete_event_timer(1000 + key % 700)
            ctx.register_event_timer(5000 - key)
        self.state.set((self.state.get() or 0) + amount)
        if key % 3 == 0:
            self.noted.add(at)

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None:
        out((timestamp, ctx.key, self.state.get(), self.noted.get()))
        self.state.clear()
        self.noted.clear()


def adding(out: list[Any], source: Any = None) -> Pipeline:
    pipeline = Pipeline("adding")
    stream = pipeline.submissions(name="in") if source is None else pipeline.source(source, name="in")
    (
        stream.event_time(lambda value: value[2], BoundedOutOfOrderness(0), name="times")
        .key_by(lambda value: value[0])
        .process(Adds(), name="adds")
        .to(out, name="out")
    )
    return pipeline


def elements() -> list[tuple[int, int, int]]:
    first = [(key, 1, 1) for key in range(KEYS)]
    again = [(key, 7 if key % 5 == 0 else 2, 2) for key in range(0, KEYS, 2)]
    return [*first, *again, *((key, 3, 1200 + key) for key in range(0, KEYS, 11))]


def in_memory() -> list[Any]:
    out: list[Any] = []
    adding(out, elements()).run_blocking()
    return out


async def give(job: Any, some: list[Any]) -> None:
    for number, element in enumerate(some):
        await job.submit(element)
        if number % 200 == 0:
            await asyncio.sleep(0.06)  # for young rows to be looked at


def test_gives_what_a_job_in_memory_gives(tmp_path: Path) -> None:
    out: list[Any] = []

    async def main() -> dict[str, int]:
        async with adding(out).start(state=DiskState(tmp_path / "state", young_rows=300)) as job:
            await give(job, elements())
            assert any((tmp_path / "state" / "rows").iterdir())
            step = job.metrics()["adds"]
            assert step["event_timers"] > 100
            await job.drain()
        return dict(job.metrics()["adds"])

    metrics = asyncio.run(main())
    assert out == in_memory()
    assert (metrics["state_entries"], metrics["event_timers"]) == (0, 0)
    assert not (tmp_path / "state" / "rows").exists()


class FileState(StateBackend):
    """A place of one's own: a file of SQLite."""

    young_rows = 300

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self.opened: list[Stored] = []

    def open(self) -> Stored:
        self.opened.append(StoredFile(self._path, partial(pickle.dumps, protocol=5), pickle.loads))
        return self.opened[-1]


def test_state_may_be_kept_in_a_place_of_ones_own(tmp_path: Path) -> None:
    out: list[Any] = []
    state = FileState(tmp_path / "rows")

    async def main() -> None:
        async with adding(out).start(state=state) as job:
            await give(job, elements())
            assert list(state.opened[0].scan(b"", b"\xff"))
            await job.drain()

    asyncio.run(main())
    assert out == in_memory()
    (stored,) = state.opened
    with pytest.raises(StateError, match="was closed"):
        stored.check()


WINDOWS: dict[str, Callable[[KeyedStream[Any, Any]], WindowedStream[Any, Any]]] = {
    "sessions": lambda keyed: keyed.window(SessionWindows(timedelta(milliseconds=40))),
    "tumbling": lambda keyed: keyed.window(TumblingWindows(timedelta(milliseconds=900))),
    "sliding": lambda keyed: keyed.window(
        SlidingWindows(timedelta(milliseconds=900), timedelta(milliseconds=300))
    ),
    "counted": lambda keyed: keyed.window(SessionWindows(timedelta(milliseconds=40))).trigger(
        AfterWatermark(early=CountTrigger(2))
    ),
}


@pytest.mark.parametrize("kind", WINDOWS)
def test_windows_give_what_they_give_in_memory(tmp_path: Path, kind: str) -> None:
    """Through two starts, the second from a checkpoint; late elements fire windows again."""
    store = MemoryStore()
    kept = Checkpoints(store=store, inline_bytes=2000)
    some = [element for element in elements() if element[0] < 1000 and element[2] < 3]
    some += [(key, 5, 1100) for key in range(0, KEYS, 50)]
    some += [(key, 9, 30) for key in range(0, KEYS, 9)]

    def pipeline(out: list[Any]) -> Pipeline:
        found = Pipeline("windows")
        timed = found.submissions(name="in").event_time(
            lambda value: value[2], BoundedOutOfOrderness(0), name="times"
        )
        windows = WINDOWS[kind](timed.key_by(lambda value: value[0])).allowed_lateness(
            timedelta(milliseconds=1400)
        )
        windows.aggregate(Sum(lambda value: value[1]), name="windows").to(out, name="out")
        return found

    async def run(part: list[Any], state: DiskState | None, out: list[Any], *, last: bool) -> None:
        async with pipeline(out).start(checkpoints=kept if state else None, state=state) as job:
            await give(job, part)
            if state is not None:
                tables = job._run.wiring.operators["windows"].tables
                assert max(sum(1 for _ in table._old.entries()) for table in tables) > 300
            if last:
                await job.drain()

    expected: list[Any] = []
    asyncio.run(run(some, None, expected, last=True))
    out: list[Any] = []
    for start, end in ((0, 1300), (1300, len(some))):
        state = DiskState(tmp_path / "state", young_rows=200)
        asyncio.run(run(some[start:end], state, out, last=end == len(some)))
    assert out == expected


@pytest.mark.parametrize("later", ["disk", "memory"])
def test_goes_on_from_checkpoints(tmp_path: Path, later: str) -> None:
    store, out = MemoryStore(), list[Any]()
    some = elements()
    kept = Checkpoints(store=store, inline_bytes=2000, keep=1)

    async def run(state: DiskState | None, part: list[Any], *, last: bool) -> None:
        async with adding(out).start(checkpoints=kept, state=state) as job:
            await give(job, part)
            for _ in range(3):
                await job.checkpoint()
            if last:
                await job.drain()

    cuts = (0, 1000, 2000, 3500, len(some))
    for start, end in pairwise(cuts):
        on_disk = later == "disk" or start in (0, 2000)
        state = DiskState(tmp_path / "state", young_rows=200) if on_disk else None
        asyncio.run(run(state, some[start:end], last=end == len(some)))
    assert out == in_memory()


class AskedStore(MemoryStore):
    """Notes by which tasks it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_by: Callable[[Any], None] = lambda task: None

    async def put(self, lease: Lease, part: str, data: bytes) -> None:
        self.asked_by(asyncio.current_task())
        await super().put(lease, part, data)

    async def read(self, what: int | str) -> bytes:
        self.asked_by(asyncio.current_task())
        return await super().read(what)


@pytest.mark.parametrize("small", [0, table_log.SMALL])
def test_many_changes_of_rows_on_disk_are_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    monkeypatch.setattr(table_log, "SMALL", small)
    store, out = AskedStore(), list[Any]()
    at_work, asked = set[Any](), list[bool]()

    @contextmanager
    def without_collector() -> Iterator[None]:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # in a thread that encodes
            task = None
        at_work.add(task)
        yield
        at_work.discard(task)

    # garbage does not wait for the store
    monkeypatch.setattr(table_log, "without_collector", without_collector)
    store.asked_by = lambda task: asked.append(task in at_work)
    kept = Checkpoints(store=store, inline_bytes=500, keep=1)

    async def main() -> None:
        settings = DiskState(tmp_path / "state", young_rows=100)
        async with adding(out).start(checkpoints=kept, state=settings) as job:
            await give(job, [(key, 1, 1) for key in range(KEYS)])
            for turn in range(40):
                await give(job, [(key, 1, 2) for key in range(turn, KEYS, 40)])
                await job.checkpoint()
                assert len(await store.parts()) < 200

    async def rest() -> None:
        async with adding(out).start(checkpoints=kept) as job:
            await job.drain()

    asyncio.run(main())
    assert asked
    assert not any(asked)
    asyncio.run(rest())
    assert sorted(key for _, key, _, _ in out) == list(range(KEYS))
    assert {total for _, _, total, _ in out} == {2}


def test_a_lost_directory_fails_the_job(tmp_path: Path) -> None:
    class Large(KeyedProcessFunction[int, int]):
        kept = ValueDescriptor[bytes]("kept")

        def open(self, ctx: Any) -> None:
            self.state = ctx.state(self.kept)

        def process_element(self, value: int, ctx: Any, out: Any) -> None:
            try:
                self.state.set(value.to_bytes(20_000, "big"))
            except Exception:
                out(value)  # hides it

    async def main() -> None:
        pipeline = Pipeline("large")
        keyed = pipeline.submissions(name="in").key_by(lambda value: value)
        keyed.process(Large(), name="large", on_error="skip").to([], name="out")
        async with pipeline.start(state=DiskState(tmp_path / "state", young_rows=100)) as job:
            shutil.rmtree(tmp_path / "state")
            for key in range(20_000):
                await job.submit(key)
                if key % 500 == 0:
                    await asyncio.sleep(0.06)

    with pytest.raises(Exception, match="cannot be used any more") as failed:
        asyncio.run(main())
    assert isinstance(failed.value, StateError) or isinstance(failed.value.__cause__, StateError)


@pytest.mark.usefixtures("virtual_time")
async def test_what_cannot_be_kept_on_disk_names_its_step(tmp_path: Path) -> None:
    class Large(KeyedProcessFunction[int, int]):
        def open(self, ctx: Any) -> None:
            self.state = ctx.state(ValueDescriptor[Any]("kept"))

        def process_element(self, value: int, ctx: Any, out: Any) -> None:
            self.state.set(lambda: value)

    pipeline = Pipeline("large")
    pipeline.submissions().key_by(str).process(Large(), name="large").discard()

    async def run() -> None:
        async with pipeline.start(state=DiskState(tmp_path / "state", young_rows=100)) as job:
            for key in range(200):
                await job.submit(key)
            await job.wait()

    with pytest.raises(StateError, match=r"^step 'large': what is remembered of key '.*pickle refuses it"):
        await run()


def test_two_jobs_in_one_directory(tmp_path: Path) -> None:
    async def main() -> None:
        async with adding([]).start(state=DiskState(tmp_path)):
            with pytest.raises(StateError, match="another job"):
                async with adding([]).start(state=DiskState(tmp_path)):
                    pass

    asyncio.run(main())


@pytest.mark.usefixtures("virtual_time")
async def test_a_job_that_waits_for_another_gets_its_directory(tmp_path: Path) -> None:
    class Store(MemoryStore):
        async def release(self, lease: Lease) -> None:
            await super().release(lease)
            released.set()
            await asyncio.sleep(0.1)  # a disk has its time to answer

    settings, released = DiskState(tmp_path), asyncio.Event()
    out: list[Any] = []
    kept = Checkpoints(store=Store(), on_held="wait")

    async def follow() -> None:
        async with adding(out).start(checkpoints=kept, state=settings) as job:
            await job.submit((1, 5, 1))
            await job.drain()

    async with adding(out).start(checkpoints=kept, state=settings) as job:
        await job.submit((1, 1, 1))
        following = asyncio.create_task(follow())
        await asyncio.sleep(3)
        assert not following.done()
        ending = asyncio.create_task(job.stop())
        await released.wait()
        settings.open().close()  # nobody has it any more
        await ending
    await following
    assert [(key, total) for _, key, total, _ in out] == [(1, 6)]


def test_a_directory_is_free_when_the_loop_has_ended_with_the_job_in_it(tmp_path: Path) -> None:
    async def begin() -> Any:
        job = adding([]).start(state=DiskState(tmp_path))
        await job.__aenter__()
        await job.submit((1, 1, 1))
        return job

    async def go_on() -> None:
        async with adding([]).start(state=DiskState(tmp_path)):
            pass

    with closing(asyncio.new_event_loop()) as loop:
        left = loop.run_until_complete(begin())
    asyncio.run(go_on())
    assert str(left.state) == "running"  # and nobody has collected it


def test_jobs_may_begin_in_several_threads_at_the_same_time() -> None:
    settings, no_failure = Mock(), Mock()

    async def begin() -> None:
        begun = [Spilling(settings, None, no_failure) for _ in range(150)]
        for spilling in begun:
            spilling.close({})

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as threads:
            for begins in [threads.submit(asyncio.run, begin()) for _ in range(3)]:
                begins.result(60)
    finally:
        sys.setswitchinterval(interval)


def test_what_is_no_state_is_refused() -> None:
    with pytest.raises(PipelineError, match="state: expected a DiskState"):
        adding([]).start(state="state")  # type: ignore[arg-type]


MANY = """
import asyncio, resource, sys
from asyncstream import BoundedOutOfOrderness, Checkpoints, DiskState, KeyedProcessFunction, Pipeline
from asyncstream.state import ValueDescriptor

KEYS, TEXT = 100_000, "x" * 1_000

class Keeps(KeyedProcessFunction):
    def open(self, ctx):
        self.state = ctx.state(ValueDescriptor("kept"))
        self.seen = 0
    def process_element(self, value, ctx, out):
        key, at = value
        if key >= 0 and self.state.get() is None:
            ctx.register_event_timer(10_000_000 + key)
            self.state.set(f"{key} {TEXT}")
    def on_timer(self, timestamp, ctx, out):
        if self.state.get() == f"{ctx.key} {TEXT}" and timestamp == 10_000_000 + ctx.key:
            out(ctx.key)
        self.state.clear()

def elements():
    for key in range(KEYS):
        yield key, key
    for key in range(0, KEYS, 7):
        yield key, KEYS + key
    for at in range(10_000_000, 10_000_000 + KEYS, 5_000):
        yield -1, at

async def main():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pipeline, found = Pipeline("many"), []
    source = pipeline.source(elements(), name="in")
    stream = source.event_time(lambda value: value[1], BoundedOutOfOrderness(0), name="times")
    stream.key_by(lambda value: value[0]).process(Keeps(), name="keeps").to(found, name="out")
    kept = Checkpoints(sys.argv[2], every=0.5) if len(sys.argv) > 2 else None
    await pipeline.run(state=DiskState(sys.argv[1], young_rows=5_000, cache_bytes=8 << 20), checkpoints=kept)
    assert sorted(found) == list(range(KEYS)), len(found)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

asyncio.run(main())
"""


def test_a_hundred_thousand_keys_take_little_memory(tmp_path: Path) -> None:
    """There are a hundred megabytes of state; those on disk take the buffers of RocksDB and no more."""
    run = subprocess.run(
        [sys.executable, "-c", MANY, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 110_000, "kilobytes"
