"""
Writes to a topic of Kafka: at least once, each record acknowledged before the next batch is taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from inspect import signature
from itertools import repeat, takewhile
from numbers import Integral
from typing import TYPE_CHECKING, Any

from asyncstream.aside import heed_the_end
from asyncstream.connectors.base import Sink
from asyncstream.connectors.cancellation import carried_through
from asyncstream.connectors.client_options import Options
from asyncstream.connectors.kafka.client import (
    addresses,
    check_compression,
    check_options,
    check_topics,
    disconnect,
    naming,
    patience_of,
    settled,
)
from asyncstream.connectors.kafka.records import KafkaRecord, checked_topic, headers_of, topic_name
from asyncstream.connectors.messages import Encode, encoder
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkError, UserFunctionError, describe_error, over_elements, safe_repr
from asyncstream.validation import flag, function

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient

__all__ = ("KafkaSink", "KafkaWriter")

_OURS = frozenset(
    {
        "acks",
        "bootstrap_servers",
        "enable_idempotence",
        "key_serializer",
        "transaction_timeout_ms",
        "transactional_id",
        "value_serializer",
    }
)

_BYTES = bytes | bytearray | memoryview | None
"""What a record may have as its key, and as its value."""

_TURN = 100
"""Elements after which others have their turn: handing one to the client mostly does not wait."""


class KafkaWriter:
    """
    What sinks for Kafka have in common: how an element becomes a record, and how a client is made. The
    arguments are those of `KafkaSink`.
    """

    def __init__(
        self,
        topic: str,
        bootstrap_servers: str | Sequence[str],
        value: Encode,
        key: Callable[[Any], bytes | str | None] | None,
        headers: Callable[[Any], Any] | None,
        partition: Callable[[Any], int | None] | None,
        timestamps: bool,
        client: Options | None,
    ) -> None:
        self.topic = topic_name("topic", topic)
        self._servers = addresses(bootstrap_servers)
        self.where = ",".join(self._servers)
        self.what = f"cannot write to {topic!r} at {self.where}"
        self._encode = encoder(value, name="value")
        self._key = None if key is None else function("key", key, "element")
        self._headers = None if headers is None else function("headers", headers, "element")
        self._partition = None if partition is None else function("partition", partition, "element")
        self._timestamps = flag("timestamps", timestamps)
        self._options = check_options(client, "AIOKafkaProducer", _OURS)
        check_compression(self._options)
        self.patience = patience_of(self._options)
        from aiokafka import errors

        self._too_large = errors.MessageSizeTooLargeError
        self._of_topic = (
            errors.InvalidTopicError,
            errors.TopicAuthorizationFailedError,
            errors.UnknownTopicOrPartitionError,
        )
        self._of_records = (
            errors.CorruptRecordException,
            errors.InvalidTimestampError,
            errors.MessageSizeTooLargeError,
            errors.PolicyViolationError,
            errors.RecordListTooLargeError,
            errors.UnsupportedForMessageFormatError,
        )

    def naming(self, broken: bool = False) -> AbstractContextManager[None]:
        """What the client raises in this block comes out as an error of the sink; see `client.naming`."""
        return naming(SinkError, self.what, broken)

    def producer(self, **options: Any) -> AIOKafkaProducer:
        """A client that is not connected."""
        from aiokafka import AIOKafkaProducer

        with self.naming():
            return AIOKafkaProducer(bootstrap_servers=self._servers, **{**self._options, **options})

    async def connect(self, producer: AIOKafkaProducer) -> None:
        """Connect a client, and see whether the topic is there."""
        with self.naming():
            await producer.start()
            check_topics(await producer.client.fetch_all_metadata(), [self.topic], SinkError, self.where)

    def admin(self) -> AIOKafkaAdminClient:
        """A client that looks at groups; is not connected."""
        from aiokafka.admin import AIOKafkaAdminClient

        known = signature(AIOKafkaAdminClient).parameters
        options = {name: value for name, value in self._options.items() if name in known}
        with self.naming():
            return AIOKafkaAdminClient(bootstrap_servers=self._servers, **options)

    async def send_all(
        self,
        producer: AIOKafkaProducer,
        values: Sequence[Any],
        timestamps: Timestamps,
        sent: list[asyncio.Future[Any]],
    ) -> None:
        """Hand elements to the client; `sent` gets a future for each, done when the broker has it."""
        for value, timestamp in zip(values, timestamps or repeat(None), strict=False):
            sent.append(await self.send(producer, value, timestamp))
            if not len(sent) % _TURN:
                await asyncio.sleep(0)

    async def send(
        self, producer: AIOKafkaProducer, value: Any, timestamp: int | None
    ) -> asyncio.Future[Any]:
        """Hand one element to the client; gives a future that is done when the broker has it."""
        topic, timestamp_ms = self.topic, timestamp if self._timestamps else None
        key: bytes | None = None
        headers: list[tuple[str, bytes | None]] | None = None
        partition: Any = None
        payload = value
        try:
            if isinstance(value, KafkaRecord):
                payload, key, partition = value.value, value.key, value.partition
                topic = checked_topic(value.topic) if value.topic else topic
                headers = headers_of(value.headers) or None
                timestamp_ms = timestamp_ms if value.timestamp_ms is None else value.timestamp_ms
            if self._key is not None:
                found = self._key(value)
                key = found.encode() if isinstance(found, str) else found
            if self._headers is not None:
                headers = headers_of(self._headers(value))
            if self._partition is not None:
                partition = self._partition(value)
            data = None if payload is None else self._encode(payload)
            if data is None and key is None:
                raise TypeError("a tombstone (None) needs a key: key= gives none")
            # of what is none of these the client says little, or breaks
            if not isinstance(key, _BYTES):
                raise TypeError(f"expected a key of bytes or text, got {safe_repr(key)}")
            if not isinstance(data, _BYTES):
                raise TypeError(f"expected a value of bytes, got {safe_repr(data)}")
            if not isinstance(partition, Integral | None) or (partition is not None and int(partition) < 0):
                raise TypeError(f"expected the number of a partition, got {safe_repr(partition)}")
            if timestamp_ms is not None and timestamp_ms < 0:
                timestamp_ms = None  # before 1970, which Kafka cannot say
        except Exception as error:
            raise UserFunctionError("", value, error) from error
        try:
            future: asyncio.Future[Any] = await producer.send(
                topic, data, key=key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
        except (self._too_large, AssertionError) as error:  # which the client says of a partition
            raise SinkError(f"{self.what}: of {safe_repr(value)}: {describe_error(error)}") from error
        except self._of_topic as error:
            error.args = (topic,)  # which the client does not always say
            raise
        return future

    def is_over_records(self, error: BaseException) -> bool:
        """Whether the client or a broker says so of what is written."""
        if isinstance(error, self._of_topic):
            # but of one that a record has named; what a broker says has no name in it
            return bool(error.args) and self.topic not in error.args
        return isinstance(error, (*self._of_records, AssertionError))


class KafkaSink(Sink[Any]):
    """
    Writes elements to a topic, at least once: after a crash, those since the last checkpoint may come twice,
    and with `on_error=` those that were sent together with one that the broker refuses.

        results.to(KafkaSink("priced", bootstrap_servers="localhost:9092", key=lambda order: order["id"]))

    A `KafkaRecord` brings its key, headers, timestamp, topic and partition along: one that was read goes back
    to where it was, but for `dataclasses.replace(record, topic="", partition=None)`. What the client sends
    again itself is there once and in order (idempotent producer). `KafkaTransactionalSink` writes exactly
    once.

    Args:
        topic: where to write. It must be there.
        bootstrap_servers: "host:port", with commas between several; or a list.
        value: how an element becomes the bytes of a record: "json", "bytes", "text", or a function. None
            becomes a tombstone.
        key: a function that gives an element's key, bytes or text; records of one key are in one partition.
        headers: a function that gives an element's headers, pairs or a mapping of text and bytes.
        partition: a function that gives the partition's number; without it the key decides.
        timestamps: records have the timestamps of their elements, where they have any.
        idempotent: the broker leaves out what the client sends twice. False for brokers that cannot.
        client: options of `aiokafka.AIOKafkaProducer`, such as `compression_type`, `linger_ms`,
            `security_protocol`.
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap_servers: str | Sequence[str],
        value: Encode = "json",
        key: Callable[[Any], bytes | str | None] | None = None,
        headers: Callable[[Any], Any] | None = None,
        partition: Callable[[Any], int | None] | None = None,
        timestamps: bool = True,
        idempotent: bool = True,
        client: Options | None = None,
    ) -> None:
        self._writer = KafkaWriter(
            topic, bootstrap_servers, value, key, headers, partition, timestamps, client
        )
        self._idempotent = flag("idempotent", idempotent)
        self._producer: AIOKafkaProducer | None = None
        self._sent: list[asyncio.Future[Any]] = []
        self._is_out_of_step = False

    async def open(self) -> None:
        self._is_out_of_step = False
        producer = self._producer = self._writer.producer(acks="all", enable_idempotence=self._idempotent)
        await self._writer.connect(producer)

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._sent = []
        with over_elements(self._writer.is_over_records):
            await carried_through(self._write(values, timestamps, self._sent))

    async def _write(
        self, values: Sequence[Any], timestamps: Timestamps, sent: list[asyncio.Future[Any]]
    ) -> None:
        writer = self._writer
        if self._producer is None:
            raise SinkError(f"the sink of {writer.topic!r} is not open")
        if self._is_out_of_step:
            await self.close()
            await self.open()
        try:
            with writer.naming():
                failure: Exception | None = None
                try:
                    await writer.send_all(self._producer, values, timestamps, sent)
                except Exception as error:
                    failure = error
                # also those before one that failed: the job is told how many the broker has
                await settled(sent, writer.patience)
                refused = not all(map(_is_written, sent))
                # a broker refuses all records that the client has sent together, which may be over one
                self.one_by_one = not refused
                # and expects from an idempotent producer the number next that it has refused
                self._is_out_of_step = refused and self._idempotent
                if failure is not None:
                    raise failure
                for future in sent:
                    future.result()
        finally:
            for future in sent:
                heed_the_end(future)

    def taken(self) -> int:
        return sum(1 for _ in takewhile(_is_written, self._sent))

    async def close(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            await disconnect(producer, producer.client)


def _is_written(future: asyncio.Future[Any]) -> bool:
    """Whether the broker has the record."""
    return future.done() and not future.cancelled() and future.exception() is None
