"""What one watermark makes a step do comes in slices: no sink is flooded, and results stay as they are."""

# ruff: noqa: PT012 - what a job raises comes out of its block

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    Checkpoints,
    Count,
    DiskState,
    KeyedContext,
    KeyedProcessFunction,
    MemoryStore,
    Pattern,
    Pipeline,
    SessionWindows,
    SlidingWindows,
    Stream,
    Sum,
    TumblingWindows,
    UserFunctionError,
)
from asyncstream.connectors import SourceBatch
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.emitting import BURST, Emitter
from asyncstream.operators.flow import Gate
from asyncstream.operators.journey import Journeys
from asyncstream.operators.ports import MultiInput
from asyncstream.runtime.aio import pacing, writing
from asyncstream.runtime.aio.pacing import Entrance, Pace, Pass
from asyncstream.runtime.aio.writing import SINK_LIMIT
from asyncstream.state import timer_queue
from asyncstream.testing.loop import VirtualTimeLoop
from asyncstream.windowing import (
    AfterWatermark,
    ContinuousEventTimeTrigger,
    EventTimeTrigger,
    PurgingTrigger,
)
from tests.runtime.parts import Held, Ledger, Log, LoggedSource, boom

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")

Event = tuple[int, int]
"""Key, and time in milliseconds."""

SMALL = 8
"""Elements that may wait for a sink here."""

EVENTS: list[Event] = [*((at % 7, at * 10) for at in range(300)), (0, 60_000), (1, 60_010), (1, 120_000)]


class Later(KeyedProcessFunction[Event, Any]):
    """Tells of each element at its time and a second later, and by then of how far event time has come."""

    def process_element(self, value: Event, ctx: KeyedContext, out: Emitter[Any]) -> None:
        ctx.register_event_timer(value[1])
        ctx.register_event_timer(value[1] + 1000)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out((timestamp, ctx.key, ctx.watermark))


def time_of(event: Any) -> int:
    return int(event[1])


def key_of(event: Any) -> int:
    return int(event[0])


def timed(pipeline: Pipeline, name: str = "events", events: Sequence[Event] = EVENTS) -> Stream[Event]:
    return pipeline.source(list(events), name=name).event_time(
        time_of, AscendingTimestamps(), name=f"{name} in time"
    )


def joined(pipeline: Pipeline) -> Stream[Any]:
    left, right = (timed(pipeline, name).key_by(key_of) for name in ("left", "right"))
    return left.join(right, how="full").within(FIVE, FIVE, name="step")


def windowed(assigner: Any, trigger: Any = None, late: int = 0) -> Callable[[Pipeline], Stream[Any]]:
    def plan(pipeline: Pipeline) -> Stream[Any]:
        stream = timed(pipeline).key_by(key_of).window(assigner)
        stream = stream if trigger is None else stream.trigger(trigger)
        return stream.allowed_lateness(late).aggregate(n=Count(), sum=Sum(time_of), name="step")

    return plan


def rewindowed(pipeline: Pipeline) -> Stream[Any]:
    first = timed(pipeline).key_by(key_of).window(SlidingWindows(1, 0.05)).aggregate(Count(), name="first")
    return first.window_all(TumblingWindows(0.2)).aggregate(sum=Sum(lambda result: result.value), name="step")


FIVE = timedelta(milliseconds=5)
TICKS = ContinuousEventTimeTrigger(0.03)
PATTERN = Pattern[Event].begin("one", lambda event: event[1] % 30 == 0).followed_by("two", bool).within(1)

PLANS: dict[str, Callable[[Pipeline], Stream[Any]]] = {
    "timers": lambda pipeline: timed(pipeline).key_by(key_of).process(Later(), name="step"),
    "tumbling": windowed(TumblingWindows(0.1)),
    "sliding, late": windowed(SlidingWindows(1, 0.05), late=1),
    "ticking": windowed(TumblingWindows(0.5), AfterWatermark(early=TICKS)),
    "by the trigger": windowed(TumblingWindows(0.1), PurgingTrigger(EventTimeTrigger())),
    "sessions": windowed(SessionWindows(0.05)),
    "sessions, ticking": windowed(SessionWindows(0.05), AfterWatermark(early=TICKS), late=1),
    "windows of windows": rewindowed,
    "policy": lambda pipeline: (
        timed(pipeline).policy_window(length=3, slide=1, name="step").map(lambda window: window.values)
    ),
    "join": joined,
    "first": lambda pipeline: timed(pipeline).deduplicate(time_of, by="event_time", name="step"),
    "pattern": lambda pipeline: timed(pipeline).key_by(key_of).pattern(PATTERN, name="step"),
}


def make_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but one slice is done without a pause, slices are as short as can be, and sinks soon full."""
    monkeypatch.setattr(pacing, "AT_ONCE", 0.0)
    monkeypatch.setattr(timer_queue, "TIMERS", 1)
    monkeypatch.setattr(writing, "SINK_LIMIT", SMALL)
    for module in ("base", "sessions"):
        monkeypatch.setattr(f"asyncstream.windowing.{module}.BURST", 1)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    make_slow(monkeypatch)


def results_of(plan: Callable[[Pipeline], Stream[Any]]) -> list[Any]:
    found: list[Any] = []
    pipeline = Pipeline()
    plan(pipeline).to(found)
    pipeline.run_blocking()
    return found


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("name", PLANS)
async def test_results_do_not_depend_on_pauses(
    name: str, on_disk: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = await asyncio.to_thread(results_of, PLANS[name])
    assert len(expected) > 20
    pauses = 0

    def counted(pace: Pace) -> None:
        nonlocal pauses
        pauses += 1
        go_on_later(pace)

    go_on_later = Pace._go_on_later
    monkeypatch.setattr(Pace, "_go_on_later", counted)
    make_slow(monkeypatch)
    found: list[Any] = []
    pipeline = Pipeline()
    PLANS[name](pipeline).to(found)
    await pipeline.run(state=DiskState(tmp_path / "state", young_rows=20) if on_disk else None)
    assert found == expected
    assert pauses > 10


def to(sink: Any, name: str) -> Pipeline:
    pipeline = Pipeline()
    PLANS[name](pipeline).to(sink, name="out")
    return pipeline


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("name", PLANS)
async def test_what_is_left_is_in_the_snapshot(name: str, stopped: bool) -> None:
    expected = await asyncio.to_thread(results_of, PLANS[name])
    async with to(Held(), name).start() as job:
        await asyncio.sleep(1)
        snapshot = job.snapshot()
        stopped_at = await job.stop(timeout=0)
    found: list[Any] = []
    async with to(found, name).start(snapshot=stopped_at if stopped else snapshot) as job:
        await job.wait()
    assert found == expected


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("name", PLANS)
async def test_what_is_left_at_a_checkpoint_comes_before_it(name: str) -> None:
    expected = await asyncio.to_thread(results_of, PLANS[name])
    ledger, store = Ledger(), MemoryStore()
    ledger.slow["write"] = 1.0
    with pytest.raises(KeyError):
        async with to(ledger, name).start(checkpoints=Checkpoints(store=store)) as job:
            await asyncio.sleep(0.1)
            await job.checkpoint()
            raise KeyError  # as a crash: no last checkpoint
    ledger.slow.clear()
    await to(ledger, name).run(checkpoints=Checkpoints(store=store))
    assert ledger.rows == expected


@pytest.mark.usefixtures("slow")
async def test_inputs_that_fall_silent_are_idle_after_what_that_makes_due() -> None:
    found: list[Any] = []
    pipeline = Pipeline()
    streams = []
    for name in ("left", "right", "others"):
        stream: Stream[Event] = pipeline.submissions(name=name)
        streams.append(
            stream.event_time(time_of, AscendingTimestamps(), idle_after=1 if name != "others" else None)
        )
    left, right, others = streams
    pairs = left.key_by(key_of).join(right.key_by(key_of), how="full").within(FIVE, FIVE)
    times = pairs.map(lambda pair: time_of(pair[0] or pair[1]))
    times.union(others.map(time_of)).window_all(TumblingWindows(0.1)).collect().to(found)
    async with pipeline.start() as job:
        for at in range(0, 300, 20):
            await job.submit((0, at), to="left")
        await job.submit((1, 1000), to="right")
        await job.submit((2, 2000), to="others")
        await asyncio.sleep(10)
        await job.drain()
    assert [result.value for result in found[:3]] == [
        [*range(0, 100, 20)],
        [*range(100, 200, 20)],
        [*range(200, 300, 20)],
    ]


def hour_by_seconds(sink: Any, keys: int) -> Pipeline:
    pipeline = Pipeline()
    events = [*((key, 0) for key in range(keys)), (0, 7_200_000)]
    stream = timed(pipeline, events=events).key_by(key_of).window(SlidingWindows(3600, 1)).aggregate(Count())
    stream.to(sink, name="out")
    return pipeline


async def test_windows_that_one_watermark_fires_do_not_flood_the_sink() -> None:
    sink = Held()
    async with hour_by_seconds(sink, 20).start() as job:
        await asyncio.sleep(60)
        assert job.metrics()["out"]["waiting"] <= SINK_LIMIT + BURST
        sink.may.set()
        await job.wait()
    assert len(sink.seen) == 20 * 3600 + 3600


@pytest.mark.usefixtures("slow")
async def test_loop_goes_round_while_windows_fire() -> None:
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            passes += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    found: list[Any] = []
    pipeline = Pipeline()
    rewindowed(pipeline).to(found)
    await pipeline.run()
    counting.cancel()
    assert passes > 300


async def test_watermarks_that_make_little_to_do_do_not_hold_the_loop_with_all_of_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timer_queue, "TIMERS", 1)
    spent, time = 0.0, VirtualTimeLoop.time
    monkeypatch.setattr(VirtualTimeLoop, "time", lambda loop: time(loop) + spent)

    class Takes(Later):
        """A millisecond for each timer."""

        def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
            nonlocal spent
            spent += 0.001
            super().on_timer(timestamp, ctx, out)

    loop, passes = asyncio.get_running_loop(), list[float]()

    async def watch() -> None:
        while True:
            passes.append(loop.time())
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    found: list[Any] = []
    pipeline = Pipeline()
    first = timed(pipeline, events=EVENTS[:300]).key_by(key_of).process(Takes(), name="first")
    again = first.map(lambda told: (told[1], told[0]))
    again.key_by(key_of).process(Takes(), name="second").to(found)
    await pipeline.run()
    watching.cancel()
    assert len(found) == 900
    assert spent == pytest.approx(1.5)
    assert max(after - before for before, after in pairwise(passes)) < 0.02


@pytest.mark.usefixtures("slow")
async def test_function_that_fails_between_pauses_fails_the_job_by_name() -> None:
    class Fails(Later):
        def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
            if timestamp > 100:
                boom()

    pipeline = Pipeline()
    timed(pipeline, events=[(0, 90), (0, 95), (0, 99), (0, 5000)]).key_by(key_of).process(
        Fails(), name="fails"
    ).to(print)
    with pytest.raises(UserFunctionError, match=r"step 'fails'.*on the timer of key 0 at 1090"):
        await pipeline.run()


@pytest.mark.usefixtures("slow")
async def test_checkpoint_that_may_not_take_long_does_not_wait_too_long_for_what_is_left() -> None:
    sink = Held()
    async with to(sink, "tumbling").start(checkpoints=Checkpoints(store=MemoryStore(), timeout=2)) as job:
        await asyncio.sleep(1)
        assert "step" in job.unfinished()
        assert (await job.checkpoint()).id == job.checkpoint_metrics()["number"]
        sink.may.set()


class SaysWhatItHas(LoggedSource):
    """Answers its cancellation with what it has."""

    async def read(self) -> SourceBatch[Any] | None:
        if self.at == 1:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        return await super().read()


@pytest.mark.usefixtures("slow")
async def test_what_still_comes_when_the_job_stops_is_in_the_snapshot() -> None:
    batches = [[(key, at * 10) for at in range(20) for key in range(3)], [(0, 5000), (1, 5000), (2, 5001)]]

    def told(sink: Any) -> Pipeline:
        pipeline = Pipeline()
        source = pipeline.source(SaysWhatItHas(Log(), batches), name="events")
        stream = source.event_time(time_of, AscendingTimestamps())
        stream.key_by(key_of).process(Later(), name="step").to(sink, name="out")
        return pipeline

    found: list[Any] = []
    async with told(found).start() as job:
        await asyncio.sleep(1)
        snapshot = await job.stop()
    async with told(found).start(snapshot=snapshot) as job:
        await job.wait()
    assert sorted(at for at, *_ in found) == sorted(
        time_of(event) + wait for batch in batches for event in batch for wait in (0, 1000)
    )


@pytest.mark.usefixtures("slow")
async def test_nothing_is_done_any_more_when_the_job_is_closed() -> None:
    log: list[str] = []

    class Tells(Later):
        def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
            log.append("timer")

        def close(self) -> None:
            log.append("closed")

    pipeline = Pipeline()
    timed(pipeline).key_by(key_of).process(Tells(), name="step").to(print)
    with pytest.raises(KeyError):
        async with pipeline.start():
            await asyncio.sleep(0)
            raise KeyError
    await asyncio.sleep(1)
    assert len(log) < 20
    assert log[-1] == "closed"


# ---------------------------------------------------------------------- by hand


class Noted(Operator):
    """Notes what reaches it; a watermark makes three things to do."""

    works_off = True

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []

    def process_batch(self, values: Any, timestamps: Any) -> None:
        self.log += values

    def advance_watermark(self, timestamp: int) -> None:
        self.context.work_off(self._working(timestamp))

    def _working(self, timestamp: int) -> Iterator[None]:
        for number in range(3):
            self.log.append((timestamp, number))
            yield

    def set_idle(self, idle: bool) -> None:
        self.log.append(f"idle {idle}")

    def end_input(self) -> None:
        self.log.append("end")


class NotedInputs(MultiInput, Noted):
    def __init__(self) -> None:
        Noted.__init__(self)
        self.have_ports(*(received_by(self),) * 2, holds_back=True)


def received_by(operator: Noted) -> Any:
    return lambda values, timestamps: operator.log.extend(values)


def worked(operator: Operator, gate: Gate, failures: list[BaseException] | None = None) -> Pace:
    pace = Pace(
        operator,
        Pass(),
        lambda: (gate,),
        lambda pace: None,
        Journeys(),
        (lambda error: None) if failures is None else failures.append,
    )
    operator.open(OperatorContext(work_off=pace.work_off))
    return pace


@pytest.mark.usefixtures("slow")
async def test_what_comes_meanwhile_waits_in_order_and_drivers_are_held() -> None:
    operator, gate = Noted(), Gate(lambda: None)
    pace = worked(operator, gate)
    entrance = Entrance(pace, operator)
    entrance.process_batch(["a"], None)
    entrance.advance_watermark(1)
    assert operator.log == ["a", (1, 0)]
    assert not gate.is_open()
    entrance.process_batch(["b"], None)
    entrance.advance_watermark(2)
    entrance.end_input()
    await asyncio.sleep(1)
    assert operator.log == ["a", *((1, n) for n in range(3)), "b", *((2, n) for n in range(3)), "end"]
    assert gate.is_open()


class Brief(Noted):
    """A watermark makes one thing to do."""

    def _working(self, timestamp: int) -> Iterator[None]:
        self.log.append(timestamp)
        yield from ()


@pytest.mark.parametrize("seconds", [pacing.AT_ONCE, 0.0])
async def test_pass_that_has_taken_long_enough_ends_also_where_nothing_is_left(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "AT_ONCE", seconds)
    operator, gate = Brief(), Gate(lambda: None)
    entrance = Entrance(worked(operator, gate), operator)
    for number in range(3):
        entrance.advance_watermark(number)
        entrance.process_batch(["a"], None)
    assert operator.log == ([0, "a", 1, "a", 2, "a"] if seconds else [0])
    assert gate.is_open() == bool(seconds)
    await asyncio.sleep(1)
    assert operator.log == [0, "a", 1, "a", 2, "a"]
    assert gate.is_open()


@pytest.mark.usefixtures("slow")
async def test_without_room_the_rest_waits_until_there_is() -> None:
    operator = Noted()
    pace = worked(operator, Gate(lambda: None))
    pace.room.hold()
    Entrance(pace, operator).advance_watermark(1)
    await asyncio.sleep(1)
    assert operator.log == [(1, 0)]
    pace.room.release()
    await asyncio.sleep(1)
    assert operator.log == [(1, 0), (1, 1), (1, 2)]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("waits", [False, True])
async def test_what_one_input_tells_in_parts_stays_in_order(waits: bool) -> None:
    operator = NotedInputs()
    pace = worked(operator, Gate(lambda: None))
    operator.enter_by(Entrance(pace, operator))
    one, other = (Entrance(pace, operator.port(number)) for number in (0, 1))
    one.advance_watermark(5)
    other.advance_watermark(3)
    if not waits:
        await asyncio.sleep(1)
    one.set_idle(True)
    other.set_idle(True)  # the watermark of both, and then that both are idle
    one.process_batch(["a"], None)
    one.end_input()
    other.end_input()
    await asyncio.sleep(1)
    steps = [*((3, n) for n in range(3)), *((5, n) for n in range(3)), "idle True", "a"]
    assert operator.log[:8] == steps
    assert operator.log[-1] == "end"


@pytest.mark.usefixtures("slow")
async def test_cut_comes_after_all_that_is_left() -> None:
    operator = Noted()
    pace = worked(operator, Gate(lambda: None))
    entrance = Entrance(pace, operator)
    entrance.advance_watermark(1)
    entrance.process_batch(["a"], None)
    operator.tables.cut()
    assert operator.log == [(1, 0), (1, 1), (1, 2), "a"]
    await asyncio.sleep(1)
    assert operator.log == [(1, 0), (1, 1), (1, 2), "a"]
