"""
The state of a key group in Spark's state store: a log of what changed in the tables of its operators.

Spark's state is read and written by the group, so a micro-batch that touches a few keys must not cost all of
them. What it writes is one entry, the deltas of the tables that it touched, behind those of the micro-batches
before. When the changes have outgrown what they are changes of, one entry with everything takes the place of
all. The last entries lie in the head of the group, which is written in any case; when they have become
sixteen kilobytes they go into a numbered chunk together. The log of a small group is all in its head, to
twice as many bytes.

A worker keeps what it has read or written, the tables themselves (`group_memory`), or they are in a file
(`group_files`). They are good for the micro-batch that finds in the state the token that the one before has
put there. Tokens are drawn at random, each is used once, and what is kept is taken out before it is used:
whatever Spark runs twice or gives up finds another token, or nothing, and reads the log.

Spark hands the groups of a partition now to this worker, now to that, in turn where it can. So a position
knows the tokens of some positions before it: a worker whose tables are at one of those applies the entries
that other workers have put behind them since, and does not read the log anew.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from asyncstream.errors import CheckpointError, CodecError, describe_error
from asyncstream.operators.base import Operator
from asyncstream.runtime.spark.wire.values import Classes, dumps_state, loads_each
from asyncstream.state import Cut, Delta, Follows, Kept, Table, Tables
from asyncstream.state.rows import Rows

__all__ = (
    "SMALL",
    "WAY_OUT",
    "Log",
    "Position",
    "catch_up",
    "entries_of",
    "entry_of",
    "everything",
    "kept_tables",
    "reading",
)

LEAST_BYTES: Final = 8 * 1024
"""Changes that are never too many."""

MANY: Final = 100
"""Entries that are."""

SMALL: Final = 256 * 1024
"""Bytes of a log that is read about as soon as a file is opened that has the same rows."""

LARGE: Final = 1 << 20
"""Bytes of an entry that is not replaced as lightly as others."""

ENTRY_BYTES: Final = 10_000
"""Bytes of a large group that take about as long to read as an entry does besides its bytes."""

CHUNK_BYTES: Final = 4 << 20
"""Bytes of a value in Spark's state: there are copies of it."""

RECENT: Final = 16
"""Positions before the last one from which tables can go on: as many turns as a worker may miss."""

MARK: Final = 8
"""Bytes of a token by which it is told from the others of its log."""

TAIL_BYTES: Final = 16 * 1024
"""Bytes of the last entries, which are in the head, at most: they are written with each position. To a
micro-batch they cost less than a chunk (`chunks`)."""

WHOLE_BYTES: Final = 2 * TAIL_BYTES
"""The same of a log that has no chunk yet: the first one costs most."""

WAY_OUT: Final = (
    "undo the change, or save what there is with the program that made it, plan.save_checkpoint(...), and go "
    "on from there with a new checkpointLocation and start_from=Checkpoints(...), which takes "
    "renamed={old: new}, migrate={step: function} and allow_dropped=[...]"
)

NOTHING: Final = dumps_state({})
"""An entry of no changes."""

Entry = Mapping[str, Mapping[str, tuple[Any, Any, Any]]]
"""By step and table: namespaces dropped, keys gone by namespace, rows by namespace; all as they are saved."""


class Position(NamedTuple):
    """
    Where a log has come to.

    Attributes:
        token: drawn for this position alone.
        base: bytes of its first entry.
        changes: bytes of the others.
        entries: how many there are.
        log: drawn for this log, which all of its positions share.
        first: the number of its first chunk.
        end: the number behind its last chunk.
        recent: marks of the positions before this one, the last one last: one entry behind each.
        tail: the last entries, those that are in no chunk.
    """

    token: bytes = b""
    base: int = 0
    changes: int = 0
    entries: int = 0
    log: bytes = b""
    first: int = 0
    end: int = 0
    recent: bytes = b""
    tail: tuple[bytes, ...] = ()

    def after(self, size: int) -> Position:
        """The position behind one more entry."""
        if not self.entries:
            return self.begun(size)
        return self._replace(
            token=_token(),
            changes=self.changes + size,
            entries=self.entries + 1,
            log=self.log or _token(),
            recent=(self.recent + self.token[:MARK])[-RECENT * MARK :],
        )

    def begun(self, size: int) -> Position:
        """The position behind an entry that takes the place of all."""
        return Position(_token(), size, 0, 1, self.log or _token(), self.end, self.end)

    def ahead_of(self, token: bytes) -> int | None:
        """How many entries have been put behind the position of this token; None: it is not known here."""
        if not token:
            return None
        if token == self.token:
            return 0
        marks = [self.recent[at : at + MARK] for at in range(0, len(self.recent), MARK)]
        return len(marks) - marks.index(token[:MARK]) if token[:MARK] in marks else None

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return self.base + self.changes

    @property
    def chunks(self) -> range:
        """The numbers of its chunks."""
        return range(self.first, self.end)

    @property
    def is_small(self) -> bool:
        """Whether it is not worth the trouble to read and write rows one by one."""
        return self.size < SMALL

    @property
    def is_long(self) -> bool:
        """
        Whether one entry should take the place of all.

        Groups are not to come to that in the same micro-batch, though all have been touched alike: how much
        each may have is drawn with its log.
        """
        drawn = self.log[0] / 256
        if self.base < LARGE:
            most = (1 + drawn) * max(self.base, LEAST_BYTES)
            return self.changes > most or self.entries > (1 + drawn) * MANY
        return self.changes > (1.5 + drawn) * self.base or self.entries > MANY + self.base // ENTRY_BYTES


def _token() -> bytes:
    return os.urandom(16)


class Log:
    """
    The entries of a key group, of these steps; `chunks` is Spark's map state of those that are not in the
    head, and `classes` are those in which they are read.
    """

    def __init__(self, chunks: Any, classes: Classes, steps: Collection[str]) -> None:
        self._chunks = chunks
        self._steps = steps
        self.classes = classes

    def read(self, position: Position, last: int | None = None) -> Iterator[Entry]:
        """Entries of the log, which is at this position: all, or the `last` ones that were put."""
        if last is not None:
            return iter(self._last(position, last))
        chunks = (self._chunks.getValue((number,)) for number in position.chunks)
        return entries_of(chunks, position, self.classes, self._steps)

    def _last(self, position: Position, count: int) -> list[Entry]:
        """So many entries, those that were put last: only their chunks are read."""
        read = _unpacked(position.tail[-count:], self.classes, self._steps)
        parts: list[bytes] = []
        for number in reversed(position.chunks):
            if len(read) >= count:
                break
            data, is_first = self._chunks.getValue((number,))
            parts.insert(0, data)
            if is_first:
                read[:0] = _unpacked(parts, self.classes, self._steps)
                parts.clear()
        return read[-count:]

    def write(self, entry: bytes, operators: Mapping[str, Operator], position: Position) -> Position:
        """
        Put an entry behind the others, or all there is in the place of all; gives the new position.

        So there is one also where no row has changed: what follows from the rows may have, as which windows
        have fired, and is not to be found by a task that runs again.

        Args:
            entry: as `entry_of` gives it.
            operators: whose tables have been merged since.
        """
        if not entry and not position.entries:
            return position
        data = entry or NOTHING
        after = position.after(len(data))
        if after.is_long:
            if position.entries:
                data = dumps_state(everything(operators))
            for number in position.chunks:
                self._chunks.removeKey((number,))
            after = position.begun(len(data))
        tail = (*after.tail, data)
        if sum(map(len, tail)) <= (TAIL_BYTES if after.chunks else WHOLE_BYTES):
            return after._replace(tail=tail)
        return after._replace(tail=(), end=self._put(tail, after.end))

    def _put(self, entries: tuple[bytes, ...], number: int) -> int:
        """Put entries into chunks from this number on; gives the one behind the last."""
        data = b"".join(entries)
        for start in range(0, len(data), CHUNK_BYTES):
            self._chunks.updateValue((number,), (data[start : start + CHUNK_BYTES], start == 0))
            number += 1
        return number


def entries_of(
    chunks: Iterable[tuple[bytes, bool]], position: Position, classes: Classes, steps: Collection[str]
) -> Iterator[Entry]:
    """
    The entries of the log at this position.

    Args:
        chunks: all, in their order: bytes, and whether an entry begins with them.
        classes: as for `loads`.
        steps: whose entries these are.
    """
    parts: list[bytes] = []
    for data, is_first in chunks:
        if is_first and parts:
            yield from _unpacked(parts, classes, steps)
            parts.clear()
        parts.append(data)
    yield from _unpacked(parts, classes, steps)
    yield from _unpacked(position.tail, classes, steps)


def _unpacked(parts: Iterable[bytes], classes: Classes, steps: Collection[str]) -> list[Entry]:
    with reading(steps):
        return list(loads_each(b"".join(parts), classes))


@contextmanager
def reading(steps: Collection[str]) -> Iterator[None]:
    """State of these that the classes of this program cannot be filled with is refused with the ways out."""
    problem = f"what this stream's checkpoint holds of {' or '.join(map(repr, steps))} cannot be read"
    try:
        yield
    except CodecError as error:
        raise CheckpointError(f"{problem}: {error}; {WAY_OUT}") from None
    except Exception as error:  # of the program's own code, perhaps
        raise CheckpointError(f"{problem}: {describe_error(error)}; {WAY_OUT}") from error


def entry_of(cuts: Mapping[str, Cut]) -> bytes:
    """The entry of what has changed, pickled; empty if nothing has."""
    entry = {
        step: {table.name: _saved(table, delta) for table, delta in cut.deltas.items()}
        for step, cut in cuts.items()
        if cut.deltas
    }
    return dumps_state(entry) if entry else b""


def everything(operators: Mapping[str, Operator]) -> Entry:
    """All rows of all tables, which have just been merged."""
    return {
        step: {table.name: _saved(table, Delta(_whole(table))) for table in operator.tables.every()}
        for step, operator in operators.items()
        if operator.tables
    }


def _whole(table: Table) -> dict[Any, Rows]:
    if not table.is_remote:
        return {space: table.whole(space) for space in table.namespaces()}
    rows: dict[Any, Rows] = {}
    for space, key, value in table.items():  # one walk: each timer may have a namespace of its own
        rows.setdefault(space, {})[key] = value
    return rows


def _saved(table: Table, delta: Delta) -> tuple[Any, Any, Any]:
    dropped, gone, rows = table.saved(delta)
    return dropped, gone, {namespace: dict(some) for namespace, some in rows}


def kept_tables(entries: Iterable[Entry], abouts: Mapping[str, Mapping[str, Any]]) -> dict[str, Kept]:
    """By step, what is kept; `abouts` is what a snapshot says of each besides its tables."""
    tables: dict[str, dict[str, Table]] = {step: {} for step in abouts}
    for entry in entries:
        for step, changed in entry.items():
            of_step = tables[step]
            for name, (dropped, gone, rows) in changed.items():
                if name not in of_step:
                    of_step[name] = Table(name, compound=name in abouts[step]["compound"])
                of_step[name].apply(Delta(rows, gone, dropped))
    return {step: Kept(of_step, abouts[step]) for step, of_step in tables.items()}


def catch_up(tables: Mapping[str, Tables], entries: Iterable[Entry]) -> bool:
    """
    Have in tables that a worker has kept what further entries say; whether they were all there for it.

    Rows have come and gone that the step has not seen: what it derives from those of one table may follow
    them, and what it derives from several is to be made anew.
    """
    changed = set()
    for entry in entries:
        for step, changes in entry.items():
            mine = {table.name: table for table in tables[step].every()} if step in tables else {}
            for name, (dropped, gone, rows) in changes.items():
                if name not in mine:
                    return False
                mine[name].follow(Delta(rows, gone, dropped))
            changed.add(step)
    for step in changed:
        for table in tables[step].every():
            if not isinstance(table.derived, Follows):
                table.derived = None
    return True
