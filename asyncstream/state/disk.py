"""
The oldest generation of tables on disk: state that is larger than memory.

Theory
------
One database holds the old rows of all tables of a job. The name of an entry is made of the table, the
namespace and the hash of the key (`row_names`), so the rows of a namespace lie together, and the earliest
timer is found by one seek. Keys that are equal have the same hash, as in a dict, be they 1, 1.0 or True;
those that only share it share an entry, a list. An entry is the pickle of (key, place, value), where the
places give the order in which rows were first put; for a pair, and for what is numbered, the namespace itself
comes last.

Hashes of texts differ from process to process, and pickles may name classes as they are now. Neither does
harm, since what is stored is a cache: of the process that has made it, or of others that hash alike and know
the same classes (`kept`, `reopened`). What is to last goes into checkpoints.

An error of the database (a full disk, a directory that is gone) is the end of the job: it is told to who
opened the database, so that user code that catches every exception cannot hide it, and from then on every
call fails.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from asyncstream.errors import StateError, describe_error, safe_repr
from asyncstream.state.row_names import (
    HASH,
    INT,
    INTS,
    NONE,
    NUMBERED,
    PAIR,
    PAIRS,
    TABLE,
    ZERO,
    as_int,
    behind,
    int_in,
)
from asyncstream.state.rows import MISSING, SLICE, Entry, Rows
from asyncstream.state.stored import Stored

__all__ = ("DiskRows",)

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
        "_dumps",
        "_high",
        "_loads",
        "_low",
        "_low_is_exact",
        "_names",
        "_next",
        "_number",
        "_numbers",
        "_own",
        "_prefix",
        "_stored",
    )
    is_remote = True

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._dumps, self._loads = stored.dumps, stored.loads
        self._number = stored.next_number()
        self._prefix = TABLE.pack(self._number)
        self._own = self._prefix + NONE
        self._count = 0
        self._next = 0  # place of the next row that is new
        self._low = _AFTER_ALL  # no namespace that is an int lies below
        self._low_is_exact = True  # and this one has rows
        self._high = _BEFORE_ALL  # nor above
        self._names: list[Any] = []  # namespaces that are numbered
        self._numbers: dict[Any, int] = {}

    def __len__(self) -> int:
        return self._count

    def kept(self) -> tuple[Any, ...]:
        """What `reopened` needs besides the entries."""
        bounds = self._low, self._low_is_exact, self._high
        return self._number, self._count, self._next, bounds, self._names

    @classmethod
    def reopened(cls, stored: Stored, kept: tuple[Any, ...]) -> DiskRows:
        """
        The rows that another has stored there, which is used no more.

        Args:
            kept: what its `kept` gave when it was.
        """
        rows = cls(stored)
        rows._number, rows._count, rows._next, bounds, rows._names = kept
        rows._low, rows._low_is_exact, rows._high = bounds
        rows._numbers = {namespace: number for number, namespace in enumerate(rows._names)}
        rows._prefix = TABLE.pack(rows._number)
        rows._own = rows._prefix + NONE
        return rows

    # ------------------------------------------------------------------ one row

    def get(self, namespace: Hashable, key: Hashable) -> Any:
        if not self._count or (type(namespace) is int and not self._low <= namespace <= self._high):
            self._stored.check()
            return MISSING
        try:
            data = self._stored.get(self._prefix_of(namespace) + HASH.pack(hash(key)))
            if data is None:
                return MISSING
            held = self._loads(data)
        except Exception as error:
            self._stored.fail(error)
        row = _row_of(held, key)
        return MISSING if row is None else row[2]

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        name = self._prefix_of(namespace) + HASH.pack(hash(key))
        try:
            self._stored.check()
            data = self._stored.get(name)
            if data is None:
                return False
            held = self._loads(data)
            row = _row_of(held, key)
            if row is None:
                return False
            rest = [other for other in held if other is not row] if type(held) is list else []
            if rest:
                self._stored.write([(name, self._dumps(rest))])
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
            names = [self._prefix_of(namespace) + HASH.pack(hash(key)) for namespace, key in places]
            for (_, key), data in zip(places, self._stored.get_many(names), strict=True):
                row = None if data is None else _row_of(self._loads(data), key)
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
        prefix_of, pack = self._prefix_of, HASH.pack
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
                    held = self._loads(data)
                changed[name] = self._with(held, entry, place)
            stored.write([(name, self._pickled(held)) for name, held in changed.items()])
        except Exception as error:
            stored.fail(error)
        for namespace in {namespace for namespace, _, _ in entries}:
            number = None if namespace is None else as_int(namespace)
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
            _check_key(key, self._stored)
        row = (key, place, value)
        if namespace is not None and type(namespace) is not int:
            row = (*row, namespace)
        self._count += 1
        if held is None:
            return row
        return [*held, row] if type(held) is list else [held, row]

    def _pickled(self, held: Any) -> bytes:
        try:
            return self._dumps(held)
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
        number = as_int(namespace)
        if number is not None:
            if number < self._low:
                return False
            if number == self._low and self._low_is_exact:
                return True
        prefix = self._prefix_of(namespace)
        try:
            return bool(self._stored.scan(prefix, behind(prefix)).valid())
        except Exception as error:
            self._stored.fail(error)

    def of(self, namespace: Hashable) -> Rows:
        if not self._count:
            return {}
        number = as_int(namespace)
        if number is not None and number < self._low:
            return {}
        prefix = self._prefix_of(namespace)
        rows = [row for _, row in self._rows(prefix, behind(prefix))]
        rows.sort(key=itemgetter(1))
        return {row[0]: row[2] for row in rows}

    def drop(self, namespace: Hashable) -> bool:
        if not self._count:
            return False
        prefix = self._prefix_of(namespace)
        names: list[bytes] = []
        count = 0
        for name, _ in self._rows(prefix, behind(prefix)):
            count += 1
            if count <= _FEW + 1:
                names.append(name)
        self._delete(names, prefix, behind(prefix), count)
        if names and namespace == self._low:
            self._low_is_exact = False
        return bool(names)

    def namespaces(self) -> Iterable[Any]:
        begin, end = self._prefix, behind(self._prefix)
        while begin is not None:
            found = None
            for name, row in self._rows(begin, end):
                found = name[: -HASH.size], row
                break
            if found is None:
                return
            prefix, row = found
            yield self._namespace_of(prefix, row)
            begin = behind(prefix)

    def first(self) -> int | None:
        """The earliest namespace that is an int and has rows, or None."""
        if not self._low_is_exact and self._low < _AFTER_ALL:
            begin = self._prefix + INTS + INT.pack(self._low + ZERO)
            try:
                scan = self._stored.scan(begin, self._prefix + PAIRS)
                self._low = int_in(scan.key()) if scan.valid() else _AFTER_ALL
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
        begin, end = self._prefix + INTS + INT.pack(first + ZERO), self._prefix + PAIRS
        names: list[bytes] = []
        found: dict[int, list[Any]] = {}
        following = _AFTER_ALL
        for name, row in self._rows(begin, end):
            namespace = int_in(name)
            if namespace not in found and (namespace > until or len(names) >= limit):
                following = namespace
                break
            found.setdefault(namespace, []).append(row)
            names.append(name)
        last = self._prefix + INTS + INT.pack(max(found) + ZERO)
        self._delete(names, begin, behind(last), len(names))
        self._low, self._low_is_exact = following, True
        for rows in found.values():
            rows.sort(key=itemgetter(1))
        return {namespace: {row[0]: row[2] for row in rows} for namespace, rows in found.items()}

    def each(self, namespace: Hashable) -> Iterator[tuple[Any, Any]]:
        prefix = self._prefix_of(namespace)
        gathered = _Gathered(self._stored)
        for _, row in self._rows(prefix, behind(prefix)):
            gathered.add((namespace, row[0], row[2]), row[1])
        for _, key, value in gathered.in_order():
            yield key, value

    def unordered(self) -> Iterator[Entry]:
        for name, row in self._rows(self._prefix, behind(self._prefix)):
            yield self._namespace_of(name[: -HASH.size], row), row[0], row[2]

    def entries(self) -> Iterator[Entry]:
        begin, end = self._prefix, behind(self._prefix)
        gathered = _Gathered(self._stored)
        current = None
        for name, row in self._rows(begin, end):
            prefix = name[: -HASH.size]
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
                self._stored.delete_range(self._prefix, behind(self._prefix))
            except Exception as error:
                self._stored.fail(error)
        self._count = 0
        self._low, self._low_is_exact, self._high = _AFTER_ALL, True, _BEFORE_ALL

    def moving(self, other: DiskRows, altered: Callable[[Entry], Entry]) -> Iterator[None]:
        """Take all rows of another table, altered, in slices; they keep their places."""
        begin, end = other._prefix, behind(other._prefix)
        rest = other._rows(begin, end)
        while some := list(islice(rest, SLICE)):
            moved = [
                altered((other._namespace_of(name[: -HASH.size], row), row[0], row[2])) for name, row in some
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
                name, held = scan.key(), self._loads(scan.value())
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
        number = as_int(namespace)
        if number is not None:
            return self._prefix + INTS + INT.pack(number + ZERO)
        if isinstance(namespace, tuple) and len(namespace) == 2:
            start, end = map(as_int, namespace)
            if start is not None and end is not None:
                return self._prefix + PAIRS + PAIR.pack(start + ZERO, end + ZERO)
        number = self._numbers.setdefault(namespace, len(self._names))
        if number == len(self._names):
            self._names.append(namespace)
        return self._prefix + NUMBERED + INT.pack(number)

    def _namespace_of(self, prefix: bytes, row: Any) -> Any:
        if len(row) > 3:
            return row[3]
        return None if prefix == self._own else int_in(prefix)


class _Gathered:
    """The rows of one namespace, to be put in order; many of them on disk, under their places."""

    def __init__(self, stored: Stored) -> None:
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
        for _, row in self._many._rows(self._many._own, behind(self._many._own)):
            yield row[2]
        self._many.clear()


def _row_of(held: Any, key: Any) -> Any:
    """The row of an entry that has this key, or None."""
    if type(held) is tuple:
        return held if held[0] == key else None
    for row in held:
        if row[0] == key:
            return row
    return None


def _check_key(key: Any, stored: Stored) -> None:
    """
    Refuse a key that would not be found again.

    Raises:
        StateError: if it does not equal a copy of it, such as NaN, or an object of a class without `__eq__`.
    """
    if type(key) is tuple and all(type(part) in _PLAIN for part in key):
        return
    try:
        copy = stored.loads(stored.dumps(key))
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
