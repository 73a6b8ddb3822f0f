"""Who asks gets the answer, in whatever order answers come, or hears that there is none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncstream import Checkpoints, JobStopped, MemoryStore, Pipeline, PipelineError, UserFunctionError
from tests.runtime.parts import Boom, boom, run


async def priced(order: dict[str, Any]) -> dict[str, Any]:
    """Later ones are quicker."""
    await asyncio.sleep(100 - order["id"])
    return boom() if order.get("poison") else {"order": order["id"], "price": 2 * order["id"]}


def shop(**options: Any) -> Pipeline:
    pipeline = Pipeline()
    prices = pipeline.submissions(name="orders").async_map(priced, order="unordered", name="price", **options)
    prices.answers("order", asked_by="id")
    if options.get("on_error") == "route":
        prices.failed.answers("id")
    return pipeline


def test_each_gets_the_answer_to_what_it_asked() -> None:
    async def main() -> None:
        async with shop().start() as job:
            answers = await asyncio.gather(*(job.ask({"id": number}) for number in range(50)))
            assert answers == [{"order": number, "price": 2 * number} for number in range(50)]

    run(main())


def test_what_nobody_asked_for_is_let_go() -> None:
    async def main() -> None:
        async with shop().start() as job:
            await job.submit({"id": 1})
            assert (await job.ask({"id": 2}))["price"] == 4
            await job.drain()
            assert job.metrics()["answers"]["written"] == 2

    run(main())


def test_all_who_wait_for_one_key_are_answered_at_once() -> None:
    async def main() -> None:
        async with shop().start() as job:
            first = asyncio.create_task(job.ask({"id": 5}))
            await asyncio.sleep(10)
            second = asyncio.create_task(job.ask({"id": 5}))
            assert await first == await second
            assert asyncio.get_running_loop().time() == 95

    run(main())


def test_no_answer_in_time_and_the_element_goes_on() -> None:
    async def main() -> None:
        async with shop().start() as job:
            with pytest.raises(
                TimeoutError, match=r"no answer within 2 s; the element may have been accepted"
            ):
                await job.ask({"id": 1}, timeout=2)
            assert asyncio.get_running_loop().time() == 2
            assert (await job.ask({"id": 90}, timeout=20))["price"] == 180
            await job.drain()
            assert job.metrics()["answers"]["written"] == 2

    run(main())


def test_no_room_in_time_is_no_answer_in_time() -> None:
    async def main() -> None:
        pipeline = Pipeline()
        options: dict[str, Any] = {"concurrency": 1, "buffer": 1}
        pipeline.submissions(limit=1).async_map(priced, **options).answers("order", asked_by="id")
        async with pipeline.start() as job:
            outcomes = await asyncio.gather(
                *(job.ask({"id": 0}, timeout=1) for _ in range(3000)), return_exceptions=True
            )
            assert all(isinstance(outcome, TimeoutError) for outcome in outcomes)
            await job.stop(0)

    run(main())


def test_failure_of_the_function_is_raised_where_it_was_asked() -> None:
    async def main() -> None:
        async with shop(on_error="route").start() as job:
            with pytest.raises(Boom):
                await job.ask({"id": 1, "poison": True})
            assert (await job.ask({"id": 2}))["price"] == 4

    run(main())


def test_cancellation_that_a_function_met_is_none_of_who_asks() -> None:
    async def shared(order: dict[str, Any]) -> None:
        await asyncio.sleep(1)
        raise asyncio.CancelledError  # as of a task that others have cancelled

    async def main() -> None:
        pipeline = Pipeline()
        called = pipeline.submissions().async_map(shared, on_error="route")
        called.answers("id")
        called.failed.answers("id")
        async with pipeline.start() as job:
            asked = asyncio.create_task(job.ask({"id": 1}))
            await asyncio.wait({asked})
            assert not asked.cancelled()
            assert isinstance(asked.exception(), RuntimeError)

    run(main())


def test_who_waits_hears_of_a_stop() -> None:
    async def main() -> None:
        async with shop().start() as job:
            asked = asyncio.create_task(job.ask({"id": 1}))
            await asyncio.sleep(1)
            await job.stop()
            with pytest.raises(JobStopped, match="nothing more is answered"):
                await asked

    run(main())


def test_who_waits_hears_of_a_failure() -> None:
    async def main() -> None:
        async with shop().start() as job:
            asked = asyncio.create_task(job.ask({"id": 1, "poison": True}))
            await asyncio.sleep(200)
            with pytest.raises(JobStopped, match="nothing more is answered") as told:
                await asked
            assert told.value.__cause__ is job.error

    with pytest.raises(UserFunctionError, match="Boom"):
        run(main())


def test_drain_answers_what_was_asked() -> None:
    async def main() -> None:
        async with shop().start() as job:
            asked = asyncio.create_task(job.ask({"id": 1}))
            await asyncio.sleep(1)
            await job.drain()
            assert (await asked)["price"] == 2
            with pytest.raises(JobStopped, match="takes no more"):
                await job.ask({"id": 2})

    run(main())


def test_ask_durably(tmp_path: Path) -> None:
    async def double(value: dict[str, Any]) -> dict[str, Any]:
        return value | {"n": 2 * value["n"]}

    async def main() -> None:
        pipeline = Pipeline()
        asked = pipeline.submissions(inbox=tmp_path / "inbox.sqlite", name="in")
        asked.async_map(double, name="double").answers("id", name="answers")
        async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore())) as job:
            assert await job.ask({"id": "a", "n": 4}, durable=True, id="a", timeout=30) == {"id": "a", "n": 8}
            with pytest.raises(TimeoutError):  # it was answered before
                await job.ask({"id": "a", "n": 4}, durable=True, id="a", timeout=0.01)

    asyncio.run(main())


def test_ask_needs_a_stream_of_answers_and_a_key() -> None:
    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions().discard()
        async with pipeline.start() as job:
            with pytest.raises(PipelineError, match=r"no stream ends in answers; .*answers\(by='id'\)"):
                await job.ask(1)
        async with shop().start() as job:
            with pytest.raises(PipelineError, match="no key to answer it by: MissingField: no field 'id'"):
                await job.ask({"number": 1})
            with pytest.raises(PipelineError, match="no key to answer it by: TypeError"):
                await job.ask({"id": []})
        for wrong in ("", 5, priced):
            with pytest.raises(PipelineError, match="by: expected"):
                Pipeline().submissions().answers(wrong)  # type: ignore[arg-type]
            with pytest.raises(PipelineError, match="asked_by: expected"):
                Pipeline().submissions().answers("id", asked_by=wrong)  # type: ignore[arg-type]

    run(main())


def test_an_answer_without_a_key_fails_the_pipeline_and_names_the_step() -> None:
    async def main() -> None:
        pipeline = Pipeline()
        pipeline.submissions().map(lambda value: {}, name="map").answers("id", name="answers")
        async with pipeline.start() as job:
            with pytest.raises(JobStopped):
                await job.ask({"id": 1})

    with pytest.raises(Exception, match=r"step 'answers': MissingField: no field 'id'"):
        run(main())
