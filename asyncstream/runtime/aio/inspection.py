"""
Looks at a job from outside and says how it stands: everything is read on demand, nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any, Final, TypeAlias

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.errors import SinkError, SourceError, UserFunctionError, describe_error, safe_repr
from asyncstream.operators.whereabouts import SEVERAL, TimeReached
from asyncstream.plan import OperatorStep, Step
from asyncstream.runtime.aio.blocking import Blocking, Part
from asyncstream.runtime.aio.run import Run
from asyncstream.runtime.aio.status import (
    CheckpointStatus,
    FailedElement,
    JobState,
    JobStatus,
    Latency,
    OldestCall,
    StepStatus,
)
from asyncstream.validation import function, refuse

__all__ = ("STUCK_SECONDS", "Shown", "check_shown", "inspect")

STUCK_SECONDS = 3.0
"""Seconds for which nothing has come that a step waits for, when it is said to be stuck."""

OF_STEPS: Final = (UserFunctionError, SourceError, SinkError)
"""Errors that know the step in which they came up."""

Shown: TypeAlias = bool | Callable[[Any], object]
"""Whether elements are shown; or a function of an element that gives what is shown of it."""


def check_shown(values: object) -> None:
    """Refuse as `values` what says nothing about which elements are shown."""
    if isinstance(values, bool):
        return
    if not callable(values):
        raise refuse("values", "True, False or a function of an element", values)
    function("values", values, "element")


def inspect(
    run: Run, state: JobState, *, values: Shown = False, stuck_after: float = STUCK_SECONDS
) -> JobStatus:
    """How a run stands now, which may not have been opened yet, or be over; as `Job.status` says."""
    steps: tuple[StepStatus, ...]
    if run.parts:
        steps = tuple(_Inspection(run, values, stuck_after).steps())
    else:
        steps = tuple(StepStatus(step.name, step.kind, *_inputs(step)) for step in run.graph)
    return JobStatus(
        state=state,
        error=None if run.error is None else _said(run.error, values),
        started_ms=run.started_ms,
        now_ms=0 if run.phase == "new" else run.now_ms(),
        steps=steps,
        checkpoint=_checkpoint_status(run),
        failed_step=run.error.step if isinstance(run.error, OF_STEPS) else None,
    )


class _Inspection:
    """One look at a run, which stands still meanwhile."""

    def __init__(self, run: Run, values: Shown, stuck_after: float) -> None:
        self._run = run
        self._parts = run.parts
        self._values = values
        self._now = run.loop.time()
        self._now_ms = run.now_ms()
        self._reached: dict[str, TimeReached] = {}
        self._where = {
            name: where for name, part in run.parts.items() if (where := part.whereabouts()) is not None
        }
        self._blocking = Blocking(run.graph, run.parts, self._where, self._now, stuck_after)

    def steps(self) -> list[StepStatus]:
        """Each behind those that it reads."""
        return [self._step(step, self._parts[step.name]) for step in self._run.graph]

    def _step(self, step: Step, part: Part) -> StepStatus:
        name = step.name
        watermark, idle = self._reached_behind(step, part)
        known = watermark > MIN_TIMESTAMP
        where = self._where.get(name)
        stuck = self._blocking.stuck(name) if self._run.phase == "running" else None
        calls = step.spec.calls if isinstance(step, OperatorStep) else None
        inputs, input_steps = _inputs(step)
        return StepStatus(
            name=name,
            kind=step.kind,
            inputs=inputs,
            input_steps=input_steps,
            watermark_ms=watermark if known else None,
            lag_ms=self._now_ms - watermark if known else None,
            idle=bool(idle),
            held_back_by=self._blocking.held_back_by(name),
            counts=part.metrics(),
            waiting={} if where is None else where.waiting(),
            oldest_call=self._oldest(name),
            stuck=None if stuck is None else stuck.why,
            latency=self._latency(part),
            concurrency=calls.concurrency if calls is not None else None,
            failures=tuple(
                FailedElement(
                    failure.at_ms,
                    failure.text if self._values is True else failure.kind,
                    _shown(failure.value, self._values),
                )
                for failure in part.recent_failures
            ),
        )

    def _reached_behind(self, step: Step, part: Part) -> TimeReached:
        reached = part.time_reached()
        if reached is None or reached.idle is None:
            before = self._reached[step.inputs[0].output.step]
            reached = before if reached is None else TimeReached(reached.watermark, before.idle)
        self._reached[step.name] = reached
        return reached

    def _latency(self, part: Part) -> Latency | None:
        lately = [timings.lately(self._now) for timings in part.timings().values()]
        found = reduce(add, lately) if lately else None
        if found is None or not found.count:
            return None
        p50, p90, p99 = (round(found.quantile(share) * 1000, 3) for share in (0.5, 0.9, 0.99))
        return Latency(found.count, p50, p90, p99)

    def _oldest(self, name: str) -> OldestCall | None:
        where = self._where.get(name)
        if where is None or where.since is None:
            return None
        element = None if where.element is SEVERAL else _shown(where.element, self._values)
        return OldestCall(round(self._blocking.seconds(name), 3), element)


def _inputs(step: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What it reads, as text, and of which steps that is."""
    outputs = [one.output for one in step.inputs]
    return tuple(map(str, outputs)), tuple(output.step for output in outputs)


def _shown(value: Any, values: Shown) -> str | None:
    """What is shown of an element; a function that fails does not fail the status."""
    if isinstance(values, bool):
        return safe_repr(value) if values else None
    try:
        return safe_repr(values(value))
    except Exception as error:
        return f"<{type(error).__name__}>"


def _said(error: BaseException, values: Shown) -> str:
    """An error as text, which quotes no element unless these are shown."""
    if isinstance(error, UserFunctionError) and values is not True:
        return f"step {error.step!r}: {type(error.__cause__ or error).__name__}"
    return describe_error(error)


def _checkpoint_status(run: Run) -> CheckpointStatus | None:
    checkpointer = run.checkpointer
    if checkpointer is None:
        return None
    figures, last = checkpointer.metrics(), checkpointer.last
    return CheckpointStatus(
        number=0 if last is None else last.id,
        taken_ms=None if last is None else last.created_ms,
        duration_ms=figures["duration_ms"],
        size=figures["bytes"],
        failed_in_a_row=figures["failed_in_a_row"],
    )
