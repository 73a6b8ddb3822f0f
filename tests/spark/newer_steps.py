"""
Further steps of drawn pipelines: of two inputs, of a key without windows, and those with several ways out.

Both inputs are parts of one stream. Which of two elements on different inputs is first is open, so what these
steps make does not hang on that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncstream import (
    BroadcastContext,
    KeyedBroadcastProcessFunction,
    KeyedContext,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    Stream,
)
from asyncstream.keyed import Pattern
from asyncstream.state import ListDescriptor, MapDescriptor, ValueDescriptor
from asyncstream.windowing import Count, TumblingWindows
from tests.spark.steps import (
    Event,
    Told,
    answer,
    coarse_key_of,
    difference,
    failure,
    key_of,
    ms,
    weight,
)

__all__ = ("ONE_INPUT", "ORDERED", "TWO_INPUTS", "Newer")

TWO_INPUTS = ("interval", "window_join", "co_group", "connect", "connect_three", "broadcast")

ONE_INPUT = ("dead_letters", "two_windows", "union_of_three")

ORDERED = (
    "as_of",
    "deduplicate_first",
    "deduplicate_last",
    "deduplicate_by_time",
    "top",
    "top_changes",
    "rolling",
    "pattern",
)
"""What looks at the order in which the elements of a key come."""


def is_left(event: Event) -> bool:
    return bool(event["n"] % 2)


def is_right(event: Event) -> bool:
    return not is_left(event)


def is_rare(event: Event) -> bool:
    return bool(event["n"] % 5 == 1)


def is_no_rule(event: Event) -> bool:
    return not is_rare(event)


def pair(two: Any) -> Event:
    """An element of two, one of which may be missing."""
    left, right = two
    some = left or right
    return {
        "key": some["key"],
        "n": weight(left) * 3 + weight(right),
        "parts": [None if one is None else one["n"] for one in two],
    }


def group(both: Any) -> Event:
    parts = [sorted(event["n"] for event in side) for side in (both.left, both.right)]
    return {"key": both.key, "n": weight(parts), "parts": parts, "at": (both.start_ms, both.end_ms)}


def ranking(ranked: Any) -> Event:
    return {"key": ranked.key, "n": weight(ranked.values), "parts": [event["n"] for event in ranked.values]}


def change(changed: Any) -> Event:
    return {**changed.value, "op": changed.kind, "rank": changed.rank}


def match(found: Any) -> Event:
    parts = {name: [event["n"] for event in part] for name, part in found.elements.items()}
    return {"key": found.key, "n": weight(list(parts.values())), "parts": parts, "at": found.end_ms}


def counted(result: Any) -> Event:
    return {"key": result.key, "n": result.value + (result.start_ms or 0) % 97}


@dataclass(frozen=True)
class Newer:
    """
    Attributes:
        keys: "key" or "coarse".
        how: of a join.
        size: in milliseconds.
    """

    kind: str
    keys: str
    how: str
    size: int
    number: int
    is_read: bool
    ordered: bool

    def add(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        return getattr(self, f"_{self.kind}")(stream, told)  # type: ignore[no-any-return]

    def _key_by(self, stream: Stream[Any]) -> Any:
        return stream.key_by(key_of if self.keys == "key" else coarse_key_of)

    def _two(self, stream: Stream[Any]) -> tuple[Any, Any]:
        return self._key_by(stream.filter(is_left)), self._key_by(stream.filter(is_right))

    def _late(self, joined: Any, told: Told) -> None:
        if self.is_read:
            told.add("late_left", joined.late_left)
            told.add("late_right", joined.late_right)

    # ------------------------------------------------------------------ of two inputs

    def _interval(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        left, right = self._two(stream)
        joined = left.join(right, how=self.how).within(ms(self.size), ms(self.number))
        self._late(joined, told)
        return joined.map(pair)  # type: ignore[no-any-return]

    def _window_join(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        left, right = self._two(stream)
        joined = left.join(right, how=self.how).window(TumblingWindows(ms(self.size)))
        self._late(joined, told)
        return joined.map(pair)  # type: ignore[no-any-return]

    def _co_group(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        left, right = self._two(stream)
        joined = left.co_group(right).window(TumblingWindows(ms(self.size)))
        self._late(joined, told)
        return joined.map(group)  # type: ignore[no-any-return]

    def _as_of(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        left, right = self._two(stream)
        joined = left.as_of(right)
        if self.is_read:
            told.add("late", joined.late)
        return joined.map(pair)  # type: ignore[no-any-return]

    def _connect(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        left, right = self._two(stream)
        return self._sided(left.connect(right).process(Both(self.size)), told)

    def _connect_three(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        third = self._key_by(stream.map(answer).filter(is_rare))
        left, right = self._two(stream)
        return self._sided(left.connect(right, third).process(Several(self.size)), told)

    def _broadcast(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        rules, events = stream.filter(is_rare), self._key_by(stream.filter(is_no_rule))
        found = events.connect(rules.broadcast()).process(Ruled(self.size), on_error="route")
        told.add("failed", found.failed.map(failure))
        return self._sided(found, told)

    def _sided(self, results: Any, told: Told) -> Stream[Any]:
        if self.is_read:
            told.add("side", results.side("fours"))
        else:
            results.side("fours").discard()
        return results  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ of one, in the order of a key

    def _deduplicated(self, stream: Stream[Any], keep: Any, by: Any = "arrival") -> Any:
        return self._key_by(stream).deduplicate(keep=keep, by=by)

    def _deduplicate_first(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        return self._deduplicated(stream, "first")  # type: ignore[no-any-return]

    def _deduplicate_last(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        return self._deduplicated(stream, "last")  # type: ignore[no-any-return]

    def _deduplicate_by_time(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        kept = self._deduplicated(stream, "first" if self.number % 2 else "last", "event_time")
        if self.is_read:
            told.add("late", kept.late) if self.number % 2 else None
        return kept  # type: ignore[no-any-return]

    def _top(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        return self._key_by(stream).top(self.number, by=rank).map(ranking)  # type: ignore[no-any-return]

    def _top_changes(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        keyed = self._key_by(stream)
        changes = keyed.top(self.number, by=rank, order="ascending", ranked=True, changes="all")
        return changes.map(change)  # type: ignore[no-any-return]

    def _rolling(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        keyed = self._key_by(stream)
        return keyed.max_by(rank) if self.number % 2 else keyed.min_by(rank)  # type: ignore[no-any-return]

    def _pattern(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        begun = Pattern[Any].begin("left", is_left)
        behind = begun.followed_by("right", is_right) if self.number % 2 else begun.next("right", is_right)
        skip: Any = "none" if self.number < 3 else "past_last_event"
        found = self._key_by(stream).pattern(behind.within(ms(self.size)), skip=skip)
        if self.is_read:
            told.add("late", found.late)
            told.add("timed_out", found.timed_out.map(match))
        return found.map(match)  # type: ignore[no-any-return]

    # ------------------------------------------------------------------ of one, with several ways out

    def _dead_letters(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        found = self._key_by(stream).process(Failing(), on_error="route")
        told.add("failed", found.failed.map(failure))
        return found  # type: ignore[no-any-return]

    def _two_windows(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        keyed = self._key_by(stream)
        both = [keyed.window(TumblingWindows(ms(size))).aggregate(Count()) for size in (self.size, 7)]
        for results in both:
            told.add("late", results.late)
        return both[0].union(both[1]).map(counted)  # type: ignore[no-any-return]

    def _union_of_three(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        parts = stream.filter(is_left), stream.filter(is_rare)
        return self._key_by(stream.map(answer).union(*parts)).process(Failing(fails=False))  # type: ignore[no-any-return]


def rank(event: Event) -> float:
    return difference(event, 0)


TOLD = ValueDescriptor[int]("told")


class _Timed:
    """Collects what comes for a key, and tells it when event time has passed a round number."""

    size: int

    def begin(self, ctx: Any) -> None:
        self.seen = [ctx.state(ListDescriptor[int](f"seen{number}")) for number in range(3)]

    def take(self, number: int, value: Event, ctx: Any) -> None:
        self.seen[number].add(value["n"])
        if ctx.timestamp is not None:
            ctx.register_event_timer(ctx.timestamp - ctx.timestamp % self.size + self.size)
        if value["n"] % 4 == 0:
            ctx.side("fours", {"key": ctx.key, "n": value["n"]})

    def told(self, ctx: Any) -> Event:
        parts = [sorted(part.get()) for part in self.seen]
        for part in self.seen:
            part.clear()
        return {"key": ctx.key, "n": weight(parts), "parts": parts}


class Both(_Timed, KeyedCoProcessFunction[Event, Event, Event]):
    def __init__(self, size: int) -> None:
        self.size = size

    def open(self, ctx: KeyedContext) -> None:
        self.begin(ctx)

    def process_left(self, value: Event, ctx: KeyedContext, out: Any) -> None:
        self.take(0, value, ctx)

    def process_right(self, value: Event, ctx: KeyedContext, out: Any) -> None:
        self.take(1, value, ctx)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        out(self.told(ctx))


class Several(Both):
    def process_input(self, number: int, value: Event, ctx: KeyedContext, out: Any) -> None:
        self.take(number, value, ctx)


class Ruled(_Timed, KeyedBroadcastProcessFunction[Event, Event, Event]):
    """Looks at the rules, and has rules look at keys, only as they were before this watermark."""

    def __init__(self, size: int) -> None:
        self.size = size

    def open(self, ctx: BroadcastContext) -> None:
        self.begin(ctx)
        self.rules = ctx.broadcast_state(MapDescriptor[int, int]("rules"))
        self.left = ctx.state(TOLD)

    def process_element(self, value: Event, ctx: BroadcastContext, out: Any) -> None:
        if value["n"] % 7 == 4:
            raise ValueError(value["n"])
        self.take(0, value, ctx)

    def process_broadcast(self, value: Event, ctx: BroadcastContext, out: Any) -> None:
        n = value["n"]
        self.rules.put(n, 1 + (self.rules.get(n) or 0))
        out({"key": value["key"], "n": n, "rule": True})
        ctx.side("fours", {"key": value["key"], "n": n * 4})
        ctx.apply_to_keyed_state(TOLD, lambda key, told: out({"key": key, "n": told.get(), "rule": n}))
        if n % 11 == 6:
            raise LookupError(n)

    def on_timer(self, timestamp: int, ctx: BroadcastContext, out: Any) -> None:
        told = self.told(ctx)
        self.left.set(told["n"])
        out({**told, "rules": sorted(self.rules.items())})


class Failing(KeyedProcessFunction[Event, Event]):
    """Remembers how much has come, and fails on some elements, before or behind what it has to say."""

    def __init__(self, fails: bool = True) -> None:
        self.fails = fails

    def open(self, ctx: KeyedContext) -> None:
        self.count = ctx.state(ValueDescriptor[int]("count"))

    def process_element(self, value: Event, ctx: KeyedContext, out: Any) -> None:
        self.count.set((self.count.get() or 0) + 1)
        if self.fails and value["n"] % 5 == 2:
            raise ValueError("before")
        out({"key": ctx.key, "n": value["n"]})
        if self.fails and value["n"] % 5 == 3:
            raise LookupError("behind")
