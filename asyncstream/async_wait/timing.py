"""
How long the calls of an async step take, by how they end.

A call that ended well costs one `append` of the time at which it began; the turn of the loop that follows
looks at the clock once, for all of them. A call that never suspended has taken no time that a clock would
show: there is none of it here.
"""

from __future__ import annotations

from asyncstream.metrics import Timings

__all__ = ("CallTimes",)


class CallTimes:
    """
    The durations of calls.

    Attributes:
        began: loop times at which those calls began that have ended well since the last `settle`.
        succeeded, failed, timed_out: durations of calls that gave a result, raised, and were given up.
    """

    __slots__ = ("began", "failed", "succeeded", "timed_out")

    def __init__(self) -> None:
        self.began: list[float] = []
        self.succeeded = Timings()
        self.failed = Timings()
        self.timed_out = Timings()

    def settle(self, now: float) -> None:
        """The calls in `began` have ended now."""
        self.succeeded.add_since(self.began, now)
        self.began.clear()
