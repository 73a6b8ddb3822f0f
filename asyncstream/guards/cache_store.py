"""
Where answers are kept that are to outlive the process: what all such stores have in common.

Theory of operation
-------------------
A store maps keys to bytes, and knows nothing of what they mean (`stored_answers` does). Reading is up to each
store. Writing is behind: what is put into it, taken out and released is collected, and goes to the store as
one `Group`, one transaction or one round trip, while the next is collected. Until it has arrived the store
answers from what it has collected, so a process reads what it has written.

A *lease* on a key says that its holder makes the call that the other processes wait for. Within a group
leases are granted last, after what was put and released, so a process that is granted one sees what the
holder before it has written.

A cache may lose what it holds, and must not stop the work: a store that is away is said to be so once, in the
log, and until it is back nothing is found in it, nothing is written, and every lease is granted. Damage is
another matter: it is not read past.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from asyncstream.aside import can_go_on, in_its_loop, running_loop
from asyncstream.clock import SystemClock
from asyncstream.errors import PipelineError, describe_error
from asyncstream.guards.guard import end
from asyncstream.lease import Holder, enter, leave
from asyncstream.shown import Shown
from asyncstream.validation import count

__all__ = ("CacheStore", "Group", "Wish")

log = logging.getLogger("asyncstream.cache")

LINGER: Final = 0.01
"""Seconds for which a group waits for more to come; not if a caller waits for a lease."""

_REST: Final = 1.0
"""Seconds for which a store that has failed is left alone."""

MOST_WAITING: Final = 10_000
"""Answers that may wait to be written; then callers wait, too, for `_REST` at most."""

_PATIENCE: Final = 10.0
"""Seconds that the last group gets when a store is closed."""


class _User(NamedTuple):
    """Whose answers are kept, and in which event loop it uses them."""

    function: Hashable
    loop: asyncio.AbstractEventLoop


_users_of: Final[dict[Hashable, dict[bytes, _User]]] = {}
"""By place and namespace, of this process."""


@dataclass(eq=False, slots=True)
class Wish:
    """A caller's wish to be the one that makes a call, for so many milliseconds at most."""

    key: bytes
    lease_ms: int
    granted: asyncio.Future[bool]


@dataclass(slots=True)
class Group:
    """
    What goes to a store together, in this order.

    Attributes:
        entries: by key, the bytes and how many milliseconds they are of use (None: as long as there is
            room); or None: take the key out.
        releases: keys whose leases are given back.
        wishes: for leases; what is granted is told by the future of each, in the event loop.
    """

    entries: dict[bytes, tuple[bytes, int | None] | None] = field(default_factory=dict)
    releases: list[bytes] = field(default_factory=list)
    wishes: list[Wish] = field(default_factory=list)

    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.entries or self.releases or self.wishes)


class CacheStore(Shown):
    """
    Keeps bytes by key; the base of `SqliteCache` and `RedisCache`, which `cached(store=)` takes.

    One object may serve any number of guards of one event loop. Keys are digests, of 16 bytes.

    Args:
        size: answers kept at most; those that were written longest ago make room.

    Attributes:
        holder: who has the leases of this store; from `open` on.
    """

    holder: Holder

    finds_at_once = False
    """Whether `find` gives what is kept, without waiting."""

    def __init__(self, size: int) -> None:
        self.size = count("size", size)
        self._users: dict[bytes, _User] | None = None  # those of its place, from the first on
        self._begin()

    def _begin(self) -> None:
        """Nothing is under way, and it is not open."""
        self._group = Group()
        self._under_way = Group()
        self._writing: asyncio.Task[None] | None = None
        self._soon: asyncio.TimerHandle | None = None  # when it begins to write
        self._is_open = False
        self._away_until: float | None = None  # event loop's time; None: it is there
        self._room: asyncio.Future[None] | None = None  # done when what waits to be written is being written

    # ------------------------------------------------------------------ what each store does its way

    def place(self) -> Hashable:
        """The same for all objects that keep their answers in one place; None: no other does."""
        return None

    async def connect(self) -> None:
        """
        Begin.

        Raises:
            DamagedCache: if what is kept there is not whole.
        """

    async def disconnect(self) -> None:
        """End; nothing is being written."""

    def read_at_once(self, key: bytes) -> bytes | None:
        """As `read`, of a store that need not be waited for, and says so by `finds_at_once`."""
        raise TypeError(f"{type(self).__name__} does not override read_at_once")

    async def read(self, key: bytes) -> bytes | None:
        """What is kept for a key; None: nothing. May raise what the store's library raises."""
        raise TypeError(f"{type(self).__name__} does not override read")

    async def write(self, group: Group) -> Iterable[bool]:
        """
        Do what is in a group. May raise what the store's library raises.

        Returns:
            Whether each of the group's wishes is granted.
        """
        raise TypeError(f"{type(self).__name__} does not override write")

    # ------------------------------------------------------------------ what guards ask for

    async def open(self) -> None:
        """Called before the first use; see `asyncstream.sharing`."""
        if self._is_open:  # in a loop that has ended
            leave(self.holder)
        self._begin()
        self.holder = Holder.here(SystemClock().machine_ms())
        enter(self.holder, can_go_on(asyncio.get_running_loop()))
        await self.connect()
        self._is_open = True

    async def close(self) -> None:
        """Bring what was put to where it is kept, and end."""
        leave(self.holder)
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._soon is not None:
                self._write_now()
            if self._writing is not None:
                await self._see_written(self._writing)
        finally:
            await self.disconnect()

    async def _see_written(self, writing: asyncio.Task[None]) -> None:
        """The last group is written, or given up: not after the connection has gone."""
        try:
            await asyncio.wait({writing}, timeout=_PATIENCE)
            if not writing.done():
                log.error("%s: what was answered last could not be written within %g s", self, _PATIENCE)
        finally:
            if not writing.done():
                await end(writing)

    def claim(self, namespace: bytes, function: Hashable) -> None:
        """
        Say whose answers are kept under keys that begin with `namespace`.

        Raises:
            PipelineError: if another function's are.
        """
        if self._users is None:
            place = self.place()
            self._users = {} if place is None else _users_of.setdefault(place, {})
        user = _User(function, asyncio.get_running_loop())
        known = self._users.get(namespace, user)
        if known.function is not function and known.function != function and not known.loop.is_closed():
            raise PipelineError(
                f"cached: two functions that look alike keep their answers in {self}, and each would be "
                "given the other's; tell them apart: cached(..., name='planes')"
            )
        self._users[namespace] = user

    def disclaim(self, namespace: bytes, function: Hashable) -> None:
        """The opposite of `claim`; the first of several guards of one function that ends does it for all."""
        users = self._users or {}
        if namespace in users and users[namespace].function == function:
            del users[namespace]

    async def get(self, key: bytes) -> bytes | None:
        """What is kept for a key; None if there is nothing, or the store is away."""
        if self.finds_at_once:
            return self.find(key)
        known, data = self._collected(key)
        if known:
            return data
        try:
            found = await self.read(key)
        except Exception as error:  # of the disk, of the network, of the store's library
            self._away(error)
            return None
        self._away_until = None
        return found

    def find(self, key: bytes) -> bytes | None:
        """As `get`, of a store that `finds_at_once`."""
        known, data = self._collected(key)
        if known:
            return data
        try:
            found = self.read_at_once(key)
        except Exception as error:  # of the disk, of the store's library
            self._away(error)
            return None
        self._away_until = None
        return found

    def _collected(self, key: bytes) -> tuple[bool, bytes | None]:
        """Whether it is known without the store, or it cannot be asked; and what is kept then."""
        if not self._is_open:
            raise PipelineError(
                "cached: the store is not open; use the guard in a pipeline, or in `async with`"
            )
        for entries in (self._group.entries, self._under_way.entries):
            if key in entries:
                entry = entries[key]
                return True, None if entry is None else entry[0]
        return self._rest_left() > 0, None

    def put(self, key: bytes, data: bytes, milliseconds: int | None) -> None:
        """Keep `data`, which is of use for so long; None: as long as there is room."""
        self._collect(key, (data, milliseconds))

    def delete(self, key: bytes) -> None:
        """Keep nothing for a key."""
        self._collect(key, None)

    def _collect(self, key: bytes, entry: tuple[bytes, int | None] | None) -> None:
        entries = self._group.entries
        entries.pop(key, None)  # what is written last is the newest
        if len(entries) >= 2 * MOST_WAITING:  # callers did not wait, or the store hangs: it loses the oldest
            del entries[next(iter(entries))]
        entries[key] = entry
        self._begin_to_write()

    async def has_room(self) -> None:
        """Wait, if very much waits to be written; not for ever."""
        if len(self._group.entries) >= MOST_WAITING and self._away_until is None:
            if self._room is None:
                self._room = asyncio.get_running_loop().create_future()
            done, _ = await asyncio.wait({self._room}, timeout=_REST)
            if not done:
                self._away(TimeoutError("it is too slow"))

    async def lease(self, key: bytes, milliseconds: int) -> bool:
        """Whether the caller is the one to make the call for a key; he must `release` it."""
        if self._rest_left():
            return True
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._group.wishes.append(Wish(key, milliseconds, granted))
        self._begin_to_write()
        try:
            return await granted
        except BaseException:
            if in_its_loop(granted) and not granted.cancel() and not granted.cancelled() and granted.result():
                self.release(key)  # granted and cancelled in one pass of the loop
            raise

    def release(self, key: bytes) -> None:
        """Give a lease back, once what was put before is there for all to see."""
        if running_loop() is None:  # its call is collected: the holder is gone with the loop
            return
        self._group.releases.append(key)
        self._begin_to_write()

    # ------------------------------------------------------------------ writing

    def _begin_to_write(self) -> None:
        """Have what is collected written: at once if a caller waits for it, else when more may have come."""
        if self._writing is not None and not self._writing.done():
            return
        if self._group.wishes:
            self._write_now()
        elif self._is_open and self._soon is None:
            # a timer: calls that are cancelled as their loop ends would leave a task in the middle
            self._soon = asyncio.get_running_loop().call_later(self._pause(), self._write_now)

    def _write_now(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._writing = asyncio.get_running_loop().create_task(self._write(), name="asyncstream cache")

    def _pause(self) -> float:
        """Seconds to wait before a group is written."""
        return self._rest_left() or (0.0 if self._group.wishes else LINGER)

    async def _write(self) -> None:
        try:
            while not self._group.is_empty():
                group, self._group = self._group, Group()
                self._under_way = group
                if self._room is not None:
                    self._room.set_result(None)
                    self._room = None
                try:
                    granted: Iterable[bool] = await self.write(group)
                    self._away_until = None
                except Exception as error:  # of the disk, of the network, of the store's library
                    self._away(error)
                    granted = [True] * len(group.wishes)  # or the call would not be made
                for wish, is_granted in zip(group.wishes, granted, strict=True):
                    if not wish.granted.done():
                        wish.granted.set_result(is_granted)
                    elif is_granted:  # its caller was cancelled
                        self._group.releases.append(wish.key)
                if self._is_open and not self._group.is_empty() and (pause := self._pause()):
                    await asyncio.sleep(pause)
        finally:
            self._under_way = Group()

    def _away(self, error: BaseException) -> None:
        if self._away_until is None:
            log.warning("%s: the cache goes on without it: %s", self, describe_error(error))
        self._away_until = asyncio.get_running_loop().time() + _REST
        wishes, self._group.wishes = self._group.wishes, []
        for wish in wishes:
            if not wish.granted.done():
                wish.granted.set_result(True)

    def _rest_left(self) -> float:
        """Seconds for which a store that has failed is left alone still."""
        until = self._away_until
        return 0.0 if until is None else max(0.0, until - asyncio.get_running_loop().time())

    def __getstate__(self) -> dict[str, Any]:
        """Of a store that is sent to another process: how it was made."""
        return {
            **self.__dict__,
            "_group": Group(),
            "_under_way": Group(),
            "_writing": None,
            "_soon": None,
            "_is_open": False,
            "_users": {},  # copies of one function are as two there
            "_room": None,
        }
