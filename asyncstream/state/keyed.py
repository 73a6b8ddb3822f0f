"""
Keyed state in memory: a table for each name, an entry for each key and namespace.

The namespace tells apart entries of one key, such as those of its windows; None is the key's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from asyncstream.clock import Clock, SystemClock
from asyncstream.errors import CheckpointError, InternalError, safe_repr
from asyncstream.state.descriptors import (
    AggregatingDescriptor,
    ListDescriptor,
    MapDescriptor,
    ReducingDescriptor,
    StateDescriptor,
    ValueDescriptor,
)
from asyncstream.state.detached import detached
from asyncstream.state.handles import (
    AggregatingState,
    Cursor,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from asyncstream.state.ttl import Ages, Cell

__all__ = ("KeyedState",)

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Out = TypeVar("Out")


class _Table:
    """
    The entries of one name.

    Attributes:
        kind: of state; a name is never used for two.
        cells: values by key and namespace.
        ages: when entries were written, if they have a time to live.
        unclaimed: the snapshot that the cells came from, until a descriptor says how long they live.
    """

    __slots__ = ("_is_claimed", "ages", "cells", "kind", "unclaimed")

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.cells: dict[Cell, Any] = {}
        self.ages: Ages[Any] | None = None
        self.unclaimed: Mapping[str, Any] | None = None
        self._is_claimed = False

    def claim(self, ages: Ages[Any] | None) -> None:
        """Let entries live as `ages` says, those too that are here already; None: for ever."""
        self.ages = ages
        self._is_claimed = True
        if self.unclaimed is not None:
            self._age(self.unclaimed)
            self.unclaimed = None

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Take up what `snapshot` gave, in place of what is here."""
        self.cells.clear()
        for key, namespace, value, _ in kept["cells"]:
            self.cells[key, namespace] = detached(value)
        if self._is_claimed:
            self._age(kept)
        else:
            self.unclaimed = kept

    def snapshot(self) -> dict[str, Any]:
        """
        The kind, and a list of (key, namespace, value, when it was written).

        The last is None without a time to live. Before version 0.2 it was when the whole entry expires, and
        there were no "times".
        """
        if self.unclaimed is not None:
            return {**self.unclaimed, "cells": detached(list(self.unclaimed["cells"]))}
        if self.ages is not None:
            self.ages.purge()
        written: Mapping[Cell, Any] = {} if self.ages is None else self.ages.written
        return {
            "kind": self.kind,
            "times": "written",
            "cells": [
                (key, _plain(namespace), detached(value), detached(written.get((key, namespace))))
                for (key, namespace), value in self.cells.items()
            ],
        }

    def _age(self, kept: Mapping[str, Any]) -> None:
        if self.ages is not None:
            self.ages.clear()
            is_expiry = "times" not in kept
            for key, namespace, _, written in kept["cells"]:
                self.ages.restore((key, namespace), detached(written), is_expiry=is_expiry)


class KeyedState(Cursor):
    """
    All keyed state of one operator, and the cursor of its handles.

    Args:
        clock: processing time, for entries with a time to live.
    """

    __slots__ = ("_clock", "_handles", "_tables")

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__()
        self._clock: Clock = SystemClock() if clock is None else clock
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
            ttl = descriptor.time_to_live
            table.claim(None if ttl is None else handle_type.ages_of(ttl, self._clock.now_ms, table.cells))
            handle = self._handles[name] = handle_type(self, table.cells, table.ages, descriptor)
        elif handle.kind != handle_type.kind:
            _check_kind(name, handle.kind, handle_type.kind)
        return handle

    def __len__(self) -> int:
        """How many entries there are, all names, keys and namespaces together."""
        return sum(len(table.cells) for table in self._tables.values())

    def snapshot(self) -> dict[str, Any]:
        """For each name with entries, what its table keeps of them."""
        kept = {name: table.snapshot() for name, table in self._tables.items()}
        return {name: table for name, table in kept.items() if table["cells"]}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Take up what `snapshot` gave, in place of what is here."""
        for name in {**self._tables, **snapshot}:
            kept = snapshot.get(name) or {"kind": self._tables[name].kind, "cells": ()}
            table = self._tables.setdefault(name, _Table(kept["kind"]))
            _check_kind(name, kept["kind"], table.kind)
            table.restore(kept)


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
