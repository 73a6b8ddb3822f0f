"""
A job's metrics and traces for the tools that services are watched with: Prometheus and OpenTelemetry.

Nothing is pushed and nothing runs beside the job: exporters read `job.measure()` when they are asked. The
libraries are optional: `asyncstream[prometheus]`, `asyncstream[opentelemetry]`.
"""

from asyncstream.telemetry.opentelemetry import ElementTracer, instrument
from asyncstream.telemetry.prometheus import JobCollector, exposition

__all__ = ("ElementTracer", "JobCollector", "exposition", "instrument")
