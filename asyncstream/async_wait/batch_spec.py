"""
The spec of a step of batch jobs.
"""

from __future__ import annotations

from dataclasses import dataclass

from asyncstream.async_wait.batch_jobs import COUNTED, BatchJobs
from asyncstream.async_wait.batch_settings import BatchSettings
from asyncstream.operators.failures import routed_to
from asyncstream.operators.spec import Calls, Spec
from asyncstream.state.schema import Schema

__all__ = ("BatchJobsSpec",)


@dataclass(frozen=True)
class BatchJobsSpec(Spec):
    """
    Hands elements to a provider in jobs.

    Attributes:
        settings: how.
    """

    settings: BatchSettings

    operator = BatchJobs
    counters = COUNTED
    needs_loop = "has jobs at a provider that it asks for now and then"

    def build(self) -> BatchJobs:
        return BatchJobs(self.settings)

    @property
    def required(self) -> tuple[str, ...]:
        return routed_to(self.settings.on_error)

    @property
    def schema(self) -> Schema:
        return Schema(settings={})

    @property
    def calls(self) -> Calls:
        settings = self.settings
        return Calls(settings.jobs, settings.order.value, is_per_key=False, is_opened=bool(settings.opened))
