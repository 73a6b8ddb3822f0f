"""
The oldest generation of tables on disk: state that is larger than memory.

Theory
------
One database holds the old rows of all tables of a job. The name of an entry is made of the table, the
namespace and the hash of the key (`row_names`), so the rows of a namespace lie together, and the earliest
timer is found by one seek. Keys that are equal have the same hash, as in a dict, be they 1, 1.0 or True;
those that only share it share an entry (`disk_entries`).

Hashes of texts differ from process to process, and pickles may name classes as they are now. Neither does
harm, since what is stored is a cache: of the process that has made it, or of others that hash alike and know
the same classes (`kept`, `reopened`). What is to last goes into checkpoints.

Entries that were read lately stay in memory as they are there (`recent`). As of rows in memory, what is taken
from there to be changed is the very object that stands there: it is asked for no more before it is put again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Final

from asyncstream.state.disk_entries import pickled, row_of, with_row
from asyncstream.state.recent import NOTHING
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
from asyncstream.state.rows import AWAY, MISSING, SLICE, Entry, Rows
from asyncstream.state.stored import Stored

__all__ = ("DiskRows",)

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

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._dumps, self._loads = stored.dumps, stored.loads
        self._take_number(stored.next_number())
        self._count = 0
        self._next = 0  # place of the next row that is new
        self._low = _AFTER_ALL  # no namespace that is an int lies below
        self._low_is_exact = True  # and this one has rows
        self._high = _BEFORE_ALL  # nor above
        self._names: list[Any] = []  # namespaces that are numbered
        self._numbers: dict[Any, int] = {}

    def __len__(self) -> int:
        """How many rows there are."""
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
        number, rows._count, rows._next, bounds, rows._names = kept
        rows._low, rows._low_is_exact, rows._high = bounds
        rows._numbers = {namespace: number for number, namespace in enumerate(rows._names)}
        rows._take_number(number)
        return rows

    def _take_number(self, number: int) -> None:
        """Have this one's names."""
        self._number = number
        self._prefix = TABLE.pack(number)
        self._own = self._prefix + NONE

    # ------------------------------------------------------------------ rows

    def get(self, namespace: Hashable, key: Hashable) -> Any:
        if not self._count or (type(namespace) is int and not self._low <= namespace <= self._high):
            self._stored.check()
            return MISSING
        try:
            row = row_of(self._read(self._prefix_of(namespace) + HASH.pack(hash(key))), key)
        except Exception as error:
            self._stored.fail(error)
        return MISSING if row is None else row[2]

    def get_many(self, namespace: Hashable, keys: Sequence[Any]) -> list[Any]:
        """For each of these keys the value, to be changed and put again, or `MISSING`."""
        prefix, pack = self._prefix_of(namespace), HASH.pack
        try:
            rows = map(row_of, self._read_all([prefix + pack(hash(key)) for key in keys]), keys)
            return [MISSING if row is None else row[2] for row in rows]
        except Exception as error:
            self._stored.fail(error)

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        name = self._prefix_of(namespace) + HASH.pack(hash(key))
        stored = self._stored
        try:
            held = self._read(name)
            row = row_of(held, key)
            if row is None:
                return False
            rest = [other for other in held if other is not row] if type(held) is list else NOTHING
            if rest:
                stored.write([(name, self._dumps(rest))])
            else:
                stored.delete(name)
            stored.recent.note(name, rest)
        except Exception as error:
            stored.fail(error)
        self._count -= 1
        if namespace == self._low:
            self._low_is_exact = False
        return True

    def put(self, entries: Sequence[Entry], places: Sequence[int] | None = None) -> Collection[bytes]:
        """
        Put rows of any namespaces. What is there already is read, all of it together, and keeps its place.

        Args:
            places: of those that are new; None: they come last.

        Returns:
            The names that were written.
        """
        stored = self._stored
        prefix_of, pack = self._prefix_of, HASH.pack
        try:
            stored.check()
            names = [prefix_of(namespace) + pack(hash(key)) for namespace, key, _ in entries]
            found = [NOTHING] * len(names) if self._are_new(entries) else self._read_all(names, notes=False)
            changed: dict[bytes, Any] = {}
            if places is None:
                places = range(self._next, self._next + len(entries))
            self._next = max(self._next, max(places, default=0) + 1)
            for name, held, entry, place in zip(names, found, entries, places, strict=True):
                changed[name], is_new = with_row(stored, changed.get(name, held), entry, place)
                self._count += is_new
            stored.write([(name, pickled(stored, held)) for name, held in changed.items()])
            stored.recent.renew(changed)
        except Exception as error:
            stored.fail(error)
        for namespace in {namespace for namespace, _, _ in entries}:
            number = None if namespace is None else as_int(namespace)
            if number is not None:
                self._high = max(self._high, number)
                if number <= self._low:
                    self._low, self._low_is_exact = number, True
        return changed.keys()

    def merging(self, entries: Iterator[Entry]) -> Iterator[None]:
        """Put rows that were cut, in slices; what was put before may be let go."""
        while some := list(islice(entries, AWAY)):
            self.put(some)
            yield

    def waiting(self) -> int:
        """About how many of the rows are still in memory, to be brought away when others are merged."""
        return 0

    def _are_new(self, entries: Sequence[Entry]) -> bool:
        """Whether it can be told without looking that there is none of these rows."""
        if not self._count:
            return True
        low, high = self._low, self._high
        return all(type(namespace) is int and not low <= namespace <= high for namespace, _, _ in entries)

    def update(self, namespace: Hashable, rows: Iterable[tuple[Any, Any]]) -> None:
        rest = iter(rows)
        while some := [(namespace, key, value) for key, value in islice(rest, SLICE)]:
            self.put(some)

    def adopt(self, namespace: Hashable, rows: Rows) -> None:
        self.update(namespace, rows.items())

    def count_new(self, entries: Iterable[tuple[Any, Any]]) -> int:
        """Of these namespaces with keys, all different, how many have no row."""
        prefix_of, pack = self._prefix_of, HASH.pack
        rest = iter(entries)
        count = 0
        try:
            while some := list(islice(rest, SLICE)):
                held = self._read_all([prefix_of(namespace) + pack(hash(key)) for namespace, key in some])
                count += sum(row_of(one, key) is None for one, (_, key) in zip(held, some, strict=True))
        except Exception as error:
            self._stored.fail(error)
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
        return next(self._rows(prefix, behind(prefix)), None) is not None

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
            found = next(self._rows(begin, end), None)
            if found is None:
                return
            name, row = found
            prefix = name[: -HASH.size]
            yield self._namespace_of(prefix, row)
            begin = behind(prefix)

    def first(self) -> int | None:
        """The earliest namespace that is an int and has rows, or None."""
        if not self._low_is_exact and self._low < _AFTER_ALL:
            begin = self._prefix + INTS + INT.pack(self._low + ZERO)
            found = next(self._rows(begin, self._prefix + PAIRS), None)
            self._low, self._low_is_exact = _AFTER_ALL if found is None else int_in(found[0]), True
        numbered = [number for number in self._names if type(number) is int and number in self]
        return min(numbered if self._low == _AFTER_ALL else [self._low, *numbered], default=None)

    def take_first(self, until: float, limit: int) -> dict[int, Rows]:
        """
        The rows of the earliest namespaces that are ints, up to and including `until`; they leave.

        Args:
            limit: with so many rows, it is enough.
        """
        first = self.first()
        if first is None or first > until:
            return {}
        if as_int(first) is None:
            alone = self.of(first)
            self.drop(first)
            return {first: alone}
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
        """Keys and values of a namespace, in order; they need not be in memory all at once."""
        prefix = self._prefix_of(namespace)
        gathered = _Gathered(self._stored)
        for _, row in self._rows(prefix, behind(prefix)):
            gathered.add((namespace, row[0], row[2]), row[1])
        for _, key, value in gathered.in_order():
            yield key, value

    def unordered(self) -> Iterator[Entry]:
        """All rows, in no order; they need not be in memory all at once."""
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
        """Raise if what was put may be gone."""
        self._stored.check()

    def clear(self) -> None:
        if self._count:
            try:
                self._stored.delete_range(self._prefix, behind(self._prefix))
            except Exception as error:
                self._stored.fail(error)
            self._take_number(self._stored.next_number())  # for what is known of names of the old one
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

    def _known(self, name: bytes) -> Any:
        """What stands under a name, if that is known without a look; `NOTHING`; or None."""
        return self._stored.recent.get(name)

    def _read(self, name: bytes) -> Any:
        """A row that stands under a name, or a list of them."""
        stored = self._stored
        stored.check()
        held = self._known(name)
        if held is None:
            data = stored.get(name)
            held = NOTHING if data is None else self._loads(data)
            stored.recent.note(name, held)
        return held

    def _read_all(self, names: Sequence[bytes], *, notes: bool = True) -> list[Any]:
        """
        The same of many names; of those that are not known, all together. With `notes`, they will be asked
        for again.
        """
        stored, recent = self._stored, self._stored.recent
        stored.check()
        found = list(map(self._known, names))
        unknown = [number for number, held in enumerate(found) if held is None]
        if unknown:
            for number, data in zip(
                unknown, stored.get_many([names[number] for number in unknown]), strict=True
            ):
                held = found[number] = NOTHING if data is None else self._loads(data)
                if notes:
                    recent.note(names[number], held)
        return found

    def _rows(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, Any]]:
        """Names and rows from `begin` up to, and without, `end`, as they are now."""
        try:
            self._stored.check()
            loads = self._loads
            for name, data in self._stored.scan(begin, end):
                held = loads(data)
                if type(held) is tuple:
                    yield name, held
                else:
                    yield from ((name, row) for row in held)
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
                self._stored.recent.clear()
            elif names:
                self._stored.write((), names)
                self._stored.recent.forget(names)
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
