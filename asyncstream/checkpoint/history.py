"""
The checkpoints of a store as a history: which one to go on from, and which ones to let go.
"""

from __future__ import annotations

import logging
from typing import Any

from asyncstream.checkpoint.format import CheckpointInfo, unpack
from asyncstream.checkpoint.stores import CheckpointStore
from asyncstream.codec import Codec
from asyncstream.errors import CheckpointError, DamagedCheckpoint

__all__ = ("History",)

log = logging.getLogger("asyncstream.checkpoint")


class History:
    """
    The checkpoints of a store.

    Attributes:
        newest: the largest number that `look` has seen, also of a checkpoint that is damaged; 0: none.

    Args:
        store: where they are.
        codec: how their values became bytes.
    """

    def __init__(self, store: CheckpointStore, codec: Codec) -> None:
        self.newest = 0
        self._store = store
        self._codec = codec

    async def look(self) -> list[int]:
        """The numbers of all checkpoints, in ascending order; notes the largest in `newest`."""
        numbers = await self._store.numbers()
        self.newest = max(self.newest, *numbers, 0)
        return numbers

    async def read_newest(self) -> tuple[CheckpointInfo, dict[str, Any]] | None:
        """
        The newest checkpoint that is whole; None if there is none at all. What is damaged is logged.

        Raises:
            CheckpointError: if all are damaged, or the newest whole one cannot be read by this program.
        """
        numbers = await self.look()
        for number in reversed(numbers):
            try:
                return await self.read(number)
            except DamagedCheckpoint as damage:
                log.warning("%s; going back to the one before", damage)
        if numbers:
            raise CheckpointError(
                f"every checkpoint in {self._store} is damaged; to start from the beginning: restore='none'"
            )
        return None

    async def read(self, number: int) -> tuple[CheckpointInfo, dict[str, Any]]:
        """
        The checkpoint of this number.

        Raises:
            DamagedCheckpoint: if it is not whole.
            CheckpointError: if it is not there, or cannot be read by this program.
        """
        data = await self._store.load(number)
        try:
            return unpack(data, self._codec)
        except DamagedCheckpoint as damage:
            raise DamagedCheckpoint(f"checkpoint {number} is damaged: {damage}") from damage

    async def let_go(self, keep: int) -> None:
        """Delete all but the newest `keep` checkpoints."""
        for number in (await self.look())[:-keep]:
            await self._store.delete(number)
