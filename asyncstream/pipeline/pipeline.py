"""
`Pipeline`: where a user starts, and what they run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from asyncstream.aside import running_loop
from asyncstream.async_wait.tasks import CANCEL_PATIENCE
from asyncstream.checkpoint import Checkpoints, Place, checkpoints_of
from asyncstream.clock import Clock, checked_clock
from asyncstream.connectors.base import Sink, TransactionalSink
from asyncstream.connectors.durable import DurableSubmissions
from asyncstream.errors import PipelineError
from asyncstream.pipeline.sources_and_sinks import as_sink, as_source
from asyncstream.pipeline.starting import Starting
from asyncstream.plan import (
    Graph,
    Guarantee,
    SinkStep,
    SourceStep,
    as_html,
    as_mermaid,
    as_text,
    check_places,
    guarantees,
)
from asyncstream.runtime.aio import OPEN_SECONDS, DryRun, Job, JobSnapshot, dry_run
from asyncstream.runtime.aio.process import run_bounded
from asyncstream.runtime.aio.restarts import Restarts, run_with_restarts
from asyncstream.runtime.aio.run import Run
from asyncstream.runtime.aio.threads import ThreadedJob
from asyncstream.state import StateBackend
from asyncstream.validation import Duration, choice, duration_seconds, flag, function, refuse, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

    from asyncstream.runtime.spark import SparkPlan

__all__ = ("Pipeline",)


class Pipeline(Starting):
    """
    A plan of sources, steps and sinks, built by method calls and run any number of times.

        pipeline = Pipeline("flights")
        pipeline.source(flights).async_map(with_plane).to(results)
        await pipeline.run()

    Args:
        name: what it is called in descriptions.
    """

    _comes_next = "begin a stream first: .source(...), or .submissions(...)"

    def __init__(self, name: str = "pipeline") -> None:
        self.name = text("name", name)
        self._graph = Graph(self.name)

    if not TYPE_CHECKING:  # type checkers are to see that these are wrong

        def __aenter__(self) -> None:
            raise PipelineError(
                "a pipeline is a plan, and has jobs that run it: `await pipeline.run()`, or "
                "`async with pipeline.start() as job:`; where no event loop runs, `pipeline.run_blocking()`, "
                "or `with pipeline.start_in_thread() as job:`"
            )

        __aexit__ = __enter__ = __exit__ = __aenter__

    @classmethod
    def _of(cls, graph: Graph) -> Pipeline:
        pipeline = cls(graph.name)
        pipeline._graph = graph
        return pipeline

    def __repr__(self) -> str:
        steps = len(list(self._graph))
        return f"<Pipeline {self.name!r} of {steps} {'step' if steps == 1 else 'steps'}>"

    def with_ends(
        self,
        *,
        sources: Mapping[str, Any] | None = None,
        sinks: Mapping[str, Any] | Callable[[str, Sink[Any]], Any] | None = None,
    ) -> Pipeline:
        """
        The same plan with other sources and sinks: for tests, and to work on other data.

        Args:
            sources: what to read in place of a source or of submissions, by the name of the step; what
                `source` takes.
            sinks: where results are to go, by the name of the sink, or of `results`; what `.to` takes. Or a
                function that is given the name of each and the sink that is there.

        Raises:
            PipelineError: if there is no such source or sink.
        """
        for name, ends in (("sources", sources), ("sinks", sinks)):
            if ends is not None and not isinstance(ends, Mapping) and not (ends is sinks and callable(ends)):
                raise refuse(name, "what to use instead, by the names of steps", ends)
        if callable(sinks):
            function("sinks", sinks, "name", "sink")
            sinks = {
                step.name: sinks(step.name, step.sink)
                for step in self._graph
                if isinstance(step, SinkStep) and step.kind != "discard"
            }
        graph = self._graph.with_ends(
            {name: as_source(source) for name, source in (sources or {}).items()},
            {name: as_sink(sink) for name, sink in (sinks or {}).items()},
        )
        return Pipeline._of(graph)

    # ------------------------------------------------------------------ running

    def start(
        self,
        *,
        clock: Clock | None = None,
        snapshot: JobSnapshot | None = None,
        checkpoints: Checkpoints | Place | None = None,
        state: StateBackend | None = None,
        cancel_body: bool = False,
        open_timeout: Duration = OPEN_SECONDS,
        end_timeout: Duration = CANCEL_PATIENCE,
    ) -> Job:
        """
        A job that runs this pipeline in the current event loop: `async with pipeline.start() as job:`.

        Leaving the block drains the job, or stops it if it keeps checkpoints, so that the next one goes on
        with open windows. See `Job`.

        Args:
            clock: processing time; the system's by default.
            snapshot: go on where an earlier job of this pipeline was stopped.
            checkpoints: keep what must not be lost, and go on where an earlier job, stopped or crashed, left
                off. A path does as well: a checkpoint every ten seconds in that directory.
            state: where process functions and windows keep what they remember; in memory by default. See
                `DiskState`; another place is a `StateBackend`.
            cancel_body: cancel the block when the job fails; the job's error leaves it then.
            open_timeout: how long each source, sink and async function may take to open, and each source and
                sink to say whether it can go on from a checkpoint, and to do so: a `timedelta` or seconds.
            end_timeout: how long your code gets to end when it is cancelled or closed; then it is left alone,
                and an error names the step.

        Raises:
            PipelineError: if the plan cannot run or would lose elements.
        """
        patience = duration_seconds("end_timeout", end_timeout)
        open_seconds = duration_seconds("open_timeout", open_timeout)
        checked_clock(clock)
        if snapshot is not None and not isinstance(snapshot, JobSnapshot):
            raise refuse("snapshot", "a JobSnapshot, as job.stop() returns it", snapshot)
        if state is not None and not isinstance(state, StateBackend):
            raise refuse("state", "a DiskState", state, 'e.g. DiskState("state")')
        self._check(keeps=checkpoints is not None)
        if snapshot is not None and checkpoints is not None:
            raise PipelineError("a job goes on from a snapshot= or from checkpoints=, not from both")
        run = Run(
            self._graph,
            name=self.name,
            clock=clock,
            snapshot=snapshot,
            checkpoints=None if checkpoints is None else checkpoints_of("checkpoints", checkpoints),
            state=state,
            open_seconds=open_seconds,
            patience=patience,
        )
        return Job(run, cancel_body=flag("cancel_body", cancel_body))

    def _check(self, *, keeps: bool) -> None:
        """See whether the plan can run, and keep checkpoints if it is to."""
        self._graph.check()
        check_places(self._graph, keeps=keeps)
        for step in self._graph if not keeps else ():
            if isinstance(step, SourceStep) and isinstance(step.source, DurableSubmissions):
                raise PipelineError(
                    f"step {step.name!r}: an inbox keeps elements until a checkpoint covers them, and this "
                    "job keeps none; start it with checkpoints="
                )
        for step in self._graph if keeps else ():
            if isinstance(step, SinkStep) and step.required and isinstance(step.sink, TransactionalSink):
                raise PipelineError(
                    f"step {step.name!r}: a transactional sink in a job with checkpoints cannot route what "
                    "it refuses, for a crash might lose it; use on_error='skip', or a step before the sink "
                    "that routes"
                )

    def start_in_thread(
        self,
        *,
        checkpoints: Checkpoints | Place | None = None,
        snapshot: JobSnapshot | None = None,
        state: StateBackend | None = None,
        uvloop: bool = False,
    ) -> ThreadedJob:
        """
        A job in a thread of its own, for programs without an event loop: `with ... as job:`.

        Args:
            checkpoints, snapshot, state: as for `start`.
            uvloop: as for `run_blocking`.

        Raises:
            PipelineError: as `start`.
        """
        job = self.start(checkpoints=checkpoints, snapshot=snapshot, state=state, cancel_body=True)
        return ThreadedJob(job, _loop_factory(uvloop))

    async def run(
        self,
        *,
        clock: Clock | None = None,
        checkpoints: Checkpoints | Place | None = None,
        restart: Restarts | None = None,
        state: StateBackend | None = None,
    ) -> None:
        """
        Run until every source has come to its end and everything is written.

        Args:
            clock, checkpoints: as for `start`.
            restart: go on from the last checkpoint when a source, a sink or a function fails.
            state: as for `start`.

        Raises:
            PipelineError: if the plan cannot run or would lose elements.
            UserFunctionError: if a function of yours failed; names the step and carries the element.
            SourceError, SinkError: if one of them failed.
            CheckpointError: if the checkpoint to go on from does not fit, or too many in a row failed.
        """
        if restart is not None and not isinstance(restart, Restarts):
            raise refuse("restart", "Restarts(...)", restart)
        self._graph.check_alone()
        if restart is None:
            async with self.start(clock=clock, checkpoints=checkpoints, state=state) as job:
                await job.wait()
            return
        settings = None if checkpoints is None else checkpoints_of("checkpoints", checkpoints)
        await run_with_restarts(
            lambda kept: self.start(clock=clock, checkpoints=kept, state=state),
            settings,
            restart,
            self.name,
            Job.wait,
        )

    async def dry_run(self, checkpoints: Checkpoints | Place) -> DryRun:
        """
        Ask what a start with these checkpoints would go on from, and whether it could; nothing is started.

        Nothing is changed either: no lease is taken, nothing is written or deleted. Of your code only what
        `migrate=` names is called, and `can_seek` and `can_recover` of sources and sinks of your own.

        Raises:
            PipelineError: if the plan cannot run, or runs now.
        """
        self._check(keeps=True)
        return await dry_run(checkpoints_of("checkpoints", checkpoints), self._graph, self.name)

    def run_blocking(
        self,
        *,
        checkpoints: Checkpoints | Place | None = None,
        restart: Restarts | None = None,
        state: StateBackend | None = None,
        uvloop: bool = False,
    ) -> None:
        """
        Run to the end in an event loop of its own, for programs that have none.

        Ctrl-C cancels it, and whatever ignores that is left alone after a while. SIGTERM is left as it is:
        it ends the process at once, and the last checkpoint stands; `asyncstream run` stops gracefully.

        Args:
            checkpoints: as for `start`.
            restart: as for `run`.
            state: as for `start`.
            uvloop: use uvloop, which takes a fifth to a third off the cost of calls that wait.

        Raises:
            PipelineError: if uvloop is not there, or an event loop runs already; and what `run` raises.
        """
        factory = _loop_factory(uvloop)
        if running_loop() is not None:
            raise PipelineError("run_blocking: an event loop is running here; use `await pipeline.run()`")
        run_bounded(self.run(checkpoints=checkpoints, restart=restart, state=state), factory)

    def on_spark(
        self,
        spark: SparkSession,
        *,
        inputs: Mapping[str, DataFrame],
        outputs: Mapping[str, StructType | str],
        key_groups: int | None = None,
        partitions: int | None = None,
        start_from: Checkpoints | Place | None = None,
        processing_time: bool = False,
        observe: str | Observation | None = None,
        held_bytes: int | None = None,
    ) -> SparkPlan:
        """
        This pipeline as Spark DataFrames, bounded or streaming: `plan["sink"]` is what reaches the sink.

        Sources and sinks of the pipeline itself are not used: rows come from `inputs`, as dicts, and what
        the sinks would be given becomes rows.

        Args:
            spark: the session.
            inputs: what to read in place of each source, by its name: all bounded or all streams. A
                checkpoint knows several streams by the order of their names.
            outputs: the columns of what reaches each sink, by its name: a StructType or text, "id bigint". An
                element must have each of them, None where there is no value; inside a struct, what a dict
                does not have is null.
            key_groups: into how many groups keys are divided, each of which one task at a time works on; a
                query keeps those that it began with, until `SparkPlan.regroup`. By default two for each
                partition of Spark's setting `spark.sql.shuffle.partitions`, or of `partitions` if those are
                more; one for each where two would be more than 128.
            partitions: how many tasks share the keys of a bounded job; `spark.sql.shuffle.partitions` if left
                out, which is also what a stream uses.
            start_from: go on from a checkpoint of this pipeline that the embedded engine took; `inputs` begin
                behind what its sources had given. It must stay there, and be named here, as long as the
                query's own checkpoint.
            processing_time: tell the keyed steps of a stream how the clock advances, for processing-time
                timers and policy windows. Once a query that is started, or started again, has been given
                rows, Spark then makes a micro-batch at every trigger, also without rows, and a stream with
                `trigger(availableNow=True)` does not end.
            observe: the name under which Spark tells, with the progress of a query, what the steps count:
                calls, failures, retries, calls in flight, late elements, rows; `log_progress` shows it. For
                a bounded job, an `Observation` of Spark's.
            held_bytes: what each Python worker of a stream may hold of its state in memory; the rest is in
                files of the executor. By default 512 MB, or a quarter of what Spark's setting
                `spark.executor.pyspark.memory` leaves for a worker if that is less.

        Raises:
            PipelineError: if the plan cannot run, or does something that Spark cannot.
            CheckpointError: if the checkpoint does not fit.
            MissingExtra: if PySpark is not installed.
        """
        from asyncstream.runtime.spark import PlanSettings, SparkPlan

        settings = PlanSettings(
            key_groups=key_groups,
            partitions=partitions,
            start_from=None if start_from is None else checkpoints_of("start_from", start_from),
            processing_time=processing_time,
            observe=observe,
            held_bytes=held_bytes,
        )
        return SparkPlan(self._graph, spark, settings, inputs, outputs, self.name)

    # ------------------------------------------------------------------ looking at it

    def describe(self, format: Literal["text", "mermaid"] = "text", *, checkpoints: bool = False) -> str:
        """
        The steps with their settings, as text or as a Mermaid flowchart.

        Args:
            format: "text" or "mermaid".
            checkpoints: end the text with what `guarantees` says.
        """
        choice("format", format, ("text", "mermaid"))
        flag("checkpoints", checkpoints)
        if format == "mermaid":
            return as_mermaid(self._graph)
        return as_text(self._graph, self.name, checkpoints=checkpoints)

    def _repr_html_(self) -> str:
        """The steps as a picture, which notebooks show."""
        return as_html(self._graph, self.name)

    def guarantees(self) -> list[Guarantee]:
        """What holds on the way from each source to each sink, if checkpoints are kept."""
        return guarantees(self._graph)


def _loop_factory(uvloop: bool) -> Callable[[], Any] | None:
    """What makes event loops; None: asyncio's own."""
    if not flag("uvloop", uvloop):
        return None
    try:
        import uvloop as library
    except ImportError:
        raise PipelineError("uvloop=True: there is no uvloop for this platform") from None
    return library.new_event_loop
