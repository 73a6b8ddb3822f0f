"""
Keyed state in memory: a table for each name, an entry for each key and namespace.

The operator moves a cursor (`KeyedState.key`, `KeyedState.namespace`); every handle reads and writes the
entry under it. The namespace tells apart entries of one key, such as those of its windows; None is the
key's own. What is empty leaves no entry behind, so a key that is done costs nothing.

Time to live is checked when an entry is read and when a snapshot is taken. Nothing scans the tables in
between: an entry that nobody reads again stays in memory until the next snapshot.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, overload

from asyncstream.clock import Clock, SystemClock
from asyncstream.errors import CheckpointError, InternalError, PipelineError, safe_repr
from asyncstream.state.descriptors import (
    AggregatingDescriptor,
    ListDescriptor,
    MapDescriptor,
    ReducingDescriptor,
    StateDescriptor,
    ValueDescriptor,
)
from asyncstream.state.detached import detached

__all__ = ("AggregatingState", "KeyedState", "ListState", "MapState", "ReducingState", "State", "ValueState")

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Out = TypeVar("Out")

_NOTHING: Any = object()


class _Table:
    """The entries of one name: values by (key, namespace), and when each runs out if they do."""

    __slots__ = ("cells", "expiry_ms", "kind")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.cells: dict[tuple[Any, Any], Any] = {}
        self.expiry_ms: dict[tuple[Any, Any], int] = {}


class State:
    """The entry of the current key and namespace in one table; the base of all handles."""

    kind = ""

    def __init__(self, store: KeyedState, table: _Table, descriptor: StateDescriptor) -> None:
        self._store = store
        self._cells = table.cells
        self._expiry_ms = table.expiry_ms
        self._ttl_ms = descriptor.ttl_ms
        self.name = descriptor.name

    def clear(self) -> None:
        """Forget the entry."""
        cell = (self._store.key, self._store.namespace)
        self._cells.pop(cell, None)
        self._expiry_ms.pop(cell, None)

    def merge_namespaces(self, target: Hashable, sources: Iterable[Hashable]) -> None:
        """Move the current key's entries of the namespaces `sources` into that of `target`."""
        key = self._store.key
        for source in sources:
            merged = self._read((key, source))
            self._remove((key, source))
            if merged is not _NOTHING:
                present = self._read((key, target))
                self._write((key, target), merged if present is _NOTHING else self._merged(present, merged))

    def _merged(self, present: Any, other: Any) -> Any:
        raise PipelineError(
            f"state {self.name!r} cannot merge: where windows merge, use list, reducing or aggregating state"
        )

    def _cell(self) -> tuple[Any, Any]:
        return (self._store.key, self._store.namespace)

    def _read(self, cell: tuple[Any, Any]) -> Any:
        found = self._cells.get(cell, _NOTHING)
        if (
            self._expiry_ms
            and found is not _NOTHING
            and self._expiry_ms.get(cell, _FOREVER) <= self._store.clock.now_ms()
        ):
            self._remove(cell)
            return _NOTHING
        return found

    def _write(self, cell: tuple[Any, Any], value: Any) -> None:
        self._cells[cell] = value
        if self._ttl_ms is not None:
            self._expiry_ms[cell] = self._store.clock.now_ms() + self._ttl_ms

    def _remove(self, cell: tuple[Any, Any]) -> None:
        self._cells.pop(cell, None)
        self._expiry_ms.pop(cell, None)


_FOREVER = 2**63


class ValueState(State, Generic[T]):
    """Handle of a `ValueDescriptor`."""

    kind = "value"

    def __init__(self, store: KeyedState, table: _Table, descriptor: ValueDescriptor[T]) -> None:
        super().__init__(store, table, descriptor)
        self._default = descriptor.default

    def get(self) -> T | None:
        """The value, or the descriptor's default."""
        found = self._read(self._cell())
        return self._default if found is _NOTHING else found

    def set(self, value: T) -> None:
        """Replace the value; setting None is the same as `clear`."""
        if value is None:
            self.clear()
        else:
            self._write(self._cell(), value)


class ListState(State, Generic[T]):
    """Handle of a `ListDescriptor`."""

    kind = "list"

    def get(self) -> list[T]:
        """A new list of the values."""
        found = self._read(self._cell())
        return [] if found is _NOTHING else list(found)

    def add(self, value: T) -> None:
        """Append one value."""
        self.extend((value,))

    def extend(self, values: Iterable[T]) -> None:
        """Append several values."""
        cell = self._cell()
        found = self._read(cell)
        if found is _NOTHING:
            found = []
        found.extend(values)
        if found:
            self._write(cell, found)

    def set(self, values: Iterable[T]) -> None:
        """Replace the values."""
        if replacement := list(values):
            self._write(self._cell(), replacement)
        else:
            self.clear()

    def _merged(self, present: Any, other: Any) -> Any:
        present.extend(other)
        return present


class MapState(State, Generic[K, V]):
    """Handle of a `MapDescriptor`."""

    kind = "map"

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    def get(self, key: K, default: V | None = None) -> V | None:
        """The value under `key`, or `default`."""
        return self._map().get(key, default)

    def put(self, key: K, value: V) -> None:
        """Set the value under `key`."""
        cell = self._cell()
        found = self._read(cell)
        if found is _NOTHING:
            found = {}
        found[key] = value
        self._write(cell, found)

    def remove(self, key: K) -> None:
        """Forget the value under `key`, if there is one."""
        cell = self._cell()
        found = self._read(cell)
        if found is not _NOTHING and key in found:
            del found[key]
            if found:
                self._write(cell, found)
            else:
                self._remove(cell)

    def items(self) -> list[tuple[K, V]]:
        """A new list of (key, value), in the order of their first `put`."""
        return list(self._map().items())

    def __contains__(self, key: object) -> bool:
        return key in self._map()

    def __len__(self) -> int:
        return len(self._map())

    def __iter__(self) -> Iterator[K]:
        return iter(list(self._map()))

    def _map(self) -> Mapping[Any, V]:
        found = self._read(self._cell())
        return {} if found is _NOTHING else found


class ReducingState(State, Generic[T]):
    """Handle of a `ReducingDescriptor`."""

    kind = "reducing"

    def __init__(self, store: KeyedState, table: _Table, descriptor: ReducingDescriptor[T]) -> None:
        super().__init__(store, table, descriptor)
        self._reduce = descriptor.reduce

    def get(self) -> T | None:
        """All added values folded into one, or None."""
        found = self._read(self._cell())
        return None if found is _NOTHING else found

    def add(self, value: T) -> T:
        """Fold one value in; returns the outcome."""
        cell = self._cell()
        found = self._read(cell)
        outcome = value if found is _NOTHING else self._reduce(found, value)
        self._write(cell, outcome)
        return outcome

    def _merged(self, present: Any, other: Any) -> Any:
        return self._reduce(present, other)


class AggregatingState(State, Generic[In, Out]):
    """Handle of an `AggregatingDescriptor`."""

    kind = "aggregating"

    def __init__(self, store: KeyedState, table: _Table, descriptor: AggregatingDescriptor[In, Out]) -> None:
        super().__init__(store, table, descriptor)
        self._aggregation = descriptor.aggregation

    def get(self) -> Out | None:
        """The result over all added values, or None if there was none."""
        found = self._read(self._cell())
        return None if found is _NOTHING else self._aggregation.result(found)

    def add(self, value: In) -> None:
        """Take one value in."""
        cell = self._cell()
        found = self._read(cell)
        self._write(
            cell, self._aggregation.add(self._aggregation.create() if found is _NOTHING else found, value)
        )

    def _merged(self, present: Any, other: Any) -> Any:
        return self._aggregation.merge(present, other)


class KeyedState:
    """
    All keyed state of one operator.

    Attributes:
        key: whose entries the handles work on.
        namespace: which of that key's entries; None for the key's own.
        clock: processing time, for entries that run out.
    """

    __slots__ = ("_handles", "_tables", "clock", "key", "namespace")

    def __init__(self, clock: Clock | None = None) -> None:
        self.key: Any = None
        self.namespace: Any = None
        self.clock: Clock = SystemClock() if clock is None else clock
        self._tables: dict[str, _Table] = {}
        self._handles: dict[str, State] = {}

    @overload
    def state(self, descriptor: ValueDescriptor[T]) -> ValueState[T]: ...
    @overload
    def state(self, descriptor: ListDescriptor[T]) -> ListState[T]: ...
    @overload
    def state(self, descriptor: MapDescriptor[K, V]) -> MapState[K, V]: ...
    @overload
    def state(self, descriptor: ReducingDescriptor[T]) -> ReducingState[T]: ...
    @overload
    def state(self, descriptor: AggregatingDescriptor[In, Out]) -> AggregatingState[In, Out]: ...
    @overload
    def state(self, descriptor: StateDescriptor) -> State: ...
    def state(self, descriptor: StateDescriptor) -> State:
        """
        The handle for `descriptor`; the same one each time, so call it once and keep it.

        Raises:
            CheckpointError: if the name is taken by state of another kind, perhaps in a snapshot.
        """
        name = descriptor.name
        handle_type = _handle_type(descriptor)
        handle = self._handles.get(name)
        if handle is None:
            table = self._tables.setdefault(name, _Table(handle_type.kind))
            _check_kind(name, table.kind, handle_type.kind)
            handle = self._handles[name] = handle_type(self, table, descriptor)
        elif handle.kind != handle_type.kind:
            _check_kind(name, handle.kind, handle_type.kind)
        return handle

    def __len__(self) -> int:
        """How many entries there are, all names, keys and namespaces together."""
        return sum(len(table.cells) for table in self._tables.values())

    def snapshot(self) -> dict[str, Any]:
        """For each name with entries: its kind, and a list of (key, namespace, value, expiry_ms or None)."""
        now_ms = self.clock.now_ms()
        kept: dict[str, Any] = {}
        for name, table in self._tables.items():
            expiry_ms = table.expiry_ms
            for cell in [cell for cell, expires in expiry_ms.items() if expires <= now_ms]:
                del table.cells[cell], expiry_ms[cell]
            if table.cells:
                kept[name] = {
                    "kind": table.kind,
                    "cells": [
                        (key, _plain(namespace), detached(value), expiry_ms.get((key, namespace)))
                        for (key, namespace), value in table.cells.items()
                    ],
                }
        return kept

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take up what `snapshot` gave, in place of what is here."""
        for table in self._tables.values():
            table.cells.clear()
            table.expiry_ms.clear()
        for name, kept in snapshot.items():
            table = self._tables.setdefault(name, _Table(kept["kind"]))
            _check_kind(name, kept["kind"], table.kind)
            for key, namespace, value, expires in kept["cells"]:
                table.cells[key, namespace] = detached(value)
                if expires is not None:
                    table.expiry_ms[key, namespace] = expires


def _plain(namespace: Any) -> Any:
    """A namespace as the codec keeps it: a window, being a tuple with names, as the equal plain tuple."""
    return tuple(namespace) if isinstance(namespace, tuple) else namespace


def _check_kind(name: str, found: str, wanted: str) -> None:
    if found != wanted:
        raise CheckpointError(
            f"state {name!r} is {found} state and cannot be read as {wanted} state; use another name"
        )


def _handle_type(descriptor: StateDescriptor) -> type[Any]:
    for descriptor_type, handle_type in _HANDLES:
        if isinstance(descriptor, descriptor_type):
            return handle_type
    raise InternalError(f"no state for the descriptor {safe_repr(descriptor)}")


_HANDLES: tuple[tuple[type[StateDescriptor], type[State]], ...] = (
    (ValueDescriptor, ValueState),
    (ListDescriptor, ListState),
    (MapDescriptor, MapState),
    (ReducingDescriptor, ReducingState),
    (AggregatingDescriptor, AggregatingState),
)
