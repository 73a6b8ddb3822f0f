"""
What a user says about checkpoints, checked when it is said.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeAlias

from asyncstream.checkpoint.directory import DirectoryStore
from asyncstream.checkpoint.journal_files import FolderFiles, JournalFiles
from asyncstream.checkpoint.parts import INLINE_BYTES
from asyncstream.checkpoint.sqlite import SqliteStore
from asyncstream.checkpoint.stores import CheckpointStore
from asyncstream.checkpoint.timely import TimelyStore
from asyncstream.codec import Codec, codec
from asyncstream.codec.own import OwnCodec
from asyncstream.connectors.writer import Ahead
from asyncstream.errors import PipelineError
from asyncstream.filesystem.folders import lasting
from asyncstream.operators.fingerprint import fingerprint
from asyncstream.validation import (
    Duration,
    choice,
    count,
    duration_seconds,
    file_path,
    flag,
    function,
    refuse,
    text,
)

__all__ = ("Checkpoints", "Place", "checkpoints_of")

Place: TypeAlias = str | os.PathLike[str]
"""Where to keep checkpoints, if nothing else is to be said: a directory, or an SQLite file that is there."""

_KEY_BYTES = 16
_EVERY = 10.0
"""Seconds between two checkpoints where only a place is given."""


@dataclass(frozen=True)
class Checkpoints:
    """
    How a job keeps what it must not lose, and where it goes on from.

    Attributes:
        store: where checkpoints are kept: a `DirectoryStore`, `SqliteStore`, or your own.
        every: how often one is taken: a `timedelta` or seconds; None: only when `job.checkpoint()` asks for
            one, and when the job ends.
        keep: how many are kept, the newest ones; at least 1. With 2 or more, the loss of one can be borne.
            Savepoints stay besides: see `Job.checkpoint`.
        savepoint: the checkpoint with which the job ends is a savepoint: it stays, for the way back from what
            comes after, until `asyncstream checkpoint delete` takes it.
        codec: how values become bytes: "json", or "pickle", which runs what the bytes say when it is read; or
            a `Codec` of your own, which must also keep what steps keep besides your values.
        types: dataclasses, NamedTuples, attrs classes, pydantic models, enums and exceptions that the values
            are made of; needed only for classes that are not found by name in a module that is imported, for
            a checkpoint imports none.
        key: a secret of at least 16 bytes, from outside the store: checkpoints are written with it, and only
            those that were are read. So with codec="pickle" only the holder of the key can have code run.
        tolerate: how many checkpoints in a row may fail; with the next one the job fails. At least 0.
        timeout: how long one may take, sinks and store together, before it counts as failed, and each answer
            of the store when the job starts: a `timedelta` or seconds.
        restore: where to start: "newest" goes on from the newest whole checkpoint, if there is one; "none"
            starts from the beginning, whatever is in the store; a number goes on from that checkpoint. Each
            start that says so does, also one after a crash, but for those of `restart=`.
        renamed: for steps that had another name when the checkpoint was taken: their new names, by the old. A
            checkpoint that was written with this says so, and is not renamed again.
        migrate: for steps that have changed so much that they cannot use what they remembered: functions that
            make of the old state one of the new step, by the step's present name. The state of a step with
            tables is a dict: under "tables", lists of `[namespace, rows]` by the names that `asyncstream
            checkpoint show` shows, where rows are lists of `[key, value]`; what else it has stays. None makes
            the step start from nothing. A function is not called for what it has made: a checkpoint names
            those that it was written with, and knows them again by their code, in one version of Python.
        allow_dropped: names of steps that are there no more, and whose state, elements included, may be lost.
        inline_bytes: up to which size a part of a step's state lies in the checkpoint itself; larger ones are
            kept by themselves, and written again only when they have changed.
        pipeline_was: the name that the pipeline had when the checkpoint was taken, if it had another.
        on_held: what to do when another job writes to the store: "refuse" to start, or "wait" until it has
            ended, or has not shown itself for the time of its `lease`; also while the store is out of reach.
        lease: how long this job may be silent (stopped, cut off from the store) before another one may take
            over: a `timedelta` or seconds. One that has died on the same machine is followed at once.
        ahead: what to do when a transactional sink holds results that the checkpoint does not know of,
            because it is another one, or there is none: "refuse" to start; "allow_behind": keep them, so that
            they are there twice when they are written again; "start_over": take them out of the sink.
        journal: a directory for the journals of async steps, which several jobs may share; None: beside the
            checkpoints of a `DirectoryStore` or `SqliteStore`.
    """

    store: CheckpointStore
    _: KW_ONLY
    every: Duration | None = None
    keep: int = 3
    savepoint: bool = False
    codec: Literal["json", "pickle"] | Codec = "json"
    types: Iterable[type] = ()
    key: bytes | None = field(default=None, repr=False)
    tolerate: int = 3
    timeout: Duration = 300.0
    restore: Literal["newest", "none"] | int = "newest"
    renamed: Mapping[str, str] = field(default_factory=dict)
    migrate: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    allow_dropped: Iterable[str] = ()
    inline_bytes: int = INLINE_BYTES
    pipeline_was: str | None = None
    on_held: Literal["refuse", "wait"] = "refuse"
    lease: Duration = 30.0
    ahead: Ahead = "refuse"
    journal: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.store, CheckpointStore) or isinstance(self.store, type):
            folder = self.store if isinstance(self.store, str | os.PathLike) else "checkpoints"
            raise refuse("store", "a checkpoint store", self.store, f"e.g. DirectoryStore({str(folder)!r})")
        if self.every is not None:
            duration_seconds("every", self.every)
        count("keep", self.keep)
        flag("savepoint", self.savepoint)
        if isinstance(self.types, Iterable):
            object.__setattr__(self, "types", tuple(self.types))
        values_codec = self.values_codec()
        if isinstance(values_codec, OwnCodec):
            values_codec.check_keeps()
        if self.key is not None and (not isinstance(self.key, bytes) or len(self.key) < _KEY_BYTES):
            got = len(self.key) if isinstance(self.key, bytes) else f"a {type(self.key).__name__}"
            # it is not to be shown
            raise PipelineError(f"key: expected at least {_KEY_BYTES} bytes, got {got}")
        count("tolerate", self.tolerate, least=0)
        duration_seconds("timeout", self.timeout)
        if self.restore not in ("newest", "none"):
            if isinstance(self.restore, str):
                raise refuse("restore", "'newest', 'none' or the number of a checkpoint", self.restore)
            count("restore", self.restore)
        count("inline_bytes", self.inline_bytes, least=0)
        if self.pipeline_was is not None:
            text("pipeline_was", self.pipeline_was)
        if self.journal is not None:
            journal = lasting(file_path("journal", self.journal, "a directory"))
            object.__setattr__(self, "journal", journal)
        choice("on_held", self.on_held, ("refuse", "wait"))
        duration_seconds("lease", self.lease)
        choice("ahead", self.ahead, ("refuse", "allow_behind", "start_over"))
        if isinstance(self.allow_dropped, str) or not isinstance(self.allow_dropped, Iterable):
            raise refuse("allow_dropped", "names of steps, as a list", self.allow_dropped)
        dropped = tuple(self.allow_dropped)  # which may be a view that is gone when a job restarts
        object.__setattr__(self, "allow_dropped", tuple(text("allow_dropped", name) for name in dropped))
        if not isinstance(self.migrate, Mapping):
            raise refuse("migrate", "functions by the names of steps", self.migrate)
        for name, convert in self.migrate.items():
            function(f"migrate[{name!r}]", convert, "state")
        if not isinstance(self.renamed, Mapping):
            raise refuse("renamed", "new names of steps by their old ones", self.renamed)
        for old, new in self.renamed.items():
            text("renamed", old)
            text("renamed", new)
        if len(set(self.renamed.values())) < len(self.renamed):
            raise PipelineError("renamed: two steps cannot both have become the same one")

    @property
    def migrations(self) -> dict[str, str]:
        """What tells each function of `migrate` from others, by the name of its step."""
        return {name: fingerprint(convert) for name, convert in self.migrate.items()}

    def journal_files(self) -> JournalFiles:
        """
        Where journals of finished calls are kept.

        Raises:
            PipelineError: if the store has no place for them, and none is given.
        """
        if self.journal is not None:
            return FolderFiles(self.journal)
        find: Callable[[], JournalFiles] | None = getattr(self.store, "journal_files", None)
        if find is None:
            raise PipelineError(
                f"journal: {self.store} has no place for a journal of finished calls; give one, "
                "Checkpoints(journal='directory')"
            )
        return find()

    @property
    def journals_by_default(self) -> bool:
        """Whether steps that say nothing of it have a journal: it has a place, and an end."""
        has_place = self.journal is not None or hasattr(self.store, "journal_files")
        return has_place and self.every is not None

    def values_codec(self) -> Codec:
        """The codec that values go through."""
        return codec(self.codec, self.types)

    @property
    def every_seconds(self) -> float | None:
        """`every` in seconds."""
        return None if self.every is None else duration_seconds("every", self.every)

    @property
    def lease_seconds(self) -> float:
        """`lease` in seconds."""
        return duration_seconds("lease", self.lease)

    def timely_store(self) -> CheckpointStore:
        """`store`, of which each call gets no more than `timeout`."""
        return TimelyStore(self.store, self.timeout_seconds)

    @property
    def timeout_seconds(self) -> float:
        """`timeout` in seconds."""
        return duration_seconds("timeout", self.timeout)


def checkpoints_of(name: str, value: object) -> Checkpoints:
    """
    What a user passed where checkpoints are wanted: settings, or only a place.

    Args:
        name: of the argument.
        value: a `Checkpoints`; or a path, for one every ten seconds there and everything else as by default.

    Raises:
        PipelineError: if it is neither.
    """
    if isinstance(value, Checkpoints):
        return value
    if not isinstance(value, str | os.PathLike) or not os.fspath(value):
        raise refuse(name, "Checkpoints(...) or the path of a directory", value)
    path = file_path(name, value, "a directory")
    return Checkpoints(
        store=SqliteStore(path) if os.path.isfile(path) else DirectoryStore(path), every=_EVERY
    )
