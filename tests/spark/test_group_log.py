"""A micro-batch writes what it touched to the log of its key group, and no worker trusts stale tables."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any

import pytest

from asyncstream import KeyedContext, KeyedProcessFunction, Stream
from asyncstream.clock import ManualClock
from asyncstream.operators.base import OperatorContext
from asyncstream.operators.process import KeyedProcessOperator
from asyncstream.runtime.spark.wire.values import loads_each
from asyncstream.runtime.spark.worker import group_files, group_log, group_memory
from asyncstream.runtime.spark.worker.group_files import GroupFile, GroupFiles
from asyncstream.runtime.spark.worker.group_log import Log, Position, catch_up, entry_of, kept_tables
from asyncstream.runtime.spark.worker.group_memory import hold, take_back
from asyncstream.state import ListDescriptor, StoredFile, Table, Tables, TimeToLive, ValueDescriptor
from asyncstream.state.timer_queue import TimerQueue
from asyncstream.state.ttl import ValueAges
from asyncstream.windowing import Count, CumulativeWindows
from tests.operators.recorder import Recorder
from tests.spark.contract import embedded, key_of, on_stand_in, row
from tests.spark.fake_spark import Kept, Map, MicroBatch, Value


class Remembers(KeyedProcessFunction[Any, Any]):
    """A count, a list that is cleared now and then, and a timer that is moved."""

    def open(self, ctx: KeyedContext) -> None:
        self.count = ctx.state(ValueDescriptor[int]("count"))
        self.seen = ctx.state(ListDescriptor[int]("seen"))

    def process_element(self, value: Any, ctx: KeyedContext, out: Any) -> None:
        count = (self.count.get() or 0) + 1
        self.count.set(count)
        self.seen.add(value["ts"])
        ctx.delete_event_timer(value["ts"] + 3_000)
        ctx.register_event_timer(value["ts"] + 4_000)
        if count % 5 == 0:
            out({"key": ctx.key, "seen": self.seen.get()})
            self.seen.clear()

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        out({"key": ctx.key, "at": timestamp, "count": self.count.get()})


def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    return {"out": timed.key_by(key_of).process(Remembers()), "all": timed.map(dict)}


def batches() -> list[list[dict[str, Any]]]:
    drawn = random.Random(5)
    return [
        [row(1_000 * number + drawn.randrange(3_000), drawn.choice("abcdefgh")) for _ in range(6)]
        for number in range(25)
    ]


@pytest.fixture(autouse=True)
def _worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_memory, "_worker", group_memory._Worker())


def in_files(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Groups are large from the first row on."""
    monkeypatch.setattr(group_memory, "HELD_BYTES", 0)
    monkeypatch.setattr(group_log, "SMALL", 1)
    monkeypatch.setattr(group_log, "LARGE", 1)
    monkeypatch.setattr(group_log, "CHUNK_BYTES", 300)
    monkeypatch.setattr(group_log, "TAIL_BYTES", 500)
    monkeypatch.setattr(group_log, "WHOLE_BYTES", 500)
    monkeypatch.setattr(group_files, "_refused", set())
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(directory))


@pytest.mark.parametrize(
    "worker", ["stays", "takes turns", "is new each time", "is sometimes new", "holds nothing"]
)
@pytest.mark.parametrize("least_bytes", [0, 10**9])
def test_results_are_the_same_whatever_workers_still_know(
    worker: str, least_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = random.Random(7)
    hits = []

    others: list[Any] = [group_memory._Worker() for _ in range(2)]

    def found(position: Position, log: Log) -> Any:
        if worker == "takes turns":  # as Spark hands a partition to the workers that are idle
            others.append(group_memory._worker)
            group_memory._worker = others.pop(drawn.randrange(2))
        if worker == "is new each time" or (worker == "is sometimes new" and drawn.random() < 0.5):
            group_memory._worker = group_memory._Worker()
        hits.append(take_back(position, log))
        return hits[-1]

    monkeypatch.setattr("asyncstream.runtime.spark.worker.keyed.take_back", found)
    monkeypatch.setattr(group_log, "LEAST_BYTES", least_bytes)
    if worker == "holds nothing":
        monkeypatch.setattr(group_memory, "HELD_BYTES", 0)
    rows = batches()
    assert sorted(on_stand_in(rows, define)) == embedded(rows, define) != []
    used = sum(hit is not None for hit in hits)
    assert (used == 0) == (worker in ("is new each time", "holds nothing"))
    if worker == "takes turns" and least_bytes:  # each has read the log of a group once
        assert used > len(hits) * 2 // 3


def cumulative(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    """Windows of which all but the last of a row leave their rows as they are when they fire."""
    windowed = timed.key_by(key_of).window(CumulativeWindows(10, 2))
    return {"out": windowed.aggregate(n=Count()), "all": timed.map(dict)}


def test_windows_that_fire_and_change_no_row_fire_again_if_their_task_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the same worker, which has kept the tables of the first time, and when they fire next."""
    monkeypatch.setattr(MicroBatch, "_fails", lambda batch: True)
    rows = [[row(1_000), row(6_500)]]
    assert sorted(on_stand_in(rows, cumulative)) == embedded(rows, cumulative)
    assert len(embedded(rows, cumulative)) > len(rows[0])


class Expires(KeyedProcessFunction[int, Any]):
    """Keeps what came last for a key, for a while, and tells of it at a time that is put off now and then."""

    def open(self, ctx: KeyedContext) -> None:
        self.last = ctx.state(ValueDescriptor[int]("last", ttl=TimeToLive(0.05)))

    def process_element(self, value: int, ctx: KeyedContext, out: Any) -> None:
        if value % 3 == 0:
            ctx.delete_event_timer((self.last.get() or 0) + 20)
        if value % 5 == 0:
            self.last.clear()
        else:
            self.last.set(value)
        ctx.register_event_timer(value + 20)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        out((timestamp, ctx.key, self.last.get()))


class Goes:
    """An operator that is made anew for each turn, with the tables of the turn before."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.tables: dict[str, Tables] | None = None
        self.derived: list[Any] = []

    def turn(self, values: list[int], watermark: int) -> tuple[list[Any], bytes]:
        operator = KeyedProcessOperator(lambda value: value % 7, Expires())
        operator.out = Recorder()
        operator.open(OperatorContext(clock=self._clock))
        if self.tables is not None:
            self.derived = [table.derived for table in self.tables["step"].every()]
            operator.tables.go_on(self.tables["step"], {})
        operator.process_batch(values, values)
        operator.advance_watermark(watermark)
        entry = entry_of({"step": operator.tables.cut()})
        operator.tables.merge()
        self.tables = {"step": operator.tables.handed_on()}
        return operator.out.seen, entry


def test_what_follows_from_timers_and_times_to_live_follows_what_others_have_changed() -> None:
    """So it is not made anew with every micro-batch that another worker has had."""
    drawn, clock, now = random.Random(3), ManualClock(), 0
    one, other = Goes(clock), Goes(clock)
    missed: list[Any] = []
    for number in range(200):
        clock.set_ms(number * 4)
        now += drawn.randrange(9)
        turn = [now + drawn.randrange(30) for _ in range(drawn.randrange(6))], now
        told, entry = one.turn(*turn)
        if other.tables is not None and drawn.random() < 0.5:
            missed += loads_each(entry, {})
            continue
        assert other.tables is None or catch_up(other.tables, missed)
        missed = []
        assert other.turn(*turn)[0] == told
    assert [type(one) for one in other.derived] == [TimerQueue, TimerQueue, NoneType, ValueAges]


@pytest.mark.parametrize("tail_bytes", [0, 100, 10_000])
def test_tables_that_have_missed_entries_go_on_with_those(
    tail_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_log, "TAIL_BYTES", tail_bytes)
    monkeypatch.setattr(group_log, "WHOLE_BYTES", tail_bytes)
    log = Log(Map(SimpleNamespace(kept=Kept()), "chunks"), {}, [])  # type: ignore[arg-type]
    operator = SimpleNamespace(tables=Tables())
    table = operator.tables.declare(Table("rows", save=str, load=int))
    position, positions = Position(), []
    others = {missed: Tables() for missed in (1, group_log.RECENT, group_log.RECENT + 1)}
    for number in range(40):
        table.put(None, number % 7, number)
        if number % 3 == 0:
            table.remove(None, number % 5)
        if number % 11 == 0:
            table.put("window", "key", number)
        elif number % 13 == 0:
            table.drop("window")
        entry = entry_of({"step": operator.tables.cut()})
        operator.tables.merge()
        position = log.write(entry, {"step": operator}, position)  # type: ignore[dict-item]
        positions.append(position)
        for missed, tables in others.items():
            if number == 39 - missed:
                declared = tables.declare(Table("rows", save=str, load=int))
                for namespace, key, value in table.items():
                    declared.put_old([(namespace, [(key, value)])])
    for missed, tables in others.items():
        hold(positions[39 - missed], {"step": tables}, 10**6, {})
        found = take_back(position, log)
        if missed > group_log.RECENT:
            assert found is None
        else:
            assert found is not None
            assert list(found["step"]["rows"].items()) == list(table.items())


def damage(directory: Path, drawn: random.Random) -> None:
    """Have something happen to the files of groups, or to their directory."""
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    what = drawn.randrange(4)
    if what == 0 or not found:
        shutil.rmtree(directory, ignore_errors=True)
        return
    path = drawn.choice(found)
    if what == 1:
        path.write_bytes(drawn.randbytes(5_000))
    elif what == 2:
        os.truncate(path, path.stat().st_size // 2)
    else:
        path.unlink()


@pytest.mark.parametrize("disk", ["stays", "is damaged", "is lost meanwhile", "cannot be written"])
@pytest.mark.parametrize("least_bytes", [0, 10**9])
def test_results_are_the_same_whatever_becomes_of_files(
    disk: str, least_bytes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn = random.Random(11)
    found: list[bool] = []
    lost: list[bool] = []
    directory = tmp_path / "local"
    in_files(monkeypatch, directory)
    monkeypatch.setattr(group_log, "LEAST_BYTES", least_bytes)
    take, get_many = GroupFiles.take, StoredFile.get_many

    def taken(files: GroupFiles, position: Position) -> GroupFile | None:
        if disk == "is damaged" and drawn.random() < 0.3:
            damage(directory, drawn)
        file = take(files, position)
        found.append(file is not None)
        return file

    def asked(stored: StoredFile, names: Any) -> Any:
        if disk == "is lost meanwhile" and drawn.random() < 0.2:
            lost.append(True)
            raise OSError("input/output error")
        return get_many(stored, names)

    monkeypatch.setattr(GroupFiles, "take", taken)
    monkeypatch.setattr(StoredFile, "get_many", asked)
    if disk == "cannot be written":
        monkeypatch.setattr(StoredFile, "hand_on", StoredFile.about)
    rows = batches()
    assert sorted(on_stand_in(rows, define)) == embedded(rows, define) != []
    assert any(found) == (disk != "cannot be written")
    assert not all(found)
    assert bool(lost) == (disk == "is lost meanwhile")


def test_a_file_is_taken_at_its_position_only_and_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    in_files(monkeypatch, tmp_path)
    files = GroupFiles({})
    position = Position().after(100)
    assert not files.keep(None, position._replace(base=0), filled("never large"))
    for other in (position.after(1), Position().after(100)):
        assert files.keep(None, position, filled("one"))
        assert files.take(other) is None
    assert files.keep(None, position, filled("two"))  # files of other positions of the log went with the miss
    file = files.take(position)
    assert file is not None
    assert files.take(position) is None
    tables = file.tables["step"]
    assert dict(tables["rows"].whole()) == {"key": "two"}
    tables["rows"].put(None, "other", "three")
    tables.cut()
    tables.merge()
    assert files.keep(file, position.after(1), file.tables)


def filled(value: str) -> dict[str, Tables]:
    tables = Tables()
    table = tables.declare(Table("rows"))
    table.put(None, "key", value)
    tables.cut()
    tables.merge()
    return {"step": tables}


@pytest.mark.parametrize("tail_bytes", [0, 1_000])
def test_a_micro_batch_writes_what_it_touched_and_now_and_then_all(
    tail_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[int] = []
    chunks: list[int] = []
    update, put = Value.update, Map.updateValue

    def counted_update(state: Value, value: Any) -> None:
        heads.append(len(value[0]))
        update(state, value)

    def counted_put(state: Map, key: Any, value: Any) -> None:
        chunks.append(len(value[0]))
        put(state, key, value)

    monkeypatch.setattr(Value, "update", counted_update)
    monkeypatch.setattr(Map, "updateValue", counted_put)
    monkeypatch.setattr(group_log, "LEAST_BYTES", 2_000)
    monkeypatch.setattr(group_log, "TAIL_BYTES", tail_bytes)
    monkeypatch.setattr(group_log, "WHOLE_BYTES", tail_bytes)
    keys = [f"key {number}" for number in range(300)]
    rows = [[row(1_000, key) for key in keys], *[[row(1_000 + n, "key 1")] for n in range(60)]]
    on_stand_in(rows, define, unsteady=False)
    whole = [size for size in chunks if size > 2_000]
    assert sum(whole[:3]) > 3 * 2_500
    # the group of the one key was rewritten once or twice, its changes had outgrown it; the others never were
    assert 4 <= len(whole) <= 5
    assert sum(chunks) - sum(whole) < 60 * 150
    assert max(heads) < 2_000 + tail_bytes
    if tail_bytes:  # several together
        assert len(chunks) < 60 // 3


@pytest.mark.parametrize("tail_bytes", [0, 900])
def test_a_log_is_in_chunks_but_for_its_last_entries(
    tail_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_log, "LARGE", 1_000)
    monkeypatch.setattr(group_log, "LEAST_BYTES", 0)
    monkeypatch.setattr(group_log, "CHUNK_BYTES", 300)
    monkeypatch.setattr(group_log, "TAIL_BYTES", tail_bytes)
    monkeypatch.setattr(group_log, "WHOLE_BYTES", tail_bytes)
    kept = Kept()
    log = Log(Map(SimpleNamespace(kept=kept), "chunks"), {}, [])  # type: ignore[arg-type]
    operator = SimpleNamespace(tables=Tables())
    table = operator.tables.declare(Table("rows"))
    position, whole = Position(), []
    for number, size in enumerate((100, 400, 800, 20, 20, 5_000, 5_000, 20, 10, *[800] * 20)):
        for key in range(1 if size > 10 else 5):
            table.put(None, key if size < 5_000 else "large", "x" * size)
        if size == 10:
            table.remove(None, "large")
        entry = entry_of({"step": operator.tables.cut()})
        operator.tables.merge()
        position = log.write(entry, {"step": operator}, position)  # type: ignore[dict-item]
        chunks = dict(kept.values.get("chunks", ()))
        assert sorted(chunks) == [(at,) for at in position.chunks]
        assert all(len(data) <= 300 for data, _ in chunks.values())
        assert sum(len(data) for data, _ in chunks.values()) + sum(map(len, position.tail)) == position.size
        assert sum(map(len, position.tail)) <= tail_bytes
        whole.append(not chunks)
        about: dict[str, Any] = {"step": {"compound": (), "cells": {}, "rules": {}}}
        read = kept_tables(log.read(position), about)["step"].tables["rows"]
        assert dict(read.whole()) == dict(table.whole()), number
        for last in range(1, position.entries + 1):
            assert list(log.read(position, last)) == list(log.read(position))[-last:]
    assert whole[0] == (tail_bytes > 0)  # small enough for its head alone
    assert not whole[7]


@pytest.mark.parametrize(("base", "least", "most"), [(10_000_000, 149, 252), (100_000, 99, 202)])
def test_groups_that_are_touched_alike_are_not_rewritten_together(base: int, least: int, most: int) -> None:
    rewritten = set()
    for number in range(0, 256, 16):
        position = Position(b"t", base, 0, 1, bytes([number]), 0, 3)
        count = 0
        while not position.is_long:
            position, count = position.after(base // 100), count + 1
        rewritten.add(count)
    assert len(rewritten) == 16
    assert min(rewritten) >= least
    assert max(rewritten) < most


def test_two_positions_of_equal_sizes_are_not_the_same() -> None:
    assert Position().after(10) != Position().after(10)
