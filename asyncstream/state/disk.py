"""
The oldest generation of tables on disk: state that is larger than memory.

Theory
------
One database holds the old rows of all tables of a job, those of a namespace together, under the hashes of
their keys (`disk_entries`). So the earliest timer is found by one seek; and keys that are equal have the same
hash, as in a dict, be they 1, 1.0 or True.

Hashes of texts differ from process to process, and pickles may name classes as they are now. Neither does
harm, since what is stored is a cache: of the process that has made it, or of others that hash alike and know
the same classes (`kept`, `reopened`). What is to last goes into checkpoints.

Entries that were read lately stay in memory as they are there (`stored`). As of rows in memory, what is taken
from there to be changed is the very object that stands there: it is asked for no more before it is put again.

Were all that was young at a cut brought to disk, hot keys would be written, and read again at once. So a row
of which an older version is known to be on disk is not written when it is put: it *rests* until the next
merge, and *leaves* then, which writes it. If it is touched before that, it is taken away, and is young again
as it is; read by itself, it stays until it is put. So what is touched at least once between two cuts is never
written. What rests only has another value than on disk: which rows there are, and in which order, the disk
tells alone. Rows that share their name with those of other keys never rest.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import groupby, islice
from operator import itemgetter
from typing import Any, Final

from asyncstream.state.disk_entries import HASH, Names, as_int, behind, int_in, pickled, row_of, with_row
from asyncstream.state.rows import AWAY, MISSING, SLICE, Entry, Rows, paced, run_through
from asyncstream.state.stored import NOTHING, Stored

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
        step: whose table it is, for errors.
    """

    def __init__(self, stored: Stored, step: str = "") -> None:
        self._stored = stored
        self._step = step
        self._names = Names(stored.next_number())
        self._count = 0
        self._next = 0  # place of the next row that is new
        self._low = _AFTER_ALL  # no namespace that is an int lies below
        self._low_is_exact = True  # and this one has rows
        self._high = _BEFORE_ALL  # nor above
        self._resting: dict[bytes, Any] = {}  # rows by name, of which none is in `recent` as well
        self._leaving: dict[bytes, Any] = {}  # of other names

    def __len__(self) -> int:
        """How many rows there are."""
        return self._count

    def kept(self) -> tuple[Any, ...]:
        """What `reopened` needs besides the entries, of which all are written with this."""
        self._leaving.update(self._resting)
        self._resting.clear()
        run_through(self._writing())
        bounds = self._low, self._low_is_exact, self._high
        return self._names.number, self._count, self._next, bounds, self._names.numbered

    @classmethod
    def reopened(cls, stored: Stored, kept: tuple[Any, ...]) -> DiskRows:
        """
        The rows that another has stored there, which is used no more.

        Args:
            kept: what its `kept` gave when it was.
        """
        rows = cls(stored)
        number, rows._count, rows._next, bounds, numbered = kept
        rows._low, rows._low_is_exact, rows._high = bounds
        rows._names = Names(number, numbered)
        return rows

    # ------------------------------------------------------------------ rows

    def get(self, namespace: Hashable, key: Hashable) -> Any:
        if not self._count or (
            type(namespace) is int
            and not self._low <= namespace <= self._high
            and not self._names.numbered  # of which some may be ints, too, that the bounds say nothing of
        ):
            self._stored.check()
            return MISSING
        try:
            row = row_of(self._read(self._names.of(namespace) + HASH.pack(hash(key))), key)
        except Exception as error:
            self._stored.fail(error)
        return MISSING if row is None else row[2]

    def has(self, namespace: Hashable, key: Hashable) -> bool:
        """
        Whether there is such a row. May be asked in any thread: nothing is noted of it, for the event loop
        may write it meanwhile.
        """
        self._stored.check()
        names = Names(self._names.number, self._names.numbered)  # a copy: it may give the namespace a number
        name = names.of(namespace) + HASH.pack(hash(key))
        held = self._resting.get(name) or self._leaving.get(name)
        if held is None and (data := self._stored.get(name)) is not None:
            held = self._stored.loads(data)
        return held is not None and row_of(held, key) is not None

    def get_many(self, namespace: Hashable, keys: Sequence[Any]) -> list[Any]:
        """For each of these keys the value, to be changed and put again, or `MISSING`."""
        prefix, pack, note = self._names.of(namespace), HASH.pack, self._stored.recent.note
        resting, leaving = self._resting, self._leaving
        values: list[Any] = []
        with self._stored.failing():
            names = [prefix + pack(hash(key)) for key in keys]
            for key, name, held in zip(keys, names, self._read_all(names), strict=True):
                row = row_of(held, key)
                values.append(MISSING if row is None else row[2])
                if row is held and (resting.pop(name, None) or leaving.pop(name, None)):
                    note(name, row)  # so that nothing is looked up when it is put again
        return values

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        name = self._names.of(namespace) + HASH.pack(hash(key))
        stored = self._stored
        try:
            held = self._read(name)
            row = row_of(held, key)
            if row is None:
                return False
            rest = [other for other in held if other is not row] if type(held) is list else NOTHING
            stored.write([(name, stored.dumps(rest))] if rest else (), () if rest else (name,))
            stored.recent.note(name, rest)
        except Exception as error:
            stored.fail(error)
        self._rest_no_more((name,))
        self._count -= 1
        if namespace == self._low:
            self._low_is_exact = False
        return True

    def put(self, entries: Sequence[Entry], places: Sequence[int] | None = None) -> int:
        """
        Put rows of any namespaces; gives how many bytes were written.

        Args:
            places: of all of them, of which none is there yet; None: those that are new come last.
        """
        recent, prefix_of, pack = self._stored.recent, self._names.of, HASH.pack
        resting, leaving = self._resting, self._leaving
        others: list[Entry] = []
        names: list[bytes] = []
        before: Any = MISSING
        prefix = b""
        for entry in entries:
            namespace, key, value = entry
            if namespace is not before:
                before, prefix = namespace, prefix_of(namespace)
            name = prefix + pack(hash(key))
            held = recent.get(name) or leaving.get(name) or resting.get(name)
            if not held or row_of(held, key) is not held:
                others.append(entry)
                names.append(name)
                continue
            if leaving.pop(name, None) is None:
                recent.forget((name,))
            resting[name] = held if held[2] is value else (*held[:2], value, *held[3:])
        return self._put_down(names, others, places) if others else 0

    def _put_down(
        self, names: Sequence[bytes], entries: Sequence[Entry], places: Sequence[int] | None
    ) -> int:
        """Write rows; what is there already is read, all of it together, and keeps its place."""
        stored = self._stored
        with stored.failing(self._step):
            stored.check()
            found = [NOTHING] * len(names) if self._are_new(entries) else self._read_all(names, notes=False)
            changed: dict[bytes, Any] = {}
            if places is None:
                places = range(self._next, self._next + len(entries))
            self._next = max(self._next, max(places) + 1)
            for name, held, entry, place in zip(names, found, entries, places, strict=True):
                changed[name], is_new = with_row(stored, changed.get(name, held), entry, place)
                self._count += is_new
            size = self._write(changed.items())
            # that something was looked for before it was put does not say that it is wanted again
            stored.recent.forget(changed)
        self._rest_no_more(names)
        for namespace in {namespace for namespace, _, _ in entries}:
            number = as_int(namespace)
            if number is not None:
                self._high = max(self._high, number)
                if number <= self._low:
                    self._low, self._low_is_exact = number, True
        return size

    def _write(self, rows: Iterable[tuple[bytes, Any]]) -> int:
        """Have these stand under their names; how many bytes they are."""
        data = [(name, pickled(self._stored, held)) for name, held in rows]
        self._stored.write(data)
        return sum(len(held) for _, held in data)

    def _are_new(self, entries: Sequence[Entry]) -> bool:
        """Whether it can be told without looking that there is none of these rows."""
        if not self._count or self._names.numbered:
            return not self._count
        low, high = self._low, self._high
        return all(type(namespace) is int and not low <= namespace <= high for namespace, _, _ in entries)

    def load(self, groups: Iterable[tuple[Hashable, Iterable[tuple[Any, Any]]]]) -> None:
        """Put rows, given by namespace."""
        rest = ((namespace, key, value) for namespace, rows in groups for key, value in rows)
        while some := list(islice(rest, SLICE)):
            self.put(some)

    def merging(self, entries: Iterator[Entry]) -> Iterator[None]:
        """Put rows that were cut, in slices; what was put before may be let go."""
        yield from self._writing()  # what one that was given up has left
        self._leaving, self._resting = self._resting, {}
        count = 1
        while some := list(islice(entries, count)):
            count = paced(len(some), self.put(some), AWAY)
            yield
        yield from self._writing()

    def waiting(self) -> int:
        """How many of the rows are still in memory, to be brought away when others are merged."""
        return len(self._resting) + len(self._leaving)

    def _writing(self) -> Iterator[None]:
        """Writes what leaves, in slices."""
        leaving, count = self._leaving, 1
        while leaving:
            some = [leaving.popitem() for _ in range(min(len(leaving), count))]
            with self._stored.failing(self._step):
                count = paced(len(some), self._write(some), AWAY)
            yield

    def _rest_no_more(self, names: Iterable[bytes]) -> None:
        for name in names:
            self._resting.pop(name, None)
            self._leaving.pop(name, None)

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
        prefix = self._names.of(namespace)
        return next(self._rows(prefix, behind(prefix)), None) is not None

    def of(self, namespace: Hashable) -> Rows:
        if not self._count:
            return {}
        number = as_int(namespace)
        if number is not None and number < self._low:
            return {}
        prefix = self._names.of(namespace)
        return _ordered([row for _, row in self._rows(prefix, behind(prefix))])

    def drop(self, namespace: Hashable) -> None:
        if not self._count:
            return
        prefix = self._names.of(namespace)
        rows = self._rows(prefix, behind(prefix))
        names = [name for name, _ in islice(rows, _FEW + 1)]
        self._delete(names, prefix, behind(prefix), len(names) + sum(1 for _ in rows))
        if names and namespace == self._low:
            self._low_is_exact = False

    def namespaces(self) -> Iterable[Any]:
        begin, end = self._names.all, behind(self._names.all)
        while (found := next(self._rows(begin, end), None)) is not None:
            yield self._names.namespace(*found)
            begin = behind(found[0][: -HASH.size])

    def first(self) -> int | None:
        """The earliest namespace that is an int and has rows, or None."""
        if not self._low_is_exact and self._low < _AFTER_ALL:
            found = next(self._rows(self._names.of(self._low), self._names.behind_ints), None)
            self._low, self._low_is_exact = _AFTER_ALL if found is None else int_in(found[0]), True
        numbered = [number for number in self._names.numbered if type(number) is int and number in self]
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
        begin = self._names.of(first)
        names: list[bytes] = []
        found: dict[int, list[Any]] = {}
        following = _AFTER_ALL
        for name, row in self._rows(begin, self._names.behind_ints):
            namespace = int_in(name)
            if namespace not in found and (namespace > until or len(names) >= limit):
                following = namespace
                break
            found.setdefault(namespace, []).append(row)
            names.append(name)
        self._delete(names, begin, behind(self._names.of(max(found))), len(names))
        self._low, self._low_is_exact = following, True
        return {namespace: _ordered(rows) for namespace, rows in found.items()}

    def entries(self, namespace: Any = MISSING) -> Iterator[Entry]:
        """
        The rows of a namespace, or all, those of one namespace together and in order; they need not be in
        memory all at once. Nothing may change meanwhile.
        """
        begin = self._names.all if namespace is MISSING else self._names.of(namespace)
        for _, found in groupby(self._rows(begin, behind(begin)), lambda one: one[0][: -HASH.size]):
            rows = ((row[1], (self._names.namespace(name, row), row[0], row[2])) for name, row in found)
            yield from _in_order(self._stored, rows)

    def unordered(self) -> Iterator[Entry]:
        """All rows, in no order; they need not be in memory all at once."""
        for name, row in self._rows(self._names.all, behind(self._names.all)):
            yield self._names.namespace(name, row), row[0], row[2]

    def check(self) -> None:
        """Raise if what was put may be gone."""
        self._stored.check()

    def clear(self) -> None:
        self._resting.clear()
        self._leaving.clear()
        if self._count:
            with self._stored.failing():
                self._stored.delete_range(self._names.all, behind(self._names.all))
            self._names = Names(self._stored.next_number())  # for what is known of names of the old one
        self._count = 0
        self._low, self._low_is_exact, self._high = _AFTER_ALL, True, _BEFORE_ALL

    def moving(self, other: DiskRows, altered: Callable[[Entry], Entry]) -> Iterator[None]:
        """Take all rows of another table, altered, in slices; they keep their places."""
        names = other._names
        rest, count = other._rows(names.all, behind(names.all)), 1
        while some := list(islice(rest, count)):
            moved = [altered((names.namespace(name, row), row[0], row[2])) for name, row in some]
            count = paced(len(some), self.put(moved, [row[1] for _, row in some]), SLICE)
            yield
        other.clear()

    # ------------------------------------------------------------------ what stands under names

    def _known(self, name: bytes) -> Any:
        """What stands under a name, if that is known without a look; `NOTHING`; or None."""
        return self._resting.get(name) or self._leaving.get(name) or self._stored.recent.get(name)

    def _read(self, name: bytes) -> Any:
        """A row that stands under a name, or a list of them."""
        stored = self._stored
        stored.check()
        held = self._known(name)
        if held is None:
            data = stored.get(name)
            held = NOTHING if data is None else stored.loads(data)
            stored.recent.note(name, held)
        return held

    def _read_all(self, names: Sequence[bytes], *, notes: bool = True) -> list[Any]:
        """
        The same of many names; of those that are not known, all together. With `notes`, they will be asked
        for again.
        """
        stored, loads, note = self._stored, self._stored.loads, self._stored.recent.note
        stored.check()
        found = list(map(self._known, names))
        unknown = [number for number, held in enumerate(found) if held is None]
        if unknown:
            read = stored.get_many([names[number] for number in unknown])
            for number, data in zip(unknown, read, strict=True):
                held = found[number] = NOTHING if data is None else loads(data)
                if notes:
                    note(names[number], held)
        return found

    def _rows(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, Any]]:
        """Names and rows from `begin` up to, and without, `end`, as they are now."""
        resting, leaving, loads = self._resting, self._leaving, self._stored.loads
        try:
            self._stored.check()
            for name, data in self._stored.scan(begin, end):
                held = resting.get(name) or leaving.get(name) or loads(data)
                if type(held) is tuple:
                    yield name, held
                else:
                    yield from ((name, row) for row in held)
        except Exception as error:
            self._stored.fail(error)

    def _delete(self, names: Sequence[bytes], begin: bytes, end: bytes, count: int) -> None:
        """
        Have none of the rows from `begin` up to, and without, `end`, of which more than a few need not all be
        named.
        """
        with self._stored.failing():
            if len(names) > _FEW:
                self._stored.delete_range(begin, end)
                self._stored.recent.clear()
                names = [name for name in (*self._resting, *self._leaving) if begin <= name < end]
            elif names:
                self._stored.write((), names)
                self._stored.recent.forget(names)
        self._rest_no_more(names)
        self._count -= count


def _ordered(rows: list[Any]) -> Rows:
    """Stored rows of one namespace, by key, in the order of their places."""
    rows.sort(key=itemgetter(1))
    return {row[0]: row[2] for row in rows}


def _in_order(stored: Stored, rows: Iterator[tuple[int, Entry]]) -> Iterator[Entry]:
    """Entries, given with their places, in the order of these; many are put on disk, under their places."""
    some = list(islice(rows, _FEW + 1))
    if len(some) <= _FEW:
        some.sort(key=itemgetter(0))
        yield from (entry for _, entry in some)
        return
    many = DiskRows(stored)
    while some:
        many.put([(None, place, entry) for place, entry in some])
        some = list(islice(rows, _FEW + 1))
    for _, _, entry in many.unordered():  # by their names, which have the places in their order
        yield entry
    many.clear()
