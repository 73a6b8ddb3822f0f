"""
The async wait: many calls of an async function at once, their results in the order that was asked for.

Read `queues` first (what order means), then `operator` (the theory of the worker pool stands above it).
Other systems call this `mapAsync`; the name is Flink's.
"""

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
    "OnTimeout",
    "OrderedQueue",
    "OutputOrder",
    "PromiseQueue",
    "SegmentedQueue",
    "UnorderedQueue",
)
