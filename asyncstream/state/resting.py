"""
Rows on disk, of which those that are touched again and again stay in memory.

Theory
------
Were all that was young at a cut brought to disk, hot keys would be written, and read again at once. So a row
of which an older version is on disk is not written when it is put: it *rests* until the next merge, and
*leaves* then, which writes it. If it is touched before that, it is taken away, and is young again as it is;
read by itself, it stays until it is put. So what is touched at least once between two cuts is never written.

What rests only has another value than on disk: which rows there are, and in which order, the disk tells
alone. And it is written without a look at what is there, for that is *known* since it was read, together with
others, or lately enough (`recent`), but for rows that share their name with those of other keys.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from asyncstream.state.disk import DiskRows
from asyncstream.state.disk_entries import pickled, row_of
from asyncstream.state.row_names import HASH
from asyncstream.state.rows import AWAY, MISSING, NO_ROWS, Entry, Rows, about
from asyncstream.state.stored import Stored

__all__ = ("RestingRows",)


class RestingRows(DiskRows):
    """
    The oldest generation of one table, on disk; see the module.

    Args:
        stored: the database.
    """

    __slots__ = ("_known", "_leaving", "_resting", "_shared")

    def __init__(self, stored: Stored) -> None:
        super().__init__(stored)
        self._resting: dict[Any, Rows] = {}
        self._leaving: dict[Any, Rows] = {}  # of other keys
        self._known: dict[Any, Rows] = {}  # what stands under the names of those, and of some that were taken
        self._shared: set[bytes] = set()  # names under which there is more by now

    def waiting(self) -> int:
        return about(self._resting) + about(self._leaving)

    def kept(self) -> tuple[Any, ...]:
        for _ in self.merging(iter(())):
            pass
        return super().kept()

    # ------------------------------------------------------------------ rows

    def get(self, namespace: Hashable, key: Hashable) -> Any:
        if self._resting or self._leaving:
            value = self._newer(namespace, key)
            if value is not MISSING:
                return value
        return super().get(namespace, key)

    def _newer(self, namespace: Hashable, key: Hashable) -> Any:
        """What is not written yet, or `MISSING`."""
        for waiting in (self._resting, self._leaving):
            value = waiting.get(namespace, NO_ROWS).get(key, MISSING)
            if value is not MISSING:
                self._stored.check()
                return value
        return MISSING

    def get_many(self, namespace: Hashable, keys: Sequence[Any]) -> list[Any]:
        self._stored.check()
        values = [MISSING] * len(keys)
        for waiting in (self._resting, self._leaving):
            if rows := waiting.get(namespace):
                values = [rows.pop(key, value) for key, value in zip(keys, values, strict=True)]
        wanted = [number for number, value in enumerate(values) if value is MISSING]
        if wanted:
            found = self._read_known(namespace, [keys[number] for number in wanted])
            for number, value in zip(wanted, found, strict=True):
                values[number] = value
        return values

    def _read_known(self, namespace: Hashable, keys: Sequence[Any]) -> list[Any]:
        """As `get_many`, of what is on disk."""
        prefix, pack, note = self._prefix_of(namespace), HASH.pack, self._stored.recent.note
        values: list[Any] = []
        known: Rows = {}
        try:
            names = [prefix + pack(hash(key)) for key in keys]
            for key, name, held in zip(keys, names, self._read_all(names, notes=False), strict=True):
                row = row_of(held, key)
                if row is None:
                    values.append(MISSING)
                    note(name, held)  # it is asked for again when the row is put
                else:
                    values.append(row[2])
                    if row is held:
                        known[key] = row
        except Exception as error:
            self._stored.fail(error)
        if known:
            self._known.setdefault(namespace, {}).update(known)
        return values

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        for rows in (self._resting, self._leaving):
            rows.get(namespace, {}).pop(key, None)
        row = self._known.get(namespace, {}).pop(key, None)
        name = self._prefix_of(namespace) + HASH.pack(hash(key))
        if row is not None and name not in self._shared:
            self._stored.recent.note(name, row)  # so that it is not read
        return super().remove(namespace, key)

    def put(self, entries: Sequence[Entry], places: Sequence[int] | None = None) -> None:
        recent, prefix_of, pack = self._stored.recent, self._prefix_of, HASH.pack
        new: list[Entry] = []
        for entry in entries:
            namespace, key, value = entry
            if key not in self._known.get(namespace, NO_ROWS):
                held = recent.get(prefix_of(namespace) + pack(hash(key)))
                if not held or row_of(held, key) is not held:
                    new.append(entry)
                    continue
                self._known.setdefault(namespace, {})[key] = held
            self._resting.setdefault(namespace, {})[key] = value
            if self._leaving:
                self._leaving.get(namespace, {}).pop(key, None)
        if new:
            written = self._write(new, places)
            self._shared.update(name for name, held in written.items() if type(held) is list)

    def merging(self, entries: Iterator[Entry]) -> Iterator[None]:
        yield from self._writing()  # what one that was given up has left
        self._leaving, self._resting = self._resting, {}
        yield from super().merging(entries)
        yield from self._writing()

    def _writing(self) -> Iterator[None]:
        """Writes what leaves, in slices."""
        for namespace in list(self._leaving):
            while rows := self._leaving.get(namespace):
                self._write_known(namespace, [rows.popitem() for _ in range(min(len(rows), AWAY))])
                yield
        self._leaving.clear()

    def _write_known(self, namespace: Hashable, rows: Sequence[tuple[Any, Any]]) -> None:
        stored, known = self._stored, self._known[namespace]
        prefix, pack = self._prefix_of(namespace), HASH.pack
        changed: dict[bytes, Any] = {}
        others: list[Entry] = []
        try:
            for key, value in rows:
                row, name = known.pop(key), prefix + pack(hash(key))
                if name in self._shared:
                    others.append((namespace, key, value))
                else:
                    changed[name] = row if row[2] is value else (*row[:2], value, *row[3:])
            stored.write([(name, pickled(stored, held)) for name, held in changed.items()])
        except Exception as error:
            stored.fail(error)
        stored.recent.renew(changed)
        if others:
            self._write(others)
        if not known:
            del self._known[namespace]

    # ------------------------------------------------------------------ namespaces

    def drop(self, namespace: Hashable) -> bool:
        self._forget(namespace)
        return super().drop(namespace)

    def _forget(self, namespace: Hashable) -> None:
        for rows in (self._resting, self._leaving, self._known):
            rows.pop(namespace, None)

    def take_first(self, until: float, limit: int) -> dict[int, Rows]:
        found = super().take_first(until, limit)
        for namespace in found:
            self._forget(namespace)
        return found

    def clear(self) -> None:
        for rows in (self._resting, self._leaving, self._known):
            rows.clear()
        self._shared.clear()
        super().clear()

    def _rows(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, Any]]:
        if not self._resting and not self._leaving:
            yield from super()._rows(begin, end)
            return
        for name, row in super()._rows(begin, end):
            value = self._newer(self._namespace_of(name[: -HASH.size], row), row[0])
            yield name, row if value is MISSING else (*row[:2], value, *row[3:])
