"""
State that comes from a checkpoint of the embedded engine, and state that goes into one.

On its way in, a checkpoint becomes one more source of the new query, with a single row (`StateTransfer`). The
task that reads this row takes up what the first stage's steps remember, such as calls that were under way,
and sends what all other steps remember to their stages as envelopes, divided by key group. So whatever the
checkpoint holds is in the first micro-batch, exactly once, whatever crashes.

On its way out, the blobs of all key groups, as Spark's own checkpoint holds them, are united. What has come
out may go in again, into other key groups (`regroup`).

Positions of sources go neither way: what Spark reads begins behind what the checkpoint's sources had given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from asyncstream.async_wait.entries import reached_in
from asyncstream.checkpoint import (
    CheckpointInfo,
    Checkpoints,
    History,
    StepInfo,
    fit,
    match,
    migration,
    noted,
    with_new_names,
)
from asyncstream.checkpoint.format import pack
from asyncstream.checkpoint.parts import parts_of
from asyncstream.checkpoint.segments import encode_snapshot
from asyncstream.checkpoint.stores import holding
from asyncstream.clock import SystemClock
from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.errors import CheckpointError, PipelineError
from asyncstream.eventtime import WatermarkStrategy
from asyncstream.operators.base import Operator
from asyncstream.plan import Graph, OperatorStep, Output, SinkStep
from asyncstream.runtime.spark.clocks import delay_ms
from asyncstream.runtime.spark.observe import OBSERVED
from asyncstream.runtime.spark.stages import Route, Stage, StageKind
from asyncstream.runtime.spark.wire.batches import Leaving, States
from asyncstream.runtime.spark.wire.keys import KeyGroups

__all__ = ("StateTransfer", "divided", "route_of", "save", "take_up", "transfer_from", "united")

T = TypeVar("T")


@dataclass(frozen=True)
class StateTransfer:
    """
    What a checkpoint holds, as the stages need it.

    Attributes:
        states: for each stage, and in it for each key group, what its steps remember of that group.
        unwritten: elements and timestamps that sinks had not written, by the number of the route to them.
        watermark_ms: the one that the pipeline had reached.
        seen_ms: the one that the steps of each stage had seen by then: what is due in between is due at once.
        clocks: the one that each step had reached which gives event time, as far as it is known.
    """

    states: Mapping[int, Mapping[int, States]]
    unwritten: Mapping[int, tuple[list[Any], list[int | None]]]
    watermark_ms: int
    seen_ms: Mapping[int, int]
    clocks: Mapping[str, int]

    def reached(self, steps: Iterable[str]) -> int:
        """The watermark of inputs to which these steps give event time."""
        known = [self.clocks[step] for step in steps if step in self.clocks]
        return max(min(known, default=MIN_TIMESTAMP), self.watermark_ms)

    def without_states(self) -> StateTransfer:
        """What is left for inputs but the first, whose task takes up all states."""
        return replace(self, states={0: {}}, unwritten={})

    def of_first_stage(self) -> States:
        """What its steps remember."""
        return dict(self.states[0].get(0, {}))

    def leaving(self) -> Iterator[Leaving]:
        """The envelopes for all other stages, and for the outputs."""
        here = Output("the checkpoint")
        for number, parts in self.states.items():
            if number:
                route = Route(route_of(number), here, f"stage {number}")
                for group, states in parts.items():
                    known = [states, self.watermark_ms, self.seen_ms[number]]
                    yield Leaving(route, MIN_TIMESTAMP, (group,), known, [None] * len(known))
        for number, (values, timestamps) in self.unwritten.items():
            yield Leaving(Route(number, here, "a sink"), MIN_TIMESTAMP, (0,), values, timestamps)


def route_of(stage: int) -> int:
    """The route on which a stage is sent what its steps remember."""
    return OBSERVED - 1 - stage


def take_up(operators: Mapping[str, Operator], transferred: Sequence[States]) -> None:
    """Restore those operators that are remembered; `transferred` has one part for each key group."""
    # tail first: an operator may emit while it is restored
    for name, operator in reversed(list(operators.items())):
        parts = [states[name] for states in transferred if name in states]
        if not parts:
            continue
        whole = operator.united(parts)
        for part in parts if whole is None else [whole]:
            operator.restore(part)
        operator.resume()


# ------------------------------------------------------------------ in


def transfer_from(
    settings: Checkpoints, graph: Graph, stages: Sequence[Stage], key_groups: int
) -> StateTransfer:
    """
    What the checkpoint that `settings` choose hands to a query.

    Raises:
        PipelineError: if there is none.
        CheckpointError: if it cannot be read, or does not fit the pipeline.
    """
    found = _wait(_read(settings))
    if found is None:
        raise PipelineError(f"start_from: there is no checkpoint in {settings.store}")
    info, kept = found
    info = with_new_names(info, settings)
    names = match(
        info, settings, {step.name: step.kind for step in graph}, lambda _, step: step.role != "sink"
    )
    _check_names(graph, names)
    by_role: dict[str, States] = {"operator": {}, "source": {}}
    for old, name in names.items():
        role = info.steps[old].role
        step = graph[name]
        is_compared = isinstance(step, OperatorStep) and not step.spec.keeps_only_watermarks
        now = step.schema if is_compared else None
        migrate = migration(info, settings, old, name, now, step.kind)
        by_role[role][name] = fit(info, migrate, old, name, kept[old], now, step.kind)
    return divided(graph, stages, by_role["operator"], key_groups)


def _check_names(graph: Graph, names: Mapping[str, str]) -> None:
    """Refuse state for steps that are named by their places: each would take up what is another's."""
    for old, name in names.items():
        step = graph[name]
        if name in graph.unnamed and isinstance(step, OperatorStep) and not step.spec.keeps_only_watermarks:
            raise PipelineError(
                f"start_from: the checkpoint holds state of {old!r}, and step {name!r} has its name from its "
                "place only, where another step may have been: give all steps with state a name=..., and say "
                f"in start_from=Checkpoints(...) what they were called, renamed={{{old!r}: name}}"
            )


def divided(graph: Graph, stages: Sequence[Stage], states: States, key_groups: int) -> StateTransfer:
    """What the steps of a pipeline remember, by their names, divided among stages and key groups."""
    groups = KeyGroups(key_groups)
    by_stage: dict[int, dict[int, States]] = {}
    for number, stage in enumerate(stages):
        shares = {0} if stage.kind is StageKind.PLAIN else set(range(key_groups))
        parts: dict[int, States] = {share: {} for share in shares}
        for step in stage.steps:
            if states.get(step.name) is not None:
                for share, part in _shares(step, states[step.name], groups, shares).items():
                    parts[share][step.name] = part
        # of a keyed stage also those that remember nothing: they too must know what is late
        by_stage[number] = {
            share: part for share, part in parts.items() if part or stage.kind is StageKind.KEYED
        }
    routes = (route for stage in stages for route in stage.exits)
    unwritten = {
        route.number: states[route.reader]
        for route in routes
        if isinstance(graph[route.reader], SinkStep) and route.reader in states
    }
    clocks = _clocks(stages[0], states)
    quiet = (
        states[step.name] for step in stages[0].steps if step.spec.prolongs_event_time and step.name in states
    )
    # as far as the slowest source, or as the clock has moved it since
    watermark_ms = max(min(clocks.values(), default=MIN_TIMESTAMP), MIN_TIMESTAMP, *quiet)
    seen = [states[name][4] for name in clocks if len(states[name]) > 4]
    told_ms = min(seen, default=watermark_ms)
    seen_ms = {
        number: min([told_ms, *_let_through(graph, stage, states)]) for number, stage in enumerate(stages)
    }
    return StateTransfer(by_stage, unwritten, watermark_ms, seen_ms, clocks)


async def _read(settings: Checkpoints) -> tuple[CheckpointInfo, dict[str, Any]] | None:
    history = History(settings.store, settings.values_codec(), settings.key)
    if settings.restore == "newest":
        return await history.newest_whole(history.read)
    if settings.restore == "none":
        raise PipelineError("start_from: restore='none' starts from nothing; leave start_from out")
    return await history.read(settings.restore)


def _shares(step: OperatorStep, state: Any, groups: KeyGroups, shares: set[int]) -> dict[int, Any]:
    """What belongs to each of these groups of what a step remembers."""
    if step.spec.keeps_only_watermarks:
        return {}
    if not step.is_keyed:
        return {min(shares): state}
    parts = step.spec.build().divided(state, groups.of, shares)
    if parts is not None:
        return parts
    key_by = step.inputs[0].key_by
    assert key_by is not None
    entries: dict[int, list[Any]] = {share: [] for share in shares}
    for entry in state:  # of an async step, one call of a key after the other
        if entry[0] in ("call", "finished"):
            entries[groups.of(key_by(entry[1]))].append(entry)
        elif entry[0] == "emitted":
            entries[0].append(entry)
        else:
            for part in entries.values():
                part.append(entry)
    return entries


def _let_through(graph: Graph, stage: Stage, states: States) -> Iterator[int]:
    """The watermarks that steps with calls have let through ahead of a stage: the others wait for calls."""
    ahead = [one.output.step for step in stage.steps for one in step.inputs]
    found = set[str]()
    while ahead:
        step = graph[ahead.pop()]
        if step.name in found:
            continue
        found.add(step.name)
        if isinstance(step, OperatorStep):
            if step.spec.calls is not None and step.name in states:
                yield reached_in(states[step.name])
            if step.spec.event_time is not None:
                continue
        ahead += [one.output.step for one in step.inputs]


def _clocks(first: Stage, states: States) -> dict[str, int]:
    """How far event time had come at each step that gives it."""
    return {
        step.name: states[step.name][1]
        for step in first.steps
        if step.name in states and step.spec.event_time is not None
    }


# ------------------------------------------------------------------ out


def united(graph: Graph, blobs: Sequence[States], watermark_ms: int, seen_ms: int) -> States:
    """
    What the steps of a query remember, by their names.

    Args:
        blobs: what keyed steps remember of each key group.
        watermark_ms: the one that the query had reached.
        seen_ms: the last one that these steps saw; `MIN_TIMESTAMP`: none.

    Raises:
        CheckpointError: if key groups contradict each other.
    """
    states: States = {}
    for step in graph:
        if not isinstance(step, OperatorStep):
            continue
        if step.spec.event_time is not None:
            state = _at_watermark(step.spec.event_time.strategy, watermark_ms, seen_ms)
        else:
            parts = [blob[step.name] for blob in blobs if step.name in blob]
            state = _united(step, parts) if parts else None
        if state is not None:
            states[step.name] = state
    return states


def _united(step: OperatorStep, parts: Sequence[Any]) -> Any:
    try:
        return step.spec.build().united(parts)
    except CheckpointError as error:
        raise CheckpointError(f"step {step.name!r}: {error}") from None


def save(
    settings: Checkpoints, title: str, graph: Graph, states: States, start: Checkpoints | None
) -> CheckpointInfo:
    """
    Write a checkpoint of what steps remember, from which the embedded engine goes on.

    Args:
        settings: where and how.
        title: of the pipeline.
        graph: its steps.
        states: by their names.
        start: what the query was told of the checkpoint that it went on from; None: from none.

    Raises:
        CheckpointError: if it cannot be written; names the step that is to blame.
    """
    return _wait(_write(settings, title, graph, states, start))


async def _write(
    settings: Checkpoints, title: str, graph: Graph, states: States, start: Checkpoints | None
) -> CheckpointInfo:
    values = settings.values_codec()
    history = History(settings.store, values, settings.key)
    await history.look()
    encoded = {name: encode_snapshot(name, state, values) for name, state in states.items()}
    steps = {
        step.name: StepInfo("operator", step.kind, None if step.schema is None else step.schema.plain())
        for step in map(graph.__getitem__, states)
    }
    number = history.newest + 1
    info = CheckpointInfo(
        id=number,
        pipeline=title,
        created_ms=SystemClock().now_ms(),
        codec=values.name,
        finished=True,
        size=0,
        steps=steps,
    )
    if start is not None:
        info = noted(info, start)
    async with holding(settings.store, settings.lease_seconds) as lease:
        await history.clean(lease)
        info = replace(info, lease=lease.number)
        name_of = partial(history.name_of, lease=lease.number)
        parts = {name: parts_of(state, name_of, settings.inline_bytes) for name, state in encoded.items()}
        draft = pack(info, parts)
        await history.write(lease, draft)
        await history.let_go(lease, settings.keep)
    return draft.info


def _at_watermark(strategy: WatermarkStrategy, watermark_ms: int, seen_ms: int) -> Any:
    """
    What a step with this strategy remembers that has seen enough for this watermark, and what it has told of.
    """
    delay = delay_ms(strategy)
    if delay is None or watermark_ms == MIN_TIMESTAMP:
        return None
    generator = strategy.generator()
    generator.on_element(None, watermark_ms + delay + 1)
    # a watermark stands between two micro-batches: steps see it when the next one begins
    untold = [{}, seen_ms] if seen_ms < watermark_ms else []
    return [generator.snapshot(), watermark_ms, False, *untold]


def _wait(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run it on a loop of its own: here, in a notebook, another one may be running."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
