"""
A client of ASGI applications, for tests: one request at a time, without a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from asyncstream.web.asgi import Application, Message, Scope

__all__ = ("Answer", "Listening", "http", "request")


def http(
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    state: Mapping[str, Any] | None = None,
    root_path: str = "",
    query: str = "",
) -> Scope:
    """The scope of a request; `path` is the whole of it, also that of a mounted application."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": root_path,
        "query_string": query.encode(),
        "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        "state": dict(state or {}),
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }


@dataclass
class Answer:
    """What a request was answered with so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    is_complete: bool = False

    def json(self) -> Any:
        return orjson.loads(self.body)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {key.decode(): value.decode() for key, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.is_complete = not message.get("more_body")


async def request(app: Application, scope: Scope, body: bytes = b"") -> Answer:
    """Make a request and wait for its whole answer, as a client that stays."""
    answer, left = Answer(), [body]

    async def receive() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    await app(scope, receive, answer.send)
    assert answer.is_complete
    return answer


class Listening:
    """
    A request whose answer is read while it comes; leaving the block closes the connection.

    Attributes:
        answer: what has come so far.
    """

    def __init__(self, app: Application, scope: Scope) -> None:
        self.answer = Answer()
        self._app = app
        self._scope = scope
        self._gone = asyncio.Event()
        self._came = asyncio.Event()
        self._reads = asyncio.Event()
        self._reads.set()

    async def __aenter__(self) -> Listening:
        self._task = asyncio.create_task(self._listen())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._gone.set()
        self._reads.set()
        await self._task

    async def _listen(self) -> None:
        try:
            await self._app(self._scope, self._receive, self._send)
        finally:
            self._came.set()

    async def _receive(self) -> Message:
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._reads.wait()
        await self.answer.send(message)
        self._came.set()

    def pause(self) -> None:
        """Read nothing from now on: what is sent next waits."""
        self._reads.clear()

    def go_on(self) -> None:
        """Read on."""
        self._reads.set()

    async def until(self, text: str) -> str:
        """What has come, as soon as `text` is in it."""
        while text not in self.answer.body.decode():
            assert not self._task.done(), f"ended without {text!r}: {self.answer}"
            self._came.clear()
            await self._came.wait()
        return self.answer.body.decode()

    async def ended(self) -> Answer:
        """The answer, once the server has ended it."""
        await self._task
        return self.answer
