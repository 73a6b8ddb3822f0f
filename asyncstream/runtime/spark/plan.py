"""
A pipeline on Spark, as the user holds it: the outputs of a `SparkPlan` are DataFrames.

Nothing of what operators mean is decided here. `stages` cuts them apart, `stage_frames` has Spark run the
stages, `worker.tasks` is what a task does, and `worker.keyed` what Spark's state holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from asyncstream.checkpoint import CheckpointInfo, Checkpoints, Place, checkpoints_of
from asyncstream.errors import CheckpointError, PipelineError
from asyncstream.plan import Graph, OperatorStep, as_text
from asyncstream.runtime.spark.clocks import before, timed_inputs
from asyncstream.runtime.spark.compatibility import differences, refuse_unknown, replays
from asyncstream.runtime.spark.ends import are_streams, check_keeping, checked_outputs, read_of
from asyncstream.runtime.spark.failures import reason_of
from asyncstream.runtime.spark.input_order import places_told
from asyncstream.runtime.spark.micro_batch import computed
from asyncstream.runtime.spark.observe import counts_of, observed
from asyncstream.runtime.spark.regroup import Notes, go_on
from asyncstream.runtime.spark.session import need_session, shuffle_partitions
from asyncstream.runtime.spark.settings import PlanSettings
from asyncstream.runtime.spark.stage_frames import StageFrames
from asyncstream.runtime.spark.stages import StageKind, stages_of
from asyncstream.runtime.spark.state_transfer import divided, save, transfer_from, united
from asyncstream.runtime.spark.stopped import next_watermark_ms, states_of
from asyncstream.runtime.spark.wire.batches import States
from asyncstream.runtime.spark.wire.values import classes_in
from asyncstream.runtime.spark.worker.operators import Terms
from asyncstream.runtime.spark.worker.outputs import OutputTask, write_rows
from asyncstream.runtime.spark.worker.shipped import Shipped, sending
from asyncstream.validation import count, function, refuse, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    Writer = Callable[[Mapping[str, DataFrame], int], None]

__all__ = ("SparkPlan",)

ALREADY = "SHUFFLE_PARTITIONS_ALREADY_MATCH"
"""Spark's word for state that is divided among so many partitions."""

NOT_AT_REST = "STATE_REPARTITION_INVALID_CHECKPOINT"
"""Spark's word for a checkpoint whose state it does not begin to divide."""


class SparkPlan(Mapping[str, "DataFrame"]):
    """
    The outputs of a pipeline on Spark, by the names of its sinks: `plan["results"]` is a DataFrame.

    Nothing runs before Spark is asked for rows. Several outputs of a bounded job are computed together
    the first time that one of them is asked for, and kept until `release`. Several outputs of a stream are
    written together, by `write_stream`.

    Args:
        inputs, outputs: as for `Pipeline.on_spark`.

    Raises:
        PipelineError, CheckpointError: as there.
    """

    def __init__(
        self,
        graph: Graph,
        spark: SparkSession,
        settings: PlanSettings,
        inputs: Mapping[str, DataFrame],
        outputs: Mapping[str, StructType | str],
        title: str = "pipeline",
    ) -> None:
        graph.check()
        need_session("spark", spark)
        self._graph = graph
        self._spark = spark
        self._settings = settings
        self._title = title
        self._streaming = are_streams(graph, inputs, spark)
        inputs = {name: read_of(graph, name, frame) for name, frame in inputs.items()}
        self._stages = stages_of(graph, streaming=self._streaming)
        self._outputs = {
            name: OutputTask(name, self._route_to(name), schema)
            for name, schema in checked_outputs(graph, outputs).items()
        }
        refuse_unknown(graph, streaming=self._streaming, processing_time=settings.processing_time)
        self._has_state = any(stage.kind is StageKind.KEYED for stage in self._stages)
        if self._has_state:
            check_keeping(graph, inputs, spark)
        key_groups, partitions = settings.resolved(shuffle_partitions(spark))
        places = places_told(graph, inputs, spark) if self._streaming else ()
        self._terms = self._common_terms(key_groups, partitions, places)
        start = settings.start_from
        self._frames = StageFrames(
            spark=spark,
            graph=graph,
            title=title,
            stages=self._stages,
            terms=self._terms,
            # Spark's checkpoint knows a stream by its place among all
            inputs=dict(sorted(inputs.items())) if self._streaming else inputs,
            outputs=self._outputs,
            direct=self._direct_output(),
            partitions=partitions,
            transfer=None if start is None else transfer_from(start, graph, self._stages, key_groups),
        )
        with sending():
            self._last = self._frames.last()
        if settings.observe is not None:
            routes = {name: output.route for name, output in self._outputs.items()}
            self._last = self._last.observe(settings.observe, *observed(self._terms.counts, routes))
        self._is_kept = False

    def _common_terms(self, key_groups: int, partitions: int, places: tuple[str, ...]) -> Terms:
        wanted = {output.route for output in self._outputs.values()}
        wanted |= {route.number for stage in self._stages for route in stage.entries}
        steps = [step for stage in self._stages for step in stage.steps]
        # Spark has no use for a watermark in a bounded job, nor for one that no state reads
        clocks = [timed.steps for timed in timed_inputs(self._graph)] if self._has_state else []
        return Terms(
            key_groups,
            frozenset(wanted),
            streaming=self._streaming,
            processing_time=self._settings.processing_time,
            counts=() if self._settings.observe is None else counts_of(steps),
            clocks=frozenset().union(*clocks),
            unnamed=tuple(_unnamed(self._graph)),
            classes=classes_in(self._stages) if self._has_state else {},
            replays=replays(steps, streaming=self._streaming),
            held_bytes=self._settings.held_bytes,
            inputs=places,
            copies=key_groups if self._streaming else min(key_groups, partitions),
        )

    def _direct_output(self) -> OutputTask | None:
        """The only output, where it saves a trip through Python that the last stage writes its rows."""
        if len(self._outputs) > 1 or self._settings.observe is not None:
            return None
        is_keyed = self._stages[-1].kind is StageKind.KEYED
        return None if is_keyed else next(iter(self._outputs.values()), None)

    def __getitem__(self, name: str) -> DataFrame:
        if name not in self._outputs:
            raise KeyError(f"there is no output {name!r}; there are: {', '.join(self._outputs) or 'none'}")
        if self._streaming and len(self._outputs) > 1:
            raise PipelineError(
                f"output {name!r} is one of several of a stream, which are written together: "
                "plan.write_stream(lambda outputs, batch_id: ...).start()"
            )
        if not self._streaming and not self._is_kept and len(self._outputs) > 1:
            self._last = self._last.persist()
            self._is_kept = True
        return self._rows(self._last, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._outputs)

    def __len__(self) -> int:
        return len(self._outputs)

    @property
    def is_streaming(self) -> bool:
        """Whether the inputs are streams."""
        return self._streaming

    def write_stream(self, write: Writer) -> DataStreamWriter:
        """
        A writer for all outputs of a stream together.

        Spark may hand over a micro-batch again after a crash, under the same number: a `write` that
        replaces what it wrote under that number makes the output exactly once.

        A micro-batch is computed once, and kept while `write` runs, however often it uses the outputs.

        Args:
            write: given the outputs of a micro-batch by name, as bounded DataFrames, and the batch's number.
        """
        if not self._streaming:
            raise PipelineError("the inputs are bounded: use plan[name].write")
        function("write", write, "outputs", "batch_id")

        def write_batch(batch: DataFrame, number: int) -> None:
            with computed(batch) as kept:
                write({name: self._rows(kept, name) for name in self._outputs}, number)

        return self._last.writeStream.foreachBatch(write_batch)

    def release(self) -> None:
        """Let go of what is kept of a bounded job with several outputs."""
        if self._is_kept:
            self._last.unpersist()
            self._is_kept = False

    def save_checkpoint(self, location: str, settings: Checkpoints | Place) -> CheckpointInfo:
        """
        Write a checkpoint from which the embedded engine goes on where a stopped query was.

        Positions of sources are not part of it: the embedded sources must begin behind what the query read in
        its last micro-batch that has ended. One that had begun when the driver died is not in it, and what it
        has written comes again: have the query end it first, by `trigger(once=True)`, if it can.

        Args:
            location: the query's own checkpoint, its option `checkpointLocation`.
            settings: the store to write to, and the codec; or only a place, as for `run(checkpoints=...)`.

        Raises:
            PipelineError: if the inputs are bounded: such a job leaves nothing to go on from.
            CheckpointError: if the checkpoint cannot be written, or there is none of a query of this plan.
        """
        if not self._streaming:
            raise PipelineError("save_checkpoint: the inputs are bounded, so all windows have been closed")
        chosen = checkpoints_of("settings", settings)
        text("location", location)
        reached_ms = next_watermark_ms(self._spark, location)
        left, seen_ms = self._left_in(location)
        states = united(self._graph, left, reached_ms, seen_ms)
        return save(chosen, self._title, self._graph, states, self._settings.start_from)

    def regroup(self, location: str, to: str) -> None:
        """
        Have a query of this plan go on, with its checkpoint at `to`, where a stopped query was at `location`.

        The steps and inputs are the same, and `start_from` if the query began with one; the key groups are
        those of this plan, and state is divided among as many of Spark's partitions as the session shuffles
        into now. What is at `location` stays. The new query has an identity of its own, and counts its
        micro-batches anew: Spark's own writers of files leave out those whose numbers are in their folder.

        Args:
            location: the checkpoint of the stopped query, its option `checkpointLocation`.
            to: where there is nothing yet: the new query's own.

        Raises:
            PipelineError: if the plan has no state, or over Spark Connect.
            CheckpointError: if the query has not ended its last micro-batch, or its state is not for this
                plan.
        """
        self._need_state("regroup")
        old = Notes(self._spark, text("location", location))
        new = Notes(self._spark, text("to", to))
        new.need_nothing()
        reached_ms = before(old.watermark_ms())
        states = united(self._graph, self._left_in(location)[0], reached_ms, reached_ms)
        taken_up = replace(
            self._frames,
            inputs={},
            transfer=divided(self._graph, self._stages, states, self._terms.key_groups),
            terms=replace(self._terms, stands_still=True),
        ).last()
        if self._frames.direct is None:
            routes = ", ".join(str(output.route) for output in self._outputs.values())
            taken_up = taken_up.where(f"route IN ({routes})")
        go_on(taken_up, old, new)

    def rescale(self, location: str, partitions: int) -> None:
        """
        Divide the state of a stopped query among another number of Spark's partitions, in place.

        The query goes on from its checkpoint as before; what was read, and what was written, stays so. Spark
        notes the number in the checkpoint, where it counts for more than `spark.sql.shuffle.partitions`. The
        key groups stay: make the plan with the `key_groups` that it had. For others there is `regroup`. A
        micro-batch divides the state, whose number is missing in the logs of Spark's own writers of files.

        Args:
            location: the query's checkpoint, its option `checkpointLocation`.
            partitions: as many as there are key groups at most: one with none would have nothing to do. If
                the state is divided so already, nothing is done.

        Raises:
            PipelineError: if the plan has no state, or over Spark Connect.
            CheckpointError: if Spark cannot divide it.
        """
        self._need_state("rescale")
        if count("partitions", partitions) > self._terms.key_groups:
            advice = "a query keeps those that it began with: make the plan with the same key_groups="
            raise refuse("partitions", f"at most the {self._terms.key_groups} key groups", partitions, advice)
        text("location", location)
        manager = getattr(self._spark, "_streamingCheckpointManager", None)
        if manager is None:
            raise PipelineError("rescale: Spark offers it in the driver only, not over Spark Connect")
        notes = Notes(self._spark, location)
        notes.need_some()  # of a mistyped place Spark would make a checkpoint
        try:
            manager.repartition(location, partitions)
        except Exception as error:
            if ALREADY in str(error):
                return
            why = reason_of(error)
            if NOT_AT_REST in str(error):
                why = notes.unrest() or why
            raise CheckpointError(f"cannot divide the state in {location}: {why}") from error

    def _need_state(self, command: str) -> None:
        if not self._has_state:
            raise PipelineError(f"{command}: only a stream of keyed steps has state to divide")

    def _left_in(self, location: str) -> tuple[list[States], int]:
        """What `states_of` a stopped query of these steps gives."""
        keyed = sum(stage.kind is StageKind.KEYED for stage in self._stages)
        return states_of(self._spark, location, self._graph, keyed, self._terms.classes)

    def describe(self) -> str:
        """The steps, the stages that Spark runs them in, and what differs from the same pipeline embedded."""
        lines = [as_text(self._graph, self._title).split("\nwith checkpoints")[0], "on Spark"]
        for number, stage in enumerate(self._stages):
            steps = ", ".join(step.name for step in stage.steps) or "reads"
            lines.append(f"  stage {number} ({stage.kind.name.lower()}): {steps}")
        lines.append("what differs from running embedded")
        lines += [
            f"  {text}"
            for text in differences(
                self._graph,
                streaming=self._streaming,
                processing_time=self._settings.processing_time,
                at_once={
                    step.name: tasks
                    for stage, tasks in zip(self._stages, self._frames.at_once, strict=True)
                    for step in stage.steps
                },
            )
        ]
        return "\n".join(lines)

    # ------------------------------------------------------------------ inside

    def _route_to(self, sink: str) -> int:
        return next(r.number for stage in self._stages for r in stage.exits if r.reader == sink)

    def _rows(self, left: DataFrame, name: str) -> DataFrame:
        """Of what leaves the last stage, the rows of an output."""
        if self._frames.direct is not None:
            return left
        output = self._outputs[name]
        mine = left.where(f"route = {output.route}").select("route", "payload")
        shipped = Shipped(output)
        return mine.mapInArrow(lambda batches: write_rows(shipped.value, batches), output.schema)


def _unnamed(graph: Graph) -> Iterator[str]:
    """Keyed steps that remember something and have no name of their own, with what they remember."""
    for name in graph.unnamed_with_state():
        step = graph[name]
        if isinstance(step, OperatorStep) and step.is_keyed and step.schema is not None:
            yield f"{name} {step.schema.fingerprint()}"
