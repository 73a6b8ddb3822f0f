"""A stage's task, and Arrow batches for it."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from asyncstream import Pipeline
from asyncstream.plan import Output
from asyncstream.runtime.spark.stages import stages_of
from asyncstream.runtime.spark.wire.envelope import entering
from asyncstream.runtime.spark.worker.operators import Terms
from asyncstream.runtime.spark.worker.outputs import OutputTask
from asyncstream.runtime.spark.worker.tasks import StageTask
from tests.spark.cluster import columns


def batch(*numbers: int) -> Any:
    import pyarrow as pa

    return pa.record_batch({"v": pa.array(numbers, pa.int64())})


def unpack(payload: bytes) -> tuple[list[Any], list[Any]]:
    """The elements in an envelope, and their timestamps."""
    parts = list(entering(0, payload))
    return [each for part in parts for each in part.values], [
        at for part in parts for at in part.timestamps or ()
    ]


def one_stage(pipeline: Pipeline, sink: str) -> StageTask:
    from pyspark.sql.types import LongType

    (stage,) = stages_of(pipeline._graph, streaming=False)
    route = next(route.number for route in stage.exits if route.reader == sink)
    source = tuple(r.number for r in stage.entries if r.output == Output("source"))
    output = OutputTask(sink, route, columns(v=LongType()))
    return StageTask(
        uuid4().hex, stage, Terms(4, frozenset({route}), streaming=False), source=source, output=output
    )
