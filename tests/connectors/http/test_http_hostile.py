"""A server that does not keep to HTTP: the right error, in bounded time and memory."""

from __future__ import annotations

import asyncio
import gzip
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncstream.connectors.http import HttpLookup
from asyncstream.errors import HttpError

Write = Callable[[bytes], Awaitable[None]]
Talk = Callable[[Write], Awaitable[None]]

BOMB = gzip.compress(bytes(20_000_000), 1)
"""Fewer than 100,000 bytes."""

LENGTH = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


async def slowly(write: Write) -> None:
    """A byte now and then: never silent, and never done."""
    await write(LENGTH % 10_000)
    while True:
        await write(b" ")
        await asyncio.sleep(0.01)


async def says_nothing(write: Write) -> None:
    await asyncio.Event().wait()


async def endless_headers(write: Write) -> None:
    await write(b"HTTP/1.1 200 OK\r\n")
    while True:
        await write(b"X-%s: y\r\n" % (b"a" * 1000))


async def one_long_header(write: Write) -> None:
    await write(b"HTTP/1.1 200 OK\r\nX: ")
    while True:
        await write(b"a" * 10_000)


async def shorter_than_said(write: Write) -> None:
    await write(LENGTH % 100 + b"{}")


async def two_lengths(write: Write) -> None:
    await write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 5\r\n\r\n{}abc")


async def no_number_as_length(write: Write) -> None:
    await write(b"HTTP/1.1 200 OK\r\nContent-Length: -7\r\n\r\n{}")


async def wrong_chunks(write: Write) -> None:
    await write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n")


async def endless_chunks(write: Write) -> None:
    await write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        await write(b"2710\r\n" + b" " * 10_000 + b"\r\n")


async def bomb(write: Write) -> None:
    await write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB))
    await write(BOMB)


async def in_no_encoding(write: Write) -> None:
    await write(LENGTH % 8 + b'{"a":"\xff\xfe')


async def no_http(write: Write) -> None:
    await write(b"\x16\x03\x01 SSH-2.0-OpenSSH\r\n\r\n")


async def in_circles(write: Write) -> None:
    await write(b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n")


async def reset(write: Write) -> None:
    await write(LENGTH % 100 + b"{")
    raise ConnectionResetError


async def nothing_at_all(write: Write) -> None:
    """It hangs up."""


@pytest.mark.parametrize(
    ("talk", "says"),
    [
        (slowly, "TimeoutError"),
        (says_nothing, "TimeoutError"),
        (endless_headers, ""),
        (one_long_header, "ClientResponseError: Got more than 8190 bytes"),
        (shorter_than_said, "ClientPayloadError"),
        (two_lengths, ""),
        (no_number_as_length, ""),
        (wrong_chunks, ""),
        (endless_chunks, "more than max_bytes=100000 bytes"),
        (bomb, "more than max_bytes=100000 bytes"),
        (in_no_encoding, "not JSON"),
        (no_http, ""),
        (in_circles, "more than 5 redirects"),
        (reset, ""),
        (nothing_at_all, "ServerDisconnectedError"),
    ],
)
def test_error_in_bounded_time_and_memory(talk: Talk, says: str) -> None:
    async def main() -> tuple[HttpError, float]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            async def write(data: bytes) -> None:
                writer.write(data)
                await writer.drain()

            try:
                while await reader.readuntil(b"\r\n\r\n"):
                    await talk(write)
                    if talk is not in_circles:
                        break
            except ConnectionResetError:
                writer.transport.abort()
            except asyncio.IncompleteReadError:
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        # what says another thing is to say it before the time is over, on a busy machine too
        timeout = 0.3 if says == "TimeoutError" else 20.0
        lookup = HttpLookup(f"http://127.0.0.1:{port}/{{}}", timeout=timeout, attempts=1, max_bytes=100_000)
        loop = asyncio.get_running_loop()
        async with lookup:
            began = loop.time()
            with pytest.raises(HttpError) as caught:
                await lookup.invoke(1)
            took = loop.time() - began
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        return caught.value, took

    tracemalloc.start()
    try:
        error, took = asyncio.run(main())
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert says in str(error)
    assert took < 15
    assert most < 10_000_000


@pytest.mark.parametrize("unasked", [LENGTH % 1 + b"0", LENGTH % 1, b"}"])
def test_no_request_is_given_what_came_before_it(unasked: bytes) -> None:
    """On a connection that is kept comes an answer that nobody asked for, or a part of one."""
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                number = request.split()[1][1:]
                if number == b"0":  # not the client that is looked at
                    for kept in clients:
                        kept.write(unasked)
                else:
                    clients.append(writer)
                writer.write(LENGTH % 1 + number)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    clients: list[asyncio.StreamWriter] = []

    async def main() -> list[Any]:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with HttpLookup(f"http://127.0.0.1:{port}/{{}}", timeout=20, attempts=1) as lookup:
            answers = [await lookup.invoke(1), await lookup.invoke(2)]
            writer.write(b"GET /0 HTTP/1.1\r\n\r\n")
            await reader.readexactly(len(LENGTH % 1) + 1)  # what was written before this has come, too
            answers += [await lookup.invoke(number) for number in (3, 4, 5)]
        writer.close()
        server.close()
        return answers

    assert asyncio.run(main()) == [1, 2, 3, 4, 5]
    assert connections == 3


def test_what_is_nested_too_deeply_for_a_request_is_refused() -> None:
    async def main() -> None:
        nested: Any = ()
        for _ in range(5_000):
            nested = (nested,)
        async with HttpLookup("http://127.0.0.1:9/", method="POST", json=lambda value: nested) as lookup:
            with pytest.raises(TypeError, match="levels deep"):
                await lookup.invoke(1)

    asyncio.run(main())
