"""
What a Kafka record is in a pipeline, and how an element is made of one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from asyncstream.connectors.messages import Decode, decoder
from asyncstream.errors import SourceError, describe_error, safe_repr
from asyncstream.validation import flag, refuse

__all__ = (
    "KafkaRecord",
    "RecordReader",
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


class RecordReader:
    """
    Makes elements of records.

    Args:
        value: how the bytes of a record become an element, as of `KafkaSource`.
        records: elements are `KafkaRecord`, rather than values.
        rejects: bad records are put aside; else they are an error.
    """

    def __init__(self, value: Decode, records: bool, rejects: bool) -> None:
        self._decode = decoder(value, "value")
        self._records = flag("records", records)
        self._rejects = rejects

    def read(
        self, name: str, records: list[ConsumerRecord[Any, Any]]
    ) -> tuple[list[Any], list[ConsumerRecord[Any, Any]], list[RejectedRecord]]:
        """
        Elements with their records, and what is bad of some records of this partition; where that is an
        error, those up to the first bad one. Raises `SourceError` if that comes first.
        """
        try:
            return list(map(self._element, records)), records, []
        except Exception:
            return self._one_by_one(name, records)

    def _element(self, record: ConsumerRecord[Any, Any]) -> Any:
        value = None if record.value is None else self._decode(record.value)
        if not self._records:
            return value
        headers = tuple(record.headers)
        place = record.topic, record.partition, record.offset
        return KafkaRecord(value, record.key, headers, time_of(record), *place)

    def _one_by_one(
        self, name: str, records: list[ConsumerRecord[Any, Any]]
    ) -> tuple[list[Any], list[ConsumerRecord[Any, Any]], list[RejectedRecord]]:
        values: list[Any] = []
        taken: list[ConsumerRecord[Any, Any]] = []
        rejected: list[RejectedRecord] = []
        for record in records:
            try:
                values.append(self._element(record))
                taken.append(record)
            except Exception as error:
                place, reason = (record.topic, record.partition, record.offset), describe_error(error)
                if self._rejects:
                    rejected.append(RejectedRecord(*place, record.key, record.value, reason))
                    continue
                if values:  # they are delivered first
                    break
                raise SourceError(
                    f"offset {record.offset} of {name} is no element, as value= says: {reason}; with "
                    "on_malformed='reject' such records go to the `rejected` output"
                ) from error
        return values, taken, rejected


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
    try:
        pairs = [(name, value) for name, value in (found.items() if hasattr(found, "items") else found)]
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"expected headers, pairs or a mapping of str and bytes, got {safe_repr(found, 60)}"
        ) from error
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
