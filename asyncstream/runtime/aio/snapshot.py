"""
What a job remembers, as a value: taken from its parts in one instant, and given back to those of another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from asyncstream.errors import (
    AsyncStreamError,
    CheckpointError,
    PipelineError,
    SourceError,
    describe_error,
    naming_step,
)
from asyncstream.long_work import in_slices, without_collector
from asyncstream.operators.base import Operator
from asyncstream.plan import Graph
from asyncstream.runtime.aio.wiring import RunWiring
from asyncstream.state import Kept, adapted, freeze
from asyncstream.state.keyed import tell_unasked

__all__ = ("JobSnapshot", "positions", "restore", "take")


@dataclass(frozen=True)
class JobSnapshot:
    """
    Everything a stopped job had accepted and not finished: `start(snapshot=...)` goes on from here.

    Attributes:
        operators: what each step remembers, by its name.
        sources: where each source stands, by its name.
        schemas: what each of them consists of, by the step's name, as plain JSON; a step that is not there is
            not compared with what it is now.
        now_ms: processing time when it was taken, which that of the next job does not go back behind.
    """

    operators: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, Any] = field(default_factory=dict)
    schemas: dict[str, Any] = field(default_factory=dict)
    now_ms: int = 0


def take(graph: Graph, wiring: RunWiring, now_ms: int) -> JobSnapshot:
    """
    What these parts remember now; shares nothing with them. Raises `PipelineError` if a step remembers what
    no copy can be made of.
    """
    wiring.catch_up()
    return JobSnapshot(
        {name: _copied(name, operator.snapshot) for name, operator in wiring.operators.items()},
        {name: _copied(name, driver.saved) for name, driver in wiring.sources.items()},
        {step.name: step.schema.plain() for step in graph if step.schema is not None},
        now_ms,
    )


def _copied(step: str, state: Callable[[], Any]) -> Any:
    try:
        return freeze(state()).thaw()
    except SourceError:  # names the step already
        raise
    except Exception as error:  # of a class that can be pickled and not be made again, or that refuses a copy
        raise PipelineError(f"step {step!r} gives no snapshot: {describe_error(error)}") from error


def positions(snapshot: JobSnapshot, graph: Graph, sources: Iterable[str]) -> dict[str, Any]:
    """
    Where these sources go on that do not begin at the beginning, by name.

    Raises:
        PipelineError: if the snapshot holds state of steps that the graph does not have.
        CheckpointError: if a source has changed and cannot use where it stood.
    """
    unknown = [
        name
        for name, state in (*snapshot.operators.items(), *snapshot.sources.items())
        if state is not None and name not in graph
    ]
    if unknown:
        raise PipelineError(
            f"the snapshot holds state of steps that this pipeline does not have: {', '.join(unknown)}"
        )
    return {
        name: _adapted(name, position, snapshot, graph)
        for name in sources
        if (position := snapshot.sources.get(name)) is not None
    }


async def restore(snapshot: JobSnapshot, graph: Graph, wiring: RunWiring, *, is_shared: bool) -> None:
    """
    Give the operators, which are open and have seen nothing, what others remembered.

    Args:
        is_shared: another job may go on from the same snapshot, which stays as it is.

    Raises:
        CheckpointError: if a step has changed and cannot use what it remembered, or `migrate=` makes of it
            what is no state of the step.
    """
    # tail first: an operator may emit while it is restored
    for name, operator in reversed(wiring.operators.items()):
        state = snapshot.operators.get(name)
        if state is not None:
            state = _adapted(name, state, snapshot, graph)
            if isinstance(state, Kept):
                with naming_step(name, CheckpointError), without_collector(all_stays=True):
                    await in_slices(operator.tables.take_over(state))
                operator.resume()
            else:
                # tables copy what they take up
                _restore(name, operator, _own(state) if is_shared and not operator.tables else state)
            if states := operator.unasked():
                tell_unasked(name, states)


def _restore(step: str, operator: Operator, state: Any) -> None:
    """What is no state of this step may come from `migrate=`, or from a snapshot that was made by hand."""
    try:
        with naming_step(step, CheckpointError):
            operator.restore(state)
            operator.resume()
    except AsyncStreamError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"step {step!r} cannot go on from what it is given: {describe_error(error)}"
        ) from error


def _own(state: Any) -> Any:
    """For one job, whose calls may change their elements."""
    with suppress(Exception):  # of a class that can be pickled and not be made again
        return freeze(state).thaw()
    return state


def _adapted(name: str, state: Any, snapshot: JobSnapshot, graph: Graph) -> Any:
    return adapted(name, state, snapshot.schemas.get(name), graph[name].schema)
