"""Checkpoints of tables cost what has changed, and hold all of it whatever fails in between."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncstream import (
    CheckpointError,
    Checkpoints,
    KeyedProcessFunction,
    MemoryStore,
    Pipeline,
)
from asyncstream.checkpoint import History
from asyncstream.codec import JsonCodec
from asyncstream.errors import CodecError
from asyncstream.lease import Holder, Lease
from asyncstream.runtime.aio import table_log
from asyncstream.runtime.aio.table_log import TableLog
from asyncstream.state import DiskRows, ListDescriptor, StoredFile, Table, Tables, ValueDescriptor
from asyncstream.testing.loop import run_virtual

KEYS = 3_000
LEASE = Lease(1, "place", Holder.here(0), 0)


class Adds(KeyedProcessFunction[tuple[int, int], Any]):
    """Adds up; asks for a second state only when an element says so."""

    total = ValueDescriptor[int]("total")

    def open(self, ctx: Any) -> None:
        self.state = ctx.state(self.total)

    def process_element(self, value: tuple[int, int], ctx: Any, out: Any) -> None:
        key, amount = value
        if amount < 0:
            ctx.state(ListDescriptor[int]("seldom")).add(amount)
            out((key, ctx.state(ListDescriptor[int]("seldom")).get()))
        elif amount == 0:
            out((key, self.state.get()))
            self.state.clear()
        else:
            self.state.set((self.state.get() or 0) + amount)


class CountingStore(MemoryStore):
    """Counts bytes; fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.fails: Callable[[str], bool] = lambda call: False

    def _call(self, name: str) -> None:
        if self.fails(name):
            raise OSError(f"{name} fails")

    async def put(self, lease: Lease, part: str, data: bytes) -> None:
        self._call("put")
        self.written += len(data)
        await super().put(lease, part, data)

    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        self._call("commit")
        self.written += len(manifest)
        await super().commit(lease, number, manifest)

    async def delete(self, lease: Lease, numbers: Collection[int], parts: Collection[str]) -> None:
        self._call("delete")
        await super().delete(lease, numbers, parts)


def adding(out: list[Any]) -> Pipeline:
    pipeline = Pipeline("adding")
    (
        pipeline.submissions(name="in")
        .key_by(lambda value: value[0])
        .process(Adds(), name="adds")
        .to(out, name="out")
    )
    return pipeline


async def fill(job: Any, keys: range, amount: int) -> None:
    for key in keys:
        await job.submit((key, amount))
    for _ in range(20):
        await asyncio.sleep(0)


def settings(store: MemoryStore, **others: Any) -> Checkpoints:
    return Checkpoints(store=store, **others)


def totals(store: MemoryStore) -> dict[int, int]:
    """What a job that goes on from the newest checkpoint holds, of some keys."""

    async def main() -> list[Any]:
        out: list[Any] = []
        async with adding(out).start(checkpoints=settings(store)) as job:
            for key in range(0, KEYS, 7):
                await job.submit((key, 0))
            await job.drain()
        return out

    return dict(asyncio.run(main()))


def expected(changed: range, more: int) -> dict[int, int]:
    return {key: 1 + (more if key in changed else 0) for key in range(0, KEYS, 7)}


def test_a_checkpoint_writes_what_has_changed() -> None:
    store = CountingStore()

    async def main() -> tuple[int, int]:
        async with adding([]).start(checkpoints=settings(store, inline_bytes=1000)) as job:
            await fill(job, range(KEYS), 1)
            before = store.written
            await job.checkpoint()
            first = store.written - before
            await fill(job, range(30), 1)
            before = store.written
            await job.checkpoint()
            return first, store.written - before

    first, second = asyncio.run(main())
    assert second < first / 10
    assert totals(store) == expected(range(30), 1)


def test_many_small_changes_are_compacted_and_old_parts_deleted() -> None:
    store = CountingStore()

    async def main() -> None:
        async with adding([]).start(checkpoints=settings(store, inline_bytes=500, keep=1)) as job:
            await fill(job, range(KEYS), 1)
            for _ in range(60):
                await fill(job, range(100), 1)
                await job.checkpoint()
                assert len(await store.parts()) <= 40

    asyncio.run(main())
    assert totals(store) == expected(range(100), 60)


@pytest.mark.parametrize("call", ["put", "commit", "delete"])
def test_what_a_failed_checkpoint_did_not_keep_the_next_one_does(call: str) -> None:
    store = CountingStore()

    async def main() -> None:
        async with adding([]).start(checkpoints=settings(store, inline_bytes=100)) as job:
            await fill(job, range(KEYS), 1)
            await job.checkpoint()
            for turn in range(3):
                store.fails = lambda name: name == call
                await fill(job, range(turn * 50, 200), 1)
                try:
                    await job.checkpoint()
                    assert call == "delete"
                except CheckpointError:
                    assert call != "delete"
                store.fails = lambda name: False
            await fill(job, range(200, 210), 1)

    asyncio.run(main())
    kept = totals(store)
    assert kept == {
        key: 1 + sum(turn * 50 <= key < 200 for turn in range(3)) + (200 <= key < 210)
        for key in range(0, KEYS, 7)
    }


def test_a_restored_job_adds_to_the_parts_that_it_has_restored() -> None:
    store = CountingStore()

    async def go_on(keys: range) -> int:
        before = store.written
        async with adding([]).start(checkpoints=settings(store, inline_bytes=1000)) as job:
            await fill(job, keys, 1)
        return store.written - before

    first = asyncio.run(go_on(range(KEYS)))
    assert asyncio.run(go_on(range(20))) < first / 5
    assert asyncio.run(go_on(range(10))) < first / 5
    assert totals(store) == {key: 1 + (key < 20) + (key < 10) for key in range(0, KEYS, 7)}


def test_state_that_is_not_asked_for_stays_in_all_checkpoints_until_it_is() -> None:
    store = CountingStore()

    async def run(*values: tuple[int, int]) -> list[Any]:
        out: list[Any] = []
        async with adding(out).start(checkpoints=settings(store)) as job:
            for value in values:
                await job.submit(value)
            await job.checkpoint()
        return out

    assert asyncio.run(run((1, -1), (2, 5))) == [(1, [-1])]
    assert asyncio.run(run((2, 1))) == []
    assert asyncio.run(run((2, 1))) == []
    assert asyncio.run(run((1, -2), (2, 0))) == [(1, [-1, -2]), (2, 7)]
    assert asyncio.run(run((1, -3))) == [(1, [-1, -2, -3])]


def test_values_that_change_while_they_are_written_are_written_as_they_were() -> None:
    """A thread encodes 3,000 lists while the loop goes on adding to them."""

    class Collects(KeyedProcessFunction[tuple[int, int], Any]):
        items = ListDescriptor[int]("items")

        def open(self, ctx: Any) -> None:
            self.state = ctx.state(self.items)

        def process_element(self, value: tuple[int, int], ctx: Any, out: Any) -> None:
            if value[1] == 0:
                out((value[0], self.state.get()))
            else:
                self.state.add(value[1])

    def collecting(out: list[Any]) -> Pipeline:
        pipeline = Pipeline("collecting")
        keyed = pipeline.submissions(name="in").key_by(lambda value: value[0])
        keyed.process(Collects(), name="collects").to(out, name="out")
        return pipeline

    store = MemoryStore()

    async def main() -> None:
        async with collecting([]).start(checkpoints=settings(store)) as job:
            await fill(job, range(KEYS), 1)
            taking = asyncio.create_task(job.checkpoint())
            turns = 1
            while not taking.done():
                turns += 1
                for key in range(0, 60, 3):
                    await job.submit((key, turns))
            await taking

    asyncio.run(main())

    async def read(number: int) -> list[Any]:
        out: list[Any] = []
        async with collecting(out).start(checkpoints=settings(store, restore=number)) as job:
            for key in range(0, 60, 3):
                await job.submit((key, 0))
            await job.drain()
        return out

    first = asyncio.run(read(2))
    # between the request and the cut elements may have come; each key has had the same ones, or one less
    lengths = {len(items) for _, items in first}
    assert len(first) == 20
    assert max(lengths) - min(lengths) <= 1


class Watched(JsonCodec):
    """Knows in which thread it was last given, or gave, many bytes."""

    encoded: threading.Thread | None = None
    decoded: threading.Thread | None = None

    def __init__(self) -> None:
        super().__init__()
        self.has_decoded = threading.Event()

    def encode(self, value: Any) -> bytes:
        data = super().encode(value)
        if len(data) > 100_000:
            self.encoded = threading.current_thread()
        return data

    def decode(self, data: bytes) -> Any:
        if len(data) > 100_000:
            self.decoded = threading.current_thread()
            self.has_decoded.set()
        return super().decode(data)


class Fills(KeyedProcessFunction[int, Any]):
    """A list of so many items, put anew with each element."""

    items = ListDescriptor[Any]("items")

    def open(self, ctx: Any) -> None:
        self.state = ctx.state(self.items)

    def process_element(self, value: int, ctx: Any, out: Any) -> None:
        self.state.set([{"part": [part]} for part in range(value)])


def test_one_large_row_is_encoded_and_compacted_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_log, "LUMP", 100_000)
    codec = Watched()

    async def main() -> None:
        pipeline = Pipeline("fills")
        keyed = pipeline.submissions(name="in").key_by(lambda _: None)
        keyed.process(Fills(), name="fills").to([], name="out")
        async with pipeline.start(checkpoints=settings(MemoryStore(), codec=codec)) as job:
            for count in (10_000, 10_001, 10_002, 10_003):
                await job.submit(count)
                await job.checkpoint()
            await asyncio.to_thread(codec.has_decoded.wait, 60)

    asyncio.run(main())
    assert None not in (codec.encoded, codec.decoded)
    assert threading.current_thread() not in (codec.encoded, codec.decoded)


class Held(JsonCodec):
    """Encodes only when it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def encode(self, value: Any) -> bytes:
        self.calls += 1
        self.has_begun.set()
        assert self.may_go_on.wait(60)
        return super().encode(value)


def log_of(
    codec: JsonCodec, tables: Tables, store: MemoryStore | None = None, lease: Lease = LEASE, **others: Any
) -> TableLog:
    """What keeps the tables of one step, "step"."""
    log = TableLog(History(store or MemoryStore(), codec), codec, lambda: lease, 100, "pipeline", **others)
    operator: Any = SimpleNamespace(tables=tables)
    log.begin({"step": operator})
    return log


async def test_what_is_encoded_for_a_checkpoint_that_was_given_up_is_waited_for() -> None:
    codec, tables = Held(), Tables()
    tables.declare(Table("table")).put(None, "key", 1)
    log = log_of(codec, tables)
    log.cut("step")
    taken = asyncio.create_task(log.aside(log.encode))
    assert await asyncio.to_thread(codec.has_begun.wait, 60)
    taken.cancel()
    await asyncio.wait({taken})
    settled = asyncio.create_task(log.settle())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not settled.done()
    codec.may_go_on.set()
    await settled
    assert codec.calls == 1
    assert len(log.parts_of("step")) == 1


async def test_the_base_of_a_large_table_is_in_parts_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_log, "PART_BYTES", 50_000)
    tables = Tables()
    table = tables.declare(Table("table"))
    log = log_of(JsonCodec(), tables)
    for turn in range(3):
        for key in range(KEYS):
            table.put(None, key, [turn, "x" * 50])
        log.cut("step")
        await log.settle()
    await log.compact()
    sizes = [part.size for part in log.parts_of("step")]
    assert len(sizes) == 3
    assert max(sizes) < 100_000


async def test_a_compaction_on_disk_leaves_no_rows_there_and_no_base_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_log, "SMALL", 0)
    tables, store = Tables(), MemoryStore()
    table = tables.declare(Table("table"))
    lease = await store.acquire(Holder.here(0), 30)
    stored = StoredFile(str(tmp_path / "rows"), pickle.dumps, pickle.loads)
    log = log_of(JsonCodec(), tables, store, lease, rows=lambda: DiskRows(stored))
    for turn in range(3):
        for key in range(KEYS):
            table.put(None, key, turn)
        log.cut("step")
        await log.settle()
    await log.compact()
    parts = log.parts_of("step")
    assert [part.path for part in parts] == [("table", "base")]
    assert parts[0].data is None
    assert await store.parts() == [parts[0].stored]
    assert stored.tables  # it was there meanwhile
    assert list(stored.scan(b"\0", b"\xff")) == []
    stored.close()


class Unreadable(JsonCodec):
    """Reads nothing."""

    def decode(self, data: bytes) -> Any:
        raise CodecError("it cannot be read")


async def test_a_chain_grows_on_as_it_was_where_its_compaction_failed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tables = Tables()
    table = tables.declare(Table("table"))
    log = log_of(Unreadable(), tables)
    counts = []
    for value in ("x" * 200, "x" * 200, "x" * 200, "small", "small, too"):
        table.put(None, 1, value)
        log.cut("step")
        await log.settle()
        counts.append(len(log.parts_of("step")))
        await log.compact()
    assert "state was not compacted: CodecError: it cannot be read" in caplog.text
    assert counts == [1, 2, 3, 4, 4]


class SlowToRead(MemoryStore):
    """Takes ten minutes to give a part, as where much is to be compacted."""

    reads = 0

    async def read(self, what: int | str) -> bytes:
        self.reads += 1
        await asyncio.sleep(600)
        return await super().read(what)


def test_checkpoints_do_not_wait_for_a_compaction() -> None:
    store = SlowToRead()

    async def main() -> float:
        async with adding([]).start(checkpoints=settings(store, inline_bytes=100)) as job:
            for amount in range(1, 6):
                await fill(job, range(KEYS), amount)
                await job.checkpoint()
                await asyncio.sleep(1)
            assert store.reads == 1  # one at a time
            before = asyncio.get_running_loop().time()
            await asyncio.sleep(2_000)
            await job.checkpoint()
            return asyncio.get_running_loop().time() - before

    assert run_virtual(main()) < 2_001
    store.read = partial(MemoryStore.read, store)  # type: ignore[method-assign]
    assert totals(store) == dict.fromkeys(range(0, KEYS, 7), 15)


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_job_that_is_stopped_begins_no_compaction(*, is_under_way: bool) -> None:
    """It may take minutes, and the next job compacts as well."""

    class Slow(SlowToRead):
        async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
            await asyncio.sleep(1)
            await super().commit(lease, number, manifest)

    store = Slow()

    async def main() -> float:
        async with adding([]).start(checkpoints=settings(store, inline_bytes=100)) as job:
            await fill(job, range(1_000), 1)
            await job.checkpoint()
            await fill(job, range(1_000), 1_000_000)
            checkpoint = asyncio.create_task(job.checkpoint())
            await asyncio.sleep(0.5)
            if not is_under_way:
                await checkpoint
                await asyncio.sleep(1)
                assert store.reads
            began = asyncio.get_running_loop().time()
            await job.stop()
        await checkpoint
        return asyncio.get_running_loop().time() - began

    assert run_virtual(main()) < 10
