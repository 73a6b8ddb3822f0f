"""A table in generations is a dict of dicts, whatever is cut and merged in between, and deltas rebuild it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from asyncstream.errors import InternalError
from asyncstream.state import MISSING, Delta, DiskRows, Table, Tables
from asyncstream.state.key_table import KeyTable
from tests.on_disk import database
from tests.tiers import examples

NAMESPACES = st.sampled_from([None, 1, (0, 10), 2**64])
KEYS = st.sampled_from([("a", None), (-1, None), (-2, None), ("b", 1)])  # two of them have one hash
Key: TypeAlias = tuple[str | int, int | None]
Value: TypeAlias = list[int] | None


class Generations(RuleBasedStateMachine):
    """A table against a dict of dicts; values are lists, which are changed in place."""

    def new_table(self, name: str) -> Table:
        return Table(name)

    @initialize()
    def begin(self) -> None:
        self.table = self.new_table("t")
        self.model: dict[Any, dict[Key, Value]] = {}
        self.durable = self.new_table("durable")
        self.merging: Iterator[None] | None = None
        self.expected_at_cut: Any = None
        self.delta: Delta | None = None
        self.number = 0

    @rule(namespace=NAMESPACES, key=KEYS)
    def put(self, namespace: Any, key: Key) -> None:
        self.number += 1
        self.table.put(namespace, key, [self.number])
        self.model.setdefault(namespace, {})[key] = [self.number]

    @rule(namespace=NAMESPACES, key=KEYS)
    def change_in_place(self, namespace: Any, key: Key) -> None:
        self.number += 1
        found, expected = self.table.get(namespace, key), self.model.get(namespace, {}).get(key, MISSING)
        assert (found is MISSING) == (expected is MISSING)
        if isinstance(expected, list):
            found.append(self.number)
            expected.append(self.number)

    @rule(namespace=NAMESPACES, key=KEYS)
    def take_as_a_hot_loop_does(self, namespace: Any, key: Key) -> None:
        self.number += 1
        rows = self.table.rows(namespace)
        held = rows.get(key, MISSING)
        if held is MISSING:
            held = self.table.take(namespace, key)
        if held is MISSING or held is None:
            held = rows[key] = []
        held.append(self.number)
        expected = self.model.setdefault(namespace, {})
        expected[key] = [*(expected.get(key) or []), self.number]

    @rule(namespace=NAMESPACES, key=KEYS)
    def remove(self, namespace: Any, key: Key) -> None:
        was_there = self.model.get(namespace, {}).pop(key, MISSING) is not MISSING
        assert self.table.remove(namespace, key) == was_there

    @rule(namespace=NAMESPACES)
    def drop(self, namespace: Any) -> None:
        self.table.drop(namespace)
        self.model.pop(namespace, None)

    @rule(namespace=NAMESPACES, key=KEYS)
    def adopt_and_pop(self, namespace: Any, key: Key) -> None:
        rows = self.table.adopt(namespace)
        assert list(rows) == list(self.model.get(namespace, {}))
        rows.pop(key, None)
        self.model.get(namespace, {}).pop(key, None)

    @precondition(lambda self: self.delta is None and self.merging is None)
    @rule()
    def cut(self) -> None:
        self.delta = self.table.cut()
        self.expected_at_cut = plain(self.model)

    @precondition(lambda self: self.delta is not None)
    @rule()
    def write_the_delta(self) -> None:
        """Only now: what was cut must still be as it was."""
        assert self.delta is not None
        rows_put = {
            namespace: {k: copied(v) for k, v in rows.items()} for namespace, rows in self.delta.rows.items()
        }
        self.durable.apply(Delta(rows_put, self.delta.gone, self.delta.dropped))
        assert contents(self.durable) == self.expected_at_cut
        self.delta = None
        self.merging = self.table.merging()

    @precondition(lambda self: self.merging is not None)
    @rule()
    def merge_a_slice(self) -> None:
        assert self.merging is not None
        if next(self.merging, "done") == "done":
            self.merging = None

    @rule(namespace=NAMESPACES, keys=st.lists(KEYS, max_size=4))
    def fetch(self, namespace: Any, keys: list[Key]) -> None:
        self.table.fetch(namespace, keys)
        if self.table.is_remote:
            for key in keys:
                is_young = key in self.table.young.get(namespace, {})
                assert is_young == (key in self.model.get(namespace, {}))

    @invariant()
    def is_a_dict_of_dicts(self) -> None:
        expected = plain(self.model)
        assert contents(self.table) == expected
        assert len(self.table) == sum(len(rows) for rows in expected.values())
        for namespace, rows in expected.items():
            for key, value in rows:
                assert self.table.peek(namespace, key) == value
            assert list(self.table.each(namespace)) == rows
        for namespace in (None, 1, (0, 10), 2**64):
            assert (namespace in self.table) == (namespace in expected)
        every = [(namespace, *row) for namespace, rows in expected.items() for row in rows]
        assert sorted(self.table.unordered(), key=repr) == sorted(every, key=repr)


def copied(value: Value) -> Value:
    return None if value is None else list(value)


def contents(table: Table) -> dict[Any, list[tuple[Any, Value]]]:
    """All rows in their order."""
    return {
        namespace: [(key, copied(value)) for key, value in table.whole(namespace).items()]
        for namespace in table.namespaces()
    }


def plain(model: dict[Any, dict[Key, Value]]) -> dict[Any, list[tuple[Key, Value]]]:
    return {
        namespace: [(key, copied(value)) for key, value in rows.items()]
        for namespace, rows in model.items()
        if rows
    }


TestGenerations = Generations.TestCase


class GenerationsOfKeys(Generations):
    """The same, of a table whose rows may be lone."""

    table: KeyTable

    def new_table(self, name: str) -> Table:
        return KeyTable(name)

    @rule(namespace=NAMESPACES, key=KEYS, short=st.booleans())
    def put_lone(self, namespace: Any, key: Key, short: bool) -> None:
        if namespace not in self.table.young and namespace not in self.table:
            self.table.lone[namespace] = key[0] if short and key[1] is None else key
            self.model[namespace] = {key: None}

    @rule(namespace=NAMESPACES)
    def pop_lone(self, namespace: Any) -> None:
        if self.table.lone.pop(namespace, MISSING) is not MISSING:
            self.model.pop(namespace)

    @precondition(lambda self: self.delta is None and self.merging is None)
    @rule(declared=st.booleans())
    def go_on(self, declared: bool) -> None:
        """Another step like this goes on, which has declared the table, or does so later."""
        self.cut()
        self.write_the_delta()
        self.table.merge()
        self.merging = None
        before, after, table = Tables(), Tables(), KeyTable("t")
        before.declare(self.table)
        if declared:
            after.declare(table)
        after.go_on(before, {})
        if not declared:
            after.declare(table)
        assert contents(self.table) == {}
        self.table = table


TestGenerationsOfKeys = GenerationsOfKeys.TestCase


class GenerationsOnDisk(Generations):
    """The same, with the oldest generation on disk, where rows rest; the earliest namespace comes alone."""

    def new_table(self, name: str) -> Table:
        return Table(name, old=DiskRows(database()))

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("asyncstream.state.disk.AWAY", 1)

    def teardown(self) -> None:
        self.patch.undo()

    @rule()
    def adopt_the_first(self) -> None:
        first = self.table.first_away()
        adopted = self.table.adopt_first(math.inf)
        assert adopted == ([] if first is None else [first])
        following = self.table.first_away()
        assert following is None or first is None or following > first


TestGenerationsOnDisk = GenerationsOnDisk.TestCase
TestGenerationsOnDisk.settings = settings(max_examples=examples(100), deadline=None)


def test_large_merges_come_in_slices() -> None:
    table = Table("t")
    for number in range(10_000):
        table.put(None, number, number)
    table.cut()
    table.merge()
    for number in range(10_000):
        table.put(None, number, -number)
    table.cut()
    slices = sum(1 for _ in table.merging())
    assert slices >= 4
    assert table.peek(None, 9_999) == -9_999


def test_a_cut_before_the_last_one_was_merged_is_refused() -> None:
    table = Table("t")
    table.put(None, "k", 1)
    table.cut()
    table.put(None, "k", 2)
    with pytest.raises(InternalError, match="before the last cut was merged"):
        table.cut()


def test_a_table_that_is_declared_after_a_restore_holds_what_was_kept() -> None:
    first = Tables()
    first.declare(Table("t")).put((0, 10), "k", [1])
    second = Tables()
    second.restore(first.snapshot())
    assert second.snapshot()["tables"] == first.snapshot()["tables"]
    assert contents(second.declare(Table("t"))) == {(0, 10): [("k", [1])]}


def test_namespace_whose_rows_were_removed_during_a_checkpoint_is_gone() -> None:
    table, other = Table("t"), Table("other")
    table.put(1, "a", [1])
    table.cut()
    table.remove(1, "a")
    table.merge()
    assert 1 not in table
    table.adopt(1)["b"] = [2]
    assert other.whole(1) == {} == other.whole(2)


class Watched(Mapping[Any, Any]):
    """Counts how many of its values were looked at."""

    def __init__(self, held: Mapping[Any, Any]) -> None:
        self.held, self.count = held, 0

    def __getitem__(self, key: Any) -> Any:
        self.count += 1
        return self.held[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


def test_many_namespaces_of_a_cut_are_counted_by_a_sample() -> None:
    """It is asked in the event loop whether they are few, which need no thread to be encoded."""
    table = KeyTable("t")
    table.lone.update(dict.fromkeys(range(3_000), "k"))
    table.put(-1, ("k", None), None)
    watched = Watched(table.cut().rows)
    assert len(Delta(watched)) == 3_001
    assert watched.count <= 500
    assert len(Delta({1: {2: 3, 4: 5}, 6: {}}, {7: {8, 9}}, {10})) == 5


@pytest.mark.parametrize("spaces", [1, 3_000])
@pytest.mark.parametrize("kind", [Table, KeyTable])
@pytest.mark.parametrize("remote", [False, True])
def test_many_rows_are_counted_by_a_sample(
    kind: type[Table], remote: bool, spaces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics count them in the event loop, which looking all up would hold for seconds."""
    table = kind("t", old=DiskRows(database()) if remote else None)
    looked_up = 0

    def has(rows: Any, namespace: Any, key: Any) -> bool:
        nonlocal looked_up
        looked_up += 1
        return was_there(rows, namespace, key)

    def touch(numbers: range) -> None:
        for number in numbers:
            if isinstance(table, KeyTable) and number >= 6_000:
                table.lone[number] = number
            else:
                table.put(number % spaces, (number, None), None)

    was_there = type(table._old).has
    monkeypatch.setattr(type(table._old), "has", has)
    touch(range(8_000))
    assert len(table) == 8_000
    table.cut()
    assert len(table) == pytest.approx(8_000, rel=0.1)
    touch(range(0, 6_000, 2))
    touch(range(8_000, 10_000))
    assert len(table) == pytest.approx(10_000, rel=0.1)
    table.merge()
    assert len(table) == pytest.approx(10_000, rel=0.1)
    assert 0 < looked_up < 8_000
    table.cut()
    table.merge()
    assert len(table) == 10_000


@pytest.mark.parametrize("large", [0, 1, 599])
def test_a_namespace_of_many_rows_counts_for_what_it_has(large: int) -> None:
    """As of a time that many timers share: it may be in the sample or not."""
    table = Table("t")
    table.put("old", "k", 1)
    table.cut()
    table.merge()
    for namespace in range(600):
        for key in range(2_000 if namespace == large else 1):
            table.put(namespace, key, 1)
    assert len(table) == pytest.approx(2_600, rel=0.1)


class Changing(dict[Any, Any]):
    """Is found to have changed when it is gone through for the first time."""

    is_first = True

    def __iter__(self) -> Iterator[Any]:
        if self.is_first:
            self.is_first = False
            raise RuntimeError("dictionary changed size during iteration")
        return super().__iter__()


@pytest.mark.parametrize("kind", [Table, KeyTable])
@pytest.mark.parametrize("remote", [False, True])
def test_rows_are_counted_in_a_thread_while_others_are_put(
    kind: type[Table], remote: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics may be asked for in any thread: the event loop puts and drops rows between any two looks."""
    table = kind("t", old=DiskRows(database()) if remote else None)
    for number in range(100):
        table.put(number, ("k", None), None)
    table.cut()
    table.merge()
    for number in range(50, 200):
        table.put(number, ("k", None), None)
    table.young = Changing(table.young)
    numbers = iter(range(200, 2_000))

    def has(rows: Any, namespace: Any, key: Any) -> bool:
        table.drop(next(numbers) - 1)
        table.put(next(numbers), ("k", None), None)
        return was_there(rows, namespace, key)

    was_there = type(table._old).has
    monkeypatch.setattr(type(table._old), "has", has)
    assert 190 <= len(table) <= 210


def test_what_a_count_has_seen_on_disk_is_not_taken_for_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored, table = database(), Table("t", old=DiskRows(database()))
    table.put(None, "k", 1)
    table.cut()
    table.merge()
    table.put(None, "k", 2)
    found = stored.get

    def get(name: bytes) -> bytes | None:
        data = found(name)
        if stored.get is get:
            monkeypatch.undo()
            table.cut()  # by the event loop, while this is another thread
            table.merge()
        return data

    monkeypatch.setattr(stored, "get", get)
    monkeypatch.setattr(stored, "get_many", lambda names: list(map(get, names)))
    assert len(table) == 1
    assert table.get(None, "k") == 2
