"""
Finds the checkpoint to go on from, and asks all concerned before anything is changed.

Recovery has three phases. First the number of the job's lease is put up in every sink (`fence`), so that a
job that was stopped and followed changes nothing there any more, whenever it wakes up. Then the store is
read, the newest whole checkpoint that the settings allow is chosen, its state is matched with the steps, and
every sink and source is asked whether it can go on from there. Only when all agree, they do it. So a start
that is refused leaves everything as it was but for those numbers, and can be tried again with other settings,
or with a checkpoint that was mended from a backup.

Sources need no fence: they write nothing down but what they have accepted, which the next to open them
still finds, and they forget only what no checkpoint needs that the store still had when they were told so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from asyncstream.checkpoint import CheckpointInfo, Checkpoints, History, fit, match, migration, with_new_names
from asyncstream.checkpoint.format import Role, StepInfo
from asyncstream.checkpoint.parts import Part
from asyncstream.checkpoint.segments import Decoder
from asyncstream.connectors.base import TransactionalSink
from asyncstream.connectors.writer import Writer
from asyncstream.errors import CheckpointError, SinkError, SourceError
from asyncstream.long_work import in_slices, without_collector
from asyncstream.plan import Graph, SinkStep
from asyncstream.runtime.aio.naming import naming
from asyncstream.runtime.aio.numbering import position_in, with_position
from asyncstream.runtime.aio.wiring import RunWiring
from asyncstream.runtime.aio.writing import SinkOperator
from asyncstream.state import Kept, OldRows
from asyncstream.state.schema import Schema, compare

__all__ = ("Bound", "Outcome", "StepRecovery", "Survey", "fence", "signed", "survey", "transactional_sinks")


Outcome: TypeAlias = Literal["kept", "changed", "migrated", "from nothing", "dropped", "refused"]


@dataclass(frozen=True, slots=True)
class StepRecovery:
    """
    What becomes of a step when a job goes on from a checkpoint.

    Attributes:
        step: its name; in the checkpoint, if the pipeline does not have it any more.
        role: "source", "operator", or "sink".
        outcome: it goes on with what it remembered as that was ("kept"), made to fit changed code
            ("changed"), or as a function of `migrate=` makes it ("migrated"); it starts "from nothing"; the
            pipeline has it no more ("dropped"); or it cannot go on from there ("refused").
        detail: in words, what has changed, or why it is refused; may be empty.
    """

    step: str
    role: Role
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Survey:
    """
    Where a job goes on from, and what all concerned say to that, before anything is changed.

    Attributes:
        info: the checkpoint; None: from the beginning.
        states: by role, and by the name that the step has now, what was kept of it, as far as it fits.
        parts: by name, those of operators that keep tables and go on with them as they were kept.
        steps: by name, what becomes of the steps that the checkpoint knows, or that refuse it.
        refusals: why it cannot be gone on from; empty if it can.
    """

    info: CheckpointInfo | None = None
    states: Mapping[Role, dict[str, Any]] = field(
        default_factory=lambda: {"operator": {}, "source": {}, "sink": {}}
    )
    parts: dict[str, list[Part]] = field(default_factory=dict)
    steps: dict[str, StepRecovery] = field(default_factory=dict)
    refusals: list[CheckpointError | SinkError | SourceError] = field(default_factory=list)

    def refuse(self, step: str, role: Role, refusal: CheckpointError | SinkError | SourceError) -> None:
        """Note that a step cannot go on."""
        self.steps[step] = StepRecovery(step, role, "refused", str(refusal))
        self.refusals.append(refusal)

    def migrated(self) -> list[str]:
        """The steps whose state a function of `migrate=` has made."""
        return [name for name, step in self.steps.items() if step.outcome == "migrated"]

    def agreed(self) -> Survey:
        """
        This, if all agree.

        Raises:
            CheckpointError: if it does not fit the pipeline.
            SinkError: if a sink cannot go on from there.
            SourceError: if a source cannot.
        """
        for refusal in self.refusals:
            # with a checkpoint that does not fit, the rest means little
            if isinstance(refusal, CheckpointError):
                raise refusal
        if len(self.refusals) > 1:
            raise type(self.refusals[0])("; ".join(map(str, self.refusals))) from self.refusals[0]
        if self.refusals:
            raise self.refusals[0]
        return self


def transactional_sinks(wiring: RunWiring) -> Iterator[tuple[str, SinkOperator, TransactionalSink[Any]]]:
    """By name, the sinks of a job that take part in its checkpoints."""
    for name, operator in wiring.sinks.items():
        if isinstance(operator.sink, TransactionalSink):
            yield name, operator, operator.sink


def signed(wiring: RunWiring, writer: Writer) -> Writer:
    """Give all sources, and the sinks that take part in checkpoints, the `writer` that is returned."""
    for _, _, sink in transactional_sinks(wiring):
        sink.writer = writer
    for driver in wiring.sources.values():
        driver.source.writer = writer
    return writer


Bound: TypeAlias = Callable[[str, type[SinkError] | type[SourceError]], AbstractContextManager[None]]
"""Ends the opening of a job, with such an error about a step, if the block takes too long."""


async def fence(wiring: RunWiring, writer: Writer, bound: Bound) -> None:
    """
    Keep the jobs that `writer` follows out of all sinks that take part in checkpoints; raises `SinkError` if
    a sink cannot do that.
    """
    for name, _, sink in transactional_sinks(wiring):
        sink.writer = writer
        with bound(name, SinkError), naming(name, SinkError):
            await sink.fence()


async def survey(
    settings: Checkpoints,
    history: History,
    graph: Graph,
    pipeline: str,
    wiring: RunWiring,
    writer: Writer,
    new_old: Callable[[], OldRows] | None = None,
    bound: Bound = lambda step, kind: nullcontext(),
) -> Survey:
    """
    What all concerned say to the checkpoint to go on from. Changes nothing.

    Args:
        pipeline: its name.
        writer: for whom the sinks are to write.
        new_old: makes a place for the oldest generation of a table; None: in memory.
        bound: for what each sink and source takes to answer; who only looks on can turn away.

    Raises:
        CheckpointError: if it cannot be read, or steps are missing that it holds state of.
    """
    answers = await _find(settings, history, graph, pipeline, wiring, new_old)
    steps = answers.steps
    for name, _, sink in transactional_sinks(wiring):
        if name in steps and steps[name].outcome == "refused":
            continue
        sink.writer = writer
        try:
            with bound(name, SinkError), naming(name, SinkError):
                await sink.can_recover(answers.states["sink"].get(name))
        except SinkError as refusal:
            answers.refuse(name, "sink", refusal)
    for name, position in answers.states["source"].items():
        wiring.sources[name].source.writer = writer
        try:
            with bound(name, SourceError), naming(name, SourceError):
                await wiring.sources[name].source.can_seek(position_in(position))
        except SourceError as refusal:
            answers.refuse(name, "source", refusal)
    return answers


async def _find(
    settings: Checkpoints,
    history: History,
    graph: Graph,
    pipeline: str,
    wiring: RunWiring,
    new_old: Callable[[], OldRows] | None,
) -> Survey:
    if settings.restore == "none":
        for info in (await history.infos()).values():
            if isinstance(info, CheckpointInfo):
                _check_pipeline(info, settings, pipeline)
        return Survey()
    if settings.restore == "newest":
        read = await history.newest_whole(history.parts)
    else:
        read = await history.parts(settings.restore)
    if read is None:
        return Survey()
    info, parts = read
    _check_pipeline(info, settings, pipeline)
    info = with_new_names(info, settings)
    sinks = {name for name, _, _ in transactional_sinks(wiring)}
    names = match(
        info,
        settings,
        {step.name: step.kind for step in graph},
        lambda name, step: step.role != "sink" or name in sinks,
    )
    answers = Survey(info)
    ends = {step.name for step in graph if isinstance(step, SinkStep)}
    codec = settings.values_codec()
    for old, name in names.items():
        was = info.steps[old]
        # elements that wait for a sink are no matter of its own
        now = None if was.role == "operator" and name in ends else graph[name].schema
        kept = await _decoded(Decoder(old, codec, new_old), parts[old], history)
        kind = graph[name].kind
        migrate = migration(info, settings, old, name, now, kind)
        try:
            state = fit(info, migrate, old, name, position_in(kept), now, kind)
        except CheckpointError as refusal:
            answers.refuse(name, was.role, refusal)
            continue
        answers.states[was.role][name] = with_position(kept, state)
        if isinstance(state, Kept):
            answers.parts[name] = parts[old]
        answers.steps[name] = _taken_up(name, was, now, state, by_migration=migrate is not None)
    for old, was in info.steps.items():
        if old not in names:
            taken = answers.steps.get(old)  # by another step, which has its name now
            if taken is None:
                answers.steps[old] = StepRecovery(old, was.role, "dropped", "by allow_dropped=")
            else:
                told = f"{taken.detail}; " if taken.detail else ""
                detail = f"{told}what had this name before is dropped, by allow_dropped="
                answers.steps[old] = replace(taken, detail=detail)
    return answers


async def _decoded(decoder: Decoder, parts: Iterable[Part], history: History) -> Any:
    """What a step remembered, of all its parts."""
    with without_collector(all_stays=True):
        for part in parts:
            await in_slices(_fed(decoder, part, await history.chunks(part)))
        return decoder.end()


def _taken_up(
    name: str, was: StepInfo, now: Schema | None, state: object, *, by_migration: bool
) -> StepRecovery:
    """What is told of a step that can go on."""
    if by_migration:
        return StepRecovery(name, was.role, "from nothing" if state is None else "migrated", "by migrate=")
    changed = "" if was.schema is None or now is None else str(compare(Schema.of(was.schema), now))
    return StepRecovery(name, was.role, "changed" if changed else "kept", changed)


def _fed(decoder: Decoder, part: Part, chunks: Iterable[bytes]) -> Iterator[None]:
    for chunk in chunks:
        decoder.feed(part.path, chunk)
        yield


def _check_pipeline(info: CheckpointInfo, settings: Checkpoints, pipeline: str) -> None:
    """Two pipelines in one store would take each other's positions for their own, and delete them."""
    if info.pipeline not in (pipeline, settings.pipeline_was):
        raise CheckpointError(
            f"checkpoint {info.id} in {settings.store} is of pipeline {info.pipeline!r}, and this is "
            f"{pipeline!r}: give each pipeline a store of its own; if it was renamed, say so: "
            f"Checkpoints(pipeline_was={info.pipeline!r})"
        )
