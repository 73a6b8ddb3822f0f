"""
The contract: Spark gives what the embedded engine gives when it is fed W(0) rows(0) W(1) rows(1) ...

W(n) is the largest timestamp in the micro-batches before, less the delay and a millisecond. Embedded, it is
brought by an element of its own, from which the watermark is read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import Pipeline, Stream
from asyncstream.windowing import Sum, TumblingWindows
from tests.spark.cluster import frame, run_stream, stream
from tests.spark.contract import (
    Definition,
    batches_of,
    embedded,
    embedded_to_the_end,
    functions,
    key_of,
    on_spark,
    row,
    untimed,
    windows,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(("define", "seed"), [(windows, 4), (functions, 4), (untimed, 1)])
def test_stream_gives_what_the_embedded_engine_gives(
    spark: SparkSession, tmp_path: Path, define: Definition, seed: int
) -> None:
    batches = batches_of(seed, count=4)
    plan = on_spark(spark, stream(spark, tmp_path / "in", batches), define, key_groups=5)
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    spark.conf.set(name, 7)  # so that several envelopes of a key group come out of one task
    try:
        found = run_stream(plan, tmp_path / "checkpoint")["lines"]
    finally:
        spark.conf.unset(name)
    assert sorted(found) == embedded(batches, define)
    names = {line.split(":")[0] for line in found}
    assert names == set(define(Pipeline().source([]))) - {"of_windows_late"}


@pytest.mark.parametrize("define", [windows, functions, untimed])
def test_bounded_job_gives_what_the_embedded_engine_gives(spark: SparkSession, define: Definition) -> None:
    rows = [row for batch in batches_of(3) for row in batch]
    plan = on_spark(spark, frame(spark, rows, partitions=3), define, key_groups=5)
    found = [row.line for row in plan["lines"].collect()]
    assert sorted(found) == embedded_to_the_end(rows, define)


def test_watermark_is_flinks_to_the_millisecond(spark: SparkSession, tmp_path: Path) -> None:
    """A window that ends at 2,000 fires for W = 1,999, which follows 4,000 and not 3,999."""
    first = [row(0), row(100, "quiet"), row(3_999)]
    batches = [first, [row(1_000), row(4_000)], [row(1_500)], [row(9_000)], [row(9_500)]]

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        sums = timed.key_by(key_of).window(TumblingWindows(2)).aggregate(total=Sum("ts"))
        return {"sums": sums, "late": sums.late}

    plan = on_spark(spark, stream(spark, tmp_path / "in", batches), define)
    found = run_stream(plan, tmp_path / "checkpoint")["lines"]
    assert sorted(found) == embedded(batches, define)
    for expected in ("sums: WindowResult(key='k', start_ms=0, end_ms=2000, value={'total': 1000})", "late: "):
        assert any(line.startswith(expected) for line in found)
