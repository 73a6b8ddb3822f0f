"""HttpLookup against a real server on the loopback interface."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from asyncstream import Pipeline
from asyncstream.clock import ManualClock
from asyncstream.connectors.http import HttpLookup
from asyncstream.errors import HttpError, MissingField, PipelineError, RetriesExhausted
from asyncstream.guards import Breaker, RateLimiter, adaptive_concurrency
from tests.connectors.http.services import QUICK, Handler, answer, echo, failure, run, serve, status
from tests.servers.certificates import Certificates


class Misbehaving:
    """Answers the first request in a bad way, those after it well."""

    def __init__(self, bad: Handler) -> None:
        self.bad = bad
        self.requests = 0

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        return await (self.bad(request) if self.requests == 1 else echo(request))


async def reset_connection(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def send_half_a_body(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b'{"name": ')
    assert request.transport is not None
    request.transport.close()
    return response


async def send_half_a_body_of_unknown_length(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    response.force_close()
    await response.prepare(request)
    await response.write(b'{"name": ')
    return response


BAD: dict[str, Handler] = {
    "429": status(429),
    "503": status(503),
    "reset": reset_connection,
    "hang": hang,
    "half a body": send_half_a_body,
    "half a body of unknown length": send_half_a_body_of_unknown_length,
}


def test_template_takes_fields_of_a_mapping_and_encodes_them() -> None:
    assert answer(echo, {"tail": "N/1 4?"}, "/planes/{tail}")["raw"] == "/planes/N%2F1%204%3F"


def test_template_takes_attributes_of_an_object() -> None:
    assert answer(echo, SimpleNamespace(tail="N1"), "/planes/{tail}")["name"] == "planes/N1"


def test_url_may_be_a_function_of_the_element() -> None:
    async def main() -> Any:
        async with serve(echo) as address, HttpLookup(lambda value: f"{address}/{value + 1}") as lookup:
            return await lookup.invoke(6)

    assert run(main())["name"] == "7"


def test_answer_is_merged_with_the_element() -> None:
    assert answer(echo, 7, merge=lambda value, plane: (value, plane["name"])) == (7, "7")


def test_headers_are_sent() -> None:
    async def show(request: web.Request) -> web.StreamResponse:
        return web.json_response(request.headers["Authorization"])

    assert answer(show, headers={"Authorization": "Bearer x"}) == "Bearer x"


def test_answer_without_a_body_is_none() -> None:
    assert answer(status(204)) is None


def test_missing_is_none_or_an_error() -> None:
    assert answer(status(404)) is None
    error = failure(status(404), missing="error")
    assert (error.status, error.retryable) == (404, False)


@pytest.mark.parametrize(
    ("code", "retryable"),
    [(400, False), (403, False), (408, True), (429, True), (500, True), (502, True), (503, True)],
)
def test_status_becomes_an_error(code: int, retryable: bool) -> None:
    error = failure(status(code, Retry_After="3"))
    assert (error.status, error.retryable, error.retry_after) == (code, retryable, "3")


@pytest.mark.parametrize("name", ["reset", "hang", "half a body"])
def test_answer_that_does_not_come_is_an_error_without_a_status(name: str) -> None:
    error = failure(BAD[name], timeout=0.05)
    assert (error.status, error.retryable) == (None, True)
    assert error.__cause__ is not None


def test_service_that_is_not_there_is_a_retryable_error() -> None:
    async def main() -> None:
        async with serve(echo) as address:
            pass
        async with HttpLookup(address, attempts=1) as lookup:
            await lookup.invoke(1)

    with pytest.raises(HttpError) as caught:
        run(main())
    assert caught.value.retryable


@pytest.mark.parametrize("url", ["http://", "ftp://host/?key=secret", "//host/?key=secret", "host/secret/x"])
def test_url_that_is_none_of_http_is_not_retried(url: str) -> None:
    async def main() -> None:
        async with HttpLookup(str) as lookup:
            await lookup.invoke(url)

    with pytest.raises(HttpError) as caught:
        run(main())
    assert not caught.value.retryable
    assert "expected a URL that begins with http:// or https:// and a host" in str(caught.value)
    assert "key=secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["host/{}", "//host/{}", "http:/host/{}", "https:///{}", "{}"])
def test_template_that_is_none_of_http_is_refused(url: str) -> None:
    with pytest.raises(PipelineError, match="url: expected one that begins with http:// or https://"):
        HttpLookup(url)


def test_server_that_cannot_be_trusted_is_told_with_the_reason(certificates: Certificates) -> None:
    async def main() -> None:
        async with serve(echo, certificates.server()) as address, HttpLookup(address + "/{}") as lookup:
            await lookup.invoke(1)

    with pytest.raises(HttpError, match="CERTIFICATE_VERIFY_FAILED") as caught:
        run(main())
    assert not caught.value.retryable


def test_element_without_the_field_of_the_template_names_those_that_it_has() -> None:
    lookup = HttpLookup("http://host/{tail}")
    for element in ({"plane": 1}, SimpleNamespace(plane=1)):
        with pytest.raises(MissingField, match=r"no field 'tail' in a .*; there are: 'plane'"):
            asyncio.run(lookup.invoke(element))


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_misbehaving_service_is_asked_again(bad: Handler) -> None:
    service = Misbehaving(bad)
    # long enough for a slow machine to answer in, short enough to wait for
    assert answer(service, timeout=1.5, retry_options=QUICK)["name"] == "x"
    assert service.requests == 2


@pytest.mark.parametrize("after", ["0.05", "Sun, 06 Nov 1994 08:49:37 GMT"])
def test_retry_after_is_waited_for(after: str) -> None:
    clock = ManualClock(784_111_776_950)  # 50 ms before that date

    async def main() -> float:
        service = Misbehaving(status(429, Retry_After=after))
        options = QUICK | {"clock": clock}
        async with serve(service) as address, HttpLookup(address, retry_options=options) as lookup:
            began = asyncio.get_running_loop().time()
            await lookup.invoke(1)
            return asyncio.get_running_loop().time() - began

    assert 0.05 <= run(main()) < 5


def test_wrong_request_is_not_sent_again() -> None:
    service = Misbehaving(status(400))
    with pytest.raises(HttpError):
        answer(service)
    assert service.requests == 1


def test_gives_up_after_the_last_attempt() -> None:
    with pytest.raises(RetriesExhausted) as caught:
        answer(status(503), attempts=3, retry_options=QUICK)
    assert caught.value.attempts == 3
    assert isinstance(caught.value.__cause__, HttpError)


def test_step_timeout_ends_a_request_that_hangs() -> None:
    async def main() -> Any:
        step, ended = asyncio.timeout(None), asyncio.get_running_loop().create_future()

        async def slow(request: web.Request) -> web.StreamResponse:
            step.reschedule(0)  # its time is over when the request is there
            try:
                return await hang(request)
            finally:
                ended.set_result(request.path)

        async with serve(slow) as address, HttpLookup(address + "/{}") as lookup:
            with pytest.raises(TimeoutError):
                async with step:
                    await lookup.invoke("x")
            return await ended

    assert run(main()) == "/x"


def test_no_more_connections_than_the_concurrency() -> None:
    running = most = 0

    async def slow(request: web.Request) -> web.StreamResponse:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1
        return web.json_response(None)

    async def main() -> None:
        async with serve(slow) as address, HttpLookup(address + "/{}", concurrency=3) as lookup:
            await asyncio.gather(*map(lookup.invoke, range(12)))

    run(main())
    assert most == 3


def test_equal_urls_are_asked_once_and_kept() -> None:
    async def main() -> dict[str, int]:
        async with serve(echo) as address, HttpLookup(address + "/{tail}", cache_ttl=60) as lookup:
            flights = [{"tail": f"N{number % 3}", "number": number} for number in range(9)]
            answers = await asyncio.gather(*map(lookup.invoke, flights))
            assert [one["name"] for one in answers] == ["N0", "N1", "N2"] * 3
            await lookup.invoke(flights[0])
            return lookup.metrics()

    metrics = run(main())
    assert (metrics["requests"], metrics["coalesced"], metrics["cached"]) == (3, 6, 1)


def test_rate_and_breaker_may_be_shared() -> None:
    async def main() -> dict[str, int]:
        limiter, breaker = RateLimiter(2, per=0.05), Breaker(failures=1, open_for=0.02)
        async with (
            serve(Misbehaving(status(503))) as address,
            HttpLookup(address, rate=limiter, breaker=breaker, retry_options=QUICK) as one,
            HttpLookup(address, rate=limiter, breaker=breaker, retry_options=QUICK) as other,
        ):
            await asyncio.gather(*(lookup.invoke(1) for lookup in (one, other, one, other)))
            return one.metrics()

    metrics = run(main())
    assert metrics["circuit_opened"] >= 1
    assert metrics["rate_limited"] >= 1


def test_an_adaptive_limit_around_a_lookup_is_told_of_attempts_that_are_made_again() -> None:
    async def main() -> dict[str, int]:
        async with serve(Misbehaving(status(503))) as address:
            lookup = HttpLookup(address, retry_options=QUICK)
            async with adaptive_concurrency(lookup, most=4) as limited:
                assert (await limited(1))["name"] == ""
                return limited.metrics()

    metrics = run(main())
    assert (metrics["requests"], metrics["concurrency_cuts"]) == (2, 1)


def test_rate_is_per_second() -> None:
    async def main() -> dict[str, int]:
        async with serve(echo) as address, HttpLookup(address, rate=1000) as lookup:
            await lookup.invoke(1)
            return lookup.metrics()

    assert run(main())["rate_limited"] == 0


def test_faulty_service_is_survived_without_losing_an_element() -> None:
    """Every third request goes wrong in one way or another."""
    requests = 0
    ways = list(BAD.values())

    async def faulty(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        if requests % 3 == 0:
            return await ways[requests // 3 % len(ways)](request)
        return await echo(request)

    async def main() -> tuple[list[Any], dict[str, int]]:
        async with serve(faulty) as address:
            lookup = HttpLookup(
                address + "/{}", attempts=20, concurrency=20, timeout=0.3, retry_options=QUICK
            )
            async with lookup:
                return await asyncio.gather(*map(lookup.invoke, range(60))), lookup.metrics()

    answers, metrics = run(main())
    assert [one["name"] for one in answers] == [str(number) for number in range(60)]
    assert metrics["retries"] > 0
    assert metrics["retries_exhausted"] == 0
    assert metrics["requests"] == 60 + metrics["retries"]


def test_lookup_that_is_not_open_says_so_at_once() -> None:
    with pytest.raises(PipelineError, match="not open"):
        run(HttpLookup("http://localhost/{}").invoke(1))


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": 7},
        {"url": "http://x/{a"},
        {"url": "http://x/{a!r}"},
        {"url": "http://x/{a:>5}"},
        {"concurrency": 0},
        {"timeout": 0},
        {"missing": "skip"},
        {"attempts": 0},
        {"rate": 0},
        {"cache_ttl": 0},
    ],
)
def test_wrong_argument_is_refused_when_built(arguments: dict[str, Any]) -> None:
    with pytest.raises(PipelineError):
        HttpLookup(**({"url": "http://x/{}"} | arguments))


class Till:
    """Charges once for each idempotency key, and fails every other request after it has."""

    def __init__(self) -> None:
        self.requests: list[str | None] = []
        self.charged: dict[str | None, str] = {}

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        key = request.headers.get("Idempotency-Key")
        self.requests.append(key)
        self.charged.setdefault(key, request.match_info["name"])
        if len(self.requests) % 2:
            return web.Response(status=503)
        return web.json_response(self.charged[key])


def charging(lookup: HttpLookup, **options: Any) -> list[Any]:
    done: list[Any] = []
    pipeline = Pipeline("shop")
    names = [f"order-{number}" for number in range(20)]
    pipeline.source(names, name="orders").async_map(lookup, concurrency=5, name="charge", **options).to(done)
    return [pipeline, done, names]


def test_requests_with_an_effect_carry_a_key_that_all_attempts_share() -> None:
    async def main() -> None:
        till = Till()
        async with serve(till) as address:
            lookup = HttpLookup(f"{address}/{{}}", method="POST", attempts=50, retry_options=QUICK)
            pipeline, done, names = charging(lookup)
            await pipeline.run()
        assert done == names
        assert sorted(till.charged.values()) == sorted(names)
        assert len(till.requests) > len(names)

    run(main())


def test_requests_that_ask_carry_a_key_only_if_the_step_has_an_effect() -> None:
    async def main() -> None:
        till = Till()
        async with serve(till) as address:
            for options in ({}, {"effect": True}):
                lookup = HttpLookup(f"{address}/{{}}", attempts=50, retry_options=QUICK)
                pipeline, _, _ = charging(lookup, **options)
                await pipeline.run()
        assert len(till.charged) == 21
        assert None in till.charged

    run(main())


def test_a_key_of_the_users_own_is_left_alone() -> None:
    async def main() -> None:
        till = Till()
        async with serve(till) as address:
            lookup = HttpLookup(
                f"{address}/{{}}",
                method="PUT",
                attempts=50,
                headers=lambda order: {"idempotency-key": order},
                retry_options=QUICK,
            )
            pipeline, _, names = charging(lookup)
            await pipeline.run()
        assert sorted(map(str, till.charged)) == sorted(names)

    run(main())
