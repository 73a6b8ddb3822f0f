"""
The stages of a plan as operations on Spark DataFrames: the order in which Spark runs them, the shuffles that
bring keys together between them, and the watermark that Spark is handed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.errors import module_of
from asyncstream.guards.nests import shares_on_one_host
from asyncstream.guards.rate_limit import divides_rate
from asyncstream.plan import Graph, Output
from asyncstream.runtime.spark.clocks import delay_ms
from asyncstream.runtime.spark.input_order import in_places, order_of
from asyncstream.runtime.spark.one_row import one_row
from asyncstream.runtime.spark.session import partitions_of, tasks_at_once
from asyncstream.runtime.spark.stages import Stage, StageKind, reached
from asyncstream.runtime.spark.state_transfer import StateTransfer
from asyncstream.runtime.spark.wire.columns import picks_of
from asyncstream.runtime.spark.wire.envelope import COLUMNS, envelope_type
from asyncstream.runtime.spark.wire.folding import foldings_of
from asyncstream.runtime.spark.worker.keyed import KeyGroup
from asyncstream.runtime.spark.worker.loop import token_of
from asyncstream.runtime.spark.worker.operators import Terms
from asyncstream.runtime.spark.worker.origins import with_partition
from asyncstream.runtime.spark.worker.outputs import OutputTask
from asyncstream.runtime.spark.worker.shipped import Shipped
from asyncstream.runtime.spark.worker.tasks import StageTask, run_stage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ("StageFrames",)


@dataclass(frozen=True, kw_only=True, eq=False)
class StageFrames:
    """
    What the stages of one plan read, and what they are run with.

    Attributes:
        title: the pipeline's name.
        stages: all of them, in their order.
        terms: what they have in common.
        inputs: what the source steps read, and no more, by step name, in the order in which Spark is to have
            them.
        outputs: what leaves for these goes as their rows; by the name of the sink step.
        direct: the output whose rows the last stage writes itself; None: it writes envelopes.
        partitions: into how many keys are shuffled in a bounded job.
        transfer: what the steps begin with; None: with nothing.
        identity: tells this plan from one made anew, which is another job.
    """

    spark: SparkSession
    graph: Graph
    title: str
    stages: Sequence[Stage]
    terms: Terms
    inputs: Mapping[str, DataFrame]
    outputs: Mapping[str, OutputTask]
    direct: OutputTask | None
    partitions: int
    transfer: StateTransfer | None
    identity: str = field(default_factory=lambda: uuid4().hex)

    def last(self) -> DataFrame:
        """What leaves the last stage: envelopes, or the rows of the direct output."""
        frame = self._first()
        for number, stage in enumerate(self.stages[1:], start=1):
            if stage.kind is StageKind.KEYED:
                frame = self._with_state(frame, stage, number)
                continue
            if stage.kind is StageKind.SHUFFLED:
                frame = frame.repartition(self.partitions, "group")
                if not self.terms.streaming:
                    ahead = ["watermark"] if self.terms.replays else []
                    frame = frame.sortWithinPartitions(*ahead, "origin", "sequence")
            frame = self._map(frame, number, number)
        return frame

    @cached_property
    def at_once(self) -> list[int | None]:
        """How many tasks of each stage run at once, by its number; None: that is not known."""
        calls = {
            step.name: step.spec.calls
            for stage in self.stages
            for step in stage.steps
            if step.spec.calls is not None
        }
        rated = [name for name, each in calls.items() if divides_rate(each.function)]
        sharing = [name for name, each in calls.items() if shares_on_one_host(each.function)]
        most = tasks_at_once(self.spark, rated, sharing)
        if most is None or not calls:
            return [None] * len(self.stages)
        parts = [None if self.terms.streaming else partitions_of(frame) for frame in self.inputs.values()]
        first = most
        if self.transfer is None and None not in parts:
            first = min(most, sum(part or 0 for part in parts))
        return [max(first, 1), *[min(most, self.partitions)] * (len(self.stages) - 1)]

    # ------------------------------------------------------------------ the first stage

    def _first(self) -> DataFrame:
        frames = []
        transfer = self.transfer
        for timed, names in in_places(self.graph, self.inputs):
            together = [self._from_source(name) for name in names]
            if transfer is not None:
                known_ms = transfer.reached(timed.steps) if timed.steps else MIN_TIMESTAMP
                row = one_row(self.spark, streaming=self.terms.streaming)
                # its envelopes come before all others
                together.append(self._map(row, 0, -1, source=(), transfer=transfer, known_ms=known_ms))
                transfer = transfer.without_states()
            frame = reduce(_united, together)
            if self._has_state:
                # The delay is in the column already. Selecting the others leaves Spark with the watermark,
                # but with no column by which to drop late rows before the operators see them.
                if self._has_event_time and timed.steps:
                    frame = frame.withWatermark("event_time", "0 seconds")
                frame = frame.select(*COLUMNS)
            frames.append(frame)
        if self.inputs and self.terms.inputs:
            frames.insert(0, order_of(self.terms.inputs, self.spark, frames[0].schema))
        return reduce(_united, frames)

    def _from_source(self, name: str) -> DataFrame:
        stage, source = self.stages[0], Output(name)
        routes = {route.number for route in (*stage.entries, *stage.exits) if route.output == source}
        number = list(self.inputs).index(name)
        frame, columns, asked = self.inputs[name], None, None
        if name in self._tracking:
            frame = with_partition(frame)
            asked = (self.identity, "" if self.terms.streaming else self.title, name)
        names = frame.schema.names
        is_field = any({".", "`"} & set(column) for column in names)
        is_unsure = len(set(map(str.lower, names))) < len(names)
        if is_field or is_unsure:
            # PySpark looks for columns by name: for these as fields of a struct, or whatever their case
            columns = tuple(names)
            frame = frame.toDF(*(f"c{place}" for place in range(len(names))))
        entered = tuple(sorted(routes))
        picks = None
        if not asked and not self.terms.replays:
            picks = picks_of(stage, entered, self.terms.wanted, foldings_of(self.graph, self.stages))
        return self._map(frame, 0, number, source=entered, columns=columns, picks=picks, asked=asked)

    # ------------------------------------------------------------------ any stage

    def _map(
        self,
        frame: DataFrame,
        place: int,
        number: int,
        *,
        source: tuple[int, ...] | None = None,
        **more: Any,
    ) -> DataFrame:
        """
        Have tasks run a stage.

        Args:
            place: of the stage among all.
            number, source: see `StageTask`, as for what else there is to know.
        """
        stage = self.stages[place]
        # each goes to Spark with all others: of many sources the whole stage, for each, would be too much
        part = reached(stage, source) if source else stage
        task = StageTask(
            f"{self._token}/{place}",
            part,
            self.terms,
            number,
            output=self.direct if stage is self.stages[-1] else None,
            outputs=self._outputs_of(stage),
            event_time=place == 0 and self._has_state,
            at_once=self.at_once[place],
            pipeline=self.title,
            source=source,
            **more,
        )
        schema = envelope_type(event_time=task.event_time) if task.output is None else task.output.schema
        # what is transferred is used once, and perhaps large
        shipped = Shipped(task, stage=part, stays=task.transfer is None)
        return frame.mapInArrow(lambda batches: run_stage(shipped.value, batches), schema)

    def _with_state(self, frame: DataFrame, stage: Stage, number: int) -> DataFrame:
        module_of("spark", "google.protobuf", "a stream of keyed steps")  # else Spark's worker crashes
        return frame.groupBy("group").transformWithState(
            KeyGroup(stage, self.terms, number, self._outputs_of(stage)),
            envelope_type(),
            "append",
            self._time_mode(),
        )

    def _time_mode(self) -> str:
        if self.terms.processing_time:
            return "ProcessingTime"
        return "EventTime" if self._has_event_time else "None"

    def _outputs_of(self, stage: Stage) -> tuple[OutputTask, ...]:
        """Those that the stage emits for."""
        exits = {route.number for route in stage.exits}
        return tuple(output for output in self.outputs.values() if output.route in exits)

    @cached_property
    def _token(self) -> str:
        return token_of(self.stages)

    @cached_property
    def _tracking(self) -> set[str]:
        return self.graph.tracking()

    @cached_property
    def _has_state(self) -> bool:
        return any(stage.kind is StageKind.KEYED for stage in self.stages)

    @cached_property
    def _has_event_time(self) -> bool:
        """Whether a step tells of a watermark that Spark can have, by which keyed steps go."""
        clocks = (step.spec.event_time for step in self.stages[0].steps if step.name in self.terms.clocks)
        return any(clock is not None and delay_ms(clock.strategy) is not None for clock in clocks)


def _united(one: DataFrame, other: DataFrame) -> DataFrame:
    return one.union(other)
