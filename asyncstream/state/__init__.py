"""
What steps remember: tables, and the keyed state of user code in them.

Read `table` (how state is kept) and `tables` (all that a step remembers), then `descriptors` (what the user
names), `handles` (what user code reads and writes), `ttl` (how entries expire), `keyed` (all of it together);
`disk`, `stored`, `database` and `stored_file` keep what is larger than memory, `schema` is for code that
changes between two runs, and `upgrade` for what earlier versions kept.
"""

from asyncstream.state.capture import IMMUTABLE, Frozen, detached, freeze
from asyncstream.state.database import Database, DiskState
from asyncstream.state.descriptors import (
    AggregatingDescriptor,
    Aggregation,
    ListDescriptor,
    MapDescriptor,
    ReducingDescriptor,
    StateDescriptor,
    ValueDescriptor,
)
from asyncstream.state.disk import DiskRows
from asyncstream.state.generations import Delta
from asyncstream.state.handles import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from asyncstream.state.keyed import KeyedState
from asyncstream.state.resting import RestingRows
from asyncstream.state.rows import MISSING, SLICE, OldRows, plain_namespace
from asyncstream.state.schema import Change, Schema, adapted, compare, described
from asyncstream.state.stored import StateBackend, Stored
from asyncstream.state.stored_file import StoredFile
from asyncstream.state.table import Table
from asyncstream.state.tables import (
    Cell,
    Cut,
    Kept,
    Tables,
    divide_snapshot,
    is_snapshot,
    unite_snapshots,
)
from asyncstream.state.ttl import TimeToLive
from asyncstream.state.weights import Scale

__all__ = (
    "IMMUTABLE",
    "MISSING",
    "SLICE",
    "AggregatingDescriptor",
    "AggregatingState",
    "Aggregation",
    "Cell",
    "Change",
    "Cut",
    "Database",
    "Delta",
    "DiskRows",
    "DiskState",
    "Frozen",
    "Kept",
    "KeyedState",
    "ListDescriptor",
    "ListState",
    "MapDescriptor",
    "MapState",
    "OldRows",
    "ReducingDescriptor",
    "ReducingState",
    "RestingRows",
    "Scale",
    "Schema",
    "State",
    "StateBackend",
    "StateDescriptor",
    "Stored",
    "StoredFile",
    "Table",
    "Tables",
    "TimeToLive",
    "ValueDescriptor",
    "ValueState",
    "adapted",
    "compare",
    "described",
    "detached",
    "divide_snapshot",
    "freeze",
    "is_snapshot",
    "plain_namespace",
    "unite_snapshots",
)
