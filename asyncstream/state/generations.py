"""
The three generations of a table's rows, and how rows grow older.

Theory
------
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

After the copy-on-write tables and incremental checkpoints of stream processors; the three generations are
those of a log-structured merge tree that is held in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, Final, TypeAlias

from asyncstream.errors import InternalError
from asyncstream.state.disk import DiskRows
from asyncstream.state.rows import (
    MISSING,
    NO_ROWS,
    SAMPLE,
    SLICE,
    Entry,
    MemoryRows,
    Rows,
    about,
    run_through,
)
from asyncstream.state.weights import LEAST, Scale, are_heavy, ends

__all__ = ("Delta", "Generations", "OldRows")

_REACH: Final = 50_000
"""Entries of a dict that are passed over to find some of them: about a millisecond."""

_TRIES: Final = 100
"""How often a count is begun anew in which dicts have changed."""

OldRows: TypeAlias = MemoryRows | DiskRows
"""The oldest generation of a table."""


@dataclass(frozen=True, slots=True)
class Delta:
    """
    What has changed in a table between two cuts; nothing in it changes any more.

    Attributes:
        rows: what was put, values by key, by namespace; a row that is gone too was put again after that.
        gone: keys by namespace that were removed.
        dropped: namespaces of which nothing is left but what is in `rows`.
    """

    rows: Mapping[Any, Rows]
    gone: Mapping[Any, set[Any]] = field(default_factory=dict)
    dropped: set[Any] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.dropped or self.gone or self.rows)

    def __len__(self) -> int:
        """About how many rows, keys and namespaces it names."""
        return max(about(self.rows), len(self.rows)) + about(self.gone) + len(self.dropped)

    def is_heavy(self, most: int) -> bool:
        """Whether the values that were put take more than so many bytes of memory."""
        return are_heavy(chain.from_iterable(rows.values() for rows in self.rows.values()), most)


class Generations:
    """
    The rows of one table by age; see the module.

    Args:
        old: its oldest generation; None: in memory.

    Attributes:
        young: rows that were touched since the last cut, by namespace. A hot loop reads and writes the rows
            of a namespace here, and asks `Table.take` for a key that it does not find. A cut replaces it, so
            it is fetched anew for each batch, and what is remembered of it for longer is forgotten in
            `Tables.on_cut`.
        has_older: there may be rows that are not young.
        is_remote: the oldest generation is elsewhere, and may be larger than memory.
        merges: how many cuts were merged.
    """

    name: str
    young: dict[Any, Rows]
    _gone: dict[Any, set[Any]]
    _dropped: set[Any]
    _frozen: Mapping[Any, Rows] | None

    def __init__(self, old: OldRows | None) -> None:
        self.merges = 0
        self._left: int | None = None
        self.clear_young()
        self.keep_old_in(MemoryRows() if old is None else old)

    def keep_old_in(self, old: OldRows) -> None:
        """Have the oldest generation there; as long as there is none."""
        self._old: OldRows = old
        self._remote = old if isinstance(old, DiskRows) else None
        self.is_remote = self._remote is not None

    def bring_old_to(self, old: DiskRows) -> None:
        """Have the oldest generation, which is all that there is, there and no longer in memory."""
        old.load((namespace, self._old.of(namespace).items()) for namespace in self._old.namespaces())
        self.keep_old_in(old)

    # ------------------------------------------------------------------ older with each checkpoint

    def cut(self) -> Delta:
        """
        What has changed since the last cut. It stays as it is until `merging` begins.

        Raises:
            InternalError: if that has not been run through for the last cut.
        """
        if self._frozen is not None:
            raise InternalError(f"table {self.name!r} was cut again before the last cut was merged")
        if self._remote is not None:
            self._remote.check()
        young = self._take_young()
        delta = Delta(young, self._gone, self._dropped)
        if young:
            self._frozen, self.has_older = young, True
        self._gone, self._dropped = {}, set()
        return delta

    def _take_young(self) -> Mapping[Any, Rows]:
        """All young rows; there are none then."""
        young, self.young = self.young, {}
        return young

    def merging(self) -> Iterator[None]:
        """Makes what was cut old, in slices; other things may happen between two of them."""
        frozen = self._frozen
        if frozen is None:
            return
        if isinstance(self._old, DiskRows):
            yield from self._old.merging(self._handed_over(frozen))
        else:
            yield from self._merging_here(self._old, frozen)
        self._frozen = None
        self.merges += 1

    def _merging_here(self, old: MemoryRows, frozen: Mapping[Any, Rows]) -> Iterator[None]:
        done = 0
        for namespace in list(frozen):
            is_new = namespace not in old
            for some in (frozen[namespace],) if is_new else _slices(frozen[namespace]):
                if namespace in self._dropped:
                    break
                gone = self._gone.get(namespace)
                left = {key: some[key] for key in some if key not in gone} if gone else some
                if not is_new:
                    old.update(namespace, left.items())
                elif left:
                    old.adopt(namespace, left)
                done += 1 if is_new else len(some)
                if done >= SLICE:
                    done = 0
                    yield

    def _handed_over(self, frozen: Mapping[Any, Rows]) -> Iterator[Entry]:
        """What was cut and is not removed, row by row; each leaves `frozen` with this."""
        for namespace, rows in frozen.items():
            for key in list(rows):
                value = rows.pop(key)
                if namespace not in self._dropped and key not in self._gone.get(namespace, ()):
                    yield namespace, key, value

    def merge(self) -> None:
        """Run through all of `merging`."""
        run_through(self.merging())

    # ------------------------------------------------------------------ what is not young at first

    def put_old(self, groups: Iterable[tuple[Hashable, Iterable[tuple[Any, Any]]]]) -> None:
        """
        Have rows, given by namespace, that were kept elsewhere and are there still: they are no part of the
        next delta.
        """
        self._old.load(groups)
        self.has_older = True

    def give_away(self) -> None:
        """Have nothing: others have it."""
        self.keep_old_in(MemoryRows())
        self.clear_young()

    def clear_young(self) -> None:
        """Have nothing that is not old, and look for no more."""
        self.young = {}
        self._gone, self._dropped = {}, set()
        self._frozen = None
        self.has_older = False

    # ------------------------------------------------------------------ how much there is, and where

    def __len__(self) -> int:
        """
        How many rows there are; where many are not old, about how many: of each it would have to be looked up
        whether an older generation has it. May be asked in any thread.
        """
        for _ in range(_TRIES):
            with suppress(RuntimeError):  # the event loop has put rows, or removed some, meanwhile
                return self._counted()
        return self._counted()

    def _counted(self) -> int:
        if self._left is not None:
            return self._left
        if not self.has_older:
            return self._count_young()
        return len(self._old) + sum(self._count_new(*younger) for younger in self._younger())

    def _count_young(self) -> int:
        return sum(map(len, self.young.values()))

    def _younger(self) -> Iterator[tuple[Mapping[Any, Rows], bool]]:
        """Rows that are not old, by namespace, of what is no dict one in each; whether they are frozen."""
        yield self.young, False
        if (frozen := self._frozen) is not None:
            yield frozen, True

    def _count_new(self, younger: Mapping[Any, Rows], frozen: bool) -> int:
        """About how many of these rows no older generation has, by a sample of them."""
        seen, count, spaces = 0, 0.0, _spread(younger, SAMPLE)
        for namespace in spaces:
            rows = younger.get(namespace, NO_ROWS)
            keys = _spread(rows, max(SAMPLE // len(spaces), LEAST))
            new = sum(
                (self._frozen_value(namespace, key) is not MISSING) is frozen
                and not self._old.has(namespace, key)
                for key in keys
            )
            seen += len(rows)
            count += len(rows) * new / max(len(keys), 1)
        rows_of_all = len(younger)
        if isinstance(younger, dict):  # one namespace may have more rows than all others
            some = [len(rows) for rows in ends(younger.values(), _REACH)]
            rows_of_all = len(younger) * sum(some) // max(len(some), 1)
        return round(count * rows_of_all / max(seen, 1))

    def weight(self) -> int:
        """About how many rows and removals a cut would make older now."""
        removed = about(self._gone) + len(self._gone) + len(self._dropped)
        waiting = 0 if self._remote is None else self._remote.waiting()
        return about(self.young) + removed + waiting // 2

    def bytes_here(self, scale: Scale) -> int:
        """About how many bytes the old rows take that are in memory; after a merge these are all rows."""
        return self._old.weight(scale) if isinstance(self._old, MemoryRows) else 0

    def here(self) -> list[Any]:
        """The namespaces of rows that are in memory for certain: those that are young or frozen."""
        frozen = () if self._frozen is None else self._frozen
        return list(dict.fromkeys([*frozen, *self.young]))

    def first_away(self) -> int | None:
        """The earliest namespace, of those that are ints, with rows that are not in memory; None: none."""
        return None if self._remote is None else self._remote.first()

    def leave(self) -> None:
        """What is elsewhere goes away: only how many rows there were is known then."""
        if self._remote is not None:
            try:
                self._left = len(self)
            except Exception:  # of a disk that cannot be read, which shall be given up all the same
                self._left = 0
            self.give_away()

    @property
    def has_left(self) -> bool:
        """Whether rows were elsewhere that have gone away."""
        return bool(self._left)

    # ------------------------------------------------------------------ looking into what is older

    def has_older_rows(self, namespace: Hashable) -> bool:
        """Whether the namespace has rows that are not young."""
        if not self.has_older:
            return False
        if self._frozen is not None and namespace in self._frozen and namespace not in self._dropped:
            gone = self._gone.get(namespace, ())
            if any(key not in gone for key in self._frozen[namespace]):
                return True
        return namespace in self._old

    def _frozen_value(self, namespace: Hashable, key: Hashable) -> Any:
        frozen = self._frozen
        if frozen is None or namespace in self._dropped:
            return MISSING
        rows = frozen.get(namespace)
        if rows is None:
            return MISSING
        gone = self._gone.get(namespace)
        return MISSING if gone is not None and key in gone else rows.get(key, MISSING)

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

    def _note_dropped(self, namespace: Hashable) -> None:
        self._gone.pop(namespace, None)
        self._dropped.add(namespace)


def _spread(values: Collection[Any], most: int) -> list[Any]:
    """At most so many of them, one every so often; of very many, of the first and the last."""
    return list(islice(ends(values, _REACH), 0, None, -(-min(len(values), _REACH) // most) or 1))


def _slices(rows: Rows) -> Iterator[Rows]:
    rest = iter(list(rows.items()))
    while some := dict(islice(rest, SLICE)):
        yield some
