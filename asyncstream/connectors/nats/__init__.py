"""
NATS JetStream: as a source, read as a log or through a durable consumer, and as a sink with message ids.
"""

from asyncstream.connectors.nats.consumer import NatsConsumerSource
from asyncstream.connectors.nats.sink import NatsSink
from asyncstream.connectors.nats.source import NatsStreamSource

__all__ = ("NatsConsumerSource", "NatsSink", "NatsStreamSource")
