"""
About how many bytes of memory rows take, by a sample of them: to look at each takes as long as to read it.

Looked at are the first and the last of what a collection has; one that is far larger than the others is
overseen. What several of a sample refer to counts once; classes, functions and modules count nothing.

Whether some values are heavy can be told for certain: each is looked into, until they are.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from itertools import chain, islice
from sys import getsizeof
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

__all__ = ("LEAST", "ROWS", "SPACES", "Scale", "are_heavy", "ends")

ROWS: Final = 64
"""Rows that are looked at."""

SPACES: Final = 64
"""Namespaces whose rows they are, at most."""

LEAST: Final = 2
"""Rows of each of those, where there are many."""

PARTS: Final = 8
"""Of a collection in a row, so many parts are looked at."""

DEPTH: Final = 6
"""How deep a row is looked into."""

_PLAIN: Final = frozenset({int, float, str, bytes, bytearray, complex})

_ANYWAY: Final = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)

_SMALL: Final = range(-5, 257)
"""Integers that Python has of its own."""


class Scale:
    """Weighs, in bytes; what it has weighed before weighs nothing."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def each(self, pairs: Mapping[Any, Any], most: int = ROWS, depth: int = DEPTH) -> int:
        """
        What keys and values weigh, without the dict.

        Args:
            most: at most so many are looked at.
        """
        some = list(ends(pairs.items(), most))
        return self._all(chain.from_iterable(some), depth) * len(pairs) // max(len(some), 1)

    def of(self, value: Any, depth: int = DEPTH) -> int:
        """What a value weighs, and what belongs to it."""
        kind = type(value)
        if value is None or kind is bool or (kind is int and value in _SMALL) or id(value) in self._seen:
            return 0
        self._seen.add(id(value))
        if kind in _PLAIN:
            return getsizeof(value)
        if isinstance(value, _ANYWAY):
            return 0
        whole = getsizeof(value)
        if depth == 0:
            return whole
        if isinstance(value, dict):
            return whole + self.each(value, PARTS, depth - 1)
        if isinstance(value, list | tuple | set | frozenset | deque):
            some = list(ends(value, PARTS))
            return whole + self._all(some, depth - 1) * len(value) // max(len(some), 1)
        parts = gc.get_referents(value)  # what it names takes a place for each, which is not counted yet
        return whole + 8 * len(parts) + self._all(parts, depth - 1)

    def _all(self, values: Iterable[Any], depth: int) -> int:
        return sum(self.of(value, depth) for value in values)


def are_heavy(values: Iterable[Any], most: int) -> bool:
    """
    Whether values take more than `most` bytes of memory, with what belongs to them: in each place that holds
    it, as it is written.
    """
    level, size = list(values), 0  # all that is as deep inside them as the rest
    while level:
        size += sum(map(getsizeof, level))
        if size > most:
            return True
        # what stands in for another object says by `__class__` what that is, and may raise instead
        level = [part for part in gc.get_referents(*level) if not issubclass(type(part), _ANYWAY)]
    return False


def ends(values: Collection[Any], most: int) -> Iterable[Any]:
    """The first and the last of them; all, if they are no more than `most`."""
    if len(values) <= most:
        return values
    if isinstance(values, set | frozenset):
        return islice(values, most)
    return chain(islice(values, most // 2), islice(reversed(values), most // 2))  # type: ignore[call-overload]
