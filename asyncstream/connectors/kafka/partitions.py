"""
Partitions of topics of Kafka, as splits of a source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from asyncstream.errors import SourceError
from asyncstream.validation import refuse

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, TopicPartition

__all__ = ("Presence", "chosen", "gone", "split_of", "to_read")


def split_of(partition: TopicPartition) -> str:
    """The name of a partition as a split, as Kafka's own tools write it."""
    return f"{partition.topic}-{partition.partition}"


def gone(name: str, offset: int, first: int) -> SourceError:
    """The error for a partition in which there is no going on at `offset`."""
    what = f"deleted: it begins at {first} now" if offset < first else "lost, or the topic was made anew"
    return SourceError(
        f"cannot go on at offset {offset} of {name}: records were {what}. To begin where the topic does, "
        "give the source another name, or restore='none'; or another group"
    )


def chosen(partitions: Mapping[str, Sequence[int]], topics: Sequence[str]) -> dict[str, tuple[int, ...]]:
    if not isinstance(partitions, Mapping) or partitions.keys() != set(topics):
        raise refuse("partitions", f"a mapping from each of {list(topics)} to numbers", partitions)
    found = {}
    for topic, numbers in partitions.items():
        found[topic] = tuple(numbers) if isinstance(numbers, Iterable) else ()
        if not found[topic] or not all(type(number) is int and number >= 0 for number in found[topic]):
            raise refuse(f"partitions[{topic!r}]", "numbers of partitions, at least one", numbers)
    return found


def to_read(
    consumer: AIOKafkaConsumer, topics: Sequence[str], chosen: Mapping[str, Sequence[int]] | None
) -> list[TopicPartition]:
    """The partitions of topics, or those that are chosen; raises `SourceError` if one is not there."""
    from aiokafka import TopicPartition

    found = []
    for topic in topics:
        there = consumer.partitions_for_topic(topic) or set()
        wanted = there if chosen is None else chosen.get(topic, ())
        for number in sorted(wanted):
            if number not in there:
                raise SourceError(f"topic {topic!r} has no partition {number}; it has {sorted(there)}")
            found.append(TopicPartition(topic, number))
    return found


class Presence:
    """
    Sees whether topics, and their partitions, are still there: the client would wait for others of their
    names.

    Args:
        topics: their names.
        patience: for how many seconds one may be away: for a moment it may be without a leader.
        what: for the message, "cannot read 'orders' at localhost:9092".
    """

    def __init__(self, topics: Sequence[str], patience: float, what: str) -> None:
        self._topics = topics
        self._patience = patience
        self._what = what
        self._absent: dict[str, float] = {}  # what, and since when by the loop's time

    async def check(self, consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition]) -> None:
        """Raises `SourceError` if a topic, or one of these partitions of them, is gone for good."""
        now = asyncio.get_running_loop().time()
        missing = self._missing(consumer, partitions)
        self._absent = {name: self._absent.get(name, now) for name in missing}
        long = {name for name, since in self._absent.items() if now - since > self._patience}
        if long:
            await consumer._client.force_metadata_update()  # what the client knows may be minutes old
            for name in self._missing(consumer, partitions):
                if name in long:
                    raise SourceError(
                        f"{self._what}: there is no {name} any more, or this user has no right to it. If it "
                        "is made anew, begin where that one does: give the source another name, or "
                        "restore='none'; or another group"
                    )

    def _missing(self, consumer: AIOKafkaConsumer, partitions: Collection[TopicPartition]) -> list[str]:
        there = {topic: consumer.partitions_for_topic(topic) or set() for topic in self._topics}
        missing = [f"topic {topic!r}" for topic, numbers in there.items() if not numbers]
        for one in partitions:
            if there[one.topic] and one.partition not in there[one.topic]:
                missing.append(f"partition {split_of(one)}")
        return missing
