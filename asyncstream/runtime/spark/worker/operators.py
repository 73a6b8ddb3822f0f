"""
The operators of one stage, made and connected for one run, with an `Exit` at the start of each route.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from traceback import format_exception
from typing import Any, cast

from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamps
from asyncstream.errors import AsyncStreamError, UserFunctionError, encodable, tells_its_step
from asyncstream.eventtime import WatermarkGenerator, WatermarkStrategy
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.spec import Lend, Spec
from asyncstream.plan import Graph, Input, OperatorStep, Wiring
from asyncstream.runtime.spark.clocks import delay_ms
from asyncstream.runtime.spark.observe import ObservedCount
from asyncstream.runtime.spark.stages import Reach, Route, Stage
from asyncstream.runtime.spark.wire.batches import Leaving
from asyncstream.runtime.spark.wire.keys import key_groups
from asyncstream.runtime.spark.wire.values import Classes
from asyncstream.runtime.spark.worker.exits import Exit, MarkingExit
from asyncstream.windowing.panes import PaneWindowOperator
from asyncstream.windowing.partials import Partials

__all__ = ("StageOperators", "Terms", "opening", "telling_the_cause")

HELD = 20_000
"""Elements that an async step holds at least, if the user does not say: two of Spark's Arrow batches."""


@dataclass(frozen=True)
class Terms:
    """
    What the stages of one plan have in common.

    Attributes:
        key_groups: how many there are.
        wanted: numbers of the routes whose elements are needed.
        streaming: micro-batches, rather than one bounded job.
        processing_time: keyed steps of a stream are told of it.
        counts: what is counted and told to Spark.
        clocks: the steps that give the event time by which keyed steps go.
        unnamed: steps that remember something and have their names from their places only, with what it is.
        classes: those of the script, in which state of an earlier run is read.
        replays: event time moves in this bounded job: elements travel with the watermarks that held for them.
        stands_still: no time goes by in this micro-batch, which only takes up what another query remembered.
        held_bytes: what a worker holds of state, decoded, if the user says.
        inputs: the names of several inputs of a stream, in the places by which Spark knows them.
        copies: of an element for all keys, one for each of the first key groups: a task of a bounded job has
            several groups, and one copy.
    """

    key_groups: int
    wanted: frozenset[int]
    _: KW_ONLY
    streaming: bool
    processing_time: bool = False
    counts: tuple[ObservedCount, ...] = ()
    clocks: frozenset[str] = frozenset()
    unnamed: tuple[str, ...] = ()
    classes: Classes = field(default_factory=dict)
    replays: bool = False
    stands_still: bool = False
    held_bytes: int | None = None
    inputs: tuple[str, ...] = ()
    copies: int = 1


class _Follower(WatermarkStrategy, WatermarkGenerator):
    """Sees the largest timestamp, and leaves watermarks to Spark."""

    def __init__(self) -> None:
        self.largest_ms = MIN_TIMESTAMP

    def generator(self) -> WatermarkGenerator:
        return self

    def on_element(self, value: Any, timestamp: int) -> None:
        self.largest_ms = timestamp
        self.threshold = timestamp + 1


class StageOperators:
    """
    The operators of a stage.

    Attributes:
        operators: by step name, in topological order.
        exits: one for each route that begins here.
        heads: where elements enter, by the number of the route that ends here.

    Args:
        lend: gives the opened function of an async step.
        spread: the group of elements without a key.
        watermark: the one that holds for what comes first.
    """

    def __init__(self, stage: Stage, terms: Terms, lend: Lend | None, spread: int, watermark: int) -> None:
        self.stage = stage
        self._terms = terms
        self._followers: dict[str, tuple[_Follower, int]] = {}
        self.operators = {step.name: self._made(step, lend) for step in stage.steps}
        groups = key_groups(terms.key_groups)
        make_exit = MarkingExit if terms.replays else Exit
        self.exits = [
            make_exit(route, groups, route.number in terms.wanted, self._places(route, spread), watermark)
            for route in stage.exits
        ]
        graph = Graph()
        for step in stage.steps:
            graph.add(step)
        connected: dict[str, Operator] = dict(self.operators)
        for exit_ in self.exits:
            if exit_.route.output.step in self.operators:
                name = f"route {exit_.route.number}"
                graph.add(OperatorStep(name, "exit", (Input(exit_.route.output),), Spec()))
                connected[name] = exit_
        self.graph, self.wiring = graph, Wiring(graph, connected)
        self.heads: dict[int, Operator] = {route.number: self._head(route) for route in stage.entries}
        # what a source gives to a later stage at once
        self.heads |= {e.route.number: e for e in self.exits if e.route.output.step not in self.operators}
        self._followed = {
            number: head
            for number, head in self.heads.items()
            if not terms.replays or self._is_followed(stage, number)
        }

    def _places(self, route: Route, spread: int) -> Sequence[int]:
        by_reach = {Reach.ONE: (spread,), Reach.FIRST: (0,), Reach.OTHERS: range(1, self._terms.copies)}
        return by_reach[route.reach]

    def _head(self, route: Route) -> Operator:
        if route.reach is Reach.OTHERS:
            return self.operators[route.reader].overhearing(route.port)
        return self.wiring.port_of(route.reader, route.port)

    def _made(self, step: OperatorStep, lend: Lend | None) -> Operator:
        spec = step.spec
        if spec.event_time is not None and not self._terms.replays:
            follower = _Follower()
            delay = delay_ms(spec.event_time.strategy)
            if delay is not None and step.name in self._terms.clocks:
                self._followers[step.name] = (follower, delay)
            spec = spec.with_watermarks(follower)
        # the first result of a task is not waited for; one slow call must not hold back the others
        return spec.with_calls(lend, HELD).make()

    def open(self, context: Callable[[str], OperatorContext]) -> Iterator[Operator]:
        """Open the operators, the last first, each one before it is given: there may be more to do."""
        for exit_ in self.exits:
            exit_.open(context(exit_.route.reader))
        for name, operator in reversed(self.operators.items()):
            with opening(name):
                operator.open(context(name))
                yield operator

    def _is_followed(self, stage: Stage, route: int) -> bool:
        """
        Whether what reads a route sees event time move in a bounded job: all but windows, which are to have
        every element however partitions are ordered.
        """
        readers = {entry.reader for entry in stage.entries if entry.number == route}
        keyed = [step.spec for step in stage.steps if step.name in readers and step.is_keyed]
        return all(spec.has_user_timers or spec.calls is not None for spec in keyed)

    def replay_watermark(self, watermark_ms: int, reached_ms: int) -> None:
        """
        Event time has come this far for those who see it move, or to its end for all.

        Args:
            reached_ms: as far as it came by elements: what fires at its end would have fired by then.
        """
        heads = self.heads if watermark_ms == MAX_TIMESTAMP else self._followed
        marking = [exit_ for exit_ in self.exits if isinstance(exit_, MarkingExit)]
        for exit_ in marking:
            exit_.advancing_to = reached_ms
        try:
            for head in heads.values():
                head.advance_watermark(watermark_ms)
        finally:
            for exit_ in marking:
                exit_.advancing_to = None

    def advance_watermark(self, watermark_ms: int) -> None:
        """Event time has come this far on all routes that end here; `MIN_TIMESTAMP` is nowhere."""
        if watermark_ms > MIN_TIMESTAMP:
            for head in self.heads.values():
                head.advance_watermark(watermark_ms)

    def restore_watermark(self, watermark_ms: int) -> None:
        """Event time had come this far when the operators were remembered; `MIN_TIMESTAMP` is nowhere."""
        if watermark_ms > MIN_TIMESTAMP:
            for head in self._followed.values():
                head.restore_watermark(watermark_ms)

    def take(self) -> list[Leaving]:
        """What has reached the exits since the last time."""
        return [leaving for exit_ in self.exits for leaving in exit_.take()]

    def process(self, route: int, values: Sequence[Any], timestamps: Timestamps) -> None:
        """Have elements enter on a route, or what they have been folded to."""
        head = self.heads[route]
        if isinstance(values, Partials):  # which leave for windows on a grid alone
            cast(PaneWindowOperator, head).take_in(values)
        else:
            head.process_batch(values, timestamps)

    def follow(self, step: str, latest_ms: int) -> None:
        """Elements of which the latest has this timestamp have gone by the step that gives event time."""
        if step in self._followers:
            follower, _ = self._followers[step]
            if latest_ms >= follower.threshold:
                follower.on_element(None, latest_ms)

    def event_time_ms(self) -> int:
        """
        How far event time has come here, less the delay that was asked for; `MIN_TIMESTAMP`: not known.

        Of several steps that give event time, the one counts that is behind the others.
        """
        seen = [(follower.largest_ms, delay) for follower, delay in self._followers.values()]
        reached = [largest_ms - delay for largest_ms, delay in seen if largest_ms > MIN_TIMESTAMP]
        return min(reached, default=MIN_TIMESTAMP)


@contextmanager
def telling_the_cause() -> Iterator[None]:
    """
    Has PySpark report an error by its message, which names step and element, and by the user's own traceback.

    By itself it shows neither the cause of an exception nor, before pages of our frames, its message.
    """
    try:
        yield
    except AsyncStreamError as error:
        if error.__cause__ is not None:
            error.add_note(encodable("".join(format_exception(error.__cause__)).rstrip()))
            error.__cause__ = None  # or it would be told first as well, and may be one of ours
            _hide_frames()
        raise


def _hide_frames() -> None:
    """What Spark's setting `spark.sql.execution.pyspark.udf.hideTraceback.enabled` does to a worker."""
    from pyspark import TaskContext

    if TaskContext.get() is not None:  # this process ends with the error
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


@contextmanager
def opening(step: str) -> Iterator[None]:
    """What the user's code raises in this block names the step."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if tells_its_step(error):
            raise
        raise UserFunctionError(step, None, error, when="when it was opened") from error
