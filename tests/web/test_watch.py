"""How often a job is looked at for those who watch it."""

from __future__ import annotations

import asyncio

import pytest

from asyncstream import Pipeline
from asyncstream.testing import VirtualTimeLoop
from asyncstream.web.watch import Watches


class BusyLoop(VirtualTimeLoop):
    """Virtual time that also goes on while something is computed, if that says so."""

    spent = 0.0

    def time(self) -> float:
        return super().time() + self.spent


@pytest.mark.parametrize(("takes", "looks"), [(0.01, range(55, 61)), (0.1, range(18, 21)), (3, range(5, 7))])
def test_job_whose_status_takes_long_is_looked_at_less_often(takes: float, looks: range) -> None:
    with asyncio.Runner(loop_factory=BusyLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, BusyLoop)

        def shown(element: int) -> int:
            loop.spent += takes
            return element

        async def watched() -> int:
            pipeline = Pipeline()
            pipeline.submissions().map(lambda number: 1 // number, on_error="skip").discard()
            async with pipeline.start() as job:
                await job.submit(0)
                await asyncio.sleep(1)
                feed = Watches(shown).over(job)
                await asyncio.sleep(60)
                return feed.newest

        assert runner.run(watched()) in looks
