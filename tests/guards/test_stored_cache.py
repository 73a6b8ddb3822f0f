"""A cache that outlives the process: in SQLite, alone and shared, damaged and full."""

from __future__ import annotations

import asyncio
import logging
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from asyncstream import AsyncFunction, ManualClock, Pipeline, PipelineError
from asyncstream.connectors.http import HttpLookup
from asyncstream.errors import DamagedCache, HttpError, StateError
from asyncstream.guards import CacheStore, Guard, SqliteCache, cached, in_threads, retry
from asyncstream.guards.cache_store import Group
from asyncstream.testing.loop import run_virtual
from tests.guards.services import Flaky

pytestmark = pytest.mark.usefixtures("virtual_time")

ROOT = Path(__file__).parents[2]

DAY = 86_400_000


class Answers(Flaky):
    """A service whose answers can be told from those of before."""

    async def __call__(self, value: Any) -> Any:
        answered = await super().__call__(value)
        return {"of": answered, "number": len(self.times)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "answers.db"


async def answers(guard: Guard[Any, Any], *values: Any) -> list[Any]:
    async with guard:
        return [await guard(value) for value in values]


async def test_what_was_answered_in_an_earlier_life_is_not_asked_for(file: Path) -> None:
    values = [1, "a", ("b", 2.5), None, b"x", 10**30, "\ud800", frozenset({"p", "q"})]
    service = Answers(0)
    first = await answers(cached(service, store=file), *values)
    assert len(service.times) == len(values)

    later = cached(service, store=file)
    assert await answers(later, *values, *values) == first * 2
    assert len(service.times) == len(values)
    assert later.metrics() == {
        "cached": 2 * len(values),
        "cache_misses": 0,
        "cache_renewed": 0,
        "cache_stored": len(values),
    }
    assert set(later.counter_names()) == set(later.metrics())


@pytest.mark.usefixtures("tidy")
async def test_a_store_may_be_closed_in_the_pass_in_which_it_was_read(file: Path) -> None:
    await answers(cached(Answers(0), store=file), 1)
    assert await answers(cached(Answers(0), store=file), 1) == [{"of": 1, "number": 1}]
    await asyncio.sleep(0)


async def test_a_pipeline_that_is_started_again_makes_no_call(file: Path) -> None:
    service = Answers(0)

    async def run() -> list[Any]:
        results: list[Any] = []
        pipeline = Pipeline("planes")
        guarded = retry(cached(service, store=f"sqlite:///{file}"))
        pipeline.source(range(3000)).async_map(guarded, concurrency=100).to(results)
        await pipeline.run()
        return results

    first = await run()
    assert len(service.times) == 3000
    assert await run() == first
    assert len(service.times) == 3000


class SetBack:
    """The machine's clock, which its owner sets."""

    def __init__(self) -> None:
        self.ms = 10 * DAY

    def now_ms(self) -> int:
        return self.ms


async def test_time_goes_by_the_wall_clock_in_both_tiers(file: Path) -> None:
    service, clock = Answers(0), ManualClock(DAY)

    def life() -> Guard[Any, Any]:
        return cached(service, store=file, ttl=10, clock=clock)

    async with life() as guarded:
        await guarded(1)
        clock.set_ms(DAY + 9_999)
        await guarded(1)
        assert len(service.times) == 1
    clock.set_ms(DAY + 10_000)
    async with life() as guarded:
        await guarded(1)
        assert len(service.times) == 2
        await asyncio.sleep(1000)  # of the event loop, not of the clock
        await guarded(1)
        assert len(service.times) == 2


@pytest.mark.parametrize(
    ("before", "ahead", "asked"),
    [(10, 365 * DAY, 2), (10, 5_000, 1), (None, 0, 2), (3600, 0, 2)],
    ids=["a year ahead", "a little ahead", "kept for ever then", "kept for longer then"],
)
async def test_an_answer_that_would_be_kept_for_too_long_is_asked_for_again(
    file: Path, before: int | None, ahead: int, asked: int
) -> None:
    service, clock = Answers(0), ManualClock(DAY + ahead)
    await answers(cached(service, store=file, ttl=before, clock=clock), 1)
    for _ in range(2):
        await answers(cached(service, store=file, ttl=10, clock=ManualClock(DAY)), 1)
        assert len(service.times) == asked


@pytest.mark.parametrize("options", [{}, {"lease": 5}], ids=["", "with a lease"])
async def test_an_answer_in_memory_does_not_outlive_its_time_where_the_clock_is_set_back(
    file: Path, options: dict[str, Any]
) -> None:
    """A machine that was a day ahead is put right: what was good for ten seconds was so for a day."""
    service, clock = Answers(0), SetBack()
    async with cached(service, store=file, ttl=10, clock=clock, **options) as guarded:
        await guarded(1)
        clock.ms -= DAY
        await guarded(1)
        assert len(service.times) == 2
        clock.ms += 9_999
        await guarded(1)
        assert len(service.times) == 2
        clock.ms += 1
        await guarded(1)
        assert len(service.times) == 3


async def test_negative_answers_and_errors_are_kept_for_their_time(file: Path) -> None:
    service, clock = (
        Flaky(1, HttpError("http://planes/1", 404, "no such plane", retryable=False)),
        ManualClock(),
    )
    nothing = Flaky(0)

    def life(called: Flaky) -> Guard[Any, Any]:
        options: Any = {"errors": HttpError, "negative_ttl": 5, "ttl": 60}
        return cached(called, store=file, clock=clock, name=str(called is nothing), **options)

    for _ in range(2):
        async with life(service) as guarded:
            for _ in range(2):
                with pytest.raises(HttpError, match="no such plane"):
                    await guarded(1)
        assert await answers(life(nothing), None) == [None]
    assert len(service.times) == len(nothing.times) == 1
    clock.set_ms(5_000)
    assert await answers(life(service), 1) == [1]
    assert await answers(life(nothing), None) == [None]
    assert len(nothing.times) == 2


async def test_an_answer_that_is_not_to_be_kept_takes_the_one_before_with_it(file: Path) -> None:
    given: list[Any] = ["a", None, "b"]

    async def ask(_: int) -> Any:
        return given.pop(0)

    clock = ManualClock()
    for when, expected in ((0, "a"), (10_000, None), (10_001, "b")):
        clock.set_ms(when)
        guarded = cached(ask, store=file, ttl=10, stale_if_error=100, negative_ttl=0, clock=clock)
        assert await answers(guarded, 1) == [expected]


async def test_a_stale_answer_of_an_earlier_life_is_given_and_renewed(file: Path) -> None:
    service, clock = Answers(0), ManualClock()
    service.takes = 1.0

    def life() -> Guard[Any, Any]:
        return cached(service, store=file, ttl=10, stale_for=5, clock=clock)

    await answers(life(), 1)
    clock.set_ms(12_000)
    async with life() as guarded:
        assert [(await guarded(1))["number"] for _ in range(3)] == [1, 1, 1]
        await asyncio.sleep(2)
        assert (await guarded(1))["number"] == 2
        assert guarded.metrics()["cache_renewed"] == 1
    clock.set_ms(21_000)
    assert (await answers(life(), 1))[0]["number"] == 2


async def test_what_another_process_has_renewed_is_not_renewed_again(file: Path) -> None:
    service, clock = Answers(0), ManualClock()

    def life() -> Guard[Any, Any]:
        return cached(service, store=file, ttl=10, stale_for=50, clock=clock)

    async with life() as one, life() as other:
        for guarded in (one, other):
            await guarded(1)
            await asyncio.sleep(1)
        clock.set_ms(11_000)
        await one(1)
        await asyncio.sleep(1)
        assert (await one(1))["number"] == (await other(1))["number"] == 2
        assert len(service.times) == 2


@pytest.mark.parametrize("stored", [True, False])
async def test_an_old_answer_stands_in_for_a_call_that_fails(file: Path, stored: bool) -> None:
    service, clock = Answers(0), ManualClock()
    options: Any = {"store": file, "clock": clock} if stored else {}

    async def wait(seconds: int) -> None:
        await asyncio.sleep(seconds)
        clock.set_ms(clock.now_ms() + seconds * 1000)

    async with cached(service, ttl=10, stale_if_error=100, **options) as guarded:
        assert await guarded(1) == {"of": 1, "number": 1}
        await wait(20)
        service.failures = 2
        assert [await guarded(1), await guarded(1)] == [{"of": 1, "number": 1}] * 2
        assert guarded.metrics()["cache_stale_on_error"] == 2
        assert (await guarded(1))["number"] == 4
        await wait(11)
        for error in (TypeError("a mistake"), HttpError("http://planes", 400, "no", retryable=False)):
            service.failures, service.error = 1, error
            with pytest.raises(type(error)):
                await guarded(1)
        await wait(99)
        service.failures, service.error = 1, OSError("down")
        with pytest.raises(OSError, match="down"):
            await guarded(1)


# ------------------------------------------------------------------ whose answers they are


def made(text: str) -> Callable[..., Awaitable[Any]]:
    space: dict[str, Any] = {"__name__": "m"}
    exec(f"async def f(x, y=1):\n    return {text}", space)
    function: Callable[..., Awaitable[Any]] = space["f"]
    return function


async def test_answers_are_not_found_by_another_key(file: Path) -> None:
    """Which may be what another element had by the first."""

    async def ask(order: dict[str, int]) -> dict[str, int]:
        return order

    keys: Any = ["id", ("id",), "sku", lambda order: order["id"], lambda order: order["sku"], "id"]
    found = []
    for key in keys:
        async with cached(ask, key=key, store=file) as kept:
            await kept({"id": 5, "sku": 7})
            assert await kept({"id": 7, "sku": 5}) == {"id": 7, "sku": 5}
            found.append(kept.metrics()["cache_misses"])
    assert found == [2, 2, 2, 2, 2, 0]


async def test_a_function_in_threads_finds_nothing_of_another_one(file: Path) -> None:
    functions: dict[Any, Any] = {abs: 1, ascii: "-1"}
    for function, answer in functions.items():
        async with cached(in_threads(function), store=file) as kept:
            assert await kept(-1) == answer


async def test_a_function_in_threads_is_the_same_in_several_guards(file: Path) -> None:
    first = cached(in_threads(ascii), store=(store := SqliteCache(file)))
    second = cached(in_threads(ascii), store=store)
    async with first, second:
        assert [await first(1), await second(1)] == ["1", "1"]
    assert second.metrics()["cache_misses"] == 0


async def test_a_function_of_other_code_finds_nothing(file: Path) -> None:
    assert await answers(cached(made("x + 1"), store=file), 1) == [2]
    assert await answers(cached(made("x + 2"), store=file), 1) == [3]
    assert await answers(cached(partial(made("x + y"), y=4), store=file), 1) == [5]
    assert await answers(cached(partial(made("x + y"), y=5), store=file), 1) == [6]
    assert await answers(cached(made("x + 1"), store=file, name="v2"), 1) == [2]
    renamed = cached(made("x + 1"), store=file)
    assert await answers(renamed, 1) == [2]
    assert renamed.metrics()["cache_misses"] == 0


@pytest.mark.parametrize("others", ["the same", "path", "address", "another object"])
async def test_functions_that_look_alike_are_refused_in_one_store(file: Path, others: str) -> None:
    def asking(service: str) -> Any:
        async def ask(_: int) -> str:
            return service

        return ask

    store, asked = SqliteCache(file), asking("a")
    told = {"the same": store, "path": file, "address": f"sqlite:///{file}"}
    other: Any = told.get(others) or SqliteCache(f"{file.parent}/./{file.name}")
    async with cached(asked, store=store), cached(asked, store=other):
        with pytest.raises(PipelineError, match=r"look alike .* cached\(\.\.\., name='planes'\)"):
            await answers(cached(asking("b"), store=other), 1)
        assert await answers(cached(asking("b"), store=other, name="b"), 1) == ["b"]


def test_function_of_an_event_loop_that_has_ended_without_a_close_keeps_none_out(file: Path) -> None:
    async def ask(number: int) -> int:
        async def asked(given: int) -> int:
            return given + number

        guarded = cached(asked, store=file)
        await guarded.open()
        return await guarded(number)

    assert [asyncio.run(ask(number)) for number in (1, 2)] == [2, 4]


async def test_requests_of_lookups_are_told_apart_by_what_is_asked(file: Path) -> None:
    asked: list[str] = []

    class Lookup(HttpLookup):
        async def _send(self, request: Any) -> str:
            asked.append(str(request.url))
            return asked[-1]

    async def run(host: str) -> list[Any]:
        async with Lookup(f"http://{host}/{{}}", cache_ttl=60, cache_options={"store": file}) as lookup:
            return [await lookup.invoke(number) for number in (1, 2, 1)]

    for _ in range(2):
        assert await run("a") == ["http://a/1", "http://a/2", "http://a/1"]
        assert await run("b") == ["http://b/1", "http://b/2", "http://b/1"]
    assert len(asked) == 4


# ------------------------------------------------------------------ one call for all processes


async def test_one_process_of_all_makes_the_call(file: Path) -> None:
    service = Answers(0, takes=3.0)
    guards = [cached(service, store=file, lease=30) for _ in range(4)]
    for guard in guards:
        await guard.open()
    found = await asyncio.gather(*(guard(value) for guard in guards for value in (1, 2, 1)))
    assert len(service.times) == 2
    assert sorted(answer["of"] for answer in found) == [1] * 8 + [2] * 4
    for guard in guards:
        await guard.close()


async def test_a_call_that_fails_is_made_by_the_next(file: Path) -> None:
    service = Answers(2, takes=1.0)
    guards = [cached(service, store=file, lease=30) for _ in range(3)]
    for guard in guards:
        await guard.open()
    found = await asyncio.gather(*(guard(1) for guard in guards), return_exceptions=True)
    assert [type(answer) for answer in found if isinstance(answer, Exception)] == [OSError, OSError]
    assert len(service.times) == 3
    assert service.most_running == 1
    for guard in guards:
        await guard.close()


async def test_who_has_renewed_an_answer_does_not_keep_others_from_the_next_time(file: Path) -> None:
    service, clock = Answers(0), ManualClock(DAY)
    one, other = (
        cached(service, store=file, ttl=10, stale_for=100, lease=1000, clock=clock) for _ in range(2)
    )
    async with one, other:
        await one(1)
        for guard in (one, other):
            clock.set_ms(clock.now_ms() + 20_000)
            await guard(1)
            await asyncio.sleep(1)
            assert guard.metrics()["cache_renewed"] == 1


@pytest.mark.parametrize("lease", [None, 60])
async def test_each_call_is_counted_once_whoever_has_made_it(file: Path, lease: float | None) -> None:
    service = Flaky(1, takes=1)
    guarded = cached(service, store=file, lease=lease)
    async with guarded:
        for _ in range(3):
            calls = [asyncio.create_task(guarded(number % 3)) for number in range(12)]
            calls[0].cancel()
            await asyncio.wait(calls)
        found = guarded.metrics()
    counted = [
        found[name] for name in ("cached", "cache_misses", "coalesced") if name in guarded.counter_names()
    ]
    assert sum(counted) == 3 * 11  # the one that is cancelled has not begun
    assert found["cache_misses"] == len(service.times)


async def test_a_call_that_takes_longer_than_its_lease_is_not_waited_for(file: Path) -> None:
    clock_start = asyncio.get_running_loop().time()
    stuck, service = Answers(0, takes=1e6), Answers(0)
    one, other = (cached(called, store=file, name="it", lease=0.05) for called in (stuck, service))
    async with one, other:
        waiting = asyncio.create_task(one(1))
        while not stuck.times:  # noqa: ASYNC110 - of what is tested
            await asyncio.sleep(0.001)
        while not service.times:  # leases go by the machine's clock
            assert (await other(1))["of"] == 1
        waiting.cancel()
    assert asyncio.get_running_loop().time() - clock_start < 1e5


HOLDER = """
import asyncio, sys
from asyncstream.guards import SqliteCache

async def main():
    store = SqliteCache(sys.argv[1])
    await store.open()
    assert await store.lease(b"k" * 16, 3_600_000)
    print("held", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_the_lease_of_a_process_that_was_killed_is_free_at_once(file: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(file)]
    holder = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)  # noqa: ASYNC220 - a real one
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    store = SqliteCache(file)
    await store.open()
    assert not await store.lease(b"k" * 16, 60_000)
    holder.send_signal(signal.SIGKILL)
    holder.wait(60)
    holder.stdout.close()
    assert await store.lease(b"k" * 16, 60_000)
    assert not await store.lease(b"k" * 16, 60_000)
    store.release(b"k" * 16)
    await asyncio.sleep(1)
    assert await store.lease(b"k" * 16, 60_000)
    await store.close()


async def test_leases_are_granted_after_what_was_put_and_released_before(file: Path) -> None:
    one, other = SqliteCache(file), SqliteCache(file)
    await one.open()
    await other.open()
    assert await one.lease(b"k" * 16, 60_000)
    one.put(b"k" * 16, b"answer", None)
    one.release(b"k" * 16)
    for _ in range(5_000):
        if await other.lease(b"k" * 16, 60_000):
            break
        await asyncio.sleep(0.001)
    assert await other.get(b"k" * 16) == b"answer", "what is put is seen when the lease is free"
    await one.close()
    await other.close()


async def test_a_lease_that_is_granted_to_a_caller_who_is_being_cancelled_is_given_back() -> None:
    released: list[bytes] = []

    class Granting(CacheStore):
        """Grants every wish, and has the first caller cancelled before it knows."""

        async def write(self, group: Group) -> Iterator[bool]:
            released.extend(group.releases)
            return self.granting(group)

        def granting(self, group: Group) -> Iterator[bool]:
            for _ in group.wishes:
                yield True
                first.cancel()

    store = Granting(1)
    await store.open()
    first, second = (asyncio.create_task(store.lease(key * 16, 60_000)) for key in (b"a", b"b"))
    await asyncio.wait({first, second})
    assert first.cancelled()
    assert await second
    await store.close()
    assert released == [b"a" * 16]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks")
async def test_what_is_written_at_once_is_not_the_last_also_if_tasks_are_eager() -> None:
    """The task that writes was noted as under way after it had ended, and nothing was written any more."""

    class Quick(CacheStore):
        async def write(self, group: Group) -> list[bool]:
            return [True] * len(group.wishes)

    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
    store = Quick(1)
    await store.open()
    async with asyncio.timeout(60):
        for key in (b"a", b"b", b"c"):
            assert await store.lease(key * 16, 60_000)
    await store.close()


async def test_a_store_that_is_closed_for_no_longer_than_it_may_is_disconnected_all_the_same() -> None:
    class Hanging(CacheStore):
        is_connected = True

        async def write(self, group: Group) -> list[bool]:
            await asyncio.sleep(1e6)
            return []

        async def disconnect(self) -> None:
            self.is_connected = False

    store = Hanging(1)
    await store.open()
    store.put(b"k" * 16, b"answer", None)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await store.close()
    assert not store.is_connected


async def test_a_store_that_does_not_answer_is_left_alone_for_a_second_and_holds_up_no_call() -> None:
    """Who wished for a lease waited, each time, until the store had failed once more."""
    groups = 0

    class Silent(CacheStore):
        async def write(self, group: Group) -> list[bool]:
            nonlocal groups
            groups += 1
            await asyncio.sleep(1)
            raise TimeoutError

    store = Silent(1)
    await store.open()
    time = asyncio.get_running_loop().time
    began = time()
    for number in range(500):
        assert await store.lease(key_of(number), 60_000)
        store.put(key_of(number), b"answer", None)
        store.release(key_of(number))
        await asyncio.sleep(0.01)
    assert time() - began < 12, "five seconds, and one for each time that the store was tried"
    assert groups <= 6
    await store.close()


# ------------------------------------------------------------------ bounds


def key_of(number: int) -> bytes:
    return blake2b(b"%d" % number, digest_size=16).digest()


def rows(file: Path) -> list[bytes]:
    connection = sqlite3.connect(file)
    try:
        return [row[0] for row in connection.execute("SELECT answer FROM answers ORDER BY written")]
    finally:
        connection.close()


async def test_neither_tier_grows_beyond_its_size(file: Path) -> None:
    service = Answers(0)
    async with cached(service, store=SqliteCache(file, size=100), size=10) as guarded:
        for value in range(1000):
            await guarded(value)
            if value % 7 == 0:
                await asyncio.sleep(1)
        await asyncio.sleep(1)
        assert 95 <= len(rows(file)) <= 100
        assert len(guarded._cache) == 10  # type: ignore[attr-defined]
        calls = len(service.times)
        for value in range(910, 1000):
            await guarded(value)
        assert len(service.times) == calls, "the newest are kept"


async def test_what_is_written_again_makes_nobody_leave(file: Path) -> None:
    store = SqliteCache(file, size=100)
    await store.open()
    for turn in range(50):
        for number in range(100):
            store.put(key_of(number), b"%d" % turn, None)
        await asyncio.sleep(1)
    assert rows(file) == [b"49"] * 100
    await store.close()


async def test_several_writers_do_not_go_beyond_the_size_together(file: Path) -> None:
    stores = [SqliteCache(file, size=100) for _ in range(3)]
    for store in stores:
        await store.open()
    for number in range(600):
        stores[number % 3].put(key_of(number), b"", None)
        if number % 10 == 0:
            await asyncio.sleep(1)
    await asyncio.sleep(1)
    assert len(rows(file)) <= 100
    for store in stores:
        await store.close()


@pytest.fixture
def little_room(monkeypatch: pytest.MonkeyPatch) -> int:
    """Answers that may wait."""
    monkeypatch.setattr("asyncstream.guards.cache_store.MOST_WAITING", 300)
    return 300


async def test_calls_that_are_quicker_than_the_disk_wait_for_it(file: Path, little_room: int) -> None:
    service = Answers(0)
    await answers(cached(service, store=file), *range(5 * little_room))
    assert len(rows(file)) == 5 * little_room


async def test_no_more_waits_to_be_written_than_there_is_room_for(file: Path, little_room: int) -> None:
    store = SqliteCache(file)
    await store.open()
    for number in range(2 * little_room + 5):
        store.put(key_of(number), b"", None)
    assert await store.get(key_of(4)) is None
    assert await store.get(key_of(5)) == b""
    await store.close()
    assert len(rows(file)) == 2 * little_room


# ------------------------------------------------------------------ damage


async def filled(file: Path) -> None:
    await answers(cached(Answers(0), store=file), *range(2000))


def content(file: Path, new: bytes | None = None) -> bytes:
    """All that is in a file, after it was given something new perhaps."""
    if new is not None:
        file.write_bytes(new)
    return file.read_bytes()


def damaged(file: Path, pages: slice = slice(1, None)) -> None:
    data = bytearray(file.read_bytes())
    for place in range(0, len(data), 4096)[pages]:
        data[place : place + 64] = b"\xff" * 64
    file.write_bytes(data)


@pytest.mark.parametrize("how", ["pages", "header"])
async def test_a_damaged_file_is_refused_or_begun_anew(
    file: Path, how: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(file)
    if how == "pages":
        damaged(file)
    else:
        content(file, b"not a database, but long enough to be one" * 100)
    monkeypatch.setattr("asyncstream.guards.sqlite_cache._examined", set())
    before = content(file)
    with pytest.raises(DamagedCache, match=r"answers\.db is damaged: .* on_damage='renew'"):
        await answers(cached(Answers(0), store=file), 1)
    assert content(file) == before

    service = Answers(0)
    for _ in range(2):
        await answers(cached(service, store=SqliteCache(file, on_damage="renew")), 1)
    assert len(service.times) == 1
    assert "the cache begins anew" in caplog.text
    assert content(file.with_name("answers.db.damaged")) == before


@pytest.mark.parametrize("place", [1, 2, 3])
async def test_a_file_that_another_process_makes_at_the_same_moment_is_taken(
    file: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused, as one that was made for something else."""
    connect, done = sqlite3.connect, 0

    class Overtaken(sqlite3.Connection):
        def execute(self, *args: Any) -> sqlite3.Cursor:
            nonlocal done
            done += 1
            if done == place:
                with monkeypatch.context() as others:
                    others.setattr(sqlite3, "connect", connect)
                    for connection in SqliteCache(file)._open_file():
                        connection.close()
            return super().execute(*args)

    monkeypatch.setattr(sqlite3, "connect", partial(connect, factory=Overtaken))
    store = SqliteCache(file)
    await store.open()
    assert done > place
    await store.close()


async def test_a_cache_without_its_folder_is_refused_with_what_to_do(tmp_path: Path) -> None:
    store = SqliteCache(tmp_path / "none" / "answers.db", on_damage="renew")
    with pytest.raises(StateError, match=r"answers\.db cannot be opened: .*; its folder must be there"):
        await answers(cached(Answers(0), store=store), 1)


async def test_a_file_that_is_locked_is_not_taken_for_damaged(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(file)
    monkeypatch.setattr("asyncstream.guards.sqlite_cache._PATIENCE", 0)
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError, match=r"answers\.db cannot be opened: .* locked$"):
            await answers(cached(Answers(0), store=SqliteCache(file, on_damage="renew")), 1)
    assert not file.with_name("answers.db.damaged").exists()


async def test_a_database_of_something_else_is_left_alone(file: Path) -> None:
    connection = sqlite3.connect(file)
    connection.execute("CREATE TABLE orders (id)")
    connection.close()
    before = content(file)
    with pytest.raises(PipelineError, match="path: expected a database of a cache, or none yet"):
        await answers(cached(Answers(0), store=SqliteCache(file, on_damage="renew")), 1)
    assert content(file) == before


async def test_damage_that_turns_up_later_is_said_and_nothing_of_it_is_given_out(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await filled(file)
    service = Answers(0)
    async with cached(service, store=SqliteCache(file)) as guarded:
        damaged(file)
        found = [await guarded(value) for value in range(2000)]
    assert [answer["of"] for answer in found] == list(range(2000))
    assert "is damaged" in caplog.text
    assert caplog.text.count("The cache goes on in memory") == 1
    with pytest.raises(DamagedCache):
        await answers(cached(service, store=file), 1)


async def test_nothing_is_written_into_a_file_that_was_found_damaged(file: Path) -> None:
    await filled(file)
    async with cached(Answers(0), store=SqliteCache(file)) as guarded:
        damaged(file, pages=slice(40, 44))
        for value in range(2000):
            await guarded(value)
        await asyncio.sleep(1)
        before = content(file), content(file.with_name("answers.db-wal"))
        for value in range(2000, 2030):
            await guarded(value)
            await asyncio.sleep(1)
        assert (content(file), content(file.with_name("answers.db-wal"))) == before


async def test_an_answer_that_was_changed_is_asked_for_again(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Answers(0)
    await answers(cached(service, store=file), 1, 2)
    connection = sqlite3.connect(file)
    one, other = (row[0] for row in connection.execute("SELECT answer FROM answers ORDER BY written"))
    assert one[-3:] != other[-3:]
    connection.execute("UPDATE answers SET answer = ?", (one,))
    connection.commit()
    connection.close()
    assert [answer["of"] for answer in await answers(cached(service, store=file), 1, 2)] == [1, 2]
    assert len(service.times) == 3
    assert "cannot be read, and is asked for again: ValueError: its checksum does not match" in caplog.text


async def test_an_answer_that_cannot_be_kept_is_given_and_said(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(value: int) -> Any:
        return lambda: value

    async with cached(ask, store=file) as guarded:
        assert [(await guarded(value))() for value in (1, 2, 1)] == [1, 2, 1]
    assert caplog.text.count("does not keep an answer") == 1


async def test_a_disk_that_fails_costs_calls_and_nothing_else(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, service = SqliteCache(file), Answers(0)
    async with cached(service, store=store, size=1, lease=10) as guarded:
        await guarded(1)
        await asyncio.sleep(1)
        assert store._writer is not None
        store._writer.execute("PRAGMA query_only=1")
        with caplog.at_level(logging.WARNING):
            for value in (2, 3, 2):
                assert (await guarded(value))["of"] == value
                await asyncio.sleep(2)  # until the store is not left alone any more
        assert "the cache goes on without it: OperationalError" in caplog.text
        store._writer.execute("PRAGMA query_only=0")
        await guarded(4)
    assert len(rows(file)) == 2


# ------------------------------------------------------------------ arguments


def test_what_makes_no_sense_is_refused(file: Path) -> None:
    service = Answers(0)
    wrong: Any
    for wrong in (3, "", "ftp://host/x"):
        with pytest.raises(PipelineError, match="store: expected"):
            cached(service, store=wrong)
    with pytest.raises(PipelineError, match=r"got 'ftp://host/x'$"):
        cached(service, store="ftp://user:passw0rd@host/x")
    for option in ({"lease": 3}, {"name": "a"}, {"clock": ManualClock()}):
        with pytest.raises(PipelineError, match="a store to go with it"):
            cached(service, **option)
    for option in ({"lease": 0}, {"name": 3}, {"codec": "xml"}, {"stale_if_error": -1}):
        with pytest.raises(PipelineError, match=next(iter(option))):
            cached(service, store=file, **option)
    with pytest.raises(PipelineError, match="path"):
        SqliteCache("")
    with pytest.raises(PipelineError, match="size"):
        SqliteCache(file, size=0)
    with pytest.raises(PipelineError, match="on_damage"):
        SqliteCache(file, on_damage="ignore")  # type: ignore[arg-type]


async def test_one_that_is_not_open_says_what_to_do(file: Path) -> None:
    with pytest.raises(PipelineError, match="in a pipeline, or in `async with`"):
        await cached(Answers(0), store=file)(1)


async def test_it_can_be_sent_to_another_process_before_and_after_its_use(file: Path) -> None:
    store = SqliteCache(file)
    await store.open()
    store.put(b"k" * 16, b"answer", None)
    await store.close()
    sent: SqliteCache = pickle.loads(pickle.dumps(store))
    await sent.open()
    assert await sent.get(b"k" * 16) == b"answer"
    another: SqliteCache = pickle.loads(pickle.dumps(sent))  # while it is in use here
    await another.open()
    assert await another.get(b"k" * 16) == b"answer"
    await another.close()
    await sent.close()


async def test_a_guard_that_cannot_open_leaves_the_store_to_the_others(file: Path) -> None:
    class Away(AsyncFunction[int, int]):
        async def open(self) -> None:
            raise ConnectionError

        async def invoke(self, value: int) -> int:
            return value

    store = SqliteCache(file)
    async with cached(Answers(0), store=store, name="there") as there:
        with pytest.raises(ConnectionError):
            await answers(cached(Away(), store=store, name="away"))
        assert await there(1) == {"of": 1, "number": 1}


def test_a_guard_serves_again_after_its_loop_ended_in_the_midst_of_a_call(file: Path) -> None:
    async def ask(value: int) -> int:
        await asyncio.sleep(value)
        return value

    guarded = cached(ask, store=file, lease=60)

    async def cut_short() -> None:
        await guarded.open()
        calls = [asyncio.create_task(guarded(value)) for value in (1, 5)]
        await asyncio.wait(calls, timeout=2)

    async def main() -> list[Any]:
        async with asyncio.timeout(100):
            return await answers(guarded, 1, 5, 7)

    def disk_threads() -> set[threading.Thread]:
        return {one for one in threading.enumerate() if one.name == "asyncstream disk"}

    before = disk_threads()
    run_virtual(cut_short())
    left = disk_threads() - before
    assert len(left) == 1
    assert run_virtual(main()) == [1, 5, 7]
    for thread in left:
        thread.join(60)
        assert not thread.is_alive()


async def test_an_opening_that_is_cancelled_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Semaphore(0)
    store = SqliteCache(tmp_path / "cache.sqlite")
    examine = store._examine

    class Noted(sqlite3.Connection):
        def close(self) -> None:
            super().close()
            closed.release()

    def slowly(database: sqlite3.Connection) -> None:
        begun.set()
        assert go_on.wait(60)
        examine(database)

    monkeypatch.setattr(sqlite3, "connect", partial(sqlite3.connect, factory=Noted))
    monkeypatch.setattr(store, "_examine", slowly)
    opening = asyncio.ensure_future(store.open())
    assert await asyncio.to_thread(begun.wait, 60)
    opening.cancel()
    await asyncio.wait({opening})
    await store.close()
    go_on.set()
    for _ in range(2):  # to write, and to read
        assert await asyncio.to_thread(closed.acquire, True, 60)
