"""
Refuses requests that would only wait: 503 with `Retry-After` past a limit, and when the job takes no more.

`await job.submit(...)` waits while the pipeline has no room, and so do the client and all that the request
holds. That is backpressure as long as clients are few; when they are many, an answer at once is better.
"""

from __future__ import annotations

from asyncstream.errors import JobStopped
from asyncstream.guards.outcomes import members
from asyncstream.validation import Duration, count, duration_seconds, refuse
from asyncstream.web.asgi import Application, Message, Receive, Scope, Send, answer_json, retry_after

__all__ = ("LoadLimit",)

READING = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods of requests that submit nothing, such as those that stay open to listen."""


class LoadLimit:
    """
    ASGI middleware: `app.add_middleware(asyncstream.web.LoadLimit, limit=500)`.

    A request that changes something (POST, PUT, ...) is refused before its body is read if `limit` others
    are still unanswered. One whose handler raises `JobStopped`, or a group of them, because the job is ending
    or has failed, is answered with 503 as well.

    Args:
        app: the application.
        limit: how many requests may be unanswered.
        retry_after: when a refused client is to come again: a `timedelta` or seconds, in whole seconds.
    """

    def __init__(self, app: Application, limit: int = 500, retry_after: Duration = 1.0) -> None:
        if not callable(app) or isinstance(app, type):
            raise refuse(
                "app", "an ASGI application", app, "app.add_middleware(LoadLimit, limit=500) gives it"
            )
        self._app = app
        self._limit = count("limit", limit)
        self._retry_after = duration_seconds("retry_after", retry_after)
        self._unanswered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in READING:
            await self._app(scope, receive, send)
            return
        if self._unanswered >= self._limit:
            await self._refuse(send, f"{self._limit} requests are unanswered")
            return
        began = answered = False

        async def note(message: Message) -> None:
            nonlocal began, answered
            began = True
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                if not answered:  # what the handler does from now on, no client waits for
                    self._unanswered -= 1
                answered = True

        self._unanswered += 1
        try:
            await self._app(scope, receive, note)
        except Exception as error:
            # of several elements that are submitted at once, in a task group, each may be refused
            if began or not all(isinstance(one, JobStopped) for one in members(error)):
                raise
            await self._refuse(send, "the job takes no more elements")
        finally:
            if not answered:
                self._unanswered -= 1

    async def _refuse(self, send: Send, reason: str) -> None:
        await answer_json(send, 503, {"error": reason}, [retry_after(self._retry_after)])
