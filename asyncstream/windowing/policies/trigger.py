"""
Trigger policies: when a window ends.

After Storm's policies of the same names, without their threads. A trigger hears of events (`track`) and
of time (`advance`); afterwards it is asked what is `due` until nothing is, and told of each firing
(`reset`, whatever caused it; `fired`, if it was its own). `due_ms` is when it wants to hear of time again.

Time is event time for the two watermark policies (it advances to a watermark w: events at w may still
come) and processing time for `TimeTriggerPolicy` (it advances to the last millisecond that is over). That is
the only difference between the two time triggers, so both end their windows at the same multiples of
the slide, whenever a timer happens to go off.
"""

from __future__ import annotations

from collections import deque

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.windowing.policies.events import EventQueue, Policy
from asyncstream.windowing.policies.eviction import Firing

__all__ = (
    "CountTriggerPolicy",
    "TimeTriggerPolicy",
    "TriggerPolicy",
    "WatermarkCountTriggerPolicy",
    "WatermarkTimeTriggerPolicy",
)


class TriggerPolicy(Policy):
    """Base of the trigger policies: the slide of a window."""

    def room(self) -> int | None:
        """How many events to `track` until one makes a window due; None: only time does, do not track."""
        return None

    def track(self, count: int, now_ms: int) -> None:
        """`count` events, at most `room()`, have arrived at processing time `now_ms`."""

    def due_ms(self, queue: EventQueue) -> int | None:
        """
        The first time, of this policy's kind, to which to `advance` may make a window due, milliseconds since
        the epoch; None: none does without a further event.
        """
        return None

    def advance(self, time_ms: float, queue: EventQueue) -> None:
        """This policy's kind of time has reached `time_ms`."""

    def due(self, queue: EventQueue) -> Firing | None:
        """The next window to end now, if any."""
        return None

    def fired(self, had_events: bool) -> None:
        """What `due` asked for is done; `had_events`: the window was not empty."""

    def reset(self) -> None:
        """A window was fired, on request of this policy or not."""

    def rest(self, queue: EventQueue, now_ms: int) -> Firing | None:
        """The last window of a finite stream that a count slide leaves unfinished, if any."""
        return None

    def last_ms(self, queue: EventQueue, end_ms: float) -> float:
        """Up to when windows fire if nothing follows, all that is due having fired; `end_ms`: time's end."""
        return end_ms


class CountTriggerPolicy(TriggerPolicy):
    """
    At every `slide`-th event since the last window, whatever ended that.

    Args:
        slide: elements between two windows; at least 1.
    """

    remembers = ("_count",)

    def __init__(self, slide: int) -> None:
        self._slide = slide
        self._count = 0
        self._now_ms = 0

    def room(self) -> int:
        return self._slide - self._count

    def track(self, count: int, now_ms: int) -> None:
        self._count += count
        self._now_ms = now_ms

    def due(self, queue: EventQueue) -> Firing | None:
        return Firing(self._now_ms, slide_count=self._slide) if self._count >= self._slide else None

    def reset(self) -> None:
        self._count = 0

    def rest(self, queue: EventQueue, now_ms: int) -> Firing | None:
        if not self._count:
            return None
        return Firing(now_ms, slide_count=self._slide, missing=self._slide - self._count)


class WatermarkTimeTriggerPolicy(TriggerPolicy):
    """
    At every multiple of `slide_ms` that event time has reached, but for spans without events.

    While the last window's events are held, the next window ends one slide later; once none are left,
    at the first multiple that is not before the earliest event.

    Args:
        slide_ms: milliseconds between two window ends.
        only_new: go on only for events that were in no window: for a length that is a count, whose window
            never empties, and which would fire with the same events over and over through a gap.
    """

    remembers = ("_end_ms",)

    def __init__(self, slide_ms: int, only_new: bool = False) -> None:
        self._slide_ms = slide_ms
        self._only_new = only_new
        self._end_ms: int | None = None  # of the next window; None before the first
        self._time_ms: float = MIN_TIMESTAMP

    def due_ms(self, queue: EventQueue) -> int | None:
        return self._next_end_ms(queue)

    def advance(self, time_ms: float, queue: EventQueue) -> None:
        self._time_ms = time_ms

    def due(self, queue: EventQueue) -> Firing | None:
        end = self._next_end_ms(queue)
        if end is None or end > self._time_ms:
            return None
        self._end_ms = end
        return Firing(end, count=queue.count_until(end))

    def fired(self, had_events: bool) -> None:
        # an empty window's end stays: an event with exactly that timestamp is not late and may still come
        if had_events and self._end_ms is not None:
            self._end_ms += self._slide_ms

    def _next_end_ms(self, queue: EventQueue) -> int | None:
        earliest = queue.earliest()
        # of what the last window's end has passed, that which is reason enough for the next one
        held = [event for event in queue.reached if not event.window] if self._only_new else queue.reached
        if held:
            if self._end_ms is not None and not self._only_new:
                return self._end_ms
            # a window that was asked for may have passed the next one's end
            earliest = min(event.timestamp for event in held)
        if earliest is None:
            return None
        aligned = -(-earliest // self._slide_ms) * self._slide_ms
        return aligned if self._end_ms is None else max(self._end_ms, aligned)


class TimeTriggerPolicy(WatermarkTimeTriggerPolicy):
    """
    At every multiple of `slide_ms` that processing time has passed.

    A window whose end lies in the past fires with the end that it was meant to have, so a timer that is
    late makes a window late, but not longer.

    Args:
        slide_ms: milliseconds between two window ends.
        only_new: as of `WatermarkTimeTriggerPolicy`.
    """

    def due_ms(self, queue: EventQueue) -> int | None:
        end = self._next_end_ms(queue)
        return None if end is None else end + 1

    def advance(self, time_ms: float, queue: EventQueue) -> None:
        # this millisecond is not over: events may still arrive in it
        super().advance(time_ms - 1, queue)

    def last_ms(self, queue: EventQueue, end_ms: float) -> float:
        # the next window shows all that is held; later ones would show less and less of the same
        due_ms = self.due_ms(queue)
        return end_ms if due_ms is None else due_ms


class WatermarkCountTriggerPolicy(TriggerPolicy):
    """
    At every `slide`-th event, in order of arrival, among those that the watermark has reached.

    The window ends at the highest timestamp counted so far. Events at or before the last end are not
    counted again; a rest below `slide` is, with the next watermark.

    Args:
        slide: elements between two windows; at least 1.
    """

    remembers = ("_counted_ms",)

    def __init__(self, slide: int) -> None:
        self._slide = slide
        self._counted_ms: int | None = None  # end of the last window; None before the first
        self._ends: deque[int] = deque()

    def due_ms(self, queue: EventQueue) -> int | None:
        return queue.earliest() if len(queue) - len(queue.reached) >= self._slide else None

    def advance(self, time_ms: float, queue: EventQueue) -> None:
        highest = MIN_TIMESTAMP
        after_ms = MIN_TIMESTAMP if self._counted_ms is None else self._counted_ms
        for number, event in enumerate(queue.between(after_ms, time_ms), start=1):
            highest = max(highest, event.timestamp)
            if number % self._slide == 0:
                self._ends.append(highest)

    def due(self, queue: EventQueue) -> Firing | None:
        if not self._ends:
            return None
        self._counted_ms = self._ends.popleft()
        return Firing(self._counted_ms, slide_count=self._slide)

    def rest(self, queue: EventQueue, now_ms: int) -> Firing | None:
        unseen = [event.timestamp for event in queue if not event.window]
        if not unseen:
            return None
        return Firing(max(unseen), slide_count=self._slide)
