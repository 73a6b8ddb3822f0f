"""
A FastAPI service around a pipeline: events come in by POST, enriched results go out as server-sent events.

The pipeline lives in the event loop of the service, from its start to its end:

* `POST /events` with one JSON object, or a list of them, answers once they are accepted; while the pipeline
  has no room the request waits, and so does its client (backpressure);
* `GET /results` streams what comes out from then on, one JSON object per server-sent event;
* `GET /health` gives the counters of every step, and 503 with the error once the job has failed;
* when it is told to end (SIGTERM, Ctrl-C) the service takes no more events, finishes those it has accepted,
  writes their results to the journal and to whoever listens, and ends.

    python -m examples.fastapi_service

`PORT` is where it listens (8000 if not set), `JOURNAL` the file that keeps all results ("results.jsonl").
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import uvicorn
from fastapi import FastAPI, HTTPException, Request, status
from fastapi.responses import StreamingResponse

from asyncstream import Job, JobStopped, JsonLinesSink, Pipeline, Sink
from asyncstream.elements import Timestamps

Event = dict[str, Any]

LAG_LIMIT = 1000
"""Results that a client may be behind before it is cut off."""


class Broadcast(Sink[Event]):
    """
    Gives each result to every client that listens.

    A client that is too slow is cut off: it must not hold the pipeline, nor the other clients.
    """

    def __init__(self) -> None:
        self._clients: set[asyncio.Queue[Event | None]] = set()

    async def write(self, values: Sequence[Event], timestamps: Timestamps) -> None:
        for client in tuple(self._clients):
            for value in values:
                if client.qsize() >= LAG_LIMIT:
                    self._cut_off(client)
                    break
                client.put_nowait(value)

    async def listen(self) -> AsyncIterator[bytes]:
        """The results from now on, as server-sent events, until the client is cut off or the job ends."""
        client: asyncio.Queue[Event | None] = asyncio.Queue()
        self._clients.add(client)
        try:
            yield b": listening\n\n"  # so that the client knows that it misses nothing from now on
            while (value := await client.get()) is not None:
                yield b"data: " + orjson.dumps(value) + b"\n\n"
        finally:
            self._clients.discard(client)

    async def flush(self) -> None:
        for client in tuple(self._clients):
            self._cut_off(client)

    close = flush  # also where a failure has left no time for a flush

    def _cut_off(self, client: asyncio.Queue[Event | None]) -> None:
        self._clients.discard(client)
        client.put_nowait(None)


async def with_weather(event: Event) -> Event:
    """Stands for a call of a weather service."""
    await asyncio.sleep(0.02)
    return event | {"weather": "rain" if str(event.get("airport")) in ("EWR", "SEA") else "clear"}


def build(results: Broadcast, journal: str) -> Pipeline:
    pipeline = Pipeline("weather service")
    enriched = pipeline.submissions(limit=100).async_map(
        with_weather,
        name="weather",
        order="unordered",
        concurrency=50,
        timeout=2.0,
        on_timeout=lambda event: event | {"weather": "unknown"},
    )
    enriched.to(results, name="clients")
    enriched.to(JsonLinesSink(journal, existing="append"), name="journal")
    return pipeline


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    results = Broadcast()
    pipeline = build(results, os.environ.get("JOURNAL", "results.jsonl"))
    async with (
        pipeline.start() as job
    ):  # leaving the block drains it; with checkpoints it would stop with one
        app.state.job, app.state.results = job, results
        yield


app = FastAPI(title="asyncstream example", lifespan=lifespan)


@app.post("/events", status_code=status.HTTP_202_ACCEPTED)
async def submit(request: Request, events: Event | list[Event]) -> dict[str, int]:
    job: Job = request.app.state.job
    accepted = 0
    try:
        for event in events if isinstance(events, list) else [events]:
            await job.submit(event)
            accepted += 1
    except JobStopped as stopped:
        detail = {"accepted": accepted, "error": str(stopped)}
        raise HTTPException(status.HTTP_503_SERVICE_UNAVAILABLE, detail) from stopped
    return {"accepted": accepted}


@app.get("/results")
async def results(request: Request) -> StreamingResponse:
    listeners: Broadcast = request.app.state.results
    return StreamingResponse(listeners.listen(), media_type="text/event-stream")


@app.get("/health")
async def health(request: Request) -> dict[str, Any]:
    job: Job = request.app.state.job
    if job.error is not None:
        raise HTTPException(
            status.HTTP_503_SERVICE_UNAVAILABLE, {"status": job.state, "error": str(job.error)}
        )
    return {"status": "ok", "job": job.state, "steps": job.metrics()}


class Server(uvicorn.Server):
    """Drains the pipeline first: uvicorn waits for open streams before it tells an app to shut down."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with suppress(TimeoutError):
            await app.state.job.drain(timeout=30)
        await super().shutdown(sockets)


if __name__ == "__main__":
    Server(uvicorn.Config(app, port=int(os.environ.get("PORT", "8000")))).run()
