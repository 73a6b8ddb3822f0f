"""What an element holds or a service answers cannot turn a lookup against its user."""

from __future__ import annotations

import asyncio
import gzip
import logging
import math
import pickle
import traceback
import tracemalloc
import zlib
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from aiohttp import web
from hypothesis import example, given
from hypothesis import strategies as st
from yarl import URL

from asyncstream.connectors import to_dead_letter
from asyncstream.connectors.base import Source
from asyncstream.connectors.http import HttpLookup, RestSource, SseSource, WebSocketSource
from asyncstream.connectors.http.urls import UnsafeUrl, shown, template
from asyncstream.errors import HttpError, PipelineError, RetriesExhausted, SourceError
from asyncstream.operators.functions import FailedCall
from tests.connectors.http.services import QUICK, Handler, answer, echo, failure, read_all, run, serve, status

SECRETS = ("passw0rd", "SECRET", "s3cr3t")


def serving(body: bytes, **headers: str) -> Handler:
    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        await response.prepare(request)
        await response.write(body)
        return response

    return respond


# -- where a request goes


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        ("a/b", "a%2Fb"),
        ("a?b=c", "a%3Fb%3Dc"),
        ("a#b", "a%23b"),
        ("%2e%2e", "%252e%252e"),
        ("..;", "..%3B"),
        ("../..", "..%2F.."),
        ("a\\b", "a%5Cb"),
        ("a\tHost: x", "a%09Host%3A%20x"),
        ("é", "%C3%A9"),
        ("...", "..."),
        (".a", ".a"),
        ("@evil", "%40evil"),
        (7, "7"),
    ],
)
def test_value_stays_in_its_place(value: object, raw: str) -> None:
    assert answer(echo, value, "/tenants/{}/public")["raw"] == f"/tenants/{raw}/public"
    assert answer(echo, value, "/x?q={}&r=1")["raw"] == f"/x?q={raw}&r=1"


@pytest.mark.parametrize(
    "url", ["http://x/tenants/{}/public", "http://x/{}", "http://x/{}?q=1", "/{}/a", "http://x/.{}"]
)
@pytest.mark.parametrize("value", ["", ".", "..", "\ud800"])
def test_value_that_would_leave_its_place_is_an_error(url: str, value: str) -> None:
    if url.endswith(".{}") and value in ("..", "\ud800"):
        value = "."
    if not value and "." in url:
        return
    with pytest.raises(UnsafeUrl):
        template(url)(value)


@pytest.mark.parametrize(
    ("url", "is_asked"),
    [
        ("http://bücher.example/{}/ä", "http://xn--bcher-kva.example/x/%C3%A4"),
        ("HTTPS://me:p@Bücher.example:81/{}", "HTTPS://me:p@xn--bcher-kva.example:81/x"),
        ("http://例え.jp?q={}", "http://xn--r8jz45g.jp?q=x"),
        ("http://[::1]:80/{}", "http://[::1]:80/x"),
        ("http://x/http://bücher/{}", "http://x/http://b%C3%BCcher/x"),
    ],
)
def test_host_of_a_template_is_asked_by_its_name_in_the_network(url: str, is_asked: str) -> None:
    assert template(url)("x") == URL(is_asked, encoded=True)


def test_error_of_such_a_value_is_not_retryable_and_sends_nothing() -> None:
    error = failure(echo, value="..", url="/tenants/{}/public")
    assert not error.retryable
    assert "'..'" in str(error)


@pytest.mark.parametrize("make", [dict, SimpleNamespace])
@pytest.mark.parametrize("url", ["http://x/planes/{tail}", "http://x/a-{tail}/b", "http://x/?q={tail}&r=1"])
@pytest.mark.parametrize(
    ("value", "is_what"),
    [(None, "None"), ("", "empty"), (math.nan, "NaN"), (Decimal("nan"), "NaN"), (b"N1", "bytes")],
    ids=str,
)
def test_value_that_is_none_is_an_error_that_names_its_field(
    make: type[Any], url: str, value: Any, is_what: str
) -> None:
    with pytest.raises(UnsafeUrl, match=f"the field 'tail' is {is_what}.* function of the element as url=$"):
        template(url)(make(tail=value))
    with pytest.raises(UnsafeUrl, match=f"the element is {is_what}"):
        template(url.replace("tail", ""))(value)


@pytest.mark.parametrize("value", [0, False, 0.0, " ", Decimal(0)])
def test_value_that_is_nothing_much_is_one(value: object) -> None:
    assert template("http://x/?q={q}")({"q": value}).query["q"] == str(value)


def test_dots_of_several_fields_are_seen_together() -> None:
    with pytest.raises(UnsafeUrl):
        template("http://x/{a}{b}/c")({"a": ".", "b": "."})
    assert (
        str(template("http://x/{a}/../{b}")({"a": "q", "b": "r"})) == "http://x/q/../r"
    )  # the template's own


@given(st.text(max_size=20))
def test_path_has_the_segments_of_the_template_whatever_the_value(value: str) -> None:
    try:
        url = template("http://host/a/{}/b?q={}")(value)
    except UnsafeUrl:
        return
    assert url.host == "host"
    segments = url.raw_path.split("/")
    assert (len(segments), segments[1], segments[3]) == (4, "a", "b")
    assert list(url.query) == ["q"]


@given(
    st.lists(st.sampled_from(["%", ".", "2", "e", "a", "/", "{}"]), min_size=1, max_size=6),
    st.sampled_from(["2", "e", "2E", "x", ".", "%2e"]),
)
@example(["a", "/", "%", "2", "{}"], "E")
@example(["%", "{}"], "2e")
@example([".", "%", "{}", "e", "/", "a"], "2")
def test_no_value_completes_what_names_another_place(pieces: list[str], value: str) -> None:
    """Not even one of letters and digits alone, as of "%2{}"."""
    text = f"http://host/{''.join(pieces)}"
    try:
        segments = str(template(text)(value)).split("/")
    except UnsafeUrl:
        return
    for segment, own in zip(segments, text.split("/"), strict=True):
        if "{}" in own:
            assert unquote(segment) not in (".", "..")


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_redirect_to_another_origin_is_refused_or_goes_without_what_is_secret(code: int) -> None:
    async def main() -> None:
        seen: list[Any] = []

        async def other(request: web.Request) -> web.StreamResponse:
            seen.append((request.method, request.path, dict(request.headers), await request.read()))
            return web.json_response(1)

        async def away(request: web.Request) -> web.StreamResponse:
            return web.Response(status=code, headers={"Location": f"{there}/internal"})

        async with serve(other) as there, serve(away) as here:
            how: dict[str, Any] = {"headers": {"X-Api-Key": "SECRET", "Cookie": "s3cr3t"}, "attempts": 1}
            url = here.replace("//", "//user:passw0rd@") + "/{}"
            async with HttpLookup(url, **how) as lookup:
                with pytest.raises(HttpError, match="redirects='same_origin' does not follow it") as caught:
                    await lookup.invoke("a")
                assert not caught.value.retryable
            assert seen == []
            async with HttpLookup(url, redirects="any", **how) as lookup:
                assert await lookup.invoke("a") == 1
        (_, path, headers, body) = seen[0]
        assert (path, body) == ("/internal", b"")
        assert "Authorization" not in headers
        assert not any(secret in str(headers) for secret in SECRETS)

    run(main())


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_request_is_not_sent_elsewhere_without_its_body(code: int, method: Any) -> None:
    async def main() -> None:
        seen: list[str] = []

        async def other(request: web.Request) -> web.StreamResponse:
            seen.append(request.method)
            return web.json_response(1)

        async def away(request: web.Request) -> web.StreamResponse:
            assert await request.json() == {"of": "a"}
            return web.Response(status=code, headers={"Location": there})

        how: dict[str, Any] = {"method": method, "json": lambda value: {"of": value}, "redirects": "any"}
        async with serve(other) as there, serve(away) as here, HttpLookup(here, **how) as lookup:
            if code == 303 or (method == "POST" and code in (301, 302)):
                assert await lookup.invoke("a") == 1
                assert seen == ["GET"]
            else:
                with pytest.raises(HttpError, match="where no request with a body is sent") as caught:
                    await lookup.invoke("a")
                assert (caught.value.status, caught.value.retryable, seen) == (code, False, [])

    run(main())


def test_all_redirects_of_a_request_have_its_timeout_together() -> None:
    asked: list[None] = []

    async def slowly(request: web.Request) -> web.StreamResponse:
        asked.append(None)
        await asyncio.sleep(0.4)
        return web.Response(status=302, headers={"Location": "/again"})

    error = failure(slowly, timeout=1)
    assert (error.status, error.retryable) == (None, True)
    assert len(asked) <= 3  # and not six of 0.4 s each


def test_redirect_to_the_same_origin_is_followed_with_headers() -> None:
    async def moved(request: web.Request) -> web.StreamResponse:
        if request.path == "/old/x":
            return web.Response(status=302, headers={"Location": "../new"})
        return web.json_response([request.path, request.headers["X-Api-Key"]])

    assert answer(moved, url="/old/{}", headers={"X-Api-Key": "k"}) == ["/new", "k"]
    error = failure(moved, url="/old/{}", redirects="none")
    assert (error.status, error.retryable) == (302, False)


@pytest.mark.parametrize("location", ["/again", "http://[", "file:///etc/passwd", "//"])
def test_redirects_that_lead_nowhere_are_errors(location: str) -> None:
    error = failure(status(302, Location=location), redirects="any")
    assert not error.retryable or error.status is None


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_cookies_are_not_kept_unless_asked_for(host: str) -> None:
    async def cookie(request: web.Request) -> web.StreamResponse:
        response = web.json_response(request.headers.get("Cookie"))
        response.set_cookie("sid", request.match_info["name"])
        return response

    async def main(**how: Any) -> list[Any]:
        async with serve(cookie) as address:
            lookup = HttpLookup(address.replace("127.0.0.1", host) + "/{}", **how)
            async with lookup:
                return [await lookup.invoke("alice"), await lookup.invoke("bob")]

    assert run(main()) == [None, None]
    assert run(main(cookies=True)) == [None, "sid=alice"]


# -- how large an answer may be


def compressed(data: bytes, way: str) -> bytes:
    if way == "gzip":
        return gzip.compress(data)
    if way == "two members":
        return gzip.compress(data[:5]) + gzip.compress(data[5:])
    if way == "deflate":
        return zlib.compress(data)
    bare = zlib.compressobj(wbits=-15)
    return bare.compress(data) + bare.flush()


ENCODINGS = {"gzip": "gzip", "two members": "gzip", "deflate": "deflate", "bare deflate": "deflate"}


@pytest.mark.parametrize("way", ENCODINGS)
def test_compressed_answer_is_read(way: str) -> None:
    data = b'"' + b"x" * 200_000 + b'"'
    handler = serving(compressed(data, way), Content_Encoding=ENCODINGS[way])
    assert answer(handler) == "x" * 200_000
    assert answer(handler, max_bytes=len(data)) == "x" * 200_000
    with pytest.raises(HttpError, match="more than max_bytes=200001"):
        answer(handler, max_bytes=len(data) - 1, attempts=1)


def test_answer_that_is_not_compressed_is_bounded_too() -> None:
    error = failure(serving(b"0" * 2**20), max_bytes=2**16)
    assert (error.status, error.retryable) == (200, False)


@pytest.mark.parametrize("way", ENCODINGS)
def test_answer_is_never_larger_than_it_may_be(way: str) -> None:
    handler = serving(compressed(b"0" * 2**25, way), Content_Encoding=ENCODINGS[way])
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        error = failure(handler, max_bytes=2**16)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert (error.status, error.retryable) == (200, False)
    assert peak < 2**22


@pytest.mark.parametrize(
    ("body", "encoding", "text"),
    [
        (gzip.compress(b"[1]", mtime=0)[:-4], "gzip", "cut off"),
        (b"no gzip", "gzip", "cannot be decompressed"),
        (b"[1]", "br", "compressed as 'br'"),
        (b"[1]", "gzip, gzip", "compressed as 'gzip, gzip'"),
    ],
)
def test_damaged_compression_is_an_error(body: bytes, encoding: str, text: str) -> None:
    assert text in str(failure(serving(body, Content_Encoding=encoding)))


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b"3", "application/json", 3),
        (b"null", "application/json", None),
        (b'"x"', "text/html", "x"),
        (b"\xef\xbb\xbf[1]", "application/json", [1]),
        ('"é"'.encode("latin-1"), "application/json; charset=latin-1", "é"),
        (b"", "text/html", None),
    ],
)
def test_answer_is_decoded(body: bytes, kind: str, expected: object) -> None:
    assert answer(serving(body, Content_Type=kind)) == expected


@pytest.mark.parametrize(
    ("body", "kind", "text"),
    [
        (b"<html>", "text/html", "text/html, not JSON"),
        (b'"\xe9"', "application/json", "not JSON"),
        (b"[1]", "application/json; charset=klingon", "not JSON"),
        (b"[1]", "application/json; charset=Punycode", "punycode is no encoding of texts"),
        (b"[1]", "application/json; charset=idna", "idna is no encoding of texts"),
        (b"[1", "application/json", "not JSON"),
    ],
)
def test_what_is_no_json_is_an_error_that_says_what_it_is(body: bytes, kind: str, text: str) -> None:
    assert text in str(failure(serving(body, Content_Type=kind)))


# -- what is told of a request


async def malformed(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"HTTP/1.1 what\r\n\r\n")
    request.transport.close()
    return web.Response()


FAILING: dict[str, Callable[[], Any]] = {
    "refused": lambda: None,
    "status": lambda: status(500),
    "malformed": lambda: malformed,
    "redirect": lambda: status(302, Location="http://user:passw0rd@elsewhere/?key=SECRET"),
    "no json": lambda: serving(b"<"),
}


@pytest.mark.parametrize("way", FAILING)
@pytest.mark.parametrize("attempts", [1, 2])
def test_secrets_are_in_no_error(way: str, attempts: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> BaseException:
        async with serve(FAILING[way]() or echo) as address:
            if way == "refused":
                address = "http://127.0.0.1:1"
            url = address.replace("//", "//user:passw0rd@") + "/{}?apikey=SECRET&s3cr3t"
            lookup = HttpLookup(url, attempts=attempts, headers={"X-Key": "SECRET"}, retry_options=QUICK)
            async with lookup:
                with pytest.raises((HttpError, RetriesExhausted)) as caught:
                    await lookup.invoke("a")
                told.append(repr(lookup))
        return caught.value

    told: list[str] = []
    error = run(main())
    letter = to_dead_letter(FailedCall("a", error, attempts, None, 0, 0))
    told += [str(error), repr(error), str(letter), caplog.text, "".join(traceback.format_exception(error))]
    told.append(str(vars(pickle.loads(pickle.dumps(error)))))
    for secret in SECRETS:
        assert not any(secret in text for text in told)


@pytest.mark.parametrize("way", ["refused", "status", "malformed", "redirect"])
@pytest.mark.parametrize("make", [SseSource, RestSource, WebSocketSource])
def test_secrets_are_in_no_error_of_a_source(
    make: Callable[..., Source[Any]], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> BaseException:
        async with serve(FAILING[way]() or echo) as address:
            if way == "refused":
                address = "http://127.0.0.1:1"
            url = address.replace("//", "//user:passw0rd@") + "/?apikey=SECRET&s3cr3t"
            source = make(url, attempts=2, headers={"X-Key": "SECRET"}, **QUICK)
            await source.open()
            with pytest.raises(SourceError) as caught:
                await source.read()
            await source.close()
        return caught.value

    told = [*traceback.format_exception(run(main())), caplog.text]
    for secret in SECRETS:
        assert not any(secret in text for text in told)


async def repeats_the_request(request: web.Request) -> web.StreamResponse:
    said = f"{request.headers['X-Key']} is not to ask for {request.rel_url}"
    return web.Response(status=422, body=gzip.compress(said.encode()), headers={"Content-Encoding": "gzip"})


def test_head_of_an_answer_that_is_broken_off_is_in_no_error() -> None:
    async def breaks_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nSet-Cookie: id=secret\r\nContent-Length: 5\r\n")
        await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(breaks_off, "127.0.0.1", 0)
        async with server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            async with HttpLookup(url, attempts=1) as lookup:
                with pytest.raises(HttpError) as caught:
                    await lookup.invoke("a")
            with pytest.raises(SourceError) as told:
                await read_all(RestSource(url, attempts=1))
            server.close()
        assert caught.value.retryable
        for error in (caught.value, told.value):
            assert "ServerDisconnectedError" in str(error)
            assert "secret" not in "".join(traceback.format_exception(error))

    run(main())


def test_what_a_service_says_of_a_request_can_be_asked_for_and_is_in_no_text(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    error = failure(repeats_the_request, url="/{}?key=SECRET", headers={"X-Key": "passw0rd"})
    assert error.body == b"passw0rd is not to ask for /x?key=SECRET"
    letter = to_dead_letter(FailedCall("x", error, 1, None, 0, 0))
    told = [str(error), repr(error), str(letter), caplog.text, "".join(traceback.format_exception(error))]
    assert not any(secret in text for text in told for secret in SECRETS)


async def breaks_off(response: web.StreamResponse, request: web.Request) -> None:
    await response.write(b"no")
    assert request.transport is not None
    request.transport.close()


async def stops(response: web.StreamResponse, request: web.Request) -> None:
    await response.write(b"no")
    await asyncio.sleep(60)


async def goes_on(response: web.StreamResponse, request: web.Request) -> None:
    await response.write(b"x" * 2000)


async def is_no_gzip(response: web.StreamResponse, request: web.Request) -> None:
    await response.write(b"xxx")


@pytest.mark.parametrize("write", [breaks_off, stops, goes_on, is_no_gzip])
@pytest.mark.parametrize("code", [400, 404, 429, 503])
def test_an_answer_that_is_refused_is_so_by_its_status_whatever_its_body(code: int, write: Any) -> None:
    asked: list[None] = []

    async def respond(request: web.Request) -> web.StreamResponse:
        asked.append(None)
        encoding = {"Content-Encoding": "gzip"} if write is is_no_gzip else {}
        response = web.StreamResponse(status=code, headers={"Retry-After": "0.01", **encoding})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await write(response, request)
        return response

    options: dict[str, Any] = {"max_bytes": 1000, "timeout": 0.5, "retry_options": QUICK}
    if code == 404:
        assert answer(respond, **options) is None
    else:
        with pytest.raises((HttpError, RetriesExhausted)) as caught:
            answer(respond, attempts=2, **options)
        error = caught.value if code == 400 else caught.value.__cause__
        assert isinstance(error, HttpError)
        assert (error.status, error.retry_after, error.body) == (code, "0.01", b"")
    assert len(asked) == (1 if code in (400, 404) else 2)


def test_what_is_kept_of_a_body_is_bounded() -> None:
    error = failure(serving(b"<" * 100_000, Content_Type="text/html"))
    assert error.status == 200
    assert error.body == b"<" * 4096


@pytest.mark.parametrize("url", ["http://127.0.0.1:{}/", "http://127.0.0.1:99999/{}"])
def test_port_that_is_none_is_an_error_of_the_request(url: str) -> None:
    async def main() -> None:
        async with HttpLookup(url) as lookup:
            await lookup.invoke("99999")

    with pytest.raises(HttpError, match="no URL") as caught:
        run(main())
    assert not caught.value.retryable


def test_url_with_half_of_a_character_is_not_asked_without_it() -> None:
    asked: list[str] = []

    async def respond(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        return web.json_response(1)

    async def main() -> None:
        async with serve(respond) as here, HttpLookup(lambda value: f"{here}/{value}") as lookup:
            assert await lookup.invoke("\U0001f600") == 1
            with pytest.raises(HttpError, match="what was made of the element is no URL") as caught:
                await lookup.invoke("\ud83d")
            assert not caught.value.retryable

    run(main())
    assert asked == ["/\U0001f600"]


@pytest.mark.parametrize("made", [None, b"http://x/", 5])
async def test_url_that_is_no_text_is_an_error_that_says_so(made: Any) -> None:
    async with HttpLookup(lambda value: made) as lookup:
        with pytest.raises(TypeError, match="url: expected a function that gives a text, it gave"):
            await lookup.invoke(1)


def test_wrong_url_is_not_quoted() -> None:
    async def main() -> None:
        async with HttpLookup(lambda value: f"http://user:passw0rd@[/?key=SECRET{value}") as lookup:
            await lookup.invoke("a")

    with pytest.raises(HttpError) as caught:
        run(main())
    assert not any(secret in "".join(traceback.format_exception(caught.value)) for secret in SECRETS[:1])
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://user:passw0rd@host:81/a/b?key=SECRET&page=2#frag", "http://host:81/a/b?key=…&page=…"),
        ("http://host/?SECRET", "http://host/?…"),
        ("http://[", "<not a URL>"),
    ],
)
def test_url_is_shown_without_what_may_be_secret(url: str, expected: str) -> None:
    assert shown(url) == expected


# -- other requests


async def tell(request: web.Request) -> web.StreamResponse:
    body = (await request.read()).decode()
    return web.json_response(
        [request.method, body, request.headers.get("Content-Type"), request.headers.get("X-Id")]
    )


def test_method_body_and_headers_may_depend_on_the_element() -> None:
    value = SimpleNamespace(id=7, name="é")
    how: dict[str, Any] = {"url": "/{id}", "headers": lambda one: {"X-Id": str(one.id)}}
    found = answer(tell, value, method="POST", json=lambda one: {"name": one.name}, **how)
    assert found == ["POST", '{"name":"é"}', "application/json", "7"]
    found = answer(tell, value, method="PUT", data=lambda one: one.name, **how)
    assert (found[0], found[1], found[3]) == ("PUT", "é", "7")
    found = answer(tell, value, url="/{id}", method="DELETE", headers={"X-Id": "all"})
    assert (found[0], found[3]) == ("DELETE", "all")


def test_body_is_json_as_sinks_write_it() -> None:
    """A lookup could not send on what another one had been answered: orjson alone writes no such number."""
    order = {"number": 2**70, "price": Decimal("1.10")}
    found = answer(tell, order, url="/", method="POST", json=lambda order: order)
    assert found[1] == '{"number":1180591620717411303424,"price":"1.10"}'


@pytest.mark.parametrize("header", [{"X-Note": "half \ud83d"}, {"X Note": "a"}, {"X-Note: b\u010a": "a"}])
def test_header_that_would_come_out_as_another_one_is_refused(header: dict[str, str]) -> None:
    with pytest.raises(PipelineError, match="headers: expected a mapping of texts") as caught:
        answer(echo, headers=lambda value: header)
    assert "half" not in str(caught.value)


@pytest.mark.parametrize("header", [{"content-length": "1"}, {"Transfer-Encoding": "chunked"}])
def test_header_that_would_cut_a_body_off_is_refused(header: dict[str, str]) -> None:
    """A length in characters, of a body in bytes, say."""
    with pytest.raises(PipelineError, match=f"leave out {next(iter(header)).lower()}"):
        answer(tell, "é", method="PUT", data=str, headers=lambda value: header)
    with pytest.raises(PipelineError, match="headers: expected none of"):
        HttpLookup("http://x/{}", headers=header)


def test_requests_with_different_bodies_are_not_taken_for_one() -> None:
    async def main() -> list[Any]:
        async with serve(tell) as address:
            lookup = HttpLookup(address, method="POST", json=lambda value: value, cache_ttl=60)
            async with lookup:
                return [await lookup.invoke(value) for value in (1, 2, 1)] + [lookup.metrics()["requests"]]

    one, two, again, requests = run(main())
    assert (one[1], two[1], again[1], requests) == ("1", "2", "1", 2)


@pytest.mark.parametrize("in_memory", [False, True])
def test_answers_that_are_kept_are_those_to_the_same_headers(in_memory: bool, tmp_path: Path) -> None:
    """Of a run for another tenant, with another key, they are answers that this one must not see."""

    async def whose(request: web.Request) -> web.StreamResponse:
        return web.json_response(request.headers.get("X-Tenant"))

    async def ask(address: str, headers: Any) -> Any:
        kept = {} if in_memory else {"store": tmp_path / "answers.db"}
        lookup = HttpLookup(address + "/{}", headers=headers, cache_ttl=60, cache_options=kept)
        async with lookup:
            return await lookup.invoke("a"), await lookup.invoke("a"), lookup.metrics()["requests"]

    async def main() -> list[Any]:
        given: list[Any] = [{"X-Tenant": "one"}, {"X-Tenant": "two"}, None, {"X-Tenant": "one"}]
        async with serve(whose) as address:
            return [await ask(address, headers) for headers in given]

    found = run(main())
    again = 1 if in_memory else 0
    assert found == [("one", "one", 1), ("two", "two", 1), (None, None, 1), ("one", "one", again)]


def test_an_answer_that_there_is_none_is_not_kept_for_a_lookup_that_is_to_find_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with serve(status(404)) as address:
            for missing in ("none", "error"):
                kept = {"store": tmp_path / "answers.db"}
                lookup: Any = HttpLookup(address, missing=missing, cache_ttl=60, cache_options=kept)
                async with lookup:
                    await lookup.invoke("a")

    with pytest.raises(HttpError, match="404"):
        run(main())


def test_what_may_do_its_work_twice_is_not_sent_again_unless_asked() -> None:
    requests = 0

    async def fail(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        return web.Response(status=503)

    for how, expected in (
        ({"method": "POST"}, 1),
        ({"method": "PUT", "retry_options": QUICK}, 5),
        ({"method": "POST", "attempts": 2, "retry_options": QUICK}, 2),
    ):
        requests = 0
        with pytest.raises((HttpError, RetriesExhausted)):
            answer(fail, **how)
        assert requests == expected


@pytest.mark.parametrize(("method", "attempts"), [("PUT", 1), ("DELETE", 1), ("GET", 3)])
def test_request_whose_connection_breaks_off_is_one_of_the_attempts(method: str, attempts: int) -> None:
    """aiohttp would send it a second time by itself."""
    requests = 0

    async def hang_up(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    with pytest.raises((HttpError, RetriesExhausted)):
        answer(hang_up, method=method, attempts=attempts, retry_options=QUICK)
    assert requests == attempts


@pytest.mark.parametrize(
    "after",
    [
        "Mon, 01 Jan 2030 00:00:00 +99999999999999",
        "Wed, 21 Oct 9999 07:28:00 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "9" * 400,
        "-5",
        "1e999",
        "nan",
        "inf",
        "",
        "soon",
        "Wed, 32 Foo 2020",
        "0001-01-01",
        "\u0665",
    ],
)
def test_odd_retry_after_neither_fails_nor_waits_for_ever(after: str) -> None:
    requests = 0

    async def busy(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        return web.Response(status=503, headers={"Retry-After": after})

    with pytest.raises(RetriesExhausted):
        answer(busy, attempts=3, retry_options=QUICK | {"retry_after_max": 0.01})
    assert requests == 3


@pytest.mark.parametrize(
    "arguments",
    [
        {"method": "get"},
        {"json": 5},
        {"data": asyncio.sleep},
        {"json": str, "data": str},
        {"headers": {"a": 1}},
        {"headers": {"a": "b\r\nc: d"}},
        {"headers": {"a": "b\x01"}},
        {"headers": {"a": "half \ud83d"}},
        {"headers": {"a b": "c"}},
        {"headers": {"a:": "c"}},
        {"headers": {"": "c"}},
        {"headers": {"é": "c"}},
        {"headers": "a"},
        {"redirects": "all"},
        {"max_bytes": 0},
        {"cookies": "yes"},
    ],
)
def test_wrong_argument_is_refused_when_built(arguments: dict[str, Any]) -> None:
    with pytest.raises(PipelineError):
        HttpLookup("http://x/{}", **arguments)
