"""
The way out of an async step: its promise queue, and the emission of results in batches.
"""

from __future__ import annotations

from typing import Any

from asyncstream.async_wait.blocks import Part
from asyncstream.async_wait.promise import (
    DROPPED,
    SPECIAL,
    Arrived,
    Passage,
    Promise,
    Routed,
    Several,
    completed,
)
from asyncstream.async_wait.queues import PromiseQueue
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP, Watermark
from asyncstream.errors import UserFunctionError
from asyncstream.operators.base import Operator
from asyncstream.operators.failures import attempts_of
from asyncstream.operators.functions import FailedCall
from asyncstream.operators.journey import Journeys
from asyncstream.operators.origins import Origin, Placed
from asyncstream.operators.results import PROBATION, Kinds, is_coroutine, not_a_value
from asyncstream.operators.whereabouts import RecentFailures

__all__ = ("WayOut",)


class WayOut:
    """
    Holds what an async step has begun, until it leaves downstream.

    Args:
        operator: the step, whose outputs are pushed to, and whose recent failures are noted.
        queue: keeps the order.
        counts: "results_out" and "skipped" of these are kept.
        flat: a call gives any number of results.

    Attributes:
        queue: every promise that was added and has not left.
        promised: how many elements are held.
        special: at least as many as outcomes in the queue that are not simply one result.
        tracks: each element's origin is kept with it.
        journeys: those of the run.
        watermark: the last one that was emitted.
    """

    def __init__(
        self, operator: Operator, queue: PromiseQueue, counts: dict[str, int], *, flat: bool
    ) -> None:
        self._operator = operator
        operator.recent_failures = self._recent = RecentFailures()
        self._flat = flat
        self._counts = counts
        self._kinds = Kinds(is_coroutine)
        self._unproven = PROBATION
        self.queue = queue
        self.promised = 0
        self.special = 0
        self.tracks = False
        self.journeys = Journeys()
        self.watermark = MIN_TIMESTAMP

    def add_finished(
        self, value: Any, timestamp: int | None, outcome: Any, origin: Origin | None = None
    ) -> None:
        """Accept an element whose outcome is known already, or a control element."""
        self.special += 1
        self.promised += 1
        promise = completed(value, timestamp, outcome, origin)
        if isinstance(outcome, Passage):
            self.queue.add_control(promise)
        else:
            self.queue.add(promise)
            self.queue.finish(promise)

    def without_result(
        self, promise: Promise, tag: str, choice: object, error: BaseException, began_ms: int, now_ms: int
    ) -> Any:
        """
        The outcome of an element whose call, begun then, gave no result: it is left out if the choice is
        "skip", else it leaves by the side output of this tag.
        """
        is_skipped = choice == "skip"
        self._recent.note(self._operator.context.name, promise.value, error, now_ms, skipped=is_skipped)
        self.special += 1
        if is_skipped:
            self._counts["skipped"] += 1
            return DROPPED
        value, timestamp, attempts = promise.value, promise.timestamp, attempts_of(error)
        return Routed(tag, FailedCall(value, error, attempts, timestamp, began_ms, now_ms, promise.origin))

    def emit_ready(self) -> None:
        """Push what the queue lets go."""
        alone: list[Promise] = []
        for promise in self.queue.take():
            if isinstance(promise, Part):
                if alone:
                    self._emit(alone)
                    alone = []
                self._emit_part(promise)
            else:
                alone.append(promise)
        if alone:
            self._emit(alone)

    def _emit(self, ready: list[Promise]) -> None:
        self.promised -= len(ready)
        if self.special:
            self._emit_special(ready)
            return
        timestamps: list[int | None] = [promise.timestamp for promise in ready]
        if self.tracks:
            timestamps = Placed(timestamps, [promise.origin for promise in ready])
        self._push([promise.outcome for promise in ready], timestamps)

    def _emit_part(self, part: Part) -> None:
        if part.is_special:
            self._emit(part.promises())
            return
        self.promised -= len(part.outcomes)
        self._push(part.outcomes, self._with(part.timestamps, part.origins))

    def _emit_special(self, ready: list[Promise]) -> None:
        """Push outcomes some of which are not simply one result."""
        tracks = self.tracks
        values: list[Any] = []
        timestamps: list[int | None] = []
        origins: list[Origin | None] = []
        for promise in ready:
            outcome = promise.outcome
            if outcome.__class__ not in SPECIAL:
                values.append(outcome)
                timestamps.append(promise.timestamp)
                if tracks:
                    origins.append(promise.origin)
                continue
            self.special -= 1
            if isinstance(outcome, Several):
                values += outcome.results
                timestamps += [promise.timestamp] * len(outcome.results)
                if tracks:
                    origins += self._origins(promise, outcome)
            elif isinstance(outcome, Arrived):
                self._push(values, self._with(timestamps, origins))
                values, timestamps, origins = [], [], []
                result = outcome.outcome
                found = result if isinstance(result, Several) else Several([result])
                stamps: list[int | None] = [promise.timestamp] * len(found.results)
                with self.journeys.on(outcome.journey):
                    self._push([*found.results], self._with(stamps, self._origins(promise, found)))
            elif isinstance(outcome, Routed):
                stamps = self._with([promise.timestamp], [promise.origin])
                self._operator.side_output(outcome.tag).process_batch([outcome.failed], stamps)
            elif isinstance(outcome, Passage):
                self._push(values, self._with(timestamps, origins))
                values, timestamps, origins = [], [], []  # the old ones belong to their receiver
                self._operator.pass_on(outcome.control)
                if isinstance(outcome.control, Watermark) and outcome.control.timestamp < MAX_TIMESTAMP:
                    self.watermark = outcome.control.timestamp
        self._push(values, self._with(timestamps, origins))

    def _with(self, timestamps: list[int | None], origins: list[Origin | None]) -> list[int | None]:
        """Timestamps with the origins of their elements, where they are tracked."""
        return Placed(timestamps, origins) if self.tracks else timestamps

    def _origins(self, promise: Promise, outcome: Several) -> list[Origin | None]:
        """Those of the results of one call."""
        count, origin = len(outcome.results), promise.origin
        if origin is None or not self._flat:  # of the others there is one
            return [origin] * count
        return [(*origin, place) for place in range(count)]

    def _push(self, values: list[Any], timestamps: list[int | None]) -> None:
        if values:
            if self._unproven or type(values[0]) not in self._kinds.known:
                self._check(values, timestamps)
            self._counts["results_out"] += len(values)
            self._operator.out.process_batch(values, timestamps)

    def _check(self, values: list[Any], timestamps: list[int | None]) -> None:
        """Refuse coroutines, after what came before them."""
        self._unproven = max(0, self._unproven - len(values))
        bad = self._kinds.first_deferred(values)
        if bad is None:
            return
        self._push(values[:bad], timestamps[:bad])
        error = not_a_value(values[bad:], "await it there", "an async function")
        # for which element is not known any more, and it would be all of them
        name = self._operator.context.name
        raise UserFunctionError(name, None, error, when="when a call had ended") from error
