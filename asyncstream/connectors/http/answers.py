"""
The body of an HTTP answer: decompressed, bounded, and decoded as JSON; and what is told where there is none.

A few kilobytes can decompress to gigabytes, so decompression is done here, piece by piece and up to the
bound. The client's own errors may quote the URL, the headers, or what came: of those it is told what is
wrong, and not of what.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections.abc import Iterator
from typing import Final

import aiohttp
from yarl import URL

from asyncstream.connectors.http.urls import shown
from asyncstream.connectors.json_values import loads
from asyncstream.connectors.lines import BOM
from asyncstream.errors import HttpError, describe_error

__all__ = (
    "ENCODINGS",
    "TooLarge",
    "Undecodable",
    "decoded",
    "harmless",
    "of_request",
    "read_body",
    "refusal",
    "told",
)

ENCODINGS = "gzip, deflate"
"""What can be decompressed, as `Accept-Encoding` says it."""

_PIECE = 64 * 1024


class TooLarge(Exception):
    """An answer has more bytes than it may."""


class Undecodable(Exception):
    """An answer is not what its headers say."""


def refusal(
    answer: aiohttp.ClientResponse | aiohttp.WSServerHandshakeError | aiohttp.ClientHttpProxyError,
    url: URL,
    reason: str | None = None,
    body: bytes = b"",
) -> HttpError:
    """
    The error for an answer that is not the one that was asked for, by its status.

    Args:
        answer: or what is raised of one.
        url: that was asked.
        reason: why it is not; None: as the answer says.
        body: what came with it, if it was read.
    """
    said = answer.reason if isinstance(answer, aiohttp.ClientResponse) else None
    return HttpError(
        shown(url),
        answer.status,
        (reason or said or "")[:200],
        retryable=answer.status >= 500 or answer.status in _RETRYABLE,
        retry_after=None if answer.headers is None else answer.headers.get("Retry-After"),
        body=body,
    )


def of_request(error: Exception, url: URL) -> HttpError:
    """The error for what is raised of a request: by its status if a proxy gives one, and makes no tunnel."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return refusal(error, url, f"the proxy: {error.message}")
    # what is no URL or no header will not become one
    return HttpError(shown(url), None, told(error), retryable=not isinstance(error, UNFIT_URL))


_RETRYABLE = frozenset({408, 425, 429})

UNFIT_URL: Final = (ValueError, aiohttp.NonHttpUrlClientError)
"""What is raised about a URL that cannot be asked; InvalidURL is a ValueError."""

_QUOTE: Final = re.compile(r"[:'\"\n]")
"""With what a quotation begins, in what the client says of an answer that is no HTTP, or of a request."""


def harmless(error: Exception) -> Exception | None:
    """`error`, unless its text may quote the URL, the headers, or what came."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):  # a ValueError, which names host and port
        return error
    if isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str):
        return None  # it is the head of the answer that was broken off
    return None if isinstance(error, (*UNFIT_URL, aiohttp.ClientResponseError)) else error


def told(error: Exception) -> str:
    """What may be said of an error."""
    known = harmless(error)
    if known is not None:
        return describe_error(known)
    said = ""
    if isinstance(error, aiohttp.ClientResponseError) or type(error) is ValueError:
        said = _QUOTE.split(getattr(error, "message", str(error)), 1)[0].strip()
    return ": ".join(filter(None, (type(error).__name__, said)))


async def read_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """
    The body of `response`, whose session does not decompress.

    Raises:
        TooLarge: if it has more than `limit` bytes, compressed or decompressed.
        Undecodable: if it cannot be decompressed.
    """
    encoding = response.headers.get("Content-Encoding", "").strip().lower()
    if encoding in ("", "identity"):
        inflate = None
    elif encoding in ("gzip", "x-gzip", "deflate"):
        inflate = _Inflate(limit)
    else:
        raise Undecodable(f"it is compressed as {encoding[:50]!r}, and was asked for as {ENCODINGS}")
    content = response.content
    # read in any case: a connection with an unread answer cannot be used again
    piece = await content.readany()
    if inflate is None and content.at_eof() and len(piece) <= limit:  # most come in one piece
        return piece
    body = bytearray()
    received = 0
    while piece:
        received += len(piece)
        if received > limit:
            raise TooLarge
        if inflate is None:
            body += piece
        else:
            for part in inflate.feed(piece):
                body += part
                if len(body) > limit:
                    raise TooLarge
        piece = await content.readany()
    if inflate is not None and received and not inflate.is_whole():
        raise Undecodable("its compressed body is cut off")
    return bytes(body)


class _Inflate:
    """Decompresses gzip, in any number of members, and deflate, with its header or without."""

    def __init__(self, limit: int) -> None:
        self._piece = min(_PIECE, limit + 1)
        self._stream: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What can be made of it, in pieces of bounded size."""
        try:
            while data:
                if self._stream is None or self._stream.eof:
                    if self._stream is not None and not data.strip(b"\0"):
                        return  # padding behind the last member
                    # 0x08: what a zlib header and a gzip member's second byte do not share with bare deflate
                    has_header = data[0] == 0x1F or data[0] & 0x0F == 0x08
                    self._stream = zlib.decompressobj(47 if has_header else -15)
                stream = self._stream
                yield stream.decompress(data, self._piece)
                data = stream.unconsumed_tail or stream.unused_data
                while not data and not stream.eof and (more := stream.decompress(b"", self._piece)):
                    yield more
        except zlib.error as error:
            raise Undecodable(f"it cannot be decompressed: {error}") from error

    def is_whole(self) -> bool:
        """Whether the data ended where a member does."""
        return self._stream is not None and self._stream.eof


_IN_UTF8: Final = frozenset({"application/json", "application/json; charset=utf-8"})
"""Kinds of most answers, which need no look at what else a kind may say."""

_OF_HOSTS = frozenset({"idna", "punycode"})
"""Encodings of hosts' names: what they take grows with the square of what there is to decode."""


def decoded(body: bytes, response: aiohttp.ClientResponse) -> object:
    """The JSON value of `body`; None if that is empty. Raises `Undecodable` if it is none."""
    if not body:
        return None
    try:
        if response.headers.get("Content-Type") in _IN_UTF8:
            return loads(body.removeprefix(BOM))
        charset = codecs.lookup(response.charset or "utf-8").name
        if charset in _OF_HOSTS:
            raise LookupError(f"{charset} is no encoding of texts")
        if charset not in ("utf-8", "ascii"):
            return loads(body.decode(charset))
        return loads(body.removeprefix(BOM))
    except (ValueError, LookupError) as error:  # orjson's, and those of decoding, are ValueErrors
        kind = response.content_type[:50]
        what = (
            "not JSON" if kind.endswith("json") or kind == "application/octet-stream" else f"{kind}, not JSON"
        )
        raise Undecodable(f"{what}: {error}") from error
