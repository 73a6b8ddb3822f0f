"""What is kept of an element is the element as it came, whatever the call has done to it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asyncstream import Checkpoints, MemoryStore, Pipeline, PipelineError


def raised(items: list[Any], done: list[Any], hold: list[bool], **options: Any) -> Pipeline:
    """Adds to each element in place, and then waits for ever if it is told to."""

    async def call(element: Any) -> Any:
        element["tax"]["paid"] += 1
        if hold[0]:
            await asyncio.Event().wait()
        return element["tax"]["paid"]

    pipeline = Pipeline()
    pipeline.source(items, name="in").async_map(call, name="call", **options).to(done, name="out")
    return pipeline


def items() -> list[Any]:
    return [{"id": number, "tax": {"paid": 0}} for number in range(3)]


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_element_changed_before_a_checkpoint_is_replayed_as_it_came(order: str) -> None:
    async def main() -> list[Any]:
        checkpoints, hold, done = Checkpoints(store=MemoryStore()), [True], []  # type: ignore[var-annotated]
        async with raised(items(), done, hold, order=order).start(checkpoints=checkpoints) as job:
            await asyncio.sleep(3)
            await job.stop()
        hold[0] = False
        await raised(items(), done, hold, order=order).run(checkpoints=checkpoints)
        return done

    assert (await main()) == [1, 1, 1]


@pytest.mark.parametrize(("copy_input", "paid"), [(True, 1), (False, 2), (None, 2)])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_snapshot_of_a_job_without_checkpoints_is_as_chosen(copy_input: bool | None, paid: int) -> None:
    async def main() -> list[Any]:
        hold, done = [True], []  # type: ignore[var-annotated]
        pipeline = raised(items(), done, hold, copy_input=copy_input)
        async with pipeline.start() as job:
            await asyncio.sleep(3)
            snapshot = await job.stop()
        hold[0] = False
        async with pipeline.start(snapshot=snapshot) as job:
            await job.wait()
        return done

    assert (await main()) == [paid] * 3


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_failed_and_timed_out_elements_are_as_they_came() -> None:
    async def call(element: list[int]) -> None:
        element.append(1)
        if element[0] == 1:
            raise ValueError
        await asyncio.sleep(60)

    failed: list[Any] = []
    pipeline = Pipeline()
    calls = pipeline.source([[1], [2]]).async_map(
        call, on_error="route", timeout=1, on_timeout=lambda element: list(element), copy_input=True
    )
    calls.to(done := [])  # type: ignore[var-annotated]
    calls.failed.to(failed)
    await pipeline.run()
    assert [call.value for call in failed] == [[1]]
    assert done == [[2]]


class Uncopyable:
    def __deepcopy__(self, memo: object) -> Any:
        raise TypeError("a connection")


async def same(value: Any) -> Any:
    return value


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_what_cannot_be_copied_is_given_as_it_is_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> list[Any]:
        done: list[Any] = []
        pipeline = Pipeline()
        source = pipeline.source([Uncopyable(), Uncopyable()], name="in")
        source.async_map(same, name="call").to(done, name="out")
        with caplog.at_level(logging.WARNING, "asyncstream.async_wait"):
            await pipeline.run(checkpoints=Checkpoints(store=MemoryStore()))
        return done

    assert len(await main()) == 2
    assert [record.message.partition(";")[0] for record in caplog.records if "copied" in record.message] == [
        "step 'call': elements of type Uncopyable cannot be copied"
    ]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_what_cannot_be_copied_fails_where_copies_were_asked_for() -> None:
    pipeline = Pipeline()
    pipeline.source([Uncopyable()]).async_map(same, copy_input=True).discard()
    with pytest.raises(Exception, match="copy_input: the element cannot be copied: TypeError: a connection"):
        await pipeline.run()


def test_choice_is_checked() -> None:
    with pytest.raises(PipelineError, match="copy_input: expected True, False or None, got 'deep'"):
        Pipeline().source([1]).async_map(same, copy_input="deep")  # type: ignore[arg-type]
