"""
What is kept of a running pipeline, where, and for how long. The runtime decides when a checkpoint is taken.

In reading order:

| modules | what they are |
|---|---|
| `parts`, `segments` | what a step remembers as bytes; its tables, as what has changed |
| `chains` | the parts of one table: a base and what has changed since, compacted |
| `format`, `seal` | a checkpoint: a manifest that names its parts, perhaps under a key |
| `stores`, `directory`, `sqlite` | what a store promises; three that keep it |
| `timely` | a store that is not waited for without end |
| `history` | which checkpoints there are; how one is read, added and let go |
| `matching`, `settings` | what of one is for which step; what a user chooses |
| `journal`, `journal_files`, `journal_checks` | calls that ended between two checkpoints |
"""

from asyncstream.checkpoint.directory import DirectoryStore
from asyncstream.checkpoint.format import CheckpointInfo, StepInfo
from asyncstream.checkpoint.history import History
from asyncstream.checkpoint.matching import fit, match, migration, noted, with_new_names
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
    "migration",
    "noted",
    "with_new_names",
)
