"""
What a source promises (`asyncstream.connectors.base.Source`), as checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.conduct import fault_of
from asyncstream.connectors.writer import Writer
from asyncstream.lease import Holder, Lease
from asyncstream.testing.contracts.checks import Check, Contract, Places, differing, expect, expect_equal
from asyncstream.testing.contracts.lives import CODEC, HOPS, interrupted
from asyncstream.validation import flag, function

__all__ = ("SourceContract", "source_contract")

KEEP = 3
"""Checkpoints that the store is said to keep."""

POSITIONS = 20
"""Positions that are gone on from, at most, in each check."""

_LEAST = 3
"""Elements that a source gives: fewer have no middle."""

OF_REPLAY = frozenset(
    {
        "each_position_leads_to_what_had_not_been_read",
        "asked_for_its_position_it_changes_nothing",
        "crashes_between_any_two_reads_lose_nothing",
        "goes_on_from_an_older_position_too",
        "opened_again_it_goes_on_where_it_is_put",
        "what_is_not_forgotten_can_be_gone_back_to",
    }
)
"""Checks of sources whose elements can be read again."""

SHORT = 0.05
"""Seconds in which a source that has nothing to give does not answer."""


def source_contract(
    make: Callable[[Path], Source[Any]],
    expected: Sequence[Any],
    *,
    prepare: Callable[[Path], object] | None = None,
    replayable: bool = True,
    ends: bool = True,
    split_of: Callable[[Any], Any] | None = None,
    replays_in_order: bool = True,
) -> list[Check]:
    """
    The checks that your own source must pass. With pytest::

        @pytest.mark.parametrize("check", source_contract(make, EVENTS, prepare=write), ids=str)
        async def test_my_source(check, tmp_path):
            await check(tmp_path)

    Args:
        make: gives a new source, as another process would make it, of what `prepare` has put into the folder.
        expected: all elements that it gives, in order; at least three, of which no two are equal.
        prepare: puts what is to be read into an empty folder; if the source reads elsewhere, the name of the
            folder tells one check from another.
        replayable: elements can be read again after a crash.
        ends: `read` gives None behind the last element, rather than to wait for more.
        split_of: tells, of an element, which split it is from: only those of one come in order.
        replays_in_order: what had been read before a crash, and comes again, comes in its order; False: as it
            happens, where a server hands it out again.

    Raises:
        PipelineError: if there are too few elements, or two are equal.
    """
    differing("expected", expected, _LEAST)
    return SourceContract(make, expected, prepare, replayable, ends, split_of, replays_in_order).checks()


class SourceContract(Contract[Source[Any]]):
    """The checks; see `source_contract` for the arguments."""

    def __init__(
        self,
        make: Callable[[Path], Source[Any]],
        expected: Sequence[Any],
        prepare: Callable[[Path], object] | None,
        replayable: bool,
        ends: bool,
        split_of: Callable[[Any], Any] | None,
        replays_in_order: bool,
    ) -> None:
        super().__init__(make, Source)
        self._replays_in_order = flag("replays_in_order", replays_in_order)
        self._split_of = None if split_of is None else function("split_of", split_of, "element")
        self._lease = 0
        self._expected = self._by_split(expected)
        self._places = Places(self._expected)
        self._prepare = (lambda folder: None) if prepare is None else function("prepare", prepare, "folder")
        self._replayable = flag("replayable", replayable)
        self._ends = flag("ends", ends)

    def _by_split(self, elements: Sequence[Any]) -> list[Any]:
        """The elements of one split after the other, each in order; those of a whole as they are."""
        return list(elements) if self._split_of is None else sorted(elements, key=self._split_of)

    def leaves_out(self, name: str) -> bool:
        return not self._replayable and name in OF_REPLAY

    async def abandon(self, made: Source[Any]) -> None:
        await made.close()

    async def _check(self, method: Callable[[Path], Coroutine[Any, Any, None]], folder: Path) -> None:
        self._prepare(folder)
        await super()._check(method, folder)

    def _make(self, folder: Path) -> Source[Any]:
        """Each source is that of a later job of one store."""
        self._lease += 1
        source = super()._make(folder)
        source.writer = Writer(Lease(self._lease, "contract", Holder.here(0), 0), KEEP, "refuse")
        return source

    async def _opened(self, folder: Path) -> Source[Any]:
        source = self._make(folder)
        await source.open()
        return source

    async def _batches(self, source: Source[Any]) -> AsyncIterator[SourceBatch[Any]]:
        """The batches up to that with the last element: a source that does not end would wait behind it."""
        count = 0
        while count < len(self._expected) and (batch := await source.read()) is not None:
            count += len(batch.values)
            yield batch

    async def _rest(self, source: Source[Any], already: int = 0) -> list[SourceBatch[Any]]:
        """All batches to the end, `already` elements having been read."""
        batches: list[SourceBatch[Any]] = []
        while self._ends or already < len(self._expected):
            if (batch := await source.read()) is None:
                break
            fault = fault_of(batch, source.rejects)
            expect(fault is None, fault or "")
            self._is_of_its_split(source, batch)
            batches.append(batch)
            already += len(batch.values)
            expect(already <= len(self._expected) + 1000, f"{already} elements have come, and no end")
        return batches

    def _is_of_its_split(self, source: Source[Any], batch: SourceBatch[Any]) -> None:
        """A batch is of one split, and only a source that has splits says of which."""
        if self._split_of is None:
            return
        expect(batch.split is not None or not batch.values, "a batch with elements does not say its split")
        found = {self._split_of(value) for value in batch.values}
        expect(len(found) <= 1, f"a batch has elements of several splits: {found}")
        named = type(source).splits is not Source.splits
        expect(named, "batches say their split, but splits() is not overridden")

    async def _gives(self, source: Source[Any], read: Sequence[Any] = (), again: bool = False) -> None:
        """It gives what has not been read yet, and nothing else; `again`: another may have read it before."""
        batches = await self._rest(source, len(read))
        self._all_came([*read, *_values(batches)], again)

    def _all_came(self, read: Sequence[Any], again: bool = False) -> None:
        found = self._by_split(read)
        if again and not self._replays_in_order:
            places = [(self._places.of(element), element) for element in found]
            known = sorted(place for place, _ in places if place is not None)
            strange = [element for place, element in places if place is None]
            found = [*(self._expected[place] for place in known), *strange]
        expect_equal("elements", found, self._expected)

    async def _goes_on_from(self, folder: Path, position: Any, read: Sequence[Any]) -> None:
        """Another source, put there, gives what has not been read by then, and nothing else."""
        source = self._make(folder)
        await source.can_seek(position)
        await source.open()
        await source.seek(position)
        await self._gives(source, read, again=True)
        await source.close()

    async def _walk(self, folder: Path) -> list[tuple[Any, list[Any]]]:
        """Positions on the way through the input, each with what has been read by then."""
        source = await self._opened(folder)
        read: list[Any] = []
        found: list[tuple[Any, list[Any]]] = [(_kept(source.position()), [])]
        async for batch in self._batches(source):
            read += batch.values
            found.append((_kept(source.position()), list(read)))
        await source.close()
        step = max(1, len(found) // POSITIONS)
        return found if step == 1 else [*found[:-1:step], found[-1]]

    # ------------------------------------------------------------------ reading

    async def every_element_comes_once_and_in_order(self, folder: Path) -> None:
        """A source gives every element once, in the order of its split, in sound batches, and then None."""
        source = self._make(folder)
        expect_equal("is_replayable()", source.is_replayable(), self._replayable)
        await source.open()
        await self._gives(source)
        if not self._ends:
            late = await asyncio.wait({reading := asyncio.ensure_future(source.read())}, timeout=SHORT)
            expect(not late[0], "read() has answered, though there was nothing more to give")
            reading.cancel()
            await asyncio.wait({reading})
        await source.close()

    async def a_batch_that_was_given_does_not_change(self, folder: Path) -> None:
        """What a read has given belongs to the pipeline: later reads do not change it."""
        source = await self._opened(folder)
        kept = [(batch, list(batch.values)) async for batch in self._batches(source)]
        await source.close()
        for batch, values in kept:
            expect_equal("a batch that was read before", list(batch.values), values)

    async def a_slow_reader_loses_nothing(self, folder: Path) -> None:
        """A source that is not read for a while (back pressure) keeps its place, and what it has."""
        source = await self._opened(folder)
        read: list[Any] = []
        while len(read) < len(self._expected):
            before = _kept(source.position())
            await asyncio.sleep(0.005)
            expect_equal("the position without a reader", _kept(source.position()), before)
            progress = source.progress()
            expect(progress is None or 0 <= progress <= 1, f"progress() is {progress}, not from 0 to 1")
            if (batch := await source.read()) is None:
                break
            read += batch.values
        await source.close()
        self._all_came(read)

    async def a_read_that_is_cancelled_takes_nothing(self, folder: Path) -> None:
        """A read that is cancelled has not taken anything: the next one gives what it would have given."""
        for hops in HOPS:
            place = self._place(folder, f"after {hops}")
            self._prepare(place)
            source = await self._opened(place)
            read: list[Any] = []
            for _ in range(5):
                batch = await interrupted(source.read(), hops)
                if batch is not interrupted and batch is not None:
                    read += batch.values
                if len(read) >= len(self._expected):
                    break
                if (batch := await source.read()) is None:
                    break
                read += batch.values
            await self._gives(source, read)
            await source.close()

    async def a_source_that_is_told_to_end_gives_what_it_has_taken(self, folder: Path) -> None:
        """After `end` that gave True, reads give what was taken in, then None; `position` is behind it."""
        source = await self._opened(folder)
        batch = await source.read()
        read = [] if batch is None else list(batch.values)
        if source.end():
            while (batch := await source.read()) is not None:
                read += batch.values
        position = _kept(source.position()) if self._replayable else None
        await source.close()
        came: dict[Any, list[Any]] = {}
        for element in read:
            came.setdefault(self._split_of and self._split_of(element), []).append(element)
        for split, elements in came.items():
            every = [one for one in self._expected if not self._split_of or self._split_of(one) == split]
            expect_equal("elements", elements, every[: len(elements)])
        if position is not None:
            await self._goes_on_from(folder, position, read)

    async def it_closes_in_whatever_state_it_is(self, folder: Path) -> None:
        """`close` works right after `open`, after an `open` that failed, and after a cancelled read."""
        for how in ("new", "opened", "cancelled"):
            source = self._make(folder)
            if how != "new":
                await source.open()
            if how == "cancelled":
                await interrupted(source.read(), 1)
            await source.close()

    # ------------------------------------------------------------------ positions

    async def each_position_leads_to_what_had_not_been_read(self, folder: Path) -> None:
        """From the position behind any batch, as the codec keeps it, another source goes on exactly."""
        for position, read in await self._walk(folder):
            if not read and position is None:
                continue
            expect(position is not None, f"position() is None behind {len(read)} elements")
            await self._goes_on_from(folder, position, read)

    async def asked_for_its_position_it_changes_nothing(self, folder: Path) -> None:
        """`position` can be asked any number of times; so can `can_seek`, also before `open`."""
        (position, _), *_ = reversed(await self._walk(folder))
        source = self._make(folder)
        await source.can_seek(position)
        await source.open()
        read: list[Any] = []
        while len(read) < len(self._expected):
            expect_equal("the second answer", _kept(source.position()), _kept(source.position()))
            if (batch := await source.read()) is None:
                break
            read += batch.values
        await source.close()
        self._all_came(read, again=True)

    async def crashes_between_any_two_reads_lose_nothing(self, folder: Path) -> None:
        """A source that is left behind every batch, and followed by another one, gives every element once."""
        read: list[Any] = []
        position = None
        while len(read) < len(self._expected):
            source = await self._opened(folder)
            if position is not None:
                await source.seek(position)
                expect_equal("the position after seek", _kept(source.position()), position)
            if (batch := await source.read()) is None:
                break
            read += batch.values
            position = _kept(source.position())
        for source in self._made:
            await source.close()
        self._all_came(read, again=True)

    async def goes_on_from_an_older_position_too(self, folder: Path) -> None:
        """A checkpoint may be lost, and the one before it be gone on from, though one has been further."""
        walked = await self._walk(folder)
        for older, newer in pairwise(walked):
            if older[0] is None:
                continue
            source = await self._opened(folder)
            await source.seek(newer[0])
            await source.close()
            source = await self._opened(folder)
            await source.seek(older[0])
            await self._gives(source, older[1], again=True)
            await source.close()

    async def what_is_not_forgotten_can_be_gone_back_to(self, folder: Path) -> None:
        """After `forget` of a position, reading goes on, and can begin there and at later ones."""
        walked = await self._walk(folder)
        position, read = walked[len(walked) // 2]
        source = await self._opened(folder)
        await source.seek(position)
        await source.forget(position)
        await self._gives(source, read, again=True)
        await source.close()
        for position, read in walked[len(walked) // 2 :]:
            await self._goes_on_from(folder, position, read)

    async def opened_again_it_goes_on_where_it_is_put(self, folder: Path) -> None:
        """A source that says `is_reopenable` can be closed and opened again, and read from a position on."""
        source = self._make(folder)
        if not source.is_reopenable():
            return
        await source.open()
        batch = await source.read()
        read = [] if batch is None else list(batch.values)
        position = _kept(source.position())
        source.suspend()
        await source.close()
        await source.open()
        await source.seek(position)
        await self._gives(source, read, again=True)
        await source.close()


def _values(batches: Sequence[SourceBatch[Any]]) -> list[Any]:
    return [value for batch in batches for value in batch.values]


def _kept(position: Any) -> Any:
    """A position as a checkpoint gives it back."""
    return CODEC.decode(CODEC.encode(position))
