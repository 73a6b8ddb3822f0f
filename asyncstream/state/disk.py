"""
The oldest generation of tables on disk, in RocksDB: state that is larger than memory.

Theory
------
One database holds the old rows of all tables of a job. The name of an entry is

    table       4 bytes, the number of the table in this process
    namespace   a byte that says its kind, then: nothing for None; 8 bytes for an int, such that the earliest
                comes first; 16 for a pair of them, a window; else 8, the number of the namespace
    hash        8 bytes, `hash(key)`

so the rows of a namespace lie together, and the earliest timer is found by one seek. Keys that are equal have
the same hash, as in a dict, be they 1, 1.0 or True; those that only share it share an entry, a list. An
entry is the pickle of (key, place, value), where the places give the order in which rows were first put;
for a pair, and for what is numbered, the namespace itself comes last.

Hashes of texts differ from process to process, and pickles may name classes as they are now. Neither does
harm, since the directory is a cache: it belongs to the process that has opened it, is emptied when it is
opened, and is never read by another. What is to last goes into checkpoints. Therefore there is no
write-ahead log either, and nothing is brought to the disk by force.

An error of the database (a full disk, a directory that is gone) is the end of the job: it is told to who
opened the database, so that user code that catches every exception cannot hide it, and from then on every
call fails.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from struct import Struct
from typing import Any, Final

from asyncstream.errors import StateError, describe_error, safe_repr
from asyncstream.state.database import Database
from asyncstream.state.rows import MISSING, SLICE, Entry, Rows

__all__ = ("DiskRows",)

_TABLE: Final = Struct(">I")
_HASH: Final = Struct(">q")
_INT: Final = Struct(">Q")
_PAIR: Final = Struct(">QQ")

_KIND: Final = _TABLE.size
"""Where in a name the namespace begins, with its kind."""

_ZERO: Final = 1 << 63
"""Added to an int, so that negative ones come before others."""

_NONE, _INTS, _PAIRS, _NUMBERED = b"\0", b"\1", b"\2", b"\3"

_NUMBERS: Final = (bool, float, int)

_PLAIN: Final = frozenset({type(None), bool, int, str, bytes})
"""Types of keys that are equal to their copies."""

_FEW: Final = 10_000
"""Rows that are rather deleted one by one: reads have to look at each range that was deleted."""

_AFTER_ALL: Final = 1 << 64
_BEFORE_ALL: Final = -_AFTER_ALL


class DiskRows:
    """
    The oldest generation of one table, on disk.

    Args:
        stored: the database.
    """

    __slots__ = (
        "_count",
        "_high",
        "_low",
        "_low_is_exact",
        "_names",
        "_next",
        "_numbers",
        "_own",
        "_prefix",
        "_stored",
    )
    is_remote = True

    def __init__(self, stored: Database) -> None:
        self._stored = stored
        self._prefix = _TABLE.pack(stored.next_number())
        self._own = self._prefix + _NONE
        self._count = 0
        self._next = 0  # place of the next row that is new
        self._low = _AFTER_ALL  # no namespace that is an int lies below
        self._low_is_exact = True  # and this one has rows
        self._high = _BEFORE_ALL  # nor above
        self._names: list[Any] = []  # namespaces that are numbered
        self._numbers: dict[Any, int] = {}

    def __len__(self) -> int:
        return self._count

    # ------------------------------------------------------------------ one row

    def get(self, namespace: Hashable, key: Hashable) -> Any:
        if not self._count or (type(namespace) is int and not self._low <= namespace <= self._high):
            self._stored.check()
            return MISSING
        try:
            data = self._stored.get(self._prefix_of(namespace) + _HASH.pack(hash(key)))
            if data is None:
                return MISSING
            held = pickle.loads(data)
        except Exception as error:
            self._stored.fail(error)
        row = _row_of(held, key)
        return MISSING if row is None else row[2]

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        name = self._prefix_of(namespace) + _HASH.pack(hash(key))
        try:
            self._stored.check()
            data = self._stored.get(name)
            if data is None:
                return False
            held = pickle.loads(data)
            row = _row_of(held, key)
            if row is None:
                return False
            rest = [other for other in held if other is not row] if type(held) is list else []
            if rest:
                self._stored.write([(name, pickle.dumps(rest, 5))])
            else:
                self._stored.delete(name)
        except Exception as error:
            self._stored.fail(error)
        self._count -= 1
        if namespace == self._low:
            self._low_is_exact = False
        return True

    # ------------------------------------------------------------------ many rows

    def get_many(self, places: Sequence[tuple[Any, Any]]) -> list[Any]:
        found: list[Any] = []
        try:
            self._stored.check()
            names = [self._prefix_of(namespace) + _HASH.pack(hash(key)) for namespace, key in places]
            for (_, key), data in zip(places, self._stored.get_many(names), strict=True):
                row = None if data is None else _row_of(pickle.loads(data), key)
                found.append(MISSING if row is None else row[2])
        except Exception as error:
            self._stored.fail(error)
        return found

    def put(self, entries: Sequence[Entry], places: Sequence[int] | None = None) -> None:
        """
        Put rows of any namespaces. What is there already is read, all of it together, and keeps its place.

        Args:
            places: of those that are new; None: they come last.
        """
        stored = self._stored
        prefix_of, pack = self._prefix_of, _HASH.pack
        try:
            stored.check()
            names = [prefix_of(namespace) + pack(hash(key)) for namespace, key, _ in entries]
            found = [None] * len(names) if self._are_new(entries) else stored.get_many(names)
            changed: dict[bytes, Any] = {}
            if places is None:
                places = range(self._next, self._next + len(entries))
            self._next = max(self._next, max(places, default=0) + 1)
            for name, data, entry, place in zip(names, found, entries, places, strict=True):
                held = changed.get(name)
                if held is None and data is not None:
                    held = pickle.loads(data)
                changed[name] = self._with(held, entry, place)
            stored.write([(name, self._pickled(held)) for name, held in changed.items()])
        except Exception as error:
            stored.fail(error)
        for namespace in {namespace for namespace, _, _ in entries}:
            number = None if namespace is None else _as_int(namespace)
            if number is not None:
                self._high = max(self._high, number)
                if number <= self._low:
                    self._low, self._low_is_exact = number, True

    def _are_new(self, entries: Sequence[Entry]) -> bool:
        """Whether it can be told without looking that there is none of these rows."""
        if not self._count:
            return True
        low, high = self._low, self._high
        return all(type(namespace) is int and not low <= namespace <= high for namespace, _, _ in entries)

    def _with(self, held: Any, entry: Entry, place: int) -> Any:
        """What is held under a name when it has this row as well, at this place if it is new."""
        namespace, key, value = entry
        row: tuple[Any, ...]
        found = None if held is None else _row_of(held, key)
        if found is not None:
            row = (*found[:2], value, *found[3:])
            return [row if each is found else each for each in held] if type(held) is list else row
        if type(key) not in _PLAIN:
            _check_key(key)
        row = (key, place, value)
        if namespace is not None and type(namespace) is not int:
            row = (*row, namespace)
        self._count += 1
        if held is None:
            return row
        return [*held, row] if type(held) is list else [held, row]

    def _pickled(self, held: Any) -> bytes:
        try:
            return pickle.dumps(held, 5)
        except Exception as error:  # of any class in there
            key = held[0][0] if type(held) is list else held[0]
            raise StateError(
                f"what is remembered of key {safe_repr(key)} cannot be kept on disk: pickle refuses it: "
                f"{describe_error(error)}"
            ) from error

    def update(self, namespace: Hashable, rows: Iterable[tuple[Any, Any]]) -> None:
        rest = iter(rows)
        while some := [(namespace, key, value) for key, value in islice(rest, SLICE)]:
            self.put(some)

    def adopt(self, namespace: Hashable, rows: Rows) -> None:
        self.update(namespace, rows.items())

    def count_new(self, entries: Iterable[tuple[Any, Any]]) -> int:
        """Of these namespaces with keys, all different, how many have no row."""
        rest = iter(entries)
        count = 0
        while some := list(islice(rest, SLICE)):
            count += self.get_many(some).count(MISSING)
        return count

    # ------------------------------------------------------------------ namespaces

    def __contains__(self, namespace: Hashable) -> bool:
        if not self._count:
            return False
        number = _as_int(namespace)
        if number is not None:
            if number < self._low:
                return False
            if number == self._low and self._low_is_exact:
                return True
        prefix = self._prefix_of(namespace)
        try:
            return bool(self._stored.scan(prefix, _behind(prefix)).valid())
        except Exception as error:
            self._stored.fail(error)

    def of(self, namespace: Hashable) -> Rows:
        if not self._count:
            return {}
        number = _as_int(namespace)
        if number is not None and number < self._low:
            return {}
        prefix = self._prefix_of(namespace)
        rows = [row for _, row in self._rows(prefix, _behind(prefix))]
        rows.sort(key=itemgetter(1))
        return {row[0]: row[2] for row in rows}

    def drop(self, namespace: Hashable) -> bool:
        if not self._count:
            return False
        prefix = self._prefix_of(namespace)
        names: list[bytes] = []
        count = 0
        for name, _ in self._rows(prefix, _behind(prefix)):
            count += 1
            if count <= _FEW + 1:
                names.append(name)
        self._delete(names, prefix, _behind(prefix), count)
        if names and namespace == self._low:
            self._low_is_exact = False
        return bool(names)

    def namespaces(self) -> Iterable[Any]:
        begin, end = self._prefix, _behind(self._prefix)
        while begin is not None:
            found = None
            for name, row in self._rows(begin, end):
                found = name[: -_HASH.size], row
                break
            if found is None:
                return
            prefix, row = found
            yield self._namespace_of(prefix, row)
            begin = _behind(prefix)

    def first(self) -> int | None:
        """The earliest namespace that is an int and has rows, or None."""
        if not self._low_is_exact and self._low < _AFTER_ALL:
            begin = self._prefix + _INTS + _INT.pack(self._low + _ZERO)
            try:
                scan = self._stored.scan(begin, self._prefix + _PAIRS)
                self._low = _int_in(scan.key()) if scan.valid() else _AFTER_ALL
            except Exception as error:
                self._stored.fail(error)
            self._low_is_exact = True
        return None if self._low == _AFTER_ALL else self._low

    def take_first(self, until: float, limit: int) -> dict[int, Rows]:
        """
        The rows of the earliest namespaces that are ints, up to and including `until`; they leave.

        Args:
            limit: with so many rows, it is enough.
        """
        first = self.first()
        if first is None or first > until:
            return {}
        begin, end = self._prefix + _INTS + _INT.pack(first + _ZERO), self._prefix + _PAIRS
        names: list[bytes] = []
        found: dict[int, list[Any]] = {}
        following = _AFTER_ALL
        for name, row in self._rows(begin, end):
            namespace = _int_in(name)
            if namespace not in found and (namespace > until or len(names) >= limit):
                following = namespace
                break
            found.setdefault(namespace, []).append(row)
            names.append(name)
        last = self._prefix + _INTS + _INT.pack(max(found) + _ZERO)
        self._delete(names, begin, _behind(last), len(names))
        self._low, self._low_is_exact = following, True
        for rows in found.values():
            rows.sort(key=itemgetter(1))
        return {namespace: {row[0]: row[2] for row in rows} for namespace, rows in found.items()}

    def each(self, namespace: Hashable) -> Iterator[tuple[Any, Any]]:
        prefix = self._prefix_of(namespace)
        gathered = _Gathered(self._stored)
        for _, row in self._rows(prefix, _behind(prefix)):
            gathered.add((namespace, row[0], row[2]), row[1])
        for _, key, value in gathered.in_order():
            yield key, value

    def unordered(self) -> Iterator[Entry]:
        for name, row in self._rows(self._prefix, _behind(self._prefix)):
            yield self._namespace_of(name[: -_HASH.size], row), row[0], row[2]

    def entries(self) -> Iterator[Entry]:
        begin, end = self._prefix, _behind(self._prefix)
        gathered = _Gathered(self._stored)
        current = None
        for name, row in self._rows(begin, end):
            prefix = name[: -_HASH.size]
            if prefix != current:
                yield from gathered.in_order()
                current, gathered = prefix, _Gathered(self._stored)
            gathered.add((self._namespace_of(prefix, row), row[0], row[2]), row[1])
        yield from gathered.in_order()

    def check(self) -> None:
        self._stored.check()

    def clear(self) -> None:
        if self._count:
            try:
                self._stored.delete_range(self._prefix, _behind(self._prefix))
            except Exception as error:
                self._stored.fail(error)
        self._count = 0
        self._low, self._low_is_exact, self._high = _AFTER_ALL, True, _BEFORE_ALL

    def moving(self, other: DiskRows, altered: Callable[[Entry], Entry]) -> Iterator[None]:
        """Take all rows of another table, altered, in slices; they keep their places."""
        begin, end = other._prefix, _behind(other._prefix)
        rest = other._rows(begin, end)
        while some := list(islice(rest, SLICE)):
            moved = [
                altered((other._namespace_of(name[: -_HASH.size], row), row[0], row[2])) for name, row in some
            ]
            self.put(moved, [row[1] for _, row in some])
            yield
        other.clear()

    # ------------------------------------------------------------------ names and entries

    def _rows(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, Any]]:
        """Names and rows from `begin` up to, and without, `end`, as they are now."""
        try:
            self._stored.check()
            scan = self._stored.scan(begin, end)
            while scan.valid():
                name, held = scan.key(), pickle.loads(scan.value())
                if type(held) is list:
                    for row in held:
                        yield name, row
                else:
                    yield name, held
                scan.next()
            scan.status()
        except Exception as error:
            self._stored.fail(error)

    def _delete(self, names: Sequence[bytes], begin: bytes, end: bytes, count: int) -> None:
        """
        Have no row from `begin` up to, and without, `end`.

        Args:
            names: theirs; more than a few need not be all.
            count: how many rows there are.
        """
        try:
            if len(names) > _FEW:
                self._stored.delete_range(begin, end)
            elif names:
                self._stored.write((), names)
        except Exception as error:
            self._stored.fail(error)
        self._count -= count

    def _prefix_of(self, namespace: Any) -> bytes:
        if namespace is None:
            return self._own
        number = _as_int(namespace)
        if number is not None:
            return self._prefix + _INTS + _INT.pack(number + _ZERO)
        if isinstance(namespace, tuple) and len(namespace) == 2:
            start, end = map(_as_int, namespace)
            if start is not None and end is not None:
                return self._prefix + _PAIRS + _PAIR.pack(start + _ZERO, end + _ZERO)
        number = self._numbers.setdefault(namespace, len(self._names))
        if number == len(self._names):
            self._names.append(namespace)
        return self._prefix + _NUMBERED + _INT.pack(number)

    def _namespace_of(self, prefix: bytes, row: Any) -> Any:
        if len(row) > 3:
            return row[3]
        return None if prefix == self._own else _INT.unpack_from(prefix, _KIND + 1)[0] - _ZERO


class _Gathered:
    """The rows of one namespace, to be put in order; many of them on disk, under their places."""

    def __init__(self, stored: Database) -> None:
        self._stored = stored
        self._some: list[tuple[int, Entry]] = []
        self._many: DiskRows | None = None

    def add(self, entry: Entry, place: int) -> None:
        self._some.append((place, entry))
        if len(self._some) >= _FEW:
            self._put_away()

    def _put_away(self) -> None:
        if self._many is None:
            self._many = DiskRows(self._stored)
        self._many.put([(None, place, entry) for place, entry in self._some])
        self._some.clear()

    def in_order(self) -> Iterator[Entry]:
        if self._many is None:
            self._some.sort(key=itemgetter(0))
            yield from (entry for _, entry in self._some)
            return
        self._put_away()
        for _, row in self._many._rows(self._many._own, _behind(self._many._own)):
            yield row[2]
        self._many.clear()


def _as_int(namespace: Any) -> int | None:
    """The int that equals this, if there is one that fits."""
    if type(namespace) is not int:
        if not isinstance(namespace, _NUMBERS) or namespace != namespace // 1:
            return None
        namespace = int(namespace)
    return namespace if -_ZERO <= namespace < _ZERO else None


def _int_in(name: bytes) -> int:
    number: int = _INT.unpack_from(name, _KIND + 1)[0]
    return number - _ZERO


def _behind(prefix: bytes) -> bytes:
    """What comes after all names that begin with this."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def _row_of(held: Any, key: Any) -> Any:
    """The row of an entry that has this key, or None."""
    if type(held) is tuple:
        return held if held[0] == key else None
    for row in held:
        if row[0] == key:
            return row
    return None


def _check_key(key: Any) -> None:
    """
    Refuse a key that would not be found again.

    Raises:
        StateError: if it does not equal a copy of it, such as NaN, or an object of a class without `__eq__`.
    """
    if type(key) is tuple and all(type(part) in _PLAIN for part in key):
        return
    try:
        copy = pickle.loads(pickle.dumps(key, 5))
        is_found = bool(copy == key) and hash(copy) == hash(key)
    except Exception as error:
        raise StateError(
            f"key {safe_repr(key)} cannot be kept on disk: pickle refuses it: {describe_error(error)}"
        ) from error
    if not is_found:
        raise StateError(
            f"key {safe_repr(key)} cannot be kept on disk: it does not equal a copy of itself; use a key "
            f"that compares by value"
        )
