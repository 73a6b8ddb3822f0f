"""Rows on disk: keys that are equal meet, namespaces have their order, and what goes wrong is said."""

from __future__ import annotations

import math
import os
import pickle
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream.errors import PipelineError, StateError
from asyncstream.state import MISSING, Database, DiskRows, DiskState, StoredFile, Table, Tables
from asyncstream.state.rows import GO_BYTES
from asyncstream.state.stored import Stored
from asyncstream.state.timer_queue import TimerQueue, timer_table
from tests.forks import forked
from tests.tiers import examples


@pytest.fixture(scope="module", params=["RocksDB", "a file"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    directory = tmp_path_factory.mktemp("state")
    stored: Database | StoredFile
    if request.param == "RocksDB":
        stored = Database(DiskState(directory))
    else:
        stored = StoredFile(str(directory / "state"), partial(pickle.dumps, protocol=5), pickle.loads)
    yield stored
    stored.close()


@dataclass(frozen=True)
class Meets:
    """Has the hash of all others."""

    name: str

    def __hash__(self) -> int:
        return 7


class ByIdentity:
    """Equals no copy of itself."""


class ByIdentityMeets(ByIdentity):
    """Equals no copy of itself, though that has its hash."""

    def __hash__(self) -> int:
        return 7


class EqualsAll(ByIdentity):
    """Equals its copy, which has another hash."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = ByIdentity.__hash__


def test_rows_that_were_moved_keep_their_order_and_a_new_one_comes_last(opened: Stored) -> None:
    before, rows = DiskRows(opened), DiskRows(opened)
    descending = list(range(40, 0, -1))  # by their names, and so moved, the other way round
    before.put([(None, key, "moved") for key in descending])
    for _ in rows.moving(before, lambda entry: entry):
        pass
    rows.put([(None, 50, "new")])
    assert list(rows.of(None)) == [*descending, 50]
    assert not before.of(None)


def test_keys_that_are_equal_meet_the_same_row(opened: Stored) -> None:
    rows = DiskRows(opened)
    rows.put([(None, 1, "one"), (None, "1", "text")])
    for key in (1, 1.0, True):
        assert rows.get(None, key) == "one"
    rows.put([(None, True, "again")])
    assert rows.of(None) == {1: "again", "1": "text"}
    assert list(rows.of(None)) == [1, "1"]
    assert rows.remove(None, 1.0)
    assert rows.of(None) == {"1": "text"}


def test_namespaces_that_are_equal_are_one(opened: Stored) -> None:
    rows = DiskRows(opened)
    rows.put([((1, 2), "k", 1), (5, "k", 2), ("text", "k", 3), ((1, 2, 3), "k", 4)])
    assert [rows.get(space, "k") for space in ((1.0, True + 1), 5.0, "text", (1, 2, 3))] == [1, 2, 3, 4]
    assert set(rows.namespaces()) == {(1, 2), 5, "text", (1, 2, 3)}


@pytest.mark.parametrize("space", [None, 5, 2**63, -(2**64)])
def test_keys_with_one_hash_are_told_apart(opened: Stored, space: int | None) -> None:
    rows = DiskRows(opened)
    a, b, c = Meets("a"), Meets("b"), Meets("c")
    rows.put([(space, a, 1), (space, 7, 0), (space, b, 2)])
    rows.put([(space, b, 3), (space, c, 4)])
    assert rows.of(space) == {a: 1, 7: 0, b: 3, c: 4}
    assert (len(rows), rows.get(space, b)) == (4, 3)
    assert rows.get(space, Meets("d")) is rows.get(space, 8) is MISSING
    assert rows.remove(space, a)
    assert not rows.remove(space, a)
    assert list(rows.of(space)) == [7, b, c]
    rows.drop(space)
    assert len(rows) == 0
    assert space not in rows


@pytest.mark.parametrize("was_on_disk", [False, True])
@pytest.mark.parametrize("is_on_disk", [False, True])
def test_what_was_kept_is_taken_over_wherever_it_lies_and_is_to_lie(
    opened: Stored, was_on_disk: bool, is_on_disk: bool
) -> None:
    kept = Table("t", old=DiskRows(opened) if was_on_disk else None)
    kept.put_old([((0, 10), [("b", [1]), ("a", [2])]), (None, [("c", [3])])])
    table = Table("t", old=DiskRows(opened) if is_on_disk else None, load=tuple, load_key=str.upper)
    for _ in table.take_over(kept):
        pass
    expected = {(0, 10): [("B", (1,)), ("A", (2,))], None: [("C", (3,))]}
    assert {space: list(table.whole(space).items()) for space in table.namespaces()} == expected
    assert not table.cut()
    assert not list(kept.items())


def test_rows_that_a_checkpoint_writes_are_fetched_as_they_are_there(opened: Stored) -> None:
    table = Table("t", old=DiskRows(opened))
    table.put(None, "a", ["old"])
    table.cut()
    table.merge()
    table.get(None, "a").append("new")
    table.put(None, "b", ["b"])
    written = table.cut().rows[None]
    table.fetch(None, ["a", "b", "c"])
    assert table.young == {None: {"a": ["old", "new"], "b": ["b"]}}
    table.young[None]["a"].append("newer")
    assert written["a"] == ["old", "new"]
    table.merge()


@settings(max_examples=examples(50), deadline=None)
@given(
    st.dictionaries(st.integers(-(2**64), 2**65) | st.integers(-9, 9), st.integers(1, 3)),
    st.integers(-9, 9) | st.just(math.inf),
    st.integers(1, 4),
)
def test_the_earliest_namespaces_come_first(
    opened: Database, sizes: dict[int, int], until: float, limit: int
) -> None:
    rows = DiskRows(opened)
    rows.put([(space, key, space) for space, size in sizes.items() for key in range(size)])
    assert rows.first() == min(sizes, default=None)
    taken: list[int] = []
    while found := rows.take_first(until, limit):
        for space, some in found.items():
            assert some == dict.fromkeys(range(sizes[space]), space)
            taken.append(space)
        left = sizes.keys() - set(taken)
        assert rows.first() == min(left, default=None)
    assert taken == sorted(space for space in sizes if space <= until)
    assert sorted(rows.namespaces()) == sorted(sizes.keys() - set(taken))
    rows.clear()


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (ByIdentity(), 1, "does not equal a copy"),
        (ByIdentityMeets(), 1, "does not equal a copy"),
        (EqualsAll(), 1, "does not equal a copy"),
        (math.nan, 1, "does not equal a copy"),
        ((1, ByIdentity()), 1, "does not equal a copy"),
        ("key", lambda: None, "pickle refuses it"),
    ],
)
def test_what_would_not_come_back_is_refused(tmp_path: Path, key: Any, value: Any, words: str) -> None:
    database = Database(DiskState(tmp_path))
    told: list[BaseException] = []
    database.on_failure = told.append
    rows = DiskRows(database, "sums")
    with pytest.raises(StateError, match=f"^step 'sums': .* {words}"):
        rows.put([(None, key, value)])
    assert len(told) == 1
    with pytest.raises(StateError, match=words):  # for ever after: nothing is read that may be wrong
        rows.get(None, "other")
    with pytest.raises(StateError, match=words):
        rows.check()
    database.close()


def test_what_a_row_that_rests_has_become_is_refused_when_it_is_written(tmp_path: Path) -> None:
    database = Database(DiskState(tmp_path))
    rows = DiskRows(database, "sums")
    rows.put([(None, "key", 5)])
    assert rows.get(None, "key") == 5
    rows.put([(None, "key", lambda: 5)])
    with pytest.raises(StateError, match=r"^step 'sums': what is remembered of key 'key' cannot be kept"):
        for _ in (*rows.merging(iter(())), *rows.merging(iter(()))):
            pass
    database.close()


def test_a_second_job_in_the_directory_is_refused(tmp_path: Path) -> None:
    database = Database(DiskState(tmp_path / "state"))
    with pytest.raises(StateError, match="another job"):
        Database(DiskState(tmp_path / "state"))
    database.close()
    Database(DiskState(tmp_path / "state")).close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked here")
def test_process_that_is_forked_from_one_that_has_had_state_on_disk_is_told(tmp_path: Path) -> None:
    """RocksDB would wait for ever for its threads, which are in the other process, when it is closed."""
    Database(DiskState(tmp_path / "state")).close()

    def check() -> None:
        with pytest.raises(StateError, match="was forked from one that has done so"):
            Database(DiskState(tmp_path / "of the child"))

    assert forked(check) == 7


def test_who_has_lost_its_directory_leaves_alone_what_another_job_keeps_there(tmp_path: Path) -> None:
    state = tmp_path / "state"
    database = Database(DiskState(state))
    shutil.move(state, tmp_path / "away")
    (state / "rows").mkdir(parents=True)  # by another process, for RocksDB has a path once in each
    (state / "asyncstream-state.lock").touch()
    (state / "rows" / "theirs").touch()
    database.close()
    assert (state / "rows" / "theirs").exists()


def test_what_an_earlier_job_left_is_not_read(tmp_path: Path) -> None:
    database = Database(DiskState(tmp_path / "state"))
    DiskRows(database).put([(None, key, key) for key in range(1000)])
    shutil.copytree(tmp_path / "state", tmp_path / "left behind")
    database.close()
    database = Database(DiskState(tmp_path / "left behind"))
    assert DiskRows(database).get(None, 7) is MISSING
    database.close()


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "mine").write_text("dear to me")
    with pytest.raises(StateError, match="something else"):
        Database(DiskState(tmp_path))
    mark = tmp_path / "asyncstream-state.lock"
    os.mkfifo(mark)  # to open it would wait for ever
    with pytest.raises(StateError, match=rf"something else \({mark.name}\)"):
        Database(DiskState(tmp_path))
    mark.unlink()
    mark.touch()
    (tmp_path / "mine").write_text("dear to me")
    with pytest.raises(StateError, match=r"something else \(mine\)"):
        Database(DiskState(tmp_path))
    assert (tmp_path / "rows" / "mine").read_text() == "dear to me"


def test_a_lost_directory_loses_no_rows_in_silence(tmp_path: Path) -> None:
    database = Database(DiskState(tmp_path / "state"))
    rows = DiskRows(database)
    rows.put([(None, key, "value" * 100) for key in range(1000)])
    shutil.rmtree(tmp_path / "state")

    def go_on() -> None:
        for turn in range(1, 1000):  # until the memory of RocksDB has to be written to files
            rows.put([(turn, key, bytes(1000)) for key in range(1000)])
            assert rows.get(None, 7) == "value" * 100

    with pytest.raises(StateError, match="cannot be used any more"):
        go_on()
    database.close()


def test_timers_that_are_on_disk_take_no_memory(opened: Stored) -> None:
    tables = Tables()
    tables.keep_old_in(lambda: DiskRows(opened))
    queue = TimerQueue(tables.declare(timer_table("timers")))
    for turn in range(5):
        for timestamp in range(1000):
            queue.register(turn + 10 * timestamp, "key")
        tables.cut()
        for _ in tables.merging():
            pass
    queue.register(7, "key")
    assert len(queue._run) + len(queue._heap) == 1
    fired: list[int] = []
    queue.advance(10_000, lambda timestamp, key, namespace: fired.append(timestamp))
    assert fired == sorted([7, *(turn + 10 * timestamp for turn in range(5) for timestamp in range(1000))])
    queue.clear()


def test_timers_later_than_64_bits_can_say_fire_last(opened: Stored) -> None:
    tables = Tables()
    tables.keep_old_in(lambda: DiskRows(opened))
    queue = TimerQueue(tables.declare(timer_table("timers")))
    times = [2**63 + 5, 7, 2**63, 2**63 - 1, 2**70]
    for timestamp in times:
        queue.register(timestamp, "key")
    tables.cut()
    tables.merge()
    fired: list[int] = []
    queue.advance(8, lambda timestamp, key, namespace: fired.append(timestamp))
    assert queue.earliest() == 2**63 - 1
    queue.advance(math.inf, lambda timestamp, key, namespace: fired.append(timestamp))
    assert fired == sorted(times)
    assert queue.earliest() is None
    queue.clear()


@pytest.mark.parametrize(
    "arguments",
    [
        {"directory": 7},
        {"directory": "a\0b"},
        {"directory": "s", "young_rows": 0},
        {"directory": "s", "cache_bytes": 5},
    ],
)
def test_wrong_settings_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=next(reversed(arguments))):
        DiskState(**arguments)


def test_large_rows_are_written_few_at_a_time(opened: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    write = opened.write

    def counting(puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        puts = list(puts)
        sizes.append(sum(len(data) for _, data in puts))
        write(puts, deletes)

    monkeypatch.setattr(opened, "write", counting)
    table = Table("t", old=DiskRows(opened))
    for number in range(50):
        table.put(None, number, bytes(GO_BYTES // 3))
    for merge in range(3):
        table.put(None, f"another {merge}", b"")
        table.cut()
        table.merge()
        table.fetch(None, range(50) if merge == 0 else ())  # then they rest, and leave with the last merge
    assert sum(sizes) >= 2 * 50 * GO_BYTES // 3
    assert max(sizes) <= GO_BYTES + 5000  # nothing else runs meanwhile
    assert len(sizes) < 80


def test_a_file_is_handed_on_with_the_rows_in_it(tmp_path: Path) -> None:
    def opened_again() -> StoredFile:
        return StoredFile(str(tmp_path / "state"), partial(pickle.dumps, protocol=5), pickle.loads)

    stored = opened_again()
    assert stored.about() is None
    rows, other = DiskRows(stored), DiskRows(stored)
    rows.put([(None, number, str(number)) for number in range(2_000)])
    rows.put([((1, 2), "k", 1), (7, "k", 2), (-5, "k", 3), ("text", "k", 4)])
    other.put([(None, 1, "other")])
    about = stored.tables, rows.kept(), other.kept()
    stored.hand_on(stored.dumps(about))
    with pytest.raises(StateError, match="was closed"):
        rows.put([(None, 1, "late")])
    stored = opened_again()
    stored.tables, kept, kept_other = stored.loads(stored.about() or b"")
    again, other = DiskRows.reopened(stored, kept), DiskRows.reopened(stored, kept_other)
    assert len(again) == 2_004
    assert again.of(None) == {number: str(number) for number in range(2_000)}
    assert again.first() == -5
    assert [again.get(space, "k") for space in ((1, 2), 7, "text")] == [1, 2, 4]
    assert other.of(None) == {1: "other"}
    DiskRows(stored).put([(None, 1, "new")])
    again.put([(None, 1, "one"), ("more", "k", 5)])
    assert set(again.namespaces()) == {None, (1, 2), 7, -5, "text", "more"}
    assert other.of(None) == {1: "other"}
    stored.close()


def test_rows_on_a_disk_that_is_gone_are_given_up_all_the_same(
    opened: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table("t", old=DiskRows(opened))
    table.put(None, "k", 1)
    table.cut()
    table.merge()
    table.put(None, "l", 2)

    def get(name: bytes) -> bytes | None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(opened, "get", get)
    table.leave()
    assert len(table) == 0
