"""
What a key group has in Spark's state besides its log: what its steps are, and what is small.

It says which steps have written the state, so that those of a changed plan do not take up what is not theirs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from asyncstream.errors import CheckpointError, PipelineError
from asyncstream.operators.base import OperatorContext
from asyncstream.plan import Graph, OperatorStep
from asyncstream.runtime.spark.wire.batches import States
from asyncstream.runtime.spark.wire.keys import GROUPING
from asyncstream.runtime.spark.wire.values import Classes, loads
from asyncstream.runtime.spark.worker.group_log import WAY_OUT, Position, entries_of, kept_tables, reading
from asyncstream.state.schema import Schema, compare

__all__ = ("Head", "Kind", "remembered")


class Kind(NamedTuple):
    """
    What a step is, as far as its state depends on it.

    Attributes:
        kind: what the step does.
        operator: the class whose state it is.
        schema: what the state consists of, as plain data.
    """

    kind: str
    operator: str
    schema: dict[str, Any] | None

    @classmethod
    def of(cls, step: OperatorStep) -> Kind:
        schema = None if step.schema is None else step.schema.plain()
        return cls(step.kind, step.spec.operator.__name__, schema)

    def difference(self, now: Kind) -> str:
        """Why a step that is `now` cannot use the state, in words; empty if it can."""
        if self.kind != now.kind:
            return f"it was a step {self.kind!r} and is a step {now.kind!r}"
        if self.schema is None or now.schema is None:
            return ""
        if self == now and [*self.schema["parts"]] == [*now.schema["parts"]]:
            return ""
        change = compare(Schema.of(self.schema), Schema.of(now.schema))
        if change.conflicts or change.added or change.removed or change.reordered:
            return str(change)
        return "" if self.operator == now.operator else str(change) or "it keeps its state in another form"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(repr(name.split(" ")[0]) for name in names) or "none"


class Head(NamedTuple):
    """
    What a key group has in Spark's state besides its log.

    Attributes:
        operators: what those have handed over that keep no tables, by step name.
        watermark_ms: the last one that these operators saw.
        timer_ms: the timer that is registered with Spark.
        key_groups: how many there are, which says what keys are in this one.
        grouping: the rule by which keys were divided; 0 is that of checkpoints which do not tell.
        steps: what the operators were.
        unnamed: those of all steps that had their names from their places.
        abouts: of those that keep tables, what a snapshot says besides.
        position: where their log has come to.
        inputs: of the head that is of no group, what the query's inputs were.
    """

    operators: States
    watermark_ms: int
    timer_ms: int | None
    key_groups: int
    grouping: int = 0
    steps: Mapping[str, Kind] = MappingProxyType({})
    unnamed: tuple[str, ...] = ()
    abouts: Mapping[str, Any] = MappingProxyType({})
    position: tuple[Any, ...] = ()
    inputs: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: bytes, classes: Classes, steps: Collection[str]) -> Head:
        """The one that was written, of these steps; raises as `reading`."""
        with reading(steps):
            return cls(*loads(data, classes))

    def check_steps(self, steps: Mapping[str, Kind], unnamed: tuple[str, ...]) -> None:
        """Raises `CheckpointError` if what was remembered is not for these steps."""
        missing = [name for name in {**self.operators, **self.abouts, **self.steps} if name not in steps]
        if missing:
            raise CheckpointError(
                "this stream's checkpoint holds the state of steps that this pipeline does not have, or has "
                f"elsewhere: {', '.join(map(repr, missing))}; {WAY_OUT}"
            )
        for name, was in self.steps.items():
            difference = was.difference(steps[name])
            if difference:
                raise CheckpointError(
                    f"step {name!r} has changed and cannot use what this stream's checkpoint holds of it: "
                    f"{difference}; {WAY_OUT}"
                )
        if self.steps and self.unnamed != unnamed:
            raise CheckpointError(
                "steps have come or gone, and some that remember something have their names from their "
                "places only, so they would find each other's state: there were "
                f"{_listed(self.unnamed)}, and there are {_listed(unnamed)}; give them names, name=..., "
                f"and {WAY_OUT}"
            )

    def check(self, key_groups: int) -> None:
        """Raises `PipelineError` if keys are divided otherwise by now."""
        if self.key_groups != key_groups:
            raise PipelineError(
                f"this stream's checkpoint has {self.key_groups} key groups, and the plan {key_groups}: what "
                "belongs to a key would be looked for in another one; say "
                f"on_spark(..., key_groups={self.key_groups})"
            )
        if self.grouping != GROUPING:
            raise PipelineError(
                "this stream's checkpoint is of another version of asyncstream, which divided keys into "
                "groups by another rule: what belongs to a key would be looked for in the wrong group. Save "
                "it with that version, plan.save_checkpoint(...), and go on from there with a new "
                "checkpointLocation and on_spark(..., start_from=...)"
            )


def remembered(
    graph: Graph, head: bytes, chunks: Iterable[tuple[bytes, bool]], classes: Classes
) -> tuple[States, int]:
    """
    What the steps of a stage remember of a key group, as snapshots, and the last watermark that they saw.

    Args:
        chunks: of its log, in their order.
    """
    steps = {step.name: step for step in graph if isinstance(step, OperatorStep)}
    kept = Head.of(head, classes, [name for name, step in steps.items() if step.is_keyed])
    kept.check(kept.key_groups)
    snapshots: States = {}
    kept.check_steps({name: Kind.of(step) for name, step in steps.items()}, kept.unnamed)
    for name, state in kept.operators.items():
        step = steps[name]
        operator = step.spec.build()
        operator.open(OperatorContext(name))
        operator.advance_watermark(kept.watermark_ms)  # what is late by it is no part of a snapshot
        operator.restore(state)
        snapshots[name] = operator.snapshot()
        operator.close()
    entries = entries_of(chunks, Position(*kept.position), classes, kept.abouts)
    for name, tables in kept_tables(entries, kept.abouts).items():
        snapshots[name] = tables.snapshot()
    return snapshots, kept.watermark_ms
