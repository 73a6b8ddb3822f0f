"""Limits that several share, as several processes would: each with guards and a lease of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import pickle
import socket
import sqlite3
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from weakref import finalize

import pytest

from asyncstream import lease
from asyncstream.errors import HttpError, MissingExtra, PipelineError
from asyncstream.guards import (
    Budget,
    LimitServer,
    SharedConcurrency,
    SharedLimit,
    SharedRateLimiter,
    adaptive_concurrency,
    concurrency_limit,
    rate_limit,
)
from asyncstream.guards.shared.breaker import SharedBreaker
from asyncstream.guards.shared.sqlite import SqliteRecords
from asyncstream.lease import leave
from asyncstream.testing.loop import run_virtual
from tests.guards.services import Flaky, now_ms
from tests.guards.shared.limited_process import Lateness


async def at_once(guards: list[Any], calls: int) -> None:
    """So many calls, in turn by each of the guards."""
    async with asyncio.timeout(30):
        for guard in guards:
            await guard.open()
        await asyncio.gather(*(guards[number % len(guards)](number) for number in range(calls)))
        for guard in guards:
            await guard.close()


# ------------------------------------------------------------------ rates


def test_guards_with_the_same_scope_have_one_rate(scope: SharedLimit) -> None:
    service = Flaky(0)
    run_virtual(at_once([rate_limit(service, rate=10, scope=scope) for _ in range(3)], 25))
    times = sorted(service.times)
    assert times[:10] == [0] * 10
    # whose thread comes to the store first is chance, and so is whether one is lent ahead what another waits
    # for: it is back within a lease, or two
    assert all(1000 <= time <= 1400 for time in times[10:20])
    assert all(2000 <= time <= 2400 for time in times[20:])
    assert all(later - earlier >= 1000 for earlier, later in zip(times, times[10:], strict=False))


def test_limits_of_other_names_are_others(scope: SharedLimit) -> None:
    service = Flaky(0)
    scopes = [scope, SharedLimit(scope.url, name="other")]
    run_virtual(at_once([rate_limit(service, rate=10, scope=one) for one in scopes], 20))
    assert service.times == [0] * 20


def test_what_is_not_used_of_a_lease_is_there_for_others(scope: SharedLimit) -> None:
    async def main() -> list[int]:
        idle, busy = (SharedRateLimiter(10, scope=scope) for _ in range(2))
        for _ in range(3):
            await idle.acquire()
        times = []
        await asyncio.sleep(0.3)
        for _ in range(8):
            await busy.acquire()
            times.append(now_ms())
        return times

    assert run_virtual(main()) == [300] * 7 + [1000]


def test_a_holder_that_dies_costs_others_no_more_than_its_lease(scope: SharedLimit) -> None:
    async def main() -> int:
        limiter = SharedRateLimiter(10, scope=scope)
        await asyncio.gather(*(limiter.acquire() for _ in range(10)))
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # and tells nobody what it has used
        await asyncio.sleep(0.1)
        other = SharedRateLimiter(10, scope=scope)
        await asyncio.gather(*(other.acquire() for _ in range(10)))
        return now_ms()

    assert run_virtual(main()) == 1250


def test_weights_count_for_all(scope: SharedLimit) -> None:
    service = Flaky(0)
    run_virtual(at_once([rate_limit(service, rate=10, weight=4, scope=scope) for _ in range(2)], 4))
    assert sorted(service.times) == [0, 0, 1000, 1000]


@pytest.mark.parametrize(
    ("calls", "starts"),
    [
        ([(0, 6, 0), (1, 6, 10), (2, 6, 20), (0, 6, 30)], [0, 1000, 2000, 3000]),
        ([(0, 10, 0), (0, 1, 100), (1, 10, 200), (0, 10, 500)], [0, 1000, 2000, 3000]),
    ],
)
def test_calls_too_heavy_to_start_together_start_one_after_the_other(
    scope: SharedLimit, calls: list[tuple[int, float, int]], starts: list[int]
) -> None:
    """Calls are (process, weight, when), of a rate of 10."""
    times: list[int] = []

    async def call(limiter: SharedRateLimiter, weight: float, when: int) -> None:
        await asyncio.sleep(when / 1000)
        await limiter.acquire(weight)
        times.append(now_ms())

    async def main() -> None:
        limiters = [SharedRateLimiter(10, scope=scope) for _ in range(3)]
        async with asyncio.timeout(60):
            await asyncio.gather(*(call(limiters[process], weight, when) for process, weight, when in calls))
        for limiter in limiters:
            await limiter.close()

    run_virtual(main())
    assert times == starts


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come after a second, which is longer than what the store lends is good for."""

    class Slow(SqliteRecords):
        async def update(self, name: str, change: Any) -> Any:
            found = await super().update(name, change)
            await asyncio.sleep(1)
            return found

    monkeypatch.setattr("asyncstream.guards.shared.scope.SqliteRecords", Slow)


@pytest.mark.usefixtures("slow_store")
def test_calls_of_a_rate_start_though_the_store_answers_slowly(scope: SharedLimit) -> None:
    service = Flaky(0)
    run_virtual(at_once([rate_limit(service, rate=10, scope=scope) for _ in range(2)], 15))
    times = sorted(service.times)
    assert times[-1] < 10_000
    assert all(later - earlier >= 1000 for earlier, later in zip(times, times[10:], strict=False))


@pytest.mark.usefixtures("slow_store")
def test_calls_have_their_places_though_the_store_answers_slowly(scope: SharedLimit) -> None:
    service = Flaky(0, takes=0.5)
    run_virtual(at_once([concurrency_limit(service, most=3, scope=scope) for _ in range(2)], 9))
    assert len(service.times) == 9
    assert service.most_running <= 3


def test_cancelled_caller_uses_nothing(scope: SharedLimit) -> None:
    async def main() -> int:
        limiter = SharedRateLimiter(2, scope=scope)
        await asyncio.gather(limiter.acquire(), limiter.acquire())
        late = asyncio.create_task(limiter.acquire())
        other = asyncio.create_task(limiter.acquire())
        await asyncio.sleep(0.5)
        late.cancel()
        await other
        await limiter.acquire()
        await limiter.close()
        return now_ms()

    assert run_virtual(main()) == 1000


CALLS: dict[str, Callable[[SharedLimit], tuple[Any, Callable[[Any], Coroutine[Any, Any, Any]]]]] = {
    "rate": lambda scope: (SharedRateLimiter(2, scope=scope), SharedRateLimiter.acquire),
    "places": lambda scope: (SharedConcurrency(2, scope=scope), SharedConcurrency.acquire),
    "breaker": lambda scope: (SharedBreaker(scope=scope), SharedBreaker.enter),
    "breaker that refuses": lambda scope: (SharedBreaker(scope=scope), SharedBreaker.enter_at_once),
    "budget": lambda scope: (Budget(usd=2, scope=scope), lambda budget: budget.reserve({"usd": 1.0})),
}


@pytest.mark.parametrize("kind", CALLS)
def test_what_is_closed_just_after_it_was_asked_remains_usable(scope: SharedLimit, kind: str) -> None:
    async def main() -> None:
        limit, ask = CALLS[kind](scope)
        first = asyncio.create_task(ask(limit))
        await asyncio.sleep(0)  # it waits, and the task that is to ask the store has not begun
        first.cancel()
        await limit.close()
        async with asyncio.timeout(10):
            await ask(limit)
        await limit.close()

    run_virtual(main())


@pytest.mark.parametrize("passes", [1, 2, 50])
@pytest.mark.parametrize("kind", CALLS)
def test_a_call_that_waits_goes_on_when_another_has_closed_what_it_waits_for(
    scope: SharedLimit, kind: str, passes: int
) -> None:
    async def main() -> None:
        limit, ask = CALLS[kind](scope)
        waiting = asyncio.create_task(ask(limit))
        for _ in range(passes):
            await asyncio.sleep(0)
        await limit.close()
        async with asyncio.timeout(10):
            await waiting
        await limit.close()

    run_virtual(main())


@pytest.mark.parametrize("passes", [0, 1, 50])
def test_a_holder_of_places_has_come_to_its_end_when_its_loop_or_its_use_has(
    scope: SharedLimit, passes: int
) -> None:
    limit = SharedConcurrency(2, scope=scope)

    async def ask(*, closes: bool) -> None:
        asking = asyncio.create_task(limit.acquire())
        for _ in range(passes + 1):
            await asyncio.sleep(0.001 if passes else 0)
        asking.cancel()
        await asyncio.wait({asking})
        if closes:
            if not asking.cancelled():
                limit.release()
            await limit.close()

    living = set(lease._RUNS)
    run_virtual(ask(closes=False))
    assert len(lease._RUNS.keys() - living) == 1  # of many, those that tests before have left are forgotten
    run_virtual(ask(closes=True))
    assert lease._RUNS.keys() <= living


def test_guard_remains_usable_in_another_loop(scope: SharedLimit) -> None:
    service = Flaky(0)
    guard = rate_limit(service, rate=3, scope=scope)
    for _ in range(2):
        run_virtual(at_once([guard], 4))
    assert len(service.times) == 8


@pytest.mark.usefixtures("others_gone")
def test_guard_that_is_not_closed_leaves_no_thread_behind(scope: SharedLimit) -> None:
    async def main() -> None:
        await rate_limit(Flaky(0), rate=3, scope=scope)(1)

    before = threading.active_count()
    run_virtual(main())
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        gc.collect()
        time.sleep(0.01)  # of a real thread
    assert threading.active_count() <= before  # those of earlier tests may end meanwhile


def test_file_that_nobody_lets_go_of_is_closed_before_its_connection_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Noted(sqlite3.Connection):
        is_closed = False
        ends: ClassVar[list[bool]] = []

        def close(self) -> None:
            super().close()
            self.is_closed = True

        def __del__(self) -> None:
            self.ends.append(self.is_closed)

    async def main() -> None:
        records = SqliteRecords(str(tmp_path / "limits"))
        await records.update("a", lambda record, moment: (record, None))
        await records._thread.do(lambda: None)  # and the thread holds what it did before no more
        # the two in a cycle, of which the collector has come to know the connection first
        connection, kept = records._database._connection, [records._database]
        records._database.kept = kept  # type: ignore[attr-defined]
        del records
        gc.collect()
        assert connection is not None  # until here something other than the cycle held it

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Noted))
    run_virtual(main())
    gc.collect()
    assert Noted.ends == [True]


async def test_a_file_in_which_the_thread_hangs_is_not_waited_for_as_the_process_ends(tmp_path: Path) -> None:
    records = SqliteRecords(str(tmp_path / "limits"))
    await records.update("a", lambda record, moment: (record, None))
    ours = [ends for ends in finalize._registry if (kept := ends.peek()) and kept[0] is records._database]  # type: ignore[attr-defined]
    assert [ends.atexit for ends in ours] == [False]
    await records.close()


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_no_change_finds_one_before_it_in_its_future(kind: str, tmp_path: Path) -> None:
    """The time of a uvloop stands still while it waits: what others have just used would be forgotten."""
    loops = pytest.importorskip("uvloop") if kind == "uvloop" else asyncio

    async def main() -> None:
        records = SqliteRecords(str(tmp_path / "limits"))
        for _ in range(5):
            before = time.monotonic()
            moment = await records.update("a", lambda record, moment: (record, moment))
            assert before <= moment.now <= time.monotonic()
            assert before - 1 < moment.now - moment.ahead <= asyncio.get_running_loop().time()
        await records.close()

    with asyncio.Runner(loop_factory=loops.new_event_loop) as runner:
        runner.run(main())


def test_the_same_mistake_is_told_to_all_who_wait(scope: SharedLimit) -> None:
    async def main() -> None:
        await SharedRateLimiter(10, scope=scope).acquire()
        other = SharedRateLimiter(20, scope=scope)
        found = await asyncio.gather(other.acquire(), other.acquire(), return_exceptions=True)
        assert [type(error) for error in found] == [PipelineError, PipelineError]

    run_virtual(main())


# ------------------------------------------------------------------ places


@pytest.mark.parametrize("seconds", [0.1, 0.3, 2])
def test_a_place_that_comes_free_goes_at_once_to_who_waits(scope: SharedLimit, seconds: float) -> None:
    async def main() -> float:
        first, second = (SharedConcurrency(1, scope=scope) for _ in range(2))
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(seconds)
        first.release()
        await waiting
        return asyncio.get_running_loop().time() - seconds

    assert run_virtual(main()) < 0.5


@contextmanager
def no_holder_left() -> Iterator[None]:
    """Whoever counts as alive because of this block counts so no more at its end."""
    living = set(lease._RUNS)
    yield
    assert lease._RUNS.keys() <= living


class SlowToClose(SharedLimit):
    """One whose connections take a second to close."""

    def records(self) -> Any:
        records = super().records()
        close = records.close

        async def close_slowly() -> None:
            await asyncio.sleep(1)
            await close()

        records.close = close_slowly  # type: ignore[method-assign]
        return records


def test_places_of_calls_that_go_on_when_their_limit_is_closed_count(scope: SharedLimit) -> None:
    async def main() -> None:
        closed, other = (SharedConcurrency(2, scope=scope) for _ in range(2))
        for _ in range(2):
            await closed.acquire()
        await closed.close()
        waiting = asyncio.create_task(other.acquire())
        await asyncio.sleep(10)
        assert not waiting.done()
        closed.release()
        async with asyncio.timeout(1):
            await waiting
        closed.release()
        other.release()
        for limit in (closed, other):
            await limit.close()

    with no_holder_left():
        run_virtual(main())


def test_a_place_that_is_had_while_its_limit_is_closed_counts(scope: SharedLimit) -> None:
    async def main() -> None:
        closed, other = (SharedConcurrency(1, scope=one) for one in (SlowToClose(scope.url), scope))
        await other.acquire()
        waiting = asyncio.create_task(closed.acquire())
        await asyncio.sleep(0.3)
        closing = asyncio.create_task(closed.close())
        await asyncio.sleep(0)
        other.release()
        await waiting
        assert not closing.done()
        await closing
        last = asyncio.create_task(other.acquire())
        await asyncio.sleep(3)
        assert not last.done()
        closed.release()
        await last
        other.release()
        for limit in (closed, other):
            await limit.close()

    with no_holder_left():
        run_virtual(main())


def most_of(guards: list[Any], calls: int) -> None:
    run_virtual(at_once(guards, calls))


def test_guards_with_the_same_scope_have_one_number_of_places(scope: SharedLimit) -> None:
    service = Flaky(0, takes=1.0)
    most_of([concurrency_limit(service, most=3, scope=scope) for _ in range(3)], 20)
    assert service.most_running == 3
    assert max(service.times) < 8_000  # 7 rounds of a second, and a look now and then between them


def test_one_place_goes_round(scope: SharedLimit) -> None:
    order: list[str] = []

    def noting(name: str) -> Callable[[int], Awaitable[None]]:
        async def call(value: int) -> None:
            order.append(name)
            await asyncio.sleep(1)

        return call

    most_of([concurrency_limit(noting(name), most=1, scope=scope) for name in "ab"], 10)
    assert sorted(order) == ["a"] * 5 + ["b"] * 5
    assert {*order[2:4]} == {*order[4:6]} == {"a", "b"}


def test_places_of_one_that_dies_are_free_within_a_second(scope: SharedLimit) -> None:
    async def main() -> int:
        dead = SharedConcurrency(4, scope=scope)
        await asyncio.gather(*(dead.acquire() for _ in range(4)))
        await asyncio.sleep(5)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        assert dead._holder is not None
        leave(dead._holder)  # as the end of its process would
        other = SharedConcurrency(4, scope=scope)
        began = now_ms()
        await asyncio.gather(*(other.acquire() for _ in range(4)))
        return now_ms() - began

    assert run_virtual(main()) < 1000


def test_without_a_scope_it_is_a_semaphore() -> None:
    service = Flaky(0, takes=1.0)
    run_virtual(at_once([concurrency_limit(service, most=2)], 6))
    assert service.most_running == 2
    assert sorted(service.times) == [0, 0, 1000, 1000, 2000, 2000]


def test_what_one_finds_out_about_a_service_holds_for_all(scope: SharedLimit) -> None:
    async def main() -> tuple[int, int]:
        overloaded = HttpError("http://x", 503, "too much", retryable=True)
        one = adaptive_concurrency(
            Flaky(1000, overloaded, takes=0.1), least=1, most=64, start=64, scope=scope
        )
        other = adaptive_concurrency(Flaky(0, takes=0.1), least=1, most=64, start=64, scope=scope)
        for _ in range(6):
            await asyncio.gather(*(one(number) for number in range(4)), return_exceptions=True)
            await asyncio.sleep(0.5)
        await asyncio.gather(*(other(number) for number in range(50)))
        found = other.counters()["concurrency_limit"], one.counters()["concurrency_cuts"]
        await one.close()
        await other.close()
        return found

    limit, cuts = run_virtual(main())
    assert cuts >= 3
    assert limit < 40


# ------------------------------------------------------------------ stores


async def test_every_store_keeps_a_rate(any_scope: SharedLimit) -> None:
    service, late = Flaky(0), Lateness(multiprocessing)
    async with late:
        await at_once([rate_limit(service, rate=20, per=0.4, scope=any_scope) for _ in range(3)], 50)
    times = sorted(service.times)
    least = 398 - 1000 * late.worst
    assert all(later - earlier >= least for earlier, later in zip(times, times[20:], strict=False))
    assert times[-1] - times[0] < 3_000 + 1000 * late.lost


async def test_every_store_keeps_places(any_scope: SharedLimit) -> None:
    service = Flaky(0, takes=0.02)
    await at_once([concurrency_limit(service, most=3, scope=any_scope) for _ in range(2)], 20)
    assert service.most_running == 3


async def test_while_the_store_is_away_the_last_lease_is_used_and_then_calls_wait(
    server: LimitServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # real time: it takes a busy machine longer than a quarter of a second to close the server
    monkeypatch.setattr("asyncstream.guards.shared.rates.LONGEST_LEASE", 60.0)
    caplog.set_level(logging.WARNING, "asyncstream.limits")
    limiter = SharedRateLimiter(1000, per=120, scope=SharedLimit(server.url))
    guard = rate_limit(Flaky(0), limiter=limiter)
    async with asyncio.timeout(60), guard:
        await asyncio.gather(*(guard(number) for number in range(50)))
        calls = [asyncio.create_task(guard(number)) for number in range(2)]
        await asyncio.wait(calls)  # of these the lease has more than is used
        await asyncio.to_thread(server.close)
        left = 0
        while limiter.try_acquire():
            left += 1
        assert 0 < left <= 1000  # what was leased, at once
        waiting = asyncio.create_task(guard(0))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
        assert guard.counters()["limit_store_away"] == 1
        server.start()
        await waiting
        assert guard.counters()["limit_store_away"] == 0
    assert [record.message for record in caplog.records if "away" in record.message][1:] == []


@pytest.mark.parametrize("passes", range(5))
def test_a_client_that_comes_as_a_server_is_closed_is_not_left_waiting(
    server: LimitServer, passes: int
) -> None:
    loop, clients = server._loop, list[socket.socket]()
    assert loop is not None

    def end(passes: int) -> None:
        if passes:
            loop.call_soon(end, passes - 1)
        else:
            server._end.set()

    def come() -> None:
        clients.append(socket.create_connection(("127.0.0.1", server._port)))
        end(passes)  # so many passes of the loop later

    loop.call_soon_threadsafe(come)
    server.close()
    (client,) = clients
    with client, suppress(ConnectionResetError):  # it was not let in
        client.settimeout(10)
        while client.recv(100):
            pass


async def test_a_wrong_secret_is_not_served(server: LimitServer) -> None:
    secret = server.url.partition("://")[2].partition("@")[0]
    limiter = SharedRateLimiter(5, scope=SharedLimit(server.url.replace(secret, "guessed")))
    waiting = asyncio.create_task(limiter.acquire())
    async with asyncio.timeout(60):
        while not limiter.away:  # noqa: ASYNC110 - of a real server
            await asyncio.sleep(0.01)
    done, _ = await asyncio.wait({waiting}, timeout=0.3)
    assert not done
    assert limiter.away
    waiting.cancel()
    await asyncio.wait({waiting})
    await limiter.close()


async def test_who_does_not_know_the_secret_leaves_room_for_others(
    server: LimitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection takes a file of the process, of which it has a thousand, say."""
    monkeypatch.setattr("asyncstream.guards.shared.server.STRANGERS", 5)
    async with asyncio.timeout(60), rate_limit(Flaky(0), rate=100, scope=SharedLimit(server.url)) as known:
        await known(1)
        strangers = [await asyncio.open_connection("127.0.0.1", server._port) for _ in range(20)]
        for reader, _ in strangers[:15]:
            while await reader.read(100):  # the challenge, and the end
                pass
        await known(2)
        async with rate_limit(Flaky(0), rate=100, scope=SharedLimit(server.url)) as another:
            await another(3)
        assert len(server._strangers) <= 5
        for _, writer in strangers:
            writer.close()


def test_a_scope_shows_no_secrets() -> None:
    assert "secret" not in repr(SharedLimit("redis://:secret@cache:6379/0"))
    assert "secret" not in repr(SharedLimit("limits://secret@driver:7000"))


def test_without_its_library_a_redis_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "redis.asyncio.connection", None)
    with pytest.raises(MissingExtra, match=r"asyncstream\[redis\]"):
        SharedLimit("redis://cache")


def test_limiters_go_to_other_processes(scope: SharedLimit) -> None:
    rate = SharedRateLimiter(7, per=2, scope=scope)
    again = pickle.loads(pickle.dumps(rate))
    assert (again.rate, again.per, again.scope.url) == (7, 2, scope.url)
    places = SharedConcurrency(7, least=2, scope=scope)
    assert pickle.loads(pickle.dumps(places)).rule == places.rule


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SharedLimit("postgres://x"),
        lambda: SharedLimit("sqlite:///"),
        lambda: SharedLimit("limits://nowhere"),
        lambda: SharedLimit("sqlite:///x.db", name=""),
        lambda: rate_limit(Flaky(0), rate=10, burst=2, scope=SharedLimit("sqlite:///x.db")),
        lambda: rate_limit(Flaky(0), rate=10, scope="sqlite:///x.db"),  # type: ignore[call-overload]
        lambda: concurrency_limit(Flaky(0)),
        lambda: concurrency_limit(Flaky(0), most=0),
        lambda: concurrency_limit(Flaky(0), limit=3),  # type: ignore[call-overload]
        lambda: adaptive_concurrency(Flaky(0), method="gradient", scope=SharedLimit("sqlite:///x.db")),
        lambda: SharedConcurrency(5, decrease="half", scope=SharedLimit("sqlite:///x.db")),  # type: ignore[arg-type]
        lambda: SharedConcurrency(5, least=2, start=1, scope=SharedLimit("sqlite:///x.db")),
        lambda: LimitServer(port=70_000),
    ],
)
def test_wrong_arguments_are_refused(wrong: Callable[[], object]) -> None:
    with pytest.raises(PipelineError):
        wrong()
