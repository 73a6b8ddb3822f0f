"""
What the runtime asks of a source and of a sink.

Both are pulled: the runtime awaits `read` when the pipeline has room, and `write` or `write_batch` with what
has come since the last one. One call is under way at a time, and a batch is a list, so that the price of an
`await` is paid per batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from asyncstream.connectors.writer import Writer
from asyncstream.elements import Timestamps
from asyncstream.operators.journey import Journey
from asyncstream.operators.origins import Origin
from asyncstream.shown import Shown

__all__ = ("CountingSink", "Sink", "Source", "SourceBatch", "TransactionalSink")

T = TypeVar("T")


class SourceBatch(NamedTuple, Generic[T]):
    """
    What one `read` of a source brought.

    Attributes:
        values: elements in order.
        timestamps: one for each, milliseconds since the epoch, if the outside system has them.
        rejected: what could not be read as an element; goes to the source's `rejected` output.
        journeys: by their place in `values`, the elements that are followed since they were submitted.
        origins: by their place in `values`, where elements come from that were in a stream before.
        split: which of `Source.splits` all these are from; None: the source has no splits.
        started_over: that split begins anew with these: they are others than came behind its position before.
    """

    values: Sequence[T]
    timestamps: Timestamps = None
    rejected: Sequence[Any] = ()
    journeys: Mapping[int, Journey] = MappingProxyType({})
    origins: Mapping[int, Origin] = MappingProxyType({})
    split: str | None = None
    started_over: bool = False


class Source(Shown, ABC, Generic[T]):
    """
    Where elements come from.

    Attributes:
        rejects: whether a read may bring things that are no elements, in `SourceBatch.rejected`.
        writer: the job that reads it, for a source that writes down whose it is; set before `can_seek` and
            `open`, None without checkpoints.
        started_over: after the last `seek` other elements come than came behind that position before.
        checkpoint_soon: asks the job for a checkpoint; set with `writer`, None without checkpoints.
        hands_over: other jobs go on with its splits while this one runs, or when it has died, from what was
            acknowledged.
        needs_writer: without `writer`, what it has given is done when it is read on, and not given again.
    """

    rejects: bool = False
    writer: Writer | None = None
    started_over: bool = False
    checkpoint_soon: Callable[[], None] | None = None
    hands_over: bool = False
    needs_writer: bool = False

    async def open(self) -> None:
        """
        Called once for each run, before the first `read`. A source that can be read again begins at the
        beginning, unless `seek` follows.
        """

    @abstractmethod
    async def read(self) -> SourceBatch[T] | None:
        """
        The next batch; waits while there is none; None at the end of input.

        May be cancelled while it waits, and must not have taken anything then.
        """

    def end(self) -> bool:
        """
        Take in no more: the job drains.

        Returns:
            True if `read` still gives what has been taken in, and then None. False if there is nothing
            of the kind, so that a `read` under way may be cancelled.
        """
        return False

    def suspend(self) -> None:
        """
        The job was stopped before the end of input, and another may go on with this very source; `close`
        follows. For a source that has what it cannot take a second time, to keep it until the next `open`.
        """

    def position(self) -> Any:
        """
        Where to go on after the batch that the last `read` returned, or None if the source cannot.

        Made of values that the codec keeps; `seek` takes it.
        """
        return None

    def progress(self) -> float | None:
        """
        How much of the input is behind the last element that was read, from 0 to 1; None if it is not known
        how much there is. Asked while the source is open, also while a `read` waits.
        """
        return None

    async def can_seek(self, position: Any, /) -> None:
        """
        See whether `seek` could go on from `position`; changes nothing. May be called before `open`.

        Raises:
            SourceError: if it could not, because what is read is not what was read then.
        """

    async def seek(self, position: Any, /) -> None:
        """Go on from `position`; called after `open`, before the first `read`."""

    def unread(self) -> int:
        """How many elements it holds that have not been read; for who looks at the job."""
        return 0

    def acknowledges(self) -> bool:
        """Whether `acknowledge` is to be called; asked once, when the source is open."""
        return type(self).acknowledge is not Source.acknowledge

    async def acknowledge(self, position: Any, /) -> None:
        """
        All that was given out before `position` is done for good: a broker may be told so.

        Its results are written, or it was dropped on purpose; none is waiting, and no call for it is under
        way. In a job with checkpoints, one that is safe says so, and its sinks have committed. In a job
        without, it is called only where no step behind the source remembers elements.

        For a source whose elements are kept elsewhere until they are acknowledged. Called now and then, and a
        last time at the end. A failure is logged, and the next call says it again.
        """

    async def forget(self, position: Any, /) -> None:
        """
        No checkpoint that is kept goes back behind `position`: what was read before it is needed no more.

        For a source that keeps what it gives. Called now and then while the job runs, after a checkpoint is
        safe. A failure costs nothing but room: it is logged, and the next call says it again.
        """

    def splits(self) -> Sequence[str]:
        """
        The names of the parts of the input that are read now, such as files or partitions; none for a source
        that is one whole.

        Each split is in order, and what comes of several is mixed anyhow: `position` holds a position of
        each, and a batch is of one (`SourceBatch.split`). Where `event_time` follows, each has a watermark of
        its own, and the stream has the smallest. Asked after each `read`, so splits may come and go: one that
        is at its end, or was taken away, is no longer among them. A `read` gives an empty batch to say so
        when there are no elements.
        """
        return ()

    def hold(self, splits: Collection[str], /) -> None:
        """
        Give nothing of these splits, which are far ahead in event time, until the next call, which names all
        that are to wait then. What `read` has of them it keeps.
        """

    def is_replayable(self) -> bool:
        """Whether elements can be read again after a crash, from a position on. Asked before `open`."""
        return type(self).seek is not Source.seek

    def is_reopenable(self) -> bool:
        """Whether it can be closed and opened again in the same process, and goes on where it is put."""
        return True

    async def close(self) -> None:
        """Called once, at the end, also after a failure."""


class Sink(Shown, ABC, Generic[T]):
    """
    Where results go. A sink defines `write`, or `write_batch` if it does not look at timestamps.

    Attributes:
        one_by_one: `write` takes one element after the other, so that if it fails, it does so over the first
            element that is not `taken`. Asked after a write that has failed.
    """

    one_by_one: bool = False

    async def open(self) -> None:
        """Called once, before the first `write`."""

    async def write(self, values: Sequence[T], timestamps: Timestamps, /) -> None:
        """
        Take these elements, in order: all that have come since the last write. The pipeline waits while this
        does (backpressure).

        Once it returns, a checkpoint no longer holds them: what a sink keeps to itself until later, a crash
        takes away, unless it is a `TransactionalSink`.

        May be cancelled, when a job that is to stop has waited long enough. Elements that are not `taken`
        then are in the job's snapshot, and are written again.

        Args:
            values: the elements, at least one; after a failed write perhaps one at a time.
            timestamps: of each, milliseconds since the epoch or None; or None if none has one.

        Raises:
            SinkBroken: if it is not over the elements that it fails, and the next would fare no better: a
                server is away. That ends the job; of all else that is raised `on_error=` decides.
        """
        await self.write_batch(values)

    async def write_batch(self, values: Sequence[T], /) -> None:
        """
        As `write`, for a sink that does not look at timestamps, and called in its place.

        Of two classes, one derived from the other, of which each defines one, the derived one counts. Where a
        class defines both, the job calls this one.

        Args:
            values: as for `write`.

        Raises:
            TypeError: if the sink defines neither.
        """
        if type(self).write is Sink.write:
            raise TypeError(f"{type(self).__name__} defines neither write nor write_batch")
        await self.write(values, None)

    def taken(self) -> int:
        """
        How many elements of the write under way, or of the last one, the sink has taken for good.

        Asked while a write is under way, and after one that failed or was cancelled: the first elements up to
        this number are never given to the sink again, the others are. A write that returns has taken all.
        A sink that does not know gets elements twice, of a write that was cut short.
        """
        return 0

    def cut_short(self) -> None:
        """
        The job has failed or is left by an error: what the sink has got, and what still comes, is not all.

        `flush` or `close` follow. For a sink that puts something whole in the place of what was there before:
        that is to stay. May be called before `open`, and more than once.
        """

    async def flush(self) -> None:
        """Called when no more comes, after the last `write`."""

    async def close(self) -> None:
        """Called once, at the end, also after a failure."""


class CountingSink(Sink[T]):
    """A sink that counts in `_taken` what it has taken of the write under way, from 0 on."""

    _taken = 0

    def taken(self) -> int:
        return self._taken


class TransactionalSink(Sink[T]):
    """
    A sink that can take back what it has written since a checkpoint: the basis of exactly once.

    In a job that keeps checkpoints, what is written falls into *epochs*, one for each checkpoint::

        recover  write write  prepare(1)  write  commit(1)  write  prepare(2)  commit(2) ...  close
                                  |                  |
            all so far is safe; its position         the checkpoint with this position is safe:
            is given to the checkpoint               what came before it stays

    A checkpoint may fail between the two: then `commit` is left out, and the next one speaks for both epochs.
    After a crash, `recover` is given the position of the checkpoint that the job goes on from: the last
    committed one, or one after it that was prepared. Either way the sink ends up with exactly what was
    written before that position, committed.

    A store keeps several checkpoints, and the newest may be damaged: a sink does well to be able to go back
    to any of the last `writer.keep`. Before anything is changed, every sink is asked whether it can go on
    from the checkpoint (`can_recover`). A sink that cannot, because it holds results of a later one, refuses,
    unless `writer.ahead` says what to do with them (`allowed_ahead`).

    One job at a time writes. A sink that is shared by many processes writes down whose it is
    (`writer.lease`), and looks at it with everything that it makes safe: `Writer.check_follows`. A start
    first puts up its number everywhere (`fence`), then chooses, asks, and takes over.

    What `write`, `prepare` or `commit` could not bring to the disk may be gone, also if trying again works: a
    sink that cannot be sure raises `SinkBroken`, which ends the job.

    | a crash | leaves in the sink | and the next `recover` |
    |---|---|---|
    | in `write`, or before `prepare` is done | a part of an epoch | takes it back |
    | after `prepare`, before the checkpoint is safe | an epoch, prepared | takes it back |
    | after that, before or in `commit` | an epoch, prepared or committed in part | commits it |
    | in `recover` | any of these | does the rest |

    In a job without checkpoints none of these is called: `open`, `write`, `flush` and `close` do it all.

    Attributes:
        writer: whom it writes for; set before `fence`, `can_recover` and `recover`, None without checkpoints.
    """

    writer: Writer | None = None

    async def fence(self) -> None:
        """
        Keep out the jobs that `writer` follows in its store: from now on none of them changes anything here.

        Called before it is even decided which checkpoint to go on from. A job that was stopped, and has been
        followed, may wake up at any time: if it could still commit here, or go back to an earlier checkpoint,
        after its follower has decided, other sinks would be where this one cannot go any more. What was
        written stays as it is, also if the start is refused in the end; `recover` takes the sink over.

        Does nothing unless it is overridden: enough where a follower can always go to its checkpoint,
        whatever those before it do until it takes over.
        """

    async def can_recover(self, position: Any, /) -> None:
        """
        See whether `recover` could go on from `position`; changes nothing.

        Raises:
            SinkError: if it could not.
        """

    @abstractmethod
    async def recover(self, position: Any, /) -> None:
        """
        Called once in place of `open`: get ready, holding exactly what was written before `position`.

        Args:
            position: what `prepare` gave; None at the very first start, when what an earlier attempt may have
                left behind is to be taken back.
        """

    @abstractmethod
    async def prepare(self, epoch: int, /) -> Any:
        """
        Make safe what has been written so far, so that it can still be taken back and can no longer be lost.

        Returns its position: not None, and made of values that the codec keeps.
        """

    @abstractmethod
    async def commit(self, epoch: int, /) -> None:
        """What was written before `prepare(epoch)` stays. Elements may have been written since then."""
