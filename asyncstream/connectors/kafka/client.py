"""
Clients of Kafka: how they are made, and what their errors mean in words.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal

from asyncstream.addresses import without_secrets
from asyncstream.connectors.cancellation import stopped
from asyncstream.connectors.client_options import Options, passed_through
from asyncstream.errors import PipelineError, SinkBroken, SinkError, SourceError, describe_error, module_of
from asyncstream.validation import real_number, refuse

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.client import AIOKafkaClient
    from aiokafka.cluster import ClusterMetadata

__all__ = (
    "addresses",
    "check_compression",
    "check_options",
    "check_topics",
    "disconnect",
    "give_up",
    "naming",
    "patience_of",
    "settled",
)

_REQUESTS: Final = 3
"""So many times a request may be tried again: the broker may be starting anew, or be followed by another."""

_CODECS: Final = ("gzip", "snappy", "lz4", "zstd")
_ALL_CODECS: Final = "pip install 'aiokafka[all]'"

_BROKER: Final = re.compile(
    r"([\w.-]+|\[[\dA-Fa-f:.]+\])(:(?P<port>\d{1,5}))?|[\dA-Fa-f]*:[\dA-Fa-f:.]*:[\dA-Fa-f.]*"
)
"""A host, or an IPv6 address in brackets, and perhaps a port; or an IPv6 address by itself."""

_FAREWELL: Final = 5.0
"""Seconds that a client gets to disconnect."""


def addresses(value: str | Sequence[str]) -> list[str]:
    """
    The addresses of brokers, of a text with commas or a list; raises `PipelineError` if it is something else,
    or empty, or one of them is none: who one is at a broker, and by which protocol, is not part of it.
    """
    given = value.split(",") if isinstance(value, str) else value
    found = list(given) if isinstance(given, Iterable) else []
    if not found or not all(isinstance(one, str) and one.strip() for one in found):
        raise refuse("bootstrap_servers", "'host:port', or a list of these", value)
    brokers = [one.strip() for one in found]
    for broker in brokers:
        parts = _BROKER.fullmatch(broker)
        if parts is None or not 0 < int(parts["port"] or 9092) <= 65535:
            shown = without_secrets(broker) if "@" in broker else broker
            advice = "a protocol and who one is are options, client="
            raise refuse("bootstrap_servers", "'host:port', or a list of these", shown, advice)
    return brokers


def check_options(
    options: Options | None, client: Literal["AIOKafkaConsumer", "AIOKafkaProducer"], ours: frozenset[str]
) -> dict[str, Any]:
    """As `passed_through`, to a client of Kafka; raises `MissingExtra` if that is not installed, too."""
    aiokafka = module_of("kafka", "aiokafka", "Kafka")
    return passed_through(options, getattr(aiokafka, client), f"aiokafka.{client}", ours)


def check_compression(options: Mapping[str, Any]) -> None:
    """Raises `PipelineError` if a producer cannot compress so: the client says it when it is made."""
    from aiokafka import codec

    kind = options.get("compression_type")
    if kind is None:
        return
    if kind not in _CODECS:
        raise refuse("compression_type", f"one of {', '.join(map(repr, _CODECS))}", kind)
    if not getattr(codec, f"has_{kind}")():
        raise PipelineError(f"compression_type={kind!r} needs a package more: {_ALL_CODECS}")


def patience_of(options: Mapping[str, Any]) -> float:
    """For how many seconds brokers may be silent; the client itself would try again for ever."""
    given = options.get("request_timeout_ms", 40_000)
    return _REQUESTS * real_number("request_timeout_ms", given, "milliseconds", lambda ms: ms > 0) / 1000


async def settled(sent: Collection[asyncio.Future[Any]], patience: float) -> None:
    """
    Wait until it is known of each record whether the brokers have it. Raises `TimeoutError` if they say
    nothing of any of them for so many seconds.
    """
    left = {future for future in sent if not future.done()}
    while left:
        done, left = await asyncio.wait(left, timeout=patience)
        if not done:
            raise TimeoutError(f"no broker has answered for {patience:g} s")


async def disconnect(client: AIOKafkaConsumer | AIOKafkaProducer, network: AIOKafkaClient) -> None:
    """
    Let a client go, also one whose broker does not answer: what it has not sent by then it never sends, also
    if the broker comes back.
    """
    stopping = asyncio.ensure_future(client.stop())
    await asyncio.wait({stopping}, timeout=_FAREWELL)
    is_gone = stopping.done() and not stopping.cancelled() and stopping.exception() is None
    if not is_gone:
        await give_up(client)
        closing = asyncio.ensure_future(network.close())
        await asyncio.wait({closing, stopping}, timeout=_FAREWELL)
        await stopped(closing)
    await stopped(stopping)


async def give_up(client: AIOKafkaConsumer | AIOKafkaProducer) -> None:
    """End what a client waits for when it stops; it would go on if only the waiting were cancelled."""
    from aiokafka import AIOKafkaProducer

    if isinstance(client, AIOKafkaProducer):
        await stopped(client._sender.sender_task)
        left = client._message_accumulator
        left._pending_batches.update(*left._batches.values())  # where each is looked for when it ends
        for batch in left._pending_batches:
            batch.future.cancel()
    else:  # of one that is no member there is none
        await stopped(getattr(client._coordinator, "_coordination_task", None))


@contextmanager
def naming(kind: type[SourceError] | type[SinkError], doing: str, broken: bool = False) -> Iterator[None]:
    """
    What the client raises in this block comes out as ours, and says what to do.

    Args:
        kind: of the error.
        doing: what is being done, for the message: "cannot read topic 'orders'".
        broken: what was written may be gone, so that nothing but going back to the checkpoint helps.
    """
    from aiokafka import errors

    try:
        yield
    except (SourceError, SinkError):
        raise
    except (errors.ProducerFenced, errors.InvalidProducerEpoch) as error:
        raise SinkBroken(
            f"{doing}: another job has begun to write by the same transactional_id, or the transaction took "
            "longer than the broker waits; this job writes nothing more"
        ) from error
    # the last one: of a SCRAM handshake that the broker has refused in the middle
    except (errors.KafkaError, OSError, AssertionError, ValueError, KeyError) as error:
        raised = SinkBroken if broken and kind is SinkError else kind
        raise raised(f"{doing}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    from aiokafka import errors

    advice = {
        errors.KafkaConnectionError: "no broker can be reached there, or it has refused to talk (TLS, SASL)",
        errors.AuthenticationFailedError: "the broker does not know this user, or the password is wrong",
        errors.UnsupportedSaslMechanismError: "the broker does not know this sasl_mechanism",
        KeyError: "the broker has refused this user",
        errors.TopicAuthorizationFailedError: "this user has no right to the topic",
        errors.GroupAuthorizationFailedError: "this user has no right to the group",
        errors.TransactionalIdAuthorizationFailed: "this user has no right to the transactional_id",
        errors.ClusterAuthorizationFailedError: "this user has no right to write idempotently to the cluster",
        errors.UnknownTopicOrPartitionError: "there is no such topic or partition",
        errors.OffsetOutOfRangeError: "what was to be read is not there any more",
        errors.KafkaTimeoutError: "the broker has not answered in time",
        errors.RequestTimedOutError: "the broker has not answered in time",
        errors.MessageSizeTooLargeError: "a record is larger than is allowed (the client's "
        "max_request_size, the topic's max.message.bytes)",
        errors.RecordListTooLargeError: "records are larger together than is allowed (max.message.bytes)",
        errors.UnsupportedCodecError: f"records are compressed, which needs a package more ({_ALL_CODECS})",
        errors.UnsupportedVersionError: "the broker is too old for this",
    }
    for kind, meaning in advice.items():
        if isinstance(error, kind):
            return f"{meaning}: {describe_error(error)}"
    return describe_error(error)


def check_topics(
    cluster: ClusterMetadata, topics: Sequence[str], kind: type[SourceError] | type[SinkError], where: str
) -> None:
    """
    See whether the topics are there; the client would wait for them, or make them. Raises `SourceError` or
    `SinkError` if not, by `kind`.
    """
    there = cluster.topics()
    for topic in topics:
        if topic not in there and topic in cluster.unauthorized_topics:
            raise kind(f"this user has no right to topic {topic!r} at {where}")
        if topic not in there:
            known = ", ".join(sorted(map(repr, there))[:10]) or "none"
            raise kind(
                f"there is no topic {topic!r} at {where}, or this user has no right to see it; there are: "
                f"{known}"
            )
