"""What was read lately is as it is on disk, whatever was written, removed and forgotten since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncstream.state import MISSING, Database, DiskRows, DiskState, Table
from asyncstream.state.recent import NOTHING, Recent
from tests.on_disk import database
from tests.tiers import examples


@dataclass(frozen=True)
class Meets:
    """Has the hash of all others."""

    name: str

    def __hash__(self) -> int:
        return 7


SPACES = st.sampled_from([None, 1, 2, (0, 10)])
KEYS = st.sampled_from([Meets("a"), Meets("b"), Meets("c"), 7, "other"])


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
        entries = []
        for space, key in places:
            self.number += 1
            entries.append((space, key, self.number))
            self.model.setdefault(space, {})[key] = self.number
        self.rows.put(entries)

    @rule(space=SPACES, key=KEYS)
    def get(self, space: Any, key: Any) -> None:
        assert self.rows.get(space, key) == self.model.get(space, {}).get(key, MISSING)

    @rule(space=SPACES, keys=st.lists(KEYS, max_size=4))
    def get_many(self, space: Any, keys: list[Any]) -> None:
        expected = [self.model.get(space, {}).get(key, MISSING) for key in keys]
        assert self.rows.get_many(space, keys) == expected

    @rule(places=st.lists(st.tuples(SPACES, KEYS), max_size=4, unique=True))
    def count_new(self, places: list[Any]) -> None:
        expected = sum(key not in self.model.get(space, {}) for space, key in places)
        assert self.rows.count_new(places) == expected

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

    @rule()
    def clear(self) -> None:
        self.rows.clear()
        self.model.clear()

    @invariant()
    def has_what_was_put(self) -> None:
        if hasattr(self, "rows"):
            assert len(self.rows) == sum(map(len, self.model.values()))
            for space, expected in self.model.items():
                assert list(self.rows.of(space).items()) == list(expected.items())


TestRowsOnDisk = RowsOnDisk.TestCase
TestRowsOnDisk.settings = settings(max_examples=examples(25), deadline=None)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Database, list[int]]]:
    """A database, and how many names each reading has asked for."""
    stored = Database(DiskState(tmp_path, young_rows=1_000))
    asked: list[int] = []
    get_many = stored.get_many

    def counting(names: list[bytes]) -> list[bytes | None]:
        asked.append(len(names))
        return get_many(names)

    monkeypatch.setattr(stored, "get_many", counting)
    yield stored, asked
    stored.close()


def test_what_is_touched_again_and_again_is_read_once(counted: tuple[Database, list[int]]) -> None:
    stored, asked = counted
    table = Table("t", old=DiskRows(stored))
    for _ in range(5):
        table.fetch(None, range(100))
        for key in range(100):
            held = table.get(None, key)
            table.put(None, key, [1] if held is MISSING else [*held, 1])
        table.cut()
        table.merge()
        assert len(table) == 100
    assert sum(asked) == 100  # in the second round: before, there was nothing to be read
    assert all(held == [1] * 5 for held in table.whole().values())


def test_as_much_stays_as_was_said() -> None:
    recent = Recent(3)
    for number in range(10):
        recent.note(bytes([number]), NOTHING)
        recent.get(b"\0")  # is asked for again and again
    known = [number for number in range(10) if recent.get(bytes([number])) is not None]
    assert known[0] == 0
    assert known[-1] == 9
    assert len(known) <= 6
