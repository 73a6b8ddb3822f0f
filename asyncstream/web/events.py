"""
What a pipeline publishes, as server-sent events to any number of clients.

A `Relay` subscribes once to each `stream.publish()` of a job, and keeps the last events in a feed, which all
clients read: an event is made once for all clients, and no client holds up the pipeline. `lifespan` begins
relaying with the job. So a client that stays until a service has ended, and comes back to the next, hears all
that both publish: with checkpoints each result once, and what a crash repeats twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from asyncstream.aside import Tasks
from asyncstream.connectors import Published
from asyncstream.connectors.outlets import Publication
from asyncstream.connectors.rows import Default, JsonWriter
from asyncstream.errors import describe_error
from asyncstream.runtime.aio import Job
from asyncstream.validation import count, function, refuse, text
from asyncstream.web.asgi import Message, Receive, Scope, Send, answer, answer_json, header, retry_after
from asyncstream.web.feed import Feed
from asyncstream.web.sse import stream_feed

if TYPE_CHECKING:
    from starlette.responses import Response

__all__ = ("REPLAY", "EventStream", "events", "relay_all")

log = logging.getLogger("asyncstream.web")

T = TypeVar("T")

REPLAY = 1000
"""Events of each `publish()` that are kept for clients that are slow or come back."""


class _Event:
    """One element, and how it is sent, which is made when the first client wants it."""

    __slots__ = ("_data", "_write", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._write: object = None

    def data(self, write: Callable[[Any], bytes]) -> bytes:
        if self._write is not write:
            self._data, self._write = write(self.value), write
        return self._data


class _Relays:
    """The feeds of a job, by what they are of; and the tasks that fill them."""

    def __init__(self) -> None:
        self._feeds: WeakKeyDictionary[Publication[Any], Feed[_Event]] = WeakKeyDictionary()
        self._tasks = Tasks()

    def feed(self, job: Job, of: Published[Any] | str | None, keep: int) -> Feed[_Event]:
        publication = job._publication(of)  # refuses what is not there
        feed = self._feeds.get(publication)
        if feed is None:
            # "hold" loses nothing, and holds nothing up, for the relay takes all that comes at once
            subscription = job.subscribe(of, buffer=keep, slow="hold")
            feed = self._feeds[publication] = Feed(keep)
            self._tasks.start(_relay(subscription, feed), "asyncstream relay")
        return feed


async def _relay(subscription: Any, feed: Feed[_Event]) -> None:
    try:
        async for value in subscription:
            feed.put(_Event(value))
    except Exception as error:  # the job's, which it has told of itself
        log.debug("relay ended: %s", describe_error(error))
    finally:
        feed.end()


_relays: WeakKeyDictionary[Job, _Relays] = WeakKeyDictionary()


def _relays_of(job: Job) -> _Relays:
    found = _relays.get(job)
    if found is None:
        found = _relays[job] = _Relays()
    return found


def relay_all(job: Job, keep: int) -> None:
    """Keep the last events of everything that a job publishes, from now on."""
    for step in job.graph if keep else ():
        if step.kind == "publish":
            _relays_of(job).feed(job, step.name, keep)


@lru_cache(maxsize=64)
def _known_writer(default: Default | None) -> Callable[[Any], bytes]:
    return JsonWriter(default).write


def _writer(default: Default | None) -> Callable[[Any], bytes]:
    try:
        return _known_writer(default)
    except TypeError:  # it has no hash: it is no function, or an object with a `__call__`
        return JsonWriter(default).write


class EventStream:
    """
    An answer of server-sent events, for one request: an ASGI application.

    Args:
        job: whose.
        feed: what it publishes.
        filter: says of an element whether this client is to hear of it.
        write: makes the data of an event.
        kind: the type of the events.
    """

    def __init__(
        self,
        job: Job,
        feed: Feed[_Event],
        filter: Callable[[Any], object] | None,
        write: Callable[[Any], bytes],
        kind: str | None,
    ) -> None:
        self._job = job
        self._feed = feed
        self._filter = filter
        self._write = write
        self._kind = kind

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        feed = self._feed
        mark = header(scope, "last-event-id")
        if feed.ended and (mark is None or feed.number_of(mark) == feed.newest):
            if self._job.state == "finished":
                await answer(send, 204, b"", "text/plain")  # tells an EventSource not to come back
            else:
                await answer_json(send, 503, {"error": f"the job is {self._job.state}"}, [retry_after(1)])
            return
        self._job._check_loop("subscribe", "serve it where the job runs")
        await stream_feed(scope, receive, send, feed, self._data, kind=self._kind)

    def _data(self, event: _Event) -> bytes | None:
        if self._filter is not None and not self._filter(event.value):
            return None
        return event.data(self._write)


def events(
    job: Job,
    of: Published[T] | str | None = None,
    *,
    filter: Callable[[T], object] | None = None,
    default: Default | None = None,
    event: str | None = None,
    replay: int = REPLAY,
) -> Response:
    """
    Answer a request with what a pipeline publishes from now on, as server-sent events.

        @service.get("/results")
        async def results(job: JobDep, customer: str):
            return asyncstream.web.events(job, filter=lambda result: result["customer"] == customer)

    The data of an event is JSON, as `JsonLinesSink` writes it. A client that was cut off says with
    `Last-Event-ID`, as browsers do by themselves, where it was, and hears what it has missed. Where that is
    not kept any more, an event of type `missed` says so: with how many (`{"events": 12}`), or, to one that
    comes from another run, with its id (`{"after": "..."}`) before all that is kept. So it does in the place
    of an element that cannot be written, or over which `filter` fails; the log says why. The stream ends with
    the job.

    What this gives is a response of Starlette's, or where that is not installed an ASGI application.

    Args:
        job: whose.
        of: what `stream.publish()` gave, or the name of that step; not needed if there is one only.
        filter: says of an element whether this client is to hear of it. Called often: it should be quick.
        default: makes of a value of your own type one that can be written.
        event: the type of the events, for `addEventListener`; "message" by default.
        replay: how many events are kept, where `lifespan` has not begun to keep them with the job.

    Raises:
        PipelineError: if the pipeline has no such step.
    """
    if not isinstance(job, Job):
        raise refuse("job", "a Job", job)
    if event is not None:
        text("event", event)
    if filter is not None:
        function("filter", filter, "element")
    feed = _relays_of(job).feed(job, of, count("replay", replay))
    answer_of = _response_class()
    response: Response = answer_of(job, feed, filter, _writer(default), event)
    return response


@cache
def _response_class() -> Any:
    """`EventStream` as a response of Starlette's, which is what FastAPI lets pass."""
    try:
        from starlette.responses import Response
    except ImportError:
        return EventStream

    class EventStreamResponse(EventStream, Response):
        media_type = "text/event-stream"

        def __init__(self, *arguments: Any) -> None:
            Response.__init__(self)
            EventStream.__init__(self, *arguments)

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            own = [each for each in self.raw_headers if each[0] not in (b"content-length", b"content-type")]

            async def sending(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message["headers"], *own]
                await send(message)

            await EventStream.__call__(self, scope, receive, sending)
            if self.background is not None:
                await self.background()

    return EventStreamResponse
