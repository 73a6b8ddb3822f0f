"""
A FastAPI service around a pipeline: orders are accepted durably, rated, counted by customer, streamed out.

    python -m examples.fastapi_service    # PORT, STATE, TOKEN by the environment; the live page is at /ops/
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["asyncstream[web]"]
#
# [tool.uv.sources]
# asyncstream = { path = "..", editable = true }
# ///

import asyncio
import os
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

from asyncstream import BoundedOutOfOrderness, Count, JsonLinesSink, Pipeline, TumblingWindows
from asyncstream.web import JobDep, LoadLimit, app, events, lifespan

STATE = Path(os.environ.get("STATE", "state"))
STATE.mkdir(exist_ok=True)


class Order(BaseModel):
    id: str
    customer: str
    cents: int
    at_ms: int


async def with_rating(order: dict[str, Any]) -> dict[str, Any]:
    await asyncio.sleep(0.02)  # ask your service here
    return order | {"rating": "large" if order["cents"] > 10_000 else "small"}


pipeline = Pipeline("shop")
orders = pipeline.submissions(inbox=STATE / "inbox.sqlite", name="orders")
rated = orders.async_map(with_rating, name="rating", order="unordered", concurrency=100, timeout=5)
rated.to(JsonLinesSink(STATE / "rated.jsonl"), name="journal")
live = rated.publish(name="live")
timed = rated.event_time("at_ms", BoundedOutOfOrderness(5), name="time").advance_when_quiet(10, name="quiet")
minutes = timed.key_by("customer").window(TumblingWindows(60)).aggregate(orders=Count(), name="per customer")
minutes.to(JsonLinesSink(STATE / "minutes.jsonl"), name="minutes")

service = FastAPI(title="shop", lifespan=lifespan(pipeline, checkpoints=STATE / "checkpoints"))
service.add_middleware(LoadLimit, limit=1000)
service.mount("/ops", app(token=os.environ.get("TOKEN")))


@service.post("/orders", status_code=202)
async def accept(order: Order, job: JobDep) -> dict[str, bool]:
    return {"new": await job.submit(order.model_dump(), durable=True, id=order.id)}


@service.get("/rated")
async def stream(job: JobDep, customer: str | None = None) -> Response:
    return events(job, live, filter=lambda order: customer in (None, order["customer"]))


if __name__ == "__main__":
    uvicorn.run(service, port=int(os.getenv("PORT", "8000")), access_log=False, timeout_graceful_shutdown=20)
