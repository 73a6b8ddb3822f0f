"""A keyed step with two inputs is a step like others: run, stopped, restored, described."""

from __future__ import annotations

from pathlib import Path

import pytest

from asyncstream import Pipeline
from tests.operators.enriching import enriched


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_ports_are_told_apart_and_described() -> None:
    found: list[str] = []
    pipeline = Pipeline()
    source = pipeline.source([{"key": "?a", "v": 1}, {"key": "?b", "v": 2}])
    enriched(source, source).to(found)  # one output read by both, the events first
    await pipeline.run()
    assert found == ["1 with None", "2 with None"]
    assert "enriched  enrich <- source, source" in pipeline.describe()


def test_what_it_knows_of_keys_and_inputs_outlives_a_job(tmp_path: Path) -> None:
    found: list[str] = []
    facts = [{"key": "a", "v": 10}, {"key": "b", "v": 20}]
    for events in ([], [{"key": "?a", "v": 1}, {"key": "?c", "v": 2}]):
        pipeline = Pipeline("two")
        one, other = pipeline.source(events, name="events"), pipeline.source(facts, name="facts")
        enriched(one, other).to(found, name="out")
        pipeline.run_blocking(checkpoints=tmp_path)
    assert found == ["1 with 10", "2 with None"]
