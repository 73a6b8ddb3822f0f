"""The timer queue against a sorted list, with callbacks that register and delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncstream.state import Tables
from asyncstream.state.timer_queue import TimerQueue
from asyncstream.timers import TimerService

Timer = tuple[int, str, int]
Action = tuple[str, Timer]

TIMERS = st.tuples(st.integers(-6, 9), st.sampled_from("ab"), st.integers(0, 1))
ACTIONS = st.tuples(st.sampled_from(["register", "register", "delete"]), TIMERS)
STEPS = st.lists(
    st.one_of(
        ACTIONS, st.tuples(st.sampled_from(["advance", "take"]), st.integers(0, 4)), st.just(("restart", 0))
    )
)


class SortedModel:
    """Looks for the earliest timer each time; of equal times the one registered first."""

    def __init__(self) -> None:
        self.timers: dict[Timer, None] = {}

    def register(self, timestamp: int, key: str, namespace: int) -> None:
        self.timers.setdefault((timestamp, key, namespace))

    def delete(self, timestamp: int, key: str, namespace: int) -> None:
        self.timers.pop((timestamp, key, namespace), None)

    def advance(self, until: int, fire: Callable[[int, str, int], None]) -> None:
        while self.timers:
            timer = min(self.timers, key=lambda timer: timer[0])
            if timer[0] > until:
                return
            del self.timers[timer]
            fire(*timer)

    def take(self, until: int) -> tuple[int, list[tuple[str, int]]] | None:
        earliest = min((timestamp for timestamp, _, _ in self.timers), default=until + 1)
        taken = [timer for timer in self.timers if timer[0] == earliest <= until]
        for timer in taken:
            del self.timers[timer]
        return (earliest, [(key, namespace) for _, key, namespace in taken]) if taken else None

    def register_all(self, timestamp: int, timers: list[tuple[str, int]]) -> None:
        for timer in timers:
            self.register(timestamp, *timer)


@settings(max_examples=400, deadline=None)
@example([("register", (0, "b", 0)), ("register", (0, "a", 0)), ("take", 9), ("take", 9)], [])
@example([("register", (5, "a", 0)), ("advance", 12), ("register", (4, "b", 0)), ("take", 0)], [])
@given(STEPS, st.lists(st.lists(ACTIONS, max_size=3), max_size=12))
def test_fires_as_a_sorted_list_would(steps: list[Any], reactions: list[list[Action]]) -> None:
    def play(queue: Any, restart: Callable[[Any], Any]) -> list[Any]:
        fired: list[Any] = []
        now = -7

        def fire(timestamp: int, key: str, namespace: int) -> None:
            fired.append((now, timestamp, key, namespace))
            if len(fired) <= len(reactions):
                for action, timer in reactions[len(fired) - 1]:
                    getattr(queue, action)(*timer)

        for kind, argument in steps:
            if kind == "advance":
                now += argument
                queue.advance(now, fire)
            elif kind == "take":
                now += argument
                taken = queue.take(now)
                fired.append((now, taken))
                if taken is not None:
                    queue.register_all(now + 2, taken[1])
            elif kind == "restart":
                queue = restart(queue)
            else:
                getattr(queue, kind)(*argument)
        now = 100
        queue.advance(now, fire)
        return fired

    def restored(queue: TimerQueue) -> TimerQueue:
        kept, tables = queues.pop(), Tables()
        other = TimerService(print, print, print, tables=tables)
        tables.restore(kept.snapshot())
        assert list(other.event) == list(queue)
        queues.append(tables)
        return other.event

    queues = [Tables()]
    first = TimerService(print, print, print, tables=queues[0])
    assert play(first.event, restored) == play(SortedModel(), lambda model: model)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 300)), max_size=600))
def test_counts_and_order_survive_sweeping(steps: list[tuple[bool, int]]) -> None:
    queue, model = TimerQueue(), SortedModel()
    for register, timestamp in steps:
        for timers in (queue, model):
            (timers.register if register else timers.delete)(timestamp, "a", 0)
        assert len(queue) == len(model.timers)
    assert [tuple(timer) for timer in queue] == sorted(model.timers)
    assert queue.earliest() == (min(model.timers)[0] if model.timers else None)
