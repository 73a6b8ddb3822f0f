"""
The tables of one step: declared once, and then cut, kept and restored without another line.

Besides tables there are *cells*: small single values, such as a watermark or counters, which the step holds
itself and gives when it is asked. They are kept whole each time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from asyncstream.errors import CheckpointError, InternalError
from asyncstream.state.capture import detached
from asyncstream.state.generations import Delta, OldRows
from asyncstream.state.rows import MISSING, plain_namespace, run_through, same
from asyncstream.state.snapshots import Rule, Snapshot
from asyncstream.state.table import Table
from asyncstream.state.weights import Scale

__all__ = ("Cell", "Cut", "Kept", "Tables", "of_key")

AnyTable = TypeVar("AnyTable", bound=Table)


@dataclass(frozen=True, slots=True)
class Cell:
    """
    A small value that is kept whole.

    Attributes:
        take: gives it as it is now, as plain data that may be shared with the step.
        give: takes up what `take` gave in an earlier run.
        rule: how those of several parts become one.
    """

    take: Callable[[], Any]
    give: Callable[[Any], None]
    rule: Rule = "same"

    @classmethod
    def of(cls, owner: object, attribute: str, rule: Rule) -> Cell:
        """One that is an attribute of an object."""
        return cls(partial(getattr, owner, attribute), partial(setattr, owner, attribute), rule)


@dataclass(frozen=True, slots=True)
class Kept:
    """
    What a step remembered in an earlier run, as it was kept.

    Attributes:
        tables: by name; they hold keys and values as those were saved.
        about: the cells, and what else a snapshot says besides its tables.
    """

    tables: Mapping[str, Table]
    about: Mapping[str, Any]

    def snapshot(self) -> Snapshot:
        """The same as plain data; shares it."""
        tables = {name: _saved_rows(table, same) for name, table in self.tables.items()}
        return {"tables": tables, **self.about}


@dataclass(frozen=True, slots=True)
class Cut:
    """
    What a step remembers that has changed since the last cut, and its cells.

    Attributes:
        deltas: of each table that has changed, how.
        about: the cells as they are now, not yet copied, and what else a snapshot says besides its tables.
    """

    deltas: Mapping[Table, Delta]
    about: dict[str, Any]


class Tables:
    """
    All that one step remembers.

    Iterating gives the tables, in the order in which they were declared.
    """

    def __init__(self) -> None:
        self._tables: dict[str, Table] = {}
        self._derived: list[Table] = []
        self._cells: dict[str, Cell] = {}
        self._unclaimed: dict[str, Table] = {}
        self._listeners: list[Callable[[], None]] = []
        self._finishing: list[Callable[[], None]] = []
        self._cleaning: list[Callable[[], None]] = []
        self._restored: list[Callable[[], Iterator[None] | None]] = []
        self._new_old: Callable[[], OldRows] | None = None

    def declare(self, table: AnyTable) -> AnyTable:
        """
        Keep this table. If a snapshot was restored before that held one of its name, it holds that now.

        Raises:
            InternalError: if there is one of its name.
        """
        if table.name in self._tables:
            raise InternalError(f"table {table.name!r} was declared twice")
        self._tables[table.name] = table
        self._settle_in(table)
        kept = self._unclaimed.pop(table.name, None)
        if kept is not None:
            run_through(table.take_over(kept))
        return table

    def declare_derived(self, table: AnyTable) -> AnyTable:
        """
        Keep this table, of what follows from the others: it may be larger than memory as those are, and no
        cut and no snapshot has it, so the step makes it anew when it is restored.
        """
        self._derived.append(table)
        self._settle_in(table)
        return table

    def handed_on(self) -> Tables:
        """The tables alone, for another operator to go on with: they keep nothing of the one before."""
        alone = Tables()
        alone._tables = {table.name: table for table in self.every()}
        return alone

    def go_on(self, tables: Tables, cells: Mapping[str, Any]) -> None:
        """
        Remember what the tables of a step hold that is made alike, which were merged and hold nothing then,
        and these cells.
        """
        for table in tables.every():
            mine = self._tables.get(table.name)
            if mine is None:
                self._unclaimed[table.name] = table
            else:
                mine.go_on(table)
        self.give_cells(cells)
        run_through(self._tell_restored())

    def keep_old_in(self, new_old: Callable[[], OldRows]) -> None:
        """
        Have the oldest generation of every table that is not bound in a place that `new_old` makes, of those
        too that are declared later.
        """
        self._new_old = new_old
        for table in (*self._tables.values(), *self._derived):
            self._settle_in(table)

    def _settle_in(self, table: Table) -> None:
        if self._new_old is not None and not table.is_bound:
            table.keep_old_in(self._new_old())

    def leave(self) -> None:
        """What is kept elsewhere goes away."""
        for table in self._all():
            table.leave()

    def weight(self) -> int:
        """About how many rows and removals a cut would make older now."""
        return sum(table.weight() for table in self._all())

    def bytes_here(self, scale: Scale) -> int:
        """About how many bytes of memory all rows take that are in memory, and have just been merged."""
        return sum(table.bytes_here(scale) for table in self._all())

    def unclaimed(self, name: str) -> Table | None:
        """What a snapshot that was restored held under this name, if no table of it has been declared yet."""
        return self._unclaimed.get(name)

    def unclaimed_names(self) -> list[str]:
        """The names of all such tables that have rows."""
        return [name for name, table in self._unclaimed.items() if len(table)]

    def declare_cell(self, name: str, cell: Cell) -> None:
        """Keep this cell."""
        if name in self._cells:
            raise InternalError(f"cell {name!r} was declared twice")
        self._cells[name] = cell

    def before_cut(self, listener: Callable[[], None]) -> None:
        """
        Have this called before each cut: what is in the middle of changing rows comes to its end. Who asked
        last is called first: a driver, which has a step do what is left, before the step itself.
        """
        self._finishing.append(listener)

    def on_cut(self, listener: Callable[[], None]) -> None:
        """Have this called after each cut: references to young rows are of no use any more."""
        self._listeners.append(listener)

    def before_snapshot(self, listener: Callable[[], None]) -> None:
        """Have this called before each snapshot: it lets go of what is of no use any more."""
        self._cleaning.append(listener)

    def on_restored(self, listener: Callable[[], Iterator[None] | None]) -> None:
        """
        Have this called when the tables hold what they held in an earlier run, or in another place: what
        follows from them is made anew.

        Args:
            listener: does it, or where that takes long, gives what does it in slices: others may run between
                two of them, but no element comes.
        """
        self._restored.append(listener)

    def __iter__(self) -> Iterator[Table]:
        return iter(self._tables.values())

    def __bool__(self) -> bool:
        return bool(self._tables or self._cells)

    def __getitem__(self, name: str) -> Table:
        return self._tables[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tables

    # ------------------------------------------------------------------ checkpoints

    def cut(self) -> Cut:
        """What has changed since the last cut; `merging` is to be run through before the next."""
        for listener in reversed(self._finishing):
            listener()
        deltas = {table: delta for table in self.every() if (delta := table.cut())}
        for table in self._derived:
            table.cut()
        for listener in self._listeners:
            listener()
        return Cut(deltas, self._about())

    def merging(self) -> Iterator[None]:
        """Makes what was cut old, in slices; other things may happen between two of them."""
        for table in self._all():
            yield from table.merging()

    def merge(self) -> None:
        """Run through all of `merging`."""
        run_through(self.merging())

    def every(self) -> list[Table]:
        """All tables, those too that were restored and are not declared yet."""
        return [*self._tables.values(), *self._unclaimed.values()]

    def _all(self) -> list[Table]:
        """The same, and those that follow from others."""
        return [*self.every(), *self._derived]

    def _about(self) -> dict[str, Any]:
        """A snapshot but for its tables; may share parts with the step."""
        return {
            "cells": {name: cell.take() for name, cell in self._cells.items()},
            "compound": [table.name for table in self.every() if table.compound],
            "rules": {name: cell.rule for name, cell in self._cells.items()},
        }

    def give_cells(self, cells: Mapping[str, Any]) -> None:
        """
        Take up cells from an earlier run; what is not there stays as it is.

        Raises:
            CheckpointError: if there is one that this step does not have.
        """
        unknown = [name for name in cells if name not in self._cells]
        if unknown:
            raise CheckpointError(f"it holds {', '.join(map(repr, unknown))}, which the step does not know")
        for name, value in cells.items():
            self._cells[name].give(value)

    # ------------------------------------------------------------------ whole

    def snapshot(self) -> Snapshot:
        """All that is remembered, as plain data that shares nothing mutable with it."""
        for listener in self._cleaning:
            listener()
        tables = {table.name: _saved_rows(table, detached) for table in self.every()}
        return {"tables": tables, **detached(self._about())}

    def restore(self, snapshot: Snapshot) -> None:
        """
        Remember what a snapshot holds, in place of what is here. All of it is young: no checkpoint has it
        yet.

        Tables that are not declared yet are kept until they are: user code may ask for its state later.
        """
        about = dict(snapshot)
        tables: dict[str, Table] = {}
        for name, kept in about.pop("tables").items():
            tables[name] = table = Table(name, compound=name in about["compound"])
            for namespace, rows in kept:
                table.rows(plain_namespace(namespace)).update((key, detached(value)) for key, value in rows)
        run_through(self.take_over(Kept(tables, detached(about))))

    def take_over(self, kept: Kept) -> Iterator[None]:
        """As `restore`, in slices, of what a checkpoint has: that is no part of the next cut."""
        self._unclaimed.clear()
        for name, table in self._tables.items():
            table.clear()
            if name in kept.tables:
                yield from table.take_over(kept.tables[name])
        for name, table in kept.tables.items():
            if name not in self._tables:
                self._unclaimed[name] = table
        self.give_cells(kept.about["cells"])
        for listener in self._listeners:
            listener()
        yield from self._tell_restored()

    def _tell_restored(self) -> Iterator[None]:
        for listener in self._restored:
            yield from listener() or ()


def _saved_rows(table: Table, copied: Callable[[Any], Any]) -> list[Any]:
    """The rows of a table as a snapshot holds them."""
    save, save_key = table.save, table.save_key
    return [
        [
            plain_namespace(namespace),
            [[save_key(key), copied(save(value))] for key, value in table.whole(namespace).items()],
        ]
        for namespace in table.namespaces()
    ]


# ------------------------------------------------------------------ to be looked at


def of_key(tables: Iterable[Table], key: Hashable) -> dict[str, Any]:
    """
    By table, what it holds of one key of the stream; without tables that hold nothing of it.

    That is the value of a row that has no namespace; else a list of (namespace, value); and for a table with
    compound keys, such as one of timers, a list of (namespace, rest of the key), for which all its rows are
    looked at. Values are copies, as they are saved. Entries that have outlived their time to live are shown
    until they are cleaned up.
    """
    found: dict[str, Any] = {}
    for table in tables:
        if table.compound:
            rows = [
                (namespace, saved[1] if len(saved) == 2 else saved[1:])
                for namespace, place, _ in table.items()
                if (saved := table.save_key(place))[0] == key
            ]
            if rows:
                found[table.name] = rows
            continue
        values = [
            (namespace, detached(table.save(value)))
            for namespace in table.namespaces()
            if (value := table.peek(namespace, key)) is not MISSING
        ]
        if values:
            found[table.name] = values[0][1] if values[0][0] is None else values
    return found
