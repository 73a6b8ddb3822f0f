"""No checkpoint is taken once a job has failed: it would lack the elements over which it did."""

from __future__ import annotations

import asyncio

import pytest

from asyncstream import Checkpoints, MemoryStore, Pipeline, UserFunctionError
from asyncstream.testing.loop import run_virtual


@pytest.mark.parametrize("every", [0.02, 0.3, 1.0, 100.0])
def test_elements_over_which_a_plain_step_failed_come_again(every: float) -> None:
    seen: list[int] = []
    fails = {17, 31}

    def looks(value: int) -> int:
        if value in fails:
            fails.discard(value)
            raise ValueError("on purpose")
        return value

    async def slow(value: int) -> None:
        await asyncio.sleep(0.25)  # so that sinks have something to write while the job winds down
        seen.append(value)

    def built() -> Pipeline:
        pipeline = Pipeline("numbers")
        pipeline.source(range(40), name="in").map(looks, name="looks").to(slow, name="out")
        return pipeline

    async def main() -> None:
        kept = Checkpoints(store=MemoryStore(), every=every)
        for _ in range(2):
            with pytest.raises(UserFunctionError, match="on purpose"):
                await built().run(checkpoints=kept)
        await built().run(checkpoints=kept)

    run_virtual(main())
    assert sorted(set(seen)) == list(range(40))
