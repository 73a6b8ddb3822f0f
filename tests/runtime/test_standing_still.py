"""Looking at a job from another thread, while its event loop does not come to it."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from asyncstream import AsyncFunction, Pipeline
from asyncstream.runtime.aio import standing_still


def test_a_loop_that_is_slow_moves_what_is_looked_at_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standing_still, "LOOP_SECONDS", 0.01)
    things, going_on = {1: 1}, threading.Event()
    looks: list[int] = []

    def look() -> int:
        looks.append(threading.get_ident())
        for number in things:
            if len(looks) < 3:
                things[number + len(things)] = number  # as the event loop may do in this moment
        return len(things)

    async def main() -> None:
        run: Any = SimpleNamespace(loop=asyncio.get_running_loop())
        found: list[int] = []

        def look_from_elsewhere() -> None:
            found.append(standing_still.standing_still(run, look))
            going_on.set()

        thread = threading.Thread(target=look_from_elsewhere)
        thread.start()
        assert going_on.wait(60)  # which holds the event loop
        thread.join()
        assert found == [3]

    asyncio.run(main())
    assert len(looks) == 3
    assert threading.get_ident() not in looks


@pytest.mark.parametrize("method", ["metrics", "progress", "status", "measure"])
def test_a_look_from_another_thread_is_taken_in_the_event_loop(method: str) -> None:
    """What is counted moves elsewhere: a set of workers changes its size while it is gone through."""
    looked: set[int] = set()

    class Counting(AsyncFunction[int, int]):
        async def invoke(self, value: int) -> int:
            return value

        def metrics(self) -> dict[str, int]:
            looked.add(threading.get_ident())
            return {}

    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions().async_map(Counting()).discard()
        async with pipeline.start() as job:
            await asyncio.to_thread(getattr(job, method))

    asyncio.run(main())
    assert looked == {threading.get_ident()}


@pytest.mark.parametrize("method", ["status", "measure"])
def test_calls_that_run_are_seen_while_the_event_loop_is_held(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing_still, "LOOP_SECONDS", 0.01)
    found: list[Any] = []

    async def main() -> None:
        begun, going_on = asyncio.Event(), threading.Event()

        async def hang(value: int) -> int:
            begun.set()
            await asyncio.Event().wait()
            return value

        pipeline = Pipeline()
        pipeline.submissions().async_map(hang, name="hang").discard()
        async with pipeline.start() as job:
            await job.submit(1)
            await begun.wait()

            def look() -> None:
                try:
                    found.append(getattr(job, method)())
                finally:
                    going_on.set()

            thread = threading.Thread(target=look)
            thread.start()
            assert going_on.wait(60)  # which holds the event loop
            thread.join()
            await job.stop()

    asyncio.run(main())
    assert len(found) == 1
