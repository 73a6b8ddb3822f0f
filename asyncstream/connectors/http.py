"""
HTTP: an async step that asks a JSON API about each element, over one aiohttp session.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from string import Formatter
from typing import Any, Literal
from urllib.parse import quote

import aiohttp
import orjson

from asyncstream.arguments import Duration, choice, count, duration_seconds, refuse
from asyncstream.calls import (
    Breaker,
    Guard,
    Limiter,
    cached,
    circuit_breaker,
    rate_limit,
    retry,
    single_flight,
)
from asyncstream.errors import HttpError, PipelineError, describe_error
from asyncstream.operators.functions import AsyncFunction

__all__ = ("HttpLookup",)


class HttpLookup(AsyncFunction[Any, Any]):
    """
    Asks a JSON API about each element, and gives its decoded answer.

    A 2xx answer is decoded (None if it is empty); 404 gives None, or an error if `missing="error"`.
    Anything else is an `HttpError`: retryable for 408, 425, 429, 5xx, a broken connection, a timeout or a
    damaged answer, not retryable for the other 4xx.

    Around each request are, from the outside in: a cache and single flight by URL (if `cache_ttl` is
    given), `retry`, a circuit breaker (if given) and a rate limit (if given). For anything else put guards
    around the lookup itself.

    Args:
        url: a template, or a function of the element. A template's fields are looked up in the element
            and percent-encoded: `"http://api/planes/{tailnum}"` takes `element["tailnum"]` of a mapping
            and `element.tailnum` of anything else; `{}` is the element itself.
        merge: function of the element and the answer that makes the result; by default it is the answer.
        headers: sent with every request.
        concurrency: connections at most; give the step the same number.
        timeout: for one request, from asking for a connection to the last byte of the answer.
        missing: what a 404 means: "none" or "error".
        attempts: requests per element at most; 1: no retry, and errors are raised as they are.
        retry_options: more arguments of `calls.retry`.
        rate: requests per second at most, or a limiter shared with others.
        breaker: a `Breaker`, perhaps shared with others; while it is open, requests wait.
        cache_ttl: how long an answer is kept; None: no cache.
        cache_options: more arguments of `calls.cached`.

    Raises:
        HttpError: for a request that is not to be retried.
        RetriesExhausted: when the last attempt failed; its cause is the `HttpError`.
    """

    def __init__(
        self,
        url: str | Callable[[Any], str],
        *,
        merge: Callable[[Any, Any], Any] | None = None,
        headers: Mapping[str, str] | None = None,
        concurrency: int = 100,
        timeout: Duration = 10.0,
        missing: Literal["none", "error"] = "none",
        attempts: int = 5,
        retry_options: Mapping[str, Any] | None = None,
        rate: int | Limiter | None = None,
        breaker: Breaker | None = None,
        cache_ttl: Duration | None = None,
        cache_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._url = _template(url) if isinstance(url, str) else url
        if not callable(self._url):
            raise refuse("url", "a template or a function of the element", url)
        self._merge = merge
        self._headers = dict(headers or {})
        self._concurrency = count("concurrency", concurrency)
        self._timeout = duration_seconds("timeout", timeout)
        self._missing_is_error = choice("missing", missing, ("none", "error")) == "error"
        self._session: aiohttp.ClientSession | None = None
        self._requests = 0

        ask: Callable[[str], Awaitable[Any]] = self._get
        if rate is not None:
            ask = rate_limit(ask, rate=rate) if isinstance(rate, int) else rate_limit(ask, limiter=rate)
        if breaker is not None:
            ask = circuit_breaker(ask, breaker=breaker)
        if count("attempts", attempts) > 1:
            ask = retry(ask, attempts=attempts, **({"on": HttpError} | dict(retry_options or {})))
        if cache_ttl is not None:
            ask = cached(single_flight(ask), ttl=cache_ttl, **(cache_options or {}))
        self._guards = ask if isinstance(ask, Guard) else None
        self._ask = ask.invoke if isinstance(ask, Guard) else ask

    async def open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._concurrency),
            timeout=aiohttp.ClientTimeout(total=self._timeout),
            headers=self._headers,
        )
        if self._guards is not None:
            await self._guards.open()

    async def close(self) -> None:
        try:
            if self._guards is not None:
                await self._guards.close()
        finally:
            if self._session is not None:
                await self._session.close()
                self._session = None

    async def invoke(self, value: Any) -> Any:
        answer = await self._ask(self._url(value))
        return answer if self._merge is None else self._merge(value, answer)

    def metrics(self) -> dict[str, int]:
        """Counters by name: `requests`, and those of the guards that are in use."""
        guards = {} if self._guards is None else self._guards.metrics()
        return {"requests": self._requests} | guards

    async def _get(self, url: str) -> Any:
        if self._session is None:
            raise PipelineError("HttpLookup is not open: use it in a pipeline or with `async with`")
        self._requests += 1
        try:
            async with self._session.get(url) as response:
                # read in any case: a connection with an unread answer cannot be used again
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            # what is no URL will not become one
            retryable = not isinstance(error, aiohttp.InvalidURL)
            raise HttpError(url, None, describe_error(error), retryable=retryable) from error
        status = response.status
        if 200 <= status < 300:
            if not body:
                return None
            try:
                return orjson.loads(body)
            except orjson.JSONDecodeError as error:
                # retryable: an answer without a length that broke off looks like this
                raise HttpError(url, status, f"not JSON: {error}", retryable=True) from error
        if status == 404 and not self._missing_is_error:
            return None
        raise HttpError(
            url,
            status,
            response.reason or "",
            retryable=status >= 500 or status in _RETRYABLE,
            retry_after=response.headers.get("Retry-After"),
        )


_RETRYABLE = frozenset({408, 425, 429})


def _template(text: str) -> Callable[[Any], str]:
    """A function that fills the fields of `text` from an element."""
    try:
        pieces = list(Formatter().parse(text))
    except ValueError as error:
        raise refuse("url", "a template such as 'http://api/planes/{tailnum}'", text) from error
    if any(spec or conversion for _, _, spec, conversion in pieces):
        raise refuse("url", "a template whose fields are plain names", text)
    parts = [(literal, field) for literal, field, _, _ in pieces]

    def fill(value: Any) -> str:
        url = ""
        for literal, field in parts:
            url += literal
            if field is not None:
                # dict first: to ask for any other Mapping takes longer than all the rest
                if field == "":
                    found = value
                elif isinstance(value, (dict, Mapping)):
                    found = value[field]
                else:
                    found = getattr(value, field)
                text = str(found)
                # what most keys look like needs no encoding
                url += text if text.isascii() and text.isalnum() else quote(text, safe="")
        return url

    return fill
