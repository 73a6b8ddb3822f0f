"""
What the checkpoints of a job hold of its tables: chains of what has changed.

Theory. A table is cut when a checkpoint is taken, or when it has grown too large for memory (`spilling`).
What was cut is encoded into the table's chain, in a thread, for nothing changes it any more; then it is
merged into what is old, in slices. Only then the table may be cut again: so one at a time does all this, and
what is left of one that was given up is finished by the next. A checkpoint names the parts of all chains as
they are after its cut.

Beside that long chains are compacted: no checkpoint waits for it. What is too large for a manifest can be put
into the store ahead of the checkpoint that names it, so that it need not be held in memory until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from asyncstream.aside import aside
from asyncstream.checkpoint import History
from asyncstream.checkpoint.chains import PART_BYTES, Chain
from asyncstream.checkpoint.parts import Part
from asyncstream.checkpoint.segments import ABOUT, Compaction, encode_delta
from asyncstream.codec import Codec
from asyncstream.errors import describe_error
from asyncstream.lease import Lease
from asyncstream.long_work import in_slices, without_collector
from asyncstream.operators.base import Operator
from asyncstream.state import Cut, OldRows, Tables

__all__ = ("TableLog",)

T = TypeVar("T")

log = logging.getLogger("asyncstream.checkpoint")

INLINE_ROWS = 500
"""Rows of tables that have changed and are encoded at once: less than a millisecond, as for what is small."""

LIGHT = 1 << 19
"""The same, in bytes of memory that their values take: a few rows may hold more than many."""

SMALL = 16 << 20
"""Bytes of a chain that is compacted in memory, wherever rows are: it takes a seventh of the time."""

LUMP = 4 << 20
"""Bytes of a chunk, as of one large row, that are read in a thread: it would be a slice by itself."""


@dataclass(eq=False)
class TableLog:
    """
    The tables of a job, as its checkpoints hold them.

    Args:
        lease: gives the lease of the job.
        inline_bytes: larger parts are for the store.

    Attributes:
        chains: by step, then by table.
        cuts: what is not yet in the chains, with its step.
        cutting: held from a cut until what was cut is encoded and merged.
        storing: held while something is written to the store.
        rows: makes a place for the oldest generation of a table; None: in memory.
        is_full: whether a step has so many young rows that merging is urgent.
    """

    _history: History
    _codec: Codec
    _lease: Callable[[], Lease]
    _inline_bytes: int
    _pipeline: str
    chains: dict[str, dict[str, Chain]] = field(default_factory=dict)
    cuts: list[tuple[str, Cut]] = field(default_factory=list)
    cutting: asyncio.Lock = field(default_factory=asyncio.Lock)
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    rows: Callable[[], OldRows] | None = None
    is_full: Callable[[Tables], bool] = lambda tables: False
    _operators: Mapping[str, Operator] = field(default_factory=dict)
    _steps: set[str] = field(default_factory=set)  # that keep tables
    _thread: asyncio.Future[Any] | None = None  # that encodes

    def begin(self, operators: Mapping[str, Operator]) -> None:
        """Be about the tables of these operators, by the names of their steps."""
        self._operators = operators

    def go_on_from(self, parts: Mapping[str, Iterable[Part]]) -> None:
        """Take up the parts that a checkpoint names, by step."""
        for step, of_step in parts.items():
            for part in of_step:
                if part.path[:1] != ABOUT:
                    self._chain(step, part.path[0]).parts.append(part)

    # ------------------------------------------------------------------ what has changed

    def cut(self, step: str) -> Cut:
        """Cut the tables of a step, between two elements; `cutting` is held, and all before is settled."""
        cut = self._operators[step].tables.cut()
        self._steps.add(step)
        self.cuts.append((step, cut))
        return cut

    def has_cut_little(self) -> bool:
        """Whether what waits to be encoded is not worth a thread."""
        deltas = [delta for _, cut in self.cuts for delta in cut.deltas.values()]
        return sum(map(len, deltas)) <= INLINE_ROWS and not any(delta.is_heavy(LIGHT) for delta in deltas)

    def keeps(self, step: str) -> bool:
        """Whether the state of a step is tables."""
        return step in self._steps

    def parts_of(self, step: str) -> list[Part]:
        """The parts of the tables of a step, in the order in which they are applied."""
        return [part for chain in self.chains.get(step, {}).values() for part in chain.parts]

    def committed(self, names: Collection[str]) -> None:
        """The store has the parts of these names."""
        for chain in self._every_chain():
            chain.committed(names)

    async def spill(self, steps: Collection[str]) -> None:
        """
        Make old what these steps have touched, for it has become much; it is part of the next checkpoint.
        Raises `CheckpointError` if it cannot be kept in one.
        """
        async with self.cutting:
            await self.settle()
            for name in steps:
                self.cut(name)
            await self.aside(self.encode)
            await self.merge()
        try:
            for chain in self._every_chain():
                for part in list(chain.parts):
                    if await self._put_ahead(part):
                        chain.committed([str(part.stored)])
        except Exception as error:  # of the store: it stays here, and the next checkpoint tries again
            log.warning("pipeline %r: state waits for the store: %s", self._pipeline, describe_error(error))

    async def _put_ahead(self, part: Part) -> bool:
        """Have the store keep a part that is too large for a manifest; whether there was one to keep."""
        if part.stored is None or part.data is None:
            return False
        async with self.storing:
            await self._history.put_ahead(self._lease(), part.stored, part.data)
        return True

    async def settle(self) -> None:
        """Finish with what was cut for a checkpoint that did not come about."""
        if self._thread is not None:
            await asyncio.wait({self._thread})
        if self.cuts:
            await self.aside(self.encode)
        await self.merge()

    async def merge(self) -> None:
        """Make old what was cut and is encoded."""
        for operator in self._operators.values():
            tables = operator.tables
            await in_slices(tables.merging(), partial(self.is_full, tables))

    async def compact(self) -> None:
        """Have one base instead of a long chain of changes."""
        for chain in self._every_chain():
            if not chain.is_long:
                continue
            try:
                await self._compact_chain(chain)
            except Exception as error:  # of the store, or of a codec: the chain stays as it is
                log.warning("pipeline %r: state was not compacted: %s", self._pipeline, describe_error(error))
            finally:
                chain.release()
        names = [part.stored for chain in self._every_chain() for part in chain.parts]
        self._history.keep_ahead([name for name in names if name is not None])

    async def _compact_chain(self, chain: Chain) -> None:
        parts = chain.fix()
        rows = self.rows if sum(part.size for part in parts) > SMALL else None
        # rows that are elsewhere are for the event loop alone
        is_aside = rows is None and any(max(part.chunks, default=0) > LUMP for part in parts)
        work = Compaction(self._codec, rows)
        base: list[Part] = []
        try:
            for part in parts:
                await _run_through(work.feed(await self._history.chunks(part)), is_aside)
            rest = work.chunks()
            while chunks := await _run_through(_some(rest), is_aside):
                part = chain.base_of(chunks)
                if self.rows is not None and await self._put_ahead(part):
                    part = part.without_data()
                base.append(part)
        finally:
            work.close()
        chain.replace(base)

    def _every_chain(self) -> list[Chain]:
        # as lists: a thread that encodes may be adding some
        return [chain for chains in list(self.chains.values()) for chain in list(chains.values())]

    def _chain(self, step: str, table: str) -> Chain:
        chains = self.chains.setdefault(step, {})
        if table not in chains:
            chains[table] = Chain(table, self.name_of, self._inline_bytes)
        return chains[table]

    def name_of(self, digest: str) -> str:
        """The name under which the part with this digest is kept, or is to be."""
        return self._history.name_of(digest, self._lease().number)

    def encode(self) -> None:
        """
        Append what was cut to the chains; may run in a thread. Raises `CannotKeep` if the codec refuses a
        value, naming the step.
        """
        while self.cuts:
            step, cut = self.cuts[0]
            encoded = {
                table.name: encode_delta(step, delta, table, self._codec)
                for table, delta in cut.deltas.items()
            }
            for name, chunks in encoded.items():
                self._chain(step, name).append(chunks)
            del self.cuts[0]

    async def aside(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread; it goes on, whatever becomes of the one who waits."""
        self._thread = asyncio.ensure_future(asyncio.to_thread(without_collector()(work)))
        try:
            return await asyncio.shield(self._thread)
        finally:
            if self._thread.done():
                self._thread = None


async def _run_through(slices: Iterator[None], is_aside: bool) -> Any:
    """
    What they return, in a thread or here. Others' garbage waits for them, and no longer: all of a large state
    takes minutes.
    """
    with without_collector():
        return await (aside(partial(_returned, slices)) if is_aside else in_slices(slices))


def _returned(slices: Iterator[None]) -> Any:
    while True:
        try:
            next(slices)
        except StopIteration as end:
            return end.value


def _some(chunks: Iterator[bytes]) -> Generator[None, None, list[bytes]]:
    """The next chunks, enough for a part; in slices."""
    found: list[bytes] = []
    size = 0
    for chunk in chunks:
        found.append(chunk)
        size += len(chunk)
        if size >= PART_BYTES:
            break
        yield
    return found
