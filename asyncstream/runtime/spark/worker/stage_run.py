"""
One task's run of a stage, on the event loop of its worker.

The task's own thread reads and writes Arrow batches; between two of them calls go on. `feed` returns when
the stage has accepted what it was given, not when it has finished it, so calls of many batches run at once
and the concurrency of a step is one for the whole task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from asyncstream.clock import SystemClock
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.errors import UserFunctionError
from asyncstream.eventtime import warn_of_unit
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.flow import Gate, Intake
from asyncstream.runtime.spark.observe import grown, tally
from asyncstream.runtime.spark.stages import Stage
from asyncstream.runtime.spark.state_transfer import take_up
from asyncstream.runtime.spark.wire.batches import Entering, Leaving, States
from asyncstream.runtime.spark.wire.columns import Picked
from asyncstream.runtime.spark.worker.exits import MarkingExit
from asyncstream.runtime.spark.worker.loop import Resident
from asyncstream.runtime.spark.worker.operators import StageOperators, Terms, opening

__all__ = ("StageRun",)

PUSHED = 1000
"""Elements pushed in one go, before it is looked whether there is room for more."""


class StageRun:
    """
    Drives the operators of a stage for one task. All methods run on the loop.

    Args:
        watermark: the one that holds for what comes first.
        worth_packing: so many elements at the exits are; nobody waits for them, since the next stage begins
            when all of this one has ended.
        closing: the input of this task is all that there is: event time comes to its end.
        pipeline: its name.
        stage: the part of it that elements get to; None: all of it.
    """

    def __init__(
        self,
        resident: Resident,
        terms: Terms,
        *,
        spread: int,
        watermark: int,
        closing: bool,
        pipeline: str,
        worth_packing: int = 0,
        stage: Stage | None = None,
    ) -> None:
        self._parts = StageOperators(stage or resident.stage, terms, resident.lend, spread, watermark)
        self._closing = closing
        self._pipeline = pipeline
        self._tracking = self._parts.graph.tracking()
        self._terms = terms
        self._reached = MIN_TIMESTAMP
        self._seen = MIN_TIMESTAMP
        self._begun = False
        self._has_passed = False
        self._worth_packing = worth_packing
        self._clock = SystemClock()
        self._opened: list[Operator] = []
        self._transferred: list[States] = []
        self._before: list[int] = []
        self._error: BaseException | None = None
        self._changed = asyncio.Event()
        self._gate = Gate(self._changed.set)

    async def open(self) -> None:
        for operator in self._parts.open(self._context):
            self._opened.append(operator)
            if isinstance(operator, Intake):
                with opening(operator.context.name):
                    await operator.start()
        wiring, graph = self._parts.wiring, self._parts.graph
        wiring.hold_back(self._gate, (graph[route.reader] for route in self._parts.stage.entries))
        for name, intake in wiring.intakes.items():
            wiring.hold_back(intake.emitting, wiring.readers_of(name))
        for exit_ in self._parts.exits:
            exit_.on_end = self._changed.set
        self._before = tally(
            self._terms.counts, self._parts.operators
        )  # functions count on from task to task

    def _context(self, name: str) -> OperatorContext:
        # processing time stands still: what waits for it is closed by the end of input, or not at all
        tracks = name in self._tracking
        fail = partial(self._fail, name)
        return OperatorContext(
            name, clock=self._clock, fail=fail, pipeline=self._pipeline, tracks=tracks, may_end=False
        )

    def _fail(self, step: str, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            # by itself it would name no step, and end the loop that is to tell of it
            asked = UserFunctionError(step, None, error, when="which asks the process to end")
            asked.__cause__, error = error, asked
        if self._error is None:
            self._error = error
        self._changed.set()

    async def feed(self, items: Iterable[Entering], *, pack_few: bool = False) -> tuple[list[Leaving], int]:
        """
        Accept elements. Gives what has left the stage by then, and how far event time has come.

        Args:
            pack_few: give what has left, even if it is less than is worth packing.
        """
        for routes, values, timestamps, watermark, transferred, seen in items:
            if transferred is not None:
                self._transferred.append(transferred)
                self._begun = True
                if self._terms.replays and watermark is not None and seen is not None:
                    self._reached, self._seen = max(self._reached, watermark), max(self._seen, seen)
                continue
            self._take_up()
            if watermark is not None and self._terms.replays:
                if watermark > self._reached:
                    self._reached = watermark
                    self._parts.replay_watermark(watermark, watermark)
            elif watermark is not None:
                if not self._begun:
                    # nothing is before it, so nothing goes ahead of it in a step that lets elements do that
                    for exit_ in self._parts.exits:
                        exit_.watermark = watermark
                self._parts.advance_watermark(watermark)
            self._begun = True
            for start in range(0, len(values), PUSHED):
                await self._until(self._gate.is_open)
                end = start + PUSHED
                for route in routes:
                    self._parts.process(route, values[start:end], timestamps and timestamps[start:end])
        await asyncio.sleep(0)  # calls that were just accepted may start before the next batch is read
        await self._until(self._gate.is_open)
        is_ready = pack_few or sum(exit_.count for exit_ in self._parts.exits) >= self._worth_packing
        return self._parts.take() if is_ready else [], self._parts.event_time_ms()

    async def pass_by(self, elements: Picked) -> int:
        """These need none of the steps; gives how far event time has come."""
        if elements.first is not None and not self._has_passed:
            warn_of_unit(elements.step, elements.first)
        self._has_passed = True
        self._parts.follow(elements.step, elements.latest_ms)
        return self._parts.event_time_ms()

    async def finish(self) -> tuple[list[Leaving], int]:
        """Nothing follows: wait for all that was accepted. Gives what `feed` does."""
        self._take_up()
        heads = self._parts.heads.values()
        if self._closing:
            self._parts.replay_watermark(MAX_TIMESTAMP, self._reached)
        for head in heads:
            head.end_input()
        await self._until(lambda: all(exit_.ended for exit_ in self._parts.exits))
        leaving = self._parts.take()
        for exit_ in self._parts.exits:
            if isinstance(exit_, MarkingExit):
                leaving += exit_.last(self._terms.key_groups)
        return leaving, self._parts.event_time_ms()

    def _take_up(self) -> None:
        if self._transferred:
            take_up(self._parts.operators, self._transferred)
            self._transferred = []
            if self._terms.replays:
                self._parts.restore_watermark(self._seen)
                if self._seen < self._reached:
                    self._parts.replay_watermark(self._reached, self._reached)

    def counts(self) -> dict[int, int]:
        """What this task has counted, by number, as far as it is not zero."""
        return grown(self._terms.counts, self._parts.operators, self._before)

    async def close(self) -> None:
        """End every call that still runs; the functions stay open for the next task."""
        try:
            for operator in self._opened:
                if isinstance(operator, Intake):
                    await operator.stop()
        finally:
            for operator in self._opened:
                operator.close()

    async def _until(self, reached: Callable[[], bool]) -> None:
        while True:
            if self._error is not None:
                raise self._error
            if reached():
                return
            self._changed.clear()
            await self._changed.wait()
