"""
One line in the log for each micro-batch of a query.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from asyncstream.runtime.spark.clocks import SHIFT_YEARS
from asyncstream.runtime.spark.failures import failure_in
from asyncstream.runtime.spark.session import need_session
from asyncstream.validation import count

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQueryListener

__all__ = ("log_progress", "progress_line")

log = logging.getLogger("asyncstream.spark")

NO_WATERMARK = "1970-01-01T00:00:00.000Z"
"""What Spark shows where there is none yet; behind it, one of before 1970 would seem to go back."""


def log_progress(spark: SparkSession, level: int = logging.INFO) -> StreamingQueryListener:
    """
    Log a line for each micro-batch of every query of the session, to the logger `asyncstream.spark`.

    What a plan with `observe=` counts is part of the line, as far as it is not zero. A query that fails has
    an error in the log, as `failure_text` tells it.

    Args:
        spark: the session whose queries are logged.
        level: of the lines, as in `logging`.

    Returns:
        What to give to `spark.streams.removeListener` to end it.
    """
    need_session("spark", spark)
    count("level", level, least=0)
    from pyspark.sql.streaming import StreamingQueryListener

    class Lines(StreamingQueryListener):  # type: ignore[misc]
        def onQueryStarted(self, event: Any) -> None: ...

        def onQueryProgress(self, event: Any) -> None:
            log.log(level, "%s", progress_line(event.progress))

        def onQueryIdle(self, event: Any) -> None: ...

        def onQueryTerminated(self, event: Any) -> None:
            if event.exception is not None:
                log.error("%s has failed: %s", event.id, failure_in(event.exception))

    lines = Lines()
    spark.streams.addListener(lines)
    return lines


def _ours(watermark: str) -> str:
    """A watermark as the pipeline knows it; those of other queries are of this millennium."""
    year, rest = watermark[:4], watermark[4:]
    later = year.isdigit() and int(year) > 2 * SHIFT_YEARS - 1000
    return f"{int(year) - SHIFT_YEARS:04}{rest}" if later else watermark


def progress_line(progress: Any) -> str:
    """What a `StreamingQueryProgress` says, in a line."""
    seconds = progress.batchDuration / 1000
    speed = f", {progress.numInputRows / seconds:,.0f} rows/s" if seconds else ""
    line = (
        f"{progress.name or progress.id} micro-batch {progress.batchId}: "
        f"{progress.numInputRows:,} rows in {seconds:.1f} s{speed}"
    )
    watermark = (progress.eventTime or {}).get("watermark")
    if watermark not in (None, NO_WATERMARK):
        line += f", watermark {_ours(watermark)}"
    counts = {
        name: count
        for row in (progress.observedMetrics or {}).values()
        for name, count in row.asDict().items()
    }
    found = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
    return f"{line}; {found}" if found else line
