"""A shared breaker whose store comes and goes, and whose process loses the probe: who may try the service."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncstream.guards import SharedLimit, circuit_breaker
from asyncstream.guards.shared.records import Change, Records, RecordsAway
from asyncstream.testing.loop import run_virtual
from tests.guards.services import Flaky


class Leaving(SharedLimit):
    """A store that is away while it is said to be."""

    is_away = False

    def records(self) -> Records:
        records = super().records()
        update = records.update

        async def update_if_there(name: str, change: Change[Any]) -> Any:
            if self.is_away:
                raise RecordsAway("gone")
            return await update(name, change)

        records.update = update_if_there  # type: ignore[method-assign]
        return records


@pytest.fixture
def leaving(scope: SharedLimit) -> Leaving:
    """The same store, for one that cannot always reach it."""
    return Leaving(scope.url)


async def fail(guarded: Any) -> None:
    with pytest.raises(OSError, match="down"):
        await guarded(0)


async def until(seconds: float) -> None:
    """Wait for a time of the event loop."""
    await asyncio.sleep(seconds - asyncio.get_running_loop().time())


def test_a_call_that_was_to_try_the_service_alone_leaves_that_to_who_probes_for_all(
    scope: SharedLimit, leaving: Leaving
) -> None:
    async def main() -> None:
        service = Flaky(2)
        one, other = (
            circuit_breaker(service, failures=1, open_for=1, scope=each) for each in (leaving, scope)
        )
        leaving.is_away = True
        await fail(other)  # it is open for all until 1
        await until(0.5)
        await fail(one)  # and to this one until 1.5
        service.takes, service.most_running = 1.0, 0
        calls = [asyncio.create_task(guarded(0)) for guarded in (other, one, one)]
        await asyncio.sleep(0)
        leaving.is_away = False
        await until(1.9)
        assert service.running == service.most_running == 1
        await asyncio.gather(*calls)

    run_virtual(main())


def test_without_the_store_the_service_is_tried_in_time_each_time_that_it_is_away(leaving: Leaving) -> None:
    async def main() -> list[int]:
        service = Flaky(1)
        guarded = circuit_breaker(service, failures=1, open_for=2, scope=leaving)
        leaving.is_away = True
        await fail(guarded)
        waiting = asyncio.create_task(guarded(0))
        await asyncio.sleep(0)
        leaving.is_away = False
        await waiting  # to the store it was closed all the time
        await until(3)
        leaving.is_away, service.failures = True, 1
        await fail(guarded)
        await guarded(0)
        return service.times[-2:]

    failed, tried = run_virtual(main())
    assert tried - failed == 2000


def test_a_call_that_tries_the_service_without_the_store_does_not_end_the_probe_of_all(
    scope: SharedLimit, leaving: Leaving
) -> None:
    async def main() -> None:
        service = Flaky(1)
        one, other = (
            circuit_breaker(service, failures=1, open_for=1, scope=each) for each in (leaving, scope)
        )
        await fail(one)
        await until(0.1)
        service.takes, leaving.is_away = 5.0, True
        alone, probe = (asyncio.create_task(one(0)) for _ in range(2))
        await until(1.05)
        assert service.running == 1
        leaving.is_away = False
        await until(2)
        assert service.running == 2
        waiting = asyncio.create_task(other(0))
        alone.cancel()
        await until(4)
        assert service.running == 1
        await asyncio.gather(probe, waiting)

    run_virtual(main())


def test_who_has_lost_the_probe_may_be_given_it_again_for_another_call(scope: SharedLimit) -> None:
    async def main() -> None:
        service = Flaky(1, takes=0.1)
        one, other = (circuit_breaker(service, failures=1, open_for=1, scope=scope) for _ in range(2))
        await fail(one)
        service.takes = 100
        first = asyncio.create_task(one(0))
        await until(1.2)
        for task in asyncio.all_tasks() - {asyncio.current_task(), first}:
            task.cancel()  # it does not show itself, and loses the probe
        second = asyncio.create_task(other(0))
        await until(2.5)
        assert service.running == 2
        service.takes = 3
        third = asyncio.create_task(one(0))
        await until(3)
        assert service.running == 2
        second.cancel()
        await until(4)
        assert service.running == 2
        first.cancel()
        last = asyncio.create_task(other(0))
        await until(5)
        assert service.running == 1
        await asyncio.gather(third, last)

    run_virtual(main())
