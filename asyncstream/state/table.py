"""
A table of a step's state: namespace -> key -> value, in generations.

Theory
------
A step keeps all that it remembers in tables, so what is done with state (cut, merged, kept, restored, divided
by key) is written once, here. The namespace is a window, a slice, the time of a timer, or None for a key's
own.

    young    what was put, or taken to be changed, since the last cut: a dict of dicts, on which hot loops
    work frozen   what was young at the last cut, while a checkpoint writes it; nothing in it changes any more
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

What is put into a table belongs to it: whoever changes it later takes it first.

After the copy-on-write tables and incremental checkpoints of stream processors; the three generations are
those of a log-structured merge tree that is held in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Protocol, TypeAlias

from asyncstream.errors import InternalError
from asyncstream.state.detached import IMMUTABLE, detached

__all__ = ("MISSING", "SLICE", "Delta", "MemoryRows", "OldRows", "Rows", "Table")

MISSING: Final[Any] = object()
"""What a lookup gives where there is nothing: None may be a value."""

SLICE: Final = 2_000
"""Rows that are merged or decoded in one go: about a millisecond."""

Rows: TypeAlias = dict[Any, Any]
"""Values by key, of one namespace."""


class Delta:
    """
    What has changed in a table between two cuts; nothing in it changes any more.

    Attributes:
        dropped: namespaces of which nothing is left but what is in `rows`.
        gone: keys by namespace that were removed.
        rows: what was put, values by key, by namespace; a row that is gone too was put again after that.
    """

    __slots__ = ("dropped", "gone", "rows")

    def __init__(
        self, rows: dict[Any, Rows], gone: Mapping[Any, set[Any]] | None = None, dropped: Iterable[Any] = ()
    ) -> None:
        self.rows = rows
        self.gone = {} if gone is None else gone
        self.dropped = dropped if isinstance(dropped, set) else set(dropped)

    def __bool__(self) -> bool:
        return bool(self.dropped or self.gone or self.rows)

    def __len__(self) -> int:
        """How many rows, keys and namespaces it names."""
        return sum(map(len, self.rows.values())) + sum(map(len, self.gone.values())) + len(self.dropped)


class OldRows(Protocol):
    """
    The oldest generation of a table, in memory or elsewhere.

    Attributes:
        is_remote: a lookup takes far longer than one in a dict, so keys of a batch are better fetched
            together.
    """

    is_remote: bool

    def get(self, namespace: Hashable, key: Hashable) -> Any:
        """The value, or `MISSING`."""

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        """Have no such row; whether there was one."""

    def drop(self, namespace: Hashable) -> bool:
        """Have no such namespace; whether there was one."""

    def __contains__(self, namespace: Hashable) -> bool:
        """Whether the namespace may have rows."""

    def of(self, namespace: Hashable) -> Rows:
        """The rows of a namespace, in order; to be read only."""

    def namespaces(self) -> Iterable[Any]:
        """Those that may have rows, in no order."""

    def adopt(self, namespace: Hashable, rows: Rows) -> None:
        """Have rows of a namespace that has none here; they are given away with this."""

    def update(self, namespace: Hashable, rows: Iterable[tuple[Any, Any]]) -> None:
        """Put rows."""

    def clear(self) -> None:
        """Have nothing."""


class MemoryRows:
    """The oldest generation, in memory."""

    __slots__ = ("_rows",)
    is_remote = False

    def __init__(self) -> None:
        self._rows: dict[Any, Rows] = {}

    def get(self, namespace: Hashable, key: Hashable) -> Any:
        rows = self._rows.get(namespace)
        return MISSING if rows is None else rows.get(key, MISSING)

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        rows = self._rows.get(namespace)
        if rows is None or rows.pop(key, MISSING) is MISSING:
            return False
        if not rows:
            del self._rows[namespace]
        return True

    def drop(self, namespace: Hashable) -> bool:
        return self._rows.pop(namespace, None) is not None

    def __contains__(self, namespace: Hashable) -> bool:
        return namespace in self._rows

    def of(self, namespace: Hashable) -> Rows:
        return self._rows.get(namespace, _NO_ROWS)

    def namespaces(self) -> Iterable[Any]:
        return self._rows

    def adopt(self, namespace: Hashable, rows: Rows) -> None:
        self._rows[namespace] = rows

    def update(self, namespace: Hashable, rows: Iterable[tuple[Any, Any]]) -> None:
        self._rows.setdefault(namespace, {}).update(rows)

    def clear(self) -> None:
        self._rows.clear()


_NO_ROWS: Final[Rows] = {}


def _same(value: Any) -> Any:
    return value


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
        namespace_of: makes a namespace of what the codec gives back.
    """

    __slots__ = (
        "_dropped",
        "_frozen",
        "_gone",
        "_old",
        "compound",
        "has_older",
        "load",
        "load_key",
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
        save: Callable[[Any], Any] = _same,
        load: Callable[[Any], Any] = _same,
        save_key: Callable[[Any], Any] = _same,
        load_key: Callable[[Any], Any] = _same,
        compound: bool = False,
        namespace_of: Callable[[Any], Any] = _same,
        old: OldRows | None = None,
    ) -> None:
        self.name = name
        self.young: dict[Any, Rows] = {}
        self.save = save
        self.load = load
        self.save_key = save_key
        self.load_key = load_key
        self.compound = compound
        self.namespace_of = namespace_of
        self.has_older = False
        self._gone: dict[Any, set[Any]] = {}
        self._dropped: set[Any] = set()
        self._frozen: dict[Any, Rows] | None = None
        self._old: OldRows = MemoryRows() if old is None else old

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

    def peek(self, namespace: Hashable, key: Hashable) -> Any:
        """The value of a row, to be read only, or `MISSING`; nothing becomes young."""
        value = self.young.get(namespace, _NO_ROWS).get(key, MISSING)
        if value is MISSING and self.has_older:
            found = self._frozen_value(namespace, key)
            value = self._old.get(namespace, key) if found is MISSING else found
        return value

    def put(self, namespace: Hashable, key: Hashable, value: Any) -> None:
        """Have this value in a row."""
        rows = self.young.get(namespace)
        if rows is None:
            rows = self.young[namespace] = {}
        rows[key] = value

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        """Have no such row; whether there was one."""
        rows = self.young.get(namespace)
        found = False
        if rows is not None:
            found = rows.pop(key, MISSING) is not MISSING
            if not rows:
                del self.young[namespace]
        if self.has_older and self._is_older(namespace, key):
            self._old.remove(namespace, key)
            self._gone.setdefault(namespace, set()).add(key)
            return True
        return found

    # ------------------------------------------------------------------ namespaces

    def whole(self, namespace: Hashable = None) -> Rows:
        """All rows of a namespace in their order; to be read only."""
        young = self.young.get(namespace, _NO_ROWS)
        if not self.has_older:
            return young
        frozen = _NO_ROWS if self._frozen is None else self._frozen.get(namespace, _NO_ROWS)
        if namespace in self._dropped:
            frozen = _NO_ROWS
        old = self._old.of(namespace)
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
            frozen = self._frozen
            if frozen is None or namespace not in frozen:
                whole = self.whole(namespace)
            else:
                young = self.young.get(namespace, _NO_ROWS)
                whole = {
                    key: value if key in young else detached(value)
                    for key, value in self.whole(namespace).items()
                }
            self.drop(namespace)
            self.young[namespace] = whole
            return whole
        return self.rows(namespace)

    def drop(self, namespace: Hashable) -> None:
        """Have no rows in this namespace."""
        self.young.pop(namespace, None)
        if self.has_older and self._has_older_rows(namespace):
            self._old.drop(namespace)
            self._gone.pop(namespace, None)
            self._dropped.add(namespace)

    def __contains__(self, namespace: Hashable) -> bool:
        """Whether the namespace may have rows."""
        return namespace in self.young or (self.has_older and self._has_older_rows(namespace))

    def namespaces(self) -> Iterator[Any]:
        """Those that have rows: the oldest generation's first."""
        if not self.has_older:
            yield from [namespace for namespace, rows in self.young.items() if rows]
            return
        frozen = {} if self._frozen is None else self._frozen
        for namespace in list(dict.fromkeys([*self._old.namespaces(), *frozen, *self.young])):
            if self.young.get(namespace) or self.whole(namespace):
                yield namespace

    def items(self) -> Iterator[tuple[Any, Any, Any]]:
        """(namespace, key, value) of every row; to be read only."""
        for namespace in self.namespaces():
            for key, value in self.whole(namespace).items():
                yield namespace, key, value

    def __len__(self) -> int:
        """How many rows there are."""
        count = sum(map(len, self.young.values()))
        if not self.has_older:
            return count
        frozen = {} if self._frozen is None else self._frozen
        for namespace in dict.fromkeys([*self._old.namespaces(), *frozen]):
            old = self._old.of(namespace)
            above = self.young.get(namespace, _NO_ROWS)
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
        delta = Delta(self.young, self._gone, self._dropped)
        self.young = {}
        if delta.rows:
            self._frozen, self.has_older = delta.rows, True
        self._gone, self._dropped = {}, set()
        return delta

    def merging(self) -> Iterator[None]:
        """Makes what was cut old, in slices; other things may happen between two of them."""
        frozen = self._frozen
        if frozen is None:
            return
        done = 0
        for namespace in list(frozen):
            rows = frozen[namespace]
            if namespace in self._dropped or not rows:
                continue
            if namespace not in self._old:
                gone = self._gone.get(namespace)
                if gone:
                    rows = {key: value for key, value in rows.items() if key not in gone}
                self._old.adopt(namespace, rows)
                done += 1
            else:
                rest = iter(list(rows.items()))
                while some := list(islice(rest, SLICE)):
                    gone = self._gone.get(namespace, set())
                    if namespace not in self._dropped:
                        self._old.update(namespace, [row for row in some if row[0] not in gone])
                    if len(some) == SLICE:
                        yield
                    done += len(some)
            if done >= SLICE:
                done = 0
                yield
        self._frozen = None

    def merge(self) -> None:
        """Run through all of `merging`."""
        for _ in self.merging():
            pass

    def load_rows(self, namespace: Hashable, rows: Iterable[tuple[Any, Any]]) -> None:
        """Have rows that were kept elsewhere and are there still: they are no part of the next delta."""
        self._old.update(namespace, rows)
        self.has_older = True

    def go_on(self, table: Table) -> None:
        """Have what a table that is made alike has, which has nothing then."""
        self.young, self._old, self._frozen = table.young, table._old, table._frozen
        self._gone, self._dropped, self.has_older = table._gone, table._dropped, table.has_older
        table._old = MemoryRows()
        table.clear()

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
        if self.load is self.load_key is self.namespace_of is _same:
            self._old, self.young, self.has_older = kept._old, kept.young, kept.has_older
            self._gone, self._dropped = kept._gone, kept._dropped
        else:
            load, load_key = self.load, self.load_key
            for namespace in list(kept._old.namespaces()):
                rows = iter(kept._old.of(namespace).items())
                while some := [(load_key(key), load(value)) for key, value in islice(rows, SLICE)]:
                    self.load_rows(self.namespace_of(namespace), some)
                    yield
                kept._old.drop(namespace)
            for namespace, young in kept.young.items():
                self.rows(self.namespace_of(namespace)).update(
                    (load_key(key), load(value)) for key, value in young.items()
                )
        kept._old, kept.young = MemoryRows(), {}

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
        self.young = {}
        self._gone, self._dropped = {}, set()
        self._frozen = None
        self._old.clear()
        self.has_older = False

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

    def _is_older(self, namespace: Hashable, key: Hashable) -> bool:
        return (
            self._frozen_value(namespace, key) is not MISSING or self._old.get(namespace, key) is not MISSING
        )

    def _has_older_rows(self, namespace: Hashable) -> bool:
        if namespace in self._old:
            return True
        return self._frozen is not None and namespace in self._frozen and namespace not in self._dropped


def _in_both(some: Rows, others: Rows) -> int:
    """How many keys are in both."""
    if len(others) < len(some):
        some, others = others, some
    return sum(1 for key in some if key in others)
