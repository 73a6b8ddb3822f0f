"""
What steps remember: tables, and the keyed state of user code in them.

Read `table` (how state is kept) and `tables` (all that a step remembers), then `descriptors` (what the user
names), `handles` (what user code reads and writes), `ttl` (how entries expire), `keyed` (all of it together);
`disk` and `database` keep what is larger than memory,
`division` is for runtimes that spread keys over several places, and `schema` for code that changes between
two runs.
"""

from asyncstream.state.database import Database, DiskState
from asyncstream.state.delta import Delta
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
from asyncstream.state.disk import DiskRows
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
from asyncstream.state.rows import MISSING
from asyncstream.state.schema import Change, Schema, adapted, compare, described
from asyncstream.state.table import Table
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
    "Database",
    "Delta",
    "DiskRows",
    "DiskState",
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
