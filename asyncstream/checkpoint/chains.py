"""
The parts in which a table is kept: a base, and what has changed since, shared by checkpoints.

A checkpoint names the parts of its tables in the order in which they are applied, the next one the same parts
and one more, with what has changed. What is small lies in the manifest, together with what was small before
it, until it is worth a part of its own.

When the changes have outgrown the base, or are many, they are *compacted*: one new base takes their place in
the next checkpoint. So what is written for that is at most as much as was written for the changes, and what
is read at a restore at most twice what there is. The parts before are deleted when no manifest names them any
more.

One thread appends, and lists the parts for a checkpoint; meanwhile another has chains compacted, and parts
stored. So each changes the list of parts under a lock, in an instant: a part is made, which takes long,
outside it. Who does not append puts another list in its place, for it may be gone through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from threading import Lock
from typing import Final

from asyncstream.checkpoint.parts import INLINE_BYTES, Part
from asyncstream.checkpoint.segments import CHANGES

__all__ = ("BASE", "PART_BYTES", "Chain")

BASE: Final = "base"
"""What the path of the parts of a base ends with, after the table's name."""

MANY: Final = 32
"""Parts with changes of a table that are not too many."""

WORTH_A_PART: Final = 1 << 20
"""Bytes of a base for which one part more is not too many: a large one is not written again for a few."""

PART_BYTES: Final = 4 << 20
"""About how large parts of a base are, of which there may be several: one is held in memory at a time."""


@dataclass(eq=False)
class Chain:
    """
    The parts of one table.

    Attributes:
        table: its name.
        name_of: the name under which the part with this digest is kept, or is to be.
        inline_bytes: larger parts are for the store.
        parts: those that a checkpoint names.
    """

    table: str
    name_of: Callable[[str], str]
    inline_bytes: int = INLINE_BYTES
    parts: list[Part] = field(default_factory=list)
    _fixed: int = 0  # so many parts are being compacted
    _lock: Lock = field(default_factory=Lock)

    def append(self, chunks: list[bytes]) -> None:
        """Have these applied after all that is there; one thread at a time may."""
        if not chunks:
            return
        with self._lock:
            path = (self.table, CHANGES if self.parts else BASE)
            last = self.parts[-1] if len(self.parts) > self._fixed else None
            grows = last is not None and last.stored is None and last.path == path
            if grows:
                self.parts.pop()
        if last is not None and grows:
            chunks = [*last.chunks_in(), *chunks]
        part = Part.of(path, chunks, self.name_of, self.inline_bytes)
        with self._lock:
            self.parts.append(part)

    @property
    def is_long(self) -> bool:
        """Whether it should be compacted."""
        sizes = [part.size for part in self.parts if part.path[-1] != BASE]
        base = sum(part.size for part in self.parts) - sum(sizes)
        few = min(self.inline_bytes, INLINE_BYTES)
        return sum(sizes) > max(base, few) or len(sizes) >= max(MANY, base // WORTH_A_PART)

    def fix(self) -> list[Part]:
        """The parts there are now, which stay as they are until `replace` or `release`."""
        with self._lock:
            self._fixed = len(self.parts)
            return list(self.parts)

    def release(self) -> None:
        """What was fixed may change again."""
        self._fixed = 0

    def base_of(self, chunks: list[bytes]) -> Part:
        """A part of a base."""
        return Part.of((self.table, BASE), chunks, self.name_of, self.inline_bytes)

    def replace(self, base: Iterable[Part]) -> None:
        """Have these parts instead of those that were fixed."""
        with self._lock:
            self.parts = [*base, *self.parts[self._fixed :]]
            self._fixed = 0

    def committed(self, names: Collection[str]) -> None:
        """The store has the parts of these names: they need not be held here."""
        with self._lock:
            self.parts = [part.without_data() if part.stored in names else part for part in self.parts]
