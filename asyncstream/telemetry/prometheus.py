"""
Metrics in the form of Prometheus: a collector for a registry, and the text of a scrape.

    asyncstream.call.duration, in s     asyncstream_call_duration_seconds_bucket, _sum, _count
    asyncstream.elements.read           asyncstream_elements_read_total
    asyncstream.checkpoint.size, in By  asyncstream_checkpoint_size_bytes_bucket, ...

After Prometheus' conventions for names: base units, spelt out, at the end; `_total` for what only grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from asyncstream.errors import module_of
from asyncstream.metrics import Distribution, Metric
from asyncstream.validation import refuse

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

__all__ = ("JobCollector", "Measured", "exposition")

UNITS = {"s": "seconds", "By": "bytes"}
"""Units that end a name, as Prometheus spells them; others are not spelt."""


class Measured(Protocol):
    """What can be measured: a `Job`."""

    def measure(self) -> tuple[Metric, ...]:
        """Every metric as it stands."""


class JobCollector:
    """
    Collects the metrics of jobs for a registry of `prometheus_client`, which asks for them at each scrape.

        REGISTRY.register(JobCollector(job))

    Args:
        jobs: whose; they are told apart by the label `pipeline`, so give their pipelines names. One that is
            given twice is shown once.

    Raises:
        PipelineError: if one of them is no job, or, by a scrape, if two pipelines have one name.
        MissingExtra: if prometheus_client is not installed.
    """

    def __init__(self, *jobs: Measured) -> None:
        for job in jobs:
            if not callable(getattr(job, "measure", None)):
                raise refuse("jobs", "a Job, with a method `measure`", job)
        module_of("prometheus", "prometheus_client", "Prometheus")
        self._jobs = list({id(job): job for job in jobs}.values())  # a series is scraped once, or not at all

    def collect(self) -> Iterable[Family]:
        """One family for each metric."""
        metrics = sorted((metric for job in self._jobs for metric in job.measure()), key=attrgetter("name"))
        for _, same in groupby(metrics, key=attrgetter("name")):
            each = list(same)
            pipelines = [metric.points[0].labels.get("pipeline") for metric in each]
            if len(set(pipelines)) < len(pipelines):
                raise refuse("jobs", "pipelines of different names", pipelines, "Pipeline(name) gives one")
            yield _family(each)


def exposition(*jobs: Measured) -> tuple[bytes, str]:
    """
    What a scrape of these jobs, and nothing else, is answered with: the body, and its content type.

    Args:
        jobs: one or several, whose pipelines have different names.

    Raises:
        PipelineError: if two of them have not.
        MissingExtra: if prometheus_client is not installed.
    """
    collector = JobCollector(*jobs)
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _family(metrics: list[Metric]) -> Family:
    """One metric, of one job or of several."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    first = metrics[0]
    unit = UNITS.get(first.unit)
    name = first.name.replace(".", "_") + ("" if unit is None else f"_{unit}")
    points = [point for metric in metrics for point in metric.points]
    labels = list(points[0].labels)
    if first.kind == "histogram":
        family = HistogramMetricFamily(name, first.help, labels=labels)
        for point in points:
            if isinstance(point.value, Distribution):
                bounds = point.value.cumulative()
                family.add_metric(
                    [point.labels[label] for label in labels],
                    buckets=[("+Inf" if bound == inf else repr(bound), count) for bound, count in bounds],
                    sum_value=point.value.total,
                )
        return family
    kind = CounterMetricFamily if first.kind == "counter" else GaugeMetricFamily
    numbers = kind(name, first.help, labels=labels)
    for point in points:
        if not isinstance(point.value, Distribution):
            numbers.add_metric([point.labels[label] for label in labels], point.value)
    return numbers
