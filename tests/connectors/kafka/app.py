"""
A pipeline to be run in a process of its own, and killed.

Records are enriched by calls of a few milliseconds and written to another topic, in transactions. It goes on
from its checkpoints, and ends when all is read that was there.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from asyncstream import Checkpoints, DirectoryStore, Pipeline
from asyncstream.connectors.kafka import KafkaRecord, KafkaSource, KafkaTransactionalSink

__all__ = ("build", "main")

chance = random.Random()


async def enrich(record: KafkaRecord) -> KafkaRecord:
    await asyncio.sleep(chance.random() * 0.012)
    return KafkaRecord({**record.value, "enriched": True}, partition=record.partition)


def build(servers: str, read: str, write: str, id: str, partitions: tuple[int, ...] | None) -> Pipeline:
    pipeline = Pipeline(f"enrichment {id}")
    chosen = None if partitions is None else {read: partitions}
    source = KafkaSource(
        read, bootstrap_servers=servers, records=True, stop_at_end=True, partitions=chosen, batch=100
    )
    enriched = pipeline.source(source, name="orders").async_map(enrich, name="enrich", concurrency=10)
    sink = KafkaTransactionalSink(write, transactional_id=id, bootstrap_servers=servers)
    enriched.to(sink, name="enriched")
    return pipeline


async def main(
    folder: Path, id: str, servers: str, read: str, write: str, partitions: tuple[int, ...] | None = None
) -> None:
    """One run; its checkpoints are in a folder named after its transactional id."""
    settings: dict[str, Any] = {"every": 0.05, "on_held": "wait", "lease": 1.0}
    checkpoints = Checkpoints(store=DirectoryStore(folder / id), **settings)
    await build(servers, read, write, id, partitions).run(checkpoints=checkpoints)
