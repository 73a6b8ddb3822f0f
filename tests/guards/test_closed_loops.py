"""Guards that are used again after an event loop that was closed in the midst of their calls."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncstream.guards import (
    SharedLimit,
    adaptive_concurrency,
    batched,
    cached,
    circuit_breaker,
    concurrency_limit,
    hedge,
    rate_limit,
    retry,
)
from asyncstream.testing.loop import VirtualTimeLoop, run_virtual
from tests.closing_loops import close_amid


class Service:
    """Hangs at first; notes how many calls ran at once since it does not any more."""

    def __init__(self) -> None:
        self.hangs = True
        self.running = self.most = 0

    async def ask(self, value: int) -> int:
        if self.hangs:
            await asyncio.Event().wait()
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(1)
        self.running -= 1
        return value

    async def ask_many(self, values: list[int]) -> list[int]:
        return [await self.ask(value) for value in values]

    async def fail(self, value: int) -> int:
        if self.hangs and value:
            await asyncio.sleep(1 if value == 1 else 1e9)
            raise OSError("down")
        return await self.ask(value)


Make = Callable[[Service, Path], Any]


def shared(folder: Path) -> SharedLimit:
    return SharedLimit(f"sqlite:///{folder}/limits.db", name="n")


GUARDS: dict[str, Make] = {
    "concurrency": lambda service, folder: concurrency_limit(service.ask, most=2),
    "shared_concurrency": lambda service, folder: concurrency_limit(
        service.ask, most=2, scope=shared(folder)
    ),
    "adaptive": lambda service, folder: adaptive_concurrency(service.ask, least=2, most=2),
    "rate": lambda service, folder: rate_limit(service.ask, rate=2, per=10),
    "shared_rate": lambda service, folder: rate_limit(service.ask, rate=2, per=10, scope=shared(folder)),
    "breaker": lambda service, folder: circuit_breaker(service.fail, failures=1, open_for=10),
    "batch": lambda service, folder: batched(service.ask_many, size=100, wait=1000),
    "hedge": lambda service, folder: hedge(service.ask, after=0.1, at_most=1),
}


@pytest.mark.usefixtures("others_gone")
@pytest.mark.parametrize("collected", ["before", "meanwhile"])
@pytest.mark.parametrize("make", GUARDS.values(), ids=GUARDS)
def test_calls_of_a_loop_that_was_closed_hold_nobody_up(make: Make, collected: str, tmp_path: Path) -> None:
    service = Service()
    guarded = make(service, tmp_path)
    left: list[asyncio.Task[int]] = []

    async def begin() -> None:
        await guarded.open()
        left.extend(asyncio.ensure_future(guarded(value)) for value in range(1, 6))
        await asyncio.sleep(2)

    async def go_on() -> list[int]:
        async with guarded, asyncio.timeout(2000):
            asked = asyncio.gather(*map(guarded, range(5)))
            await asyncio.sleep(0.5)
            left.clear()
            gc.collect()  # what a call raises there, pytest makes an error of
            return await asked

    loop = VirtualTimeLoop()  # which stays until the end
    close_amid(loop, begin())
    if collected == "before":
        left.clear()
        gc.collect()
    service.hangs = False
    assert run_virtual(go_on()) == list(range(5))
    if make in (GUARDS["concurrency"], GUARDS["shared_concurrency"], GUARDS["adaptive"]):
        assert service.most == 2


LEASE: Make = lambda service, folder: cached(service.ask, store=folder / "answers.db", lease=60)  # noqa: E731


@pytest.mark.parametrize("make", [*GUARDS.values(), LEASE], ids=[*GUARDS, "lease"])
def test_a_program_that_ends_amid_calls_leaves_no_task_in_its_loop(make: Make, tmp_path: Path) -> None:
    guarded = make(Service(), tmp_path)

    async def main() -> None:
        await guarded.open()
        calls = [asyncio.ensure_future(guarded(value)) for value in range(1, 6)]
        await asyncio.wait(calls, timeout=2)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        runner.run(main())
    assert not asyncio.all_tasks(loop)


@pytest.mark.usefixtures("others_gone")
def test_a_second_attempt_of_a_loop_that_was_closed_is_no_failure_of_the_service() -> None:
    failures = [OSError()]

    async def ask(value: int) -> int:
        if failures:
            raise failures.pop()
        await asyncio.Event().wait()
        return value

    guarded = circuit_breaker(retry(ask, wait_jitter=0), failures=1)

    async def main() -> None:
        await asyncio.wait([asyncio.ensure_future(guarded(1))], timeout=1)

    loop = VirtualTimeLoop()  # which stays until the end
    close_amid(loop, main())

    async def go_on() -> None:
        gc.collect()  # what cannot be raised there, pytest makes an error of
        assert guarded.metrics()["circuit_opened"] == 0

    run_virtual(go_on())


def test_a_batch_that_is_open_in_a_loop_that_was_closed_keeps_nobody_from_closing() -> None:
    guarded = batched(Service().ask_many, size=100)

    async def begin() -> None:
        await guarded.open()
        await asyncio.wait([asyncio.ensure_future(guarded(1))], timeout=0.001)

    loop = VirtualTimeLoop()  # which stays until the end
    close_amid(loop, begin())
    run_virtual(guarded.close())


@pytest.mark.parametrize("guard", [concurrency_limit, adaptive_concurrency])
def test_calls_of_a_guard_that_is_not_opened_count_in_their_loop_only(guard: Callable[..., Any]) -> None:
    service = Service()
    guarded = guard(service.ask, most=2, **({"least": 2} if guard is adaptive_concurrency else {}))

    async def hang() -> None:
        await asyncio.wait([asyncio.ensure_future(guarded(value)) for value in range(5)], timeout=2)

    async def go_on() -> list[Any]:
        async with asyncio.timeout(2000):
            return await asyncio.gather(*map(guarded, range(5)))

    loop = VirtualTimeLoop()  # which stays until the end
    close_amid(loop, hang())
    service.hangs = False
    assert run_virtual(go_on()) == list(range(5))
    assert service.most == 2
