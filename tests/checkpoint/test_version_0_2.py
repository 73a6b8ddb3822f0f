"""
A checkpoint that version 0.2.0 wrote, before state was tables, is gone on from by steps of all kinds.

The fixture holds the first half of `EVENTS`, with calls in flight, timers, keyed state with and without a
time to live, and windows of all stores; `expected.json` is what version 0.2.0 itself gave when it went on
from there.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    Count,
    DirectoryStore,
    KeyedProcessFunction,
    ManualClock,
    Pipeline,
    SessionWindows,
    SlidingWindows,
    Stream,
    Sum,
    TumblingWindows,
)
from asyncstream.state import (
    ListDescriptor,
    MapDescriptor,
    ReducingDescriptor,
    ValueDescriptor,
)
from asyncstream.windowing import AfterWatermark, CountTrigger, Last

FIXTURE = Path(__file__).parent / "version_0_2"

START = 1_700_000_000
EVENTS = [
    {"id": n, "key": f"k{n * 7 % 5}", "at": 1000 * (START + n * 3 - (n % 4) * 2), "x": n % 9}
    for n in range(80)
]
HALF = 40


class Remembers(KeyedProcessFunction[dict[str, Any], Any]):
    """State of all kinds, and timers of both."""

    count = ValueDescriptor[int]("count")
    last = ListDescriptor[int]("last", ttl=timedelta(days=1))
    seen = MapDescriptor[str, int]("seen")
    total = ReducingDescriptor[int]("total", lambda a, b: a + b)

    def open(self, ctx: Any) -> None:
        self.counts, self.lasts = ctx.state(self.count), ctx.state(self.last)
        self.seens, self.totals = ctx.state(self.seen), ctx.state(self.total)

    def process_element(self, value: dict[str, Any], ctx: Any, out: Any) -> None:
        self.counts.set((self.counts.get() or 0) + 1)
        self.lasts.add(value["id"])
        self.seens.put(str(value["x"]), value["id"])
        self.totals.add(value["x"])
        ctx.register_event_timer(ctx.timestamp + 20_000)
        ctx.delete_event_timer(ctx.timestamp + 8_000)

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None:
        out([ctx.key, timestamp, self.counts.get(), self.lasts.get(), self.seens.items(), self.totals.get()])


def build(out: dict[str, list[Any]], held: set[int]) -> Pipeline:
    """
    The pipeline.

    Args:
        out: where results go, by name.
        held: ids of elements whose calls never end.
    """

    async def call(event: dict[str, Any]) -> dict[str, Any]:
        if event["id"] in held:
            await asyncio.Event().wait()
        return event

    pipeline = Pipeline("version 0.2")
    called = (
        pipeline.submissions(name="in")
        .event_time(lambda event: event["at"], BoundedOutOfOrderness(5), name="time")
        .async_map(call, name="call", concurrency=20)
    )

    def to(stream: Stream[Any], name: str) -> None:
        stream.map(plain, name=f"plain {name}").to(out.setdefault(name, []), name=f"to {name}")

    keyed = called.key_by(lambda event: event["key"])
    to(keyed.process(Remembers(), name="process"), "process")
    to(keyed.window(TumblingWindows(30)).aggregate(name="tumbling", n=Count(), s=Sum("x")), "tumbling")
    to(keyed.window(SlidingWindows(60, 10)).aggregate(name="sliding", n=Count(), s=Sum("x")), "sliding")
    to(keyed.window(SlidingWindows(60, 10)).aggregate(name="ordered", last=Last("id")), "ordered")
    to(keyed.window(SessionWindows(16)).aggregate(name="sessions", n=Count(), s=Sum("x")), "sessions")
    late = keyed.window(TumblingWindows(30)).allowed_lateness(50)
    to(late.aggregate(name="late", n=Count()), "late")
    early = keyed.window(TumblingWindows(30)).trigger(AfterWatermark(early=CountTrigger(3)))
    to(early.aggregate(name="early", n=Count()), "early")
    to(keyed.window(SessionWindows(16)).collect(name="collected"), "collected")
    to(keyed.count_window(7, 3).aggregate(name="counted", s=Sum("x")), "counted")
    to(keyed.policy_window(length=7, slide=3, name="policy"), "policy")
    return pipeline


def plain(result: Any) -> Any:
    """A result as JSON keeps it."""
    return json.loads(json.dumps(result, default=str))


async def go_on(store: DirectoryStore) -> dict[str, list[Any]]:
    """What comes out of a job that goes on from the checkpoint and gets the second half."""
    out: dict[str, list[Any]] = {}
    # the clock begins when the checkpoint was written: what lives for a day does so for the test
    async with build(out, set()).start(checkpoints=Checkpoints(store=store), clock=ManualClock()) as job:
        for event in EVENTS[HALF:]:
            await job.submit(event)
        await job.drain()
    return {name: sorted(values, key=json.dumps) for name, values in out.items()}


async def begin(store: DirectoryStore) -> None:
    """Write the checkpoint: run by version 0.2.0."""
    job = build({}, {36, 38}).start(checkpoints=Checkpoints(store=store))
    async with job:
        for event in EVENTS[:HALF]:
            await job.submit(event)
        for _ in range(100):
            await asyncio.sleep(0)
        await job.checkpoint()


def test_steps_of_all_kinds_go_on_from_it(tmp_path: Path) -> None:
    store = DirectoryStore(shutil.copytree(FIXTURE / "directory", tmp_path / "kept"))
    assert asyncio.run(go_on(store)) == json.loads((FIXTURE / "expected.json").read_text())
