"""
A table of keys without values, of which most stand alone in their namespace: timers that share their time
with no other.

Theory. Keys of such a table are pairs: a key of the stream, and what tells apart several that it has. A dict
for one pair takes four times the room of the pair, and Python's collector walks each of them, time and again,
while they wait. So a young row without a value (it is None) may be *lone*: its key stands by its namespace in
a dict of all such, *short* if it can be: for (key, None) only the key, unless that is a tuple. What always
holds: the namespace of a lone row has no other row, in no generation, and is not in `young`. Who owns the
table puts and pops lone rows where it must be quick; everything else that is asked of a table finds them
here, and *unfolds* those that it is to change: they become rows like others.

A cut freezes lone rows as they are; the oldest generation in memory keeps its own alike.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from itertools import chain
from typing import Any

from asyncstream.state.rows import MISSING, Rows
from asyncstream.state.table import Table

__all__ = ("KeyTable", "whole_key")


def whole_key(lone: Any) -> Any:
    """The key of a lone row, which may be short."""
    return lone if type(lone) is tuple else (lone, None)


class _WithLone(Mapping[Any, Rows]):
    """
    The rows that a cut has frozen, by namespace, with those of the keys that are alone, which may be short.
    """

    __slots__ = ("lone", "rows")

    def __init__(self, rows: dict[Any, Rows], lone: dict[Any, Any]) -> None:
        self.rows = rows
        self.lone = lone

    def __getitem__(self, namespace: Any) -> Rows:
        rows = self.rows.get(namespace)
        return {whole_key(self.lone[namespace]): None} if rows is None else rows

    def __contains__(self, namespace: object) -> bool:
        return namespace in self.rows or namespace in self.lone

    def __iter__(self) -> Iterator[Any]:
        return chain(self.rows, self.lone)

    def __reversed__(self) -> Iterator[Any]:
        return chain(reversed(self.lone), reversed(self.rows))

    def __len__(self) -> int:
        return len(self.rows) + len(self.lone)


class KeyTable(Table):
    """
    One table; see the module.

    Attributes:
        lone: the key of each lone row by namespace, perhaps short. A cut replaces it, as it does `young`.
    """

    lone: dict[Any, Any]

    def _unfold(self, namespace: Hashable) -> None:
        """Have the lone row of a namespace among the others, if there is one."""
        key = self.lone.pop(namespace, MISSING)
        if key is not MISSING:
            self.young[namespace] = {whole_key(key): None}

    def _is_lone(self, namespace: Hashable, key: Hashable) -> bool:
        lone = self.lone.get(namespace, MISSING)
        return lone is not MISSING and key in {whole_key(lone)}  # compared as a dict does, by hash first

    # ------------------------------------------------------------------ rows

    def rows(self, namespace: Hashable = None) -> Rows:
        self._unfold(namespace)
        return super().rows(namespace)

    def get(self, namespace: Hashable, key: Hashable) -> Any:
        self._unfold(namespace)
        return super().get(namespace, key)

    def peek(self, namespace: Hashable, key: Hashable) -> Any:
        return None if self._is_lone(namespace, key) else super().peek(namespace, key)

    def put(self, namespace: Hashable, key: Hashable, value: Any) -> None:
        self._unfold(namespace)
        super().put(namespace, key, value)

    def remove(self, namespace: Hashable, key: Hashable) -> bool:
        if self._is_lone(namespace, key):
            del self.lone[namespace]
            return True
        return super().remove(namespace, key)

    # ------------------------------------------------------------------ namespaces

    def whole(self, namespace: Hashable = None) -> Rows:
        key = self.lone.get(namespace, MISSING)
        return super().whole(namespace) if key is MISSING else {whole_key(key): None}

    def drop(self, namespace: Hashable) -> None:
        self.lone.pop(namespace, None)
        super().drop(namespace)

    def __contains__(self, namespace: Hashable) -> bool:
        return namespace in self.lone or super().__contains__(namespace)

    def namespaces(self) -> Iterator[Any]:
        yield from dict.fromkeys([*super().namespaces(), *self.lone])

    def _above(self, old: Rows, namespace: Hashable) -> Rows:
        self._unfold(namespace)
        return super()._above(old, namespace)

    # ------------------------------------------------------------------ all of them

    def _take_young(self) -> Mapping[Any, Rows]:
        young, self.young = self.young, {}
        lone, self.lone = self.lone, {}
        return _WithLone(young, lone) if lone else young

    def clear_young(self) -> None:
        self.lone = {}
        super().clear_young()

    def weight(self) -> int:
        return super().weight() + len(self.lone)

    def here(self) -> list[Any]:
        return list(dict.fromkeys([*super().here(), *self.lone]))

    def _count_young(self) -> int:
        return super()._count_young() + len(self.lone)

    def _younger(self) -> Iterator[tuple[Mapping[Any, Rows], bool]]:
        yield _WithLone({}, self.lone), False
        for younger, frozen in super()._younger():
            if isinstance(younger, _WithLone):
                yield _WithLone({}, younger.lone), frozen
                younger = younger.rows
            yield younger, frozen
