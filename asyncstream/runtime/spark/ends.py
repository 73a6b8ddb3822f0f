"""
What a plan is given in place of the pipeline's sources and sinks, and the session that is to run it: checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from asyncstream.errors import PipelineError
from asyncstream.plan import Graph, SinkStep, SourceStep
from asyncstream.runtime.spark.clocks import timed_inputs
from asyncstream.runtime.spark.pruning import columns_read, pruned
from asyncstream.runtime.spark.schemas import check_columns, struct_type
from asyncstream.runtime.spark.session import ROCKSDB, has_watermark, need_frame
from asyncstream.validation import refuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ("are_streams", "check_keeping", "checked_outputs", "read_of")

POLICY = "spark.sql.streaming.multipleWatermarkPolicy"

RECORDS = "spark.sql.execution.arrow.transformWithStateInPySpark.maxStateRecordsPerBatch"
"""How many entries of its state Spark hands a task at a time; of fewer than one it fails without a word."""

NOT_ENOUGH = "HDFSBackedStateStoreProvider"
"""Spark's other provider. Vendors have more than one of RocksDB, which go by other names."""


def are_streams(graph: Graph, inputs: Mapping[str, DataFrame], spark: SparkSession) -> bool:
    """Whether the inputs are streams."""
    sources = [step.name for step in graph if isinstance(step, SourceStep)]
    _same_names("inputs", "source", sources, inputs)
    for name, frame in inputs.items():
        need_frame(f"inputs[{name!r}]", frame, spark)
        for field in frame.schema.fields:
            if "spark.watermarkDelayMs" in (field.metadata or {}):
                column = repr(field.name)
                raise PipelineError(
                    f"inputs[{name!r}] has a watermark of Spark's already, on column {column}, and what "
                    "comes out would not have it; leave withWatermark out, and give the pipeline its event "
                    "time with stream.event_time(...), or declare it behind. If it has done its work, drop "
                    f"the column, or take it without: col({column}).alias({column}, metadata={{}})"
                )
    kinds = {frame.isStreaming for frame in inputs.values()}
    if len(kinds) > 1:
        raise PipelineError("inputs: some are streams and some are bounded; Spark runs one or the other")
    return bool(kinds.pop())


def read_of(graph: Graph, name: str, frame: DataFrame) -> DataFrame:
    """What of its rows an input is read for; raises `PipelineError` for what Python cannot have of that."""
    if name not in graph.tracking():
        frame = pruned(frame, columns_read(graph, name))
    check_columns(f"inputs[{name!r}]", frame.schema)
    return frame


def check_keeping(graph: Graph, inputs: Mapping[str, DataFrame], spark: SparkSession) -> None:
    """
    Refuse a session that cannot keep state of a stream, and a query that would not follow the watermark which
    the steps mean, that of the slowest of its inputs.
    """
    provider = spark.conf.get("spark.sql.streaming.stateStore.providerClass", NOT_ENOUGH)
    if (provider or NOT_ENOUGH).endswith(NOT_ENOUGH):
        raise PipelineError(
            "windows and process functions on a stream need Spark's RocksDB state store: "
            f"spark.conf.set('spark.sql.streaming.stateStore.providerClass', '{ROCKSDB}')"
        )
    if int(spark.conf.get(RECORDS, "1") or "1") < 1:
        raise PipelineError(
            f"the session has {RECORDS} = {spark.conf.get(RECORDS)!r}, with which Spark hands tasks nothing "
            f"of their state: spark.conf.unset({RECORDS!r})"
        )
    clocks = sum(bool(timed.steps) for timed in timed_inputs(graph))
    if clocks > 1 and (spark.conf.get(POLICY, "min") or "min").lower() != "min":
        raise PipelineError(
            f"event time follows the slowest of several inputs, and the session has {POLICY} = "
            f"{spark.conf.get(POLICY)!r}, by which those of the slower are late: spark.conf.unset({POLICY!r})"
        )
    for name, frame in inputs.items():
        if clocks and has_watermark(frame):
            raise PipelineError(
                f"inputs[{name!r}] comes from a watermark of Spark's, or from keyed steps of another plan; a "
                "query of Spark's has one watermark for all, so nothing here would ever be over: write what "
                "comes before this, to a table or a log, and read that in a query of its own"
            )


def checked_outputs(graph: Graph, outputs: Mapping[str, StructType | str]) -> Mapping[str, StructType]:
    """The columns of what reaches each sink that there is."""
    sinks = [step.name for step in graph if isinstance(step, SinkStep) and step.kind != "discard"]
    for step in graph:
        if isinstance(step, SinkStep) and step.on_error != "fail":
            raise PipelineError(f"step {step.name!r}: on_error= of a sink: on Spark the sinks are Spark's")
    _same_names("outputs", "sink", sinks, outputs)
    return {name: struct_type(f"outputs[{name!r}]", schema) for name, schema in outputs.items()}


def _same_names(argument: str, kind: str, expected: Sequence[str], got: object) -> None:
    if not isinstance(got, Mapping):
        shown = ", ".join(f"{name!r}: ..." for name in expected)
        raise refuse(argument, f"a mapping with one for each {kind}, {{{shown}}}", got)
    missing, unknown = set(expected) - set(got), set(got) - set(expected)
    if missing or unknown:
        problems = [f"there is no {', '.join(map(repr, unknown))}"] if unknown else []
        problems += [f"nothing for {', '.join(map(repr, sorted(missing)))}"] if missing else []
        raise PipelineError(
            f"{argument}: expected one for each {kind} of the pipeline ({', '.join(expected)}), "
            f"{', and '.join(problems)}"
        )
