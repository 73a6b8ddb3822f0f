"""
A look at what a step of a running job remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from asyncstream.errors import AsyncStreamError, PipelineError, describe_error, safe_repr
from asyncstream.operators.base import Operator
from asyncstream.runtime.aio.status import JobState
from asyncstream.state.tables import of_key
from asyncstream.validation import refuse, text

__all__ = ("Standing", "StateView")


class StateView:
    """What one step of a running job remembers; nothing can be changed through it."""

    def __init__(self, step: str, operator: Operator) -> None:
        self._step = step
        self._operator = operator

    async def get(self, key: Hashable) -> dict[str, Any]:
        """
        All that the step remembers of `key` at this moment, between two elements.

        Every timer of the step is looked at for that, so it holds the event loop: of 200,000 for half a
        second, and where they are on disk for some.

        Returns:
            By table, copies: "state/NAME" is the state NAME of a process function, a value, list or dict; a
            table of windows gives a list of (window, value), "timers/event" one of (milliseconds since the
            epoch, namespace). Empty if nothing is remembered of the key. What has outlived its time to live
            may still be there, and so may elements of a join that cannot get a partner any more.

        Raises:
            PipelineError: if this can be no key of the stream, if no copy can be made of what is remembered,
                or if that was on disk, and went with the job.
        """
        try:
            hash(key)
        except TypeError as error:
            raise refuse("key", "one that is hashable, as a tuple in place of a list", key) from error
        tables = self._operator.tables.every()
        if any(table.has_left for table in tables):
            raise PipelineError(
                f"step {self._step!r} kept what it remembers on disk, which was given up when the job ended; "
                "its last checkpoint has it"
            )
        try:
            return of_key(tables, key)
        except AsyncStreamError:  # of the disk
            raise
        except Exception as error:  # of a class that refuses a copy
            raise PipelineError(
                f"step {self._step!r}: no copy can be made of what it remembers of key {safe_repr(key)}: "
                f"{describe_error(error)}"
            ) from error

    def __repr__(self) -> str:
        return f"<state of step {self._step!r}>"


class Standing(str):
    """
    Where a job stands, a text; called with a step's name, what that step remembers.

    So `job.state` answers both questions that are asked under this name: `job.state == "running"`, and
    `await job.state("sessions").get(key)`.

    Attributes:
        name: the text, as type checkers know it.
    """

    __slots__ = ("_operator_of", "name")

    name: JobState
    _operator_of: Callable[[str], Operator]

    def __new__(cls, name: JobState, operator_of: Callable[[str], Operator]) -> Standing:
        made = super().__new__(cls, name)
        made.name, made._operator_of = name, operator_of
        return made

    def __call__(self, step: str) -> StateView:
        """
        What a step remembers.

        Raises:
            PipelineError: if there is no such step, or it remembers nothing by key, or the job does not run.
        """
        if self in ("new", "opening"):
            raise PipelineError(f"the job is {str(self)!r}: its steps remember nothing before it runs")
        operator = self._operator_of(text("step", step))
        if not operator.tables.every():
            raise PipelineError(f"step {step!r} keeps no tables, so there is nothing to ask it by key")
        return StateView(step, operator)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)
