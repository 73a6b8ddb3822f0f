"""
Keyed state: a table for each name, an entry for each key and namespace.

The namespace tells apart entries of one key, such as those of its windows; None is the key's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from asyncstream.clock import Clock, SystemClock
from asyncstream.errors import CheckpointError, PipelineError, safe_repr
from asyncstream.state.descriptors import StateDescriptor
from asyncstream.state.handles import State
from asyncstream.state.rows import same
from asyncstream.state.table import Table
from asyncstream.state.tables import Cell, Tables
from asyncstream.state.ttl import Ages
from asyncstream.state.upgrade import EXPIRES, WRITTEN
from asyncstream.validation import refuse

__all__ = ("KeyedState", "state_in", "tell_unasked", "unasked")

log = logging.getLogger("asyncstream.state")

S = TypeVar("S", bound=State)

_OF_FUNCTIONS: Final = "state"
"""The prefix of the tables of process functions."""


class KeyedState:
    """
    All keyed state of one operator.

    Attributes:
        key, namespace: the handles work on the entries of this key, and in this namespace.

    The state `name` is the table `prefix/name`, and its kind is kept in the cell `prefix`, so that state of
    one kind is never read as another; when entries with a time to live were written is in the table
    `prefix/name written`.

    Args:
        clock: processing time, for entries with a time to live.
        tables: of the operator; None: the state is kept here.
        prefix: of the names of the tables.
        namespace_of: makes a namespace of what the codec gives back.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        tables: Tables | None = None,
        prefix: str = _OF_FUNCTIONS,
        namespace_of: Callable[[Any], Any] = same,
    ) -> None:
        self.key: Any = None
        self.namespace: Any = None
        self._clock: Clock = SystemClock() if clock is None else clock
        self._tables = Tables() if tables is None else tables
        self._prefix = prefix
        self._namespace_of = namespace_of
        self._table = partial(Table, namespace_of=namespace_of)
        self._handles: dict[str, Any] = {}
        self._descriptors: dict[str, StateDescriptor[Any]] = {}
        self._ages: list[Ages[Any]] = []
        self._lives: dict[str, int | None] = {}  # in milliseconds, by name
        self._kinds: dict[str, str] = {}
        self._tables.declare_cell(prefix, Cell(self._kinds.copy, self._restore_kinds, rule="merge"))
        self._tables.on_restored(self._rebuilding)
        self._tables.before_snapshot(self.purge)

    def state(self, descriptor: StateDescriptor[S]) -> S:
        """
        The handle for `descriptor`; the same one each time, so call it once and keep it.

        Raises:
            PipelineError: if it is no descriptor, or the name is taken, by state of another kind, time to
                live or default, or by the times of another state.
            CheckpointError: if the name is taken so in a snapshot.
        """
        if not isinstance(descriptor, StateDescriptor):
            raise refuse("state", "a descriptor, such as ValueDescriptor[int]('count')", descriptor)
        name = descriptor.name
        handle_type: type[Any] = descriptor.handle
        handle: S | None = self._handles.get(name)
        if handle is None:
            _check_kind(name, self._kinds.get(name, descriptor.kind), descriptor.kind)
            self._kinds[name] = descriptor.kind
            ages, ttl = None, descriptor.time_to_live
            self._lives[name] = None if ttl is None else ttl.duration_ms
            self._check_names()
            table = f"{self._prefix}/{name}"
            save, load = descriptor.saving
            rows = self._tables.declare(self._table(table, save=save, load=load))
            written = None if ttl is None else self._tables.declare(self._table(table + WRITTEN))
            self._read_times(name)
            if written is not None:
                ages = handle_type.ages_of(ttl, self._clock.now_ms, rows, written)
                self._ages.append(ages)
            handle = self._handles[name] = handle_type(self, rows, ages, descriptor)
            self._descriptors[name] = descriptor
        elif (first := self._descriptors[name]) is not descriptor:
            _check_meaning(first, descriptor)
        return handle

    def keys_of(self, descriptor: StateDescriptor[Any]) -> list[Any]:
        """The keys that have something of their own in the state of this descriptor, which is in use."""
        keys = [key for key, _ in self._tables[f"{self._prefix}/{descriptor.name}"].each()]
        if self._lives[descriptor.name] is None:  # then what is there is live
            return keys
        is_live = self._handles[descriptor.name].has_entry
        found, before = [], self.key
        try:
            for key in keys:
                self.key = key
                if is_live():
                    found.append(key)
        finally:
            self.key = before
        return found

    def __len__(self) -> int:
        """How many entries there are, all names, keys and namespaces together."""
        return sum(len(self._tables[f"{self._prefix}/{name}"]) for name in list(self._handles))

    def purge(self) -> None:
        """Remove all that has expired."""
        for ages in self._ages:
            ages.purge()

    def _rebuilding(self) -> Iterator[None]:
        for name in self._lives:
            self._read_times(name)
        for ages in self._ages:
            yield from ages.rebuilding()

    def _read_times(self, name: str) -> None:
        """
        Make what an earlier run may have kept of the times of a state what is kept of them now: nothing where
        it has no time to live any more, or with another change of mind they would be taken for times of what
        was written since.
        """
        ttl_ms, written = self._lives[name], f"{self._prefix}/{name}{WRITTEN}"
        for times in (f"{name}{WRITTEN}", f"{name}{EXPIRES}"):
            kept = self._tables.unclaimed(f"{self._prefix}/{times}")
            if kept is None or times in self._kinds:  # that is a state of the user's, which is called so
                continue
            for namespace in list(kept.namespaces()):
                if ttl_ms is not None:  # of expiry, then: the table of those of writing is declared
                    for key, expires_ms in kept.whole(namespace).items():
                        self._tables[written].put(self._namespace_of(namespace), key, expires_ms - ttl_ms)
                kept.drop(namespace)

    def _restore_kinds(self, kinds: Mapping[str, str]) -> None:
        for name, kind in kinds.items():
            _check_kind(name, kind, self._kinds.setdefault(name, kind))
        self._check_names()

    def _check_names(self) -> None:
        for name, ttl_ms in self._lives.items():
            for times in (f"{name}{WRITTEN}", f"{name}{EXPIRES}"):
                if ttl_ms is not None and times in self._kinds:
                    is_planned = times in self._lives  # else it is in a snapshot
                    raise (PipelineError if is_planned else CheckpointError)(
                        f"state {times!r} is called as the times of state {name!r}, which has a time to "
                        "live; use another name for one of them"
                    )


def unasked(tables: Tables) -> tuple[str, ...]:
    """State of a process function that was restored, and that the function has not asked for in `open`."""
    return tuple(state for name in tables.unclaimed_names() if (state := state_in(name)))


def tell_unasked(step: str, states: tuple[str, ...]) -> None:
    """
    Say of a step what `unasked` has found. State is found by its own name: under another one a function
    begins with nothing, and works, so nobody would know.
    """
    log.warning(
        "step %r goes on with state that its function has not asked for in open: %s; if that has another "
        "name now, what it holds is found only if migrate= gives it that name",
        step,
        ", ".join(map(repr, states)),
        extra={"step": step},
    )


def state_in(table: str) -> str | None:
    """The state of a process function that a table of this name holds; None: it holds something else."""
    prefix, _, name = table.partition("/")
    return name if prefix == _OF_FUNCTIONS and not name.endswith((WRITTEN, EXPIRES)) else None


def _check_meaning(first: StateDescriptor[Any], again: StateDescriptor[Any]) -> None:
    """Refuse state with a time to live, say, that the handle which is there does not have."""
    if first != again and first.meaning != again.meaning:
        raise PipelineError(
            f"state {first.name!r} is asked for as {safe_repr(first)} and as {safe_repr(again)}; have one "
            "descriptor, or use another name for one of them"
        )


def _check_kind(name: str, found: str, wanted: str) -> None:
    """Compare what descriptors call the kind of a state, or earlier versions did: the word alone."""
    (kind, _, maker), (wanted_kind, _, wanted_maker) = found.partition(" "), wanted.partition(" ")
    if kind != wanted_kind:
        raise CheckpointError(
            f"state {name!r} is {kind} state and cannot be read as {wanted_kind} state; use another name"
        )
    if maker and wanted_maker and maker != wanted_maker:
        log.warning(
            "state %r was made by %s, and is now read by %s, to which it may mean something else; a state of "
            "another name starts from nothing",
            name,
            maker,
            wanted_maker,
        )
