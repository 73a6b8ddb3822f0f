"""
What a running job looks like at one moment: plain data, to be shown, served as JSON or compared.

Nothing here keeps a part of the job alive or changes with it. Elements are the user's data and often
secrets: they are shown only if that was asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Final, Literal, TypeAlias

__all__ = (
    "CheckpointStatus",
    "FailedElement",
    "JobState",
    "JobStatus",
    "Latency",
    "OldestCall",
    "StepStatus",
)

JobState: TypeAlias = Literal[
    "new", "opening", "running", "draining", "stopping", "finished", "stopped", "failed"
]
"""
Where a job stands:

    new        not entered yet
    opening    its sources, sinks and functions are being opened
    running    it is
    draining   it reads no more, and finishes what was accepted
    stopping   it is being stopped; what was accepted and not finished will be in the snapshot
    finished   every source has come to its end, or was drained, and everything is written
    stopped    it was stopped, or its block was left by an exception
    failed     an error ended it: `job.error`
"""


@dataclass(frozen=True)
class OldestCall:
    """
    The call, write or read of a step that has been under way for longest.

    Attributes:
        seconds: since when.
        element: its element, as text; None: hidden, or not about one element.
    """

    seconds: float
    element: str | None


@dataclass(frozen=True)
class Latency:
    """
    How long the calls of a step took that ended lately: in the last half minute to minute. Of a sink, how
    long elements took from where they were accepted until they were written; some are followed.

    Attributes:
        calls: how many these are.
        p50_ms, p90_ms, p99_ms: so many percent of them took no longer, in milliseconds; estimated from a
            histogram.
    """

    calls: int
    p50_ms: float
    p90_ms: float
    p99_ms: float


@dataclass(frozen=True)
class FailedElement:
    """
    One of the elements that a step failed on last.

    Attributes:
        at_ms: when, in processing time.
        error: the type of the error; with its text, if elements are shown: texts quote them.
        element: as text; None: hidden.
    """

    at_ms: int
    error: str
    element: str | None


@dataclass(frozen=True)
class StepStatus:
    """
    One step.

    Attributes:
        name: the step's.
        kind: what it is: "source", "async_map", "window", "sink" and so on.
        inputs: what it reads: names of steps, with `.tag` for a side output.
        input_steps: the names of these steps alone, for a step may be called what such an output is.
        watermark_ms: how far event time has come behind it; None: it has none.
        lag_ms: how far that is behind processing time.
        idle: it says that it is not to be waited for.
        held_back_by: the step that keeps its event time or its elements from going on; None: none does.
        counts: counters and gauges, as in `job.metrics()`.
        waiting: how many elements are where: "inbox", accepted and not begun; "limit", for a rate limit or
            a breaker; "call", in a call or a write; "order", finished, or of a key that is busy, until it is
            their turn; "downstream", until there is room behind the step.
        oldest_call: its longest call, write or read that is under way.
        stuck: the reason, in a sentence, why nothing goes on here; None: it does, or has nothing to do.
        concurrency: how many calls it may have at once; None: it makes none.
        latency: of its calls, or of elements until this sink has written them; None: there was none lately.
        failures: the last elements that it failed on, the newest last.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    input_steps: tuple[str, ...] = ()
    watermark_ms: int | None = None
    lag_ms: int | None = None
    idle: bool = False
    held_back_by: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)
    oldest_call: OldestCall | None = None
    stuck: str | None = None
    concurrency: int | None = None
    latency: Latency | None = None
    failures: tuple[FailedElement, ...] = ()


@dataclass(frozen=True)
class CheckpointStatus:
    """
    The last checkpoint, and how it stands with the next.

    Attributes:
        number: of the last that was taken, or that the job goes on from; 0: there is none yet.
        taken_ms: when, in milliseconds since the epoch; None: there is none yet.
        duration_ms: how long it took until it was safe; 0 until this job has taken one.
        size: bytes, of what this job has taken last.
        failed_in_a_row: how many have failed since.
    """

    number: int
    taken_ms: int | None
    duration_ms: int
    size: int
    failed_in_a_row: int


@dataclass(frozen=True)
class JobStatus:
    """
    A job at one moment.

    Attributes:
        state: as `job.state`.
        error: what it failed with; without the element, if elements are hidden.
        started_ms: when it was opened, in processing time; 0: not yet.
        now_ms: processing time now; 0 until it is opened.
        steps: in the order of the pipeline: each behind those that it reads.
        checkpoint: None if the job keeps none.
        failed_step: the name of the step in which it failed; None: it has not, or in none.
    """

    state: JobState
    error: str | None
    started_ms: int
    now_ms: int
    steps: tuple[StepStatus, ...]
    checkpoint: CheckpointStatus | None = None
    failed_step: str | None = None

    def step(self, name: str) -> StepStatus:
        """
        The step of this name.

        Raises:
            KeyError: if there is none.
        """
        for step in self.steps:
            if step.name == name:
                return step
        raise KeyError(name)

    @property
    def stuck(self) -> tuple[StepStatus, ...]:
        """The steps at which nothing goes on though there is something to do."""
        return tuple(step for step in self.steps if step.stuck is not None)

    def to_dict(self) -> dict[str, Any]:
        """All of it as what JSON has: dicts, lists, texts, numbers, True, False and None."""
        plain: dict[str, Any] = _plain(self)
        return plain


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def _plain(value: Any) -> Any:
    if type(value) in _PLAIN:  # as most are, of the thousands that a page is shown each second
        return value
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(held) for key, held in value.items()}
    return [_plain(held) for held in value] if isinstance(value, tuple) else value
