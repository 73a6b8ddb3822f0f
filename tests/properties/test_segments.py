"""
Segments of a pipeline in which two streams meet, crashed anywhere, against themselves uninterrupted.

What joins, connects and keyed steps remember is kept in checkpoints: a segment that is restarted before any
step of a script gives what it gives without that, in the same order; and elements in one batch what they
give one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import (
    Emitter,
    KeyedBroadcastProcessFunction,
    KeyedContext,
    KeyedCoProcessFunction,
    Pattern,
    SessionWindows,
    SlidingWindows,
    Stream,
    TumblingWindows,
)
from asyncstream.state import ListDescriptor, MapDescriptor
from asyncstream.testing import harness
from asyncstream.testing.segment import Element

Step = tuple[Any, ...]
Binary = Callable[[Stream[Any], Stream[Any]], Stream[Any]]


def ms(count: int) -> timedelta:
    return timedelta(milliseconds=count)


def key_of(value: Any) -> Any:
    return value[0]


class Waiting(KeyedCoProcessFunction[Any, Any, Any]):
    """Gives what came for a key since, on both inputs, 5 ms after each element."""

    def open(self, ctx: KeyedContext) -> None:
        self.held = ctx.state(ListDescriptor[int]("held"))

    def process_left(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.held.add(value[1])
        ctx.register_event_timer(ctx.timestamp + 5)

    def process_right(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.held.add(-value[1])
        ctx.delete_event_timer(ctx.timestamp + 5)
        ctx.register_event_timer(ctx.timestamp + 6)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out((ctx.key, list(self.held.get())))
        self.held.clear()


class Known(KeyedBroadcastProcessFunction[Any, Any, Any]):
    """Gives each element with what was last broadcast of its key."""

    def open(self, ctx: Any) -> None:
        self.rules = ctx.broadcast_state(MapDescriptor[str, int]("rules"))

    def process_element(self, value: Any, ctx: Any, out: Emitter[Any]) -> None:
        out((ctx.key, value[1], self.rules.get(value[0])))

    def process_broadcast(self, value: Any, ctx: Any, out: Emitter[Any]) -> None:
        self.rules.put(value[0], value[1])


def joined(how: Any) -> Binary:
    return lambda one, other: one.key_by(key_of).join(other.key_by(key_of), how=how).within(ms(4), ms(3))


def in_windows(how: Any) -> Binary:
    return lambda one, other: (
        one.key_by(key_of).join(other.key_by(key_of), how=how).window(SessionWindows(ms(4)))
    )


BINARY: dict[str, Binary] = {
    "union": lambda one, other: one.union(other),
    "join": joined("inner"),
    "full join": joined("full"),
    "join in windows": in_windows("inner"),
    "left join in windows": in_windows("left"),
    "co_group": lambda one, other: (
        one.key_by(key_of).co_group(other.key_by(key_of)).window(SlidingWindows(ms(9), ms(4)))
    ),
    "as_of": lambda one, other: one.key_by(key_of).as_of(other.key_by(key_of)),
    "latest": lambda one, other: one.key_by(key_of).as_of(other.key_by(key_of), latest=True),
    "connect": lambda one, other: one.key_by(key_of).connect(other.key_by(key_of)).process(Waiting()),
    "broadcast": lambda one, other: one.key_by(key_of).connect(other.broadcast()).process(Known()),
    "lookup": lambda one, other: one.key_by(key_of).lookup(other.key_by(key_of).as_table()),
}

KEYED: dict[str, Callable[[Any], Stream[Any]]] = {
    "nothing": lambda keyed: keyed,
    "first": lambda keyed: keyed.deduplicate(by="event_time", within=ms(6)),
    "last": lambda keyed: keyed.deduplicate(keep="last", changes="all"),
    "top": lambda keyed: keyed.top(2, lambda value: value[1], changes="all"),
    "reduce": lambda keyed: keyed.reduce(lambda one, other: (one[0], one[1] * 3 + other[1]), ttl=ms(5)),
    "pattern": lambda keyed: keyed.pattern(
        Pattern[Any]
        .begin("even", lambda value: value[1] % 2 == 0)
        .followed_by("odd", lambda value: value[1] % 2 == 1)
        .within(ms(12))
    ),
    "windows": lambda keyed: keyed.window(TumblingWindows(ms(7))).allowed_lateness(ms(2)).collect(),
    "counted": lambda keyed: keyed.count_window(2).collect(),
    "policy": lambda keyed: keyed.policy_window(length=3, slide=ms(4), watermark_interval=ms(2)),
}


def number_of(value: Any) -> tuple[Any, int]:
    """(key, number) of whatever comes out of a join, so that keyed steps can follow it."""
    while isinstance(value, tuple) and not isinstance(value[0], str):
        value = value[0] if value[0] is not None else value[1]
    return value[0], sum(repr(value).encode()) % 100


LONGEST = 25
"""Steps of a script."""

EVERYWHERE = st.just(frozenset(range(LONGEST)))


@st.composite
def scripts(draw: st.DrawFn) -> list[Step]:
    """Elements about the watermark of their input, watermarks that rise, idleness, the clock."""
    script: list[Step] = []
    watermarks, idle, now = [0, 0], [False, False], 0
    for kind in draw(st.lists(st.sampled_from(["el"] * 6 + ["wm"] * 3 + ["idle", "pt"]), max_size=LONGEST)):
        number = draw(st.integers(0, 1))
        if kind == "el":
            stamps = draw(st.lists(st.integers(-5, 9), min_size=1, max_size=3))
            batch = [(draw(st.sampled_from("ab")), watermarks[number] + stamp) for stamp in stamps]
            script.append(("el", number, batch))
        elif kind == "idle":
            idle[number] = not idle[number]
            script.append(("idle", number, idle[number]))
        elif kind == "wm":
            if idle[number]:
                idle[number] = False
                script.append(("idle", number, False))
            watermarks[number] += draw(st.integers(1, 6))
            script.append(("wm", number, watermarks[number]))
        else:
            now += draw(st.integers(1, 4))
            script.append(("pt", 0, now))
    return script


def play(
    make: Callable[[Stream[Any], Stream[Any]], Stream[Any]],
    script: list[Step],
    *,
    restarts: frozenset[int] = frozenset(),
    batched: bool = False,
) -> list[Any]:
    with harness(make) as tested:
        for place, (kind, number, what) in enumerate(script):
            if place in restarts:
                tested.restart()
            if kind == "el":
                for batch in [what] if batched else [[one] for one in what]:
                    tested.push_all(batch, at=lambda value: value[1], input=number)
            elif kind == "wm":
                tested.advance(what, input=number)
            elif kind == "idle":
                tested.set_idle(what, input=number)
            else:
                tested.advance_clock(what)
        tested.end()
        return tested.collect_all()


def in_order(emitted: list[Any]) -> list[Any]:
    """Elements between two watermarks in no order."""
    steps: list[Any] = [[]]
    for one in emitted:
        if isinstance(one, Element):
            steps[-1].append(repr(one))
        else:
            steps += [one, []]
    return [sorted(step) if isinstance(step, list) else step for step in steps]


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(KEYED)), scripts(), EVERYWHERE | st.frozensets(st.integers(0, LONGEST)))
def test_a_segment_that_crashes_anywhere_gives_what_it_gives_uninterrupted(
    then: str, script: list[Step], restarts: frozenset[int]
) -> None:
    for name, meet in BINARY.items():

        def make(one: Stream[Any], other: Stream[Any], meet: Binary = meet) -> Stream[Any]:
            met = meet(one, other).map(number_of, name="numbers")
            return KEYED[then](met.key_by(key_of)).map(repr, name="shown")

        expected = play(make, script)
        assert play(make, script, restarts=restarts) == expected, name
        if then == "nothing":  # else which results of a batch are counted together hangs on their order
            assert in_order(play(make, script, batched=True)) == in_order(expected), name
