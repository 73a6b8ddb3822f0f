"""
The checkpoints of a store as a history: which ones there are, the next one, and which ones to let go.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from asyncstream.aside import aside
from asyncstream.checkpoint.format import CheckpointInfo, Draft, unpack, unpack_info
from asyncstream.checkpoint.parts import Encoded, Part, check_part, digest_in, is_part_name, part_name
from asyncstream.checkpoint.seal import check_seal, seal, unsealed
from asyncstream.checkpoint.segments import plain_state
from asyncstream.checkpoint.stores import CheckpointStore, Manifests, manifests_of
from asyncstream.codec import Codec
from asyncstream.errors import CheckpointError, DamagedCheckpoint
from asyncstream.lease import Lease

__all__ = ("History", "info_in")

T = TypeVar("T")

LOOKS: Final = 10
"""How often checkpoints are looked for while a job lets go what was found."""

TOGETHER: Final = 50
"""Manifests that are read with one question to the store, and held in memory at a time."""

LARGE: Final = 2**20
"""Bytes of which a checksum takes a millisecond: it is made in a thread."""

log = logging.getLogger("asyncstream.checkpoint")


class History:
    """
    The checkpoints of a store.

    A part is deleted when no manifest names it. What a damaged manifest names is unknown, and whether it is
    a savepoint: it stays until it is deleted by its number, and as long as there is one, nothing is deleted
    that it may need, so that it can be mended from a backup.

    Attributes:
        newest: the largest number that `look` has seen, also of a checkpoint that is damaged; 0: none.
        passed_over: by number, what was wrong with those that `newest_whole` could not use.

    Args:
        store: where they are.
        codec: how their values became bytes.
        key: what manifests are sealed with; None: nothing is sealed.
    """

    def __init__(self, store: CheckpointStore, codec: Codec, key: bytes | None = None) -> None:
        self.newest = 0
        self.passed_over: dict[int, DamagedCheckpoint] = {}
        self._store = store
        self._codec = codec
        self._key = key
        self._infos: dict[int, CheckpointInfo | None] = {}  # what manifests say; None: damaged
        self._names: dict[str, str] = {}  # of the parts that are whole, by digest
        self._warned: set[int] = set()  # of these that are damaged
        self._ahead: set[str] = set()  # parts that are kept, though perhaps no manifest names them yet
        self._found = 0  # later manifests were written with the lease that `clean` was given

    async def look(self) -> list[int]:
        """The numbers of all checkpoints, in ascending order; notes the largest in `newest`."""
        numbers = await self._store.numbers()
        self.newest = max(self.newest, *numbers, 0)
        return numbers

    async def infos(self) -> dict[int, CheckpointInfo | CheckpointError]:
        """As `each`, with what each manifest says of itself; seals are not looked at."""

        async def look(number: int, data: bytes) -> CheckpointInfo:
            return info_in(data, number)

        return await self.each(look)

    async def info(self, number: int) -> CheckpointInfo:
        """What a manifest says of itself, its seal unchecked."""
        return info_in(await self._store.read(number), number)

    async def each(
        self,
        look: Callable[[int, bytes], Awaitable[T]],
        choose: Callable[[list[int]], list[int]] | None = None,
    ) -> dict[int, T | CheckpointError]:
        """
        By number, in ascending order, what `look` gives of each checkpoint, or what is wrong with it; without
        those that a job has let go meanwhile.

        Args:
            look: called with the number of one, and its manifest.
            choose: gives of all numbers those that are to be looked at; None: all are.

        Raises:
            CheckpointError: if a job lets all of them go before they are read.
        """
        for _ in range(LOOKS):
            found: dict[int, T | CheckpointError] = {}
            numbers = await self.look()
            if choose is not None:
                numbers = choose(numbers)
            async for some in self._manifests(numbers):
                wrong: list[int] = []
                for number, data in some.items():
                    try:
                        found[number] = await look(number, _given(data))
                    except CheckpointError as error:
                        found[number] = error
                        wrong.append(number)
                for number in set(wrong).difference(await self._store.numbers()) if wrong else ():
                    del found[number]
            if found or not numbers:
                return found
        raise self._too_quick()

    async def _manifests(self, numbers: Sequence[int]) -> AsyncIterator[Manifests]:
        """Those of these numbers, some at a time."""
        for first in range(0, len(numbers), TOGETHER):
            yield await manifests_of(self._store, numbers[first : first + TOGETHER])

    async def _is_gone(self, number: int) -> bool:
        """Whether what could not be read has been let go, by the job that writes."""
        return number not in await self._store.numbers()

    def _too_quick(self) -> CheckpointError:
        return CheckpointError(
            f"a job lets the checkpoints in {self._store} go before they are read; have it keep more of them"
        )

    async def newest_whole(self, look: Callable[[int], Awaitable[T]]) -> T | None:
        """
        What `read`, `open` or `parts` gives of the newest checkpoint that is whole; None if there is none at
        all. What is damaged is logged.

        Raises:
            CheckpointError: if all are damaged, or the newest whole one cannot be read by this program, or a
                job lets them go before they are read.
        """
        for _ in range(LOOKS):
            self.passed_over.clear()
            numbers = await self.look()
            for number in reversed(numbers):
                try:
                    return await look(number)
                except CheckpointError as error:
                    if await self._is_gone(number):
                        break  # and there are newer ones
                    if not isinstance(error, DamagedCheckpoint):
                        raise
                    log.warning("%s; going back to the one before", error)
                    self.passed_over[number] = error
            else:
                if not numbers:
                    return None
                raise CheckpointError(
                    f"every checkpoint in {self._store} is damaged; to start from the beginning: "
                    "restore='none'"
                )
        raise self._too_quick()

    async def read(self, number: int) -> tuple[CheckpointInfo, dict[str, Any]]:
        """As `open`, with what steps remember as snapshots; raises, too, if a value cannot be read."""
        info, encoded = await self.open(number)
        return info, {name: plain_state(name, state, self._codec) for name, state in encoded.items()}

    async def open(self, number: int, *, to_decode: bool = True) -> tuple[CheckpointInfo, dict[str, Encoded]]:
        """As `parts`, with what steps remember as it went through the codec."""
        return await self._taken(
            number, to_decode, lambda part, chunks: [(part.path, chunk) for chunk in chunks]
        )

    async def parts(
        self, number: int, *, to_decode: bool = True
    ) -> tuple[CheckpointInfo, dict[str, list[Part]]]:
        """
        The checkpoint of this number, and by name the parts of what its steps remember, of which the data is
        here only if the manifest holds it.

        Args:
            to_decode: False: what is not sealed, or written by another codec, will do, too; the seal is
                looked at only if this history has a key.

        Raises:
            DamagedCheckpoint: if it is not whole.
            CheckpointError: if it is not there, cannot be read by this program, or another key wrote it.
        """
        return await self._taken(number, to_decode, lambda part, chunks: [part])

    async def chunks(self, part: Part) -> Iterator[bytes]:
        """
        Those of a part, which may be read for that.

        Raises:
            DamagedCheckpoint: if it is not what was written.
            CheckpointError: if it is not there.
        """
        if part.data is not None or part.stored is None:
            return part.chunks_in()
        data = await self._store.read(part.stored)
        if len(data) > LARGE:
            await aside(partial(check_part, part.stored, data))
        else:
            check_part(part.stored, data)
        return part.chunks_in(data)

    async def _taken(
        self, number: int, to_decode: bool, take: Callable[[Part, Iterator[bytes]], list[T]]
    ) -> tuple[CheckpointInfo, dict[str, list[T]]]:
        """As `parts`, with what `take` gives of each part and its chunks."""
        try:
            data = await self._store.read(number)
        except DamagedCheckpoint as damage:
            raise _damaged(number, damage) from damage
        with _naming(number):
            # first: a damaged file is no holder's work, and the one before it may be whole
            info, parts = unpack(unsealed(data))
            _check_number(info, number)
            if to_decode or self._key is not None:
                check_seal(data, self._key)
            if to_decode and info.codec != self._codec.name:
                raise CheckpointError(
                    f"it was written with codec={info.codec!r}, and is now read with {self._codec.name!r}: "
                    "leave the codec as it was, or begin at the beginning, with restore='none'"
                )
            taken = {
                name: [one for part in of_step for one in take(part, await self._whole_chunks(number, part))]
                for name, of_step in parts.items()
            }
        self._rely_on(info.stored)
        return info, taken

    async def _whole_chunks(self, number: int, part: Part) -> Iterator[bytes]:
        """As `chunks`, of a part without which the checkpoint is damaged; out of reach is not lost."""
        try:
            return await self.chunks(part)
        except DamagedCheckpoint:
            raise
        except CheckpointError as error:
            if part.stored in await self._store.parts():
                raise
            if await self._is_gone(number):
                raise CheckpointError("a job has let it go while it was read") from error
            raise DamagedCheckpoint(f"it lacks a part: {error}") from error

    # ------------------------------------------------------------------ for the job that holds the lease

    def name_of(self, digest: str, lease: int) -> str:
        """The name under which the part with this digest is kept, or is to be."""
        return self._names.get(digest) or part_name(digest, lease)

    async def write(self, lease: Lease, draft: Draft) -> None:
        """
        Keep a checkpoint. Parts that this history has written or read are not written again.

        What else is in the store may be damaged, even if a manifest names it that is whole.

        Whatever it raises, the checkpoints before are as they were; this one may be there, or not.
        """
        known = set(self._names.values())
        for name, data in draft.parts.items():
            if name not in known:
                await self._store.put(lease, name, data)
        await self._store.commit(lease, draft.info.id, seal(draft.manifest, self._key))
        # a part counts as kept only now: after an error it is written anew
        self._infos[draft.info.id] = draft.info
        self._rely_on(draft.info.stored)

    async def put_ahead(self, lease: Lease, name: str, data: bytes) -> None:
        """Keep a part that a manifest will name."""
        self._ahead.add(name)  # before: what lies there unnamed may be deleted at any time
        if self._names.get(digest_in(name)) != name:
            await self._store.put(lease, name, data)
            self._rely_on((name,))

    def keep_ahead(self, names: Collection[str]) -> None:
        """Of the parts that were put ahead a manifest will name these only."""
        self._ahead &= set(names)

    async def clean(self, lease: Lease, numbers: Collection[int] = ()) -> None:
        """
        Look at what is there, and delete what crashes have left behind, parts that no manifest names; and the
        checkpoints of these numbers, with what only they have named.

        Manifests are read, the newest first, until they name all the parts: often the last few do.
        """
        found = [number for number in await self.look() if number not in numbers]
        unnamed = set(await self._parts()) - self._ahead
        for number in reversed(found):
            if not unnamed:
                break
            await self._look_into([number])
            if (info := self._infos[number]) is not None:
                unnamed -= info.stored
        self._warn_of_damaged()
        self._found = self.newest
        await self._delete(lease, numbers)

    async def let_go(self, lease: Lease, keep: int) -> list[int]:
        """
        Delete all but savepoints, what is damaged, and the newest `keep` checkpoints, and the parts that only
        they have named.

        Returns:
            The numbers of the newest, in ascending order; with so few that nothing is deleted, those that are
            not known to be damaged.
        """
        numbers = await self.look()
        # a list may come late: what this history has written behind its end is there
        numbers += sorted(number for number in self._infos if number > max(numbers, default=0))
        if len(numbers) <= keep:
            unreadable = set(self._unreadable())
            return [number for number in numbers if number not in unreadable]
        # of an earlier job; or its commit only seemed to have failed, as reading it may have, for a moment
        await self._look_into([number for number in numbers if self._infos.get(number) is None])
        self._warn_of_damaged()
        self._infos = {number: self._infos[number] for number in numbers}  # without what is lost
        whole = [info for info in self._infos.values() if info is not None]
        if old := [info.id for info in whole[:-keep] if not info.savepoint]:
            await self._delete(lease, old)
        return [info.id for info in whole[-keep:]]

    async def _look_into(self, numbers: Sequence[int]) -> None:
        """Note what manifests say that this history has not written, or has read before."""
        async for some in self._manifests(numbers):
            for number, data in some.items():
                try:
                    self._infos[number] = info_in(_given(data), number)
                except CheckpointError:
                    self._infos[number] = None

    def _warn_of_damaged(self) -> None:
        """Say once of each what becomes of those that cannot be read."""
        if damaged := sorted(set(self._unreadable()) - self._warned):
            self._warned.update(damaged)
            log.warning(
                "%s: of these checkpoints it cannot be read whether they are savepoints, so they stay, with "
                "all that they may need, until they are mended, or deleted by `asyncstream checkpoint "
                "delete`: %s",
                self._store,
                ", ".join(map(str, damaged)),
            )

    def _unreadable(self) -> list[int]:
        return [number for number, info in self._infos.items() if info is None]

    def _named(self) -> set[str]:
        return self._ahead.union(*(info.stored for info in self._infos.values() if info is not None))

    async def _delete(self, lease: Lease, numbers: Collection[int]) -> None:
        for number in numbers:
            self._infos.pop(number, None)
        named = self._named()
        unnamed = [name for name in await self._parts() if name not in named]
        if damaged := self._unreadable():
            # a manifest of an earlier job needs nothing that was written under this lease
            ours = f"-{lease.number}" if max(damaged) <= self._found else "-"
            unnamed = [name for name in unnamed if name.endswith(ours)]
        self._names = {digest: name for digest, name in self._names.items() if name in named}
        await self._store.delete(lease, numbers, unnamed)

    async def _parts(self) -> list[str]:
        """Those that are there, whoever has written them."""
        return [name for name in await self._store.parts() if is_part_name(name)]

    def _rely_on(self, stored: Iterable[str]) -> None:
        self._names.update((digest_in(name), name) for name in stored)


def info_in(data: bytes, number: int) -> CheckpointInfo:
    """
    What the manifest of a checkpoint says of itself, its seal unchecked; raises `DamagedCheckpoint` if it is
    that of another one, and as `unpack`.
    """
    info = unpack_info(unsealed(data))
    _check_number(info, number)
    return info


def _given(data: bytes | CheckpointError) -> bytes:
    """What a store gave; raised, if it raised that."""
    if isinstance(data, CheckpointError):
        raise data
    return data


def _check_number(info: CheckpointInfo, number: int) -> None:
    if info.id != number:
        raise DamagedCheckpoint(f"in its place is checkpoint {info.id}")


@contextmanager
def _naming(number: int) -> Iterator[None]:
    """Errors in this block say which checkpoint they are about."""
    try:
        yield
    except DamagedCheckpoint as damage:
        raise _damaged(number, damage) from damage
    except CheckpointError as error:
        raise CheckpointError(f"checkpoint {number}: {error}") from error


def _damaged(number: int, damage: DamagedCheckpoint) -> DamagedCheckpoint:
    """The error that says which checkpoint is damaged, to be raised by the caller."""
    return DamagedCheckpoint(f"checkpoint {number} is damaged: {damage}")
