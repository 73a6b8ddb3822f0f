"""Some stories of crashes and restarts with the state of process functions on disk."""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from asyncstream import DiskState, Pipeline
from tests.simulation.scenarios import story, swept

SEEDS = 40


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_is_lost_and_nothing_is_doubled_with_state_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "asyncstream")
    start, lives = Pipeline.start, count()

    def on_disk(self: Pipeline, **settings: Any) -> Any:
        # a process that has crashed here still has its directory, for it has not really ended
        state = DiskState(tmp_path / str(next(lives)), young_rows=3, cache_bytes=1 << 20)
        return start(self, state=state, **settings)

    monkeypatch.setattr(Pipeline, "start", on_disk)
    for seed in swept(range(SEEDS)):
        story(seed)
    assert next(lives) > SEEDS
