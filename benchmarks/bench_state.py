"""
What state costs: a checkpoint after little has changed against a first one, standstills of the loop, and
    restores.

Each plan holds a million keys, and that of sliding windows once more ten thousand, whose size has a goal.
A first checkpoint writes all of them; then one in a hundred is touched, and another is taken. Costs are CPU
time of the process, the thread that encodes included, less what the loop itself takes meanwhile.
The longest standstill is seen from inside, by a task that does nothing but yield: by the clock, which has the
machine's own hiccups in it, and in CPU time of the loop's thread, which has not.

Memory is seen from outside: what fills the state and what restores it are processes of their own.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    Count,
    DirectoryStore,
    KeyedProcessFunction,
    Pipeline,
    SessionWindows,
    SlidingWindows,
    Stream,
    Sum,
    TumblingWindows,
)
from asyncstream.state import ValueDescriptor
from benchmarks.kit import Goal, goals, run, table

__all__ = ("main",)

KEYS = 1_000_000
START_MS = 1_700_000_000_000


class Totals(KeyedProcessFunction[Any, Any]):
    """A value for each key, and a timer an hour ahead."""

    total = ValueDescriptor[int]("total")

    def open(self, ctx: Any) -> None:
        self.state = ctx.state(self.total)

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        total = self.state.get()
        if total is None:
            ctx.register_event_timer(value[1] + 3_600_000)
        self.state.set((total or 0) + 1)

    def on_timer(self, timestamp: int, ctx: Any, out: Any) -> None: ...


SLIDING = "sliding 1 h by 1 min"

PLANS: dict[str, Callable[[Any], Stream[Any]]] = {
    "process, timers": lambda keyed: keyed.process(Totals(), name="step"),
    "tumbling": lambda keyed: keyed.window(TumblingWindows(7200)).aggregate(
        name="step", n=Count(), total=Sum(lambda v: v[1])
    ),
    SLIDING: lambda keyed: keyed.window(SlidingWindows(3600, 60)).aggregate(
        name="step", n=Count(), total=Sum(lambda v: v[1])
    ),
    "sessions": lambda keyed: keyed.window(SessionWindows(3600)).aggregate(
        name="step", n=Count(), total=Sum(lambda v: v[1])
    ),
}


@dataclass(frozen=True)
class Checkpoint:
    """
    One checkpoint.

    Attributes:
        cpu: seconds of CPU.
        size: bytes.
        wall_ms, cpu_ms: the longest standstill of the loop, by the clock and in CPU time of its thread.
    """

    cpu: float
    size: int
    wall_ms: float
    cpu_ms: float


@dataclass(frozen=True)
class Found:
    """
    Figures of one plan.

    Attributes:
        first, second: when all was new, and when one key in a hundred had changed.
        restore: seconds.
        wall_ms, cpu_ms: the longest standstill of the restore.
        memory: of the restored job, of the running one's.
    """

    first: Checkpoint
    second: Checkpoint
    restore: float
    wall_ms: float
    cpu_ms: float
    memory: float


def build(plan: str) -> Pipeline:
    pipeline = Pipeline("state")
    timed = pipeline.submissions(name="in", limit=10_000).event_time(
        lambda value: value[1], BoundedOutOfOrderness(10), name="time"
    )
    PLANS[plan](timed.key_by(lambda value: value[0])).discard(name="out")
    return pipeline


async def submit(job: Any, keys: range, at_ms: int) -> None:
    before = job.metrics()["in"]["read"]
    for number in keys:
        await job.submit((f"customer-{number}", at_ms + number % 1000))
    while job.metrics()["in"]["read"] < before + len(keys):  # noqa: ASYNC110
        await asyncio.sleep(0.01)


class Beat:
    """
    The longest standstills of the event loop while the block runs.

    Attributes:
        wall_ms: by the clock.
        cpu_ms: in CPU time of the loop's thread.
        loop_cpu: seconds of CPU that the loop's thread has used in all.
    """

    async def __aenter__(self) -> Beat:
        self.wall_ms = self.cpu_ms = 0.0
        self._began = time.thread_time()
        self._task = asyncio.create_task(self._beat())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *error: object) -> None:
        self.loop_cpu = time.thread_time() - self._began
        self._task.cancel()

    async def _beat(self) -> None:
        last, last_cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(0)
            now, now_cpu = time.perf_counter(), time.thread_time()
            self.wall_ms = max(self.wall_ms, (now - last) * 1000)
            self.cpu_ms = max(self.cpu_ms, (now_cpu - last_cpu) * 1000)
            last, last_cpu = now, now_cpu


async def measured(job: Any) -> Checkpoint:
    gc.collect()
    cpu = time.process_time()
    async with Beat() as beat:
        info = await job.checkpoint()
    cpu = time.process_time() - cpu
    # of the loop's own time all but the longest standstill was beating
    return Checkpoint(cpu - beat.loop_cpu + beat.cpu_ms / 1000, info.size, beat.wall_ms, beat.cpu_ms)


def resident() -> int:
    """Bytes of memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def sizes(folder: str) -> dict[str, int]:
    """Bytes of the files in a folder."""
    return {path.name: path.stat().st_size for path in Path(folder).iterdir()}


def fill(plan: str, folder: str, keys: int) -> tuple[Checkpoint, Checkpoint, int]:
    """The two checkpoints, and the memory that the state takes."""

    async def work() -> tuple[Checkpoint, Checkpoint, int]:
        before = resident()
        checkpoints = Checkpoints(store=DirectoryStore(folder), keep=2)
        async with build(plan).start(checkpoints=checkpoints) as job:
            await submit(job, range(keys), START_MS)
            gc.collect()
            used = resident() - before
            first = await measured(job)
            known = sizes(folder)
            await submit(job, range(0, keys, 100), START_MS + 1000)
            second = await measured(job)
            new = sum(size for name, size in sizes(folder).items() if name not in known)
            await job.stop(0)
        return first, replace(second, size=new), used

    return run(work())


def restore(plan: str, folder: str) -> tuple[float, float, float, int]:
    """Seconds, the longest standstill by the clock and in CPU time, and the memory that the state takes."""

    async def work() -> tuple[float, float, float, int]:
        before = resident()
        checkpoints = Checkpoints(store=DirectoryStore(folder), keep=2)
        job = build(plan).start(checkpoints=checkpoints)
        async with Beat() as beat:
            began = time.perf_counter()
            await job.__aenter__()
            took = time.perf_counter() - began
        gc.collect()
        used = resident() - before
        await job.stop(0)
        return took, beat.wall_ms, beat.cpu_ms, used

    return run(work())


def figures(plan: str, keys: int) -> Found:
    with TemporaryDirectory() as folder:
        spawn = get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            first, second, running = process.submit(fill, plan, folder, keys).result()
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            took, wall_ms, cpu_ms, restored = process.submit(restore, plan, folder).result()
    return Found(first, second, took, wall_ms, cpu_ms, restored / running)


def main(quick: bool = False) -> None:
    keys = KEYS // 100 if quick else KEYS
    reached: list[Goal] = []
    rows: list[tuple[str, ...]] = []
    small = keys // 100
    for plan, of_plan in (*((plan, keys) for plan in PLANS), (SLIDING, small)):
        found = figures(plan, of_plan)
        first, second = found.first, found.second
        rows.append(
            (
                f"{of_plan:,} keys, {plan}",
                f"{first.cpu:.2f} s, {first.size / 1e6:.1f} MB",
                f"{first.wall_ms:.0f} / {first.cpu_ms:.0f}",
                f"{second.cpu:.3f} s, {second.size / 1e6:.2f} MB",
                f"{second.wall_ms:.0f} / {second.cpu_ms:.0f}",
                f"{found.restore:.1f} s",
                f"{found.wall_ms:.0f} / {found.cpu_ms:.0f}",
            )
        )
        memory = Goal(f"{plan}: memory after a restore", found.memory, 1.3, at_most=True)
        if of_plan == small:
            size = Goal(f"{plan}: size", first.size / 1e6, 3, at_most=True, form="{:.1f} MB")
            reached += [size, memory]
            continue
        reached += [
            Goal(f"{plan}: 1 % changed, of a first one's CPU", second.cpu / first.cpu, 0.05, at_most=True),
            Goal(f"{plan}: standstill of the first, CPU", first.cpu_ms, 100, at_most=True, form="{:.0f} ms"),
            Goal(f"{plan}: standstill, 1 % changed, CPU", second.cpu_ms, 20, at_most=True, form="{:.0f} ms"),
            Goal(f"{plan}: restore", found.restore, 5, at_most=True, form="{:.1f} s"),
            Goal(f"{plan}: standstill of the restore, CPU", found.cpu_ms, 50, at_most=True, form="{:.0f} ms"),
            memory,
        ]
    head = (
        "",
        "first checkpoint",
        "standstill, ms, wall / CPU",
        "1 % changed",
        "standstill, ms",
        "restore",
        "standstill, ms",
    )
    print(f"#### Checkpoints of large state\n\n{table(head, rows)}\n")
    print(goals(reached))


if __name__ == "__main__":
    main()
