from __future__ import annotations

import asyncio
import pickle
import threading
import weakref
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import anyio
import pytest

from asyncstream.aside import DiskThread, aside, heeding, to_its_end, wait_at_most
from asyncstream.connectors import JsonLinesSource
from asyncstream.testing.loop import VirtualTimeLoop, run_virtual


@pytest.mark.parametrize(
    ("comes_after", "seconds", "takes"),
    [(2.0, 5.0, 2.0), (5.0, 2.0, 2.0), (5.0, None, 5.0), (5.0, 0.0, 0.0), (5.0, -1.0, 0.0), (0.0, 5.0, 0.0)],
    ids=["it_comes", "it_does_not", "without_an_end", "no_time", "time_is_over", "it_was_there"],
)
def test_waiting_ends_with_the_event_or_the_time(
    comes_after: float, seconds: float | None, takes: float
) -> None:
    async def main() -> float:
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        if comes_after:
            loop.call_later(comes_after, event.set)
        else:
            event.set()
        begun = loop.time()
        await wait_at_most(event, seconds)
        return loop.time() - begun

    assert run_virtual(main()) == pytest.approx(takes)


def test_a_deadline_of_the_caller_is_not_taken_for_its_own() -> None:
    async def main() -> None:
        async with asyncio.timeout(1):
            await wait_at_most(asyncio.Event(), 5)

    with pytest.raises(TimeoutError):
        run_virtual(main())


async def test_what_is_not_to_be_left_in_the_middle_is_waited_for_however_often_one_is_cancelled() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    told: list[str] = []
    waiting = asyncio.create_task(to_its_end(future, lambda: told.append("cancelled")))
    for time in ("once", "twice"):
        await asyncio.sleep(0)
        waiting.cancel(time)
    await asyncio.sleep(0)
    assert not waiting.done()
    future.set_result(None)
    cancelled = await waiting
    assert cancelled is not None
    assert cancelled.args == ("twice",)
    assert told == ["cancelled", "cancelled"]
    assert await to_its_end(future) is None


def test_who_waits_in_a_scope_that_is_cancelled_is_cancelled_once() -> None:
    """A scope of anyio's cancels again and again: the loop would do nothing else until the end."""
    told: list[str] = []

    async def main() -> None:
        with anyio.move_on_after(1) as scope:
            cancelled = await to_its_end(asyncio.ensure_future(asyncio.sleep(5)), lambda: told.append("once"))
            assert cancelled is not None
            raise cancelled
        assert scope.cancelled_caught
        assert asyncio.get_running_loop().time() == began + 5

    loop = VirtualTimeLoop()
    began = loop.time()
    with closing(loop):
        loop.run_until_complete(main())
    assert told == ["once"]


async def test_a_thread_that_has_nothing_to_do_holds_nothing_of_what_it_has_done() -> None:
    thread = DiskThread()
    found = await thread.do(lambda: {1, 2, 3})
    held = weakref.ref(found)
    del found
    async with asyncio.timeout(60):
        while held() is not None:  # noqa: ASYNC110 - a real thread
            await asyncio.sleep(0.001)
    thread.end()


async def test_a_thread_ends_with_who_had_it() -> None:
    before = threading.enumerate()
    disk = DiskThread()
    await disk.do(int)
    (thread,) = set(threading.enumerate()).difference(before)
    del disk
    thread.join(10)
    assert not thread.is_alive()


async def test_when_the_system_gives_no_thread_the_next_work_asks_for_one_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread, done = DiskThread(), list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            thread.do(lambda: done.append("refused"))
    async with asyncio.timeout(60):
        await thread.do(lambda: done.append("later"))
    thread.end()
    assert done == ["later"]


def refused(*_: Any, **__: Any) -> None:
    raise RuntimeError("can't start new thread")


async def test_who_waits_hears_of_what_no_future_can_hold() -> None:
    thread = DiskThread()
    works = (aside(lambda: next(iter(()))), thread.do(lambda: next(iter(()))))
    async with asyncio.timeout(60):
        heard = await asyncio.gather(*works, return_exceptions=True)
    thread.end()
    assert [repr(error) for error in heard] == ["RuntimeError('StopIteration()')"] * 2
    assert all(isinstance(error.__cause__, StopIteration) for error in heard)


async def test_what_is_made_for_who_is_cancelled_meanwhile_is_let_go() -> None:
    thread, begun, go_on = DiskThread(), threading.Event(), threading.Event()
    let_go: list[str] = []

    def make() -> str:
        begun.set()
        assert go_on.wait(60)
        return "it"

    making = asyncio.ensure_future(thread.make(make, let_go.append))
    await asyncio.to_thread(begun.wait, 60)
    making.cancel()
    await asyncio.wait({making})
    assert making.cancelled()
    go_on.set()
    assert await thread.make(lambda: "another", let_go.append) == "another"
    assert let_go == ["it"]
    with pytest.raises(ZeroDivisionError):
        await thread.make(lambda: str(1 / 0), let_go.append)
    thread.end()
    assert let_go == ["it"]


async def test_a_thread_that_is_begun_again_does_what_comes_behind_all_that_came_before() -> None:
    """What closes a file may take long, and must not close the one that is opened next."""
    thread, go_on, done = DiskThread(), threading.Event(), list[str]()

    def close() -> None:
        assert go_on.wait(60)
        done.append("closed")

    closing = thread.do(close)
    thread.end()
    opening = thread.do(lambda: done.append("opened"))
    thread.end()
    thread.end()
    last = thread.do(lambda: done.append("read"))
    await asyncio.sleep(0)
    assert done == []
    go_on.set()
    async with asyncio.timeout(60):
        await asyncio.gather(closing, opening, last)
    thread.end()
    assert done == ["closed", "opened", "read"]


@pytest.mark.parametrize("copied", [deepcopy, lambda source: pickle.loads(pickle.dumps(source))])
async def test_what_has_a_thread_of_its_own_can_be_copied(tmp_path: Path, copied: Any) -> None:
    """Such as a source that a program gives to another process."""
    path = tmp_path / "in.jsonl"
    path.write_text("1\n2\n")
    source = JsonLinesSource(path)
    for one in (copied(source), source, copied(source)):
        await one.open()
        batch = await one.read()
        assert batch is not None
        assert list(batch.values) == [1, 2]
        await one.close()


@pytest.mark.parametrize("makes", ["an answer", "an error", "a cancellation"])
def test_who_is_cancelled_ends_so_whatever_a_client_makes_of_it(makes: str) -> None:
    async def ask() -> str:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            if makes == "an answer":
                return "the answer"
            if makes == "an error":
                raise ConnectionError("the connection was cut") from None
            raise
        return "in time"

    async def main() -> None:
        assert await heeding(ask()) == "in time"
        asking = asyncio.ensure_future(heeding(ask()))
        await asyncio.sleep(1)
        asking.cancel()
        await asyncio.wait({asking})
        assert asking.cancelled()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await heeding(ask())

    run_virtual(main())
