"""
Where elements come from, for steps that must tell each element from all others, in this run and the next.

A source numbers what it gives, and an element's *origin* is that number, with what tells the source, and the
run whose checkpoints are gone on from, from all others::

    (root, number)                  an element of a source
    (root, "a.csv", number)         the same of one of a source's splits
    (root, number, 2)               the third of what a flat map made of it
    (root, number, "orders")        the same that came into a union by its input "orders"

Origins travel beside the elements, in the list of timestamps, which is a `Placed` then. An operator that
passes timestamps on, or parts of them, passes the origins on; one that makes a list of its own loses them
unless it says what is whose. So what is not known to have an origin has none: never that of another element.
A source makes them only where a step behind it asks; other steps meet a list like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import compress
from typing import Any, SupportsIndex, TypeAlias, overload

from asyncstream.elements import Timestamps

__all__ = ("Origin", "Placed", "carried", "compressed", "digest", "entering", "placed", "spread")

Origin: TypeAlias = tuple[Any, ...]
"""Texts and numbers that tell an element from all others."""


class Placed(list[int | None]):
    """Timestamps of elements whose origins are known: one for each, or None."""

    __slots__ = ("origins",)

    def __init__(self, timestamps: Iterable[int | None], origins: Sequence[Origin | None]) -> None:
        super().__init__(timestamps)
        self.origins = origins

    @overload
    def __getitem__(self, place: SupportsIndex) -> int | None: ...
    @overload
    def __getitem__(self, place: slice) -> Placed: ...
    def __getitem__(self, place: Any) -> Any:
        if place.__class__ is slice:
            return Placed(super().__getitem__(place), self.origins[place])
        return super().__getitem__(place)


def placed(timestamps: Timestamps, origins: Sequence[Origin | None]) -> Placed:
    """The timestamps of a batch, None if it has none, with an origin for each of its elements."""
    return Placed([None] * len(origins) if timestamps is None else timestamps, origins)


def carried(timestamps: list[int | None], of: Timestamps, start: int) -> list[int | None]:
    """`timestamps` in place of those of a batch from `start` on, of the same elements."""
    if isinstance(of, Placed):
        return Placed(timestamps, of.origins[start : start + len(timestamps)])
    return timestamps


def compressed(timestamps: Timestamps, kept: Sequence[object]) -> Timestamps:
    """Those of the elements for which there is something true in `kept`."""
    if isinstance(timestamps, Placed):
        return Placed(compress(timestamps, kept), list(compress(timestamps.origins, kept)))
    return timestamps and list(compress(timestamps, kept))


def spread(timestamps: Timestamps, counts: Iterable[int]) -> Timestamps:
    """Those of what was made of each element, of which there are so many."""
    if not timestamps:
        return timestamps
    if not isinstance(timestamps, Placed):
        return [timestamp for timestamp, count in zip(timestamps, counts, strict=True) for _ in range(count)]
    stamps: list[int | None] = []
    origins: list[Origin | None] = []
    for timestamp, origin, count in zip(timestamps, timestamps.origins, counts, strict=True):
        stamps += [timestamp] * count
        origins += [None if origin is None else (*origin, place) for place in range(count)]
    return Placed(stamps, origins)


def entering(timestamps: Timestamps, way: str) -> Timestamps:
    """Those of elements that have come by one of several ways, by which the same one may have come before."""
    if isinstance(timestamps, Placed):
        origins = [None if origin is None else (*origin, way) for origin in timestamps.origins]
        return Placed(timestamps, origins)
    return timestamps


def digest(*parts: str | int | bytes, size: int = 16) -> str:
    """A text that tells these from all others, the same in every process; `size` bytes in hexadecimal."""
    made = blake2b(digest_size=size)
    for part in parts:
        kind = type(part).__name__.encode()
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogatepass")
        made.update(b"%b %d:%b" % (kind, len(data), data))
    return made.hexdigest()
