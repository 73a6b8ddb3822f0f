"""
Finds, for what a checkpoint holds, the steps of a pipeline that it is for, and makes it fit them: steps may
have come, gone, been renamed, and changed since.

What the job was told of that already which wrote the checkpoint is done: settings that stay, as those of a
program that is started again after a crash, do nothing to a state twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from asyncstream.checkpoint.format import CheckpointInfo, StepInfo
from asyncstream.checkpoint.settings import Checkpoints
from asyncstream.errors import CheckpointError, describe_error
from asyncstream.operators.ports import INPUTS
from asyncstream.state import Kept, is_snapshot
from asyncstream.state.schema import Schema, adapted, compare, exchanged
from asyncstream.state.snapshots import Snapshot, check_snapshot

__all__ = ("fit", "match", "migration", "noted", "with_new_names")

log = logging.getLogger("asyncstream.checkpoint")


def match(
    info: CheckpointInfo,
    settings: Checkpoints,
    kinds: Mapping[str, str],
    is_right: Callable[[str, StepInfo], bool] = lambda name, step: True,
) -> dict[str, str]:
    """
    For each step of the checkpoint whose state is wanted, its name in the pipeline.

    Args:
        info: the checkpoint.
        settings: those of the job: what is renamed and dropped.
        kinds: the steps of the pipeline, by name.
        is_right: whether a step of the right kind can use the state.

    Raises:
        CheckpointError: if state would be lost, or is of no use to the step of that name.
    """
    names: dict[str, str] = {}
    missing: list[str] = []
    renamed = _renamed(info, settings)
    for old, step in info.steps.items():
        name = renamed.get(old, old)
        # another step has its name
        if name == old and old in settings.allow_dropped and old in renamed.values():
            continue
        if name not in kinds:
            if old not in settings.allow_dropped:
                missing.append(old)
            continue
        is_usable = is_right(name, step)
        if (kinds[name] != step.kind and name not in settings.migrate) or not is_usable:
            was = f"a transactional {step.kind}" if step.role == "sink" else f"a step {step.kind!r}"
            now = "none" if kinds[name] == step.kind else f"a step {kinds[name]!r}"
            fitting = ", or make its state fit, migrate={step: function}" if is_usable else ""
            raise CheckpointError(
                f"checkpoint {info.id}: {old!r} was {was}, and {name!r} is {now}; give the step "
                f"another name, and name the old one in allow_dropped{fitting}"
            )
        if name in names.values():
            raise CheckpointError(
                f"checkpoint {info.id}: it has state for {name!r} under two names; say that what was called "
                f"so may be lost, allow_dropped=[{name!r}]"
            )
        names[old] = name
    if missing:
        raise CheckpointError(
            f"checkpoint {info.id} holds the state of steps that this pipeline does not have: "
            f"{', '.join(map(repr, missing))}; say what they are called now, renamed={{old: new}}, or "
            "that their state may be lost, allow_dropped=[...]"
        )
    return names


def _renamed(info: CheckpointInfo, settings: Checkpoints) -> dict[str, str]:
    """New names by the old, of those steps that still have the old ones in the checkpoint."""
    return {old: new for old, new in settings.renamed.items() if info.renamed.get(old) != new}


def with_new_names(info: CheckpointInfo, settings: Checkpoints) -> CheckpointInfo:
    """
    The description of a checkpoint, in which steps know their inputs by the names that those have now.

    Args:
        info: the checkpoint.
        settings: those of the job.
    """
    renamed = _renamed(info, settings)

    def now(output: str) -> str:
        step = next((step for step in renamed if output == step or output.startswith(f"{step}.")), "")
        return renamed.get(step, "") + output.removeprefix(step)

    steps = dict(info.steps)
    for name, step in steps.items() if renamed else ():
        if inputs := (step.schema or {}).get("inputs"):
            new = {which: sorted(map(now, names)) for which, names in inputs.items()}
            steps[name] = replace(step, schema={**(step.schema or {}), "inputs": new})
    return replace(info, steps=steps)


def noted(info: CheckpointInfo, settings: Checkpoints) -> CheckpointInfo:
    """
    The description of a checkpoint, with what the job that writes it was told of former ones.

    Args:
        info: the checkpoint.
        settings: those that the job began with.
    """
    return replace(info, renamed=dict(settings.renamed), migrated=settings.migrations)


def migration(
    info: CheckpointInfo, settings: Checkpoints, old: str, name: str, now: Schema | None, kind: str
) -> Callable[[Any], Any] | None:
    """
    What is to make the state of one step of the old one; None: nothing, or the checkpoint holds what it has
    made.

    Args:
        info, old, name, now, kind: as for `fit`.
        settings: those of the job.
    """
    was = info.steps[old]
    is_the_same = info.migrated.get(name) == settings.migrations.get(name) and was.kind == kind
    if is_the_same and was.schema is not None and now is not None:
        is_the_same = not compare(Schema.of(was.schema), now).conflicts
    return None if is_the_same else settings.migrate.get(name)


def fit(
    info: CheckpointInfo,
    migrate: Callable[[Any], Any] | None,
    old: str,
    name: str,
    state: Any,
    now: Schema | None,
    kind: str,
) -> Any:
    """
    The state of one step, as the step of the pipeline can restore it.

    Args:
        info: the checkpoint.
        migrate: what `migration` gives.
        old: the step's name in the checkpoint.
        name: its name in the pipeline.
        state: what the checkpoint holds of it: a snapshot, or the `Kept` of one, which is given back if it
            can stay as it is.
        now: what the step remembers today; None: it is not compared.
        kind: what the step does today.

    Raises:
        CheckpointError: if the state is not the step's own.
    """
    if migrate is not None:
        try:
            before = state.snapshot() if isinstance(state, Kept) else state
            after = migrate(before)
            # the tables of one kind of step are no state of another
            keeps_tables = is_snapshot(before) and kind == info.steps[old].kind and after is not None
            if keeps_tables or is_snapshot(after):
                check_snapshot(after)
                after = _of_inputs_as_they_are(after, info.steps[old].schema, now)
        except Exception as error:
            raise CheckpointError(
                f"checkpoint {info.id}: migrate[{name!r}] failed: {describe_error(error)}"
            ) from error
        if after is None:
            log.warning("step %r starts from nothing: migrate[%r] has returned None", name, name)
        return after
    try:
        return adapted(name, state, info.steps[old].schema, now)
    except CheckpointError as error:
        raise CheckpointError(
            f"checkpoint {info.id}: {error}; make its state fit, migrate={{{name!r}: function}}, or give the "
            f"step another name and let its state go, allow_dropped=[{old!r}], or say which step it was, "
            f"renamed={{{old!r}: new}}, or undo the change"
        ) from error


def _of_inputs_as_they_are(state: Snapshot, was: Mapping[str, Any] | None, now: Schema | None) -> Snapshot:
    """
    The same without what is kept of each input, if these have changed places: where one of them was, the
    other one was not. The steps before say where theirs are.
    """
    inputs = state["cells"].get(INPUTS)
    if inputs is None or was is None or now is None or not exchanged(Schema.of(was).inputs, now.inputs):
        return state
    watermark, _, *rest = inputs
    return {**state, "cells": {**state["cells"], INPUTS: [watermark, [], *rest]}}
