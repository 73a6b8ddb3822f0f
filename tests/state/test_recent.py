"""What was read lately is as it is on disk, whatever was written, removed and forgotten since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncstream.state import MISSING, Database, DiskRows, DiskState, Table
from asyncstream.state.rows import Entry
from asyncstream.state.stored import NOTHING, Recent
from tests.on_disk import database
from tests.tiers import examples


@dataclass(frozen=True)
class Meets:
    """Has the hash of all others."""

    name: str

    def __hash__(self) -> int:
        return 7


SPACES = st.sampled_from([None, 1, 2, (0, 10)])
KEYS = st.sampled_from([Meets("a"), Meets("b"), 7, "other", "another", 1])


class RowsOnDisk(RuleBasedStateMachine):
    """Rows on disk against a dict of dicts; little of what was read is known."""

    @initialize(limit=st.integers(1, 6))
    def begin(self, limit: int) -> None:
        self.stored = database()
        self.stored.recent = Recent(limit)
        self.rows = DiskRows(self.stored)
        self.model: dict[Any, dict[Any, int]] = {}
        self.number = 0

    def teardown(self) -> None:
        database().recent = Recent(100_000)

    @rule(places=st.lists(st.tuples(SPACES, KEYS), max_size=4, unique=True))
    def put(self, places: list[Any]) -> None:
        self.rows.put(self.numbered(places))

    def numbered(self, places: Iterable[Any]) -> list[Entry]:
        entries = []
        for space, key in places:
            self.number += 1
            entries.append((space, key, self.number))
            self.model.setdefault(space, {})[key] = self.number
        return entries

    @rule(space=SPACES, key=KEYS)
    def get(self, space: Any, key: Any) -> None:
        assert self.rows.get(space, key) == self.model.get(space, {}).get(key, MISSING)

    @rule(space=SPACES, keys=st.lists(KEYS, max_size=4), changes=st.booleans())
    def get_many(self, space: Any, keys: list[Any], changes: bool) -> None:
        """What is taken is put again: until then only who took it knows what it is."""
        expected = [self.model.get(space, {}).get(key, MISSING) for key in keys]
        assert self.rows.get_many(space, keys) == expected
        taken = [(space, key) for key in dict.fromkeys(keys) if key in self.model.get(space, {})]
        self.rows.put(
            self.numbered(taken) if changes else [(*place, self.model[space][place[1]]) for place in taken]
        )

    @rule(space=SPACES, key=KEYS)
    def remove(self, space: Any, key: Any) -> None:
        assert self.rows.remove(space, key) == (self.model.get(space, {}).pop(key, None) is not None)

    @rule(space=SPACES)
    def drop(self, space: Any) -> None:
        self.rows.drop(space)
        self.model.pop(space, None)

    @rule()
    def take_first(self) -> None:
        first = min(
            (space for space, rows in self.model.items() if rows and type(space) is int), default=None
        )
        expected = {} if first is None else {first: self.model.pop(first)}
        assert self.rows.take_first(9, 1) == expected

    @rule(space=SPACES)
    def look_through(self, space: Any) -> None:
        expected = [(space, *row) for space, rows in self.model.items() for row in rows.items()]
        assert sorted(self.rows.unordered(), key=repr) == sorted(expected, key=repr)
        assert sorted(self.rows.entries(), key=repr) == sorted(expected, key=repr)
        assert list(self.rows.entries(space)) == [entry for entry in expected if entry[0] == space]

    @rule()
    def clear(self) -> None:
        self.rows.clear()
        self.model.clear()

    @invariant()
    def has_what_was_put(self) -> None:
        if hasattr(self, "rows"):
            assert len(self.rows) == sum(map(len, self.model.values()))
            for space in (None, 1, 2, (0, 10)):
                expected = self.model.get(space, {})
                assert list(self.rows.of(space).items()) == list(expected.items())
                assert (space in self.rows) == bool(expected)


TestRowsOnDisk = RowsOnDisk.TestCase
TestRowsOnDisk.settings = settings(max_examples=examples(25), deadline=None)


class RowsThatRest(RowsOnDisk):
    """The same, of rows that stay in memory for a while; more than few are soon together."""

    @initialize(limit=st.integers(1, 6))
    def begin(self, limit: int) -> None:
        super().begin(limit)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("asyncstream.state.disk.AWAY", 1)
        self.patch.setattr("asyncstream.state.disk._FEW", limit // 2)

    def teardown(self) -> None:
        super().teardown()
        self.patch.undo()

    @rule(space=SPACES, key=KEYS)
    def is_taken_and_removed(self, space: Any, key: Any) -> None:
        assert self.rows.get_many(space, [key]) == [self.model.get(space, {}).get(key, MISSING)]
        self.remove(space, key)
        self.put([(space, key)])

    @rule(places=st.lists(st.tuples(SPACES, KEYS), max_size=4, unique=True), slices=st.integers(0, 5))
    def merge(self, places: list[Any], slices: int) -> None:
        rest = iter(self.numbered(places))
        given_up = self.rows.merging(rest)
        for _ in range(slices):
            next(given_up, None)
        for _ in self.rows.merging(rest):
            pass


TestRowsThatRest = RowsThatRest.TestCase
TestRowsThatRest.settings = settings(max_examples=examples(60), deadline=None)


@dataclass
class Counted:
    """A database; `asked` and `written` have how many names it was asked for, and given, each time."""

    stored: Database
    asked: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    stored = Database(DiskState(tmp_path, young_rows=1_000))
    found = Counted(stored)
    get_many, write = stored.get_many, stored.write

    def counting(names: list[bytes]) -> list[bytes | None]:
        found.asked.append(len(names))
        return get_many(names)

    def writing(puts: list[tuple[bytes, bytes]]) -> None:
        found.written.append(len(puts))
        write(puts)

    monkeypatch.setattr(stored, "get_many", counting)
    monkeypatch.setattr(stored, "write", writing)
    yield found
    stored.close()


def test_what_is_touched_again_and_again_is_read_once(counted: Counted) -> None:
    table = Table("t", old=DiskRows(counted.stored))
    for _ in range(5):
        touch(table, range(100))
        assert len(table) == 100
    # in the second round; before, when the first was there alone, for the places of the others
    assert sum(counted.asked) == 100 + 99
    assert all(held == [1] * 5 for held in table.whole().values())


def touch(table: Table, keys: range, *, together: bool = True) -> None:
    """Add to each of these keys, which are read together or one by one, and let what has changed grow old."""
    if together:
        table.fetch(None, keys)
    for key in keys:
        held = table.get(None, key)
        table.put(None, key, [1] if held is MISSING else [*held, 1])
    table.cut()
    table.merge()


@pytest.mark.parametrize("together", [True, False])
def test_what_is_touched_between_two_cuts_is_not_written(counted: Counted, together: bool) -> None:
    table = Table("t", old=DiskRows(counted.stored))
    touch(table, range(100), together=together)
    touch(table, range(100), together=together)
    assert sum(counted.written) == 100  # when they were new
    del counted.written[:]
    for _ in range(5):
        touch(table, range(50), together=together)
    assert sum(counted.written) == 50  # the others, once
    assert list(table.whole().values()) == [[1] * 7] * 50 + [[1] * 2] * 50


def test_rows_that_rest_count_half_of_those_that_are_young(counted: Counted) -> None:
    table = Table("t", old=DiskRows(counted.stored))
    for _ in range(2):
        touch(table, range(100))
    assert table.weight() == 50
    table.fetch(None, range(40))
    assert table.weight() == 40 + 30


def test_as_much_stays_as_was_said() -> None:
    recent = Recent(3)
    for number in range(10):
        recent.note(bytes([number]), NOTHING)
        recent.get(b"\0")  # is asked for again and again
    known = [number for number in range(10) if recent.get(bytes([number])) is not None]
    assert known[0] == 0
    assert known[-1] == 9
    assert len(known) <= 6


def test_what_is_forgotten_is_not_known_however_long_ago_it_was_read() -> None:
    recent = Recent(3)
    names = [bytes([number]) for number in range(5)]
    for name in names:
        recent.note(name, [name])
    recent.forget(names[:4])
    assert [recent.get(name) for name in names] == [None] * 4 + [[names[4]]]
