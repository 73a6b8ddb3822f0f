"""
The parts in which a table is kept: a base, and what has changed since, shared by checkpoints.

A checkpoint names the parts of its tables in the order in which they are applied. The next one names the same
parts and one more, with what has changed; so it costs what changed, and a part is written once. What is small
lies in the manifest, together with what was small before it, until it is worth a part of its own.

When the changes have outgrown the base, or are many, they are *compacted*: one new base takes their place in
the next checkpoint. So what is written for that is at most as much as was written for the changes, and what
is read at a restore at most twice what there is. The parts before are deleted when no manifest names them any
more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from asyncstream.checkpoint.parts import INLINE_BYTES, Part
from asyncstream.checkpoint.segments import CHANGES

__all__ = ("BASE", "Chain")

BASE: Final = "base"
"""What the path of the parts of a base ends with, after the table's name."""

MANY: Final = 32
"""Parts of a table that are not too many."""


class Chain:
    """
    The parts of one table.

    Args:
        table: its name.
        name_of: the name under which the part with this digest is kept, or is to be.
        inline_bytes: larger parts are for the store.
        parts: those that a checkpoint names.
    """

    def __init__(
        self,
        table: str,
        name_of: Callable[[str], str],
        inline_bytes: int = INLINE_BYTES,
        parts: Iterable[Part] = (),
    ) -> None:
        self._table = table
        self._name_of = name_of
        self._inline_bytes = inline_bytes
        self.parts: list[Part] = list(parts)

    def append(self, chunks: list[bytes]) -> None:
        """Have these applied after all that is there."""
        if not chunks:
            return
        path = (self._table, CHANGES if self.parts else BASE)
        last = self.parts[-1] if self.parts else None
        if last is not None and last.stored is None and last.path == path:
            chunks = [*last.chunks_in(), *chunks]
            self.parts.pop()
        self.parts.append(Part.of(path, chunks, self._name_of, self._inline_bytes))

    @property
    def is_long(self) -> bool:
        """Whether it should be compacted."""
        base = sum(part.size for part in self.parts if part.path[-1] == BASE)
        changes = sum(part.size for part in self.parts) - base
        return changes > max(base, self._inline_bytes) or len(self.parts) > MANY

    async def chunks(self, read: Callable[[str], Awaitable[bytes]]) -> list[bytes]:
        """All chunks, of parts too that only the store has."""
        found: list[bytes] = []
        for part in self.parts:
            data = part.data
            if data is None:
                assert part.stored is not None
                data = await read(part.stored)
            found += part.chunks_in(data)
        return found

    def replace(self, chunks: list[bytes]) -> None:
        """Have these instead of all that is there."""
        self.parts.clear()
        self.append(chunks)

    def committed(self) -> None:
        """A manifest names the parts: those that the store keeps need not be held here."""
        self.parts = [part.without_data() for part in self.parts]
