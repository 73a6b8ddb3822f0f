"""
What a transactional sink promises (`asyncstream.connectors.base.TransactionalSink`), as checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from asyncstream.connectors.base import Sink, TransactionalSink
from asyncstream.connectors.writer import Ahead, Writer
from asyncstream.errors import SinkError
from asyncstream.lease import Holder, Lease
from asyncstream.testing.contracts.checks import ContractBroken, expect
from asyncstream.testing.contracts.lives import CODEC, CUTS, Report, begun, leading, running
from asyncstream.testing.contracts.writes import WRITES, SinkContract

__all__ = ("TransactionalContract",)

KEEP: Final = 3
"""Checkpoints that the store is said to keep."""

Call: TypeAlias = tuple[str, int]
"""A call of a life: its name, and the number of the write or of the epoch."""

SCRIPT: Final[tuple[Call, ...]] = (
    ("recover", 0),
    ("prepare", 0),  # before anything is written, a checkpoint stands
    ("saved", 0),
    ("commit", 0),
    ("write", 0),
    ("write", 1),
    ("prepare", 1),
    ("write", 2),
    ("saved", 1),
    ("commit", 1),
    ("prepare", 2),
    ("saved", 2),
    ("commit", 2),
    ("write", 3),
    ("prepare", 3),  # a checkpoint that is not saved: the next one speaks for it
    ("write", 4),
    ("prepare", 4),
    ("saved", 4),
    ("commit", 4),
    ("write", 5),
    ("close", 0),
)
"""What a job does with a sink; "saved": the checkpoint with the position is safe."""

Saved: TypeAlias = tuple[Any, int]
"""The position of a checkpoint, and how many writes came before it."""

NONE: Final[Saved] = (None, 0)


class TransactionalContract(SinkContract):
    """The checks of transactional sinks, besides those of every sink; arguments as for `sink_contract`."""

    transactional = True

    def __init__(
        self,
        make: Callable[[Path], Sink[Any]],
        read: Callable[[Path], Sequence[Any] | Awaitable[Sequence[Any]]],
        elements: Sequence[Any],
        in_order: bool,
        durable: bool,
        fenced: bool,
        rewinds: bool,
    ) -> None:
        super().__init__(make, read, elements, in_order)
        self._fenced = fenced
        self._rewinds = rewinds
        self._lead = leading(durable)

    def leaves_out(self, name: str) -> bool:
        return (not self._fenced and name in OF_FENCES) or (not self._rewinds and name in OF_REWINDING)

    # ------------------------------------------------------------------ what checks are made of

    def _sink(
        self, folder: Path, lease: int, ahead: Ahead = "refuse", place: str = "contract"
    ) -> TransactionalSink[Any]:
        sink = self._make(folder)
        if not isinstance(sink, TransactionalSink):
            raise ContractBroken(f"{type(sink).__name__} is no TransactionalSink; say transactional=False")
        holder = Holder.here(0)
        sink.writer = Writer(Lease(lease, place, holder, 0), KEEP, ahead)
        return sink

    async def _epoch(self, sink: TransactionalSink[Any], number: int, *writes: int) -> Any:
        """Write, and have it committed; gives the position as a checkpoint gives it back."""
        for write in writes:
            await sink.write(self._writes[write], None)
        position = await sink.prepare(number)
        expect(position is not None, "prepare() gave None instead of a position")
        position = CODEC.decode(CODEC.encode(position))
        await sink.commit(number)
        return position

    async def _begin(self, sink: TransactionalSink[Any]) -> Any:
        """A job begins, with a checkpoint before anything is written; gives its position."""
        await self._start(sink, None)
        return await self._epoch(sink, 0)

    async def _start(self, sink: TransactionalSink[Any], position: Any) -> None:
        """A start, as a job makes it."""
        await sink.fence()
        await sink.can_recover(position)
        await sink.recover(position)

    async def _run(self, folder: Path, lease: int, *epochs: int, ahead: Ahead = "refuse") -> list[Any]:
        """A job from its beginning to its end, with a write in each epoch; gives their positions."""
        sink = self._sink(folder, lease, ahead)
        await self._begin(sink)
        positions = [await self._epoch(sink, number, write) for number, write in enumerate(epochs, 1)]
        await sink.flush()
        await sink.close()
        return positions

    async def _go_on(self, what: str, folder: Path, lease: int, saved: Saved) -> None:
        """Another job goes on from a checkpoint, finds what had been written by then, and writes the rest."""
        position, writes = saved
        sink = self._sink(folder, lease)
        await self._start(sink, position)
        await self._see(f"after a recovery {what}", folder, *range(writes))
        await self._epoch(sink, 10, *range(writes, WRITES))
        await sink.flush()
        await sink.close()
        await self._see(f"at the end, {what}", folder, *range(WRITES))

    async def _live(
        self, folder: Path, script: Sequence[Call], report: Report, dies_in: tuple[Call, float] | None = None
    ) -> None:
        """
        A life that does these calls, and reports each checkpoint that is saved; or that `dies_in` one of
        them, at the cut that comes with it.
        """
        sink = self._sink(folder, 1)
        positions: dict[int, Saved] = {}
        written = 0
        for call, number in script:
            if call == "prepare":
                positions[number] = await sink.prepare(number), written
            elif call == "saved":
                report(list(positions[number]))
            else:
                await self._call(sink, call, number)
                written += call == "write"
        if dies_in is not None:
            await begun(self._call(sink, *dies_in[0]), dies_in[1])

    async def _recover(self, folder: Path, position: Any, cut: float | None, report: Report) -> None:
        """A life that ends in its recovery, or right after."""
        sink = self._sink(folder, 2)
        if cut is None:
            await sink.recover(position)
        else:
            await begun(sink.recover(position), cut)

    def _call(self, sink: TransactionalSink[Any], call: str, number: int) -> Any:
        if call == "recover":
            return sink.recover(None)
        if call == "write":
            return sink.write(self._writes[number], None)
        if call == "close":
            return sink.close()
        return sink.prepare(number) if call == "prepare" else sink.commit(number)

    # ------------------------------------------------------------------ epochs

    async def what_is_committed_stays(self, folder: Path) -> None:
        """Epoch by epoch, committed elements are there once, and stay when the sink is closed."""
        sink = self._sink(folder, 1)
        await self._begin(sink)
        for number in range(3):
            await self._epoch(sink, number + 1, number)
            await self._see(f"after commit({number + 1})", folder, *range(number + 1))
        await sink.close()
        await self._see("after close()", folder, 0, 1, 2)

    async def crashes_between_any_two_calls_lose_and_double_nothing(self, folder: Path) -> None:
        """Whichever call was the last of a process, the next one goes on from its last checkpoint exactly."""
        for cut in range(1, len(SCRIPT) + 1):
            place = self._place(folder, cut)
            told = await self._lead(partial(self._live, place, SCRIPT[:cut]))
            await self._go_on(f"from a crash after {SCRIPT[cut - 1]}", place, 2, _last(told))

    async def crashes_within_calls_lose_and_double_nothing(self, folder: Path) -> None:
        """Whichever call a process dies in, the next one goes on from its last checkpoint exactly."""
        for at, call in enumerate(SCRIPT):
            for cut in CUTS if call[0] not in ("saved", "recover") else ():
                place = self._place(folder, f"{at} {cut}")
                told = await self._lead(partial(self._live, place, SCRIPT[:at], dies_in=(call, cut)))
                await self._go_on(f"from a crash in {call}", place, 2, _last(told))

    async def crashes_in_a_recovery_lose_and_double_nothing(self, folder: Path) -> None:
        """A process that dies while it recovers, or right after, has changed nothing for the next one."""
        for cut in (*CUTS, None):
            place = self._place(folder, cut)
            script = SCRIPT[: SCRIPT.index(("commit", 4))]
            saved = _last(await self._lead(partial(self._live, place, script)))
            await self._lead(partial(self._recover, place, saved[0], cut))
            await self._go_on("from two crashes", place, 3, saved)

    async def an_epoch_that_was_not_committed_goes_with_the_next(self, folder: Path) -> None:
        """A checkpoint may fail after `prepare`; the next `commit` is for both epochs."""
        sink = self._sink(folder, 1)
        await self._begin(sink)
        await sink.write(self._writes[0], None)
        await sink.prepare(1)
        await self._epoch(sink, 2, 1)
        await self._see("after commit(2)", folder, 0, 1)
        await sink.close()

    async def asking_changes_nothing(self, folder: Path) -> None:
        """`can_recover` may be asked about any position, also by a job that then does not start."""
        *_, before, last = await self._run(folder, 1, 0, 1, 2)
        for position in (last, before, None, last):
            asking = self._sink(folder, 2)
            try:
                await asking.can_recover(position)
            except SinkError:
                pass
            await asking.close()
            await self._see("after can_recover()", folder, 0, 1, 2)
        await self._go_on("after questions", folder, 3, (last, 3))

    async def it_goes_back_to_an_older_checkpoint_or_refuses(self, folder: Path) -> None:
        """To a checkpoint that is kept, a sink goes back exactly, or it refuses and leaves all as it was."""
        for back in range(1, KEEP):
            place = self._place(folder, back)
            positions = await self._run(place, 1, 0, 1, 2, 3)
            older = positions[-1 - back]
            sink = self._sink(place, 2)
            try:
                await sink.can_recover(older)
            except SinkError:
                await sink.close()
                await self._see("after it refused to go back", place, 0, 1, 2, 3)
                continue
            await sink.recover(older)
            await self._see(f"{back} checkpoints back", place, *range(4 - back))
            await self._epoch(sink, 10, 7)
            await sink.close()
            await self._see(f"at the end, {back} checkpoints back", place, *range(4 - back), 7)
            late = self._sink(place, 4)
            refused = await _refuses(late, positions[-1])
            await late.close()
            expect(refused, "it goes on from a checkpoint whose results it had taken back")

    async def a_new_beginning_needs_a_decision(self, folder: Path) -> None:
        """A sink that holds results of which no checkpoint knows refuses, unless `ahead` decides."""
        await self._run(folder, 1, 0, 1)
        sink = self._sink(folder, 2)
        expect(
            await _refuses(sink, None), "recover(None) has accepted a sink with results, with ahead='refuse'"
        )
        await sink.close()
        await self._see("after it refused", folder, 0, 1)
        if not self._rewinds:
            sink = self._sink(folder, 3, "start_over")
            expect(await _refuses(sink, None), "it says that it takes out what it cannot take out")
            await sink.close()
            await self._run(folder, 4, 3, ahead="allow_behind")
            await self._see("with ahead='allow_behind'", folder, 0, 1, 3)
            return
        await self._run(folder, 3, 2, ahead="start_over")
        await self._see("with ahead='start_over'", folder, 2)
        await self._run(folder, 4, 3, ahead="allow_behind")
        await self._see("with ahead='allow_behind'", folder, 2, 3)

    # ------------------------------------------------------------------ one writer

    async def who_was_followed_writes_nothing_more(self, folder: Path) -> None:
        """A job that another one of its store has followed is refused, and does no harm to the other one."""
        with self._alive(folder, 1) as old, self._alive(folder, 2) as new:
            await self._begin(old)
            position = await self._epoch(old, 1, 0)
            await new.recover(position)
            await new.write(self._writes[1], None)
            refused = False
            try:
                await old.write(self._writes[7], None)
                await old.prepare(2)
                await old.commit(2)
            except SinkError:
                refused = True
            await old.close()
            position = await self._epoch(new, 2, 2)
            await new.close()
        await self._see("when the follower has ended", folder, 0, 1, 2)
        expect(refused, "write(), prepare() and commit() of a job that was followed raised no SinkError")

    async def a_follower_goes_where_it_has_decided_to(self, folder: Path) -> None:
        """Whatever the job before still does between a follower's `can_recover` and its `recover`."""
        with self._alive(folder, 1) as old, self._alive(folder, 2) as new:
            await self._begin(old)
            position = await self._epoch(old, 1, 0)
            await self._epoch(old, 2, 1)
            await new.fence()
            await new.can_recover(position)
            with suppress(SinkError):  # it may be refused, or not
                for epoch in range(3, 3 + KEEP):
                    await self._epoch(old, epoch, 7)
            try:
                await new.recover(position)
            except SinkError as error:
                raise ContractBroken(
                    "between can_recover() and recover() a job that was followed could still commit, so that "
                    f"its follower was refused: {error}; fence() is to keep it out"
                ) from error
            await old.close()
            await self._epoch(new, 9, 2)
            await new.close()
        await self._see("when the follower has ended", folder, 0, 2)

    async def who_was_followed_before_it_began_is_refused(self, folder: Path) -> None:
        """A process that is stopped between `can_recover` and `recover`, and followed, finds that out."""
        with self._alive(folder, 1) as old, self._alive(folder, 2) as new:
            await old.can_recover(None)
            await self._begin(new)
            await self._epoch(new, 1, 0)
            await new.close()
            refused = False
            try:
                await old.recover(None)
                await self._epoch(old, 1, 7)
            except SinkError:
                refused = True
            await old.close()
        await self._see("afterwards", folder, 0)
        expect(refused, "a job that was followed began to write")

    async def a_job_with_another_store_is_refused_while_the_first_goes_on(self, folder: Path) -> None:
        """Two jobs that keep their checkpoints in two places do not write to one sink at a time."""
        with self._alive(folder, 1) as first, self._alive(folder, 9, "elsewhere") as second:
            await self._begin(first)
            refused = await _refuses(second, None)
            await second.close()
            await self._epoch(first, 1, 0)
            await first.close()
        await self._see("afterwards", folder, 0)
        expect(refused, "a job with another store was let in")

    @contextmanager
    def _alive(self, folder: Path, lease: int, place: str = "contract") -> Iterator[TransactionalSink[Any]]:
        """A sink of a job that goes on until the end of the block."""
        sink = self._sink(folder, lease, place=place)
        assert sink.writer is not None
        with running(sink.writer.lease.holder):
            yield sink


OF_FENCES = frozenset(
    {
        "who_was_followed_writes_nothing_more",
        "a_follower_goes_where_it_has_decided_to",
        "who_was_followed_before_it_began_is_refused",
        "a_job_with_another_store_is_refused_while_the_first_goes_on",
    }
)
"""Checks of sinks that processes share."""


OF_REWINDING = frozenset({"a_follower_goes_where_it_has_decided_to"})
"""Checks of sinks that can take out what is committed."""


def _last(told: Sequence[Any]) -> Saved:
    """The last checkpoint that a life told of."""
    return (told[-1][0], told[-1][1]) if told else NONE


async def _refuses(sink: TransactionalSink[Any], position: Any) -> bool:
    """Whether it does not go on from `position`, in one way or the other."""
    try:
        await sink.can_recover(position)
        await sink.recover(position)
    except SinkError:
        return True
    return False
