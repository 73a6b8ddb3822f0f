"""
Records in a Redis: for processes on any number of hosts, by the server's clock.

Everything goes through two commands: a look (the time and the value, in one transaction) and a script that
compares and sets, which the server runs as one step.
"""

from __future__ import annotations

from typing import Any, Final

from asyncstream.guards.shared.records import ANSWER_WITHIN, Compared

__all__ = ("RedisRecords",)

_SWAP: Final = """
local found = redis.call('GET', KEYS[1])
if (ARGV[1] == '' and not found) or found == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[2])
  return 1
end
return 0
"""
"""No record is the empty text, which stands for none."""


class RedisRecords(Compared):
    """Keeps records as texts, under names that begin with `asyncstream:shared:`."""

    def __init__(self, url: str) -> None:
        from redis import asyncio as redis

        self.errors = (redis.RedisError, OSError)
        self._client: Any = redis.Redis.from_url(
            url, socket_timeout=ANSWER_WITHIN, socket_connect_timeout=ANSWER_WITHIN
        )

    async def look(self, name: str) -> tuple[bytes | None, float]:
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.time()
            pipeline.get(_key(name))
            (seconds, micros), value = await pipeline.execute()
        return value, seconds + micros / 1e6

    async def swap(self, name: str, old: bytes | None, new: bytes) -> bool:
        return bool(await self._client.eval(_SWAP, 1, _key(name), old or b"", new))

    async def close(self) -> None:
        await self._client.aclose()


def _key(name: str) -> str:
    return f"asyncstream:shared:{name}"
