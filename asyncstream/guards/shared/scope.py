"""
`SharedLimit`: which limits are one, and where what is known of them is kept.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from asyncstream.addresses import redis_address, refuse_address
from asyncstream.filesystem.sqlite import database_path
from asyncstream.guards.shared.records import Records
from asyncstream.guards.shared.redis import RedisRecords
from asyncstream.guards.shared.server import ServedRecords, address_of
from asyncstream.guards.shared.sqlite import SqliteRecords
from asyncstream.shown import Shown
from asyncstream.validation import text

__all__ = ("SharedLimit",)

_SQLITE: Final = "sqlite:///"
_REDIS: Final = ("redis", "rediss", "unix")
_SERVED: Final = "limits"


class SharedLimit(Shown):
    """
    Makes a guard's limit one that all guards share that are given the same, in any process on any host.

        rate_limit(fetch, rate=100, scope=SharedLimit("sqlite:///limits.db"))
        concurrency_limit(fetch, most=20, scope=SharedLimit("redis://cache:6379/0", name="geocoder"))

    Each process leases a part of what is left, uses it up by itself, and gives back what it did not use; a
    process that dies has its part taken from it within a second.

    While the store is away, a process keeps to what it has leased last, and then its calls wait until the
    store is back: they never run without a limit. That is said in the log once, and `limit_store_away` is 1
    in the metrics of the step. A circuit breaker is no limit: without the store each process goes by
    what it has counted itself.

    Args:
        url: "sqlite:///limits.db" (relative) or "sqlite:////var/lib/limits.db": a database for the processes
            of one machine. "redis://host:port/0", "rediss://..." or "unix://...": a Redis (extra `[redis]`).
            "limits://...": what a `LimitServer` gives as its `url`.
        name: tells this limit from others in the same store. Guards of one kind with the same name share one
            limit, which they must agree on.

    Raises:
        MissingExtra: for a Redis, if redis-py is not installed.
    """

    def __init__(self, url: str, *, name: str = "default") -> None:
        scheme = text("url", url).partition("://")[0]
        if url.startswith(_SQLITE) and len(url) > len(_SQLITE):
            path = database_path(url.removeprefix(_SQLITE), "url")
            url = f"{_SQLITE}{Path(path)}"  # other processes work elsewhere
        elif scheme == _SERVED:
            address_of(url)
        elif scheme in _REDIS:
            redis_address(url, "a limit in a Redis")
        else:
            expected = "sqlite:///path, redis://host:port or the url of a LimitServer"
            raise refuse_address(expected, url)
        self.url = url
        self.name = text("name", name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedLimit) and (self.url, self.name) == (other.url, other.name)

    def __hash__(self) -> int:
        return hash((self.url, self.name))

    @property
    def is_of_one_host(self) -> bool:
        """Whether, by what its address says, only the processes of one host reach the same store."""
        parts = urlsplit(self.url)
        if parts.scheme in ("sqlite", "unix"):
            return True
        host = parts.hostname or "localhost"  # which a Redis is at that is given none
        with suppress(ValueError):  # it is a name
            return ip_address(host).is_loopback
        return host == "localhost"

    def records(self) -> Records:
        """The store, for the running event loop."""
        if self.url.startswith(_SQLITE):
            return SqliteRecords(self.url.removeprefix(_SQLITE))
        if self.url.startswith(f"{_SERVED}://"):
            return ServedRecords(self.url)
        return RedisRecords(self.url)
