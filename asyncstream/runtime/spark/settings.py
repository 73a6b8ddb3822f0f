"""
What a user says about a plan, checked when it is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncstream.checkpoint import Checkpoints
from asyncstream.validation import count, flag, refuse, text

if TYPE_CHECKING:
    from pyspark.sql import Observation

__all__ = ("PlanSettings",)

GROUPS_OF_A_PARTITION = 2
"""If the user does not say: each costs a micro-batch milliseconds, and two leave room for more partitions."""

MOST_GROUPS = 128
"""If the user does not say, and Spark shuffles into no more partitions."""


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """
    How a pipeline is to run on Spark.

    Attributes:
        key_groups, partitions, processing_time, observe, held_bytes: as for `Pipeline.on_spark`.
        start_from: the same, with a place made into settings.
    """

    key_groups: int | None = None
    partitions: int | None = None
    start_from: Checkpoints | None = None
    processing_time: bool = False
    observe: str | Observation | None = None
    held_bytes: int | None = None

    def __post_init__(self) -> None:
        for name, number in (("key_groups", self.key_groups), ("partitions", self.partitions)):
            if number is not None and count(name, number) >= 2**31:  # of which Spark has none
                raise refuse(name, "an integer below 2**31", number)
        if self.held_bytes is not None:
            count("held_bytes", self.held_bytes, least=0)
        flag("processing_time", self.processing_time)
        if isinstance(self.observe, str):
            text("observe", self.observe)
        elif self.observe is not None and type(self.observe).__name__ != "Observation":
            raise refuse("observe", "a name, or an Observation of Spark's", self.observe)

    def resolved(self, shuffle_partitions: int) -> tuple[int, int]:
        """How many key groups there are, and partitions of a bounded job; Spark shuffles into so many."""
        groups = self.key_groups
        if groups is None:
            # a partition that has one more than others would be the one that all wait for
            parts = max(shuffle_partitions, self.partitions or 0)
            groups = parts * max(1, min(GROUPS_OF_A_PARTITION, MOST_GROUPS // parts))
        # more partitions than there are groups would be empty
        return groups, min(shuffle_partitions, groups) if self.partitions is None else self.partitions
