"""
Several streams in one step.

In reading order: `co_process` (functions of the user's with several inputs) and `broadcast` (one of the
inputs is for all keys).
"""

from asyncstream.joins.broadcast import (
    BroadcastContext,
    BroadcastSpec,
    BroadcastState,
    KeyedBroadcastProcessFunction,
)
from asyncstream.joins.co_process import CoProcessSpec, KeyedCoProcessFunction

__all__ = (
    "BroadcastContext",
    "BroadcastSpec",
    "BroadcastState",
    "CoProcessSpec",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
)
