"""
What an async step, and the retry around its function, ask of a journal of calls; the journal itself is kept
with the checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from asyncstream.operators.functions import AsyncFunction
from asyncstream.operators.origins import Origin

__all__ = ("CallLog", "Retried", "retry_of")


class Retried(NamedTuple):
    """
    What has become of a call that is being retried.

    Attributes:
        attempts: how many failed.
        seconds: what they and the waits between them took, the one that follows included.
        backoff: how long the wait after the next attempt is to be, in seconds, before jitter.
        next_ms: when the next attempt is due, milliseconds since the epoch.
        wait: for how long, in seconds, it waits at the most, should the clock have been set back.
    """

    attempts: int
    seconds: float
    backoff: float
    next_ms: int
    wait: float


class CallLog(Protocol):
    """
    The calls of one step that have ended since the last checkpoint.

    Attributes:
        waits: results may go on only when they are on the disk (`when_safe`), not when they are written.
    """

    waits: bool

    @property
    def known(self) -> Mapping[Origin, object]:
        """What ended in an earlier life and was not taken yet; always the same object."""

    def take(self, origin: Origin, element: Any) -> Sequence[Any] | None:
        """The results of the call for an element, if it ended in an earlier life; given once."""

    def append(
        self, origins: Sequence[Origin], elements: Sequence[Any], results: list[Any], *, single: bool
    ) -> None:
        """
        Write down calls that have ended: of each its one result, if `single`; else a sequence of what it
        gave. What is written survives the end of the process. Raises `CheckpointError` if it cannot be.
        """

    def retried(self, origin: Origin) -> Retried | None:
        """The attempts of a call that was being retried when an earlier life ended; given once."""

    def note(self, origin: Origin, failures: Retried) -> None:
        """An attempt has failed, and another follows; survives the end of the process a moment later."""

    def end_retries(self, origin: Origin) -> None:
        """No attempt follows: the call has ended, or was given up."""

    def when_safe(self, then: Callable[[], None]) -> None:
        """Call `then` when what has been written is on the disk, and survives the machine."""


def retry_of(function: object) -> object:
    """The outermost part of an async function that retries, whose attempts are kept; None: there is none."""
    while isinstance(function, AsyncFunction):
        if getattr(function, "keeps_attempts", False):
            return function
        guards = getattr(function, "guards", None)  # as an HttpLookup has
        function = getattr(function, "inner", None) if guards is None else guards
    return None
