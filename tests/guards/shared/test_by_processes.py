"""A limit that real processes share, and what becomes of it when one of them is killed."""

from __future__ import annotations

import asyncio
import gc
import time
from bisect import bisect_left
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from asyncstream.guards import SharedConcurrency, SharedLimit
from tests.guards.shared.limited_process import FAILS, HANGS, Lateness, call_often, hold_places, use_rate

pytestmark = pytest.mark.slow

RATE, SECONDS = 100, 6.0


@pytest.fixture
def start() -> Iterator[Any]:
    """Starts a process, which is not there any more at the end of the test."""
    context = get_context("forkserver")  # which imports the package once for all of them
    context.set_forkserver_preload(["tests.guards.shared.limited_process"])
    started: list[Any] = []

    def begin(target: Any, *args: Any) -> Any:
        process = context.Process(target=target, args=args)
        process.start()
        started.append(process)
        return process

    begin.context = context  # type: ignore[attr-defined]
    yield begin
    for process in started:
        process.kill()
        process.join()
    # barriers and their like are in cycles; collected as the next test makes some, their tracker complains
    gc.collect()


def in_a_second(starts: list[float], late: Lateness) -> int:
    """The most calls that were let through within any second, as far as late beginnings tell."""
    span = max(1 - late.worst, 0.0)
    return max(bisect_left(starts, began + span) - place for place, began in enumerate(starts))


def test_eight_processes_use_a_rate_to_the_full_and_never_more(tmp_path: Path, start: Any) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    begin, found, late = start.context.Barrier(8), start.context.SimpleQueue(), Lateness(start.context)
    for _ in range(8):
        start(use_rate, url, RATE, begin, SECONDS, found, late)
    starts = sorted(began for _ in range(8) for began in found.get())
    assert in_a_second(starts, late) <= RATE + 1
    assert len(starts) >= 0.97 * RATE * (SECONDS - late.lost)


def test_what_a_killed_process_had_of_a_rate_is_back_within_a_second(tmp_path: Path, start: Any) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    begin, found, late = start.context.Barrier(4), start.context.SimpleQueue(), Lateness(start.context)
    victim, *_ = [start(use_rate, url, RATE, begin, 5.0, found, late) for _ in range(4)]
    while not (tmp_path / "limits.db").exists():
        time.sleep(0.01)
    time.sleep(1.5)
    victim.kill()
    killed = time.monotonic()
    starts = sorted(began for _ in range(3) for began in found.get())
    assert in_a_second(starts, late) <= RATE + 1
    until = min(killed + 3, starts[-1])  # the others may be at their end, if this process was late
    afterwards = [began for began in starts if killed + 1 <= began < until]
    assert len(afterwards) >= 0.97 * RATE * (until - killed - 1 - late.lost)


def test_places_of_a_killed_process_are_free_within_a_second(tmp_path: Path, start: Any) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    begin, late = start.context.Barrier(2), Lateness(start.context)
    holder = start(hold_places, url, 5, begin)
    begin.wait(60)

    async def main() -> float:
        places = SharedConcurrency(5, scope=SharedLimit(url))
        first = asyncio.create_task(places.acquire())
        assert not (await asyncio.wait({first}, timeout=0.3))[0]  # all are taken
        holder.kill()
        killed = time.monotonic()
        async with late:
            await asyncio.wait_for(asyncio.gather(first, *(places.acquire() for _ in range(4))), 30)
        took = time.monotonic() - killed
        await places.close()
        return took

    assert asyncio.run(main()) < 1 + late.lost


def test_a_breaker_opens_for_all_and_a_killed_probe_goes_to_another(tmp_path: Path, start: Any) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    context = start.context
    begin, calls, mode = context.Barrier(4), context.SimpleQueue(), context.Value("i", 0)
    open_for, late = 3.0, Lateness(context)
    processes = [start(call_often, url, number, mode, begin, open_for, calls, late) for number in range(3)]

    def next_call(seconds: float) -> tuple[int, float, int] | None:
        until = time.monotonic() + seconds
        while calls.empty():
            if time.monotonic() >= until:
                return None
            time.sleep(0.005)
        found: tuple[int, float, int] = calls.get()
        return found

    begin.wait(60)
    time.sleep(0.5)
    mode.value = FAILS
    last = {}
    while (call := next_call(open_for / 2)) is not None:
        last[call[0]] = call[1]
    assert len(last) == 3
    assert max(last.values()) - min(last.values()) < 0.25 + 0.4 + late.lost

    mode.value = HANGS
    probe = next_call(30)
    assert probe is not None
    assert probe[1] - min(last.values()) >= open_for - 0.05
    assert next_call(1.2) is None  # there is one, for longer than a lease
    processes[probe[0]].kill()
    killed = time.monotonic()
    mode.value = 0
    second = next_call(30)
    assert second is not None
    assert second[0] != probe[0]
    assert second[1] - killed < 1.5 + late.lost
    found: set[int] = set()
    while len(found) < 2:  # those that are left make calls again
        call = next_call(30)
        assert call is not None
        found.add(call[0])
