"""
What is kept of a running pipeline, where, and for how long.

Read `parts`, `format` and `seal` (the bytes), then `stores` (what a store promises; `directory` and `sqlite`
keep it), `history` (which checkpoints there are, and how one is added), `matching` (what of one is for which
step) and `settings` (what a user chooses). The runtime decides when a checkpoint is taken.
"""

from asyncstream.checkpoint.directory import DirectoryStore
from asyncstream.checkpoint.format import CheckpointInfo, StepInfo
from asyncstream.checkpoint.history import History
from asyncstream.checkpoint.matching import fit, match
from asyncstream.checkpoint.settings import Checkpoints, Place, checkpoints_of
from asyncstream.checkpoint.sqlite import SqliteStore
from asyncstream.checkpoint.stores import CheckpointStore, MemoryStore

__all__ = (
    "CheckpointInfo",
    "CheckpointStore",
    "Checkpoints",
    "DirectoryStore",
    "History",
    "MemoryStore",
    "Place",
    "SqliteStore",
    "StepInfo",
    "checkpoints_of",
    "fit",
    "match",
)
