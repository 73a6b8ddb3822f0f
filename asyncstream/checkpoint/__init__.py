"""
What is kept of a running pipeline, where, and for how long.

Read `format` (the bytes), then `stores` (where they are), `history` (which of them to go on from),
`matching` (what of it is for which step) and `settings` (what a user chooses). Who takes a checkpoint, and
when, is the runtime's business.
"""

from asyncstream.checkpoint.format import CheckpointInfo, StepInfo
from asyncstream.checkpoint.history import History
from asyncstream.checkpoint.matching import fit, match
from asyncstream.checkpoint.settings import Checkpoints
from asyncstream.checkpoint.stores import CheckpointStore, DirectoryStore, MemoryStore, SqliteStore

__all__ = (
    "CheckpointInfo",
    "CheckpointStore",
    "Checkpoints",
    "DirectoryStore",
    "History",
    "MemoryStore",
    "SqliteStore",
    "StepInfo",
    "fit",
    "match",
)
