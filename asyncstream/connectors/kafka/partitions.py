"""
Partitions of topics of Kafka, as splits of a source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from asyncstream.errors import SourceError
from asyncstream.validation import refuse

if TYPE_CHECKING:
    from aiokafka import TopicPartition

__all__ = ("chosen", "gone", "split_of")


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
    found = {topic: tuple(numbers) for topic, numbers in partitions.items()}
    for topic, numbers in found.items():
        if not numbers or not all(type(number) is int and number >= 0 for number in numbers):
            raise refuse(f"partitions[{topic!r}]", "numbers of partitions, at least one", partitions[topic])
    return found
