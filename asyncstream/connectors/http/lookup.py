"""
HTTP: an async step that asks a JSON API about each element, over one aiohttp session.

What comes from an element, and what comes from the service, is not trusted. A value cannot change where a
request goes (`urls`), nor can an answer: a redirect to another origin is refused. An answer cannot be larger
than it may (`answers`), and leaves no cookie for the next element. Passwords and keys are in no error: those
hold neither headers nor the values of a query.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import aiohttp
from yarl import URL

from asyncstream.addresses import HTTP_METHODS, refuse_address
from asyncstream.connectors.client_options import Options
from asyncstream.connectors.http.answers import (
    TooLarge,
    Undecodable,
    decoded,
    harmless,
    of_request,
    read_body,
    refusal,
)
from asyncstream.connectors.http.session import checked_client, checked_headers, new_session
from asyncstream.connectors.http.time_limit import Bound, TimeLimit
from asyncstream.connectors.http.urls import UnsafeUrl, begins_whole, is_whole, shown, template
from asyncstream.connectors.rows import JsonWriter
from asyncstream.errors import HttpError, PipelineError
from asyncstream.guards import (
    Breaker,
    Guard,
    Limiter,
    cached,
    circuit_breaker,
    rate_limit,
    retry,
    single_flight,
)
from asyncstream.operators.call_context import current_key
from asyncstream.operators.functions import AsyncFunction
from asyncstream.validation import Duration, choice, count, duration_seconds, flag, function, refuse

__all__ = ("HttpLookup",)

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Those that ask and change nothing."""

KEY_HEADER = "Idempotency-Key"

_REDIRECTING: Final = frozenset({301, 302, 303, 307, 308})
"""Of answers that say where to ask instead."""

_BEGINNING: Final = re.compile(r"https?://[^/?#]", re.IGNORECASE)

REDIRECTS = 5
"""How many are followed, one after the other."""

_AS_JSON: Final = JsonWriter()
"""Makes the bodies of requests."""


class _Request(NamedTuple):
    """One request, and what a cache tells it apart by."""

    url: URL
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()


def _identity(request: _Request) -> tuple[Any, ...]:
    """The same for the same request in every process, and such as can be written down."""
    return (str(request.url), request.body, request.headers)


if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers bring it, with defaults

    In = TypeVar("In", default=Any)
    Out = TypeVar("Out", default=Any)
else:
    from typing import TypeVar

    In, Out = TypeVar("In"), TypeVar("Out")


class HttpLookup(AsyncFunction[In, Out]):
    """
    Asks a JSON API about each element, and gives its decoded answer.

    To a type checker it is an `HttpLookup[In, Out]`, of elements and results: what `merge` takes and gives;
    what is not known is `Any`. `HttpLookup[Flight, Fare](...)` says it where a lambda does not.

    A 2xx answer is decoded (None if it is empty); 404 gives None, or an error if `missing="error"`. Anything
    else is an `HttpError`: retryable for 408, 425, 429, 5xx, a broken connection, a timeout, and an answer
    that is not JSON: it may have been cut off, or be the page of a proxy that is in between; not retryable
    for the other 4xx, an answer that is too large, a redirect that is not followed, a certificate that is not
    trusted, and a value that no URL can be made of. Its `url` is without user and password, and of the query
    has only the names; what the service gave in place of an answer is its `body`, and in no text.

    Around each request are, from the outside in: a cache and single flight by URL, body and headers (if
    `cache_ttl` is given), `retry`, a circuit breaker (if given) and a rate limit (if given). For anything
    else put guards around the lookup itself.

    Requests with an effect (POST, PUT, DELETE, PATCH), and all of a step with `effect=`, carry the header
    `Idempotency-Key`, where elements have one (`call_context`): the same for every attempt, and after a
    restore.

    Args:
        url: a template, or a function of the element. A template's fields are looked up in the element
            and percent-encoded: `"http://api/planes/{tailnum}"` takes `element["tailnum"]` of a mapping
            and `element.tailnum` of anything else; `{}` is the element itself. A value that would leave its
            place in the path (`..`) is an error, and so is, in path and query, what is none: None, an empty
            text, NaN, bytes.
        merge: function of the element and the answer that makes the result; by default it is the answer.
        method: "GET", "HEAD", "OPTIONS", "PUT", "DELETE", "POST" or "PATCH".
        json: function of the element that makes the request's body, sent as JSON as sinks write it.
        data: function of the element that makes the request's body, as bytes or text.
        headers: sent with every request; or a function of the element that makes them.
        concurrency: connections at most; give the step the same number.
        timeout: for one request, from asking for a connection to the last byte of the answer.
        missing: what a 404 means: "none" or "error".
        attempts: requests per element at most; 1: no retry, and errors are raised as they are. By default 5,
            and 1 for POST and PATCH, which may do their work a second time.
        retry_options: more arguments of `guards.retry`.
        rate: requests per second at most, or a limiter shared with others.
        breaker: a `Breaker`, perhaps shared with others; while it is open, requests wait.
        cache_ttl: how long an answer is kept; None: no cache.
        cache_options: more arguments of `guards.cached`.
        redirects: which ones to follow, five at most: those to the "same_origin" (scheme, host and port);
            "none"; or "any", where what leaves the origin goes without `headers` and user, and what has a
            body does not leave it. To follow one is a part of its request: neither `attempts` nor `rate`
            counts it, and all of them have the one `timeout`.
        max_bytes: the largest answer, compressed or not.
        cookies: keep the cookies of all answers, and send them with all requests.
        client: options of aiohttp: `ssl` (an `SSLContext`), `proxy` (a URL), `trust_env` (use proxies that
            the environment names, and passwords of its `.netrc`), `local_addr`, `keepalive_timeout`.

    Raises:
        HttpError: for a request that is not to be retried.
        RetriesExhausted: when the last attempt failed; its cause is the `HttpError`.
    """

    def __init__(
        self,
        url: str | Callable[[In], str],
        *,
        merge: Callable[[In, Any], Out] | None = None,
        method: str = "GET",
        json: Callable[[In], Any] | None = None,
        data: Callable[[In], bytes | str] | None = None,
        headers: Mapping[str, str] | Callable[[In], Mapping[str, str]] | None = None,
        concurrency: int = 100,
        timeout: Duration = 10.0,
        missing: Literal["none", "error"] = "none",
        attempts: int | None = None,
        retry_options: Mapping[str, Any] | None = None,
        rate: int | Limiter | None = None,
        breaker: Breaker | None = None,
        cache_ttl: Duration | None = None,
        cache_options: Mapping[str, Any] | None = None,
        redirects: Literal["same_origin", "any", "none"] = "same_origin",
        max_bytes: int = 10 * 2**20,
        cookies: bool = False,
        client: Options | None = None,
    ) -> None:
        if not isinstance(url, str) and not callable(url):
            raise refuse_address("a template or a function of the element", url)
        if isinstance(url, str) and not _BEGINNING.match(url):
            raise refuse_address("one that begins with http:// or https:// and a host", url)
        self._url: Callable[[Any], URL | str] = (
            template(url) if isinstance(url, str) else function("url", url, "element")
        )
        self._begins_whole = isinstance(url, str) and begins_whole(url)
        self._merge = None if merge is None else function("merge", merge, "element", "answer")
        _check_more("retry_options", retry_options, "attempts", "attempts=")
        _check_more("cache_options", cache_options, "ttl", "cache_ttl=")
        self._method = choice("method", method, HTTP_METHODS)
        if json is not None and data is not None:
            raise refuse("json and data", "one of them", "both")
        self._json = None if json is None else function("json", json, "element")
        self._data = None if data is None else function("data", data, "element")
        self._element_headers = function("headers", headers, "element") if callable(headers) else None
        self._headers = {} if headers is None or callable(headers) else checked_headers(headers)
        self._headers_of_all = tuple(self._headers.items())
        self._redirects = choice("redirects", redirects, ("same_origin", "any", "none"))
        self._max_bytes = count("max_bytes", max_bytes)
        self._cookies = flag("cookies", cookies)
        self._client = checked_client(client)
        self._concurrency = count("concurrency", concurrency)
        self._timeout = duration_seconds("timeout", timeout)
        self._missing_is_error = choice("missing", missing, ("none", "error")) == "error"
        self._told_apart_by = (url, merge, method, json, data, self._element_headers, missing)
        self._session: aiohttp.ClientSession | None = None
        self._limit: TimeLimit | None = None
        self._requests = 0

        if cache_ttl is None and cache_options is not None:
            raise refuse("cache_options", "cache_ttl= to go with it", cache_options)
        if attempts is None:
            attempts = 1 if method in ("POST", "PATCH") else 5
            if attempts == 1 and retry_options is not None:
                expected = f"attempts= to go with it, for a {method} is sent once"
                raise refuse("retry_options", expected, retry_options)
        ask: Callable[[_Request], Awaitable[Any]] = self._send
        if isinstance(rate, int | float):
            ask = rate_limit(ask, rate=rate)
        elif rate is not None:
            if isinstance(rate, type) or not hasattr(rate, "acquire"):
                raise refuse("rate", "requests per second, or a limiter", rate)
            ask = rate_limit(ask, limiter=rate)
        if breaker is not None:
            ask = circuit_breaker(ask, breaker=breaker)
        # made in any case: wrong options are refused whether or not there is a second attempt
        retrying = retry(ask, attempts=attempts, **({"on": HttpError} | dict(retry_options or {})))
        ask = retrying if attempts > 1 else ask
        if cache_ttl is not None:
            duration_seconds("cache_ttl", cache_ttl)
            kept = dict(cache_options or {})
            if kept.get("store") is not None:  # what a request is tells it from those of other lookups
                name = f"{method}, which is to be there" if self._missing_is_error else method
                kept = {"key": _identity, "name": name} | kept
            ask = cached(single_flight(ask), ttl=cache_ttl, **kept)
        self.guards = ask if isinstance(ask, Guard) else None
        """What is around each request; None: nothing."""
        self._ask = ask.invoke if isinstance(ask, Guard) else ask

    def told_apart_by(self) -> tuple[object, ...]:
        """For `operators.fingerprint`; without headers that may hold a key, which changes from run to run."""
        return self._told_apart_by

    def __getstate__(self) -> dict[str, Any]:
        if self._client is not None and "ssl" in self._client:
            raise PipelineError(
                "client: an SSLContext stays in its process; where this runs in others, as on Spark, have "
                "them find authorities by SSL_CERT_FILE (spark.executorEnv.SSL_CERT_FILE), or make the "
                "HttpLookup in open() of an AsyncFunction of yours"
            )
        return self.__dict__.copy()

    @property
    def uses_key(self) -> bool:
        return self._method not in SAFE_METHODS

    async def open(self) -> None:
        self._limit = TimeLimit(self._timeout)
        self._session = new_session(
            timeout=aiohttp.ClientTimeout(total=None),
            connections=self._concurrency,
            cookies=self._cookies,
            client=self._client,
        )
        if self.guards is not None:
            await self.guards.open()

    async def close(self) -> None:
        try:
            if self.guards is not None:
                await self.guards.close()
        finally:
            if self._limit is not None:
                self._limit.close()
                self._limit = None
            if self._session is not None:
                await self._session.close()
                self._session = None

    async def invoke(self, value: In) -> Out:
        answer = await self._ask(self._request(value))
        return answer if self._merge is None else self._merge(value, answer)  # type: ignore[no-any-return]

    def _request(self, value: Any) -> _Request:
        """The request about `value`."""
        try:
            made = self._url(value)
        except UnsafeUrl as error:
            raise HttpError("<no URL>", None, str(error), retryable=False) from error
        url = made if self._begins_whole and isinstance(made, URL) else _whole(made)
        body: bytes | None = None
        headers = self._headers
        if self._json is not None:
            body = _AS_JSON.write(self._json(value))
            if "content-type" not in map(str.lower, self._headers):
                headers = headers | {"Content-Type": "application/json"}
        elif self._data is not None:
            body = _body_of(self._data(value))
        if self._element_headers is not None:
            headers = headers | checked_headers(self._element_headers(value))
        given = self._headers_of_all if headers is self._headers else tuple(headers.items())
        return _Request(url, body, given)

    def metrics(self) -> dict[str, int]:
        """Counters by name: `requests`, and those of the guards that are in use."""
        return {"requests": self._requests} | ({} if self.guards is None else self.guards.metrics())

    def counter_names(self) -> tuple[str, ...]:
        return ("requests", *(() if self.guards is None else self.guards.counter_names()))

    async def _send(self, request: _Request) -> Any:
        if self._session is None or self._limit is None:
            raise PipelineError("HttpLookup is not open: use it in a pipeline or with `async with`")
        url, body, method, headers = request.url, request.body, self._method, dict(request.headers)
        key = current_key()
        if key is not None and KEY_HEADER.lower() not in map(str.lower, headers):
            headers[KEY_HEADER] = key
        try:
            with (bound := self._limit.begin()):
                for _ in range(REDIRECTS + 1):
                    self._requests += 1
                    response = await self._session.request(
                        method, url, data=body, headers=headers, allow_redirects=False
                    )
                    try:
                        target = self._redirect(response, url) if response.status in _REDIRECTING else None
                        if target is None:
                            return await self._answer(response, url, bound)
                    finally:
                        response.release()
                    if response.status == 303 or (response.status in (301, 302) and method == "POST"):
                        method, body = "HEAD" if method == "HEAD" else "GET", None
                    if target.origin() != url.origin():
                        if body is not None:  # without it, another thing would be asked for
                            reason = f"a redirect to {shown(target)}, where no request with a body is sent"
                            raise HttpError(shown(url), response.status, reason, retryable=False)
                        headers = {}
                    url = target
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise of_request(error, url) from harmless(error)
        raise HttpError(shown(url), None, f"more than {REDIRECTS} redirects", retryable=False)

    def _redirect(self, response: aiohttp.ClientResponse, url: URL) -> URL | None:
        """Where to go from here, or None if the answer is here."""
        location = response.headers.get("Location")
        if location is None:
            return None
        try:
            # without a user: the redirecting server does not choose our credentials
            target = url.join(URL(location)).with_user(None)
            is_away = target.origin() != url.origin()
        except ValueError:
            raise HttpError(shown(url), response.status, "a redirect to no URL", retryable=False) from None
        if self._redirects == "none" or (is_away and self._redirects == "same_origin"):
            reason = f"a redirect to {shown(target)}; redirects={self._redirects!r} does not follow it"
            raise HttpError(shown(url), response.status, reason, retryable=False)
        if not is_away and url.user is not None:
            target = target.with_user(url.user).with_password(url.password)
        return target

    async def _answer(self, response: aiohttp.ClientResponse, url: URL, bound: Bound) -> Any:
        body = b""
        if not 200 <= response.status < 300:
            with suppress(TooLarge, Undecodable, aiohttp.ClientError, TimeoutError, OSError), bound:
                # of use to who looks; it is the status that counts
                body = await read_body(response, self._max_bytes)
            if response.status == 404 and not self._missing_is_error:
                return None
            raise refusal(response, url, body=body)
        try:
            body = await read_body(response, self._max_bytes)
            return decoded(body, response)
        except TooLarge:
            reason = f"the answer has more than max_bytes={self._max_bytes} bytes"
            raise HttpError(shown(url), response.status, reason, retryable=False) from None
        except Undecodable as error:
            # retryable: an answer without a length that broke off looks like this
            raise HttpError(shown(url), response.status, str(error), retryable=True, body=body) from error


def _check_more(name: str, options: Any, own: str, argument: str) -> None:
    """Refuse as more options of a guard what are none, or the one that is an argument of the lookup."""
    if options is None:
        return
    if not isinstance(options, Mapping) or not all(isinstance(option, str) for option in options):
        raise refuse(name, "options by name", options)
    if own in options:
        raise refuse(name, f"no {own}, which is {argument} of the lookup", options)


def _whole(made: Any) -> URL:
    """The URL of a request."""
    try:
        url = made if isinstance(made, URL) else _url_of(made)
        can_be_asked = is_whole(url)
    except ValueError:  # its text may quote the whole of it
        reason = "what was made of the element is no URL"
        raise HttpError("<no URL>", None, reason, retryable=False) from None
    if not can_be_asked:
        reason = "expected a URL that begins with http:// or https:// and a host"
        raise HttpError(shown(url), None, reason, retryable=False)
    return url


def _url_of(made: Any) -> URL:
    if not isinstance(made, str):
        raise TypeError(f"url: expected a function that gives a text, it gave {type(made).__name__}")
    made.encode()  # raises for half of a character, which the client would leave out
    return URL(made)


def _body_of(data: Any) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise TypeError(f"data: expected a function that gives bytes or text, it gave {type(data).__name__}")
