"""What a source raises, in whichever method, ends the job with that error; a wrong batch is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    Checkpoints,
    MemoryStore,
    Pipeline,
    Source,
    SourceBatch,
    SourceError,
    Sum,
    TumblingWindows,
)
from asyncstream.elements import Timestamps
from tests.runtime.parts import run

pytestmark = pytest.mark.usefixtures("virtual_time", "tidy")


class Abort(BaseException):
    """Slips through every `except Exception`."""


KINDS: dict[str, Callable[[], BaseException]] = {
    "exception": lambda: ValueError("x"),
    "base_exception": lambda: Abort("x"),
    "generator_exit": lambda: GeneratorExit("x"),
    "group": lambda: BaseExceptionGroup("x", [Abort("y")]),
    "cancelled": lambda: asyncio.CancelledError("x"),
    "stop_iteration": lambda: StopIteration("x"),
    "stop_async_iteration": lambda: StopAsyncIteration("x"),
}

HOOKS = ("open", "seek", "read", "position", "end", "suspend", "close")


class Raising(Source[int]):
    """Gives 1, 2, 3, and raises where it is told to."""

    def __init__(self, hook: str, kind: str) -> None:
        self.hook = hook
        self.kind = kind
        self.is_left = True

    def _at(self, hook: str) -> None:
        if hook == self.hook:
            raise KINDS[self.kind]()

    async def open(self) -> None:
        self._at("open")

    async def read(self) -> SourceBatch[int] | None:
        if self.is_left:
            self.is_left = False
            return SourceBatch([1, 2, 3])
        self._at("read")
        if self.hook == "read":
            return None
        await asyncio.Event().wait()
        return None

    def position(self) -> int:
        self._at("position")
        return 3

    async def seek(self, position: int) -> None:
        self._at("seek")

    def end(self) -> bool:
        self._at("end")
        return False

    def suspend(self) -> None:
        self._at("suspend")

    async def close(self) -> None:
        self._at("close")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hook", HOOKS)
async def test_what_a_source_raises_ends_the_job_and_names_the_step(kind: str, hook: str) -> None:
    snapshot = None
    if hook == "seek":
        async with _pipeline(Raising("", kind)).start() as job:
            snapshot = await job.stop()
    # of a StopIteration in a coroutine, Python itself makes a RuntimeError
    text = r"step 'bad': .*(x|cancelled from inside|raised StopIteration)"
    with pytest.raises(SourceError, match=text):  # noqa: PT012
        async with _pipeline(Raising(hook, kind)).start(snapshot=snapshot) as job:
            await asyncio.sleep(0.01)
            if hook in ("position", "suspend"):
                await job.stop()
            elif hook == "read":
                await job.wait()
            else:
                await job.drain()


def _pipeline(source: Source[int]) -> Pipeline:
    pipeline = Pipeline()
    pipeline.source(source, name="bad").to([], name="out")
    return pipeline


class _Plain:
    """An iterator that raises in `__next__`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.left = [1, 2, 3]

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if self.left:
            return self.left.pop(0)
        raise KINDS[self.kind]()


class _Async(_Plain):
    """An async iterator that raises in `__anext__`."""

    def __aiter__(self) -> AsyncIterator[int]:
        return self

    async def __anext__(self) -> int:
        return self.__next__()


class Tired(Source[int]):
    """Gives 1 and waits; when that is cancelled it gives nothing more."""

    is_left = True

    async def read(self) -> SourceBatch[int] | None:
        if self.is_left:
            self.is_left = False
            return SourceBatch([1])
        try:
            await asyncio.sleep(1_000)
        except asyncio.CancelledError:
            pass
        return None


@pytest.mark.parametrize("grace", [0, 1])
async def test_source_that_ends_when_it_is_stopped_does_not_end_event_time(grace: float) -> None:
    pipeline = Pipeline()
    found: list[Any] = []
    pipeline.source(Tired(), name="in").event_time(lambda value: value, AscendingTimestamps()).key_by(
        str
    ).window(TumblingWindows(60)).aggregate(n=Sum(), name="windows").to(found, name="out")
    async with pipeline.start() as job:
        await asyncio.sleep(0.1)
        snapshot = await job.stop(grace=grace)
    assert found == []
    assert snapshot.operators["out"] == [[], []]
    async with pipeline.start(snapshot=snapshot) as job:
        await job.drain()
    assert [result.value for result in found] == [{"n": 1}]


@pytest.mark.parametrize("ends", ["stop", "drain"])
async def test_source_that_fails_over_its_cancellation_does_not_fail_the_job(
    ends: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As a client does that says of everything that its connection is gone."""

    class Interrupted(Tired):
        async def read(self) -> SourceBatch[int]:
            batch = await super().read()
            if batch is None:
                raise ConnectionError("interrupted")
            return batch

    pipeline = Pipeline()
    found: list[int] = []
    pipeline.source(Interrupted(), name="in").to(found, name="out")
    async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore())) as job:
        await asyncio.sleep(0.1)
        await (job.stop() if ends == "stop" else job.drain())
        assert job.checkpoint_metrics()["taken"] == 2
    assert found == [1]
    assert "step 'in': ConnectionError: interrupted" in caplog.text


def _generator(kind: str) -> Iterator[int]:
    yield from (1, 2, 3)
    raise KINDS[kind]()


async def _async_generator(kind: str) -> AsyncIterator[int]:
    for number in (1, 2, 3):
        yield number
    await asyncio.sleep(0)
    raise KINDS[kind]()


MAKES: dict[str, Callable[[str], Any]] = {
    "plain": _Plain,
    "async": _Async,
    "generator": _generator,
    "async_generator": _async_generator,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", MAKES)
async def test_what_an_iterable_raises_is_not_its_end(kind: str, make: str) -> None:
    if (make, kind) in {("plain", "stop_iteration"), ("async", "stop_async_iteration")}:
        pytest.skip("by the protocol, this is the end")
    found: list[int] = []
    pipeline = Pipeline()
    pipeline.source(MAKES[make](kind), name="bad").to(found)

    with pytest.raises(SourceError, match="step 'bad': the iterable failed after 3 elements"):
        await pipeline.run()
    assert found == [1, 2, 3]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupt_in_an_async_iterable_goes_to_whoever_runs_the_loop_and_is_not_its_end(
    kind: type[BaseException],
) -> None:
    async def generate() -> AsyncIterator[int]:
        yield 1
        await asyncio.sleep(0)
        raise kind

    ended: list[Any] = []

    async def main() -> None:
        pipeline = Pipeline()
        pipeline.source(generate()).to([])
        try:
            await pipeline.run()
        except BaseException:
            raise
        else:
            ended.append("as if all were read")

    with pytest.raises(kind):
        asyncio.run(main())
    assert not ended


class Batches(Source[Any]):
    """Gives these, as they are."""

    def __init__(self, *batches: Any, rejects: bool = False) -> None:
        self.batches = list(batches)
        self.rejects = rejects

    async def read(self) -> Any:
        return self.batches.pop(0) if self.batches else None


def _batch(*parts: Any) -> SourceBatch[Any]:
    """As a source would make it whose author did not look at the types."""
    return SourceBatch(*parts)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (_batch([1, 2, 3], [10, 20]), "3 values and 2 timestamps"),
        (_batch([1], [10, 20]), "1 values and 2 timestamps"),
        (_batch([], [10]), "0 values and 1 timestamps"),
        (_batch([1], []), "1 values and 0 timestamps"),
        (_batch([1, 2], [10, 20.5]), "value 1 of a SourceBatch has 20.5 as its timestamp"),
        (_batch([1], [True]), "value 0 of a SourceBatch has True as its timestamp"),
        (_batch([1], ["10"]), "has '10' as its timestamp"),
        (_batch([1], [datetime(2024, 1, 1, tzinfo=UTC)]), "has datetime"),
        (_batch([1], 10), "has 10 as its timestamps instead of a list"),
        (_batch(iter([1])), "as its values instead of a list"),
        (_batch({1, 2}), "as its values instead of a list"),
        (_batch("a line"), "has 'a line' as its values instead of a list"),
        (_batch(None), "has None as its values"),
        (_batch([1], None, ["no"]), "has rejected 'no', but the source does not say rejects = True"),
        ([1, 2], r"read\(\) gave \[1, 2\] instead of a SourceBatch"),
        ((1, None), r"read\(\) gave \(1, None\) instead of a SourceBatch"),
    ],
)
async def test_wrong_batch_is_refused_and_what_came_before_it_is_kept(batch: Any, message: str) -> None:
    found: list[int] = []
    pipeline = Pipeline()
    pipeline.source(Batches(SourceBatch([7, 8]), batch), name="bad").to(found)

    with pytest.raises(SourceError, match=f"step 'bad': .*{message}"):
        await pipeline.run()
    assert found == [7, 8]


class Count(int):
    """An int of a kind of its own."""


@pytest.mark.parametrize("timestamps", [None, [1, None], (1, 2), range(2), [Count(1), 2]])
def test_right_batches_pass(timestamps: Timestamps) -> None:
    found: list[int] = []
    pipeline = Pipeline()
    pipeline.source(Batches(SourceBatch([7, 8], timestamps), SourceBatch([]))).to(found)
    run(pipeline.run())
    assert found == [7, 8]
