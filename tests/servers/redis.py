"""
Redis: `redis_server` is one for the whole session, `redis_url` is its address for a test that begins with
nothing in it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.servers.process import HOST, ServerProcess, program

__all__ = ("RedisServer", "redis_server", "redis_url", "running_redis")


class RedisServer(ServerProcess):
    """A redis-server that keeps nothing on the disk."""

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def clear(self) -> None:
        """Take out all that is in it, scripts and functions too."""
        with socket.create_connection((HOST, self.port), timeout=60) as connection:
            for command in (b"FLUSHALL", b"SCRIPT FLUSH", b"FUNCTION FLUSH"):
                connection.sendall(command + b"\r\n")
                assert connection.recv(64) == b"+OK\r\n"


@contextmanager
def running_redis(*more: str) -> Iterator[RedisServer]:
    """
    A server, as long as it is used.

    Args:
        more: options; the first is by which its port is given.
    """
    port_option, *others = more or ("--port",)
    binary = program("redis-server", "Debian: apt-get install redis-server")
    with TemporaryDirectory(prefix="redis") as folder:
        options = ("--bind", HOST, "--save", "", "--appendonly", "no", "--dir", folder)
        server = RedisServer(lambda port: [binary, port_option, str(port), *options, *others], Path(folder))
        with server.running():
            yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One that every test may use, and leaves running."""
    with running_redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The address of an empty Redis."""
    redis_server.clear()
    return redis_server.url
