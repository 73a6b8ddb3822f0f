"""
All that is counted and timed in a job, as metrics with names: the one place where these are given.

Names are dotted and without units, as OpenTelemetry has them; an exporter makes of them what its readers
expect. What a function of the user's counts by a name that is not known here goes under the metrics
`asyncstream.function.value` and `asyncstream.function.count`, with that name as a label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Literal, NamedTuple, get_args

from asyncstream.guards.retry import attempts_in
from asyncstream.metrics import Distribution, Metric, Point
from asyncstream.plan import OperatorStep, SinkStep
from asyncstream.runtime.aio.checkpoints import Checkpointer
from asyncstream.runtime.aio.inspection import inspect
from asyncstream.runtime.aio.run import Run
from asyncstream.runtime.aio.status import JobState, JobStatus, StepStatus

__all__ = ("CATALOG", "Told", "measure")


class Told(NamedTuple):
    """What a metric is: see `Metric`."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    unit: str
    help: str


_ELEMENTS, _CALLS, _TIMERS = "{element}", "{call}", "{timer}"

_COUNTED: Final[tuple[tuple[str, str, Literal["counter", "gauge"], str, str], ...]] = (
    ("read", "elements.read", "counter", _ELEMENTS, "Elements that a source has read."),
    ("rejected", "elements.rejected", "counter", _ELEMENTS, "What a source could not read as an element."),
    ("written", "elements.written", "counter", _ELEMENTS, "Elements that a sink has taken."),
    ("elements_in", "elements.in", "counter", _ELEMENTS, "Elements that a step has accepted."),
    ("results_out", "elements.out", "counter", _ELEMENTS, "Results that a step has emitted."),
    ("failed", "elements.failed", "counter", _ELEMENTS, "Elements that a function failed on."),
    ("timed_out", "elements.timed_out", "counter", _ELEMENTS, "Elements whose call was given up."),
    ("skipped", "elements.skipped", "counter", _ELEMENTS, "Elements left out after that."),
    ("late_dropped", "elements.late", "counter", _ELEMENTS, "Elements that came too late for a window."),
    ("outside_windows", "elements.outside", "counter", _ELEMENTS, "Elements that no window takes."),
    ("running", "calls.running", "gauge", _CALLS, "Calls that run."),
    ("most_running", "calls.most_running", "gauge", _CALLS, "The most calls that ran at once."),
    ("overdue", "calls.overdue", "gauge", _CALLS, "Calls that were given up and have not ended."),
    ("limited", "calls.limited", "gauge", _CALLS, "Calls that wait for a limit or a breaker."),
    ("held", "elements.held", "gauge", _ELEMENTS, "Elements taken up and not emitted, and watermarks."),
    ("windows_open", "windows.open", "gauge", "{window}", "Windows with contents, over all keys."),
    ("state_entries", "state.entries", "gauge", "{entry}", "What process functions remember."),
    ("event_timers", "timers.event", "gauge", _TIMERS, "Timers set for event time."),
    ("processing_timers", "timers.processing", "gauge", _TIMERS, "Timers set for processing time."),
    ("requests", "http.requests", "counter", "{request}", "HTTP requests made."),
    ("retries", "calls.retries", "counter", _CALLS, "Attempts after the first."),
    ("recovered", "calls.recovered", "counter", _CALLS, "Calls that a retry has saved."),
    ("retries_exhausted", "calls.exhausted", "counter", _CALLS, "Calls that failed at the last attempt."),
    ("rate_limited", "calls.rate_limited", "counter", _CALLS, "Calls that had to wait for a rate."),
    ("circuit_state", "circuit.state", "gauge", "1", "0: closed, 1: half open, 2: open."),
    ("circuit_opened", "circuit.opened", "counter", "1", "How often a circuit breaker has opened."),
    ("circuit_waited", "circuit.waited", "counter", _CALLS, "Calls that waited for a breaker."),
    ("circuit_refused", "circuit.refused", "counter", _CALLS, "Calls that a breaker has refused."),
    ("concurrency_limit", "concurrency.limit", "gauge", _CALLS, "Calls at once that a service can take."),
    ("concurrency_cuts", "concurrency.cuts", "counter", "1", "How often overload has lowered that."),
    ("concurrency_waited", "concurrency.waited", "counter", _CALLS, "Calls that waited for that."),
    ("budget_waited", "budget.waited", "counter", _CALLS, "Calls that waited for a budget that was spent."),
    ("budget_spent", "budget.spent", "gauge", "1", "1 while calls wait for a budget that is spent."),
    ("budget_used_percent", "budget.used", "gauge", "%", "How much of a budget is spent."),
    ("limit_store_away", "limit.store.away", "gauge", "1", "1 while the store of a shared limit is away."),
    ("cached", "cache.hits", "counter", _CALLS, "Answers from the cache."),
    ("cache_misses", "cache.misses", "counter", _CALLS, "Answers that were not in the cache."),
    ("cache_renewed", "cache.renewed", "counter", _CALLS, "Answers renewed in the background."),
    ("coalesced", "calls.coalesced", "counter", _CALLS, "Calls answered by one that was under way."),
    ("batches", "batches.sent", "counter", "{batch}", "Batches sent."),
    ("batched", "batches.elements", "counter", _ELEMENTS, "Elements sent in batches."),
)

COUNTED: Mapping[str, Told] = {
    key: Told(f"asyncstream.{name}", kind, unit, help) for key, name, kind, unit, help in _COUNTED
}
"""What steps count, by the names of `job.metrics()`."""

_PREFIX = "asyncstream"
JOB_STATE = Told(f"{_PREFIX}.job.state", "gauge", "1", "1 for the state that the job is in, 0 for others.")
OTHERS = Told(f"{_PREFIX}.function.value", "gauge", "1", "What a function of the user's counts, by name.")
OTHER_COUNTS = Told(f"{_PREFIX}.function.count", "counter", "1", "The same, of what only ever grows.")
WAITING = Told(f"{_PREFIX}.elements.waiting", "gauge", _ELEMENTS, "Elements that wait, by where.")
LAG = Told(f"{_PREFIX}.watermark.lag", "gauge", "s", "How far event time is behind processing time.")
OLDEST = Told(f"{_PREFIX}.oldest.age", "gauge", "s", "Age of the longest call, write or read under way.")
STUCK = Told(f"{_PREFIX}.step.stuck", "gauge", "1", "1 if nothing goes on at a step though it should.")
CONCURRENCY = Told(f"{_PREFIX}.calls.concurrency", "gauge", _CALLS, "Calls that a step may make at once.")
CALLS = Told(f"{_PREFIX}.call.duration", "histogram", "s", "Calls that had to wait, by how they ended.")
END_TO_END = Told(
    f"{_PREFIX}.end_to_end.duration",
    "histogram",
    "s",
    "From where elements are accepted until they are written, of some in each second.",
)
TRIES = Told(f"{_PREFIX}.call.attempts", "histogram", "{attempt}", "Attempts that calls have had.")
TAKEN = Told(f"{_PREFIX}.checkpoint.duration", "histogram", "s", "Time until a checkpoint was safe.")
PAUSE = Told(f"{_PREFIX}.checkpoint.pause", "histogram", "s", "Time a checkpoint has held the loop.")
SIZE = Told(f"{_PREFIX}.checkpoint.size", "histogram", "By", "Sizes of checkpoints.")
HELD = Told(f"{_PREFIX}.loop.pause", "histogram", "s", "Time the event loop takes to answer a knock.")
FAILURES = Told(f"{_PREFIX}.checkpoint.failures", "counter", "{checkpoint}", "Checkpoints that have failed.")
AGE = Told(f"{_PREFIX}.checkpoint.age", "gauge", "s", "Time since the last checkpoint was taken.")

CATALOG: Final = (
    *COUNTED.values(),
    *(JOB_STATE, OTHERS, OTHER_COUNTS, WAITING, LAG, OLDEST, STUCK, CONCURRENCY, CALLS, TRIES, END_TO_END),
    *(TAKEN, PAUSE, SIZE, FAILURES, AGE, HELD),
)
"""Every metric that there can be."""

PLACED = "waiting"
"""A count of `job.metrics()` that is told by place instead."""


class _Gathering:
    """Points by metric."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._labels = labels
        self._found: dict[Told, list[Point]] = {}

    def add(self, told: Told, value: float | Distribution | None, **labels: str) -> None:
        """A series more; None: there is no value."""
        if value is not None:
            self._found.setdefault(told, []).append(Point({**self._labels, **labels}, value))

    def metrics(self) -> Iterator[Metric]:
        for told, points in self._found.items():
            yield Metric(*told, tuple(points))


def measure(run: Run, state: JobState) -> tuple[Metric, ...]:
    """Every metric of a run, as it stands, in the state that the job says."""
    status = inspect(run, state)
    found = _Gathering({"pipeline": run.name})
    for known in get_args(JobState):
        found.add(JOB_STATE, int(known == state), state=known)
    for step in status.steps:
        if step.name in run.parts:
            _add_step(found, step, run)
    if run.phase != "new":
        found.add(HELD, run.loop_watch.pauses.read())
    if run.checkpointer is not None:
        _add_checkpoints(found, run.checkpointer, status)
    return tuple(found.metrics())


def _add_step(found: _Gathering, step: StepStatus, run: Run) -> None:
    name, part, plan = step.name, run.parts[step.name], run.graph[step.name]
    counters: tuple[str, ...] = ()
    if isinstance(plan, OperatorStep):
        counters = (*plan.spec.counters, "spared")  # of a journal, which only the run knows of
    for key, value in step.counts.items():
        if key in COUNTED:
            found.add(COUNTED[key], value, step=name)
        elif key != PLACED:
            found.add(OTHER_COUNTS if key in counters else OTHERS, value, step=name, name=key)
    for place, count in step.waiting.items():
        found.add(WAITING, count, step=name, place=place)
    found.add(LAG, None if step.lag_ms is None else step.lag_ms / 1000, step=name)
    found.add(OLDEST, None if step.oldest_call is None else step.oldest_call.seconds, step=name)
    found.add(STUCK, int(step.stuck is not None), step=name)
    found.add(CONCURRENCY, step.concurrency, step=name)
    found.add(TRIES, attempts_in(part.called), step=name)
    for outcome, timings in part.timings().items():
        if isinstance(plan, SinkStep):
            found.add(END_TO_END, timings.read(), step=name)
        else:
            found.add(CALLS, timings.read(), step=name, outcome=outcome)


def _add_checkpoints(found: _Gathering, checkpointer: Checkpointer, status: JobStatus) -> None:
    found.add(TAKEN, checkpointer.durations.read())
    found.add(PAUSE, checkpointer.pauses.read())
    found.add(SIZE, checkpointer.sizes.read())
    found.add(FAILURES, checkpointer.metrics()["failed"])
    last = None if status.checkpoint is None else status.checkpoint.taken_ms
    found.add(AGE, None if last is None else max(0, status.now_ms - last) / 1000)
