"""
Hedge: a second call for the few that take long, and the answer of whichever comes first.

After Dean and Barroso, "The Tail at Scale". A call that has taken longer than most do is asked a second time.
How long that is, is found out from the latencies of late: the 95th percentile, say. Those of answers only:
a service that is down fails at once, and every answer would seem late beside that. Where the second call has
answered, the time since the first one began counts. The extra load is bounded by tokens: each call brings
`at_most` of one, and a second call takes one; a few can be saved up. So a service that has become slow as a
whole is not asked everything twice.

Both calls have the same `call_context()`, and so the same idempotency key.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from typing import Final, TypeVar

from asyncstream.aside import Tasks, heed, in_its_loop
from asyncstream.guards.guard import Call, Guard, end, guards_in, usable_as_decorator
from asyncstream.guards.single_flight import SingleFlight
from asyncstream.validation import Duration, duration_seconds, real_number, refuse

__all__ = ("Hedge", "hedge")

In = TypeVar("In")
Out = TypeVar("Out")

FEWEST: Final = 20
"""Latencies that a percentile is made of, at least; until there are, no call is made a second time."""

REMEMBERED: Final = 500
"""Latencies that a percentile is made of, at most: the last ones."""

ONE: Final = 1 - 1e-9
"""A token, whose parts may not add up exactly."""

SAVED: Final = 10.0
"""Second calls that can be saved up while none is needed."""


class _Latencies:
    """The last latencies, in order; this `share` of them is not larger than `quantile`."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, seconds: float) -> None:
        self._recent.append(seconds)
        insort(self._sorted, seconds)
        if len(self._recent) > REMEMBERED:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    def quantile(self) -> float | None:
        """Seconds; None: not enough is known."""
        known = len(self._sorted)
        return None if known < FEWEST else self._sorted[min(known - 1, int(self._share * known))]


class Hedge(Guard[In, Out]):
    """
    Calls a second time when an answer takes long; the first answer counts, and the other call is cancelled.

    An error of one call is raised only when the other has failed, too, or there is none. Belongs inside
    `retry` and `single_flight`, which would make one call of the two and is refused inside of it, and outside
    of `rate_limit` and other limits, which are to count second calls. Only for what may be done twice: reads,
    or calls with an idempotency key.

    Args:
        fn: the async function that it wraps.
        after: when to call a second time: a percentile of the latencies of late, of answers and not of
            errors, as "p95"; or a duration.
        at_most: how many second calls there may be for each call; above 0, at most 1.
    """

    counted = ("hedged", "hedges_won")

    def __init__(self, fn: Call[In, Out], *, after: str | Duration = "p95", at_most: float = 0.05) -> None:
        super().__init__(fn)
        if any(isinstance(guard, SingleFlight) for guard in guards_in(fn)):
            advice = "it makes one call of the two; put it around: single_flight(hedge(...))"
            raise refuse("fn", "a function without single_flight inside", fn, advice)
        self._latencies: _Latencies | None = None
        self._after: float | None = None
        if isinstance(after, str):
            self._latencies = _Latencies(_share_of(after))
        else:
            self._after = duration_seconds("after", after)
        expected = "a number above 0 and up to 1"
        self._at_most = real_number("at_most", at_most, expected, lambda n: 0 < n <= 1)
        self._tokens = 0.0
        self._losers = Tasks()

    async def invoke(self, value: In) -> Out:
        self._tokens = min(SAVED, self._tokens + self._at_most)
        latencies, began = self._latencies, self._time()
        after = self._after if latencies is None else latencies.quantile()
        answer = await (self._call(value) if after is None else self._called_twice(value, after))
        if latencies is not None:
            latencies.add(self._time() - began)
        return answer

    async def _called_twice(self, value: In, after: float) -> Out:
        """Of the first call, or of a second one after so many seconds."""
        calls = [self._begin(value)]
        try:
            done, running = await asyncio.wait(calls, timeout=after)
            if not done and self._tokens >= ONE:
                self._tokens -= 1
                self._counts["hedged"] += 1
                calls.append(self._begin(value))
                running = set(calls)
            while running:
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for call in calls:  # the first one counts if both have ended
                    if call in done and not call.cancelled() and call.exception() is None:
                        self._counts["hedges_won"] += call is not calls[0]
                        return call.result()
            return calls[0].result()  # raises
        except asyncio.CancelledError:
            running = {call for call in calls if not call.done()}
            if running:  # the place of who is cancelled is given to another call
                await end(*running)
            raise
        finally:
            for call in calls:
                if call.done():
                    heed(call)
                elif in_its_loop(call):
                    # not waited for: one that takes its time, or ignores this, holds up the end only
                    call.cancel()
                    call.add_done_callback(heed)  # it may end with an error of its own
                    self._losers.keep(call)

    def _begin(self, value: In) -> asyncio.Task[Out]:
        async def call() -> Out:
            return await self._call(value)

        return asyncio.create_task(call())

    async def stop(self) -> None:
        while self._losers:  # not to be cancelled again, in what they do to end well
            await asyncio.wait(self._losers)


def _share_of(percentile: str) -> float:
    try:
        share = float(percentile.removeprefix("p")) / 100
    except ValueError:
        share = 0.0
    if not percentile.startswith("p") or not 0 < share < 1:
        raise refuse("after", 'a percentile between p0 and p100, as "p95", or a duration', percentile)
    return share


hedge = usable_as_decorator(Hedge)
