"""What `submit` has accepted is on the disk until a checkpoint covers it, and each id is accepted once."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from asyncstream import (
    Checkpoints,
    CodecError,
    Inbox,
    Job,
    JobStopped,
    JsonLinesSink,
    MemoryStore,
    Pipeline,
    PipelineError,
    SourceError,
)
from asyncstream.connectors.inbox import InboxFile
from tests.runtime.parts import Boom, boom

T = TypeVar("T")


class Shop:
    """A pipeline with an inbox, a store and a file of results, run again and again."""

    def __init__(self, folder: Path, **inbox: Any) -> None:
        self.folder = folder
        self.inbox = Inbox(folder / "inbox.sqlite", **inbox)
        self.store = MemoryStore()
        self.gate = asyncio.Event()
        self.gate.set()
        self.limit = 1024

    def pipeline(self) -> Pipeline:
        async def call(value: Any) -> Any:
            await self.gate.wait()
            return boom() if value == "poison" else {"v": value}

        pipeline = Pipeline("shop")
        orders = pipeline.submissions(limit=self.limit, inbox=self.inbox, name="orders")
        results = orders.async_map(call, name="call", concurrency=1, buffer=1)
        results.to(JsonLinesSink(self.folder / "out.jsonl"), name="out")
        return pipeline

    def start(self, **settings: Any) -> Job:
        return self.pipeline().start(checkpoints=Checkpoints(store=self.store, **{"keep": 1} | settings))

    def results(self) -> list[str]:
        return [line[5:-1] for line in (self.folder / "out.jsonl").read_text().splitlines()]

    def kept(self) -> list[tuple[int, str | None, bool]]:
        with closing(sqlite3.connect(self.inbox.path)) as database:
            query = "SELECT number, id, value IS NOT NULL FROM accepted ORDER BY number"
            return [(number, id, bool(there)) for number, id, there in database.execute(query)]


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await work()

    return asyncio.run(bounded())


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - of a thread
        await asyncio.sleep(0.001)


class Crash(Exception):
    """Leaves the block of a job at once, as a kill leaves the process."""


async def crashing(job: Job, body: Callable[[Job], Awaitable[None]]) -> None:
    with suppress(Crash):
        async with job:
            await body(job)
            raise Crash


# ---------------------------------------------------------------------- accepting


def test_accepted_elements_come_out_once_after_a_crash(shop: Shop) -> None:
    async def main() -> None:
        async def before(job: Job) -> None:
            shop.gate.clear()
            for number in range(5):
                assert await job.submit(number, durable=True, id=f"id {number}")

        await crashing(shop.start(), before)
        assert shop.results() == []
        shop.gate.set()
        async with shop.start() as job:
            for number in range(7):  # who was not sure tries again
                assert await job.submit(number, durable=True, id=f"id {number}") == (number >= 5)
            await job.drain()
        assert shop.results() == [str(number) for number in range(7)]

    run(main)


def test_what_came_out_before_the_crash_and_was_in_no_checkpoint_comes_out_once(shop: Shop) -> None:
    async def main() -> None:
        async def before(job: Job) -> None:
            await job.submit(1, id="a")
            await until(lambda: job.metrics()["out"]["written"] == 1)
            await job.checkpoint()
            await job.submit(2, id="b")
            await until(lambda: job.metrics()["out"]["written"] == 2)

        await crashing(shop.start(), before)
        async with shop.start() as job:
            assert not await job.submit(2, id="b")
            await job.drain()
        assert shop.results() == ["1", "2"]

    run(main)


def test_submit_without_durable_uses_the_inbox_that_is_there(shop: Shop) -> None:
    async def main() -> None:
        async def before(job: Job) -> None:
            shop.gate.clear()
            assert await job.submit("x") is True

        await crashing(shop.start(), before)
        shop.gate.set()
        async with shop.start() as job:
            await job.drain()
        assert shop.results() == ['"x"']

    run(main)


def test_one_id_submitted_many_times_at_once_is_accepted_once(shop: Shop) -> None:
    async def main() -> None:
        async with shop.start() as job:
            answers = await asyncio.gather(*(job.submit(n, id=f"id {n % 10}") for n in range(200)))
            assert answers.count(True) == 10
            await job.drain()
        assert shop.results() == [str(number) for number in range(10)]

    run(main)


def test_groups_are_committed_together(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    real = InboxFile.accept

    def accept(self: InboxFile, elements: Any) -> list[bool]:
        sizes.append(len(elements))
        return real(self, elements)

    monkeypatch.setattr(InboxFile, "accept", accept)

    async def main() -> None:
        async with shop.start() as job:
            await asyncio.gather(*(job.submit(number) for number in range(500)))
            await job.drain()
        assert sum(sizes) == 500
        assert sizes[0] == 1  # nobody waits for others
        assert len(sizes) < 10
        assert shop.results() == [str(number) for number in range(500)]

    run(main)


def test_no_element_is_read_before_it_is_safe(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    real = InboxFile.accept

    async def main() -> None:
        async with shop.start() as job:
            monkeypatch.setattr(InboxFile, "accept", lambda self, elements: boom())
            with pytest.raises(SourceError, match="inbox failed: Boom"):
                await job.submit(1)
            monkeypatch.setattr(InboxFile, "accept", real)
            await job.drain()

    with pytest.raises(SourceError, match="inbox failed: Boom") as caught:
        run(main)
    assert isinstance(caught.value.__cause__, Boom | SourceError)
    assert shop.results() == []


def test_what_cannot_be_kept_is_refused_and_the_job_goes_on(shop: Shop) -> None:
    async def main() -> None:
        async with shop.start() as job:
            with pytest.raises(CodecError):
                await job.submit(object(), id="a")
            assert await job.submit(1, id="a")
            await job.drain()
        assert shop.results() == ["1"]

    run(main)


# ---------------------------------------------------------------------- room


async def full(job: Job) -> int:
    """Submit until there is no room; how many were accepted."""
    for number in range(10_000):
        try:
            await job.submit(number, timeout=0.05)
        except TimeoutError:
            return number
    raise AssertionError("there is always room")


def test_a_submit_that_finds_no_room_in_time_is_not_accepted(shop: Shop) -> None:
    shop.limit = 3

    async def main() -> None:
        async with shop.start() as job:
            shop.gate.clear()
            accepted = await full(job)
            with pytest.raises(TimeoutError, match="had no room within 0 s"):
                await job.submit("late", timeout=0, id="late")
            shop.gate.set()
            assert await job.submit("late", timeout=30, id="late")
            await job.drain()
            assert shop.results() == [*map(str, range(accepted)), '"late"']

    run(main)


def test_a_backlog_leaves_no_room_until_it_is_read(shop: Shop) -> None:
    async def main() -> None:
        async def before(job: Job) -> None:
            shop.gate.clear()
            await asyncio.gather(*(job.submit(number) for number in range(3000)))

        shop.limit = 3000
        await crashing(shop.start(), before)
        shop.limit = 10
        pipeline = shop.pipeline()
        async with pipeline.start(checkpoints=Checkpoints(store=shop.store, keep=1)) as job:
            with pytest.raises(TimeoutError):
                await job.submit("new", timeout=0)
            shop.gate.set()
            await job.submit("new", timeout=30)
            await job.drain()
        assert shop.results() == [*map(str, range(3000)), '"new"']

    run(main)


def test_cancelled_submit_that_waits_for_room_is_not_accepted(shop: Shop) -> None:
    shop.limit = 1

    async def main() -> None:
        async with shop.start() as job:
            shop.gate.clear()
            accepted = await full(job)
            tasks = [asyncio.create_task(job.submit(number)) for number in range(20)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            shop.gate.set()
            await job.drain()
            assert shop.results() == [str(number) for number in range(accepted)]

    run(main)


def test_who_is_cancelled_is_accepted_if_the_commit_has_begun(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, release = threading.Event(), threading.Event()
    real = InboxFile.accept

    def accept(self: InboxFile, elements: Any) -> list[bool]:
        begun.set()
        assert release.wait(60)
        return real(self, elements)

    monkeypatch.setattr(InboxFile, "accept", accept)

    async def main() -> None:
        async with shop.start() as job:
            first = asyncio.create_task(job.submit("begun"))
            assert await asyncio.to_thread(begun.wait, 20)
            second = asyncio.create_task(job.submit("pending"))
            await asyncio.sleep(0)
            for task in (first, second):
                task.cancel()
            await asyncio.wait({first, second})
            release.set()
            assert await job.submit("last")
            await job.drain()
        assert shop.results() == ['"begun"', '"last"']

    run(main)


# ---------------------------------------------------------------------- the checkpoint truncates


def test_checkpoint_forgets_what_it_covers_and_remembers_ids(shop: Shop) -> None:
    async def main() -> None:
        async with shop.start() as job:
            await job.submit(1, id="a")
            await job.submit(2)
            await until(lambda: job.metrics()["out"]["written"] == 2)
            assert shop.kept() == [(1, "a", True), (2, None, True)]
            await job.checkpoint()
            assert shop.kept() == [(1, "a", False)]
            assert not await job.submit(1, id="a")

    run(main)


def test_elements_stay_as_long_as_a_checkpoint_is_kept_that_needs_them(shop: Shop) -> None:
    async def main() -> None:
        async def before(job: Job) -> None:
            for number in (1, 2):
                await job.submit(number)
                await until(lambda: job.metrics()["out"]["written"] == number)  # noqa: B023 - at once
                await job.checkpoint()

        await crashing(shop.start(keep=2), before)
        assert [number for number, _, _ in shop.kept()] == [2]
        older, _ = await shop.store.numbers()
        async with shop.start(keep=2, restore=older, ahead="start_over") as job:
            await job.drain()
        assert shop.results() == ["1", "2"]

    run(main)


def test_without_a_checkpoint_to_go_on_from_all_that_is_there_is_read(shop: Shop) -> None:
    async def main() -> None:
        async def before(job: Job) -> None:
            await job.submit(1)
            await until(lambda: job.metrics()["out"]["written"] == 1)

        await crashing(shop.start(), before)
        async with shop.start(restore="none", ahead="start_over") as job:
            await job.drain()
        assert shop.results() == ["1"]

    run(main)


def test_inbox_that_was_lost_is_refused_and_nothing_is_changed(shop: Shop) -> None:
    async def main() -> None:
        async with shop.start() as job:
            await job.submit(1)

    async def again() -> None:
        with pytest.raises(SourceError, match=r"step 'orders': cannot go on behind element 0 .* not there"):
            await shop.start().__aenter__()

    run(main)
    Path(shop.inbox.path).unlink()
    run(again)
    assert not Path(shop.inbox.path).exists()


# ---------------------------------------------------------------------- the end


@pytest.mark.parametrize("end", ["drain", "stop", "leave"])
def test_submits_under_way_at_the_end_are_accepted_or_refused_and_not_both(shop: Shop, end: str) -> None:
    async def main() -> None:
        outcomes: dict[int, bool] = {}

        async def submit(job: Job, number: int) -> None:
            try:
                outcomes[number] = await job.submit(number, id=str(number))
            except JobStopped:
                outcomes[number] = False

        async with shop.start() as job:
            tasks = [asyncio.create_task(submit(job, number)) for number in range(300)]
            await asyncio.sleep(0)
            if end == "drain":
                await job.drain()
            elif end == "stop":
                await job.stop()
        await asyncio.wait(tasks)
        assert len(outcomes) == 300
        async with shop.start() as job:
            await job.drain()
        assert shop.results() == [str(number) for number, accepted in outcomes.items() if accepted]

    run(main)


def test_job_fails_with_an_inbox_that_was_taken_over(shop: Shop) -> None:
    async def main() -> None:
        async with shop.start() as job:
            await job.submit(1)
            InboxFile(shop.inbox, None).close()
            with pytest.raises(SourceError, match="taken over"):
                await job.submit(2)
            with pytest.raises(SourceError, match="taken over"):
                await job.wait()
            with pytest.raises(JobStopped, match=r"has failed: .*taken over"):
                await job.submit(3)

    with pytest.raises(SourceError, match=r"step 'orders': .* was taken over"):
        run(main)


def test_threads_submit_durably(shop: Shop) -> None:
    async def main() -> None:
        async with shop.start() as job:
            submit = asyncio.to_thread
            assert await submit(job.submit_threadsafe, 1, durable=True, id="a") is True
            assert await submit(job.submit_threadsafe, 1, durable=True, id="a") is False
            with pytest.raises(CodecError):
                await submit(job.submit_threadsafe, object(), timeout=5)
            shop.gate.clear()
            await asyncio.gather(*(submit(job.submit_threadsafe, number, timeout=10) for number in range(30)))
        shop.gate.set()
        async with shop.start() as job:
            await job.drain()
        assert sorted(map(int, shop.results())) == sorted([1, *range(30)])

    run(main)


# ---------------------------------------------------------------------- what is refused


def test_inbox_needs_checkpoints(shop: Shop) -> None:
    with pytest.raises(PipelineError, match=r"step 'orders': an inbox keeps .* start it with checkpoints="):
        shop.pipeline().start()


def test_durable_and_id_need_an_inbox_and_an_inbox_keeps_all(shop: Shop) -> None:
    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions().discard()
        async with pipeline.start() as job:
            with pytest.raises(PipelineError, match=r"durable=True needs an inbox .*submissions\(inbox="):
                await job.submit(1, durable=True)
            with pytest.raises(PipelineError, match=r"id= needs an inbox"):
                await job.submit(1, id="a")
            assert await job.submit(1, durable=False) is True
            with pytest.raises(PipelineError, match="durable: expected True or False"):
                await job.submit(1, durable="yes")  # type: ignore[arg-type]
        async with shop.start() as job:
            with pytest.raises(PipelineError, match="durable=False: this source has an inbox"):
                await job.submit(1, durable=False)
            for wrong in ("", 5, "x" * 201, "a\nb"):
                with pytest.raises(PipelineError, match="id: expected"):
                    await job.submit(1, id=wrong)  # type: ignore[arg-type]

    run(main)


def test_plan_says_exactly_once_and_where_the_inbox_is(shop: Shop) -> None:
    pipeline = shop.pipeline()
    assert [guarantee.level for guarantee in pipeline.guarantees()] == ["exactly once"]
    assert "inbox.sqlite" in pipeline.describe()
