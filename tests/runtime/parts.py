"""Sources, sinks and functions that tests of running jobs are built from: they note what happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from asyncstream import AsyncFunction, Sink, Source, SourceBatch, TransactionalSink
from asyncstream.elements import Timestamps
from asyncstream.testing.loop import run_virtual

T = TypeVar("T")


class Boom(Exception):
    """What fails on purpose in these tests."""


def boom(*arguments: object) -> Any:
    raise Boom("on purpose")


class Ledger(TransactionalSink[Any]):
    """
    A transactional sink that outlives the jobs: what was committed, and what was written since.

    It checks that it is called as the contract says; `fails` names calls that raise, `slow` those that take
    their time.
    """

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self.committed = 0
        self.prepared: dict[int, int] = {}
        self.fails: set[str] = set()
        self.slow: dict[str, float] = {}
        self.busy = False

    async def _do(self, what: str) -> None:
        assert not self.busy, "two calls at a time"
        self.busy = True
        try:
            await asyncio.sleep(self.slow.get(what, 0))
            if what in self.fails:
                raise OSError(what)
        finally:
            self.busy = False

    async def recover(self, position: int | None) -> None:
        self.busy = False
        wanted = position or 0
        assert self.committed <= wanted <= len(self.rows), "goes back behind what was committed"
        del self.rows[wanted:]
        self.committed = wanted
        self.prepared.clear()

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        await self._do("write")
        self.rows += values

    async def prepare(self, epoch: int) -> int:
        await self._do("prepare")
        self.prepared[epoch] = len(self.rows)
        return len(self.rows)

    async def commit(self, epoch: int) -> None:
        await self._do("commit")
        self.committed = self.prepared[epoch]


class Held:
    """A sink function that takes nothing until it may."""

    def __init__(self) -> None:
        self.may = asyncio.Event()
        self.seen: list[Any] = []

    async def __call__(self, value: Any) -> None:
        await self.may.wait()
        self.seen.append(value)


class Log(list[str]):
    """What happened, in order."""


class LoggedSource(Source[Any]):
    """Gives its batches one by one; fails at the moment that `fails` names."""

    def __init__(
        self, log: Log, batches: Sequence[Sequence[Any]], *, name: str = "source", fails: str = ""
    ) -> None:
        self.log = log
        self.batches = [list(batch) for batch in batches]
        self.name = name
        self.fails = fails
        self.at = 0

    def _note(self, moment: str) -> None:
        self.log.append(f"{self.name} {moment}")
        if moment == self.fails:
            boom()

    async def open(self) -> None:
        self.at = 0
        self._note("open")

    async def read(self) -> SourceBatch[Any] | None:
        await asyncio.sleep(0)
        if self.at == len(self.batches):
            if self.fails == "read":
                boom()
            return None
        self.at += 1
        return SourceBatch(self.batches[self.at - 1])

    def position(self) -> int:
        return self.at

    async def seek(self, position: int) -> None:
        self.at = position

    async def close(self) -> None:
        self._note("close")


class LoggedSink(Sink[Any]):
    """Keeps what is written; fails at the moment that `fails` names; each write takes `delay` seconds."""

    def __init__(self, log: Log, *, name: str = "sink", fails: str = "", delay: float = 0.0) -> None:
        self.log = log
        self.name = name
        self.fails = fails
        self.delay = delay
        self.values: list[Any] = []
        self.timestamps: list[int | None] = []

    def _note(self, moment: str) -> None:
        self.log.append(f"{self.name} {moment}")
        if moment == self.fails:
            boom()

    async def open(self) -> None:
        self._note("open")

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.fails == "write":
            boom()
        self.values += values
        self.timestamps += timestamps or [None] * len(values)

    async def flush(self) -> None:
        self._note("flush")

    async def close(self) -> None:
        self._note("close")


class LoggedFunction(AsyncFunction[Any, Any]):
    """An async function that gives back what it gets; fails at the moment that `fails` names."""

    def __init__(self, log: Log, *, name: str = "call", fails: str = "", delay: float = 0.0) -> None:
        self.log = log
        self.name = name
        self.fails = fails
        self.delay = delay

    def _note(self, moment: str) -> None:
        self.log.append(f"{self.name} {moment}")
        if moment == self.fails:
            boom()

    async def open(self) -> None:
        self._note("open")

    async def invoke(self, value: Any) -> Any:
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.fails == "invoke":
            boom()
        return value

    async def close(self) -> None:
        self._note("close")


def sleeping(seconds: float) -> Callable[[T], Awaitable[T]]:
    """An async function that takes so long for each element, and gives it back."""

    async def call(value: T) -> T:
        await asyncio.sleep(seconds)
        return value

    return call


class VirtualClock:
    """Processing time that goes with the event loop's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000 + 1e-6)


async def forever() -> None:
    await asyncio.Event().wait()


def run(main: Coroutine[Any, Any, T]) -> T:
    """`run_virtual`, where `main` must not leave a task behind, nor an error that nobody was told of."""

    async def watched() -> T:
        unheard: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: unheard.append(context))
        try:
            return await main
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks left behind: {left}"
            assert not unheard, f"told to the loop's exception handler: {unheard}"

    return run_virtual(watched())
