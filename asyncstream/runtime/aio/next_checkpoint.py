"""
The checkpoint that comes next: who has asked for it, and as what.
"""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from asyncstream.aside import heed
from asyncstream.checkpoint import CheckpointInfo
from asyncstream.errors import CheckpointError

__all__ = ("NOT_TAKEN", "NextCheckpoint", "Request")

NOT_TAKEN = "the job ended before the checkpoint was taken"

Request: TypeAlias = "asyncio.Future[CheckpointInfo]"
"""Is answered when the checkpoint is safe, and committed by the sinks."""


class NextCheckpoint:
    """
    Shared by all that ask before it begins; nobody may have asked.

    Attributes:
        stays: it is to be a savepoint.
    """

    def __init__(self) -> None:
        self._request: Request | None = None
        self.stays = False

    def request(self, *, stays: bool = False) -> Request:
        """What is answered when it has been taken."""
        if self._request is None:
            self._request = asyncio.get_running_loop().create_future()
            self._request.add_done_callback(heed)
        self.stays |= stays
        return self._request

    def begin(self) -> tuple[Request | None, bool]:
        """Who has asked for it, and whether it stays; from now on it is the one after."""
        begun = self._request, self.stays
        self._request, self.stays = None, False
        return begun

    def answer(self, info: CheckpointInfo) -> None:
        """It was the last one."""
        if self._request is not None:
            self._request.set_result(info)

    def refuse(self) -> None:
        """It will not be taken."""
        if self._request is not None and not self._request.done():
            self._request.set_exception(CheckpointError(NOT_TAKEN))
