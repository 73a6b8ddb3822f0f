"""
A table of a step's state: namespace -> key -> value, in generations.

Theory
------
A step keeps all that it remembers in tables, so what is done with state (cut, merged, kept, restored, divided
by key) is written once, here. The namespace is a window, a slice, the time of a timer, or None for a key's
own.

    young    what was put, or taken to be changed, since the last cut: a dict of dicts, for hot loops
    frozen   what was young at the last cut, while a checkpoint writes it; nothing in it changes any more
    old      everything before

A read looks into young, then frozen, then old. What is read to be changed is *taken* into young: from frozen
as a copy, since that is being written; from old as it is, since old is never written again. So a cut costs
two assignments, whatever there is, a checkpoint writes what was touched, and a key that is touched again
costs what a dict costs.

Removal is noted only where an older generation has the row: a key as *gone*, a whole namespace as *dropped*.
Both leave old at once and frozen when that is merged. A delta is to be applied in this order: dropped, gone,
rows.

Rows of a namespace come in the order in which their keys were first put, as those of a dict do, whichever
generations they lie in: an overwritten row keeps its place, one that was removed and put again comes last.

What is put into a table belongs to it: to change it later, take it first.

After the copy-on-write tables and incremental checkpoints of stream processors; the three generations are
those of a log-structured merge tree that is held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, cast

from asyncstream.errors import InternalError, StateError
from asyncstream.state.capture import IMMUTABLE, detached
from asyncstream.state.delta import Delta, SavedRows
from asyncstream.state.keys import SOUND, check_key
from asyncstream.state.rows import (
    MISSING,
    NO_ROWS,
    SLICE,
    Entry,
    MemoryRows,
    OldRows,
    RemoteRows,
    Rows,
    plain_namespace,
    same,
)

__all__ = ("Table",)

AWAY: Final = 500
"""Rows that are brought elsewhere, or from there, in one go: a few milliseconds."""

SAMPLE: Final = 500
"""Namespaces that are counted to estimate the rows of all."""


class Table:
    """
    One table; see the module.

    Attributes:
        name: unique among the tables of its step.
        young: rows that were touched since the last cut, by namespace. A hot loop reads and writes the rows
            of a namespace here, and asks `take` for a key that it does not find. A cut replaces it, so it is
            fetched anew for each batch, and what is remembered of it for longer is forgotten in
            `Tables.on_cut`.
        save, load: make of a value one that a codec keeps, and back; called off the event loop, so they
            change nothing.
        save_key, load_key: the same for keys of the table.
        compound: keys of the table are tuples that begin with the key of the stream.
        is_bound: its values refer to the operator that holds them, so no other can go on with them as they
            are.
        may_be_away: its oldest generation may be kept elsewhere: what is to be changed is always taken, and
            nothing in memory grows with the table.
        namespace_of: makes a namespace of what the codec gives back.
        old: its oldest generation; None: in memory.
        derived: what its owner has made of all of its rows, for one that goes on with them: see `go_on`.
        has_older: there may be rows that are not young.
        merges: how many cuts were merged.
    """

    __slots__ = (
        "_dropped",
        "_frozen",
        "_gone",
        "_left",
        "_notes",
        "_old",
        "_remote",
        "compound",
        "derived",
        "has_older",
        "is_bound",
        "load",
        "load_key",
        "may_be_away",
        "merges",
        "name",
        "namespace_of",
        "save",
        "save_key",
        "young",
    )

    def __init__(
        self,
        name: str,
        *,
        save: Callable[[Any], Any] = same,
        load: Callable[[Any], Any] = same,
        save_key: Callable[[Any], Any] = same,
        load_key: Callable[[Any], Any] = same,
        compound: bool = False,
        may_be_away: bool = False,
        is_bound: bool = False,
        namespace_of: Callable[[Any], Any] = same,
        old: OldRows | None = None,
    ) -> None:
        self.name = name
        self.young: dict[Any, Rows] = {}
        self.save = save
        self.load = load
        self.save_key = save_key
        self.load_key = load_key
        self.compound = compound
        self.may_be_away = may_be_away
        self.is_bound = is_bound
        self.namespace_of = namespace_of
        self.derived: Any = None
        self.has_older = False
        self._gone: dict[Any, set[Any]] = {}
        self._dropped: set[Any] = set()
        self._frozen: dict[Any, Rows] | None = None
        self.merges = 0
        self._notes = True
        self._left: int | None = None
        self.keep_old_in(MemoryRows() if old is None else old)

    def keep_old_in(self, old: OldRows) -> None:
        """Have the oldest generation there; as long as there is none."""
        self._old: OldRows = old
        self._remote: RemoteRows | None = cast(RemoteRows, old) if old.is_remote else None

    def bring_old_to(self, old: RemoteRows) -> None:
        """Have the oldest generation, which is all that there is, there and no longer in memory."""
        rest = self._old.entries()
        while some := list(islice(rest, SLICE)):
            old.put(some)
        self.keep_old_in(old)

    def forget_removals(self) -> None:
        """No delta is asked for: note no removals any more but of what a cut has frozen."""
        self._notes = False

    @property
    def is_remote(self) -> bool:
        """Whether the oldest generation is elsewhere, and may be larger than memory."""
        return self._remote is not None

    # ------------------------------------------------------------------ rows

    def rows(self, namespace: Hashable = None) -> Rows:
        """The young rows of a namespace, to be read and written; there are some afterwards."""
        rows = self.young.get(namespace)
        if rows is None:
            rows = self.young[namespace] = {}
        return rows

    def take(self, namespace: Hashable, key: Hashable) -> Any:
        """
        The value of a row that is not young, which is young from now on and may be changed; or `MISSING`.

        For loops that have looked into `young` themselves; `get` looks there first.
        """
        if not self.has_older:
            return MISSING
        value = self._older(namespace, key)
        if value is not MISSING:
            self.rows(namespace)[key] = value
        return value

    def get(self, namespace: Hashable, key: Hashable) -> Any:
        """The value of a row, which may be changed, or `MISSING`."""
        rows = self.young.get(namespace)
        if rows is not None:
            value = rows.get(key, MISSING)
            if value is not MISSING:
                return value
        if not self.has_older:
            return MISSING
        value = self._older(namespace, key)
        if value is not MISSING and type(value) not in IMMUTABLE:
            self.rows(namespace)[key] = value
        return value

    def fetch(self, places: Iterable[tuple[Any, Any]]) -> None:
        """
        Have these rows, by namespace and key, young if there are such and the oldest generation is elsewhere.

        For loops over many elements: rows that are asked for together cost far less than one by one.
        """
        if self._remote is None or not self.has_older:
            return
        young, wanted = self.young, []
        for namespace, key in dict.fromkeys(places):
            if key not in young.get(namespace, NO_ROWS) and self.take_frozen(namespace, key) is MISSING:
                wanted.append((namespace, key))
        if wanted:
            for (namespace, key), value in zip(wanted, self._remote.get_many(wanted), strict=True):
                if value is not MISSING:
                    self.put(namespace, key, value)

    def take_frozen(self, namespace: Hashable, key: Hashable) -> Any:
        """As `take`, if it is known that nothing older than frozen has the row."""
        if self._frozen is None:
            return MISSING
        value = self._frozen_value(namespace, key)
        if value is not MISSING:
            value = detached(value)
            self.put(namespace, key, value)
        return value

    def peek(self, namespace: Hashable, key: Hashable) -> Any:
        """The value of a row, to be read only, or `MISSING`; nothing becomes young."""
        value = self.young.get(namespace, NO_ROWS).get(key, MISSING)
        if value is MISSING and self.has_older:
            found = self._frozen_value(namespace, key)
            value = self._old.get(namespace, key) if found is MISSING else found
        return value

    def put(self, namespace: Hashable, key: Hashable, value: Any) -> None:
        """
        Have this value in a row.

        Raises:
            ValueError: if the key would not be found again, see `keys`.
        """
        rows = self.young.get(namespace)
        if rows is None:
            rows = self.young[namespace] = {}
        if key not in rows and type(key) not in SOUND:
            check_key(key)
        rows[key] = value

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        """Have no such row; whether there was one."""
        rows = self.young.get(namespace)
        found = False
        if rows is not None:
            found = rows.pop(key, MISSING) is not MISSING
            if not rows:
                del self.young[namespace]
        if self.has_older:
            was_frozen = self._frozen_value(namespace, key) is not MISSING
            if self._old.remove(namespace, key) or was_frozen:
                if was_frozen or self._notes:
                    self._gone.setdefault(namespace, set()).add(key)
                return True
        return found

    # ------------------------------------------------------------------ namespaces

    def whole(self, namespace: Hashable = None) -> Rows:
        """All rows of a namespace in their order; to be read only."""
        if not self.has_older:
            return self.young.get(namespace, NO_ROWS)
        return self._above(self._old.of(namespace), namespace)

    def each(self, namespace: Hashable = None) -> Iterable[tuple[Any, Any]]:
        """The same, of which not all need be in memory at once; nothing may change meanwhile."""
        if self._remote is None or not self.has_older:
            return self.whole(namespace).items()
        return self._each_away(self._remote, namespace)

    def _each_away(self, remote: RemoteRows, namespace: Hashable) -> Iterator[tuple[Any, Any]]:
        above = dict(self._above(NO_ROWS, namespace))
        for key, value in remote.each(namespace):
            yield key, above.pop(key, value)
        yield from above.items()

    def unordered(self) -> Iterator[Entry]:
        """
        (namespace, key, value) of every row, in no order, to be read only; not all need be in memory at once.
        """
        if self._remote is None or not self.has_older:
            yield from self.items()
            return
        above = set(self._fresh())
        for namespace, key in above:
            yield namespace, key, self.peek(namespace, key)
        for entry in self._remote.unordered():
            if not above or entry[:2] not in above:
                yield entry

    def _above(self, old: Rows, namespace: Hashable) -> Rows:
        """All rows of a namespace in their order, given those of the oldest generation."""
        young = self.young.get(namespace, NO_ROWS)
        frozen = NO_ROWS if self._frozen is None else self._frozen.get(namespace, NO_ROWS)
        if namespace in self._dropped:
            frozen = NO_ROWS
        if not frozen and not old:
            return young
        if not young and not frozen:
            return old
        gone = self._gone.get(namespace)
        if gone:
            # what is gone from frozen and young again has lost its place
            frozen = {key: value for key, value in frozen.items() if key not in gone}
        return {**old, **frozen, **young}

    def adopt(self, namespace: Hashable) -> Rows:
        """All rows of a namespace, young from now on: they may be changed and removed without more ado."""
        if self.has_older and self._has_older_rows(namespace):
            whole = self._adopted(self._old.of(namespace), namespace)
            self._old.drop(namespace)
            return whole
        return self.rows(namespace)

    def _adopted(self, old: Rows, namespace: Hashable) -> Rows:
        """Have all rows of a namespace young, given those of the oldest generation, which are to leave it."""
        whole = self._above(old, namespace)
        if whole is NO_ROWS:
            whole = {}
        if self._frozen is not None and namespace in self._frozen:
            young = self.young.get(namespace, NO_ROWS)
            whole = {key: value if key in young else detached(value) for key, value in whole.items()}
        self._note_dropped(namespace)
        self.young[namespace] = whole
        return whole

    def drop(self, namespace: Hashable) -> None:
        """Have no rows in this namespace."""
        self.young.pop(namespace, None)
        if self.has_older and self._has_older_rows(namespace):
            self._old.drop(namespace)
            self._note_dropped(namespace)

    def _note_dropped(self, namespace: Hashable) -> None:
        self._gone.pop(namespace, None)
        if self._notes or self._frozen is not None:
            self._dropped.add(namespace)

    def __contains__(self, namespace: Hashable) -> bool:
        """Whether the namespace may have rows; `has_rows` is sure of it."""
        return namespace in self.young or (self.has_older and self._has_older_rows(namespace))

    def has_rows(self, namespace: Hashable = None) -> bool:
        """Whether there are rows in this namespace."""
        if self.young.get(namespace):
            return True
        if not self.has_older:
            return False
        if self._frozen is not None and namespace in self._frozen and namespace not in self._dropped:
            gone = self._gone.get(namespace, ())
            if any(key not in gone for key in self._frozen[namespace]):
                return True
        return namespace in self._old

    def namespaces(self) -> Iterator[Any]:
        """Those that have rows: the oldest generation's first."""
        if not self.has_older:
            yield from [namespace for namespace, rows in self.young.items() if rows]
            return
        frozen = {} if self._frozen is None else self._frozen
        if not frozen and not self.young:
            yield from list(self._old.namespaces())
            return
        for namespace in list(dict.fromkeys([*self._old.namespaces(), *frozen, *self.young])):
            if self.has_rows(namespace):
                yield namespace

    def items(self) -> Iterator[tuple[Any, Any, Any]]:
        """(namespace, key, value) of every row; to be read only."""
        for namespace in self.namespaces():
            for key, value in self.whole(namespace).items():
                yield namespace, key, value

    def old_rows(self) -> Iterator[Entry]:
        """(namespace, key, value) of every row that is old; nothing may change meanwhile."""
        return self._old.entries()

    def __len__(self) -> int:
        """How many rows there are."""
        if self._left is not None:
            return self._left
        count = sum(map(len, self.young.values()))
        if not self.has_older:
            return count
        if self._remote is not None:
            return len(self._remote) + self._remote.count_new(self._fresh())
        frozen = {} if self._frozen is None else self._frozen
        for namespace in dict.fromkeys([*self._old.namespaces(), *frozen]):
            old = self._old.of(namespace)
            above = self.young.get(namespace, NO_ROWS)
            count += len(old) - _in_both(above, old)
            if namespace in frozen and namespace not in self._dropped:
                gone = self._gone.get(namespace, ())
                count += sum(
                    1 for key in frozen[namespace] if key not in old and key not in above and key not in gone
                )
        return count

    def has_older_rows(self, namespace: Hashable) -> bool:
        """Whether the namespace may have rows that are not young."""
        return self.has_older and self._has_older_rows(namespace)

    # ------------------------------------------------------------------ generations

    def cut(self) -> Delta:
        """
        What has changed since the last cut. It stays as it is until all of `merging` has been run through.

        Raises:
            InternalError: if that has not been done for the last cut.
        """
        if self._frozen is not None:
            raise InternalError(f"table {self.name!r} was cut again before the last cut was merged")
        if self._remote is not None:
            self._remote.check()
        delta = Delta(self.young, self._gone, self._dropped)
        if self.young:
            self._frozen, self.has_older = self.young, True
        self.young = {}
        self._gone, self._dropped = {}, set()
        return delta

    def saved(self, delta: Delta) -> Delta:
        """A delta of this table with namespaces, keys and values as they are saved."""
        save_key = self.save_key
        return Delta(
            {
                plain_namespace(namespace): SavedRows(rows, save_key, self.save)
                for namespace, rows in delta.rows.items()
                if rows
            },
            {plain_namespace(namespace): set(map(save_key, keys)) for namespace, keys in delta.gone.items()},
            map(plain_namespace, delta.dropped),
        )

    def merging(self) -> Iterator[None]:
        """Makes what was cut old, in slices; other things may happen between two of them."""
        frozen = self._frozen
        if frozen is None:
            return
        if self._remote is None:
            yield from self._merging_here(frozen)
        else:
            yield from self._merging_away(frozen, self._remote)
        self._frozen = None
        self.merges += 1

    def _merging_here(self, frozen: dict[Any, Rows]) -> Iterator[None]:
        done = 0
        for namespace in list(frozen):
            rows = frozen[namespace]
            if namespace in self._dropped or not rows:
                continue
            if namespace not in self._old:
                gone = self._gone.get(namespace)
                if gone:
                    rows = {key: value for key, value in rows.items() if key not in gone}
                if rows:
                    self._old.adopt(namespace, rows)
                done += 1
            else:
                rest = iter(list(rows.items()))
                while some := list(islice(rest, SLICE)):
                    gone = self._gone.get(namespace, set())
                    left = [row for row in some if row[0] not in gone]
                    if left and namespace not in self._dropped:
                        self._old.update(namespace, left)
                    if len(some) == SLICE:
                        yield
                    done += len(some)
            if done >= SLICE:
                done = 0
                yield

    def _merging_away(self, frozen: dict[Any, Rows], remote: RemoteRows) -> Iterator[None]:
        rest = ((namespace, key, value) for namespace, rows in frozen.items() for key, value in rows.items())
        while some := list(islice(rest, AWAY)):
            dropped, gone = self._dropped, self._gone
            if dropped:
                some = [entry for entry in some if entry[0] not in dropped]
            if gone:
                some = [entry for entry in some if entry[1] not in gone.get(entry[0], ())]
            remote.put(some)
            yield

    def merge(self) -> None:
        """Run through all of `merging`."""
        for _ in self.merging():
            pass

    def load_rows(self, namespace: Hashable, rows: Iterable[tuple[Any, Any]]) -> None:
        """Have rows that were kept elsewhere and are there still: they are no part of the next delta."""
        self._old.update(namespace, rows)
        self.has_older = True

    def go_on(self, table: Table) -> None:
        """Have what a table that is made alike has, which has nothing then; and what was derived from it."""
        self.keep_old_in(table._old)
        self.derived = table.derived
        self.young, self._frozen = table.young, table._frozen
        self._gone, self._dropped, self.has_older = table._gone, table._dropped, table.has_older
        table.keep_old_in(MemoryRows())
        table.clear()

    def load_entries(self, entries: Sequence[Entry]) -> None:
        """As `load_rows`, of any namespaces, all of them together if the oldest generation is elsewhere."""
        if self._remote is None:
            for namespace, key, value in entries:
                self._old.update(namespace, ((key, value),))
        else:
            self._remote.put(entries)
        self.has_older = True

    def take_over(self, kept: Table) -> Iterator[None]:
        """
        Have what another table has, which keeps keys and values as they are saved, in slices; it has nothing
        then.

        What is old there is old here, and what is young is young.
        """
        if kept._frozen is not None:  # and perhaps read by a thread
            for namespace, key, value in kept.items():
                place = self.namespace_of(namespace)
                self.load_rows(place, [(self.load_key(key), self.load(detached(value)))])
            return
        load, load_key, namespace_of = self.load, self.load_key, self.namespace_of
        if load is load_key is namespace_of is same and kept.is_remote == self.is_remote:
            self.keep_old_in(kept._old)
            self.young, self.has_older = kept.young, kept.has_older
            self._gone, self._dropped = kept._gone, kept._dropped
        else:
            if self._remote is not None and kept._remote is not None:
                yield from self._remote.moving(
                    kept._remote, lambda entry: (namespace_of(entry[0]), load_key(entry[1]), load(entry[2]))
                )
                self.has_older = kept.has_older
            else:
                for namespace in list(kept._old.namespaces()):
                    rows = kept._old.of(namespace)
                    keys = iter(list(rows))
                    # what was taken goes at once: to free all of it together takes long
                    while some := [(load_key(key), load(rows.pop(key))) for key in islice(keys, SLICE)]:
                        self.load_rows(namespace_of(namespace), some)
                        yield
                    kept._old.drop(namespace)
            for namespace, young in kept.young.items():
                self.rows(namespace_of(namespace)).update(
                    (load_key(key), load(value)) for key, value in young.items()
                )
        kept.keep_old_in(MemoryRows())
        kept.young = {}

    def apply(self, delta: Delta) -> None:
        """Have what a delta says has changed; as `load_rows`, so nothing is young yet."""
        for namespace in delta.dropped:
            self._old.drop(namespace)
        for namespace, keys in delta.gone.items():
            for key in keys:
                self._old.remove(namespace, key)
        for namespace, rows in delta.rows.items():
            self.load_rows(namespace, rows.items())

    def clear(self) -> None:
        """Have nothing, as if nothing had ever been kept."""
        self.derived = None
        self.clear_young()
        self._old.clear()

    def clear_young(self) -> None:
        """Have nothing that is not old, and look for no more."""
        self.young = {}
        self._gone, self._dropped = {}, set()
        self._frozen = None
        self.has_older = False

    # ------------------------------------------------------------------ what is larger than memory

    def weight(self) -> int:
        """About how many rows and removals a cut would make older now."""
        young = self.young
        sample = list(islice(young.values(), SAMPLE))
        rows = sum(map(len, sample)) * len(young) // max(len(sample), 1)
        gone = sum(map(len, islice(self._gone.values(), SAMPLE))) + len(self._gone)
        return rows + gone + len(self._dropped)

    def leave(self) -> None:
        """What is elsewhere goes away: only how many rows there were is known then."""
        if self._remote is not None:
            try:
                self._left = len(self)
            except StateError:
                self._left = 0
            self.clear_young()
            self.keep_old_in(MemoryRows())

    def first_away(self) -> int | None:
        """The earliest namespace, of those that are ints, with rows that are not in memory; None: none."""
        return None if self._remote is None else self._remote.first()

    def adopt_first(self, until: float) -> list[int]:
        """As `adopt`, of some of the earliest namespaces up to `until` that are not in memory; these."""
        if self._remote is None:
            return []
        found = self._remote.take_first(until, AWAY)
        for namespace, old in found.items():
            self._adopted(old, namespace)
        return list(found)

    def here(self) -> list[Any]:
        """The namespaces of rows that are in memory for certain: those that are young or frozen."""
        frozen = () if self._frozen is None else self._frozen
        return list(dict.fromkeys([*frozen, *self.young]))

    def _fresh(self) -> Iterator[tuple[Any, Any]]:
        """(namespace, key) of every row that is in a younger generation than the oldest."""
        for namespace, rows in self.young.items():
            for key in rows:
                yield namespace, key
        for namespace, rows in ({} if self._frozen is None else self._frozen).items():
            if namespace not in self._dropped:
                young, gone = self.young.get(namespace, NO_ROWS), self._gone.get(namespace, ())
                for key in rows:
                    if key not in young and key not in gone:
                        yield namespace, key

    # ------------------------------------------------------------------ looking into what is older

    def _older(self, namespace: Hashable, key: Hashable) -> Any:
        """A value that may be changed, of a row that is not young."""
        value = self._frozen_value(namespace, key)
        return self._old.get(namespace, key) if value is MISSING else detached(value)

    def _frozen_value(self, namespace: Hashable, key: Hashable) -> Any:
        if self._frozen is None or namespace in self._dropped:
            return MISSING
        rows = self._frozen.get(namespace)
        if rows is None:
            return MISSING
        gone = self._gone.get(namespace)
        return MISSING if gone is not None and key in gone else rows.get(key, MISSING)

    def _has_older_rows(self, namespace: Hashable) -> bool:
        if namespace in self._old:
            return True
        return self._frozen is not None and namespace in self._frozen and namespace not in self._dropped


def _in_both(some: Rows, others: Rows) -> int:
    """How many keys are in both."""
    if len(others) < len(some):
        some, others = others, some
    return sum(1 for key in some if key in others)
