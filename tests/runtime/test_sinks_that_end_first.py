"""A sink whose stream has ended, beside one that fails later: each result is there once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from asyncstream import (
    Checkpoints,
    JsonLinesSink,
    MemoryStore,
    Pipeline,
    Source,
    SourceBatch,
    UserFunctionError,
)
from asyncstream.testing.loop import run_virtual


class Counted(Source[int]):
    """Numbers, one each `pause` seconds."""

    def __init__(self, count: int, pause: float) -> None:
        self.count, self.pause, self.at = count, pause, 0

    async def read(self) -> SourceBatch[int] | None:
        await asyncio.sleep(self.pause)
        if self.at == self.count:
            return None
        self.at += 1
        return SourceBatch([self.at])

    def position(self) -> int:
        return self.at

    async def seek(self, position: int) -> None:
        self.at = position


@pytest.mark.parametrize("every", [0.3, 5, 1000])
@pytest.mark.parametrize("shared", [False, True])
def test_a_sink_that_has_ended_when_another_fails_has_each_result_once(
    tmp_path: Path, every: float, shared: bool
) -> None:
    fails_at = [8, 9, 10, None]

    def build() -> Pipeline:
        fails = fails_at.pop(0)

        def check(number: int) -> int:
            if number == fails:
                raise RuntimeError
            return number

        pipeline = Pipeline("two")
        short = pipeline.source(Counted(5, 0.2), name="short")
        long = pipeline.source(Counted(10, 1.0), name="long").map(check, name="check")
        short.to(JsonLinesSink(tmp_path / "short"), name="first")
        (long.union(short, name="both") if shared else long).to(JsonLinesSink(tmp_path / "long"), name="last")
        return pipeline

    store = MemoryStore()
    for _ in range(3):
        with pytest.raises(UserFunctionError):
            run_virtual(build().run(checkpoints=Checkpoints(store=store, every=every)))
    run_virtual(build().run(checkpoints=Checkpoints(store=store, every=every)))

    def written(name: str) -> list[Any]:
        return sorted(map(orjson.loads, (tmp_path / name).read_bytes().splitlines()))

    assert written("short") == [1, 2, 3, 4, 5]
    assert written("long") == sorted([*range(1, 11), *(range(1, 6) if shared else ())])
