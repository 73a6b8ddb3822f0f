"""
The little of ASGI that everything here needs: its types, headers, and plain answers.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

import orjson

__all__ = (
    "Application",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "answer",
    "answer_json",
    "as_json",
    "disconnected",
    "header",
    "retry_after",
)

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

Header: TypeAlias = tuple[bytes, bytes]


def header(scope: Scope, name: str) -> str | None:
    """The first header of this name, in lower case, that a request has."""
    wanted = name.encode("latin-1")
    for key, value in scope.get("headers", ()):
        if key == wanted:
            text: str = value.decode("latin-1")
            return text
    return None


async def answer(
    send: Send, status: int, body: bytes, content_type: str, headers: Iterable[Header] = ()
) -> None:
    """Answer a request as a whole."""
    all_headers = [
        (b"content-type", content_type.encode("ascii")),
        (b"content-length", b"%d" % len(body)),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


async def answer_json(send: Send, status: int, content: Any, headers: Iterable[Header] = ()) -> None:
    """Answer a request with JSON, which no cache is to keep."""
    headers = [(b"cache-control", b"no-store"), *headers]
    await answer(send, status, as_json(content), "application/json", headers)


def as_json(content: Any) -> bytes:
    """`content` as JSON, whatever its texts hold."""
    try:
        return orjson.dumps(content)
    except TypeError:  # half of a character, or a number of more than 64 bits: these json can say in ASCII
        return json.dumps(content).encode("ascii")


def retry_after(seconds: float) -> Header:
    """The header that says when to come again: whole seconds, at least one."""
    return b"retry-after", b"%d" % max(1, round(seconds))


async def disconnected(receive: Receive) -> None:
    """Returns when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
