"""
How long the calls of an async step take, by how they end.

All calls that begin between two turns share a `Stamp`, which the second of these turns sets to the time: no
work per call, and whether a call has suspended is told by whether its stamp has a time. A call that ended
well costs one `append` of its stamp; the turn that follows looks at the clock once, for all of them. A call
that never suspended has taken no time that a clock would show: there is none of it here.
"""

from __future__ import annotations

from typing import Final

from asyncstream.metrics import Timings

__all__ = ("UNTIMED", "CallTimes", "Stamp")


class Stamp:
    """When calls began: the loop's time in the turn that found them suspended; None until there was one."""

    __slots__ = ("time",)

    def __init__(self) -> None:
        self.time: float | None = None


UNTIMED: Final = Stamp()
"""In place of the stamp of a call that has none; it never gets a time."""


class CallTimes:
    """
    The durations of calls.

    Attributes:
        began: the stamps of those calls that have suspended, and ended since the last `settle`; `UNTIMED` of
            those that did not end well.
        succeeded, failed, timed_out: durations of calls that gave a result, raised, and were given up.
    """

    __slots__ = ("began", "failed", "succeeded", "timed_out")

    def __init__(self) -> None:
        self.began: list[Stamp] = []
        self.succeeded = Timings()
        self.failed = Timings()
        self.timed_out = Timings()

    def settle(self, now: float) -> None:
        """The calls in `began`, of which there are some, have ended now."""
        began = self.began
        first = began[0]
        if began[-1] is first and began.count(first) == len(began) and first.time is not None:
            self.succeeded.add(now - first.time, now, len(began))  # all were found by one turn: as usual
        else:
            self.succeeded.add_since((stamp.time for stamp in began if stamp.time is not None), now)
        began.clear()
