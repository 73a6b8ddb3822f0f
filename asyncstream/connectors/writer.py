"""
The run of a job that a sink writes for, and whether it may write where another one wrote last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from asyncstream.clock import SystemClock
from asyncstream.errors import SinkBroken, SinkError, SourceError
from asyncstream.lease import Lease, presence

__all__ = ("Ahead", "Writer", "allowed_ahead", "check_reader_follows")

_CLOCK = SystemClock()
"""That of the machine, by which leases go."""

Ahead: TypeAlias = Literal["refuse", "allow_behind", "start_over"]
"""What to do with a sink that holds results that the checkpoint does not know of."""


@dataclass(frozen=True, slots=True)
class Writer:
    """
    The run of a job that a transactional sink writes for, and that a source with an inbox reads for.

    Attributes:
        lease: its right to write to the store of its checkpoints.
        keep: how many checkpoints it keeps; a sink should be able to go back to any of them.
        ahead: what to do if the sink holds results that the checkpoint does not know of.
    """

    lease: Lease
    keep: int
    ahead: Ahead

    def fences(self, last: Lease | None, fence: int) -> bool:
        """
        Whether a fence of this job is to be put up where another one wrote last.

        Args:
            last: what that one wrote down; None: nothing.
            fence: the largest number that was put up there since; 0: none.
        """
        return (
            last is not None
            and last.place == self.lease.place
            and max(last.number, fence) < self.lease.number
            and not self._is_of_a_copy(last)
            and not self._shows_itself(last)
        )

    def keeps_results_of(self, last: Lease | None) -> bool:
        """
        Whether what was written behind the checkpoint is to stay there, although the sink could go back: a
        job on a copy of the store wrote last, under `last`, and it was said that its results are to be kept.
        """
        return (
            self.ahead == "allow_behind"
            and last is not None
            and last.place == self.lease.place
            and self._is_of_a_copy(last)
        )

    def _is_of_a_copy(self, last: Lease) -> bool:
        """Whether a job of the same place, but for one that was copied, wrote last."""
        known = self.lease.known_as(last)
        return known is not None and known.token != last.holder.token

    def _shows_itself(self, last: Lease) -> bool:
        """
        Whether the job that wrote last goes on elsewhere, as that of a store does which was copied: it has
        shown itself there, in its sink, since its lease ran out in the copy.
        """
        return self.lease.finds_held(last, _CLOCK.machine_ms())

    def check_follows(self, last: Lease | None, what: str, fence: int = 0) -> None:
        """
        See whether this job may write where another one wrote last.

        A job of the same store may if its lease is the later one: the store has seen to it that the other one
        has it no more. A job of another store must wait for the other one's end. So must one of a store that
        was copied while the other one ran, or goes on from before it: what is there is not of its own line.

        Args:
            last: what the other one wrote down; None: nothing.
            what: where, for the message.
            fence: the number that a job of the same store has put up since, see `TransactionalSink.fence`.

        Raises:
            SinkBroken: if a later job of the same store writes there.
            SinkError: if the other job goes on, or may go on; or it is this one, by another step.
        """
        if last is None:
            return
        if last.holder == self.lease.holder and not last.released:
            raise SinkError(f"{what} is used by another step of this job: give each its own, or unite them")
        if last.place == self.lease.place:
            # also of one that has ended: what this job knows of the store is older than what it left
            if last.number > self.lease.number:
                told = f"{what} was taken over by {last.holder}; this job writes nothing more"
                if last.released:
                    told += (
                        ". That job has ended: this store of checkpoints is from before it, as a copy or a "
                        "backup is; go back in the store that it used, with restore="
                    )
                raise SinkBroken(told)
            if fence > self.lease.number:
                raise SinkBroken(f"{what} was taken over by a later job; this one writes nothing more")
            if self._shows_itself(last):
                left = max(last.until_ms - _CLOCK.machine_ms(), 0) / 1000
                raise SinkError(
                    f"{what} is in use by {last.holder}, whose lease goes on: this store of checkpoints is a "
                    "copy, and only one job at a time may write. Give a job on a copy sinks of its own; or "
                    f"stop that job, or wait another {left:.0f} s if it is gone"
                )
            if not self._is_of_a_copy(last):
                return
            if (last.released or presence(last.holder) != "alive") and self.ahead == "refuse":
                raise SinkError(
                    f"{what} was written to last by {last.holder}, on a copy of this store of checkpoints: "
                    "go on in the store that it used; or say what to do with its results: "
                    "Checkpoints(ahead='allow_behind') or ahead='start_over'"
                )
        if last.released:
            return
        there = presence(last.holder)
        if there == "alive":
            raise SinkError(
                f"{what} is written to by {last.holder}, which keeps its checkpoints elsewhere: only one "
                "job at a time may write; stop that job first"
            )
        if there == "unknown" and self.ahead == "refuse":
            raise SinkError(
                f"{what} was written to by {last.holder}, which keeps its checkpoints elsewhere, and cannot "
                "be seen from here; once that process is gone, say what to do with its results: "
                "Checkpoints(ahead='allow_behind') or ahead='start_over'"
            )


def check_reader_follows(
    writer: Writer, last: Lease | None, what: str, broken: type[SourceError] = SourceError
) -> None:
    """`Writer.check_follows` for a source: raises `SourceError`, or what is `broken` for `SinkBroken`."""
    try:
        writer.check_follows(last, what)
    except SinkError as error:
        raise (broken if isinstance(error, SinkBroken) else SourceError)(str(error)) from error


def allowed_ahead(writer: Writer | None, what: str) -> Literal["allow_behind", "start_over"]:
    """
    What to do with results that the checkpoint to start from does not know of; raises `SinkError` if that is
    to refuse.

    Args:
        writer: the job that starts.
        what: holds them, for the message.
    """
    if writer is not None and writer.ahead != "refuse":
        return writer.ahead
    raise SinkError(
        f"{what} holds results of a later checkpoint than the one to start from: that one is lost, or is in "
        "another store, or restore= leaves it out. Start from the checkpoint that belongs to it (store=, "
        "restore=); or say ahead='allow_behind' to keep them, though they may be written a second time; or "
        "ahead='start_over' to take them out"
    )
