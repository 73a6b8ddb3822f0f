"""A keyed step with two inputs on the stand-in for Spark: each by its own key, and both in one key group."""

from __future__ import annotations

from typing import Any

import pytest

from asyncstream import PipelineError, Stream
from tests.operators.enriching import enriched, is_event
from tests.spark.cluster import event_columns
from tests.spark.contract import embedded, on_spark, on_stand_in, row
from tests.spark.fake_spark import StandIn

FACTS = [row(1_000, key) | {"v": v} for v, key in enumerate("abcdefgh")]
EVENTS = [row(1_500, f"?{key}") | {"v": v} for v, key in enumerate("hgfedcbaxyz")]
FOUND = sorted(
    f"found: '{v} with {'abcdefgh'.index(key) if key < 'x' else None}'" for v, key in enumerate("hgfedcbaxyz")
)


def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
    events, facts = timed.filter(is_event), timed.filter(lambda row: not is_event(row))
    return {"found": enriched(events, facts), "facts": facts.map(dict)}


def test_stream_finds_in_a_later_micro_batch_what_came_by_the_other_port() -> None:
    batches = [FACTS, EVENTS]
    found = sorted(on_stand_in(batches, define))
    assert found == embedded(batches, define)
    assert [line for line in found if line.startswith("found")] == FOUND


def test_bounded_job_brings_the_keys_of_both_ports_together() -> None:
    source: Any = StandIn(1).bounded([FACTS, EVENTS], event_columns())
    plan = on_spark(source.sparkSession, source, define, key_groups=3)
    found = sorted(line for (line,) in plan["lines"].collect())
    assert [line for line in found if line.startswith("found")] == FOUND


def test_input_that_every_task_would_need_is_refused() -> None:
    def broadcast(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        facts = timed.filter(lambda row: not is_event(row), name="facts")
        return {"found": enriched(timed.filter(is_event), facts, None), "facts": facts}

    source: Any = StandIn(1).bounded([FACTS], event_columns())
    with pytest.raises(PipelineError, match="step 'enriched' brings keys together and reads 'facts' without"):
        on_spark(source.sparkSession, source, broadcast)
