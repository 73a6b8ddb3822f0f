"""Whatever closes lets go of all that it has, also if it is cancelled in the midst of that."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from pathlib import Path
from types import coroutine
from typing import Any

import pytest

from asyncstream import AsyncFunction, Items, LookupTable, ManualClock, SplitSource, SqliteSink
from asyncstream.connectors.message_source import MessageSource
from asyncstream.connectors.writer import Writer
from asyncstream.errors import told_as
from asyncstream.guards import SharedLimit, SharedRateLimiter, SqliteCache
from asyncstream.lease import Holder, Lease
from asyncstream.lookup.answers import Joined
from asyncstream.lookup.read import ReadLookup
from asyncstream.operators.base import OperatorContext


@coroutine
def cut_short(call: Coroutine[Any, Any, None], place: int) -> Generator[Any, Any, bool]:
    """Do a call, and cancel it where it waits for the so-many-th time; whether it has waited so often."""
    task = asyncio.current_task()
    assert task is not None
    for number in range(1, place + 1):
        try:
            awaited = call.send(None)
        except StopIteration:
            return False
        if number == place:
            asyncio.get_running_loop().call_soon(task.cancel)
        try:
            yield awaited
        except asyncio.CancelledError as error:
            assert number == place
            yield call.throw(error)
            yield from call
    return True


async def sqlite_sink(folder: Path, let_go: list[str]) -> Callable[[], Coroutine[Any, Any, None]]:
    sink = SqliteSink(folder / "out.sqlite", "t", columns=["n"])
    sink.writer = Writer(Lease(1, "here", Holder.here(0), 0), 3, "refuse")
    await sink.recover(None)
    await sink.write([{"n": 1}], None)
    return sink.close


async def sqlite_cache(folder: Path, let_go: list[str]) -> Callable[[], Coroutine[Any, Any, None]]:
    store = SqliteCache(folder / "cache.sqlite")
    await store.open()
    store.put(b"k" * 16, b"answer", None)
    return store.close


async def shared_rate(folder: Path, let_go: list[str]) -> Callable[[], Coroutine[Any, Any, None]]:
    limiter = SharedRateLimiter(10, scope=SharedLimit(f"sqlite:///{folder}/limits.db"))
    await limiter.acquire()
    return limiter.close


async def split_source(folder: Path, let_go: list[str]) -> Callable[[], Coroutine[Any, Any, None]]:
    class Split(Items[int]):
        async def close(self) -> None:
            await super().close()
            let_go.append("split")

    source = SplitSource(lambda name: Split([1, 2]), lambda: ["a"], every=60)
    await source.open()
    await source.read()
    return source.close


class Silent(MessageSource[Any, Any, list[str]]):
    """Of a broker that sends nothing, and hears of this source every so often."""

    _what = "nothing"
    _told = staticmethod(told_as)

    def __init__(self, client: list[str]) -> None:
        super().__init__("fail", ends=False, batch=1)
        self._client = client

    async def _connect(self) -> list[str]:
        raise NotImplementedError

    async def _disconnect(self, client: list[str]) -> None:
        client.append("client")

    async def _fetch(self) -> Any:
        await asyncio.get_running_loop().create_future()

    async def show(self) -> None:
        pass

    def _element(self, message: Any) -> Any:
        raise NotImplementedError

    def _taken(self, messages: Any) -> None:
        raise NotImplementedError

    def position(self) -> Any:
        return None


async def message_source(folder: Path, let_go: list[str]) -> Callable[[], Coroutine[Any, Any, None]]:
    source = Silent(let_go)
    source._show_every(60, source.show)
    reading = asyncio.ensure_future(source.read())
    await asyncio.sleep(0)
    reading.cancel()
    await asyncio.wait({reading})
    return source.close


async def table_lookup(folder: Path, let_go: list[str]) -> Callable[[], Coroutine[Any, Any, None]]:
    class Table(AsyncFunction[None, dict[str, Any]]):
        reads = 0

        async def invoke(self, value: None) -> dict[str, Any]:
            self.reads += 1
            if self.reads > 1:
                await asyncio.get_running_loop().create_future()
            return {}

        async def close(self) -> None:
            let_go.append("table")

    clock = ManualClock(0)
    lookup = ReadLookup(LookupTable.from_call(Table(), every=60), Joined(str))
    lookup.open(OperatorContext("lookup", clock=clock))
    await lookup.start()
    lookup.advance_clock(60_000)
    await asyncio.sleep(0)
    return lookup.stop


Made = Callable[[Path, list[str]], Awaitable[Callable[[], Coroutine[Any, Any, None]]]]


@pytest.mark.parametrize(
    ("make", "has"),
    [
        (sqlite_sink, []),
        (sqlite_cache, []),
        (shared_rate, []),
        (split_source, ["split"]),
        (message_source, ["client"]),
        (table_lookup, ["table"]),
    ],
)
async def test_closing_that_is_cancelled_lets_go_of_everything(
    make: Made, has: list[str], tmp_path: Path
) -> None:
    place, reached = 0, True
    while reached:
        place += 1
        threads, tasks, let_go = set(threading.enumerate()), asyncio.all_tasks(), list[str]()
        (folder := tmp_path / str(place)).mkdir()
        close = await make(folder, let_go)
        closing = asyncio.ensure_future(_awaited(cut_short(close(), place)))
        async with asyncio.timeout(60):
            await asyncio.wait({closing})
            reached = closing.cancelled() or closing.result()
            assert closing.cancelled() == reached
            if left := asyncio.all_tasks() - tasks:
                await asyncio.wait(left)
        assert let_go == has, f"cancelled where it waits for the {place}th time"
        for thread in set(threading.enumerate()) - threads:
            if thread.name == "asyncstream disk":
                await asyncio.to_thread(thread.join, 20)
                assert not thread.is_alive(), f"cancelled where it waits for the {place}th time"
    assert place > 1, "it waited for nothing"


async def _awaited(call: Awaitable[bool]) -> bool:
    return await call
