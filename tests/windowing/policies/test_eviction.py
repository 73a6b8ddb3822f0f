"""A policy of one's own says which elements a window has."""

from __future__ import annotations

from collections.abc import Sequence

from asyncstream.windowing.policies import EvictionPolicy
from asyncstream.windowing.policies.events import Event
from asyncstream.windowing.policies.eviction import Decision, Partition


class Newest(EvictionPolicy):
    """The last element alone."""

    def partition(self, events: Sequence[Event], now_ms: int) -> Partition:
        return Partition(list(events[:-1]), list(events[-1:]), [])


def test_a_policy_of_ones_own_brings_partition_alone() -> None:
    assert Newest().evict(5, 5) is Decision.PROCESS
