"""
An async function as a function of columns: `df.withColumn("plane", with_plane("tailnum"))`.

Less than `enrich`, one result for each row and in their order, but the DataFrame keeps its watermark, and it
works where Spark allows expressions only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Unpack

from asyncstream.async_wait import AsyncWaitOptions, OutputOrder
from asyncstream.errors import PipelineError
from asyncstream.guards.nests import shares_on_one_host
from asyncstream.guards.rate_limit import divides_rate, share_rates
from asyncstream.operators.functions import AsyncFunction
from asyncstream.runtime.spark.enrich import async_step
from asyncstream.runtime.spark.schemas import data_type
from asyncstream.runtime.spark.session import need_pyspark, tasks_at_once
from asyncstream.runtime.spark.stages import Stage, stages_of
from asyncstream.runtime.spark.wire.arrow_types import arrow_type
from asyncstream.runtime.spark.wire.batches import NOW, Entering, Leaving
from asyncstream.runtime.spark.wire.rows import arrays_of, elements_of
from asyncstream.runtime.spark.worker.loop import loop_thread, token_of
from asyncstream.runtime.spark.worker.operators import Terms, telling_the_cause
from asyncstream.runtime.spark.worker.shipped import Shipped, sending
from asyncstream.runtime.spark.worker.stage_run import StageRun
from asyncstream.validation import refuse

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

__all__ = ("enrich_column", "run_column")


def enrich_column(
    fn: Callable[[dict[str, Any]], Awaitable[Any]] | AsyncFunction[dict[str, Any], Any],
    returns: DataType | str,
    *,
    name: str = "enrich_column",
    **options: Unpack[AsyncWaitOptions],
) -> Callable[..., Column]:
    """
    A function of columns whose value in each row is `await fn(row)`; many calls run at once.

        with_plane = enrich_column(look_up, StringType(), concurrency=200)
        df.withColumn("plane", with_plane("tailnum"))

    Every row has one call, and one answer that all expressions on the column share: Spark is told that the
    function may answer otherwise the next time. There are more calls only where Spark runs a task again:
    after a failure, for each action on a DataFrame that is not persisted and for each side of its join or
    union with itself, and for `orderBy` and `repartitionByRange`, which first take a sample of the rows.
    `df.persist()` spares them.

    Args:
        fn: an `async def` of a dict that holds the columns it is applied to, or an `AsyncFunction`.
        returns: the type of the column, also as text: "bigint".
        name: what errors call this step.
        options: see `AsyncWaitOptions`; every row needs a value, so nothing can be skipped or routed.

    Raises:
        PipelineError: if an argument is not as described.
    """
    need_pyspark()
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as columns
    from pyspark.sql.functions import arrow_udf

    returns = data_type("returns", returns)
    graph, settings = async_step(fn, name, options, flat=False)
    for option, choice in (("on_error", settings.on_error), ("on_timeout", settings.on_timeout)):
        if choice in ("skip", "route"):
            raise PipelineError(f"{option}={choice!r}: every row of a column needs a value; use enrich")
    if settings.order is not OutputOrder.ORDERED:
        raise PipelineError(
            f"order={settings.order.value!r}: a column keeps the order of its rows; use enrich"
        )
    if settings.effect is True:
        advice = "use enrich, or effect= with a function of the element"
        raise refuse("effect", "what tells rows from each other, which a column does not", True, advice)
    stages = stages_of(graph, streaming=False)
    session = SparkSession.getActiveSession()
    told = ([name] if is_so else () for is_so in (divides_rate(fn), shares_on_one_host(fn)))
    at_once = None if session is None else tasks_at_once(session, *told)
    shipped = Shipped((token_of(stages), stages[0], name, returns, at_once), stage=stages[0])

    def values(arrays: Any) -> Any:
        return run_column(*shipped.value, arrays)

    # PySpark tells by these what kind of function it is
    values.__annotations__ = {"arrays": Iterator[pa.Array], "return": Iterator[pa.Array]}
    # or Spark would ask again for a filter on the result, and keep rows by another answer than they show
    function = arrow_udf(values, returns).asNondeterministic()

    def column(*of: Any) -> Any:
        with sending():
            return function(columns.struct(*of))

    return column


def run_column(
    token: str, stage: Stage, name: str, returns: DataType, at_once: int | None, arrays: Iterator[pa.Array]
) -> Iterator[pa.Array]:
    """The values for the rows of one partition; `at_once`: how many tasks share every rate, if known."""
    import pyarrow as pa

    share_rates(at_once or 1)
    kind = arrow_type(returns)
    exits = frozenset(route.number for route in stage.exits)
    entries = tuple(route.number for route in stage.entries)
    loop = loop_thread()
    terms = Terms(1, exits, streaming=False)
    run = StageRun(loop.resident(token, stage), terms, spread=0, watermark=NOW, closing=False, pipeline=name)

    def columns(leaving: list[Leaving], _: int) -> Iterator[pa.Array]:
        for item in leaving:
            yield from arrays_of(list(item.values), kind, name)

    with telling_the_cause():
        try:
            loop.call(run.open())
            for array in arrays:
                rows = elements_of(pa.RecordBatch.from_struct_array(array))
                yield from columns(*loop.call(run.feed([Entering(entries, rows)])))
            yield from columns(*loop.call(run.finish()))
        finally:
            loop.call(run.close())
