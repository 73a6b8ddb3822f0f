"""What the simulation has found, told without it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asyncstream import Pipeline, SinkError
from asyncstream.checkpoint import Checkpoints, MemoryStore
from asyncstream.connectors.base import TransactionalSink
from asyncstream.elements import Timestamps
from asyncstream.errors import CheckpointError

pytestmark = pytest.mark.usefixtures("virtual_time")


class SlowSink(TransactionalSink[int]):
    """Takes a second for each write, and then refuses it if told to."""

    def __init__(self, *, refuses: bool) -> None:
        self._refuses = refuses

    async def recover(self, position: Any) -> None:
        pass

    async def write(self, values: Sequence[int], timestamps: Timestamps) -> None:
        await asyncio.sleep(1)
        if self._refuses:
            raise OSError("disk full")

    async def prepare(self, epoch: int) -> Any:
        return epoch

    async def commit(self, epoch: int) -> None:
        pass


def pipeline_into(sink: SlowSink) -> Pipeline:
    pipeline = Pipeline()
    pipeline.submissions(name="in").to(sink, name="sink")
    return pipeline


def intolerant() -> Checkpoints:
    return Checkpoints(store=MemoryStore(), tolerate=0)


async def test_checkpoint_that_a_stop_cuts_short_is_no_failure_of_the_job() -> None:
    """The sink was cancelled under a checkpoint that waited for it, and the job failed of that."""

    async with pipeline_into(SlowSink(refuses=False)).start(checkpoints=intolerant()) as job:
        await job.submit(1)
        await asyncio.sleep(0.1)
        checkpoint = asyncio.create_task(job.checkpoint())
        await asyncio.sleep(0.1)
        await job.stop(timeout=0.1)
        with pytest.raises(CheckpointError, match="the job ended before"):
            await checkpoint


async def test_job_fails_of_what_its_sink_raised_and_not_of_the_checkpoint_that_waited_for_it() -> None:
    """The checkpoint failed a callback earlier than the sink's task ended, and hid the reason."""

    async def main() -> None:
        async with pipeline_into(SlowSink(refuses=True)).start(checkpoints=intolerant()) as job:
            await job.submit(1)
            await asyncio.sleep(0.1)
            checkpoint = asyncio.create_task(job.checkpoint())
            with pytest.raises(SinkError, match="disk full"):
                await job.wait()
            with pytest.raises(CheckpointError):
                await checkpoint

    with pytest.raises(SinkError, match="disk full"):
        await main()
