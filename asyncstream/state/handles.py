"""
What user code reads and writes state through: a handle for each piece of state of an operator.

The operator moves a cursor, its `KeyedState`; every handle works on the entry of the key and namespace under
it. What is empty leaves no entry behind, so a key that is done costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from asyncstream.errors import PipelineError
from asyncstream.state.capture import IMMUTABLE
from asyncstream.state.keys import SOUND, check_map_key
from asyncstream.state.rows import MISSING
from asyncstream.state.table import Table
from asyncstream.state.ttl import Ages, ListAges, MapAges, Row, ValueAges

if TYPE_CHECKING:
    from asyncstream.state.descriptors import (
        AggregatingDescriptor,
        ReducingDescriptor,
        StateDescriptor,
        ValueDescriptor,
    )
    from asyncstream.state.keyed import KeyedState

__all__ = ("AggregatingState", "ListState", "MapState", "ReducingState", "State", "ValueState")

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
In = TypeVar("In")
Out = TypeVar("Out")


class State:
    """
    The entry of the current key and namespace in one table; the base of all handles.

    Attributes:
        kind: what snapshots call state of this kind.
        ages_of: keeps when entries were written, for state with a time to live.
        name: the descriptor's.
    """

    __slots__ = ("_ages", "_cursor", "_descriptor", "_rows", "name")

    kind: ClassVar[str] = ""
    ages_of: ClassVar[Callable[..., Ages[Any]]] = ValueAges

    def __init__(
        self, cursor: KeyedState, rows: Table, ages: Ages[Any] | None, descriptor: StateDescriptor[Any]
    ) -> None:
        self.name = descriptor.name
        self._descriptor = descriptor
        self._cursor = cursor
        self._rows = rows
        self._ages = ages

    def clear(self) -> None:
        """Forget the entry."""
        self._remove(self._row())

    def has_entry(self) -> bool:
        """Whether there is something that has not expired."""
        if self._ages is None:
            return self._seen() is not MISSING
        return self._live(self._row()) is not MISSING

    def merge_namespaces(self, target: Hashable, sources: Iterable[Hashable]) -> None:
        """Move the current key's entries of the namespaces `sources` into that of `target`."""
        key, rows, ages = self._cursor.key, self._rows, self._ages
        merged = (target, key)
        for namespace in sources:
            source = (namespace, key)
            value = self._live(source)
            if value is MISSING:
                continue
            written = None if ages is None else ages.written(source)
            self._remove(source)
            present = self._live(merged)
            is_new = present is MISSING
            rows.put(target, key, value if is_new else self._merged(present, value))
            if ages is not None:
                ages.merge(merged, written, is_new=is_new)

    def _merged(self, present: Any, other: Any) -> Any:
        raise PipelineError(
            f"state {self.name!r} cannot merge: where windows merge, use list, reducing or aggregating state"
        )

    def _row(self) -> Row:
        return (self._cursor.namespace, self._cursor.key)

    def _held(self) -> Any:
        """What the current entry holds, or `MISSING`."""
        cursor = self._cursor
        return self._rows.get(cursor.namespace, cursor.key)

    def _seen(self) -> Any:
        """
        The same, to be looked at alone. What `_held` gives is in the next checkpoint, for it may be changed;
        this is not.
        """
        cursor = self._cursor
        return self._rows.peek(cursor.namespace, cursor.key)

    def _live(self, row: Row) -> Any:
        found = self._rows.get(*row)
        if self._ages is None or found is MISSING or self._ages.is_live(row):
            return found
        return MISSING

    def _read(self) -> Any:
        """What the current entry holds, or `MISSING` if it has expired, too; it counts as read."""
        cursor = self._cursor
        found = self._rows.get(cursor.namespace, cursor.key)
        if self._ages is None or found is MISSING or self._ages.read((cursor.namespace, cursor.key)):
            return found
        return MISSING

    def _write(self, value: Any, entry: Any = None) -> None:
        """Have the current entry hold this; it counts as written, or that entry of a map."""
        cursor = self._cursor
        self._rows.put(cursor.namespace, cursor.key, value)
        if self._ages is not None:
            self._ages.write((cursor.namespace, cursor.key), entry)

    def _remove(self, row: Row) -> None:
        self._rows.remove(*row)
        if self._ages is not None:
            self._ages.remove(row)


class ValueState(State, Generic[T]):
    """Handle of a `ValueDescriptor`."""

    __slots__ = ()
    kind = "value"
    _descriptor: ValueDescriptor[T]

    @overload
    def get(self) -> T | None: ...
    @overload
    def get(self, default: T) -> T: ...
    def get(self, default: T | None = None) -> T | None:
        """The value; where nothing was written `default` or, without one, the descriptor's."""
        found = self._read()
        if found is not MISSING:
            return found  # type: ignore[no-any-return]
        return self._descriptor.default if default is None else default

    def set(self, value: T) -> None:
        """Replace the value; setting None is the same as `clear`."""
        if value is None:
            self.clear()
        else:
            self._write(value)


class ListState(State, Generic[T]):
    """Handle of a `ListDescriptor`."""

    __slots__ = ()
    kind = "list"
    ages_of = ListAges

    def get(self) -> list[T]:
        """A new list of the values."""
        found = self._read()
        return [] if found is MISSING else list(found)

    def add(self, value: T) -> None:
        """Append one value."""
        found = self._held()
        if found is MISSING:
            self._write([value])
        else:
            found.append(value)
            if self._ages is not None:
                self._ages.write(self._row())

    def extend(self, values: Iterable[T]) -> None:
        """Append several values."""
        added = list(values)
        if added:
            found = self._held()
            if found is MISSING:
                found = []
            found += added
            self._write(found)

    def set(self, values: Iterable[T]) -> None:
        """Replace the values."""
        replacement = list(values)
        self.clear()
        if replacement:
            self._write(replacement)

    def _merged(self, present: Any, other: Any) -> Any:
        present.extend(other)
        return present


class MapState(State, Generic[K, V]):
    """Handle of a `MapDescriptor`."""

    __slots__ = ()
    kind = "map"
    ages_of = MapAges
    _ages: MapAges | None

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: V) -> V: ...
    def get(self, key: K, default: V | None = None) -> V | None:
        """The value under `key`, or `default`."""
        ages = self._ages
        found = self._seen() if ages is None else self._held()
        if found is MISSING or key not in found:
            return default
        value: V = found[key]
        if ages is not None:
            return value if ages.is_live_entry(self._row(), key) else default
        if type(value) not in IMMUTABLE:
            value = self._held()[key]
        return value

    def put(self, key: K, value: V) -> None:
        """
        Set the value under `key`.

        Raises:
            ValueError: if the key does not equal itself, such as NaN.
        """
        found, ages = self._held(), self._ages
        if found is MISSING or key not in found:
            if type(key) not in SOUND:
                check_map_key(key)
        elif ages is not None and not ages.is_live_entry(self._row(), key):
            found = self._held()  # one that has expired gives up its place
        if found is MISSING:
            self._write({key: value}, key)
        else:
            found[key] = value
            if ages is not None:
                ages.write(self._row(), key)

    def remove(self, key: K) -> None:
        """Forget the value under `key`, if there is one."""
        found = self._seen()
        if found is MISSING or key not in found:
            return
        if self._ages is not None:
            self._ages.remove_entry(self._row(), key)
            return
        found = self._held()
        del found[key]
        if not found:
            self._rows.remove(*self._row())

    def items(self) -> list[tuple[K, V]]:
        """A new list of (key, value), in the order of their first `put`."""
        found = self._read()
        return [] if found is MISSING else list(found.items())

    def __contains__(self, key: object) -> bool:
        found = self._seen()
        if found is MISSING or key not in found:
            return False
        return self._ages is None or self._ages.is_live_entry(self._row(), key)

    def __len__(self) -> int:
        """How many entries there are; does not count as reading them. With a `ttl` each is looked at."""
        found = self._seen() if self._ages is None else self._live(self._row())
        return 0 if found is MISSING else len(found)

    def __iter__(self) -> Iterator[K]:
        found = self._seen() if self._ages is None else self._read()
        return iter([] if found is MISSING else list(found))


class ReducingState(State, Generic[T]):
    """Handle of a `ReducingDescriptor`."""

    __slots__ = ()
    kind = "reducing"
    _descriptor: ReducingDescriptor[T]

    def get(self) -> T | None:
        """All added values folded into one, or None."""
        found = self._read()
        return None if found is MISSING else found

    def add(self, value: T) -> T:
        """Fold one value in; returns the outcome."""
        found = self._read()
        outcome = value if found is MISSING else self._descriptor.reduce(found, value)
        self._write(outcome)
        return outcome

    def _merged(self, present: Any, other: Any) -> Any:
        return self._descriptor.reduce(present, other)


class AggregatingState(State, Generic[In, Out]):
    """Handle of an `AggregatingDescriptor`."""

    __slots__ = ()
    kind = "aggregating"
    _descriptor: AggregatingDescriptor[In, Out]

    def get(self) -> Out | None:
        """The result over all added values, or None if there was none."""
        found = self._read()
        return None if found is MISSING else self._descriptor.aggregation.result(found)

    def add(self, value: In) -> None:
        """Take one value in."""
        found = self._read()
        aggregation = self._descriptor.aggregation
        self._write(aggregation.add(aggregation.create() if found is MISSING else found, value))

    def _merged(self, present: Any, other: Any) -> Any:
        return self._descriptor.aggregation.merge(present, other)
