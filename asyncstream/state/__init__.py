"""
Keyed state: values that an operator keeps for each key, and for each namespace (a window) of a key.

Read `descriptors` (what the user names), `handles` (what user code reads and writes), `ttl` (how entries
expire), then `keyed` (the store behind them); `division` is for runtimes that spread keys over several
places, and `schema` for code that changes between two runs.
"""

from asyncstream.state.descriptors import (
    AggregatingDescriptor,
    Aggregation,
    ListDescriptor,
    MapDescriptor,
    ReducingDescriptor,
    StateDescriptor,
    TimeToLive,
    ValueDescriptor,
)
from asyncstream.state.detached import IMMUTABLE, detached
from asyncstream.state.division import CELLS, TIMERS, TOTAL, Common, Each, Keyed, Layout, divide, unite
from asyncstream.state.frozen import Frozen, freeze, freeze_items
from asyncstream.state.handles import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from asyncstream.state.keyed import KeyedState
from asyncstream.state.schema import Change, Schema, adapted, compare, described

__all__ = (
    "IMMUTABLE",
    "CELLS",
    "TIMERS",
    "TOTAL",
    "AggregatingDescriptor",
    "AggregatingState",
    "Aggregation",
    "Change",
    "Common",
    "Each",
    "Frozen",
    "Keyed",
    "KeyedState",
    "Layout",
    "ListDescriptor",
    "ListState",
    "MapDescriptor",
    "MapState",
    "ReducingDescriptor",
    "ReducingState",
    "Schema",
    "State",
    "StateDescriptor",
    "TimeToLive",
    "ValueDescriptor",
    "ValueState",
    "adapted",
    "compare",
    "described",
    "detached",
    "divide",
    "freeze",
    "freeze_items",
    "unite",
)
