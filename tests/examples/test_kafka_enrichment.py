"""The example from Kafka to Kafka, against a server that speaks its protocol."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from asyncstream import Checkpoints, DirectoryStore
from examples import kafka_enrichment
from tests.servers.kafka import Kafka

pytestmark = pytest.mark.broker


async def test_each_order_is_priced_once_in_its_partition(kafka: Kafka, tmp_path: Path) -> None:
    await kafka.topic(3, "orders")
    await kafka.topic(3, "priced")
    orders = [json.dumps({"id": number, "items": number % 5}).encode() for number in range(300)]
    await kafka.fill("orders", [*orders, b"no JSON"], 3)
    pipeline = kafka_enrichment.build(kafka.address, folder=str(tmp_path), stop_at_end=True)
    assert "orders -> priced  exactly once" in pipeline.describe(checkpoints=True)
    await pipeline.run(checkpoints=Checkpoints(store=DirectoryStore(tmp_path / "kept"), every=0.2))
    for partition, records in enumerate(await kafka.records("priced")):
        priced = [json.loads(record.value) for record in records]
        assert [order["id"] for order in priced] == list(range(partition, 300, 3))
        assert all(order["cents"] == order["items"] * 250 for order in priced)
    (rejected,) = (tmp_path / "orders-rejected.jsonl").read_text().splitlines()
    assert json.loads(rejected)["offset"] == 100
