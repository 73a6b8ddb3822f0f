"""
What steps remember: tables, and the keyed state of user code in them.

In reading order:

| modules | what they are |
|---|---|
| `table`, `generations` | one table, as its step sees it, and by the age of its rows: young, frozen, old |
| `rows`, `key_table` | old rows in memory; a table of keys without values |
| `tables`, `snapshots` | all that a step remembers; as plain data, and divided by key |
| `timer_queue` | timers, over a table |
| `descriptors`, `handles`, `ttl`, `keyed` | what user code names, reads and writes; how it expires; all |
| `disk`, `disk_entries` | old rows on disk; their names, and what stands under them |
| `stored`, `database`, `stored_file` | bytes under names: what a place for them promises; RocksDB; one file |
| `capture`, `keys`, `weights` | values as they are now; keys that would not be found again; bytes of memory |
| `schema`, `upgrade` | code that changes between two runs; earlier versions |
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
from asyncstream.state.generations import Delta, OldRows
from asyncstream.state.handles import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from asyncstream.state.keyed import KeyedState
from asyncstream.state.rows import MISSING, SLICE, plain_namespace
from asyncstream.state.schema import Change, Schema, adapted, compare, described
from asyncstream.state.snapshots import divide_snapshot, is_snapshot, unite_snapshots
from asyncstream.state.stored import StateBackend, Stored
from asyncstream.state.stored_file import StoredFile
from asyncstream.state.table import Follows, Table
from asyncstream.state.tables import Cell, Cut, Kept, Tables
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
    "Follows",
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
