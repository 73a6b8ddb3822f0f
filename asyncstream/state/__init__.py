"""
Keyed state: values that an operator keeps for each key, and for each namespace (a window) of a key.

Read `descriptors` (what the user names), then `keyed` (the store and its handles); `division` is for
runtimes that spread keys over several places.
"""

from asyncstream.state.descriptors import (
    AggregatingDescriptor,
    Aggregation,
    ListDescriptor,
    MapDescriptor,
    ReducingDescriptor,
    StateDescriptor,
    ValueDescriptor,
)
from asyncstream.state.detached import IMMUTABLE, detached
from asyncstream.state.division import CELLS, TIMERS, TOTAL, Common, Each, Keyed, Layout, divide, unite
from asyncstream.state.frozen import Frozen, freeze, freeze_items
from asyncstream.state.keyed import (
    AggregatingState,
    KeyedState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)

__all__ = (
    "IMMUTABLE",
    "CELLS",
    "TIMERS",
    "TOTAL",
    "AggregatingDescriptor",
    "AggregatingState",
    "Aggregation",
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
    "State",
    "StateDescriptor",
    "ValueDescriptor",
    "ValueState",
    "detached",
    "divide",
    "freeze",
    "freeze_items",
    "unite",
)
