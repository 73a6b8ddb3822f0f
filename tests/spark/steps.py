"""
The steps that drawn pipelines are made of: small, and telling of all that could differ between two runs.

A step behind which nobody promises an order is told so (`ordered`), and then shows nothing of it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from asyncstream import (
    AsyncFunction,
    FailedCall,
    KeyedContext,
    KeyedProcessFunction,
    Stream,
)
from asyncstream.pipeline.keyed import WindowedStream
from asyncstream.state import ListDescriptor, MapDescriptor, ValueDescriptor
from asyncstream.windowing import (
    Collect,
    Count,
    CountDistinct,
    Evictor,
    First,
    Last,
    Max,
    Mean,
    Min,
    ProcessWindowFunction,
    Sum,
    Trigger,
    WindowAssigner,
    WindowContext,
    WindowResult,
)
from asyncstream.windowing.policies import PolicyWindow

KEYS = (0, 1, True, 1.0, 2, -1, 2.5, None, "a", "", b"a", ("a", 1), ("a", True), (None, ("x",)), 10**20)
"""Some of them are equal, and so are one key."""

Event = dict[str, Any]
"""key, n and ts; what a row becomes at once, and what every step makes."""


def ms(number: int) -> timedelta:
    return timedelta(milliseconds=number)


def event_of(row: dict[str, Any]) -> Event:
    return {"key": KEYS[row["k"]], "n": row["n"], "ts": row["ts"]}


def time_of(event: Event) -> int:
    time: int = event["ts"]
    return time


def key_of(value: Any) -> Any:
    if isinstance(value, FailedCall):
        value = value.value
    return value["key"] if isinstance(value, dict) else value.key


def coarse_key_of(value: Any) -> int:
    """The same for equal keys."""
    return KEYS.index(key_of(value)) % 3


def weight(value: Any) -> int:
    """A number that says something of all that is in a value, whatever its order."""
    if isinstance(value, dict):
        return int(value["n"]) if "key" in value else sum(map(weight, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(weight, value))
    return int(value or 0)


def difference(one: Any, other: Any) -> float:
    return abs(weight(one) - weight(other)) % 10


class Told:
    """
    Collects the outputs of a pipeline.

    Attributes:
        outputs: by name.
        ordered: names of those that have the elements of a key in an order that is promised.
    """

    def __init__(self) -> None:
        self.outputs: dict[str, Stream[Any]] = {}
        self.ordered: set[str] = set()

    def add(self, tag: str, stream: Stream[Any], *, ordered: bool = False) -> None:
        name = f"{tag}_{len(self.outputs)}"
        self.outputs[name] = stream.map(partial(line_of, name))
        if ordered:
            self.ordered.add(name)


def line_of(name: str, value: Any) -> str:
    return f"{name}\t{KEYS.index(key_of(value))}\t{shown(value)!r}"


def shown(value: Any) -> Any:
    """With a number for the key: which of the equal ones stands for all depends on which came first."""
    if isinstance(value, list):
        return [shown(part) for part in value]
    if isinstance(value, WindowResult):
        return value._replace(key=KEYS.index(value.key), value=shown(value.value))
    if isinstance(value, dict):
        return {name: KEYS.index(part) if name == "key" else shown(part) for name, part in value.items()}
    return value


class Ask(AsyncFunction[Event, Any]):
    """Some calls fail, some are slow, and the others take their time, or none."""

    def __init__(self, step: Plain) -> None:
        self.step = step
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def invoke(self, value: Event) -> Any:
        assert self.is_open
        step, n = self.step, value["n"]
        if step.waits == "ticks":
            for _ in range(n % 4):
                await asyncio.sleep(0)
        elif step.waits == "sleeps":
            await asyncio.sleep(n * 7 % 11 / 100)
        if step.fails(n):
            raise LookupError(n)
        if step.is_slow(n):
            await asyncio.sleep(3600)
        return answers(value) if step.kind == "async_flat_map" else answer(value)


def answer(event: Event) -> Event:
    return {**event, "n": event["n"] * 2 + 1}


def answers(event: Event) -> list[Event]:
    return [{**event, "n": event["n"] * 3 + part} for part in range(event["n"] % 3)]


def is_kept(event: Event) -> bool:
    return bool(event["n"] % 4)


def stand_in(event: Event) -> Event:
    return {**event, "n": 0}


def stand_ins(event: Event) -> list[Event]:
    return [stand_in(event)]


def failure(call: FailedCall) -> Event:
    return {**call.value, "n": -call.value["n"], "error": type(call.error).__name__}


@dataclass(frozen=True)
class Plain:
    """
    A step that needs no key, or an async one in the order of a key.

    Attributes:
        waits: "never", "ticks" or "sleeps".
        on_error: "skip", "route", "back" to join the results; None: no call fails.
        on_timeout: in the same way, or "stand_in"; None: there is no timeout.
    """

    kind: str
    order: str = "ordered"
    waits: str = "never"
    on_error: str | None = None
    on_timeout: str | None = None
    concurrency: int = 4

    def fails(self, n: int) -> bool:
        return self.on_error is not None and n % 5 == 2

    def is_slow(self, n: int) -> bool:
        return self.on_timeout is not None and n % 7 == 3

    @property
    def joins(self) -> bool:
        return "back" in (self.on_error, self.on_timeout)

    def results(self, event: Event) -> list[Event]:
        """What the step makes of an element."""
        if self.kind == "filter":
            return [event] if is_kept(event) else []
        if self.kind.startswith("async"):
            for happens, way in ((self.fails, self.on_error), (self.is_slow, self.on_timeout)):
                if happens(event["n"]):
                    made = stand_in if way == "stand_in" else lambda event: {**event, "n": -event["n"]}
                    return [made(event)] if way in ("back", "stand_in") else []
        return answers(event) if self.kind.endswith("flat_map") else [answer(event)]

    def add(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        if self.kind == "map":
            return stream.map(answer)
        if self.kind == "filter":
            return stream.filter(is_kept)
        if self.kind == "flat_map":
            return stream.flat_map(answers)
        options: Any = {"order": self.order, "concurrency": self.concurrency}
        ways: dict[str, Any] = {"back": "route"}
        if self.on_error is not None:
            options["on_error"] = ways.get(self.on_error, self.on_error)
        if self.on_timeout is not None:
            ways["stand_in"] = stand_ins if self.kind == "async_flat_map" else stand_in
            options |= {"timeout": 1, "on_timeout": ways.get(self.on_timeout, self.on_timeout)}
        before = stream.key_by(key_of) if self.order == "per_key" else stream
        add = before.async_map if self.kind == "async_map" else before.async_flat_map
        results = add(Ask(self), **options)
        stream = results
        for way, tag in ((self.on_error, "failed"), (self.on_timeout, "timed_out")):
            if way == "route":
                told.add(tag, getattr(results, tag).map(failure))
            elif way == "back":
                stream = stream.union(getattr(results, tag).map(failure))
        return stream


def event_of_result(result: Any) -> Event:
    """What follows a keyed step is like what came before it."""
    if isinstance(result, dict):
        return {"key": result["key"], "n": result["n"]}
    return {"key": result.key, "n": weight(result.value) + (result.start_ms or 0) % 97}


def in_no_order(result: Any) -> Any:
    """With a list sorted, where its order is not promised."""
    return result._replace(value=sorted(result.value, key=lambda value: repr(shown(value))))


class Firings(ProcessWindowFunction[Any]):
    """Numbers the firings of a window and of its key."""

    def __init__(self, merging: bool, first: bool) -> None:
        self.merging = merging
        self.first = first

    def process(self, key: Any, values: Any, ctx: WindowContext, out: Any) -> None:
        of_key = ctx.key_state(ValueDescriptor[int]("firings"))
        of_key.set((of_key.get() or 0) + 1)
        count = None
        if not self.merging:
            of_window = ctx.window_state(ValueDescriptor[int]("firings"))
            of_window.set((of_window.get() or 0) + 1)
            count = of_window.get()
        values = list(values)
        ctx.side("firings", {"key": key, "n": of_key.get()})
        watermark = ctx.watermark if self.first else None
        out(
            {
                "key": key,
                "n": weight(values),
                "values": values,
                "firings": (of_key.get(), count),
                "w": watermark,
            }
        )


@dataclass(frozen=True)
class Windowed:
    """Windows over time, or over all time."""

    keys: str
    assigner: WindowAssigner
    trigger: Trigger | None
    evictor: Evictor | None
    lateness: int
    function: str
    late: bool
    ordered: bool
    first: bool

    def add(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        if self.keys == "none":
            windows: WindowedStream[Any, Any] = stream.window_all(self.assigner)
        else:
            windows = stream.key_by(key_of if self.keys == "key" else coarse_key_of).window(self.assigner)
        if self.trigger is not None:
            windows = windows.trigger(self.trigger)
        if self.evictor is not None:
            windows = windows.evictor(self.evictor)
        if self.lateness:
            windows = windows.allowed_lateness(ms(self.lateness))
        return computed(windows, self, told)


def computed(windows: WindowedStream[Any, Any], step: Windowed | Counted, told: Told) -> Stream[Any]:
    if step.function == "sums":
        parts: Any = {
            "n": Count(),
            "total": Sum(weight),
            "mean": Mean(weight),
            "low": Min(weight),
            "high": Max(weight),
            "kinds": CountDistinct(weight),
        }
        results: Any = windows.aggregate(**parts)
    elif step.function == "count":
        results = windows.aggregate(Count())
    elif step.function == "places":
        results = windows.aggregate(first=First(weight), last=Last(weight), all=Collect(weight))
    elif step.function == "reduce":
        results = windows.reduce(joined)
    elif step.function == "process":
        merging = isinstance(step, Windowed) and step.assigner.merging
        results = windows.process(Firings(merging, step.first))
        told.add("firings", results.side("firings"), ordered=step.ordered)
    else:
        results = windows.collect()
    if isinstance(step, Windowed) and step.late:
        told.add("late", results.late, ordered=step.ordered)
    stream: Stream[Any] = results
    if step.function == "collect" and not step.ordered:
        stream = stream.map(in_no_order)
    return stream


def gap_of(event: Event) -> timedelta:
    return ms(5 + event["n"] % 4 * 5)


def joined(one: Event, other: Event) -> Event:
    return {"key": one["key"], "n": one["n"] * 2 + other["n"]}


@dataclass(frozen=True)
class Counted:
    """Windows over numbers of elements."""

    keys: str
    size: int
    slide: int | None
    function: str
    first: bool
    ordered: bool = True

    def add(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        keyed = stream.key_by(key_of if self.keys == "key" else coarse_key_of)
        return computed(keyed.count_window(self.size, self.slide), self, told)


@dataclass(frozen=True)
class Policy:
    """Windows after Storm."""

    keys: str
    time: str
    length: Any
    slide: Any
    ordered: bool = True

    def add(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        from_ = stream
        if self.keys != "none":
            from_ = stream.key_by(key_of if self.keys == "key" else coarse_key_of)
        options: Any = {"time": self.time, "function": partial(of_policy_window, self.keys)}
        results = from_.policy_window(length=self.length, slide=self.slide, **options)
        told.add("expired", results.expired, ordered=True)
        return results


def of_policy_window(keys: str, window: PolicyWindow[Event]) -> Event:
    some = (window.values or window.expired)[0]
    key = None if keys == "none" else (key_of if keys == "key" else coarse_key_of)(some)
    parts = [[event["n"] for event in part] for part in (window.values, window.new, window.expired)]
    return {"key": key, "n": weight(window.values), "parts": parts}


@dataclass(frozen=True)
class Processed:
    """A process function with timers, state and a side output."""

    keys: str
    period: int
    shift: int
    chained: bool
    deletes: bool
    read: bool
    ordered: bool
    first: bool

    def add(self, stream: Stream[Any], told: Told) -> Stream[Any]:
        results = stream.key_by(key_of if self.keys == "key" else coarse_key_of).process(Alarm(self))
        if self.read:
            told.add("side", results.side("fours"), ordered=self.ordered)
        else:
            results.side("fours").discard()
        return results


class Alarm(KeyedProcessFunction[Event, Event]):
    """Collects what comes for a key, and tells it when event time has passed a round number."""

    def __init__(self, step: Processed) -> None:
        self.step = step

    def open(self, ctx: KeyedContext) -> None:
        self.seen = ctx.state(ListDescriptor[int]("seen"))
        self.rounds = ctx.state(MapDescriptor[int, int]("rounds"))
        self.left = ctx.state(ValueDescriptor[int]("left"))

    def process_element(self, value: Event, ctx: KeyedContext, out: Any) -> None:
        step, n = self.step, value["n"]
        self.seen.add(n)
        if ctx.timestamp_or_none is not None:
            time = ctx.timestamp - ctx.timestamp % step.period + step.period - step.shift
            ctx.register_event_timer(time)  # may be due already
            self.rounds.put(time, n)
            if step.deletes and n % 3 == 0:
                ctx.delete_event_timer(time - step.period)
        self.left.set(3)
        if n % 4 == 0:
            ctx.side("fours", {"key": ctx.key, "n": n})
        if n % 3 == 1:
            seen = len(list(self.seen.get())) if step.ordered else None
            out({"key": ctx.key, "n": n, "seen": seen, "w": ctx.watermark if step.first else None})

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Any) -> None:
        seen, step = list(self.seen.get()), self.step
        last = self.rounds.get(timestamp) if step.ordered else None
        out({"key": ctx.key, "n": sum(seen), "seen": seen if step.ordered else sorted(seen), "last": last})
        self.seen.clear()
        left = self.left.get() or 0
        if step.chained and left:
            self.left.set(left - 1)
            ctx.register_event_timer(timestamp + step.period * (left % 3))  # of 3 also: once more at once


Step = Plain | Windowed | Counted | Policy | Processed
