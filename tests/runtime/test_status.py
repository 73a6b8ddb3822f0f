"""`job.status()`: how each step stands, as plain data, at any moment of a job's life."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from asyncstream import (
    AsyncFunction,
    Checkpoints,
    Count,
    Job,
    JobStatus,
    MemoryStore,
    Pipeline,
    PipelineError,
    Sink,
    SinkError,
    Source,
    SourceError,
    TumblingWindows,
    UserFunctionError,
)
from asyncstream.connectors.memory import ListSink
from tests.runtime.parts import boom, forever, run


def orders() -> Pipeline:
    pipeline = Pipeline("orders")
    (
        pipeline.source([{"id": 1}, {"id": 2}], name="orders")
        .map(lambda order: order, name="same")
        .discard(name="end")
    )
    return pipeline


def test_status_tells_of_each_step_before_the_job_runs() -> None:
    status = orders().start().status()
    assert (status.state, status.error, status.checkpoint) == ("new", None, None)
    assert [(step.name, step.kind, step.inputs) for step in status.steps] == [
        ("orders", "source", ()),
        ("same", "map", ("orders",)),
        ("end", "discard", ("same",)),
    ]


def test_job_is_not_asked_for_figures_before_it_is_entered() -> None:
    for ask in (Job.metrics, Job.progress):
        with pytest.raises(PipelineError, match="the job is not running yet"):
            ask(orders().start())


@pytest.mark.usefixtures("virtual_time")
async def test_call_that_a_restore_begins_may_ask_for_figures() -> None:
    """It runs before the job is open, as does what opens."""
    found: list[Any] = []
    job: Job

    class Asks(AsyncFunction[int, int]):
        async def open(self) -> None:
            found.append((job.metrics(), job.progress().read))

        async def invoke(self, value: int) -> int:
            found.append((job.metrics()["ask"]["held"], job.progress().read, job.state))
            await forever()
            return value

    pipeline = Pipeline()
    pipeline.source([1, 2]).async_map(Asks(), name="ask").discard()
    job = pipeline.start()
    async with job:
        await asyncio.sleep(1)  # of virtual time
        snapshot = await job.stop()
    found.clear()
    job = pipeline.start(snapshot=snapshot)
    async with job:
        assert found[0] == ({}, 0)
        await asyncio.sleep(1)  # of virtual time
        await job.stop()
    assert found[1:] == [(1, 0, "opening"), (2, 0, "running")]


def test_an_output_is_told_from_a_step_that_is_called_what_it_is() -> None:
    """A sink of what failed in "price" is called "price.failed", as often as not."""
    pipeline = Pipeline("orders")
    priced = pipeline.source([1], name="orders").map(float, on_error="route", name="price")
    priced.discard(name="end")
    named = priced.failed.map(str, name="price.failed")
    priced.failed.discard(name="one")
    named.discard(name="other")

    async def main() -> JobStatus:
        async with pipeline.start() as job:
            await job.wait()
            return job.status()

    for status in (pipeline.start().status(), run(main())):
        steps = {step.name: (step.inputs, step.input_steps) for step in status.steps}
        assert steps["orders"] == ((), ())
        assert steps["price.failed"] == steps["one"] == (("price.failed",), ("price",))
        assert steps["other"] == (("price.failed",), ("price.failed",))


def test_status_counts_what_went_through_and_is_kept_when_the_job_is_over() -> None:
    async def main() -> JobStatus:
        async with orders().start(checkpoints=Checkpoints(store=MemoryStore())) as job:
            await job.wait()
        return job.status()

    status = run(main())
    assert status.state == "finished"
    assert status.step("orders").counts == {"read": 2}
    assert status.checkpoint is not None
    assert status.checkpoint.number >= 1
    assert status.checkpoint.size > 0
    assert json.loads(json.dumps(status.to_dict())) == status.to_dict()


def test_status_hides_the_element_that_a_job_failed_on_unless_asked() -> None:
    async def main() -> tuple[JobStatus, JobStatus]:
        pipeline = Pipeline()
        pipeline.source(["secret"]).map(boom, name="explode").discard()
        job = pipeline.start()
        with pytest.raises(UserFunctionError):
            async with job:
                await job.wait()
        return job.status(), job.status(values=True)

    hidden, shown = run(main())
    assert hidden.state == "failed"
    assert hidden.error == "step 'explode': Boom"
    assert hidden.failed_step == "explode"
    assert "secret" not in json.dumps(hidden.to_dict())
    assert "'secret'" in str(shown.error)


class BrokenSource(Source[Any]):
    async def read(self) -> Any:
        boom()


class BrokenSink(Sink[Any]):
    async def write(self, values: Any, timestamps: Any) -> None:
        boom()


@pytest.mark.parametrize("broken", ["in", "out"])
async def test_status_of_a_job_names_the_source_or_sink_that_it_failed_in(broken: str) -> None:
    pipeline = Pipeline()
    stream = pipeline.source(BrokenSource() if broken == "in" else [1], name="in")
    stream.to(BrokenSink() if broken == "out" else [], name="out")
    job = pipeline.start()
    assert job.status().failed_step is None
    with pytest.raises((SourceError, SinkError), match=f"step '{broken}': Boom"):
        async with job:
            await job.wait()
    assert job.status().failed_step == broken


async def test_status_of_a_job_that_opens_or_could_not_tells_of_its_steps() -> None:
    seen: list[JobStatus] = []

    class Unopened(ListSink[Any]):
        async def open(self) -> None:
            seen.append(job.status())
            boom()

    pipeline = Pipeline()
    (
        pipeline.source([1], name="in")
        .key_by(str)
        .window(TumblingWindows(1))
        .aggregate(Count(), name="counts")
        .to(Unopened([]), name="out")
    )
    job = pipeline.start()
    with pytest.raises(SinkError):
        async with job:
            pass
    seen.append(job.status())
    assert [status.state for status in seen] == ["opening", "failed"]
    for status in seen:
        assert [(step.name, step.counts) for step in status.steps] == [
            ("in", {}),
            ("counts", {}),
            ("out", {}),
        ]
    assert "asyncstream.job.state" in [metric.name for metric in job.measure()]
    assert job.metrics() == {}


def test_status_knows_its_steps_by_name() -> None:
    status = orders().start().status()
    assert status.step("same").kind == "map"
    with pytest.raises(KeyError):
        status.step("other")
