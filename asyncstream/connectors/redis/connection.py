"""
A connection to Redis; and what entries of a stream are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from asyncstream.addresses import parsed_redis, redis_address
from asyncstream.aside import heeding

__all__ = ("Client", "Entry", "checked_url", "connect", "id_of", "place_of")

Client: TypeAlias = Any
"""A `redis.asyncio.Redis`, whose annotations change from version to version."""

Entry: TypeAlias = tuple[bytes, Mapping[bytes, bytes]]
"""An id, and the fields."""

_PATIENCE = 30.0
"""Seconds that an answer may take, unless the address says otherwise with `socket_timeout`."""


def checked_url(url: object) -> str:
    """The address of a Redis; what is wrong with it is a `PipelineError`."""
    return redis_address(url, "Redis")


def place_of(url: str) -> str:
    """The Redis as messages name it, without a password."""
    found = parsed_redis(url)
    if "path" in found:
        return f"Redis at {found['path']}"
    return f"Redis at {found.get('host', 'localhost')}:{found.get('port', 6379)}/{found.get('db', 0)}"


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
