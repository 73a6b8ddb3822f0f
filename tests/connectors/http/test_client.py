"""
Options that pass through to the client: certificates of an authority of one's own, one's own certificate, and
proxies.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from asyncstream.connectors.base import Source
from asyncstream.connectors.http import HttpLookup, RestSource, SseSource, WebSocketSource
from asyncstream.errors import HttpError, PipelineError, SourceError
from tests.connectors.http.services import QUICK, echo, read_all, run, serve
from tests.servers.certificates import Certificates


async def name_of(address: str, **options: Any) -> Any:
    async with HttpLookup(address + "/{}", attempts=1, **options) as lookup:
        return (await lookup.invoke("a"))["name"]


@asynccontextmanager
async def tunnels() -> AsyncIterator[tuple[str, list[str]]]:
    """A proxy that makes tunnels; its address, and the first line of each request."""
    asked: list[str] = []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head.split("\r\n")[0])
        host, _, port = head.split()[1].partition(":")
        there, back = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(copy(reader, back), copy(there, writer), return_exceptions=True)

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
        server.close()


def test_an_authority_of_ones_own_is_trusted_where_it_is_given(certificates: Certificates) -> None:
    async def main() -> None:
        async with serve(echo, certificates.server()) as address:
            assert await name_of(address, client={"ssl": certificates.client()}) == "a"
            with pytest.raises(HttpError, match="certificate"):
                await name_of(address)

    run(main())


@pytest.mark.parametrize("source", [SseSource, RestSource, WebSocketSource])
def test_a_certificate_that_is_not_trusted_ends_a_source_at_once(
    source: Callable[..., Source[Any]], certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with serve(echo, certificates.server()) as address:
            await read_all(source(address, attempts=2, **QUICK))

    with pytest.raises(SourceError, match=r"cannot read https://.*CERTIFICATE_VERIFY_FAILED"):
        run(main())
    assert [record.getMessage() for record in caplog.records if "connecting again" in record.msg] == []


def test_a_service_that_asks_for_a_certificate_is_shown_ones_own(certificates: Certificates) -> None:
    asks, shows = certificates.server(), certificates.client()
    asks.verify_mode = ssl.CERT_REQUIRED
    asks.load_verify_locations(certificates.authority)
    shows.load_cert_chain(certificates.certificate, certificates.key)

    async def main() -> None:
        async with serve(echo, asks) as address:
            assert await name_of(address, client={"ssl": shows}) == "a"
            with pytest.raises(HttpError):
                await name_of(address, client={"ssl": certificates.client()})

    run(main())


def test_a_proxy_is_used_where_it_is_given(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with serve(echo, certificates.server()) as address, tunnels() as (proxy, asked):
            monkeypatch.setenv("HTTPS_PROXY", proxy)
            monkeypatch.delenv("NO_PROXY", raising=False)
            monkeypatch.delenv("no_proxy", raising=False)
            trusted = certificates.client()
            assert await name_of(address, client={"ssl": trusted}) == "a"
            assert asked == []
            for option in ({"proxy": proxy}, {"trust_env": True}):
                assert await name_of(address, client={"ssl": trusted, **option}) == "a"
                assert asked.pop() == f"CONNECT {address.removeprefix('https://')} HTTP/1.1"

    run(main())


@asynccontextmanager
async def refusing(answer: str) -> AsyncIterator[tuple[str, list[None]]]:
    """A proxy that gives each request this answer; its address, and what has one entry for each."""
    asked = list[None]()

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.append(None)
        writer.write(f"HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    async with server:
        yield f"http://joe:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
        server.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_a_proxy_does_not_let_through_is_not_asked_again(scheme: str) -> None:
    async def main() -> None:
        async with refusing("407 Proxy Authentication Required") as (proxy, asked):
            client = {"proxy": proxy}
            async with HttpLookup(f"{scheme}://api.example/{{}}", attempts=5, client=client) as lookup:
                with pytest.raises(HttpError, match=r"407 .*Proxy Authentication Required") as caught:
                    await lookup.invoke("a")
            assert caught.value.status == 407
            with pytest.raises(SourceError, match=r"407 .*Proxy Authentication Required"):
                await read_all(RestSource(f"{scheme}://api.example/items", client=client))
            socket = f"{scheme.replace('http', 'ws')}://api.example/socket"
            with pytest.raises(SourceError, match="407"):
                await read_all(WebSocketSource(socket, client=client))
            assert len(asked) == 3

    run(main())


def test_a_proxy_that_cannot_now_is_asked_again_when_it_says() -> None:
    async def main() -> None:
        async with refusing("503 Busy\r\nRetry-After: 7") as (proxy, _):
            async with HttpLookup("https://api.example/{}", attempts=1, client={"proxy": proxy}) as lookup:
                with pytest.raises(HttpError, match="503 the proxy: Busy") as caught:
                    await lookup.invoke("a")
            assert caught.value.retryable
            assert caught.value.retry_after == "7"

    run(main())


def test_two_passwords_for_one_request_are_told_of() -> None:
    async def main() -> None:
        async with serve(echo) as address:
            address = address.replace("//", "//joe:secret@")
            with pytest.raises(HttpError, match="Cannot combine AUTHORIZATION header") as caught:
                await name_of(address, headers={"Authorization": "Bearer secret"})
            assert "secret" not in str(caught.value)

    run(main())


def test_sources_pass_options_through(certificates: Certificates) -> None:
    async def service(request: web.Request) -> web.StreamResponse:
        if request.match_info["name"] == "pages":
            return web.json_response([1, 2])
        if request.match_info["name"] == "events":
            return web.Response(text="data: 1\n\ndata: 2\n\n", content_type="text/event-stream")
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str("1")
        await socket.send_str("2")
        await socket.close()
        return socket

    async def main() -> list[list[Any]]:
        client: Any = {"ssl": certificates.client()}
        async with serve(service, certificates.server()) as address:
            socket = address.replace("http", "ws") + "/socket"
            return [
                await read_all(RestSource(f"{address}/pages", client=client)),
                await read_all(SseSource(f"{address}/events", decode="json", on_end="end", client=client)),
                await read_all(WebSocketSource(socket, decode=int, on_end="end", client=client)),
            ]

    assert run(main()) == [[1, 2]] * 3


@pytest.mark.parametrize(
    ("client", "says"),
    [
        (5, "client: expected a mapping of the client's options, got 5"),
        ({"cookies": {}}, "client: expected options of aiohttp: ssl, local_addr, keepalive_timeout, proxy, "),
        ({"ssl": False}, "client: ssl: expected an ssl.SSLContext, got False"),
        (
            {"proxy": "proxy.example:3128"},
            "client: proxy: expected a URL that begins with http:// or https://",
        ),
        ({"proxy": "http://"}, "client: proxy: expected a URL"),
        ({"proxy": 5}, "client: proxy: expected a URL"),
        ({"trust_env": 1}, "client: trust_env: expected True or False"),
        ({"local_addr": "127.0.0.1"}, "client: local_addr: expected a pair of a host and a port"),
        ({"local_addr": ("127.0.0.1", 65536)}, "client: local_addr: expected a pair of a host and a port"),
        ({"keepalive_timeout": -1}, "client: keepalive_timeout: expected seconds"),
        ({"keepalive_timeout": float("inf")}, "client: keepalive_timeout: expected seconds, got inf"),
    ],
)
def test_options_that_do_not_pass_through_are_refused(client: Any, says: str) -> None:
    with pytest.raises(PipelineError) as caught:
        HttpLookup("http://api.example/{}", client=client)
    assert str(caught.value).startswith(says)
    with pytest.raises(PipelineError) as caught:
        RestSource("http://api.example/", client=client)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize("before", ["", "//", "socks5://", "http://proxy.example:"])
def test_a_wrong_proxy_is_refused_without_its_password(before: str) -> None:
    with pytest.raises(PipelineError) as caught:
        HttpLookup("http://api.example/{}", client={"proxy": f"{before}joe:sec/ret@proxy.example:3128"})
    assert "client: proxy: expected a URL" in str(caught.value)
    assert "ret@" not in str(caught.value)


def test_all_options_are_the_clients() -> None:
    async def main() -> None:
        client: Any = {
            "ssl": ssl.create_default_context(),
            "local_addr": ("127.0.0.1", 0),
            "keepalive_timeout": 1.5,
        }
        async with serve(echo) as address:
            assert await name_of(address, client=client) == "a"

    run(main())
