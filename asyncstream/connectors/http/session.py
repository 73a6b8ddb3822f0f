"""
The aiohttp session of a lookup or a source: no cookies, what can be decompressed here, and connections on
which answers are those to their requests; what its sockets tell; and what the headers of requests may be.

HTTP/1.1 tells by nothing but their order which answer belongs to which request. A service that sends one that
was not asked for, or a body that is longer than it says, would have each later request on that connection
given the answer to the one before it. So a connection on which something came between two requests is not
used again.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import partial
from math import inf
from ssl import SSLContext
from typing import Any, Final

import aiohttp
from aiohttp import hdrs
from aiohttp.client_proto import ResponseHandler
from yarl import URL

from asyncstream.addresses import without_secrets
from asyncstream.connectors.client_options import Options
from asyncstream.connectors.http.answers import ENCODINGS
from asyncstream.errors import PipelineError
from asyncstream.validation import refuse

__all__ = ("Socket", "checked_client", "checked_headers", "new_session")

_OF_CONNECTIONS: Final = {
    "ssl": "an ssl.SSLContext",
    "local_addr": "a pair of a host and a port",
    "keepalive_timeout": "seconds",
}
_OF_SESSIONS: Final = {
    "proxy": "a URL that begins with http:// or https:// and a host",
    "trust_env": "True or False",
}
_CLIENT: Final = _OF_CONNECTIONS | _OF_SESSIONS
"""Options that pass through to aiohttp, and what they are: ways to a service, nothing that is sent to it."""


class Socket(aiohttp.ClientWebSocketResponse):
    """
    A WebSocket that says whether anything comes, and leaves it to who reads it to ping.

    Attributes:
        heard: pieces of messages that have come, if the client tells; to be counted up for each that is read.
    """

    heard = 0

    def _on_data_received(self) -> None:  # which is called where `ws_connect` has a `heartbeat`
        self.heard += 1

    def _reset_heartbeat(self) -> None:
        """Begins the client's own, which pings though nothing is read."""


def new_session(
    *,
    timeout: aiohttp.ClientTimeout,
    connections: int = 100,
    cookies: bool = False,
    traces: Sequence[aiohttp.TraceConfig] = (),
    client: Options | None = None,
) -> aiohttp.ClientSession:
    """
    A session, in the event loop that runs, and to be closed.

    Args:
        timeout: for its requests.
        connections: at most.
        cookies: keep those of all answers, and send them with all requests.
        traces: what is to hear of its requests.
        client: see `checked_client`.
    """
    given = (client or {}).items()
    ways = {name: value for name, value in given if name in _OF_CONNECTIONS}
    connector: Any = aiohttp.TCPConnector(limit=connections, **ways)
    connector._factory = partial(_Protocol, loop=asyncio.get_running_loop())
    session = aiohttp.ClientSession(
        connector=connector,
        timeout=timeout,
        request_class=_Request,
        # "unsafe": it keeps those of services that are known by an address and no name
        cookie_jar=aiohttp.CookieJar(unsafe=True) if cookies else aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trace_configs=[*traces],
        ws_response_class=Socket,
        **{name: value for name, value in given if name in _OF_SESSIONS},
    )
    # a request whose connection breaks off would be sent once more, unseen by retries, rates and breakers
    session._retry_connection = False
    return session


class _Request(aiohttp.ClientRequest):
    """Says of each request what a session would say of all, which costs more."""

    DEFAULT_HEADERS = aiohttp.ClientRequest.DEFAULT_HEADERS | {hdrs.ACCEPT_ENCODING: ENCODINGS}


class _Protocol(ResponseHandler):
    """
    A connection that is not used again once something has come on it that nobody asked for.

    Has who reads an answer hear of the connection's end, whatever its reason: the client itself closes one on
    which something comes that is no HTTP, such as a chunk without a length, and leaves its reader waiting.
    """

    def is_connected(self) -> bool:  # what a connector asks of those that it has kept
        return super().is_connected() and not self.should_close

    def connection_lost(self, exc: BaseException | None) -> None:
        body: Any = self._payload
        super().connection_lost(exc)
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the answer was broken off, or is no HTTP"))


def checked_client(options: Any) -> Options | None:
    """Options for aiohttp by name; raises `PipelineError` if they are none that pass through."""
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise refuse("client", "a mapping of the client's options", options)
    for name, value in options.items():
        if name not in _CLIENT:
            raise refuse("client", f"options of aiohttp: {', '.join(_CLIENT)}", name)
        if not _is_fit(name, value):
            shown = without_secrets(value) if isinstance(value, str) else value
            raise refuse(f"client: {name}", _CLIENT[name], shown)
    return dict(options)


def _is_fit(name: str, value: Any) -> bool:
    """Whether an option of the client may have this value."""
    match name:
        case "ssl":
            return isinstance(value, SSLContext)
        case "local_addr":
            is_pair = isinstance(value, tuple) and list(map(type, value)) == [str, int]
            return is_pair and 0 <= value[1] <= 65535
        case "keepalive_timeout":
            return type(value) in (int, float) and 0 <= value < inf
        case "trust_env":
            return type(value) is bool
    try:
        proxy = URL(value)
        return proxy.scheme in ("http", "https") and bool(proxy.host)
    except (TypeError, ValueError):
        return False


def checked_headers(headers: Any) -> dict[str, str]:
    """Those of a request; raises `PipelineError` if they are none."""
    if not isinstance(headers, Mapping) or not all(
        isinstance(name, str) and isinstance(text, str) for name, text in headers.items()
    ):
        raise _no_headers("", headers)
    if not all(map(_NAME.fullmatch, headers)):
        raise _no_headers(" whose names are of letters, digits and hyphens", headers)
    if not all(map(_TEXT.fullmatch, headers.values())):
        raise _no_headers(" without line ends and other control characters", headers)
    if framing := _FRAMING.intersection(map(str.lower, headers)):
        raise PipelineError(
            f"headers: expected none of {', '.join(sorted(_FRAMING))}, which the client makes of the body; "
            f"leave out {', '.join(sorted(framing))}"
        )
    return dict(headers)


_NAME: Final = re.compile(r"[\w!#$%&'*+.^`|~-]+", re.ASCII)
"""The tokens of HTTP: of a name with any other character, services make another one, or refuse it."""

_FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
"""Of where a body ends: the client would cut a longer one off, or wait for the rest of one that has none."""

_TEXT: Final = re.compile("[^\0-\x08\n-\x1f\x7f\ud800-\udfff]*")
"""No half of a character either: the client would leave it out."""


def _no_headers(which: str, got: object) -> PipelineError:
    # without what came: it may be a key
    return PipelineError(f"headers: expected a mapping of texts{which}, got a {type(got).__name__}")
