"""Server-sent events, WebSockets and pages as sources, against a real server on the loopback interface."""

from __future__ import annotations

import asyncio
import gzip
import time
import traceback
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
from aiohttp import WSMsgType, web
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import (
    Checkpoints,
    DirectoryStore,
    Pipeline,
    PipelineError,
    RejectedMessage,
    Source,
    SourceError,
)
from asyncstream.connectors.http import (
    RestSource,
    ServerSentEvent,
    SseSource,
    WebSocketSource,
)
from asyncstream.connectors.http.connection import Interrupted
from asyncstream.connectors.http.sse import EventParser
from asyncstream.errors import HttpError
from asyncstream.testing import source_contract
from asyncstream.testing.loop import run_virtual
from asyncstream.web.feed import Feed
from asyncstream.web.sse import HEADERS, stream_feed
from tests.connectors.http.services import read_all, serve, status

NUMBERS = list(range(40))
QUICK: dict[str, Any] = {"wait_initial": 0.001, "wait_max": 0.01}


class Service:
    """Has 40 numbers, and breaks off after so many of them on each connection."""

    def __init__(self, per_connection: int = 1000) -> None:
        self.per_connection = per_connection
        self.asked: list[Any] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        answer: web.StreamResponse = await getattr(self, request.path.strip("/"))(request)
        return answer

    async def events(self, request: web.Request) -> web.StreamResponse:
        last = request.headers.get("Last-Event-ID")
        self.asked.append(last)
        begin = 0 if last is None else int(last) + 1
        if begin >= len(NUMBERS):
            return web.Response(status=204)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in NUMBERS[begin : begin + self.per_connection]:
            await response.write(f": hello\nretry: 1\nid: {number}\ndata: {number}\n\n".encode())
        return response

    async def socket(self, request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        asked = await socket.receive_json()
        self.asked.append(asked["after"])
        begin = 0 if asked["after"] is None else asked["after"] + 1
        for number in NUMBERS[begin : begin + self.per_connection]:
            await socket.send_json({"n": number})
        is_last = begin + self.per_connection >= len(NUMBERS)
        await socket.close(code=1000 if is_last else 1011)
        return socket

    async def pages(self, request: web.Request) -> web.StreamResponse:
        begin = int(request.query.get("after", "0"))
        self.asked.append(begin)
        if len(self.asked) % 3 == 0 and self.per_connection < 1000:
            return web.Response(status=503, headers={"Retry-After": "0"})
        after = begin + 7 if begin + 7 < len(NUMBERS) else None
        headers = {} if after is None else {"Link": f'</pages?after={after}>; rel="next"'}
        page = {"data": NUMBERS[begin : begin + 7], "meta": {"next": after}}
        return web.json_response(page, headers=headers)

    async def numbered(self, request: web.Request) -> web.StreamResponse:
        begin = (int(request.query["page"]) - 1) * 7
        self.asked.append(begin)
        return web.json_response(NUMBERS[begin : begin + 7])


async def read_and_rejected(source: Source[Any]) -> tuple[list[Any], list[RejectedMessage]]:
    """What a pipeline reads of a source, and what it puts aside."""
    good: list[Any] = []
    bad: list[RejectedMessage] = []
    pipeline = Pipeline()
    elements = pipeline.source(source)
    elements.to(good)
    elements.rejected.to(bad)
    await pipeline.run()
    return good, bad


def sse(url: str, **options: Any) -> Source[Any]:
    return SseSource(f"{url}/events", decode="json", **(QUICK | options))


def socket(url: str, **options: Any) -> Source[Any]:
    return WebSocketSource(
        f"{url}/socket",
        subscribe=lambda after: [{"after": after}],
        cursor=lambda number: number,
        decode=lambda text: int(text[5:-1]),
        on_end="end",
        **(QUICK | options),
    )


def pages(url: str, **options: Any) -> Source[Any]:
    return RestSource(f"{url}/pages", items="data", cursor="meta.next", param="after", **(QUICK | options))


MAKE: dict[str, Callable[..., Source[Any]]] = {"sse": sse, "websocket": socket, "pages": pages}
KINDS = pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)


@asynccontextmanager
async def contracts(make: Callable[..., Source[Any]]) -> AsyncIterator[list[Any]]:
    async with serve(Service(per_connection=11)) as url:
        yield source_contract(lambda folder: make(url, buffer=5), NUMBERS)


@KINDS
async def test_it_keeps_the_contract_of_sources(make: Callable[..., Source[Any]], tmp_path: Path) -> None:
    async with contracts(make) as checks:
        assert len(checks) > 8
        for check in checks:
            (folder := tmp_path / check.name).mkdir()
            await check(folder)


@KINDS
async def test_broken_connection_is_made_again_behind_what_came(make: Callable[..., Source[Any]]) -> None:
    service = Service(per_connection=9)
    async with serve(service) as url:
        assert await read_all(make(url)) == NUMBERS
    assert len(service.asked) > 4


@KINDS
async def test_service_that_stays_away_is_an_error_after_so_many_attempts(
    make: Callable[..., Source[Any]],
) -> None:
    async with serve(lambda request: _answer(web.Response(status=500))) as url:
        with pytest.raises(SourceError, match=r"3 connections in a row failed; the last: .*500"):
            await read_all(make(url, attempts=3))
    with pytest.raises(SourceError, match="2 connections in a row failed"):
        await read_all(make(url, attempts=2))


@KINDS
async def test_refusal_is_an_error_at_once(make: Callable[..., Source[Any]]) -> None:
    async with serve(lambda request: _answer(web.Response(status=403))) as url:
        with pytest.raises(SourceError, match=r"cannot read http://.*403"):
            await read_all(make(url))


async def _answer(response: web.StreamResponse) -> web.StreamResponse:
    return response


@KINDS
async def test_slow_reader_holds_the_service_up(make: Callable[..., Source[Any]]) -> None:
    async with serve(Service()) as url:
        source = make(url, buffer=5)
        await source.open()
        batch = await source.read()
        assert batch is not None
        for _ in range(100):
            await asyncio.sleep(0.001)
        assert source.unread() <= 5
        await source.close()


async def test_pipeline_goes_on_from_the_last_event_of_its_checkpoint(tmp_path: Path) -> None:
    service = Service()
    found: list[int] = []
    async with serve(service) as url:
        for stops_at in (17, None):

            def looks(number: int, stops_at: int | None = stops_at) -> int:
                if number == stops_at:
                    raise ValueError("on purpose")
                return number

            pipeline = Pipeline("numbers")
            stream = pipeline.source(sse(url, buffer=4), name="in").map(looks, name="looks")
            stream.to(found.append, name="out")
            assert "at least once" in str(pipeline.guarantees()[0])
            run = pipeline.run(checkpoints=Checkpoints(store=DirectoryStore(tmp_path), every=0.001))
            if stops_at is None:
                await run
            else:
                with pytest.raises(Exception, match="on purpose"):
                    await run
    assert sorted(set(found)) == NUMBERS
    assert service.asked[0] is None


async def test_malformed_message_costs_itself(tmp_path: Path) -> None:
    async def events(request: web.Request) -> web.StreamResponse:
        text = "data: 1\n\nid: 7\ndata: {half\n\ndata: 3\n\n"
        return web.Response(text=text, content_type="text/event-stream")

    async with serve(events) as url:
        good, bad = await read_and_rejected(
            SseSource(f"{url}/?key=secret", decode="json", on_malformed="reject", on_end="end")
        )
        assert good == [1, 3]
        assert [(each.id, each.value) for each in bad] == [("7", "{half")]
        assert "not JSON" in bad[0].reason
        assert "secret" not in bad[0].source
        with pytest.raises(SourceError, match="not JSON"):
            await read_all(SseSource(url, decode="json", on_end="end"))


async def test_an_event_that_is_not_utf8_costs_itself() -> None:
    body = b"data: 1\n\nid: 7\ndata: \xff\n\n: \xff\nid: \x01\ndata: 3\n\nid: 8\xff\ndata: 4\n\n"
    headers = {"Content-Type": "text/event-stream"}
    async with serve(lambda request: _answer(web.Response(body=body, headers=headers))) as url:
        source = SseSource(url, decode="json", on_malformed="reject", on_end="end")
        good, bad = await read_and_rejected(source)
        assert good == [1, 3, 4]
        assert [(each.id, each.value) for each in bad] == [("7", b"\xff")]
        assert source.position() == "7", "an id that no header brings back is none"
        failing = SseSource(url, decode="json", on_end="end")
        await failing.open()
        batch = await failing.read()
        assert batch is not None
        assert batch.values == [1]
        with pytest.raises(SourceError, match="can't decode byte 0xff"):
            await failing.read()
        await failing.close()


@pytest.mark.parametrize("decode", ["json", "text", None])
async def test_what_a_pipeline_has_not_kept_for_a_source_is_no_element(
    decode: Any, caplog: pytest.LogCaptureFixture
) -> None:
    feed: Feed[int] = Feed(3)
    for number in range(5):
        feed.put(number)
    feed.end()

    def render(number: int) -> bytes:
        return b"%d" % (10 // (number - 3))

    async def events(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=[(name.decode(), text.decode()) for name, text in HEADERS])
        await response.prepare(request)
        scope = {"method": "GET", "headers": [(b"last-event-id", request.headers["Last-Event-ID"].encode())]}

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            await response.write(message.get("body", b""))

        await stream_feed(scope, receive, send, feed, render)
        return response

    async with serve(events) as url:
        source = SseSource(url, decode=decode, on_end="end")
        first = await read_all(source, "another-7")
        assert source.position() == feed.mark(5)
        second = await read_all(source, feed.mark(1))
    said = [one.getMessage().partition(" ")[2] for one in caplog.records if one.name == "asyncstream.sources"]
    if decode is None:
        assert [event.event for event in first] == ["missed", "message", "missed", "message"]
        assert [event.data for event in second] == ['{"events":1}', "-10", '{"events":1}', "10"]
        assert not said
    else:
        assert [int(element) for element in first + second] == [-10, 10, -10, 10]
        one = "has not kept all: 1 elements are missed"
        assert said == ["has not kept all: the elements behind 'another-7' are missed", one, one, one]


async def test_an_event_of_another_service_that_is_called_missed_is_an_element() -> None:
    async def events(request: web.Request) -> web.StreamResponse:
        said = '{"events": "3"}', '{"events": 1, "at": 2}', "[]", "1"
        body = "".join(f"event: missed\ndata: {data}\n\n" for data in said)
        return web.Response(text=body + 'data: {"events": 4}\n\n', content_type="text/event-stream")

    async with serve(events) as url:
        elements = await read_all(SseSource(url, decode="json", on_end="end"))
    assert elements == [{"events": "3"}, {"events": 1, "at": 2}, [], 1, {"events": 4}]


async def test_an_id_without_an_event_is_where_to_go_on() -> None:
    asked: list[str | None] = []

    async def events(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get("Last-Event-ID"))
        body = {1: "id: 4\n\n", 2: "data: 5\n\nid: 6\n\n"}.get(len(asked))
        return web.Response(text=body, content_type="text/event-stream", status=204 if body is None else 200)

    async with serve(events) as url:
        source = SseSource(url, decode="json", **QUICK)
        assert await read_all(source) == [5]
        assert asked == [None, "4", "6"]
        assert source.position() == "6"
        asked[:] = ["so", "many"]
        assert await read_all(SseSource(url, decode="json", **QUICK), source.position()) == []
        assert asked[2:] == ["6"]

    async def nothing_else(request: web.Request) -> web.StreamResponse:
        return web.Response(text=f"id: {time.time_ns()}\n\n", content_type="text/event-stream")

    async with serve(nothing_else) as url:
        with pytest.raises(SourceError, match="3 connections in a row failed"):
            await read_all(SseSource(url, attempts=3, **QUICK))


async def test_a_socket_message_without_a_cursor_costs_itself() -> None:
    asked: list[Any] = []

    async def talk(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        asked.append(await socket.receive_json())
        for message in ({"n": 1}, {"ready": True}, {"n": None}) if len(asked) == 1 else ({"n": 2},):
            await socket.send_json(message)
        await socket.close(code=1011 if len(asked) == 1 else 1000)
        return socket

    async with serve(talk) as url:
        source = WebSocketSource(
            url, subscribe=lambda n: [n], cursor="n", on_end="end", on_malformed="reject", **QUICK
        )
        good, bad = await read_and_rejected(source)
        assert good == [{"n": 1}, {"n": None}, {"n": 2}]
        assert [each.value for each in bad] == ['{"ready": true}']
        assert asked == [None, 1], "it goes on behind what had a cursor"


async def test_an_answer_that_is_no_http_any_more_has_ended() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    times: list[float] = []
    is_read = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readuntil(b"\r\n\r\n")
        times.append(asyncio.get_running_loop().time())
        if b"Last-Event-ID: 1" in request:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        else:
            event = b"retry: 200\nid: 1\ndata: 1\n\n"
            writer.write(head + b"%x\r\n%s\r\n" % (len(event), event))
            await is_read.wait()
            writer.write(b"no chunk\r\n")
        await reader.read()  # it is the client that ends it
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        source = SseSource(url, decode="json", **QUICK)
        await source.open()
        async with asyncio.timeout(20):
            batch = await source.read()
            assert batch is not None
            assert batch.values == [1]
            is_read.set()
            assert await source.read() is None
        await source.close()
    assert times[1] - times[0] >= 0.2, "and is asked for again when it said"


def cancels(_: object) -> Any:
    raise asyncio.CancelledError("by its own code")


@pytest.mark.parametrize(
    "make",
    [
        lambda url: SseSource(f"{url}/events", decode=cancels),
        lambda url: WebSocketSource(f"{url}/socket", subscribe=cancels),
        lambda url: RestSource(f"{url}/pages", items=cancels),
    ],
)
async def test_a_cancellation_that_nobody_asked_for_is_an_error(make: Callable[[str], Source[Any]]) -> None:
    async with serve(Service()) as url, asyncio.timeout(20):
        with pytest.raises(SourceError, match="CancelledError: by its own code"):
            await read_all(make(url))


async def test_what_is_no_event_stream_is_an_error(tmp_path: Path) -> None:
    async with serve(lambda request: _answer(web.json_response({}))) as url:
        with pytest.raises(SourceError, match="'application/json' instead of text/event-stream"):
            await read_all(sse(url))
        with pytest.raises(SourceError, match="no WebSocket"):
            await read_all(WebSocketSource(url))
        with pytest.raises(
            SourceError, match=r"expected a list of items, got a dict; say where it is, items="
        ):
            await read_all(RestSource(url))


async def test_events_that_are_compressed_are_an_error() -> None:
    body = gzip.compress(b"data: 1\n\n")
    headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
    async with serve(lambda request: _answer(web.Response(body=body, headers=headers))) as url:
        with pytest.raises(SourceError, match="events compressed as 'gzip', which was not asked for"):
            await read_all(SseSource(url))


async def _of_no_length(request: web.Request, body: bytes) -> web.StreamResponse:
    """Events without a length or chunks, which end where the connection does."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    response.force_close()
    response._length_check = False
    await response.prepare(request)
    await response.write(body)
    return response


@pytest.mark.parametrize("last", [b"id: 2\ndata: 2", b"id: 2\ndata: 2\n", b"id: 2\n", b"event: x\n", b"e"])
async def test_an_answer_of_no_length_that_is_cut_off_within_an_event_is_not_its_end(last: bytes) -> None:
    async def cut_off(request: web.Request) -> web.StreamResponse:
        is_first = "Last-Event-ID" not in request.headers
        body = b"id: 1\ndata: 1\n\n" + last if is_first else b"id: 2\ndata: 2\n\n"
        return await _of_no_length(request, body)

    async with serve(cut_off) as url:
        source = SseSource(url, decode="json", on_end="end", **QUICK)
        assert await read_all(source) == [1, 2]


@pytest.mark.parametrize("last", [b"1\r\r", b"1\r\n\r", b"1\n\n:bye", b"1\n\nretry: 5\n"])
async def test_an_answer_of_no_length_that_ends_behind_an_event_has_ended(last: bytes) -> None:
    async with serve(lambda request: _of_no_length(request, b"data: " + last)) as url:
        assert await read_all(SseSource(url, decode="json", on_end="end", attempts=1)) == [1]


async def test_pages_by_link_and_by_number() -> None:
    service = Service()
    async with serve(service) as url:
        assert await read_all(RestSource(f"{url}/pages", items="data")) == NUMBERS
        assert service.asked == [0, 7, 14, 21, 28, 35]
        source = RestSource(f"{url}/numbered", page="page")
        assert await read_all(source, {"page": 3, "items": 2}) == NUMBERS[16:]


@pytest.mark.parametrize("rel", ['rel="NEXT"', "REL=next", 'rel="last next"', "title=\"a; b\"; rel='next'"])
async def test_a_link_to_the_next_page_is_found_however_it_is_written(rel: str) -> None:
    async def service(request: web.Request) -> web.StreamResponse:
        number = int(request.query.get("at", 1))
        links = f'</pages?at=1>; rel="first", </pages?at={number + 1}>; {rel}'
        return web.json_response([number], headers={"Link": links} if number < 3 else {})

    async with serve(service) as url:
        assert await read_all(RestSource(f"{url}/pages")) == [1, 2, 3]


@pytest.mark.parametrize("user", ["", "mallory:guess@"])
async def test_all_pages_are_asked_for_by_the_user_of_the_first(user: str) -> None:
    asked = list[str | None]()

    async def service(request: web.Request) -> web.StreamResponse:
        asked.append(request.headers.get("Authorization"))
        more = {"next": f"http://{user}{request.host}/pages?at=2"} if not request.query else {}
        return web.json_response({"data": [len(asked)], **more})

    async with serve(service) as url:
        named = f"{url.replace('//', '//joe:secret@')}/pages"
        source = RestSource(named, items="data", cursor="next")
        assert await read_all(source) == [1, 2]
        assert asked == [f"Basic {b64encode(b'joe:secret').decode()}"] * 2
        assert "secret" not in str(source.position())
        again = RestSource(named, items="data", cursor="next")
        await again.seek({"page": f"{named.replace('secret', 'former')}?at=2", "items": 0})
        assert await read_all(again) == [3]
        assert asked[2] == asked[0]
        await read_all(RestSource(f"{url}/pages", items="data", cursor="next"))
        assert asked[3:] == [None, None]


@pytest.mark.parametrize("param", [None, "after"])
async def test_cursor_of_false_is_the_end_and_what_is_none_is_refused(param: str | None) -> None:
    following: list[Any] = [False]

    async def page(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [1], "next": following[0]})

    async with serve(page) as url:
        source = RestSource(url, items="data", cursor="next", param=param)
        assert await read_all(source) == [1]
        for following[0] in (True, ["x"], {"x": 1}):
            with pytest.raises(SourceError, match="expected a cursor, got"):
                await read_all(source)


@pytest.mark.parametrize("param", [None, "after"])
@pytest.mark.parametrize("before", range(5))
async def test_pages_that_lead_in_a_circle_are_refused(param: str | None, before: int) -> None:
    asked: list[int] = []

    async def page(request: web.Request) -> web.StreamResponse:
        number = int(request.query.get("after", "0"))
        asked.append(number)
        following = before if number == before + 6 else number + 1
        cursor = following if param else f"?after={following}"
        return web.json_response({"data": [number], "next": cursor})

    async with serve(page) as url:
        with pytest.raises(SourceError, match=f"the pages of {url} lead in a circle"):
            await read_all(RestSource(url, items="data", cursor="next", param=param))
    assert len(asked) <= 4 * (before + 7)


@pytest.mark.parametrize("pages", [1, 3])
@pytest.mark.parametrize("at", ["/list", "/list?of=a%20b"])
@pytest.mark.parametrize("how", ["relative", "whole", "link", "fragment"])
async def test_a_last_page_that_names_itself_as_the_next_is_the_last(pages: int, at: str, how: str) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        number = int(request.query.get("page", "1"))
        following = request.rel_url if number == pages else request.rel_url.update_query(page=number + 1)
        if how == "link":
            return web.json_response([number], headers={"Link": f'<{following}>; rel="next"'})
        text = f"{url}{following}" if how == "whole" else f"{following}{'#top' * (how == 'fragment')}"
        return web.json_response({"data": [number], "next": text})

    async with serve(page) as url:
        named: Any = {} if how == "link" else {"items": "data", "cursor": "next"}
        source = RestSource(url + at, **named)
        assert await read_all(source) == list(range(1, pages + 1))


@pytest.mark.parametrize("last", [{"data": {"items": None}}, {"data": {"items": []}}, None])
async def test_a_page_of_null_and_an_answer_of_nothing_have_no_items(last: Any) -> None:
    """Of an empty list some languages make null."""

    async def page(request: web.Request) -> web.StreamResponse:
        if request.query["page"] == "1":
            return web.json_response({"data": {"items": [1, 2]}})
        return web.Response(status=204) if last is None else web.json_response(last)

    async with serve(page) as url:
        assert await read_all(RestSource(url, items="data.items", page="page")) == [1, 2]


@pytest.mark.parametrize("answer", [{}, {"data": None}, {"data": {}}, None, {"data": {"items": {}}}])
async def test_a_page_without_a_list_where_it_is_to_be_is_an_error(answer: Any) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.json_response(answer)

    async with serve(page) as url:
        with pytest.raises(SourceError, match=r"expected a list of items, got a .*; say where it is, items="):
            await read_all(RestSource(url, items="data.items", page="page"))


async def test_pages_that_are_all_the_same_one_are_refused() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.json_response([1, 2, 3])

    async with serve(page) as url:
        with pytest.raises(SourceError, match=r"page 2 of .* has the items of the one before: .* page="):
            await read_all(RestSource(url, page="page"))


async def test_a_socket_message_larger_than_its_bound_is_refused() -> None:
    connections = 0

    async def service(request: web.Request) -> web.StreamResponse:
        nonlocal connections
        connections += 1
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_str(f'"{"x" * 2000}"')
        await socket.receive()
        return socket

    async with serve(service) as url:
        with pytest.raises(SourceError, match="a message is larger than max_message_bytes=1000"):
            await read_all(WebSocketSource(url, max_message_bytes=1000, **QUICK))
    assert connections == 1


async def test_an_answer_that_does_not_come_is_told_with_the_time() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with serve(silent) as url:
        with pytest.raises(SourceError, match=r"the last: .*there was no answer within 0\.05 s"):
            await read_all(RestSource(url, attempts=1, timeout=0.05, **QUICK))


@pytest.mark.parametrize(
    "next_page", ["http://[::1", "mailto:a@b", "http://me:s3cr3t\u2100@host/x", "http://host:99999/"]
)
async def test_a_next_page_that_is_no_url_is_told_without_it(next_page: str) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [1], "next": next_page})

    async with serve(page) as url:
        with pytest.raises(SourceError, match="names a page that is no URL") as caught:
            await read_all(RestSource(url, items="data", cursor="next", **QUICK))
    assert "s3cr3t" not in "".join(traceback.format_exception(caught.value))


async def test_next_page_elsewhere_is_refused() -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": [1], "next": "http://elsewhere.example/x?key=1"})

    async with serve(page) as url:
        with pytest.raises(SourceError, match=r"names a page of another origin: http://elsewhere\.example/x"):
            await read_all(RestSource(url, items="data", cursor="next", headers={"Authorization": "k"}))


@pytest.mark.parametrize(
    ("page", "more", "says"),
    [
        (
            "http://elsewhere.example/x?after=1",
            {},
            r"it was http://elsewhere\.example/x\?after=…, of another",
        ),
        ("/x", {"page": "page"}, "its pages had no numbers then"),
        (3, {}, "its pages had numbers then"),
        (3, {"cursor": "next"}, "its pages had numbers then"),
    ],
)
async def test_page_that_was_another_ones_is_not_gone_on_at(
    page: Any, more: dict[str, Any], says: str
) -> None:
    source = RestSource("http://here.example/x", **more)
    with pytest.raises(SourceError, match=f"cannot go on at the page of .*: {says}"):
        await source.can_seek({"page": page, "items": 0})
    for before in (None, 3 if "page" in more else "http://here.example/x?after=1"):
        await source.can_seek({"page": before, "items": 0})


@pytest.mark.parametrize("make", [sse, RestSource, WebSocketSource])
async def test_a_redirect_gives_the_headers_to_nobody_else(make: Callable[..., Source[Any]]) -> None:
    given: list[str | None] = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        given.append(request.headers.get("X-Key"))
        return web.json_response([])

    async with serve(elsewhere) as other, serve(status(302, Location=f"{other}/x")) as url:
        with pytest.raises(SourceError, match=f"(has moved|another origin).*{other}/x"):
            await read_all(make(url, headers={"X-Key": "secret"}))
    assert given == []


@pytest.mark.parametrize("make", [sse, socket, pages])
@pytest.mark.parametrize(
    "headers",
    [{"X-Key": b"s3cr3t"}, {b"s3cr3t": "X"}, {"X-Key": "s3cr3t\r\nX: y"}, [("X-Key", "s3cr3t")]],
)
async def test_headers_that_are_none_are_refused_and_not_quoted(
    make: Callable[..., Source[Any]], headers: Any
) -> None:
    kind = type(headers).__name__
    with pytest.raises(
        PipelineError, match=f"headers: expected a mapping of texts.*, got a {kind}$"
    ) as caught:
        make("http://127.0.0.1:1", headers=headers)
    assert "s3cr3t" not in str(caught.value)
    async with serve(Service()) as url:
        with pytest.raises(SourceError, match="headers: expected a mapping of texts") as failed:
            await read_all(make(url, headers=lambda: headers))
    assert "s3cr3t" not in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize("make", [sse, RestSource, WebSocketSource])
async def test_a_service_says_when_to_come_again(
    make: Callable[..., Source[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    async with serve(status(503, Retry_After="7", Location="/busy")) as url:
        source = make(url)
        await source.open()
        reading = asyncio.ensure_future(source.read())
        async with asyncio.timeout(30):
            while not caplog.messages:  # noqa: ASYNC110
                await asyncio.sleep(0.01)  # of a real service
        reading.cancel()
        await source.close()
    assert "connecting again in 7 s" in caplog.messages[0]
    assert "moved" not in caplog.messages[0]


async def test_a_socket_may_be_elsewhere_at_its_service() -> None:
    async def service(request: web.Request) -> web.StreamResponse:
        if request.path == "/":
            return web.Response(status=307, headers={"Location": "/socket"})
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.send_json(1)
        await socket.close()
        return socket

    async with serve(service) as url:
        for address in (url, url.replace("http", "ws", 1)):
            assert await read_all(WebSocketSource(address, on_end="end")) == [1]


async def test_last_page_is_polled_for_what_comes_behind() -> None:
    there = [1, 2]

    async def page(request: web.Request) -> web.StreamResponse:
        return web.json_response({"data": list(there)})

    async with serve(page) as url:
        source = RestSource(url, items="data", poll=0.01)
        await source.open()
        found: list[int] = []
        async with asyncio.timeout(60):
            while len(found) < 4:
                batch = await source.read()
                assert batch is not None
                found += batch.values
                there[len(found) :] = [3, 4]
        assert found == [1, 2, 3, 4]
        await source.close()


@pytest.mark.parametrize(("poll", "most"), [(5, 500), (500, 150)])
def test_a_service_that_always_names_another_page_is_not_asked_without_a_pause(poll: int, most: int) -> None:
    class Silent(RestSource):
        """A page with an item, then only such as are empty, each of which names another."""

        asked: ClassVar[list[Any]] = []

        async def _asked(self, session: Any, at: Any) -> tuple[list[Any], Any]:
            self.asked.append(at)
            assert len(self.asked) < most
            if len(self.asked) % 20 == 0:
                raise Interrupted("")
            return [] if at else ["item"], (at or 0) + 1

    async def main() -> tuple[list[Any], Any]:
        source = Silent("http://silent", cursor="next", param="after", poll=poll, attempts=2)
        await source.open()
        found: list[Any] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(1000):
                while (batch := await source.read()) is not None:
                    found += batch.values
        await source.close()
        return found, source.position()

    Silent.asked.clear()
    found, position = run_virtual(main())
    assert found == ["item"]
    assert len(Silent.asked) > max(40, 1000 / poll)
    # none that was read is asked for again, also after a connection that failed
    assert position == {"page": 1 + max(at or 0 for at in Silent.asked), "items": 0}
    assert len(Silent.asked) - len(set(Silent.asked)) == len(Silent.asked) // 20


async def test_failures_with_all_read_between_them_are_none_in_a_row() -> None:
    asked = 0

    async def page(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        return web.Response(status=503) if asked % 2 == 0 else web.json_response([1, 2][: asked // 20 + 1])

    async with serve(page) as url, asyncio.timeout(60):
        source = RestSource(url, poll=0.001, attempts=2, **QUICK)
        await source.open()
        for number in (1, 2):  # the second after nine failures
            batch = await source.read()
            assert batch is not None
            assert batch.values == [number]
        await source.close()


async def test_a_numbered_page_that_was_not_full_is_polled_until_it_is() -> None:
    there = list(range(3))

    async def page(request: web.Request) -> web.StreamResponse:
        begin = 10 * (int(request.query["page"]) - 1)
        answer = web.json_response(there[begin : begin + 10])
        if begin >= len(there) and len(there) < 30:  # once it was said that there is nothing behind
            there.extend(range(len(there), len(there) + 4))
        return answer

    async with serve(page) as url:
        source = RestSource(url, page="page", poll=0.001)
        await source.open()
        found: list[int] = []
        async with asyncio.timeout(60):
            while len(found) < 31:
                batch = await source.read()
                assert batch is not None
                found += batch.values
        assert found == list(range(31))
        await source.close()


@dataclass
class Order:
    id: int


async def test_items_become_objects() -> None:
    async with serve(lambda request: _answer(web.json_response([{"id": 1}, {"id": "x"}]))) as url:
        source = RestSource(url, model=Order, on_malformed="reject")
        await source.open()
        batch = await source.read()
        assert batch is not None
        assert batch.values == [Order(1)]
        assert "field id: expected int" in batch.rejected[0].reason
        await source.close()


async def test_a_cursor_of_any_size_is_asked_for_again() -> None:
    """One of more than 64 bits was read, and no connection could be made after it."""
    asked: list[str] = []

    async def feed(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        asked.append(await socket.receive_str())
        if len(asked) == 1:
            await socket.send_str('{"seq":1180591620717411303424}')
        await socket.close(code=1012 if len(asked) == 1 else 1000)
        return socket

    async with serve(feed) as url:
        source = WebSocketSource(
            url, subscribe=lambda seq: [{"after": seq}], cursor="seq", on_end="end", attempts=2, **QUICK
        )
        assert await read_all(source) == [{"seq": 2**70}]
    assert asked == ['{"after":null}', '{"after":1180591620717411303424}']


async def test_idle_connection_is_made_again() -> None:
    asked = 0

    async def events(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if asked > 1:
            return web.Response(status=204)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"data: 1\n\n")
        await asyncio.sleep(60)
        return response

    async with serve(events) as url:
        assert await read_all(SseSource(url, decode="json", idle_timeout=1, **QUICK)) == [1]
    assert asked == 2


async def test_a_socket_of_which_nothing_is_heard_is_made_again() -> None:
    asked, pings = 0, 0

    async def talk(request: web.Request) -> web.StreamResponse:
        nonlocal asked, pings
        asked += 1
        served = web.WebSocketResponse(autoping=False)
        await served.prepare(request)
        await served.send_json(asked)
        if asked == 1:  # it answers one ping, then it is silent
            while (came := await served.receive()).type is WSMsgType.PING:
                pings += 1
                if pings == 1:
                    await served.pong(came.data)
        await served.close()
        return served

    async with serve(talk) as url, asyncio.timeout(30):
        # half of it is what an answer may take, on a busy machine too
        source = WebSocketSource(url, heartbeat=0.5, on_end="end", **QUICK)
        assert await read_all(source) == [1, 2]
    assert pings == 2


async def test_a_socket_that_is_not_read_for_a_while_is_alive_and_loses_nothing() -> None:
    hung_up = asyncio.Event()

    async def talk(request: web.Request) -> web.StreamResponse:
        served = web.WebSocketResponse()
        await served.prepare(request)
        try:
            for number in range(2000):  # more than is on its way while nobody reads
                await served.send_json([number, " " * 10_000])
            await served.close()
        finally:
            hung_up.set()
        return served

    async with serve(talk) as url, asyncio.timeout(60):
        source = WebSocketSource(url, heartbeat=0.1, buffer=10, attempts=1, on_end="end", **QUICK)
        await source.open()
        found: list[int] = []
        while (batch := await source.read()) is not None:
            found += [number for number, _ in batch.values]
            if len(found) == len(batch.values):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(hung_up.wait(), 0.3)
        assert found == list(range(2000))
        await source.close()


async def test_a_socket_on_which_a_message_is_long_in_coming_is_alive() -> None:
    async def talk(request: web.Request) -> web.StreamResponse:
        served = web.WebSocketResponse(autoping=False)
        await served.prepare(request)
        assert request.transport is not None
        request.transport.write(b"\x81\x04")  # a text of four bytes, in which no answer has a place
        for piece in b"12", b"34":
            if (await served.receive()).type is not WSMsgType.PING:
                return served
            request.transport.write(piece)
        await served.close()
        return served

    async with serve(talk) as url, asyncio.timeout(60):
        assert await read_all(WebSocketSource(url, heartbeat=0.5, on_end="end", **QUICK)) == [1234]


@pytest.mark.parametrize("message", ['{"op": "subscribe"}', b"subscribe", {"op": "subscribe"}, None])
async def test_one_message_is_not_taken_for_a_list_of_them(message: Any) -> None:
    with pytest.raises(PipelineError, match="subscribe: expected a list of messages"):
        WebSocketSource("ws://x", subscribe=message)
    async with serve(Service()) as url:
        with pytest.raises(SourceError, match="subscribe= is to give a list of messages, and gave a"):
            await read_all(WebSocketSource(f"{url}/socket", subscribe=lambda after: message))


async def test_binary_messages_and_what_is_sent_first() -> None:
    got: list[Any] = []

    async def talk(request: web.Request) -> web.StreamResponse:
        served = web.WebSocketResponse()
        await served.prepare(request)
        for _ in range(3):
            message = await served.receive()
            got.append((message.type, message.data))
        await served.send_bytes(b"\x01\x02")
        await served.close()
        return served

    async with serve(talk) as url:
        source = WebSocketSource(
            url,
            subscribe=["text", b"bytes", {"a": 1}],
            decode=bytes,
            on_end="end",
            headers=lambda: {"X": "1"},
        )
        assert await read_all(source) == [b"\x01\x02"]
        assert not source.is_replayable()
    assert got == [(WSMsgType.TEXT, "text"), (WSMsgType.BINARY, b"bytes"), (WSMsgType.TEXT, '{"a":1}')]


# ---------------------------------------------------------------------- the protocol of events

STREAM = (
    "\ufeff: comment\r\ndata: one\r\ndata: two\r\nid: 1\r\n\r\n"
    "event: add\rdata:three\r\r"
    "data\n\nnothing: x\n\nid: a\0b\nretry: 250\nretry: x\ndata:  ü\n\ndata: never dispatched"
)
EVENTS = [
    ServerSentEvent("one\ntwo", "message", "1"),
    ServerSentEvent("three", "add", "1"),
    ServerSentEvent("", "message", "1"),
    ServerSentEvent(" ü", "message", "1"),
]


@given(cuts=st.lists(st.integers(0, len(STREAM.encode())), max_size=12))
def test_events_are_the_same_however_the_stream_is_cut(cuts: list[int]) -> None:
    data, parser = STREAM.encode(), EventParser()
    places = [0, *sorted(cuts), len(data)]
    events = [event for begin, end in pairwise(places) for event in parser.feed(data[begin:end])]
    assert events == EVENTS
    assert parser.retry_ms == 250


def test_event_larger_than_its_bound_is_refused() -> None:
    parser = EventParser(limit=100)
    with pytest.raises(ValueError, match="larger than max_event_bytes=100"):
        list(parser.feed(b"data: 1234567890\n" * 20))
    with pytest.raises(ValueError, match="larger than max_event_bytes=100"):
        list(EventParser(limit=100).feed(b"x" * 101))
    with pytest.raises(ValueError, match="larger than max_event_bytes=100"):
        list(EventParser(limit=100).feed(b"data\n" * 101))


def test_a_large_event_in_many_pieces_costs_about_what_it_does_in_one() -> None:
    data, parser = b"data: " + b"x" * 900_000 + b"\n\n", EventParser()
    started = time.process_time()
    events = [event for begin in range(0, len(data), 500) for event in parser.feed(data[begin : begin + 500])]
    assert [len(event.data) for event in events] == [900_000]
    assert time.process_time() - started < 3  # it took half a minute to look at all anew with each piece


def test_an_id_that_no_server_would_take_back_is_not_remembered() -> None:
    """A server refuses a request with such a header for good, and with it the job that goes on there."""
    parser = EventParser()
    data = "id: 1\ndata: a\n\nid: " + "x" * 2001 + "\ndata: b\n\nid: " + "é" * 2000 + "\ndata: c\n\n"
    assert [event.id for event in parser.feed(data.encode())] == ["1", "1", "é" * 2000]


def test_no_service_has_a_source_wait_for_ever() -> None:
    parser = EventParser()
    assert list(parser.feed(b"retry: 250\nretry: " + b"9" * 5000 + b"\nretry: 1234567890\n\n")) == []
    assert parser.retry_ms == 250
    source = SseSource("http://x", wait_max=1)
    assert source._after(HttpError("http://x", 503, "busy", retryable=True, retry_after="1e70"), 1) == 3600


async def later(*_: Any) -> dict[str, str]:
    return {}


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(PipelineError, match="url: expected a URL with http or https"):
        SseSource("ftp://x")
    with pytest.raises(PipelineError, match="decode: expected one of 'json', 'text'"):
        WebSocketSource("ws://x", decode="xml")  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="subscribe: expected with cursor="):
        WebSocketSource("ws://x", cursor="n", subscribe=["x"])
    with pytest.raises(PipelineError, match="subscribe: expected a list of messages"):
        WebSocketSource("ws://x", subscribe="x")
    with pytest.raises(PipelineError, match="page: expected none with cursor="):
        RestSource("http://x", page="p", cursor="c")
    with pytest.raises(PipelineError, match="cursor: expected with param="):
        RestSource("http://x", param="c")
    with pytest.raises(PipelineError, match="attempts: expected an integer of at least 1"):
        RestSource("http://x", attempts=0)
    with pytest.raises(PipelineError, match="headers: expected a mapping"):
        SseSource("http://x", headers=["a"])  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="headers: expected a plain function"):
        SseSource("http://x", headers=later)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="items: expected a plain function"):
        RestSource("http://x", items=later)
