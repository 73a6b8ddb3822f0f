"""
One sequence of windows over one sequence of events: an eviction and a trigger policy, and what they share.

After Storm's WindowManager. Events are held in order of arrival. Whenever the trigger policy says that a
window ends, the eviction policy parts the events held; those that expire are told to `on_expiry`, then
the window, if it has any events, to `on_window`. An event that expires may be let go by its keeper
elsewhere; its `window` number tells whether it has ever been in a window.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any, Final

from asyncstream.state import detached
from asyncstream.state.rows import run_through
from asyncstream.windowing.policies.events import Event, EventQueue
from asyncstream.windowing.policies.eviction import Decision, EvictionPolicy, Firing
from asyncstream.windowing.policies.trigger import TriggerPolicy

__all__ = ("WindowManager", "WindowListener")

COMPACT_EVERY: Final = 100
"""Events added without a firing before the expired ones are looked for."""

WindowListener = Callable[[list[Event], list[Event], list[Event], int], None]
"""Told of each window: its events, the new ones among them, those expired since the last, its end in ms."""


class WindowManager:
    """
    Holds events and fires windows.

    Args:
        eviction: the length of the windows; belongs to this manager alone.
        trigger: their slide; belongs to this manager alone.
        on_window: told of each window that is not empty; the lists are lent for the call only.
        on_expiry: told of the events that leave, in order of arrival, before the window at which they do.
        started: if False, nothing fires and the trigger policy does not count before `start`.
    """

    def __init__(
        self,
        eviction: EvictionPolicy,
        trigger: TriggerPolicy,
        on_window: WindowListener,
        on_expiry: Callable[[list[Event]], None] = lambda expired: None,
        started: bool = True,
    ) -> None:
        self.queue = EventQueue()
        self._eviction = eviction
        self._trigger = trigger
        self._on_window = on_window
        self._on_expiry = on_expiry
        self._is_started = started
        self._expired: list[Event] = []  # since the last window that was not empty
        self._window = 1  # number of the last firing, empty ones included; 1 stands before the first
        self._added = 0  # since the last look for expired events

    def start(self) -> None:
        """From now on windows fire."""
        self._is_started = True

    def add(self, values: Sequence[Any], timestamps: Sequence[int], now_ms: int) -> None:
        """
        Take in elements in order of arrival.

        Args:
            values: the elements.
            timestamps: their times, milliseconds since the epoch; as many.
            now_ms: processing time, milliseconds since the epoch.
        """
        total = len(values)
        taken = 0
        while taken < total:
            # as many as can come before the next look
            chunk = min(total - taken, COMPACT_EVERY - self._added) if self._eviction.compacts else total
            room = self._trigger.room() if self._is_started else None
            if room is not None and room < chunk:
                chunk = room
            self.queue.add(values[taken : taken + chunk], timestamps[taken : taken + chunk])
            taken += chunk
            self._eviction.track(chunk)
            self._added += chunk - 1
            if room is not None:
                self._trigger.track(chunk, now_ms)
                run_through(self._firing_due(now_ms))
            self._added += 1  # after Storm: one that has fired a window is the first since
            if self._added >= COMPACT_EVERY and self._eviction.compacts:
                self._compact(now_ms)

    def advance(self, time_ms: float, now_ms: int) -> None:
        """Run through all of `advancing`."""
        run_through(self.advancing(time_ms, now_ms))

    def advancing(self, time_ms: float, now_ms: int) -> Iterator[None]:
        """
        The trigger's kind of time has reached `time_ms`, or all: fires what is due, in slices; `now_ms` is
        processing time.
        """
        if self._is_started:
            self._trigger.advance(time_ms, self.queue)
            yield from self._firing_due(now_ms)

    def due_ms(self) -> int | None:
        """
        The first time to which `advancing` may fire a window, milliseconds since the epoch; None: it does not
        without a further element.
        """
        return self._trigger.due_ms(self.queue)

    def fire(self, firing: Firing, now_ms: int) -> bool:
        """
        End a window now, whatever the trigger policy says.

        Returns:
            Whether there was any event in it.
        """
        eviction, queue = self._eviction, self.queue
        eviction.set_context(firing)
        if eviction.reads_time:
            queue.reach(firing.reference_ms)
        else:
            queue.reach_all()
        parts = eviction.partition(queue.reached, now_ms)
        queue.reached = parts.held
        self._added = 0
        self._window += 1
        self._expire(parts.expired)
        window = parts.window
        if window:
            number = self._window
            new = [event for event in window if event.window != number - 1]
            for event in window:
                event.window = number
            expired, self._expired = self._expired, []
            self._on_window(window, new, expired, firing.reference_ms)
        else:
            # those that no window showed are told by on_expiry alone, or a stream of holes would pile up here
            self._expired = [event for event in self._expired if event.window]
        self._trigger.reset()
        return bool(window)

    def closing(self, end_ms: float, now_ms: int) -> Iterator[None]:
        """
        Nothing follows: fires what is open, in slices, and lets everything expire.

        Args:
            end_ms: the trigger's kind of time at the end of time, behind which nothing lies.
            now_ms: processing time.
        """
        yield from self.advancing(self._trigger.last_ms(self.queue, end_ms), now_ms)
        unseen = -1
        while self._unseen() != unseen and (rest := self._trigger.rest(self.queue, now_ms)):
            unseen = self._unseen()
            self.fire(rest, now_ms)
            yield
        self._expire(self.queue.clear())

    def snapshot(self) -> dict[str, Any]:
        """What `restore` needs to go on from here."""
        return {
            "queue": self.queue.snapshot(),
            "eviction": self._eviction.snapshot(),
            "trigger": self._trigger.snapshot(),
            "expired": [event.fields() for event in self._expired],
            "window": self._window,
            "added": self._added,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up the state that `snapshot` gave."""
        self.queue.restore(state["queue"])
        self._eviction.restore(state["eviction"])
        self._trigger.restore(state["trigger"])
        self._expired = [Event(*fields) for fields in state["expired"]]
        self._window = state["window"]
        self._added = state["added"]

    def __deepcopy__(self, memo: Any) -> WindowManager:
        policies = deepcopy(self._eviction), deepcopy(self._trigger)
        copied = WindowManager(*policies, self._on_window, self._on_expiry, self._is_started)
        copied.restore(detached(self.snapshot()))
        return copied

    def _firing_due(self, now_ms: int) -> Iterator[None]:
        while (firing := self._trigger.due(self.queue)) is not None:
            self._trigger.fired(self.fire(firing, now_ms))
            yield

    def _compact(self, now_ms: int) -> None:
        """Let go of the expired events at the head of the queue, so that a long slide does not hold them."""
        self._added = 0
        evict = self._eviction.evict
        self._expire(self.queue.drop_while(lambda e: evict(e.timestamp, now_ms) is Decision.EXPIRE))

    def _unseen(self) -> int:
        """How many of the events held have been in no window."""
        return sum(1 for event in self.queue if not event.window)

    def _expire(self, events: list[Event]) -> None:
        if events:
            self._expired += events
            self._on_expiry(events)
