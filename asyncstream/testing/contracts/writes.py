"""
What every sink promises (`asyncstream.connectors.base.Sink`), as checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from asyncstream.connectors.base import Sink, TransactionalSink
from asyncstream.connectors.conduct import way_to_write
from asyncstream.testing.contracts.checks import Contract, expect, expect_equal, given
from asyncstream.testing.contracts.lives import HOPS, interrupted
from asyncstream.validation import flag, refuse, takes

__all__ = ("WRITES", "SinkContract")

WRITES: Final = 8
"""Into how many writes the elements are divided."""


class SinkContract(Contract[Sink[Any]]):
    """The checks of every sink; arguments as for `sink_contract`."""

    transactional: ClassVar[bool] = False

    def __init__(
        self,
        make: Callable[[Path], Sink[Any]],
        read: Callable[[Path], Sequence[Any] | Awaitable[Sequence[Any]]],
        elements: Sequence[Any],
        in_order: bool,
    ) -> None:
        super().__init__(make, Sink)
        if not callable(read):
            raise refuse("read", "a function", read)
        takes("read", read, "folder")
        self._read = read
        self._in_order = flag("in_order", in_order)
        size = len(elements) // WRITES
        self._writes = [list(elements[size * n : size * (n + 1)]) for n in range(WRITES)]

    async def abandon(self, made: Sink[Any]) -> None:
        await made.close()

    def _elements(self, *writes: int) -> list[Any]:
        return [element for number in writes for element in self._writes[number]]

    async def _found(self, folder: Path) -> list[Any]:
        """What readers see."""
        found = await given(self._read(folder))
        if not isinstance(found, Iterable):
            raise refuse("read", "a function that gives the elements", found)
        return list(found)

    async def _see(self, what: str, folder: Path, *writes: int) -> None:
        """Readers see these writes, and nothing else."""
        found, wanted = await self._found(folder), self._elements(*writes)
        if not self._in_order:
            found, wanted = sorted(found, key=repr), sorted(wanted, key=repr)
        expect_equal(f"what readers see {what}", found, wanted)

    async def what_is_written_is_there_in_the_end(self, folder: Path) -> None:
        """In a job without checkpoints, `open`, `write`, `flush` and `close` do it all."""
        sink = self._make(folder)
        expect_equal("isinstance TransactionalSink", isinstance(sink, TransactionalSink), self.transactional)
        await sink.open()
        for number, write in enumerate(self._writes):
            values = tuple(write)
            await sink.write(values, None if number % 2 else list(range(len(values))))
        await sink.flush()
        await sink.close()
        await self._see("at the end", folder, *range(WRITES))

    async def batches_are_written_as_elements_are(self, folder: Path) -> None:
        """A sink has one of `write` and `write_batch`, and if it has both, they write the same."""
        sink = self._make(folder)
        way = way_to_write(sink)
        expect(way is not None, "it defines neither write nor write_batch")
        await sink.open()
        for number, write in enumerate(self._writes):
            if way == "write_batch" and number % 2:
                await sink.write_batch(tuple(write))
            else:
                await sink.write(tuple(write), None)
        await sink.flush()
        await sink.close()
        await self._see("at the end", folder, *range(WRITES))

    async def nothing_written_is_an_end_too(self, folder: Path) -> None:
        """A job that has no results opens and closes its sinks."""
        sink = self._make(folder)
        await sink.open()
        await sink.flush()
        await sink.close()
        await self._see("at the end", folder)

    async def it_closes_though_it_was_not_opened(self, folder: Path) -> None:
        """`close` is called after an `open` that failed, too."""
        await self._make(folder).close()

    async def a_write_that_is_cancelled_says_what_it_has_taken(self, folder: Path) -> None:
        """Of a write that is cancelled, what is not `taken` is written again: nothing is missing then."""
        for hops in HOPS[1:]:  # a task that is cancelled before its first pass has called nothing
            place = self._place(folder, f"after {hops}")
            sink = self._make(place)
            await sink.open()
            for write in self._writes:
                values = list(write)
                while values:
                    if await interrupted(sink.write(values, None), hops) is not interrupted:
                        break
                    taken = sink.taken()
                    expect(0 <= taken <= len(values), f"{taken} taken, of {len(values)} elements")
                    values = values[taken:]
                    if values:
                        await sink.write(values, None)
                        break
            await sink.flush()
            await sink.close()
            found = await self._found(place)
            missing = [element for element in self._elements(*range(WRITES)) if element not in found]
            expect(not missing, f"cancelled after {hops} passes of the loop, these are missing: {missing!r}")
