"""
What an async step asks of a journal of finished calls; the journal itself is kept with the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from asyncstream.operators.origins import Origin

__all__ = ("CallLog",)


class CallLog(Protocol):
    """
    The calls of one step that have ended since the last checkpoint.

    Attributes:
        waits: results may go on only when they are on the disk (`when_safe`), not when they are written.
    """

    waits: bool

    @property
    def known(self) -> Mapping[Origin, Sequence[Any]]:
        """What ended in an earlier life and was not taken yet; always the same object."""

    def take(self, origin: Origin) -> Sequence[Any] | None:
        """The results of the call for an element, if it ended in an earlier life; given once."""

    def append(self, ended: Sequence[tuple[Origin, Sequence[Any]]]) -> None:
        """
        Write down calls that have ended. What is written survives the end of the process.

        Raises:
            CheckpointError: if they cannot be.
        """

    def when_safe(self, then: Callable[[], None]) -> None:
        """Call `then` when what has been written is on the disk, and survives the machine."""
