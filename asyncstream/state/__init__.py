"""
What steps remember: tables, and the keyed state of user code in them.

Read `table` (how state is kept) and `tables` (all that a step remembers), then `descriptors` (what the user
names), `handles` (what user code reads and writes), `ttl` (how entries expire), `keyed` (all of it together);
`division` is for runtimes that spread keys over several places, and `schema` for code that changes between
two runs.
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
from asyncstream.state.table import MISSING, Delta, Table
from asyncstream.state.tables import (
    Cell,
    Cut,
    Kept,
    Tables,
    divide_snapshot,
    plain_namespace,
    unite_snapshots,
)

__all__ = (
    "IMMUTABLE",
    "CELLS",
    "MISSING",
    "TIMERS",
    "TOTAL",
    "AggregatingDescriptor",
    "AggregatingState",
    "Aggregation",
    "Cell",
    "Change",
    "Common",
    "Cut",
    "Delta",
    "Each",
    "Frozen",
    "Kept",
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
    "Table",
    "Tables",
    "TimeToLive",
    "ValueDescriptor",
    "ValueState",
    "adapted",
    "compare",
    "described",
    "detached",
    "divide",
    "divide_snapshot",
    "freeze",
    "freeze_items",
    "plain_namespace",
    "unite",
    "unite_snapshots",
)
