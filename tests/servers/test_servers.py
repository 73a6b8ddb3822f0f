"""The servers that the tests start are there, and come back on the same port."""

from __future__ import annotations

import socket

import pytest

from tests.servers.process import HOST
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.broker


def says(port: int, command: bytes) -> bytes:
    with socket.create_connection((HOST, port), timeout=60) as connection:
        connection.sendall(command + b"\r\n")
        return connection.recv(256)


def test_redis_begins_empty(redis_server: RedisServer, redis_url: str) -> None:
    assert says(redis_server.port, b"DBSIZE") == b":0\r\n"
    says(redis_server.port, b"SET left behind")
    redis_server.clear()
    assert says(redis_server.port, b"DBSIZE") == b":0\r\n"
    assert redis_url == f"redis://127.0.0.1:{redis_server.port}/0"


def test_a_server_comes_back_where_it_was(redis_server: RedisServer) -> None:
    port = redis_server.port
    redis_server.kill()
    with pytest.raises(OSError, match="refused"):
        says(port, b"PING")
    redis_server.start()
    assert redis_server.port == port
    assert says(port, b"PING") == b"+PONG\r\n"
