"""
Recovery without recovering: what a start would go on from, and who would refuse.

It asks what a start asks, by the same functions, and stops before the first thing that a start changes: no
lease is taken, nothing is opened for writing, and nothing is deleted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from asyncstream.checkpoint import CheckpointInfo, Checkpoints, History
from asyncstream.checkpoint.stores import time_ms
from asyncstream.connectors.writer import Writer
from asyncstream.errors import CheckpointError, LeaseHeld, PipelineError
from asyncstream.lease import Holder, following, is_free
from asyncstream.operators.journey import Journeys
from asyncstream.plan import Graph, SinkStep, SourceStep
from asyncstream.runtime.aio.checkpoint_checks import check_settings
from asyncstream.runtime.aio.recovery import StepRecovery, Survey, survey, transactional_sinks
from asyncstream.runtime.aio.wiring import RunWiring

__all__ = ("DryRun", "dry_run")


@dataclass(frozen=True)
class DryRun:
    """
    What a start would go on from. `str()` of it is for people.

    Attributes:
        pipeline: its name.
        checkpoint: the checkpoint that it would go on from; None: it would begin at the beginning, or none
            can be gone on from.
        passed_over: by number, what is wrong with damaged ones that are newer.
        steps: what would become of each step that remembers something, of each source and sink, and of what
            the checkpoint holds of others; in the order of the pipeline. None where it was not come to that.
        refusals: why a start would be refused; empty if it would not.
        holder: who writes to the store now; None: no job does.
    """

    pipeline: str
    checkpoint: CheckpointInfo | None
    passed_over: Mapping[int, str]
    steps: tuple[StepRecovery, ...]
    refusals: tuple[str, ...]
    holder: str | None

    @property
    def can_start(self) -> bool:
        """
        Whether a start with the same settings would go on from there, as things are. That the store can be
        written to is not tried.
        """
        return not self.refusals

    def __str__(self) -> str:
        what = "would go on from the beginning" if self.can_start else "cannot start"
        if self.checkpoint is not None:
            verb = "would go on" if self.can_start else "cannot go on"
            what = f"{verb} from checkpoint {self.checkpoint.id}"
        lines = [f"pipeline {self.pipeline!r} {what}"]
        lines += [f"  checkpoint {number} is passed over: {why}" for number, why in self.passed_over.items()]
        lines.append("  no job writes to the store" if self.holder is None else f"  held by {self.holder}")
        width = max((len(step.step) for step in self.steps), default=0)
        for step in self.steps:
            line = f"  {step.role:<8}  {step.step:<{width}}  {step.outcome}"
            lines.append(f"{line}: {step.detail}" if step.detail else line)
        told = {step.detail for step in self.steps}
        return "\n".join([*lines, *(f"  refused: {why}" for why in self.refusals if why not in told)])


async def dry_run(settings: Checkpoints, graph: Graph, pipeline: str) -> DryRun:
    """
    Ask what a start would go on from.

    Args:
        settings: those of the start.
        graph: what would run.
        pipeline: its name.

    Raises:
        PipelineError: if the settings do not fit the graph, or it runs now.
    """
    if graph.in_use:
        raise PipelineError("dry_run: this pipeline runs now, and its sinks serve one run at a time")
    check_settings(settings, graph)
    store = settings.timely_store()
    history = History(store, settings.values_codec(), settings.key)
    answers: Survey | None = None
    refusals, holder = [], None
    graph.take(history)
    try:
        wiring = RunWiring(graph, _unheard, Journeys(), _unheard)
        current = await store.holder()
        now_ms, seconds, what = time_ms(), settings.lease_seconds, str(store)
        me = Holder.here(now_ms)
        try:
            lease = following(current, me, seconds, now_ms, what)
        except LeaseHeld as held:
            if settings.on_held == "refuse":
                refusals.append(str(held))
            assert current is not None
            lease = following(current.given_back(), me, seconds, now_ms, what)
        if current is not None and not is_free(current, now_ms):
            holder = str(current.holder)
        writer = Writer(lease, settings.keep, settings.ahead)
        answers = await survey(settings, history, graph, pipeline, wiring, writer)
    except CheckpointError as refusal:
        refusals.append(str(refusal))
    finally:
        graph.give_back(history)
    return DryRun(
        pipeline,
        None if answers is None else answers.info,
        {number: str(damage) for number, damage in history.passed_over.items()},
        () if answers is None else tuple(_in_order(answers, graph, wiring)),
        (*refusals, *map(str, () if answers is None else answers.refusals)),
        holder,
    )


def _unheard(told: object) -> None:
    """Nothing runs that could tell of anything."""


def _in_order(answers: Survey, graph: Graph, wiring: RunWiring) -> list[StepRecovery]:
    """What becomes of every step that has a part in recovery, also of those that the checkpoint lacks."""
    known = dict(answers.steps)
    taking_part = {name for name, _, _ in transactional_sinks(wiring)}
    steps: list[StepRecovery] = []
    for step in graph:
        if step.name in known:
            recovery = known.pop(step.name)
            # what waits for a sink is kept as an operator's state, but it is a sink all the same
            steps.append(replace(recovery, role="sink") if isinstance(step, SinkStep) else recovery)
        elif isinstance(step, SourceStep):
            steps.append(StepRecovery(step.name, "source", "from nothing"))
        elif isinstance(step, SinkStep):
            detail = "" if step.name in taking_part else "what it has written is no part of checkpoints"
            steps.append(StepRecovery(step.name, "sink", "from nothing", detail))
        elif step.schema is not None:
            steps.append(StepRecovery(step.name, "operator", "from nothing"))
    return steps + list(known.values())
