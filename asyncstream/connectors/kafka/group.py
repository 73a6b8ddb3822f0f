"""
Membership of a consumer group: which partitions are whose is for the broker to say, and changes at run time.

When members come or go, all partitions are taken from all members, and dealt out again. Who gets one reads on
from the offset that is committed for it. So before a member lets go of its partitions it brings to an end
what it has read of them (`Handover`): nothing more is given out, calls that are under way end, a checkpoint
is taken, and what was acknowledged is committed. What does not end in time is read again by another, as what
a member had read that has died. Only what is acknowledged is ever committed, so nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from asyncstream.aside import wait_at_most
from asyncstream.connectors.kafka.partitions import gone
from asyncstream.validation import real_number, refuse

if TYPE_CHECKING:
    from aiokafka import ConsumerRebalanceListener, TopicPartition

__all__ = ("Handover", "begins_at", "check_handover", "listener", "shows_itself")

_ASK = 0.1
"""Seconds between two requests for a checkpoint, while something is to be handed over."""


def check_handover(seconds: float, options: Mapping[str, Any]) -> None:
    """Raises `PipelineError` if the broker may wait for less long than a handover takes."""
    given = options.get("rebalance_timeout_ms") or options.get("session_timeout_ms", 10_000)  # as the client
    most = real_number("rebalance_timeout_ms", given, "milliseconds", lambda ms: ms > 0) / 1000
    if seconds >= most:
        advice = "give client={'rebalance_timeout_ms': ...} more: who takes longer is put out of the group"
        raise refuse("handover", f"less than the {most:g} s that the broker waits", seconds, advice)


def shows_itself(options: Mapping[str, Any]) -> float:
    """After how many seconds a member that nobody reads is to show itself: well before it is put out."""
    interval = options.get("max_poll_interval_ms", 300_000)
    return real_number("max_poll_interval_ms", interval, "milliseconds", lambda ms: ms > 0) / 3000


def begins_at(
    name: str, extent: tuple[int, int], kept: int | None, committed: int | None, is_latest: bool
) -> int:
    """
    The offset at which a member begins with a partition: the furthest that is known; else its end or its
    beginning, the two of its `extent`. Raises `SourceError` if there is no going on there.
    """
    first, end = extent
    known = [offset for offset in (kept, committed) if offset is not None]
    offset = max(known, default=end if is_latest else first)
    # who has forgotten the group may have forgotten the records, in whose place there are others by now
    if offset < first or (committed is None and offset > end):
        raise gone(name, offset, first)
    return offset


class Handover:
    """
    Waits until all that was given out of some partitions is acknowledged.

    Args:
        seconds: for how long, at most.

    Attributes:
        acknowledged: by partition, the offset before which all is done for good.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.acknowledged: dict[str, int] = {}
        self._more = asyncio.Event()

    def begin(self, name: str, offset: int) -> None:
        """A partition is read from here on."""
        self.acknowledged[name] = offset

    def end(self, names: Iterable[str]) -> None:
        """These are read no more."""
        for name in names:
            self.acknowledged.pop(name, None)

    def new(self, position: dict[str, int]) -> dict[str, int]:
        """What of a position is not acknowledged yet."""
        return {
            name: offset for name, offset in position.items() if offset > self.acknowledged.get(name, offset)
        }

    def acknowledge(self, position: dict[str, int]) -> None:
        """Take note of these offsets, of those partitions that are still read."""
        self.acknowledged |= {name: position[name] for name in position.keys() & self.acknowledged.keys()}
        self._more.set()

    async def finish(
        self, names: Collection[str], positions: dict[str, int], ask: Callable[[], None] | None
    ) -> None:
        """
        Wait until what was given out of these, up to their positions, is acknowledged; `ask` is for a
        checkpoint.
        """
        try:
            async with asyncio.timeout(self._seconds):
                while any(self.acknowledged[name] < positions[name] for name in names):
                    if ask is not None:
                        ask()
                    self._more.clear()
                    await wait_at_most(self._more, _ASK)
        except TimeoutError:
            pass


def listener(
    revoked: Callable[[Collection[TopicPartition]], Awaitable[None]],
    assigned: Callable[[Collection[TopicPartition]], Awaitable[None]],
) -> ConsumerRebalanceListener:
    """What the client tells when partitions are taken away, and when they are dealt out."""
    from aiokafka import ConsumerRebalanceListener

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked_now: Any) -> None:
            await revoked(revoked_now)

        async def on_partitions_assigned(self, assigned_now: Any) -> None:
            await assigned(assigned_now)

    return Listener()
