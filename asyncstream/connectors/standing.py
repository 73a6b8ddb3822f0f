"""
How far a table of results is, in a database that keeps epochs: what sinks on SQL look at before they change
it.

Epochs are told apart by their positions, whole numbers that only ever grow. Results up to `moved` are in the
table. How those behind `floor` came there is known, so that they can be taken out again: a checkpoint may
turn out damaged, and the one before be gone on from. What was taken back is *void*: no later start may go to
a position in between, which was that of a checkpoint whose results are no longer there.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncstream.connectors.writer import Writer, allowed_ahead
from asyncstream.errors import SinkBroken, SinkError
from asyncstream.lease import Lease

__all__ = ("Standing", "taken_over")


@dataclass(frozen=True, slots=True)
class Standing:
    """
    What a database says of one table.

    Attributes:
        moved: the position up to which results are in the table.
        floor: the position to which they can be taken back; above `moved` only until a run that keeps what
            others have written commits.
        last: the largest position there has been.
        lease: of the job that wrote last; None: none has.
        fence: the number of a later job that is about to take over; 0: there is none.
    """

    moved: int = 0
    floor: int = 0
    last: int = 0
    lease: Lease | None = None
    fence: int = 0

    def check(self, position: int | None, is_void: bool, writer: Writer | None, what: str) -> None:
        """
        See whether the table can go to a position.

        Args:
            position: where to; None: the very beginning.
            is_void: what came between this position and an earlier one was taken back.
            writer: the job that wants to.
            what: the table, for messages.

        Raises:
            SinkError: if it cannot, or another job writes to it.
        """
        if writer is not None:
            writer.check_follows(self.lease, what, self.fence)
        target = position or 0
        if target > self.last:
            raise SinkError(
                f"{what} lacks results that were there at the checkpoint: is it the same database? With one "
                "from a backup, go on from a checkpoint of before that (restore=)"
            )
        if is_void:
            raise SinkError(
                f"{what} no longer has the results of the checkpoint: since then a job went on from an "
                "earlier one, and took them back; go on from that one (restore=), or from one before it"
            )
        if target >= self.moved or (position is not None and target >= self.floor):
            return
        if allowed_ahead(writer, what) == "start_over" and target < self.floor:
            raise SinkError(
                f"{what} does not know any more which rows came before its last checkpoints, so it "
                "cannot take them out: "
                + (
                    "empty the table yourself, and delete its row in asyncstream_sinks"
                    if position is None
                    else "delete yourself what came after the one to start from, and say ahead='allow_behind'"
                )
            )

    def goes_back(self, position: int | None, writer: Writer | None) -> bool:
        """Whether results are to be taken out, on the way to a position that was checked."""
        target = position or 0
        if writer is not None and writer.keeps_results_of(self.lease):
            return False
        can_go_back = position is not None and target >= self.floor
        return target < self.moved and (can_go_back or (writer is not None and writer.ahead == "start_over"))

    def keeps(self, position: int | None, writer: Writer | None) -> bool:
        """
        Whether results stay of which a position that was checked does not know. From then on nobody may go
        back to one that was there before: it would take out, as if they were its own, results of another
        line. So `floor` becomes the first position of the run that keeps them.
        """
        return (position or 0) < self.moved and not self.goes_back(position, writer)


def taken_over(what: str, last: Lease | None) -> SinkBroken:
    """The error of a sink whose table is another job's now, to be raised by the caller."""
    return SinkBroken(
        f"{what} was taken over by {'another job' if last is None else last.holder}: this one writes nothing "
        "more"
    )
