"""
The async wait: many calls of an async function at once, their results in the order that was asked for.

Read `queues` first (what order means), then `operator` (the theory of the worker pool stands above it)
and `pool` (its workers).
`batch_jobs` is for calls that take hours: jobs at a provider, parked in checkpoints.
Other systems call this `mapAsync`; the name is Flink's.
"""

from asyncstream.async_wait.batch_jobs import BatchJobs
from asyncstream.async_wait.batch_settings import BatchSettings
from asyncstream.async_wait.batch_spec import BatchJobsSpec
from asyncstream.async_wait.operator import AsyncWaitOperator
from asyncstream.async_wait.queues import OrderedQueue, PromiseQueue, SegmentedQueue, UnorderedQueue
from asyncstream.async_wait.settings import (
    AsyncWaitOptions,
    AsyncWaitSettings,
    OnTimeout,
    OutputOrder,
)
from asyncstream.async_wait.spec import AsyncWaitSpec

__all__ = (
    "AsyncWaitOperator",
    "AsyncWaitOptions",
    "AsyncWaitSettings",
    "AsyncWaitSpec",
    "BatchJobs",
    "BatchJobsSpec",
    "BatchSettings",
    "OnTimeout",
    "OrderedQueue",
    "OutputOrder",
    "PromiseQueue",
    "SegmentedQueue",
    "UnorderedQueue",
)
