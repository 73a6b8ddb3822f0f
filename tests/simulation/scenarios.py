"""
The stories that the simulation is told for the package itself: pipelines drawn from a seed.

Each has a source or two; an async step in one of the four orders, whose calls are slow, fail, are retried and
time out; keyed windows, or a process function with timers; and a sink or two. `models` says what they give.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

from asyncstream.async_wait import AsyncWaitOptions
from asyncstream.eventtime import BoundedOutOfOrderness
from asyncstream.guards import current_attempt, retry
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.functions import FailedCall
from asyncstream.operators.keyed_context import KeyedContext
from asyncstream.operators.process import KeyedProcessFunction
from asyncstream.pipeline import Pipeline, SideStreams, Stream, WindowResults
from asyncstream.state import MapDescriptor
from asyncstream.testing.simulation import (
    FaultPlan,
    Life,
    PlainSimulatedSink,
    SimulatedFailure,
    SimulatedSink,
    SimulatedSource,
    Simulation,
    simulate,
)
from asyncstream.windowing import SessionWindows, SlidingWindows, TumblingWindows, WindowResult
from asyncstream.windowing.aggregates import Collect, Sum
from tests.simulation.models import COUNT, ORDERS, PANES, SIZE_MS, Event, Shape, model

__all__ = ("draw_events", "draw_options", "draw_plan", "draw_shape", "make_pipeline", "story", "swept")

ATTEMPTS = 4
TIMEOUT = 4.0
"""Seconds; more than all attempts of a call that does not hang can take."""


def swept(seeds: Iterable[int]) -> Iterator[int]:
    """
    The seeds; between some of them, and only there, what stories have left is collected.

    Lives that were cut short leave tasks in cycles. The collector looks at its oldest generation, which has
    all modules, so rarely that thousands pile up, and asyncio walks over all of them when asked for some;
    and the looks at the younger ones, which find little, are a fifth of the time.
    """
    gc.disable()
    try:
        for number, seed in enumerate(seeds):
            if number % 3 == 2:
                gc.collect()
            yield seed
    finally:
        gc.enable()


def story(seed: int, replay: str = "") -> Simulation:
    """
    Draw a pipeline and its input from the seed, and simulate it; `replay` is the command that does so again,
    where it takes more than the seed.
    """
    random = Random(f"{seed} shape")
    shape = draw_shape(random)
    events = draw_events(random, shape)
    return simulate(
        lambda life: make_pipeline(shape, life),
        events,
        model(shape, events),
        seed,
        plan=draw_plan(random, shape),
        replay=replay or f"python -m asyncstream.testing.simulation --story {__name__}:story --seed {seed}",
    )


def draw_shape(random: Random) -> Shape:
    order = random.choice(ORDERS)
    windows = random.choice(("none", "tumbling", "tumbling", "sliding", "session", "timers", "count"))
    if windows == "count" and order in ("unordered", "event_time"):
        windows = "session"  # which elements are counted together is left to chance there
    # out of order, a late element may overtake the watermark that it is late for
    late = windows == "tumbling" and order in ("ordered", "event_time") and random.random() < 0.5
    return Shape(
        order=order,
        windows=windows,
        folded=random.random() < 0.5,
        delay_ms=random.choice((0, 500, 2000)),
        every_ms=random.choice((0, 200, 1000)),
        late=late,
        # otherwise the order in which calls end decides how often a window fires again
        lateness_ms=random.choice((0, 500, 1500)) if late and order == "ordered" else 0,
        sources=1 if late or windows == "count" else random.choice((1, 1, 2)),
        transactional=random.random() < 0.8,
        aside=random.random() < 0.3,
        second=random.random() < 0.3,
        flat=random.random() < 0.3,
        strict=random.random() < 0.2,
    )


def draw_options(random: Random, shape: Shape) -> AsyncWaitOptions:
    """Options of the async step, all of which but the order may be others after a restart."""
    concurrency = random.choice((1, 2, 3, 8))
    return AsyncWaitOptions(
        order=shape.order,
        concurrency=concurrency,
        buffer=random.choice((None, concurrency, concurrency + 2)),
        timeout=TIMEOUT,
        on_timeout="route",
        on_error="fail" if shape.strict else "route",
        isolation=random.choice(("pool", "pool", "task")),
        replay=random.choice(("unfinished", "all")),
    )


def draw_plan(random: Random, shape: Shape) -> FaultPlan:
    return FaultPlan(
        lives=random.choice((2, 4, 7)),
        crash_after=random.choice((0.3, 1.5)),
        crash=random.choice((0.0, 0.02, 0.05)),
        failure=random.choice((0.0, 0.01, 0.03)),
        pause=random.choice((0.05, 0.3)),
        latency=random.choice((0.003, 0.01, 0.05)),
        checkpoint_every=random.choice((0.05, 0.2, 1.0)),
        # where there are no windows that would fire before their time
        drain=0.3 if shape.windows in ("none", "count") else 0.0,
        damage=random.choice((0.0, 0.3, 1.0)),
    )


def draw_events(random: Random, shape: Shape) -> list[Event]:
    keys = "abcd"[: random.randint(1, 4)]
    now_ms, events = 0, []
    for number in range(random.randint(5, 45)):
        now_ms += round(random.expovariate(1 / random.choice((30, 300, 1500))))
        behind = random.randint(0, shape.delay_ms) if random.random() < 0.5 else 0
        if shape.late and random.random() < 0.2:
            behind += random.randint(0, 5000)
        fate = random.choices(("served", "fails", "hangs"), (30, 0 if shape.strict else 2, 1))[0]
        events.append(Event(number, random.choice(keys), max(0, now_ms - behind), fate))
    return events


# ------------------------------------------------------------------ the pipelines


def make_pipeline(shape: Shape, life: Life) -> Pipeline:
    """The pipeline of this shape for one life of the process."""
    life.note("pipeline", shape)

    async def call(event: Event) -> Any:
        if event.fate == "hangs":
            await asyncio.sleep(10 * TIMEOUT)
        await life.latency()
        chance = life.plan.failure if shape.strict else 0.1 if current_attempt().number < ATTEMPTS else 0.0
        if event.fate == "fails" or life.random.random() < chance:
            raise SimulatedFailure(f"service, event {event.id}")
        life.note("served", event.id)
        return [event] if shape.flat else event

    async def again(result: Any) -> Any:
        await life.latency()
        return result

    pipeline = Pipeline("simulated")
    inputs = [
        pipeline.source(
            SimulatedSource(life, life.world.events[number :: shape.sources]), name=f"source {number}"
        ).event_time(
            _at_ms,
            BoundedOutOfOrderness(shape.delay_ms / 1000, every=shape.every_ms / 1000),
            name=f"time {number}",
        )
        for number in range(shape.sources)
    ]
    events = inputs[0].union(*inputs[1:], name="union") if len(inputs) > 1 else inputs[0]
    asked: Stream[Any] = events.key_by(_key) if shape.order == "per_key" else events
    step = asked.async_flat_map if shape.flat else asked.async_map
    options = draw_options(life.random, shape)
    life.note("options", options)
    guarded = retry(
        call, attempts=ATTEMPTS, wait_max=0.2, on=SimulatedFailure, random=life.random.random, clock=life
    )
    served = step(call if shape.strict else guarded, name="call", **options)
    results, *others = _windowed(shape, served)
    if shape.second:
        results = results.async_map(again, name="again", order="ordered", concurrency=2)
    if not shape.strict:
        others.append(served.failed.map(_failed, name="failed"))
    timed_out = served.timed_out.map(_timed_out, name="timed out")
    rest = timed_out.union(*others, name="rest") if others else timed_out
    sink = SimulatedSink if shape.transactional else PlainSimulatedSink
    if shape.aside:
        rest.to(sink(life, "aside"), name="aside")
    else:
        results = results.union(rest, name="everything")
    results.to(sink(life), name="sink")
    return pipeline


def _windowed(shape: Shape, served: Stream[Event]) -> tuple[Stream[Any], ...]:
    keyed = served.key_by(_key)
    if shape.windows == "none":
        return (served.map(_id, name="ids"),)
    if shape.windows == "timers":
        late: SideStreams[Any] = keyed.process(_Buckets(), name="windows")
        return (late,)
    if shape.windows == "count":
        return (keyed.count_window(COUNT).collect(name="windows").map(_counted, name="counted"),)
    size = SIZE_MS / 1000
    assigner = {
        "tumbling": TumblingWindows(size),
        "sliding": SlidingWindows(size, size / PANES),
        "session": SessionWindows(size),
    }[shape.windows]
    windowed = keyed.window(assigner).allowed_lateness(shape.lateness_ms / 1000)
    windows: WindowResults[WindowResult]
    if not shape.folded:
        windows = windowed.collect(name="windows")
    elif shape.windows == "sliding":
        windows = windowed.aggregate(Sum(_bit), name="windows")
    else:
        windows = windowed.aggregate(Collect(), name="windows")
    return windows.map(_window, name="results"), windows.late.map(_late, name="late")


class _Buckets(KeyedProcessFunction[Event, Any]):
    """Tumbling windows by hand: a bucket for each second, and a timer for its end."""

    def open(self, ctx: KeyedContext) -> None:
        self._buckets = ctx.state(MapDescriptor[int, list[int]]("buckets"))

    def process_element(self, value: Event, ctx: KeyedContext, out: Emitter[Any]) -> None:
        end_ms = (value.at_ms // SIZE_MS + 1) * SIZE_MS
        self._buckets.put(end_ms, [*(self._buckets.get(end_ms) or ()), value.id])
        ctx.register_event_timer(end_ms - 1)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        end_ms = timestamp + 1
        ids = self._buckets.get(end_ms)
        if ids is None:
            raise AssertionError(f"a timer of key {ctx.key} fired twice, or its state is gone: {timestamp}")
        self._buckets.remove(end_ms)
        out((ctx.key, end_ms - SIZE_MS, end_ms, sorted(ids)))


def _key(event: Event) -> str:
    return event.key


def _at_ms(event: Event) -> int:
    return event.at_ms


def _id(event: Event) -> int:
    return event.id


def _bit(event: Event) -> int:
    """A number of which sums tell all their parts."""
    return 1 << event.id


def _window(result: WindowResult) -> Any:
    if isinstance(result.value, int):
        ids = [number for number in range(result.value.bit_length()) if result.value >> number & 1]
    else:
        ids = sorted(event.id for event in result.value)
    return result.key, result.start_ms, result.end_ms, ids


def _counted(result: WindowResult) -> Any:
    return result.key, [event.id for event in result.value]


def _late(event: Event) -> Any:
    return "late", event.id


def _failed(failed: FailedCall) -> Any:
    return "failed", failed.value.id


def _timed_out(failed: FailedCall) -> Any:
    return "timed out", failed.value.id
