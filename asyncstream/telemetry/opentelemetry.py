"""
Metrics and traces in the form of OpenTelemetry.

Metrics are observable instruments: the reader of a meter provider asks, and `job.measure()` answers. A
histogram is three of them, as its buckets are counted already: `<name>.count`, `<name>.sum` and
`<name>.bucket`, with the attribute `asyncstream.le`; to record each value would cost many times what a call
costs.

    asyncstream.elements.read      {element}   asyncstream.pipeline, asyncstream.step
    asyncstream.call.duration.sum  s           asyncstream.pipeline, asyncstream.step, asyncstream.outcome

A trace follows one element: a span where it is accepted, which belongs to the span in which it was submitted
(that of the POST request, say), and under it one for each call and for each write. A call is made in the
context of who submitted the element, so what it asks over HTTP goes on with the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import inf
from random import random
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

from asyncstream.errors import MissingExtra
from asyncstream.metrics import Distribution, Metric
from asyncstream.operators.journey import Span, Trace
from asyncstream.runtime.aio import Job
from asyncstream.runtime.aio.measuring import CATALOG, Told
from asyncstream.validation import real_number, refuse

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation
    from opentelemetry.trace import Span as RecordedSpan
    from opentelemetry.trace import Tracer, TracerProvider

__all__ = ("ElementTracer", "instrument")

SCOPE: Final = "asyncstream"
"""What meters and tracers are asked for by: the instrumentation scope."""

FRESH: Final = 0.05
"""Seconds for which what jobs have answered serves the other instruments of the same collection."""


def instrument(
    job: Job,
    *,
    meter_provider: MeterProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    sample: float = 1.0,
) -> Job:
    """
    Show the metrics of a job, and follow its elements, with OpenTelemetry; before the job is entered.

        async with instrument(pipeline.start()) as job:

    Args:
        job: which.
        meter_provider: whose readers see the metrics; the global one if left out.
        tracer_provider: who gets the spans; the global one if left out.
        sample: which part of the elements to follow, from 0 to 1, that are not submitted in a span. Of those
            that are, each is followed whose span is recorded, so the sampler at the door decides.

    Returns:
        The same job.

    Raises:
        PipelineError: if the job has been entered, or an argument is not as described.
        MissingExtra: if opentelemetry is not installed.
    """
    if not callable(getattr(job, "trace", None)):
        raise refuse("job", "a Job", job, "e.g. instrument(pipeline.start())")
    real_number("sample", sample, "a number from 0 to 1", lambda share: 0 <= share <= 1)
    try:
        from opentelemetry import metrics, trace
    except ImportError as error:
        raise MissingExtra("OpenTelemetry", "opentelemetry", error) from error
    meters = metrics.get_meter_provider() if meter_provider is None else meter_provider
    tracers = trace.get_tracer_provider() if tracer_provider is None else tracer_provider
    if not isinstance(meters, metrics.MeterProvider):
        raise refuse("meter_provider", "a MeterProvider of OpenTelemetry", meters)
    if not isinstance(tracers, trace.TracerProvider):
        raise refuse("tracer_provider", "a TracerProvider of OpenTelemetry", tracers)
    job.trace(ElementTracer(tracers.get_tracer(SCOPE), sample))
    _observe(job, meters)
    return job


# ---------------------------------------------------------------------- traces


class ElementTracer:
    """
    Begins a trace of an element, or goes on with the one that it was submitted in.

    Args:
        tracer: who records.
        sample: as for `instrument`.
    """

    def __init__(self, tracer: Tracer, sample: float) -> None:
        self._tracer = tracer
        self._sample = sample

    def begin(self, pipeline: str, step: str) -> Trace | None:
        """See `Tracer`."""
        from opentelemetry.trace import SpanKind, get_current_span

        outer = get_current_span()
        if outer.get_span_context().is_valid:
            if not outer.is_recording():
                return None
        elif random() >= self._sample:
            return None
        attributes = {"asyncstream.pipeline": pipeline, "asyncstream.step": step}
        span = self._tracer.start_span(f"accept {step}", kind=SpanKind.PRODUCER, attributes=attributes)
        is_recorded = span.is_recording()
        span.end()
        return _ElementTrace(self._tracer, span, pipeline) if is_recorded else None


class _ElementTrace:
    """The trace of one element, from the span of its acceptance."""

    def __init__(self, tracer: Tracer, accepted: RecordedSpan, pipeline: str) -> None:
        self._tracer = tracer
        self._accepted = accepted
        self._pipeline = pipeline

    def begin(self, what: str, step: str) -> Span:
        from opentelemetry.trace import set_span_in_context

        return _ElementSpan(
            self._tracer.start_span(
                f"{what} {step}",
                context=set_span_in_context(self._accepted),
                attributes={"asyncstream.pipeline": self._pipeline, "asyncstream.step": step},
            )
        )


class _ElementSpan:
    """What one step does with the element."""

    def __init__(self, span: RecordedSpan) -> None:
        self._span = span

    def activate(self) -> None:
        from opentelemetry.context import attach
        from opentelemetry.trace import set_span_in_context

        attach(set_span_in_context(self._span))  # for good: the context is that of one call

    def end(self, error: BaseException | None = None) -> None:
        from opentelemetry.trace import Status, StatusCode

        if error is not None:
            # neither its text nor its traceback, which quote elements
            self._span.set_attribute("error.type", type(error).__qualname__)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


# ---------------------------------------------------------------------- metrics


class _Observed:
    """The jobs that one meter provider shows, and what they last answered."""

    def __init__(self) -> None:
        self._jobs: WeakSet[Job] = WeakSet()
        self._adding = Lock()  # not while a job answers, which may wait for a loop that adds one
        self._lock = Lock()
        self._asked = -inf
        self._answer: dict[str, list[Metric]] = {}

    def add(self, job: Job) -> None:
        """Show this job, too."""
        with self._adding:
            self._jobs.add(job)

    def observe(self, told: Told, part: str, options: CallbackOptions) -> Iterable[Observation]:
        """
        Every series of a metric.

        Args:
            told: which metric.
            part: "count", "sum" or "bucket" of a histogram; "" of anything else.
            options: not of interest.
        """
        return [
            observation for metric in self._measured(told.name) for observation in _observations(metric, part)
        ]

    def _measured(self, name: str) -> list[Metric]:
        with self._lock:
            if monotonic() >= self._asked + FRESH:
                self._answer = {}
                with self._adding:
                    jobs = list(self._jobs)
                for job in jobs:
                    for metric in job.measure():
                        self._answer.setdefault(metric.name, []).append(metric)
                self._asked = monotonic()
            return self._answer.get(name, [])


_observed: WeakKeyDictionary[Any, _Observed] = WeakKeyDictionary()
"""By meter provider: each instrument is created once, however many jobs it shows."""


def _observe(job: Job, provider: MeterProvider) -> None:
    made = _Observed()
    observed = _observed.setdefault(provider, made)  # in one step: jobs may begin in several threads
    if observed is made:
        _create(provider.get_meter(SCOPE), observed)
    observed.add(job)


def _create(meter: Meter, observed: _Observed) -> None:
    for told in CATALOG:
        callback: Callable[[str], Any] = partial(partial, observed.observe, told)
        if told.kind == "histogram":
            for part, unit in (("count", "1"), ("sum", told.unit), ("bucket", "1")):
                meter.create_observable_counter(
                    f"{told.name}.{part}", [callback(part)], unit=unit, description=told.help
                )
        elif told.kind == "counter":
            meter.create_observable_counter(told.name, [callback("")], unit=told.unit, description=told.help)
        else:
            meter.create_observable_gauge(told.name, [callback("")], unit=told.unit, description=told.help)


def _observations(metric: Metric, part: str) -> Iterator[Observation]:
    from opentelemetry.metrics import Observation

    for point in metric.points:
        attributes = {f"asyncstream.{label}": value for label, value in point.labels.items()}
        value = point.value
        if not isinstance(value, Distribution):
            yield Observation(value, attributes)
        elif part == "count":
            yield Observation(value.count, attributes)
        elif part == "sum":
            yield Observation(value.total, attributes)
        else:
            for bound, count in value.cumulative():
                yield Observation(
                    count, attributes | {"asyncstream.le": "+Inf" if bound == inf else repr(bound)}
                )
