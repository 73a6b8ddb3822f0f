"""
What a service tells of its job: health, status, and a page that shows it live.

    GET /               the page
    GET /healthz        200; 503 when the job has failed: start the service anew
    GET /readyz         200 while the job takes in elements; 503 before, afterwards, and when it has failed
    GET /metrics        for Prometheus
    GET /status         the job's status as JSON; `?values=true` shows elements
    GET /status/events  the same every second, of a job with many hundred steps less often, as server-sent
                        events, without elements

Nothing here changes the job. With a token, all but the page's own files and the two health checks ask for
it: `Authorization: Bearer ...`. The page asks its reader, or finds it behind the `#` of its address
(`#token=...`), which browsers keep to themselves.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from asyncstream.runtime.aio import Job
from asyncstream.runtime.aio.inspection import Shown, check_shown
from asyncstream.telemetry import exposition
from asyncstream.validation import refuse, text
from asyncstream.web.asgi import Application, Receive, Scope, Send, answer, answer_json, header, retry_after
from asyncstream.web.dependency import job_of
from asyncstream.web.lifespan import JOB
from asyncstream.web.sse import stream_feed
from asyncstream.web.watch import OVER, Watches, view

__all__ = ("app",)

KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
"""Content types of the page's files, by how their names end."""

SECURITY = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of every answer: nothing is loaded from another host, and no other site frames the page."""

Handler: TypeAlias = Callable[[Job, Scope, Receive, Send], Awaitable[None]]


def app(
    job: Job | None = None, *, token: str | None = None, values: Shown = True, key: str = JOB
) -> Application:
    """
    An ASGI application about a job, read-only: mount it in a service, or serve it alone.

        service.mount("/ops", asyncstream.web.app(token=os.environ["OPS_TOKEN"]))

    Its readers see names, counts and errors of the pipeline, and elements, unless `values` says otherwise:
    give it a token, or an address that only the right people reach.

    Args:
        job: what it is about; left out, the one that `lifespan` put into the state of the service.
        token: what a request must bring as `Authorization: Bearer ...`, except for the health checks.
        values: whether elements are shown to who asks for them; or a function that gives what is shown of
            an element to all readers: its id, say.
        key: as for `lifespan`, where the job is left out.
    """
    if job is not None and not isinstance(job, Job):
        raise refuse("job", "a Job", job)
    if token is not None and (not text("token", token).isascii() or token != token.strip()):
        raise refuse("token", "a text of ASCII characters without space around it", "another one")
    check_shown(values)
    return _App(job, token, values=values, key=text("key", key))


class _App:
    def __init__(self, job: Job | None, token: str | None, *, values: Shown, key: str) -> None:
        self._job = job
        self._token = token
        self._values = values
        self._key = key
        self._watches = Watches(values if callable(values) else False)
        self._files = _page()
        self._handlers: dict[str, Handler] = {
            "/healthz": self._health,
            "/readyz": self._ready,
            "/metrics": self._metrics,
            "/status": self._status,
            "/status/events": self._events,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        await self._answer(scope, receive, _with_headers(send, is_head=scope["method"] == "HEAD"))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        root: str = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"]
        if path == root or path.startswith(f"{root}/"):  # not if a proxy has taken it away
            path = path[len(root) :]
        if scope["method"] not in ("GET", "HEAD"):
            await answer_json(send, 405, {"error": "read-only"}, [(b"allow", b"GET, HEAD")])
        elif not path:  # where the page is, so that what it asks for is found beside it
            there = root.rpartition("/")[2].encode() + b"/"
            await answer(send, 307, b"", "text/plain", [(b"location", there)])
        elif path in self._files:
            body, kind = self._files[path]
            await answer(send, 200, body, kind, [(b"cache-control", b"no-cache")])
        elif path not in self._handlers:
            await answer_json(send, 404, {"error": "not found"})
        elif not self._may(path, scope):
            await answer_json(send, 401, {"error": "a token is needed"}, [(b"www-authenticate", b"Bearer")])
        else:
            job = self._job or job_of(scope.get("state", {}), self._key)
            await self._handlers[path](job, scope, receive, send)

    def _may(self, path: str, scope: Scope) -> bool:
        if self._token is None or path in ("/healthz", "/readyz"):
            return True
        scheme, _, given = (header(scope, "authorization") or "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(
            given.strip().encode("latin-1"), self._token.encode("ascii")
        )

    async def _health(self, job: Job, scope: Scope, receive: Receive, send: Send) -> None:
        await _tell_state(send, job, is_well=job.state != "failed")

    async def _ready(self, job: Job, scope: Scope, receive: Receive, send: Send) -> None:
        await _tell_state(send, job, is_well=job.state == "running")

    async def _metrics(self, job: Job, scope: Scope, receive: Receive, send: Send) -> None:
        body, kind = exposition(job)
        await answer(send, 200, body, kind, [(b"cache-control", b"no-store")])

    async def _status(self, job: Job, scope: Scope, receive: Receive, send: Send) -> None:
        asked = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("values", [""])[-1]
        is_asked = asked.lower() in ("1", "true", "yes")
        values = self._values if is_asked or callable(self._values) else False
        await answer_json(send, 200, view(job, values))

    async def _events(self, job: Job, scope: Scope, receive: Receive, send: Send) -> None:
        feed = self._watches.over(job)
        if feed.ended and job.state in OVER and header(scope, "last-event-id") == feed.mark(feed.newest):
            await answer(send, 204, b"", "text/plain")  # what tells an EventSource not to come back
            return
        await stream_feed(scope, receive, send, feed, bytes, since=0)


def _page() -> dict[str, tuple[bytes, str]]:
    """The files of the page with their content types, by path."""
    found = {}
    for file in (files("asyncstream.web") / "static").iterdir():
        kind = KINDS[file.name.rpartition(".")[2]]
        path = "/" if file.name == "index.html" else f"/{file.name}"
        found[path] = (file.read_bytes(), f"{kind}; charset=utf-8")
    return found


async def _tell_state(send: Send, job: Job, *, is_well: bool) -> None:
    """The state, and of what the job failed with only the type: its text may quote an element."""
    error = None if job.error is None else type(job.error).__name__
    headers = [] if is_well else [retry_after(1)]
    await answer_json(send, 200 if is_well else 503, {"state": job.state, "error": error}, headers)


def _with_headers(send: Send, *, is_head: bool) -> Send:
    """Sends what every answer has, and no body where only the head was asked for."""

    async def sending(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *SECURITY]
        elif is_head:
            message = {**message, "body": b""}
        await send(message)

    return sending


async def _live(receive: Receive, send: Send) -> None:
    """The lifespan protocol, for servers that serve this alone."""
    for phase in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{phase}.complete"})
