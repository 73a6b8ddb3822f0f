"""
The async wait: many calls of an async function at once, their results in the order that was asked for.

Other systems call this `mapAsync`; the name is Flink's. In reading order:

| modules | what they are |
|---|---|
| `queues`, `promise` | what order means; an element between its acceptance and its emission |
| `operator`, `pool`, `worker` | the step, with the theory of the worker pool above it; the pool; one of it |
| `inbox`, `blocks`, `block_calls` | elements that are simply to be called, many at a time |
| `promise_calls`, `key_serializer` | elements of which each must be known; one call of a key at a time |
| `way_out`, `holding` | what has begun, until it leaves; what is held, here and in batch jobs |
| `deadlines`, `outcomes`, `tasks`, `own_task` | calls in time; calls that fail, will not end, need a task |
| `copies`, `entries`, `journaled` | what is called with, kept in snapshots, written down when it has ended |
| `timing`, `whereabouts` | how long calls take; where elements are |
| `settings`, `spec` | what a user asks for; the step, as a plan knows it |
| `batch_jobs`, `batch_settings`, `batch_spec` | calls that take hours: jobs at a provider, parked |
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
