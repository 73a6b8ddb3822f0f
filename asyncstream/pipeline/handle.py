"""
What every stream is: a handle on one output of one step, behind which further steps are added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, Generic, TypeVar

from asyncstream.errors import PipelineError
from asyncstream.guards.guard import Guard, written
from asyncstream.guards.in_threads import InThreads
from asyncstream.operators.functions import AsyncFunction
from asyncstream.operators.spec import Spec
from asyncstream.pipeline.missing_methods import Fluent
from asyncstream.plan import Graph, Input, OperatorStep, Output
from asyncstream.shown import shown_length
from asyncstream.validation import refuse

__all__ = ("Handle",)

T = TypeVar("T")


class Handle(Fluent, Generic[T]):
    """Base of the classes that the methods of a stream are divided among; each adds steps to the plan."""

    def __init__(self, graph: Graph, output: Output) -> None:
        self._graph = graph
        self._output = output

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._output}>"

    def _check_together(self, what: str, *others: object) -> None:
        """
        Refuse what this stream cannot be brought together with.

        Raises:
            PipelineError: if there is none, or one of them is no stream, or belongs to another pipeline.
        """
        if not others:
            raise PipelineError(f"{what}: expected at least one other stream, got none")
        for other in others:
            if not isinstance(other, Handle):
                several = "give them one by one, not in a list" if isinstance(other, list | tuple) else ""
                raise refuse(what, "a stream", other, several)
            if other._graph is not self._graph:
                raise PipelineError(f"{what}: {other!r} belongs to another pipeline")

    def _step(
        self,
        kind: str,
        name: str | None,
        spec: Spec,
        details: Mapping[str, object],
        outputs: tuple[Output, ...] = (),
    ) -> Output:
        """Add a step that reads this stream, or these outputs, one for each of its ports."""
        name = self._graph.name_for(kind, name)
        shown = {key: _shown(value) for key, value in details.items()}
        read = outputs or (self._output,)
        compared = len(read) > 1 and any(key is not None for key in spec.keys)
        known = [self._graph.known_as(output) if compared else () for output in read]
        inputs = tuple(Input(*each) for each in zip(read, spec.keys, known, strict=True))
        self._graph.add(OperatorStep(name, kind, inputs, spec, shown))
        return Output(name)

    def _key(self) -> Callable[[Any], Any] | None:
        return None


def _shown(value: object) -> object:
    """How a setting is shown: functions by their name, guards around them as they are written."""
    if isinstance(value, InThreads):
        return f"{_shown(value.fn)} in threads"
    if isinstance(value, Guard):
        return f"{written(type(value))}({_shown(value.inner)})"
    if isinstance(value, AsyncFunction):
        return type(value).__name__
    if isinstance(value, partial):
        return _shown(value.func)
    if isinstance(value, timedelta):
        return shown_length(value)
    return getattr(value, "__name__", type(value).__name__) if callable(value) else value
