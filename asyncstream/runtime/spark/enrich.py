"""
One async step for any PySpark job: `enrich` a DataFrame, or one whose failures come out apart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Unpack

from asyncstream.async_wait import AsyncWaitOptions, AsyncWaitSettings, AsyncWaitSpec
from asyncstream.connectors.memory import Items, ListSink
from asyncstream.errors import PipelineError
from asyncstream.operators.functions import AsyncFunction
from asyncstream.plan import Graph, Input, OperatorStep, Output, SinkStep, SourceStep
from asyncstream.runtime.spark.plan import SparkPlan
from asyncstream.runtime.spark.schemas import struct_type
from asyncstream.runtime.spark.session import need_frame
from asyncstream.runtime.spark.settings import PlanSettings
from asyncstream.validation import check_options, flag, refuse, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation
    from pyspark.sql.types import StructType

__all__ = ("async_step", "enrich", "enrich_apart")

Function = Callable[[dict[str, Any]], Awaitable[Any]] | AsyncFunction[dict[str, Any], Any]


def enrich(
    df: DataFrame,
    fn: Function,
    *,
    schema: StructType | str,
    flat: bool = False,
    name: str = "enrich",
    observe: str | Observation | None = None,
    **options: Unpack[AsyncWaitOptions],
) -> DataFrame:
    """
    Each row becomes `await fn(row)`; many calls run at once. For bounded and streaming DataFrames.

        df.transform(enrich, with_plane, schema=schema, concurrency=200, timeout=5)

    In every task that Spark runs at the same time, `concurrency` calls are under way. A client that an
    `AsyncFunction` opens stays open from task to task, and in `foreachBatch` from micro-batch to micro-batch.
    Declare a watermark behind this, not before it.

    Spark computes a DataFrame again for each action, for each side of its join or union with itself, and for
    `orderBy` and `repartitionByRange`, which first take a sample of the rows: the service is then asked again
    for every row, and may answer otherwise. Where that matters, `persist()` the result, or write it and read
    it back. A task that fails is run again too, with all its calls.

    A rate holds for all of the job: with `rate_limit(fn, rate=50)`, each of the tasks that can run at once
    makes its part of 50 calls a second. `plan.describe()` of a pipeline says how many that are; over Spark
    Connect it is not known, and each makes 50. Other guards hold in each Python worker: `cached`,
    `circuit_breaker`, `adaptive_concurrency`, and a limiter that is not asyncstream's.

    Args:
        df: the rows, bounded or streaming.
        fn: an `async def` of one row, a dict, or an `AsyncFunction`; gives a dict, a NamedTuple, a dataclass
            or a Row. Maps in a row are dicts, too.
        schema: the columns of what `fn` gives, also as text: "id bigint, name string". A result must have
            each of them, None where there is no value; what it has besides is left out.
        flat: `fn` gives an iterable of rows.
        name: what errors call this step.
        observe: the name, or `Observation`, by which Spark tells what is counted: calls, failures, retries,
            calls in flight.
        options: see `AsyncWaitOptions`. Results can be routed apart by `enrich_apart` only.

    Raises:
        PipelineError: if an argument is not as described.
    """
    for option in ("on_error", "on_timeout"):
        if options.get(option) == "route":
            raise PipelineError(f"{option}='route': enrich gives one DataFrame; use enrich_apart")
    return _plan(df, fn, schema, flat, name, observe, options, [])["results"]


def enrich_apart(
    df: DataFrame,
    fn: Function,
    *,
    schema: StructType | str,
    flat: bool = False,
    name: str = "enrich",
    observe: str | Observation | None = None,
    **options: Unpack[AsyncWaitOptions],
) -> SparkPlan:
    """
    As `enrich`, with the rows that gave no result: `["results"]`, `["failed"]` and, if there is a `timeout`,
    `["timed_out"]`.

    `on_error` and `on_timeout` are "route" unless something else is said. The rows of the last two have the
    columns of a `FailedCall`: value (the row), error (text), attempts, timestamp, first_ms, last_ms.

    Args:
        df, fn, schema, flat, name, observe, options: as of `enrich`.
    """
    options.setdefault("on_error", "route")
    if options.get("timeout") is not None:
        options.setdefault("on_timeout", "route")
    tags = {"failed": options["on_error"], "timed_out": options.get("on_timeout")}
    return _plan(
        df, fn, schema, flat, name, observe, options, [tag for tag, way in tags.items() if way == "route"]
    )


def _plan(
    df: DataFrame,
    fn: Function,
    schema: StructType | str,
    flat: bool,
    name: str,
    observe: str | Observation | None,
    options: AsyncWaitOptions,
    tags: list[str],
) -> SparkPlan:
    need_frame("df", df)
    graph, _ = async_step(fn, name, options, flat=flag("flat", flat))
    outputs = {"results": struct_type("schema", schema)}
    for tag in tags:
        graph.add(SinkStep(tag, ListSink([]), (Input(Output(name, tag)),)))
        outputs[tag] = _failed_call(df.schema)
    settings = PlanSettings(observe=observe)
    return SparkPlan(graph, df.sparkSession, settings, {"rows": df}, outputs, name)


def async_step(
    fn: Function, name: str, options: AsyncWaitOptions, *, flat: bool
) -> tuple[Graph, AsyncWaitSettings]:
    """A graph of one async step between the source "rows" and the sink "results"."""
    check_options(name, options, tuple(AsyncWaitOptions.__annotations__))
    checked: dict[str, Any] = {**options}
    settings = AsyncWaitSettings(fn, flat=flat, **checked)
    if text("name", name) in ("rows", "results", "failed", "timed_out"):
        raise refuse("name", "a name that no output has", name)
    graph = Graph()
    graph.add(SourceStep("rows", Items(())))
    details = {"concurrency": settings.concurrency, "order": settings.order.value}
    graph.add(OperatorStep(name, "async_map", (Input(Output("rows")),), AsyncWaitSpec(settings), details))
    graph.add(SinkStep("results", ListSink([]), (Input(Output(name)),)))
    return graph, settings


def _failed_call(row: StructType) -> StructType:
    """The columns of a `FailedCall` whose element is a row."""
    from pyspark.sql import types

    columns = [("value", row), ("error", types.StringType()), ("attempts", types.IntegerType())]
    columns += [(name, types.LongType()) for name in ("timestamp", "first_ms", "last_ms")]
    return types.StructType([types.StructField(column, kind) for column, kind in columns])
