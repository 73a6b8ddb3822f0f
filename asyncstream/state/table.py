"""
A table of a step's state: namespace -> key -> value.

Theory
------
A step keeps all that it remembers in tables, so what is done with state (cut, merged, kept, restored, divided
by key) is written once: here, as seen by the step, and in `generations`, by the age of rows. The namespace is
a window, a slice, the time of a timer, or None for a key's own.

What is put into a table belongs to it: to change it later, take it first. What is old may be elsewhere, so
nothing that a step has beside a table grows with it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import KW_ONLY, InitVar, dataclass, field
from itertools import islice
from typing import Any, Protocol, TypeAlias, runtime_checkable

from asyncstream.errors import InternalError
from asyncstream.state.capture import IMMUTABLE, detached
from asyncstream.state.generations import Delta, Generations, OldRows
from asyncstream.state.keys import SOUND, check_key
from asyncstream.state.rows import (
    AWAY,
    MISSING,
    NO_ROWS,
    SLICE,
    Entry,
    MemoryRows,
    Rows,
    plain_namespace,
    same,
)

__all__ = ("Follows", "Saved", "Table")

Saved: TypeAlias = tuple[set[Any], dict[Any, set[Any]], Iterator[tuple[Any, Iterator[tuple[Any, Any]]]]]
"""
Namespaces dropped, keys gone by namespace, and the rows of each namespace that were put, as keys with values:
made one by one, for there may be more than should be in memory twice.
"""


@runtime_checkable
class Follows(Protocol):
    """What is derived from the rows of one table alone, and need not be made anew when some change."""

    def follow(self, table: Table, delta: Delta) -> None:
        """Have the table apply a delta, and follow."""


@dataclass(eq=False)
class Table(Generations):
    """
    One table; see the module.

    Attributes:
        name: unique among the tables of its step.
        save, load: make of a value one that a codec keeps, and back; called off the event loop, so they
            change nothing.
        save_key, load_key: the same for keys of the table.
        compound: keys of the table are tuples that begin with the key of the stream.
        is_bound: its values refer to the operator that holds them, so no other can go on with them as they
            are, nor are they kept elsewhere.
        namespace_of: makes a namespace of what the codec gives back.
        derived: what its owner has made of all of its rows, for one that goes on with them: see `go_on`.
        old: its oldest generation; None: in memory.
    """

    name: str
    _: KW_ONLY
    save: Callable[[Any], Any] = same
    load: Callable[[Any], Any] = same
    save_key: Callable[[Any], Any] = same
    load_key: Callable[[Any], Any] = same
    compound: bool = False
    is_bound: bool = False
    namespace_of: Callable[[Any], Any] = same
    derived: Any = field(default=None, init=False)
    old: InitVar[OldRows | None] = None

    def __post_init__(self, old: OldRows | None) -> None:
        Generations.__init__(self, old)

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

    def fetch(self, namespace: Hashable, keys: Iterable[Any]) -> None:
        """
        Have the rows of these keys young if there are such and the oldest generation is elsewhere.

        For loops over many elements: rows that are asked for together cost far less than one by one.
        """
        if self._remote is None or not self.has_older:
            return
        young = self.young.get(namespace, NO_ROWS)
        wanted = set(keys).difference(young)
        if self._frozen is not None and self._frozen.get(namespace):
            for key in [key for key in wanted if self._frozen_value(namespace, key) is not MISSING]:
                self.take(namespace, key)
                wanted.discard(key)
        if wanted:
            unread = list(wanted)
            found = zip(unread, self._remote.get_many(namespace, unread), strict=True)
            if rows := {key: value for key, value in found if value is not MISSING}:
                self.rows(namespace).update(rows)

    def peek(self, namespace: Hashable, key: Hashable) -> Any:
        """The value of a row, to be read only, or `MISSING`; nothing becomes young."""
        value = self.young.get(namespace, NO_ROWS).get(key, MISSING)
        if value is MISSING and self.has_older:
            if self._frozen is not None:
                value = self._frozen_value(namespace, key)
            if value is MISSING:
                value = self._old.get(namespace, key)
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
                self._gone.setdefault(namespace, set()).add(key)
                return True
        return found

    def _older(self, namespace: Hashable, key: Hashable) -> Any:
        """A value that may be changed, of a row that is not young."""
        value = self._frozen_value(namespace, key)
        return self._old.get(namespace, key) if value is MISSING else self._copied(value)

    def _copied(self, value: Any) -> Any:
        """An equal value that may be changed."""
        try:
            return detached(value)
        except Exception:  # of a class that refuses a copy: another is made of what is kept of it
            if self.is_bound:
                raise
            return self.load(detached(self.save(value)))

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
        entries = self._with_those_here(self._remote.entries(namespace), [namespace])
        return ((key, value) for _, key, value in entries)

    def unordered(self) -> Iterator[Entry]:
        """
        (namespace, key, value) of every row, in no order, to be read only; not all need be in memory at once.
        """
        if self._remote is None or not self.has_older:
            return self.items()
        return self._with_those_here(self._remote.unordered(), self.here())

    def _with_those_here(self, away: Iterable[Entry], namespaces: Iterable[Any]) -> Iterator[Entry]:
        """Rows that are away, as they are now, and those that are in memory alone, of these namespaces."""
        here = {
            (namespace, key): value
            for namespace in namespaces
            for key, value in self._above(NO_ROWS, namespace).items()
        }
        for namespace, key, value in away:
            yield namespace, key, here.pop((namespace, key), value)
        for place, value in here.items():
            yield *place, value

    def adopt(self, namespace: Hashable) -> Rows:
        """All rows of a namespace, young from now on: they may be changed and removed without more ado."""
        if self.has_older_rows(namespace):
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
            whole = {key: value if key in young else self._copied(value) for key, value in whole.items()}
        self._note_dropped(namespace)
        self.young[namespace] = whole
        return whole

    def adopt_first(self, until: float) -> list[int]:
        """As `adopt`, of some of the earliest namespaces up to `until` that are not in memory; these."""
        if self._remote is None:
            return []
        found = self._remote.take_first(until, AWAY)
        for namespace, old in found.items():
            self._adopted(old, namespace)
        return list(found)

    def drop(self, namespace: Hashable) -> None:
        """Have no rows in this namespace."""
        self.young.pop(namespace, None)
        if self.has_older_rows(namespace):
            self._old.drop(namespace)
            self._note_dropped(namespace)

    def __contains__(self, namespace: Hashable) -> bool:
        """Whether there are rows in this namespace."""
        return bool(self.young.get(namespace)) or self.has_older_rows(namespace)

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
            if namespace in self:
                yield namespace

    def items(self) -> Iterator[tuple[Any, Any, Any]]:
        """(namespace, key, value) of every row, namespaces in order; nothing may change meanwhile."""
        if self.has_older and self._frozen is None and not self._count_young():
            yield from self._old.entries()
            return
        for namespace in self.namespaces():
            for key, value in self.whole(namespace).items():
                yield namespace, key, value

    # ------------------------------------------------------------------ from one table to another

    def saved(self, delta: Delta) -> Saved:
        """What a delta of this table says, with namespaces, keys and values as they are saved."""
        save, save_key = self.save, self.save_key
        return (
            set(map(plain_namespace, delta.dropped)),
            {plain_namespace(namespace): set(map(save_key, keys)) for namespace, keys in delta.gone.items()},
            (
                (plain_namespace(namespace), ((save_key(key), save(value)) for key, value in rows.items()))
                for namespace, rows in delta.rows.items()
                if rows
            ),
        )

    def apply(self, delta: Delta) -> None:
        """
        Have what a delta says has changed, which has keys and values as they are saved; as `put_old`, so
        nothing is young yet.
        """
        load, load_key, namespace_of = self.load, self.load_key, self.namespace_of
        for namespace in delta.dropped:
            self._old.drop(namespace_of(namespace))
        for namespace, keys in delta.gone.items():
            for key in keys:
                self._old.remove(namespace_of(namespace), load_key(key))
        self.put_old(
            (namespace_of(namespace), [(load_key(key), load(value)) for key, value in rows.items()])
            for namespace, rows in delta.rows.items()
        )

    def follow(self, delta: Delta) -> None:
        """As `apply`, and so does what is derived from the rows, if it can; if not, it is to be made anew."""
        if isinstance(self.derived, Follows) and not self.is_remote:
            self.derived.follow(self, delta)
        else:
            self.derived = None
            self.apply(delta)

    def go_on(self, table: Table) -> None:
        """
        Have what a table has that is made alike and has been merged, and has nothing then; and what was
        derived from it.
        """
        if table.weight():
            raise InternalError(f"what table {table.name!r} has was not merged")
        self.keep_old_in(table._old)
        self.derived, self.has_older = table.derived, table.has_older
        table.give_away()

    def take_over(self, kept: Table) -> Iterator[None]:
        """
        Have what another table has, which keeps keys and values as they are saved, in slices; it has nothing
        then.

        What is old there is old here, and what is young is young.
        """
        load, load_key, namespace_of = self.load, self.load_key, self.namespace_of
        self._dropped = set(map(namespace_of, kept._dropped))
        if kept._frozen is not None:  # and perhaps read by a thread
            self.put_old(
                (namespace_of(namespace), [(load_key(key), load(detached(value)))])
                for namespace, key, value in kept.items()
            )
            return
        young, self.has_older = kept.young, kept.has_older
        if load is load_key is namespace_of is same and kept.is_remote == self.is_remote:
            self.keep_old_in(kept._old)
            self.young = young
        else:
            if self._remote is not None and kept._remote is not None:
                yield from self._remote.moving(
                    kept._remote, lambda entry: (namespace_of(entry[0]), load_key(entry[1]), load(entry[2]))
                )
            else:
                for namespace in list(kept._old.namespaces()):
                    rows = kept._old.of(namespace)
                    kept._old.drop(namespace)
                    yield from self._loading(namespace_of(namespace), rows)
            for namespace, rows in young.items():
                self.rows(namespace_of(namespace)).update(
                    (load_key(key), load(value)) for key, value in rows.items()
                )
        kept.give_away()

    def _loading(self, namespace: Hashable, saved: Rows) -> Iterator[None]:
        """Have rows of a namespace that has none, as they are saved, in slices; they are given away."""
        load, load_key = self.load, self.load_key
        if load_key is same and isinstance(self._old, MemoryRows):
            # in place: to let another dict grow to a million holds the event loop
            keys = iter(saved)
            while some := list(islice(keys, SLICE)):
                for key in some:
                    saved[key] = load(saved[key])
                yield
            self._old.adopt(namespace, saved)
            self.has_older = True
        else:
            keys = iter(list(saved))
            # what was taken goes at once: to free all of it together takes long
            while rows := [(load_key(key), load(saved.pop(key))) for key in islice(keys, SLICE)]:
                self.put_old([(namespace, rows)])
                yield

    def clear(self) -> None:
        """Have nothing, as if nothing had ever been kept."""
        self.derived = None
        self.clear_young()
        self._old.clear()
