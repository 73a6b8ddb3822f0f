"""
Many sources of one kind, read as one: each is a *split* of it, such as a file of a folder.

    known ──> open, at most `parallel` at a time ──> at its end
                  │   ▲
                  └───┘  one batch of each is ready, and no other is read before that is given out

A task reads each open split, one batch ahead; `read` gives them out in turn. So what is slow to come in one
split holds up no other, a split that is held (`Source.hold`) has one batch in memory, and a `read` that is
cancelled has taken nothing: the tasks go on, and keep what they have. The position holds, of each split that
is open, where it stood when its last batch was given out.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from asyncstream.aside import Tasks
from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.cancellation import stopped
from asyncstream.errors import SourceError, describe_error, safe_repr
from asyncstream.state import detached
from asyncstream.validation import Duration, count, duration_seconds, flag, function, refuse, takes, text

__all__ = ("SplitSource",)

log = logging.getLogger("asyncstream.sources")

T = TypeVar("T")


@dataclass(eq=False)
class _Open(Generic[T]):
    """
    A split that is being read.

    Attributes:
        name: of the split.
        source: what reads it.
        position: behind the last batch that was given out; None: at its beginning.
        task: reads a batch; None: one is ready, or it has not begun.
        ready: what came last, and the position behind it; None: nothing. A batch of None is the end.
        error: what reading has failed with.
    """

    name: str
    source: Source[T]
    position: Any = None
    is_begun: bool = False
    task: asyncio.Task[None] | None = None
    ready: tuple[SourceBatch[T] | None, Any] | None = None
    error: SourceError | None = None


class SplitSource(Source[T]):
    """
    Reads many sources as one; their elements come mixed, those of each in order.

        SplitSource(lambda table: SqliteSource("shop.db", table), ["orders", "returns"])

    It ends when all splits have ended, unless it looks for new ones. What it goes on from are the positions
    of the open splits and the names of those that have ended, which are not read again.

    Args:
        make: gives a new source of a split, by its name. It must be one that can be read again after a crash,
            and end by itself unless the job is to run until it is stopped; not one that acknowledges.
        splits: the names of the splits to read, in the order in which to begin with them; or a function,
            perhaps `async def`, that gives them.
        every: how often to look for splits that are new, if `splits` is a function: a `timedelta` or seconds;
            None: once, at the beginning.
        parallel: how many splits are read at a time. Event time waits for those only, not for what is yet to
            be begun: begin with the oldest.
        rejects: what the splits reject, for they are told to, goes to the source's `rejected` output.
    """

    _nothing = "there were no splits"

    def __init__(
        self,
        make: Callable[[str], Source[T]],
        splits: Sequence[str] | Callable[[], Iterable[str] | Awaitable[Iterable[str]]] = (),
        *,
        every: Duration | None = None,
        parallel: int = 4,
        rejects: bool = False,
    ) -> None:
        self._make = function("make", make, "split")
        if not callable(splits) and (isinstance(splits, str) or not isinstance(splits, Iterable)):
            raise refuse("splits", "names of splits, or a function that gives them", splits)
        if callable(splits):
            takes("splits", splits)
        self._given = splits if callable(splits) else tuple(text("splits", name) for name in splits)
        self._every = None if every is None else duration_seconds("every", every)
        self._parallel = count("parallel", parallel)
        self.rejects = flag("rejects", rejects)
        self._assigned: dict[str, Any] = {}  # besides those that are given, and where to begin in them
        self._revoked: set[str] = set()  # of those that are given, or that a checkpoint knows of
        self._begin()

    def _begin(self) -> None:
        self._waiting: OrderedDict[str, None] = OrderedDict()  # there may be very many
        self._open: dict[str, _Open[T]] = {}
        self._ended: dict[str, None] = {}  # in their order
        self._positions: dict[str, Any] = {}  # to go on from, of splits that are not open
        self._held: frozenset[str] = frozenset()
        self._leaving = Tasks()
        self._arrived = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._failed: SourceError | None = None
        self._looks = False
        self._ready: deque[_Open[T]] = deque()  # in the order in which they came
        self._has_left = False  # a split, since the last batch

    # ------------------------------------------------------------------ which splits

    def assign(self, *names: str, positions: Mapping[str, Any] = MappingProxyType({})) -> None:
        """
        Read these splits too, if they are not read and have not been. Also before `open`, and after a restart
        in this process; a new one is to be told again. So it is of `revoke`.

        Args:
            names: of the splits.
            positions: where to go on in some of them; the others are read from the beginning.
        """
        self._revoked.difference_update(names)
        self._add({name: positions.get(name) for name in names})
        for name in names:
            self._assigned.setdefault(name, positions.get(name))

    def _add(self, splits: Mapping[str, Any]) -> None:
        """Read these too, each from where it says; None: from the beginning."""
        for name, position in splits.items():
            if not isinstance(name, str) or not name:  # of a file it may be anything else
                raise refuse("name", "a non-empty text", name)
            is_known = name in self._open or name in self._ended or name in self._waiting
            if not is_known and name not in self._revoked:
                self._waiting[name] = None
                if position is not None:
                    self._positions[name] = position
        self._arrived.set()

    def revoke(self, *names: str) -> dict[str, Any]:
        """
        Read these splits no more, until they are assigned; what was read ahead of them is not given out.

        Returns:
            Where each stood that had begun, for who goes on with it.
        """
        left: dict[str, Any] = {}
        self._revoked.update(names)
        for name in names:
            position = self._positions.pop(name, None)
            self._waiting.pop(name, None)
            self._assigned.pop(name, None)
            split = self._open.pop(name, None)
            if split is not None:
                position = split.position
                self._leave(split)
            if position is not None:
                left[name] = position
        self._arrived.set()
        return left

    def splits(self) -> Sequence[str]:
        return tuple(self._open)

    def hold(self, splits: Collection[str]) -> None:
        self._held = frozenset(splits)
        self._arrived.set()

    # ------------------------------------------------------------------ reading

    async def open(self) -> None:
        self._begin()
        await self._look()
        self._add(self._assigned)
        if callable(self._given) and self._every is not None:
            self._looks = True
            self._looking = asyncio.create_task(self._keep_looking(self._every), name="asyncstream splits")

    async def names(self) -> list[str]:
        """Those of all the splits that there are now, also of what has been read. Also before `open`."""
        if not callable(self._given):
            return list(self._given)
        found: Any = self._given()
        if inspect.isawaitable(found):
            found = await found
        if isinstance(found, str) or not isinstance(found, Iterable):  # each character would be a split
            raise refuse("splits", "a function that gives names of splits", found)
        return list(found)

    def part(self, name: str) -> Source[T]:
        """A new source of one split only."""
        source: Source[T] = self._make(name)
        if not isinstance(source, Source):
            raise SourceError(
                f"make: expected a function that gives a Source, got {safe_repr(source, 60)} for {name!r}"
            )
        source.writer, source.checkpoint_soon = self.writer, self.checkpoint_soon
        return source

    async def _look(self) -> None:
        self._add(dict.fromkeys(await self.names()))

    async def _keep_looking(self, every: float) -> None:
        try:
            while True:
                await asyncio.sleep(every)
                await self._look()
        except (Exception, asyncio.CancelledError) as error:
            if self._looking is None:  # it is this that was cancelled, and not something in it
                raise
            self._failed = SourceError(f"cannot look for splits: {describe_error(error)}")
            self._failed.__cause__ = error
            self._arrived.set()

    async def read(self) -> SourceBatch[T] | None:
        while True:
            if self._failed is not None:
                raise self._failed
            self._begin_some()
            batch = self._next()
            if batch is not None:
                self._has_left = False
                return batch
            if self._has_left:  # for the pipeline to hear that a split is gone, before others are waited for
                self._has_left = False
                return SourceBatch([])
            if not (self._open or self._waiting or self._looks):
                if not (self._ended or self._revoked):
                    log.warning("there was nothing to read: %s", self._nothing)
                return None
            self._arrived.clear()
            await self._arrived.wait()

    def _begin_some(self) -> None:
        """Begin with splits while there is room."""
        while self._waiting and len(self._open) < self._parallel:
            name, _ = self._waiting.popitem(last=False)
            self._open[name] = split = _Open(name, self.part(name), self._positions.pop(name, None))
            self._read_ahead(split)

    def _read_ahead(self, split: _Open[T]) -> None:
        split.task = asyncio.create_task(self._fill(split), name=f"asyncstream split {split.name}")

    def _next(self) -> SourceBatch[T] | None:
        """The batch that is the first to be given out; None: there is none now."""
        for split in list(self._ready):
            if split.name in self._held or self._open.get(split.name) is not split:
                continue
            if split.error is not None:
                raise split.error
            self._ready.remove(split)
            assert split.ready is not None
            (batch, split.position), split.ready = split.ready, None
            if batch is not None:
                self._read_ahead(split)
                return batch._replace(split=split.name)
            del self._open[split.name]
            self._ended[split.name] = None
            self._leave(split)
        return None

    async def _fill(self, split: _Open[T]) -> None:
        started_over = False
        try:
            if not split.is_begun:
                if not split.source.is_replayable():
                    raise SourceError("a split must be a source that can be read again from a position")
                await split.source.open()
                if split.source.acknowledges():
                    raise SourceError(
                        "a split cannot be a source that is to hear what is done, as a member of a group of "
                        "Kafka is: it would not; read it by itself, and unite the streams"
                    )
                split.is_begun = True
                if split.position is not None:
                    await split.source.seek(detached(split.position))
                    started_over = split.source.started_over
            batch = await split.source.read()
            if batch is not None and started_over:
                batch = batch._replace(started_over=True)
            split.ready = batch, detached(split.source.position())  # for it is to read ahead
        except (Exception, asyncio.CancelledError) as error:
            if self._open.get(split.name) is not split:  # it is left
                raise
            reason = str(error) if isinstance(error, SourceError) else describe_error(error)
            split.error = SourceError(f"split {split.name!r}: {reason}")
            split.error.__cause__ = error
        if self._open.get(split.name) is split:
            self._ready.append(split)
        split.task = None
        self._arrived.set()

    def _leave(self, split: _Open[T]) -> None:
        """Close the source of a split, when what it does has ended."""
        self._has_left = True
        if split in self._ready:
            self._ready.remove(split)
        self._leaving.start(self._closed(split), f"asyncstream split {split.name}")

    async def _closed(self, split: _Open[T]) -> None:
        await stopped(split.task)
        try:
            await split.source.close()
        except Exception as error:  # what was read of it was read
            log.warning("split %r could not be closed: %s", split.name, describe_error(error))

    def unread(self) -> int:
        ready = (split.ready for split in self._open.values())
        return sum(len(one[0].values) for one in ready if one is not None and one[0] is not None)

    # ------------------------------------------------------------------ positions

    def position(self) -> dict[str, Any]:
        now = {name: split.position for name, split in self._open.items()}
        known = {
            name: position for name, position in {**self._positions, **now}.items() if position is not None
        }
        return {"splits": known, "ended": list(self._ended)}

    async def can_seek(self, position: dict[str, Any]) -> None:
        for name, place in position["splits"].items():
            if name not in self._revoked:
                await self.part(name).can_seek(place)

    async def seek(self, position: dict[str, Any]) -> None:
        self._ended = dict.fromkeys(position["ended"])
        given = {name: place for name, place in self._positions.items() if name not in self._ended}
        known = {name: place for name, place in position["splits"].items() if name not in self._revoked}
        self._positions = {**given, **known}
        fresh = [name for name in self._waiting if name not in self._ended and name not in self._positions]
        self._waiting = OrderedDict.fromkeys([*self._positions, *fresh])

    async def forget(self, position: dict[str, Any]) -> None:
        for name, place in position["splits"].items():
            if name in self._open and self._open[name].is_begun:
                await self._open[name].source.forget(place)

    async def close(self) -> None:
        looking, self._looking = self._looking, None
        try:
            await stopped(looking)
        finally:
            splits, self._open = self._open, {}
            for split in splits.values():
                self._leave(split)
            if self._leaving:
                await asyncio.wait(self._leaving)
