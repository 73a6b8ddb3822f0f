"""How a process keeps to places that it shares: what it tells of its calls, and when it gives places back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncstream.guards import SharedConcurrency, SharedLimit
from asyncstream.guards.shared import places
from asyncstream.guards.shared.concurrency import POLL
from asyncstream.guards.shared.places import HEARTBEAT, LEASE
from asyncstream.guards.shared.records import Change, Moment, Records
from asyncstream.testing.loop import run_virtual


def now() -> float:
    return asyncio.get_running_loop().time()


async def told() -> None:
    """Wait until the store has heard of what has happened to calls that run."""
    await asyncio.sleep(HEARTBEAT + POLL)


@pytest.fixture
def adaptive(scope: SharedLimit) -> SharedConcurrency:
    """A limit that moves, with calls that are slow after a second."""
    return SharedConcurrency(20, least=1, start=4, latency=1.0, decrease=0.5, scope=scope)


def test_good_answers_raise_the_limit_and_slow_ones_cut_it(adaptive: SharedConcurrency) -> None:
    async def main() -> None:
        for _ in range(4):
            await adaptive.acquire()
        for _ in range(4):
            adaptive.answered(began=0.0, now=1.0)
        await told()
        assert (adaptive.limit, adaptive.cuts) == (5, 0)
        adaptive.answered(began=0.5, now=1.6)
        await told()
        assert (adaptive.limit, adaptive.cuts) == (2, 1)

    run_virtual(main())


def test_a_call_that_is_cancelled_cuts_the_limit_if_it_took_long(adaptive: SharedConcurrency) -> None:
    async def main() -> None:
        await adaptive.acquire()
        adaptive.cancelled(began=0.0, now=1.0)
        await told()
        assert (adaptive.limit, adaptive.cuts) == (4, 0)
        adaptive.cancelled(began=0.0, now=1.1)
        await told()
        assert (adaptive.limit, adaptive.cuts) == (2, 1)

    run_virtual(main())


@pytest.mark.parametrize("latest_first", [False, True])
def test_calls_that_began_before_a_cut_do_not_hide_one_that_began_after_it(
    adaptive: SharedConcurrency, latest_first: bool
) -> None:
    async def main() -> None:
        await adaptive.acquire()
        adaptive.overloaded(began=0.0, now=0.1)
        await told()
        assert adaptive.limit == 2
        for began in sorted((0.0, now()), reverse=latest_first):
            adaptive.overloaded(began, now())
        await told()
        assert (adaptive.limit, adaptive.cuts) == (1, 2)
        await told()  # and each is told once
        assert adaptive.cuts == 2

    run_virtual(main())


def test_a_place_that_is_known_to_be_scarce_is_given_back_at_once(scope: SharedLimit) -> None:
    async def main() -> float:
        first, second = (SharedConcurrency(2, scope=scope) for _ in range(2))
        for _ in range(2):
            await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(HEARTBEAT + 2 * POLL)
        began = now()
        first.release()
        await waiting
        return now() - began

    assert run_virtual(main()) <= 2 * POLL


@pytest.mark.parametrize("seen", ["alive", "unknown"])
def test_closing_gives_back_at_once_what_no_call_has(
    scope: SharedLimit, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> float:
        first, second = (SharedConcurrency(2, scope=scope) for _ in range(2))
        for _ in range(2):
            await first.acquire()
        for _ in range(2):
            first.release()
        await first.close()
        assert not first.try_acquire()
        began = now()
        for _ in range(2):
            await second.acquire()
        return now() - began

    monkeypatch.setattr(places, "presence", lambda holder: seen)
    assert run_virtual(main()) < POLL < LEASE


class Watched(SharedLimit):
    """One that notes how many calls the store believes to run, each time that it is told."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.running: list[int] = []

    def records(self) -> Records:
        records = super().records()
        update = records.update

        async def update_and_note(name: str, change: Change[Any]) -> Any:
            def changed(record: dict[str, Any], moment: Moment) -> tuple[dict[str, Any], Any]:
                record, answer = change(record, moment)
                self.running.append(sum(one["running"] for one in record["holders"].values()))
                return record, answer

            return await update(name, changed)

        records.update = update_and_note  # type: ignore[method-assign]
        return records


def test_closing_does_not_tell_that_calls_are_over_that_run(scope: SharedLimit) -> None:
    watched = Watched(scope.url)

    async def main() -> None:
        limit = SharedConcurrency(2, scope=watched)
        for _ in range(2):
            await limit.acquire()
        await told()
        watched.running.clear()
        await limit.close()
        await told()

    run_virtual(main())
    assert set(watched.running) == {2}


def test_calls_that_may_start_do_not_wait_and_are_counted(scope: SharedLimit) -> None:
    async def main() -> None:
        limit = SharedConcurrency(2, scope=scope)
        for _ in range(2):
            await limit.acquire()
        assert limit.waited == 2
        limit.release()
        assert limit.try_acquire()
        assert not limit.try_acquire()
        assert (limit.waited, limit.in_flight) == (2, 2)

    run_virtual(main())
