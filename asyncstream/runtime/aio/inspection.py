"""
Looks at a job from outside and says how it stands: everything is read when somebody asks, nothing is kept.
"""

from __future__ import annotations

from asyncstream.errors import UserFunctionError, describe_error
from asyncstream.plan import Step
from asyncstream.runtime.aio.run import Run
from asyncstream.runtime.aio.status import CheckpointStatus, JobStatus, StepStatus

__all__ = ("inspect",)


def inspect(run: Run, state: str, *, values: bool) -> JobStatus:
    """
    How a run stands now.

    Args:
        run: which; it may not have been opened yet, or be over.
        state: what the job calls it.
        values: show elements.
    """
    return JobStatus(
        state=state,
        error=None if run.error is None else _said(run.error, values=values),
        started_ms=run.started_ms,
        now_ms=run.now_ms() if run.parts else 0,
        steps=tuple(_step_status(run, step) for step in run.graph),
        checkpoint=_checkpoint_status(run),
    )


def _step_status(run: Run, step: Step) -> StepStatus:
    part = run.parts.get(step.name)
    return StepStatus(
        name=step.name,
        kind=step.kind,
        inputs=tuple(str(output) for output in step.inputs),
        counts={} if part is None else part.metrics(),
    )


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


def _said(error: BaseException, *, values: bool) -> str:
    """An error as text, which quotes no element unless these are shown."""
    if isinstance(error, UserFunctionError) and not values:
        return f"step {error.step!r}: {type(error.__cause__ or error).__name__}"
    return describe_error(error)
