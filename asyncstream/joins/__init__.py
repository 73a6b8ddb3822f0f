"""
Several streams in one step.

In reading order: `co_process` (functions of the user's with several inputs) and `broadcast` (one of the
inputs is for all keys); `interval` (pairs within bounds of time) and `as_of` (each element with the version
that is valid at its time), both on `timed`; `window_join` (what is in the same window).
"""

from asyncstream.joins.as_of import AsOfSpec
from asyncstream.joins.broadcast import (
    BroadcastContext,
    BroadcastSpec,
    BroadcastState,
    KeyedBroadcastProcessFunction,
)
from asyncstream.joins.co_process import CoProcessSpec, KeyedCoProcessFunction
from asyncstream.joins.interval import LATE_LEFT, LATE_RIGHT, How, IntervalJoinSpec
from asyncstream.joins.window_join import CoGrouped, Made, WindowJoinSpec

__all__ = (
    "LATE_LEFT",
    "LATE_RIGHT",
    "AsOfSpec",
    "BroadcastContext",
    "BroadcastSpec",
    "BroadcastState",
    "CoGrouped",
    "CoProcessSpec",
    "How",
    "IntervalJoinSpec",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "Made",
    "WindowJoinSpec",
)
