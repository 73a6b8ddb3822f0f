"""
Who keeps whom from going on, in a running job.

*Elements* stop where an inbox is full: it closes the gates of the drivers that feed it. The step to name is
the last on the way whose inbox is full, for those before it are full only because of it.

*Event time* stops at a step of several inputs, which waits for the slowest, and at an async step, where no
watermark overtakes a call. So it is followed upstream: through each step of several inputs to the slowest, up
to an async step that has elements, or to a source, which then has brought nothing that would move it on.

A step is *stuck* when what it waits for has not come for some seconds: the end of a call or of a write, or an
element of the input that event time waits for. What is slow but comes is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from asyncstream.async_wait import AsyncWaitOperator, BatchJobs
from asyncstream.connectors.outlets import Publication, Results
from asyncstream.operators.base import Operator
from asyncstream.operators.flow import Gate, Intake
from asyncstream.operators.ports import MultiInput
from asyncstream.operators.whereabouts import Whereabouts
from asyncstream.plan import Graph, Step
from asyncstream.runtime.aio.reading import SourceDriver
from asyncstream.runtime.aio.writing import SinkOperator

__all__ = ("Blocking", "Part", "Stuck")

UNUSUAL = 10
"""A call is said to hang only if it takes so many times as long as half of those that went well of late."""

Part: TypeAlias = SourceDriver | Operator


class Stuck(NamedTuple):
    """That nothing goes on at a step: by whose doing, which may be its own, and in a sentence why."""

    by: str
    why: str


class Blocking:
    """
    What is in the way, at one moment.

    Args:
        where: where the elements of each part are that has any.
        stuck_after: seconds for which nothing has come when a step is stuck.
    """

    def __init__(
        self,
        graph: Graph,
        parts: Mapping[str, Part],
        where: Mapping[str, Whereabouts],
        now: float,
        stuck_after: float,
    ) -> None:
        self._graph = graph
        self._parts = parts
        self._where = where
        self._now = now
        self._stuck_after = stuck_after
        self._stuck: dict[str, Stuck] = {}
        self._cause: dict[str, str | None] = {}  # of event time that stands still behind a step
        for step in graph:  # each behind those that it reads
            found = self._find(step)
            if found is not None:
                self._stuck[step.name] = found
            self._cause[step.name] = self._cause_behind(step)

    def seconds(self, name: str) -> float:
        """For how long the longest that is under way at a step has been."""
        where = self._where.get(name)
        return 0.0 if where is None or where.since is None else max(0.0, self._now - where.since)

    def stuck(self, name: str) -> Stuck | None:
        """Why nothing goes on at a step."""
        return self._stuck.get(name)

    def held_back_by(self, name: str) -> str | None:
        """The step that keeps the elements or the event time of a step from going on."""
        part = self._parts[name]
        gate = _gate(part)
        if gate is not None and not gate.is_open():
            return self._full(gate)
        if isinstance(part, MultiInput):
            way = self._way_up(name)
            return None if len(way) == 1 else self._display(way)
        cause = self._cause[name]
        return None if cause == name else cause

    def _full(self, gate: Gate) -> str | None:
        """The last step on the way whose inbox is full."""
        for name, part in self._parts.items():
            if isinstance(part, Intake) and part.holds(gate):
                behind = _gate(part)
                return name if behind is None or behind.is_open() else self._full(behind) or name
        return None

    # ------------------------------------------------------------------ event time

    def _cause_behind(self, step: Step) -> str | None:
        part = self._parts[step.name]
        stuck = self._stuck.get(step.name)
        if stuck is not None and isinstance(part, MultiInput | AsyncWaitOperator | BatchJobs):
            return stuck.by
        if part.time_reached() is not None and not isinstance(part, AsyncWaitOperator | BatchJobs):
            return None  # it makes its own
        return self._cause[step.inputs[0].output.step]

    def _way_up(self, name: str) -> list[str]:
        """From a step up to the one that does not let event time go on; it alone if it waits for none."""
        way = [name]
        while inputs := self._graph[name].inputs:
            part = self._parts[name]
            if isinstance(part, AsyncWaitOperator | BatchJobs) and any(self._where[name].waiting().values()):
                break
            number = part.valve.slowest() if isinstance(part, MultiInput) else 0
            if number is None:
                break
            name = inputs[number].output.step
            way.append(name)
        return way

    def _display(self, way: list[str]) -> str:
        """What to call the end of a way: its name, or that of a step on it if only that is the user's."""
        unnamed = self._graph.unnamed
        return next((name for name in reversed(way) if name not in unnamed), way[-1])

    # ------------------------------------------------------------------ what is stuck

    def _find(self, step: Step) -> Stuck | None:
        part = self._parts[step.name]
        if isinstance(part, MultiInput):
            return self._stuck_inputs(step.name)
        if isinstance(part, AsyncWaitOperator):
            return self._stuck_calls(step.name, part)
        if isinstance(part, SinkOperator):
            return self._stuck_sink(step.name, part)
        return None

    def _stuck_inputs(self, name: str) -> Stuck | None:
        way = self._way_up(name)
        if len(way) == 1:
            return None
        end, by = way[-1], self._display(way)
        through = "" if way[1] in (end, by) else f", which {way[1]!r} reads,"
        if end in self._stuck:
            return Stuck(by, f"event time waits for {by!r}{through} where {self._stuck[end].why}")
        part, seconds = self._parts[end], self.seconds(end)
        if isinstance(part, SourceDriver) and seconds >= self._stuck_after:
            return Stuck(
                by,
                f"event time waits for {by!r}{through} which has brought nothing for {_long(seconds)}; "
                "event_time(..., idle_after=...) lets it go on without it",
            )
        return None

    def _stuck_calls(self, name: str, part: AsyncWaitOperator) -> Stuck | None:
        where, seconds = self._where[name], self.seconds(name)
        if where.limit and part.metrics().get("circuit_state"):
            calls = _many(where.limit, "call")
            return Stuck(name, f"its circuit breaker is open; {calls} wait until the service is well again")
        if where.limit and part.metrics().get("budget_spent"):
            return Stuck(name, f"its budget is spent; {_many(where.limit, 'call')} wait until it is raised")
        usual = part.timings()["success"].lately(self._now).quantile(0.5)
        if seconds < max(self._stuck_after, UNUSUAL * usual):
            return None
        behind = f"; {_many(where.order, 'result')} wait for their turn behind it" if where.order else ""
        limited = f"; {_many(where.limit, 'call')} wait for a limit" if where.limit else ""
        endless = "" if part.settings.timeout is not None else "; the step has no timeout="
        return Stuck(name, f"a call has not ended for {_long(seconds)}{behind}{limited}{endless}")

    def _stuck_sink(self, name: str, part: SinkOperator) -> Stuck | None:
        where, seconds = self._where[name], self.seconds(name)
        if seconds < self._stuck_after:
            return None
        if isinstance(part.sink, Results):
            untaken = _many(len(part.sink.untaken()), "result")
            return Stuck(name, f"{untaken} wait for {_long(seconds)} to be taken from job.results()")
        waiting = _many(where.call + where.inbox, "element")
        if isinstance(part.sink, Publication):
            slow = f"a subscriber with slow='hold' has not taken one for {_long(seconds)}"
            return Stuck(name, f"{slow}; {waiting} wait to be published")
        return Stuck(
            name, f"its {where.doing} has not ended for {_long(seconds)}; {waiting} wait to be written"
        )


def _gate(part: Part) -> Gate | None:
    """What is closed when there is no room for what a part emits of its own accord."""
    if isinstance(part, SourceDriver):
        return part.gate
    return part.emitting if isinstance(part, Intake) else None


def _long(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
