"""
Makes the operators of one run from a graph, and connects them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from asyncstream.connectors import Sink, TransactionalSink
from asyncstream.operators.base import Operator
from asyncstream.operators.flow import Gate
from asyncstream.operators.journey import Journeys
from asyncstream.operators.spec import ClockUse
from asyncstream.plan import Graph, OperatorStep, Output, SinkStep, SourceStep, Wiring, left_behind
from asyncstream.runtime.aio.pacing import Entrance, Pace, Pass
from asyncstream.runtime.aio.reading import SourceDriver
from asyncstream.runtime.aio.wakeups import Woken
from asyncstream.runtime.aio.writing import SinkOperator
from asyncstream.state.rows import run_through

__all__ = ("LOOK", "RunWiring")

LOOK = 0.01
"""Seconds between two looks whether what is left to be done is done."""

LOOKS = 500
"""How often a checkpoint looks, before it holds the event loop with the rest of the work."""

REJECTED = "rejected"
"""Tag of the output on which a source sends what it could not read."""


class RunWiring:
    """
    The parts of one run.

    Attributes:
        operators: by step name, in topological order; sources have none.
        intakes: those of them that have an inbox.
        sinks: those of them that write to a sink.
        sources: by step name.
        feeders: for each sink, those whose refused elements can reach it.
        reads_no_more: sources are left, though elements would come: all that is silent is held.

    Args:
        graph: the steps.
        has_room: told of each operator for whose results there was no room, and is again.
        journeys: those of the run.
        failed: told of what an operator raises when nobody else is.
        now_ms: processing time, by which is told how long drivers were held; None: nobody asks.
    """

    def __init__(
        self,
        graph: Graph,
        has_room: Callable[[Woken], None],
        journeys: Journeys,
        failed: Callable[[BaseException], None],
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        self._graph = graph
        self.reads_no_more = False
        self.operators: dict[str, Operator] = {}
        self.sinks: dict[str, SinkOperator] = {}
        self._rooms: dict[str, Gate] = {}
        self._paces: dict[str, Pace] = {}
        one_pass = Pass()
        for step in graph:
            if isinstance(step, SinkStep):
                self.operators[step.name] = self.sinks[step.name] = SinkOperator(step.sink, step.on_error)
            elif isinstance(step, OperatorStep):
                operator = self.operators[step.name] = step.spec.make()
                if operator.works_off:
                    held = partial(self._gates_of, step.name)
                    pace = self._paces[step.name] = Pace(operator, one_pass, held, has_room, journeys, failed)
                    self._rooms[step.name] = pace.room
                    operator.enter_by(Entrance(pace, operator))
                elif step.spec.clock is not ClockUse.NONE:
                    self._rooms[step.name] = Gate(partial(has_room, operator))
        self._connections = connections = Wiring(graph, self.operators, self._entrance)
        self.intakes = connections.intakes
        self.sources = {
            step.name: SourceDriver(
                step.name,
                step.source,
                connections.reader_of(Output(step.name)),
                connections.reader_of(Output(step.name, REJECTED)),
                left_behind(graph, step.name) if step.source.hands_over else (),
            )
            for step in graph
            if isinstance(step, SourceStep)
        }
        gates = [(name, source.gate) for name, source in self.sources.items()]
        gates += [(name, intake.emitting) for name, intake in self.intakes.items()]
        for name, gate in (*gates, *self._rooms.items()):
            connections.hold_back(gate, connections.readers_of(name))
        self._feeding = {name: Gate() for name in self.operators}  # open while those of all drivers are
        for name, feeding in self._feeding.items():
            if now_ms is not None:
                feeding.now_ms = now_ms
            for gate in self._gates_of(name):
                gate.holds = (*gate.holds, feeding)
        self.feeders: dict[str, set[str]] = {name: set() for name in self.sinks}
        for name in self.feeders:
            for step in graph.behind(name):
                if isinstance(step, SinkStep):
                    self.feeders[step.name].add(name)
        self._forget_earlier_jobs()

    def _forget_earlier_jobs(self) -> None:
        """Its ends were told for whom they work if there were checkpoints; this one may do without."""
        for driver in self.sources.values():
            if driver.source.writer is not None:
                driver.source.writer = driver.source.checkpoint_soon = None
        for operator in self.sinks.values():
            if isinstance(operator.sink, TransactionalSink) and operator.sink.writer is not None:
                operator.sink.writer = None

    def parts(self) -> dict[str, SourceDriver | Operator]:
        """What runs each step, by its name: the sources, then the others."""
        return {**self.sources, **self.operators}

    def has_room(self, name: str) -> bool:
        """Whether the inboxes that this step's results get into have room."""
        return name not in self._rooms or self._rooms[name].is_open()

    def is_held(self, name: str) -> bool:
        """Whether a driver whose pushes reach this step may not push now."""
        return self.reads_no_more or not self._feeding[name].is_open()

    def held_ms(self, name: str) -> int:
        """For how many milliseconds it has been so up to now."""
        return self._feeding[name].held_ms()

    def catch_up(self) -> None:
        """Have all work done at once that was left for later, from the sources on."""
        for pace in self._paces.values():
            pace.catch_up()

    def restless(self) -> list[str]:
        """The steps that have elements to pass on or to write, or such work to do."""
        behind = [name for name, pace in self._paces.items() if pace.is_behind]
        return behind + [name for name, intake in self.intakes.items() if not intake.is_at_rest()]

    async def wait_for_work(self, seconds: float) -> None:
        """Wait until such work is done by and by, but not for too long, and for so many seconds at most."""
        for _ in range(min(LOOKS, int(seconds / LOOK))):
            if not any(pace.is_behind for pace in self._paces.values()):
                return
            await asyncio.sleep(LOOK)

    def end_work(self, *, at_once: bool) -> None:
        """The job winds down: have such work done now, and what still comes at once, or none any more."""
        for pace in self._paces.values():
            if at_once:
                pace.finish()
            else:
                pace.give_up()

    def work_off(self, name: str) -> Callable[[Iterator[None]], None]:
        """What does such work of this step."""
        return self._paces[name].work_off if name in self._paces else run_through

    def woken(self, name: str) -> Woken:
        """What is to be told of the clock in place of this step."""
        return self._paces.get(name) or self.operators[name]

    def _gates_of(self, name: str) -> Sequence[Gate]:
        """Those of the drivers whose pushes reach this step."""
        return self._connections.gates.get(name, ())

    def _entrance(self, name: str, port: Operator) -> Operator:
        return Entrance(self._paces[name], port) if name in self._paces else port

    def cut_short(self, failed: Callable[[BaseException], object]) -> None:
        """Tell sinks that they do not get all; `failed` is told what one raises over that."""
        for sink in self.ends(Sink):
            try:
                sink.cut_short()
            except Exception as error:
                failed(error)

    def ends(self, kind: type[Any]) -> Iterator[Any]:
        """The sources and sinks of this class that were given to the pipeline."""
        for step in self._graph:
            end = getattr(step, "source", None) or getattr(step, "sink", None)
            if isinstance(end, kind):
                yield end
