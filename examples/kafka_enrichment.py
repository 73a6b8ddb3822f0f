"""
Kafka to Kafka, each order once: read, ask a service about many at a time, write in transactions.

    python examples/kafka_enrichment.py localhost:9092

The topics `orders` and `priced` must be there. It runs until it is interrupted, or killed: start it again,
and it goes on from its last checkpoint, orders in flight included. Readers of `priced` with `read_committed`
see every order once, and those of one partition in the order of their partition in `orders`. Records that
are no JSON go to `orders-rejected.jsonl`.
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["asyncstream[kafka]"]
#
# [tool.uv.sources]
# asyncstream = { path = "..", editable = true }
# ///

from __future__ import annotations

import asyncio
import sys
from datetime import timedelta
from typing import Any

from asyncstream import BoundedOutOfOrderness, Checkpoints, DirectoryStore, JsonLinesSink, Pipeline, Restarts
from asyncstream.connectors.kafka import KafkaRecord, KafkaSource, KafkaTransactionalSink, RejectedRecord


async def price(order: KafkaRecord) -> KafkaRecord:
    """Ask your service here; the record keeps its key and its partition."""
    await asyncio.sleep(0.005)
    priced = {**order.value, "cents": order.value["items"] * 250}
    return KafkaRecord(priced, order.key, order.headers, partition=order.partition)


def row(record: RejectedRecord) -> dict[str, Any]:
    return {"topic": record.topic, "offset": record.offset, "reason": record.reason}


def build(servers: str, *, folder: str = ".", stop_at_end: bool = False) -> Pipeline:
    pipeline = Pipeline("pricing")
    source = KafkaSource(
        "orders",
        bootstrap_servers=servers,
        records=True,
        on_malformed="reject",
        stop_at_end=stop_at_end,
        # what aiokafka takes: client={"security_protocol": "SASL_SSL", "sasl_plain_username": ...}
    )
    orders = pipeline.source(source, name="orders")
    orders.rejected.map(row).to(JsonLinesSink(f"{folder}/orders-rejected.jsonl"), name="rejected")
    timed = orders.event_time(
        lambda order: order.timestamp_ms or 0,
        BoundedOutOfOrderness(timedelta(seconds=5)),
        idle_after=10,  # a partition without orders holds up nobody
        max_drift=timedelta(minutes=10),  # one that is read faster waits for the others
        name="times",
    )
    priced = timed.async_map(price, concurrency=200, timeout=5.0, name="price")
    sink = KafkaTransactionalSink("priced", transactional_id="pricing", bootstrap_servers=servers)
    priced.to(sink, name="priced")
    return pipeline


async def main(servers: str = "localhost:9092") -> None:
    checkpoints = Checkpoints(
        store=DirectoryStore("pricing-checkpoints"), every=1
    )  # a transaction each second
    await build(servers).run(checkpoints=checkpoints, restart=Restarts(attempts=10, within=600))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
