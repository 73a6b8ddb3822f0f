"""A client that is not installed is named by its extra, by one kind of error, whatever needs it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from asyncstream import (
    NatsSink,
    NatsStreamSource,
    PostgresOutbox,
    PostgresSink,
    RedisStreamSink,
    RedisStreamSource,
)
from asyncstream.connectors.kafka import KafkaSink, KafkaSource, KafkaTransactionalSink
from asyncstream.connectors.mqtt import MqttSink, MqttSource
from asyncstream.errors import MissingExtra
from tests.runtime.parts import run

BROKER: dict[str, Any] = {"bootstrap_servers": "127.0.0.1:1"}

NEEDS: dict[str, tuple[str, str, Callable[[], Any]]] = {
    "KafkaSource": ("aiokafka", "kafka", lambda: KafkaSource("orders", **BROKER)),
    "KafkaSink": ("aiokafka", "kafka", lambda: KafkaSink("orders", **BROKER)),
    "KafkaTransactionalSink": (
        "aiokafka",
        "kafka",
        lambda: KafkaTransactionalSink("orders", transactional_id="x", **BROKER),
    ),
    "MqttSource": ("paho.mqtt", "mqtt", lambda: MqttSource("mqtt://127.0.0.1:1", "orders", client_id="x")),
    "MqttSink": ("paho.mqtt", "mqtt", lambda: MqttSink("mqtt://127.0.0.1:1", lambda order: "orders")),
    "NatsStreamSource": ("nats", "nats", lambda: NatsStreamSource("nats://127.0.0.1:1", "ORDERS")),
    "NatsSink": ("nats", "nats", lambda: NatsSink("nats://127.0.0.1:1", "orders")),
    "RedisStreamSource": ("redis", "redis", lambda: RedisStreamSource("redis://127.0.0.1:1/0", "orders")),
    "RedisStreamSink": ("redis", "redis", lambda: RedisStreamSink("redis://127.0.0.1:1/0", "orders")),
    "PostgresOutbox": ("psycopg", "postgres", lambda: PostgresOutbox("postgresql://127.0.0.1:1/x", "orders")),
    "PostgresSink": (
        "psycopg",
        "postgres",
        lambda: PostgresSink("postgresql://127.0.0.1:1/x", "orders", columns=["id"]),
    ),
}


@pytest.mark.parametrize("kind", NEEDS)
def test_client_that_is_not_installed_is_named_by_its_extra(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package, extra, make = NEEDS[kind]
    for name in [package, *(name for name in sys.modules if name.startswith(f"{package}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra) as caught:
        run(make().open())
    assert caught.value.extra == extra
