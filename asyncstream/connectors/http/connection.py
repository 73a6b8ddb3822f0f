"""
Sources over a connection that breaks now and then: what server-sent events, WebSockets and pages share.

A task keeps the connection and takes in what comes, up to a bound; beyond that it stops reading, and TCP
tells the other side. `read` gives what is there. So a read that is cancelled has taken nothing, and the
position is behind the last element that was given, whatever was taken in since.

When the connection breaks, or the service says that it cannot now, the task comes again, later and later, and
asks for what is behind the last element that it took in. `attempts` in a row without an element are an error;
so is at once what another attempt would not mend, such as a certificate that is not trusted.
"""

from __future__ import annotations

import asyncio
import logging
import random
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from inspect import signature
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict, TypeVar

import aiohttp
import orjson
from yarl import URL

from asyncstream.addresses import refuse_address
from asyncstream.aside import is_at_work
from asyncstream.clock import SystemClock
from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.cancellation import answered_within, stopped
from asyncstream.connectors.client_options import Options
from asyncstream.connectors.http.answers import harmless, of_request, refusal, told
from asyncstream.connectors.http.session import checked_client, checked_headers, new_session
from asyncstream.connectors.http.urls import shown
from asyncstream.connectors.json_values import loads
from asyncstream.connectors.messages import RejectedMessage
from asyncstream.errors import HttpError, SourceError, describe_error
from asyncstream.guards.outcomes import server_delay
from asyncstream.guards.retry import WAIT_INITIAL, check_waits
from asyncstream.validation import Duration, check_options, choice, count, duration_seconds, function

__all__ = (
    "NOTHING",
    "Arrival",
    "ConnectedSource",
    "Connection",
    "ConnectionOptions",
    "Decode",
    "Interrupted",
    "decoder",
)

T = TypeVar("T")

_CLOCK = SystemClock()

_MOST_ASKED_FOR: Final = 3600.0
"""Seconds that a service may have us wait, however many it asks for."""

log = logging.getLogger("asyncstream.sources")

Decode: TypeAlias = Literal["json", "text"] | Callable[[Any], Any]
"""What makes an element of what came."""


NOTHING: Final = object()
"""In place of an element: the service has said where to go on, and nothing else."""


class Arrival(NamedTuple):
    """
    What came in: an element, a `RejectedMessage` or `NOTHING`; and the place to go on behind it, None: the
    service does not say.
    """

    value: Any
    place: Any


class Interrupted(HttpError):
    """
    Raised when a connection has come to its end, and another one is to follow, after `retry_ms` at least;
    `url` is as it may be shown.
    """

    def __init__(
        self, url: str, reason: str = "the connection was closed", retry_ms: int | None = None
    ) -> None:
        seconds = None if retry_ms is None else str(retry_ms / 1000)
        super().__init__(url, None, reason, retryable=True, retry_after=seconds)


class ConnectionOptions(TypedDict, total=False):
    """What all of these sources take; see `Connection`."""

    headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None
    attempts: int | None
    wait_initial: Duration
    wait_max: Duration
    timeout: Duration
    on_malformed: Literal["fail", "reject"]
    buffer: int
    client: Options | None


@dataclass(frozen=True)
class Connection:
    """
    What all of these sources take.

    Attributes:
        headers: sent with every request; or a function without arguments that makes them, for keys that
            expire.
        attempts: how many connections in a row may fail before it is an error; None: any number.
        wait_initial: how long to wait after the first that failed; then twice as long, up to `wait_max`.
        wait_max: the longest wait, but for one that the service asks for, which may be an hour.
        timeout: for a connection to be made, and its answer to begin; of a page, to come as a whole.
        on_malformed: "fail" or "reject".
        buffer: how many elements are taken in and not read yet.
        client: options of aiohttp: `ssl` (an `SSLContext`), `proxy` (a URL), `trust_env` (use proxies that
            the environment names, and passwords of its `.netrc`), `local_addr`, `keepalive_timeout`.
    """

    headers: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None
    attempts: int | None = None
    wait_initial: Duration = WAIT_INITIAL
    wait_max: Duration = 30.0
    timeout: Duration = 30.0
    on_malformed: Literal["fail", "reject"] = "fail"
    buffer: int = 1000
    client: Options | None = None

    def __post_init__(self) -> None:
        if callable(self.headers):
            function("headers", self.headers)
        elif self.headers is not None:
            checked_headers(self.headers)
        if self.attempts is not None:
            count("attempts", self.attempts)
        check_waits(
            duration_seconds("wait_initial", self.wait_initial), duration_seconds("wait_max", self.wait_max)
        )
        duration_seconds("timeout", self.timeout)
        choice("on_malformed", self.on_malformed, ("fail", "reject"))
        count("buffer", self.buffer)
        checked_client(self.client)

    def wait(self, failed: int) -> float:
        """Seconds to wait after so many failures in a row; a part of it by chance, so that clients spread."""
        longest = duration_seconds("wait_max", self.wait_max)
        first = duration_seconds("wait_initial", self.wait_initial)
        return float(min(longest, first * 2.0 ** min(failed - 1, 30)) * random.uniform(0.5, 1))


class ConnectedSource(Source[T]):
    """A source that asks one URL, again and again."""

    def __init__(self, url: str, schemes: tuple[str, ...], options: ConnectionOptions) -> None:
        own = [name for name, one in signature(type(self)).parameters.items() if one.kind is one.KEYWORD_ONLY]
        check_options(type(self).__name__, options, [*own, *ConnectionOptions.__annotations__])
        connection = self._connection = Connection(**options)
        self._timeout = duration_seconds("timeout", connection.timeout)
        self.rejects = connection.on_malformed == "reject"
        try:
            self._url = URL(url)
            is_known = self._url.scheme in schemes and self._url.host is not None
        except (ValueError, TypeError):
            is_known = False
        if not is_known:
            raise refuse_address(f"a URL with {' or '.join(schemes)}", url)
        self._session: aiohttp.ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._place: Any = None
        self._failed = 0  # connections, in a row

    @abstractmethod
    def _arrivals(self, session: aiohttp.ClientSession, place: Any) -> AsyncGenerator[Arrival, None]:
        """
        What comes behind a place, over one connection; its end is the end of input.

        Raises:
            Interrupted: if it is to be made again; so are all others that have broken.
            SourceError: if there is no use in that.
        """

    async def open(self) -> None:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout)
        self._session = new_session(timeout=timeout, traces=[self._staying()], client=self._connection.client)
        self._waiting: deque[Arrival] = deque()
        self._error: SourceError | None = None
        self._has_ended = False
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()

    def _staying(self) -> aiohttp.TraceConfig:
        """Has redirects end where the headers would go to another origin: those of sockets are followed."""

        async def check(session: object, context: object, asked: aiohttp.TraceRequestRedirectParams) -> None:
            headers = asked.response.headers
            try:
                target = asked.url.join(URL(headers.get("Location") or headers.get("URI") or ""))
            except ValueError:
                return  # which is an error of the client's
            if _origin(target) != _origin(self._url):
                raise SourceError(f"{shown(self._url)} redirects to another origin: {shown(target)}")

        config = aiohttp.TraceConfig()
        config.on_request_redirect.append(check)
        return config

    async def read(self) -> SourceBatch[T] | None:
        if self._session is None:
            raise SourceError(f"the source of {shown(self._url)} is not open")
        if self._task is None:
            self._task = asyncio.create_task(self._take_in(self._session), name="asyncstream connection")
        while not self._waiting:
            if self._error is not None:
                raise self._error
            if self._has_ended:
                return None
            self._arrived.clear()
            await self._arrived.wait()
        arrivals, self._waiting = self._waiting, deque()
        self._room.set()
        self._place = arrivals[-1].place
        came = [each.value for each in arrivals if each.value is not NOTHING]
        values = [value for value in came if not isinstance(value, RejectedMessage)]
        rejected = [value for value in came if isinstance(value, RejectedMessage)]
        return SourceBatch(values, None, rejected)

    def unread(self) -> int:
        return len(self._waiting) if self._session is not None else 0

    async def _take_in(self, session: aiohttp.ClientSession) -> None:
        place, self._failed = self._place, 0
        me = asyncio.current_task()
        try:
            while not self._has_ended:
                delay = 0.0
                try:
                    async with aclosing(self._arrivals(session, place)) as arrivals:
                        async for arrival in arrivals:
                            if arrival.value is not NOTHING:
                                self._failed = 0
                            if self._waiting and self._waiting[-1].value is NOTHING:
                                self._waiting.pop()
                            while self._is_full():
                                self._room.clear()
                                await self._room.wait()
                            self._waiting.append(arrival)
                            self._arrived.set()
                            place = arrival.place
                    self._has_ended = True
                except (aiohttp.ClientError, OSError, TimeoutError, HttpError) as broken:
                    error = broken if isinstance(broken, HttpError) else of_request(broken, self._url)
                    if not error.retryable:
                        raise SourceError(f"cannot read {error}") from error
                    self._failed += 1
                    delay = self._after(broken if error.status is None else error, self._failed)
                await asyncio.sleep(delay)
        except SourceError as error:
            self._error = error
        # of the user's functions; who cancels this reads no more
        except (Exception, asyncio.CancelledError) as error:
            self._error = SourceError(f"cannot read {shown(self._url)}: {describe_error(error)}")
            self._error.__cause__ = error
        finally:
            if is_at_work(me):
                self._arrived.set()

    def _is_full(self) -> bool:
        """Whether nothing more is taken in until what was is read."""
        return len(self._waiting) >= self._connection.buffer

    def _after(self, error: Exception, failed: int) -> float:
        """How long to wait after so many failures in a row."""
        reason = told(error)
        if self._connection.attempts is not None and failed >= self._connection.attempts:
            raise SourceError(
                f"cannot read {shown(self._url)}: {failed} connections in a row failed; the last: {reason}"
            ) from harmless(error)
        asked_for = min(server_delay(error, _CLOCK) or 0.0, _MOST_ASKED_FOR)
        delay = max(self._connection.wait(failed), asked_for)
        log.warning("%s: %s; connecting again in %.2g s", shown(self._url), reason, delay)
        return delay

    def _headers(self, more: Mapping[str, str]) -> dict[str, str]:
        own = self._connection.headers
        return {**more, **checked_headers((own() if callable(own) else own) or {})}

    async def _answer(
        self, session: aiohttp.ClientSession, url: URL, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """The answer to a GET, to be released; raises `HttpError` for any other than a 2xx."""
        async with answered_within(self._timeout):
            response = await session.get(url, headers=self._headers(headers), allow_redirects=False)
        if 200 <= response.status < 300:
            return response
        response.release()
        target = response.headers.get("Location") if response.status < 400 else None
        raise refusal(
            response, url, None if target is None else f"it has moved to {shown(target)}: give that"
        )

    def position(self) -> Any:
        return self._place

    async def seek(self, position: Any) -> None:
        self._place = position

    async def close(self) -> None:
        task, self._task = self._task, None
        session, self._session = self._session, None
        try:
            await stopped(task)
        finally:
            if session is not None:
                await session.close()

    def _malformed(self, data: str | bytes, error: Exception, id: str = "") -> RejectedMessage:
        """A message that cannot be decoded; raises `SourceError` if that is not to be put aside."""
        reason = (
            f"not JSON: {error.msg}" if isinstance(error, orjson.JSONDecodeError) else describe_error(error)
        )
        if not self.rejects:
            raise SourceError(f"{shown(self._url)}: {reason}") from error
        return RejectedMessage(shown(self._url), id, data, reason)


def _origin(url: URL) -> tuple[bool, str | None, int | None]:
    """Where it leads to; a socket's scheme is another name for that of its handshake."""
    return url.scheme in ("https", "wss"), url.host, url.port


def decoder(decode: Decode) -> Callable[[Any], Any]:
    """What makes an element of what came; raises `PipelineError` if that is none."""
    if callable(decode):
        return function("decode", decode, "data")
    known: dict[str, Callable[[Any], Any]] = {"json": loads, "text": _text}
    return known[choice("decode", decode, ("json", "text"))]


def _text(data: str | bytes) -> str:
    return data if isinstance(data, str) else data.decode()
