"""
A cache in Redis: for the processes of any number of machines.

Each answer is a key of its own, which Redis forgets when the answer is of no more use. Beside them is a
sorted set of these keys by the time at which they were written: what is in it beyond `size` is deleted, the
oldest first, with each group of writes. A key that has expired stays in the set until its turn comes; the
set is never larger than `size`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, Final

from asyncstream.addresses import redis_address
from asyncstream.aside import heeding
from asyncstream.clock import SystemClock
from asyncstream.guards.cache_store import CacheStore, Group
from asyncstream.validation import Duration, duration_seconds, text

if TYPE_CHECKING:
    from redis.asyncio import Redis

__all__ = ("RedisCache",)

_MAKE_ROOM: Final = """
local excess = redis.call('ZCARD', KEYS[1]) - ARGV[1]
if excess > 0 then
    local oldest = redis.call('ZPOPMIN', KEYS[1], excess)
    for place = 1, #oldest, 2 do redis.call('UNLINK', oldest[place]) end
end
"""

_RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end"


class RedisCache(CacheStore):
    """
    Keeps answers in a Redis server. Not for Redis Cluster.

    While the server is away, calls are made as if nothing were kept, and nothing is.

    Args:
        url: "redis://host:port/database", or "rediss://" or "unix://" as redis-py takes them.
        size: answers kept at most; those that were written longest ago make room.
        prefix: what the keys there begin with. Caches of the same prefix are one.
        timeout: for one request.

    Raises:
        MissingExtra: if redis-py is not installed.
    """

    def __init__(
        self, url: str, *, size: int = 1_000_000, prefix: str = "asyncstream:cache", timeout: Duration = 1.0
    ) -> None:
        super().__init__(size)
        self._url = redis_address(url, "RedisCache")
        self._prefix = text("prefix", prefix)
        self._timeout = duration_seconds("timeout", timeout)
        self._client: Redis | None = None

    def __str__(self) -> str:
        return f"Redis ({self._prefix})"  # the address may hold a password

    def place(self) -> Hashable:
        return self._url, self._prefix

    async def connect(self) -> None:
        from redis.asyncio import Redis

        self._client = Redis.from_url(
            self._url, socket_timeout=self._timeout, socket_connect_timeout=self._timeout
        )

    async def disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _key(self, kind: str, key: bytes) -> str:
        return f"{self._prefix}:{kind}:{key.hex()}"

    async def read(self, key: bytes) -> bytes | None:
        if self._client is None:
            return None
        found: Any = await heeding(self._client.get(self._key("answer", key)))
        return None if found is None else bytes(found)

    async def write(self, group: Group) -> Iterable[bool]:
        if self._client is None:
            return [True] * len(group.wishes)
        by_age = f"{self._prefix}:by-age"
        now = SystemClock().machine_ms() * 1000  # microseconds: room for the order within a group
        pipe: Any = self._client.pipeline(transaction=False)
        for place, (key, entry) in enumerate(group.entries.items()):
            name = self._key("answer", key)
            if entry is None:
                pipe.delete(name)
                pipe.zrem(by_age, name)
            else:
                pipe.set(name, entry[0], px=entry[1])
                pipe.zadd(by_age, {name: now + place})
        if group.entries:
            pipe.eval(_MAKE_ROOM, 1, by_age, self.size)
        for key in group.releases:
            pipe.eval(_RELEASE, 1, self._key("lease", key), self.holder.token)
        for wish in group.wishes:
            pipe.set(self._key("lease", wish.key), self.holder.token, px=wish.lease_ms, nx=True)
        done = await pipe.execute()
        return [bool(answer) for answer in done[len(done) - len(group.wishes) :]]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_client": None}
