"""
Rows in one file that processes of a machine hand to each other: SQLite, of Python's own library.

A process that takes a file gives it another name, and the old one back when all is written: what it leaves if
it ends before is never used. So there is no journal, and nothing is brought to the disk by force. RocksDB
writes faster, but takes long to open, and a file is open for a tenth of a second at a time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, repeat
from typing import Any, Final

from asyncstream.state.stored import Stored

__all__ = ("StoredFile",)

MANY: Final = 500
"""Names that are asked for together."""

CACHE_KIB: Final = 8 * 1024
"""Memory for pages of the file."""

_PAGES: Final = (1, 20, 400)
"""Entries that a scan reads in one go, first and then: often the first is all that is wanted."""


class StoredFile(Stored):
    """
    Bytes under names, in one file that is this object's alone.

    Args:
        path: of the file.
        dumps, loads: as for `Stored`.

    Raises:
        sqlite3.Error: if the file cannot be used.
    """

    def __init__(self, path: str, dumps: Callable[[Any], bytes], loads: Callable[[bytes], Any]) -> None:
        super().__init__(path, dumps, loads)
        self._connection = sqlite3.connect(path, isolation_level=None)
        try:
            run = self._connection.execute
            for setting in (
                "journal_mode = off",
                "synchronous = off",
                "locking_mode = exclusive",
                f"cache_size = -{CACHE_KIB}",
                "temp_store = memory",
            ):
                run(f"pragma {setting}")
            run("begin exclusive")
            run("create table if not exists about (id integer primary key, data blob)")
            # apart from their names: rows of a thousand bytes would leave room for few in a page of names
            run("create table if not exists entries (id integer primary key, name blob, data blob)")
            run("create unique index if not exists names on entries (name)")
        except BaseException:
            self._connection.close()
            raise
        self._run = run

    def get(self, name: bytes) -> bytes | None:
        found = self._run("select data from entries where name = ?", (name,)).fetchone()
        return None if found is None else found[0]

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        found: dict[bytes, bytes] = {}
        for start in range(0, len(names), MANY):
            some = names[start : start + MANY]
            places = ",".join("?" * len(some))
            found.update(self._run(f"select name, data from entries where name in ({places})", some))
        return [found.get(name) for name in names]

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        self._connection.executemany(
            "insert into entries (name, data) values (?, ?) "
            "on conflict (name) do update set data = excluded.data",
            puts,
        )
        self._connection.executemany("delete from entries where name = ?", ((name,) for name in deletes))

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self._run("delete from entries where name >= ? and name < ?", (begin, end))

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        for count in chain(_PAGES, repeat(_PAGES[-1])):
            page = self._run(
                "select name, data from entries where name >= ? and name < ? order by name limit ?",
                (begin, end, count),
            ).fetchall()
            yield from page
            if len(page) < count:
                return
            begin = page[-1][0] + b"\0"

    def about(self) -> bytes | None:
        """What was given when the file was last handed on; None: it is new."""
        found = self._run("select data from about where id = 0").fetchone()
        return None if found is None else found[0]

    def hand_on(self, about: bytes) -> None:
        """Have everything in the file, with this, and use it no more."""
        self.check()
        self._run("insert or replace into about (id, data) values (0, ?)", (about,))
        self._run("commit")
        self._end()
        self._connection.close()

    def close(self) -> None:
        """Use the file no more, which is of no use to any other then."""
        self._end()
        with suppress(sqlite3.Error):
            self._connection.close()
