"""
Rows on disk, of which those that are touched again and again stay in memory.

Theory
------
Were all that was young at a cut brought to disk, hot keys would be written, and read again at once. So a row
of which an older version is known to be on disk is not written when it is put: it *rests* until the next
merge, and *leaves* then, which writes it. If it is touched before that, it is taken away, and is young again
as it is; read by itself, it stays until it is put. So what is touched at least once between two cuts is never
written.

What rests only has another value than on disk: which rows there are, and in which order, the disk tells
alone. A row that was taken is among those that were read lately (`recent`), so that nothing is looked up when
it is put again. Rows that share their name with those of other keys never rest.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any

from asyncstream.state.disk import DiskRows
from asyncstream.state.disk_entries import pickled, row_of
from asyncstream.state.row_names import HASH
from asyncstream.state.rows import AWAY, MISSING, Entry
from asyncstream.state.stored import Stored

__all__ = ("RestingRows",)


class RestingRows(DiskRows):
    """
    The oldest generation of one table, on disk; see the module.

    Args:
        stored: the database.
    """

    __slots__ = ("_leaving", "_resting")

    def __init__(self, stored: Stored) -> None:
        super().__init__(stored)
        self._resting: dict[bytes, Any] = {}  # rows by name, of which none is in `recent` as well
        self._leaving: dict[bytes, Any] = {}  # of other names

    def waiting(self) -> int:
        return len(self._resting) + len(self._leaving)

    # ------------------------------------------------------------------ rows

    def _known(self, name: bytes) -> Any:
        return self._resting.get(name) or self._leaving.get(name) or self._stored.recent.get(name)

    def get_many(self, namespace: Hashable, keys: Sequence[Any]) -> list[Any]:
        prefix, pack, note = self._prefix_of(namespace), HASH.pack, self._stored.recent.note
        resting, leaving = self._resting, self._leaving
        values: list[Any] = []
        try:
            names = [prefix + pack(hash(key)) for key in keys]
            for key, name, held in zip(keys, names, self._read_all(names), strict=True):
                row = row_of(held, key)
                values.append(MISSING if row is None else row[2])
                if row is held and (resting.pop(name, None) or leaving.pop(name, None)):
                    note(name, row)
        except Exception as error:
            self._stored.fail(error)
        return values

    def put(self, entries: Sequence[Entry], places: Sequence[int] | None = None) -> Collection[bytes]:
        recent, prefix_of, pack = self._stored.recent, self._prefix_of, HASH.pack
        resting, leaving = self._resting, self._leaving
        new: list[Entry] = []
        before: Any = MISSING
        prefix = b""
        for entry in entries:
            namespace, key, value = entry
            if namespace is not before:
                before, prefix = namespace, prefix_of(namespace)
            name = prefix + pack(hash(key))
            held = recent.get(name) or leaving.get(name) or resting.get(name)
            if not held or row_of(held, key) is not held:
                new.append(entry)
                continue
            if leaving.pop(name, None) is None:
                recent.forget((name,))
            resting[name] = held if held[2] is value else (*held[:2], value, *held[3:])
        written = super().put(new, places) if new else ()
        self._forget(written)
        return written

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        is_gone = super().remove(namespace, key)
        if is_gone:
            self._forget((self._prefix_of(namespace) + HASH.pack(hash(key)),))
        return is_gone

    def merging(self, entries: Iterator[Entry]) -> Iterator[None]:
        yield from self._writing()  # what one that was given up has left
        self._leaving, self._resting = self._resting, {}
        yield from super().merging(entries)
        yield from self._writing()

    def _writing(self) -> Iterator[None]:
        """Writes what leaves, in slices."""
        stored, leaving = self._stored, self._leaving
        while leaving:
            some = [leaving.popitem() for _ in range(min(len(leaving), AWAY))]
            try:
                stored.write([(name, pickled(stored, row)) for name, row in some])
            except Exception as error:
                stored.fail(error)
            yield

    def _forget(self, names: Iterable[bytes]) -> None:
        for name in names:
            self._resting.pop(name, None)
            self._leaving.pop(name, None)

    # ------------------------------------------------------------------ many of them

    def _rows(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, Any]]:
        for name, row in super()._rows(begin, end):
            yield name, self._resting.get(name) or self._leaving.get(name) or row

    def _delete(self, names: Sequence[bytes], begin: bytes, end: bytes, count: int) -> None:
        super()._delete(names, begin, end, count)
        if len(names) < count:
            names = [name for name in (*self._resting, *self._leaving) if begin <= name < end]
        self._forget(names)

    def clear(self) -> None:
        self._resting.clear()
        self._leaving.clear()
        super().clear()
