"""
A connection to Redis; and what entries of a stream are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from asyncstream.addresses import parsed_redis, redis_address
from asyncstream.aside import heeding

__all__ = ("Client", "Entry", "block_ms_of", "checked_url", "connect", "id_of", "place_of")

Client: TypeAlias = Any
"""A `redis.asyncio.Redis`, whose annotations change from version to version."""

Entry: TypeAlias = tuple[bytes, Mapping[bytes, bytes]]
"""An id, and the fields."""

_PATIENCE = 30.0
"""Seconds that an answer may take, unless the address says otherwise with `socket_timeout`."""

_BLOCK: Final = 1.0
"""Seconds that the server waits for an entry before it answers that there is none, ..."""

_PART_OF_PATIENCE: Final = 0.5
"""... but no more of what its answer may take: a quiet stream would pass for a server that is silent."""


def checked_url(url: object) -> str:
    """The address of a Redis; what is wrong with it is a `PipelineError`."""
    return redis_address(url, "Redis")


def place_of(url: str) -> str:
    """The Redis as messages name it, without a password."""
    found = parsed_redis(url)
    if "path" in found:
        return f"Redis at {found['path']}"
    return f"Redis at {found.get('host', 'localhost')}:{found.get('port', 6379)}/{found.get('db', 0)}"


def block_ms_of(url: str) -> int:
    """For how many milliseconds a server at this address is to wait for an entry, 1 at least."""
    patience = parsed_redis(url).get("socket_timeout") or _PATIENCE
    return max(1, int(1000 * min(_BLOCK, _PART_OF_PATIENCE * patience)))


def connect(url: str) -> Client:
    """
    A client, which connects with its first command. What fails is not tried again: of a command that was sent
    it is uncertain whether it was done, and a restart of the job goes on from a checkpoint.
    """
    from redis.asyncio import Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff

    more: dict[str, Any] = {} if "socket_timeout" in url else {"socket_timeout": _PATIENCE}
    client: Client = Redis.from_url(url, protocol=2, retry=Retry(NoBackoff(), 0), **more)
    ask = client.execute_command
    client.execute_command = lambda *args, **options: heeding(ask(*args, **options))
    return client


def id_of(id: bytes | str) -> tuple[int, int]:
    """The id of an entry, to be compared: milliseconds, and a number."""
    time, _, number = (id if isinstance(id, str) else id.decode()).partition("-")
    return int(time), int(number or 0)
