"""
What a Kafka record is in a pipeline.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from asyncstream.validation import refuse

__all__ = (
    "KafkaRecord",
    "RejectedRecord",
    "checked_topic",
    "headers_of",
    "time_of",
    "topic_name",
)

if TYPE_CHECKING:
    from aiokafka import ConsumerRecord

_TOPIC: Final = re.compile("[a-zA-Z0-9._-]{1,249}")
_IS_TOPIC: Final = "the name of a topic, up to 249 of a-z A-Z 0-9 . _ -"


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """
    A record, as a source with `records=True` gives it and every sink takes it.

    Attributes:
        value: decoded; None: a tombstone, which says that what the key stands for is gone.
        key: None: it has none.
        headers: names and values; a name may come more than once.
        timestamp_ms: milliseconds since the epoch; None, for a sink: the time of the element, or now.
        topic: where it was, or is to go; "", for a sink: where the sink writes.
        partition: where it was, or is to go; None, for a sink: as the key says.
        offset: where it was; sinks do not look at it.
    """

    value: Any
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    topic: str = ""
    partition: int | None = None
    offset: int = -1


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """
    A record that could not be decoded.

    Attributes:
        topic, partition, offset: where it is.
        key, value: its bytes.
        reason: why not.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    reason: str


def checked_topic(name: str) -> str:
    """The name of a topic; raises `ValueError` if Kafka has no such names: the client waits for one."""
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"expected {_IS_TOPIC}, got {name!r}")
    return name


def topic_name(argument: str, value: str) -> str:
    """As `checked_topic`, of an argument; raises `PipelineError`."""
    try:
        return checked_topic(value)
    except ValueError as error:
        raise refuse(argument, _IS_TOPIC, value) from error


def headers_of(found: Any) -> list[tuple[str, bytes | None]]:
    """
    Headers as the client takes them, of pairs or a mapping; raises `TypeError` if they are something else, or
    `ValueError` if a name has no bytes.
    """
    pairs: Iterable[Any] = found.items() if hasattr(found, "items") else found
    headers = []
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, bytes | None):
            raise TypeError(f"expected headers of str and bytes, got {name!r}: {value!r}")
        name.encode()
        headers.append((name, value))
    return headers


def time_of(record: ConsumerRecord[Any, Any]) -> int | None:
    """The timestamp of a record, milliseconds since the epoch; None: it has none."""
    timestamp: int = record.timestamp
    return timestamp if timestamp >= 0 else None
