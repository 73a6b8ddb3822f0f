"""
The checkpoints of a store as a history: which ones there are, the next one, and which ones to let go.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from asyncstream.aside import aside
from asyncstream.checkpoint.format import CheckpointInfo, Draft, encoded_states, parts_in, unpack_info
from asyncstream.checkpoint.parts import Encoded, Part, check_part, digest_in, part_name
from asyncstream.checkpoint.seal import is_sealed, seal, unseal, unsealed
from asyncstream.checkpoint.segments import plain_state
from asyncstream.checkpoint.stores import CheckpointStore
from asyncstream.codec import Codec
from asyncstream.errors import CheckpointError, DamagedCheckpoint
from asyncstream.lease import Lease

__all__ = ("History",)

T = TypeVar("T")

LARGE: Final = 2**20
"""Bytes of which a checksum takes a millisecond: it is made in a thread."""

log = logging.getLogger("asyncstream.checkpoint")


class History:
    """
    The checkpoints of a store.

    A part is deleted when no manifest names it. What a damaged manifest names is unknown: as long as there
    is one, nothing is deleted that it may need, so that it can be mended from a backup.

    Attributes:
        newest: the largest number that `look` has seen, also of a checkpoint that is damaged; 0: none.
        passed_over: by number, what was wrong with those that `read_newest` could not use.

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
        self._stored: dict[int, frozenset[str] | None] = {}  # what manifests name; None: damaged
        self._names: dict[str, str] = {}  # of the parts that are whole, by digest
        self._ahead: set[str] = set()  # parts that are kept for a manifest to come

    async def look(self) -> list[int]:
        """The numbers of all checkpoints, in ascending order; notes the largest in `newest`."""
        numbers = await self._store.numbers()
        self.newest = max(self.newest, *numbers, 0)
        return numbers

    async def infos(self) -> dict[int, CheckpointInfo | CheckpointError]:
        """
        By number, in ascending order, what each manifest says of itself, or what is wrong with it.

        Seals are not looked at.
        """
        found: dict[int, CheckpointInfo | CheckpointError] = {}
        for number in await self.look():
            try:
                found[number] = unpack_info(unsealed(await self._store.read(number)))
            except CheckpointError as error:
                found[number] = error
        return found

    async def read_newest(self) -> tuple[CheckpointInfo, dict[str, Any]] | None:
        """As `open_newest`, with what steps remember as snapshots."""
        opened = await self.open_newest()
        return None if opened is None else (opened[0], self._decoded(opened[1]))

    async def open_newest(self) -> tuple[CheckpointInfo, dict[str, Encoded]] | None:
        """
        The newest checkpoint that is whole, and by name what its steps remember, as it went through the
        codec; None if there is none at all. As for `newest_parts`.
        """
        return await self._newest_by(self.open)

    async def newest_parts(self) -> tuple[CheckpointInfo, dict[str, list[Part]]] | None:
        """
        The newest checkpoint that is whole, and by name the parts of what its steps remember; None if there
        is none at all. What is damaged is logged.

        Raises:
            CheckpointError: if all are damaged, or the newest whole one cannot be read by this program.
        """
        return await self._newest_by(self.parts)

    async def _newest_by(self, look: Callable[[int], Awaitable[T]]) -> T | None:
        self.passed_over.clear()
        numbers = await self.look()
        for number in reversed(numbers):
            try:
                return await look(number)
            except DamagedCheckpoint as damage:
                log.warning("%s; going back to the one before", damage)
                self.passed_over[number] = damage
        if numbers:
            raise CheckpointError(
                f"every checkpoint in {self._store} is damaged; to start from the beginning: restore='none'"
            )
        return None

    async def read(self, number: int) -> tuple[CheckpointInfo, dict[str, Any]]:
        """
        The checkpoint of this number, and by name what its steps remember, as snapshots.

        Raises:
            DamagedCheckpoint: if it is not whole.
            CheckpointError: if it is not there, cannot be read by this program, or another key wrote it.
        """
        info, encoded = await self.open(number)
        return info, self._decoded(encoded)

    async def open(self, number: int) -> tuple[CheckpointInfo, dict[str, Encoded]]:
        """As `read`, with what steps remember as it went through the codec."""
        data = await self._manifest(number)
        try:
            info = unpack_info(data, self._codec)
            stored = await self._read_parts(info)
            found = info, dict(encoded_states(data, info, stored))
        except DamagedCheckpoint as damage:
            raise DamagedCheckpoint(f"checkpoint {number} is damaged: {damage}") from damage
        self._rely_on(info.stored)
        return found

    async def parts(self, number: int) -> tuple[CheckpointInfo, dict[str, list[Part]]]:
        """As `open`, with the parts, of which the data is here only if the manifest holds it."""
        data = await self._manifest(number)
        try:
            info = unpack_info(data, self._codec)
            for name in sorted(info.stored):
                await self._whole_part(name)
            found = info, dict(parts_in(data, info))
        except DamagedCheckpoint as damage:
            raise DamagedCheckpoint(f"checkpoint {number} is damaged: {damage}") from damage
        self._rely_on(info.stored)
        return found

    async def chunks(self, part: Part) -> Iterator[bytes]:
        """Those of a part, which may be read for that. Raises as `read_part`."""
        if part.data is not None or part.stored is None:
            return part.chunks_in()
        return part.chunks_in(await self.read_part(part.stored))

    def _decoded(self, encoded: Mapping[str, Encoded]) -> dict[str, Any]:
        return {name: plain_state(name, state, self._codec) for name, state in encoded.items()}

    async def read_part(self, name: str) -> bytes:
        """
        A part of a checkpoint of this store.

        Raises:
            DamagedCheckpoint: if it is not what was written.
            CheckpointError: if it is not there.
        """
        data = await self._store.read(name)
        if len(data) > LARGE:
            await aside(partial(check_part, name, data))
        else:
            check_part(name, data)
        return data

    async def check(self, number: int) -> CheckpointInfo:
        """
        See whether a checkpoint is whole, its parts included; nothing is decoded.

        Its seal is looked at only if this history has a key.

        Raises: as `read`, except for values that cannot be read any more.
        """
        info = unpack_info(await self._manifest(number, must_believe=False))
        await self._read_parts(info)
        return info

    async def contents(self, number: int) -> dict[str, list[bytes]]:
        """
        By step, what a checkpoint holds, as it went through the codec. As for `check`.

        What is not sealed, or whose seal is not looked at, is not to be decoded.
        """
        data = await self._manifest(number, must_believe=False)
        info = unpack_info(data)
        stored = await self._read_parts(info)
        return {name: [part for _, part in state] for name, state in encoded_states(data, info, stored)}

    async def is_sealed(self, number: int) -> bool:
        """Whether the checkpoint was written with a key, whichever."""
        return is_sealed(await self._store.read(number))

    async def _manifest(self, number: int, *, must_believe: bool = True) -> bytes:
        data = await self._store.read(number)
        try:
            # a damaged file is no holder's work, and the one before it may be whole
            unpack_info(unsealed(data))
            if self._key is None and not must_believe:
                return unsealed(data)
            return unseal(data, self._key)
        except DamagedCheckpoint as damage:
            raise DamagedCheckpoint(f"checkpoint {number} is damaged: {damage}") from damage
        except CheckpointError as error:
            raise CheckpointError(f"checkpoint {number}: {error}") from error

    async def _read_parts(self, info: CheckpointInfo) -> dict[str, bytes]:
        stored = {}
        for name in sorted(info.stored):
            stored[name] = await self._whole_part(name)
        return stored

    async def _whole_part(self, name: str) -> bytes:
        try:
            return await self.read_part(name)
        except DamagedCheckpoint:
            raise
        except CheckpointError as error:
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
        self._stored[draft.info.id] = draft.info.stored
        self._rely_on(draft.info.stored)
        self._ahead -= draft.info.stored

    async def put_ahead(self, lease: Lease, name: str, data: bytes) -> None:
        """Keep a part that a manifest will name."""
        self._ahead.add(name)  # before: what lies there unnamed may be deleted at any time
        if self._names.get(digest_in(name)) != name:
            await self._store.put(lease, name, data)
            self._rely_on((name,))

    def keep_ahead(self, names: Collection[str]) -> None:
        """Of the parts that were put ahead a manifest will name these only."""
        self._ahead &= set(names)

    async def clean(self, lease: Lease) -> None:
        """Look at what is there, and delete what crashes have left behind: parts that no manifest names."""
        for number in await self.look():
            await self._look_into(number)
        await self._delete(lease, [])

    async def let_go(self, lease: Lease, keep: int) -> list[int]:
        """
        Delete all but the newest `keep` checkpoints, and the parts that only they have named.

        Returns:
            The numbers of those that are kept, in ascending order.
        """
        numbers = await self.look()
        for number in numbers[-keep:]:
            if number not in self._stored:  # its commit has failed, as it seemed, and has been done
                await self._look_into(number)
        if numbers[:-keep]:
            await self._delete(lease, numbers[:-keep])
        return numbers[-keep:]

    async def _look_into(self, number: int) -> None:
        """Note what a manifest names that this history has not written."""
        try:
            self._stored[number] = unpack_info(unsealed(await self._store.read(number))).stored
        except CheckpointError:
            self._stored[number] = None

    async def _delete(self, lease: Lease, numbers: list[int]) -> None:
        for number in numbers:
            self._stored.pop(number, None)
        unnamed: list[str] = []
        if None not in self._stored.values():
            there = await self._store.parts()
            named = self._named()
            unnamed = [name for name in there if name not in named]
            self._names = {digest: name for digest, name in self._names.items() if name in named}
        await self._store.delete(lease, numbers, unnamed)

    def _rely_on(self, stored: Iterable[str]) -> None:
        self._names.update((digest_in(name), name) for name in stored)

    def _named(self) -> set[str]:
        return self._ahead.union(*(names for names in self._stored.values() if names is not None))
