"""
What a function for `foreachBatch` can know of the micro-batch that it is given: the query, and whether it has
written something else of it to the same place; and its rows, computed once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from uuid import UUID

from asyncstream.errors import PipelineError
from asyncstream.runtime.spark.session import is_remote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ("Rows", "Writing", "computed", "number_of", "query_of")

Rows: TypeAlias = "DataFrame | Mapping[str, DataFrame]"
"""Those of a micro-batch; of a plan's `write_stream`, by the names of the outputs."""

REMEMBERED: Final = 100
"""Queries, each at a place, of which this process knows what it has written last."""


@dataclass
class _Latest:
    """
    What this process has written last of a query at a place: the run and the number, and the parts.

    A run of a query hands each micro-batch over once: what comes again are the same rows, for a function that
    tries again, or it is another part. There are several where databases have tables of one name.
    """

    batch: tuple[str, int] | None = None
    parts: list[Any] = field(default_factory=list)


@lru_cache(REMEMBERED)
def _latest(where: str, query: str) -> _Latest:
    return _Latest()


class Writing:
    """
    What is written of a micro-batch at one place, by what; by its number a second part would pass for the
    first.
    """

    def __init__(self, where: str, query: str, rows: Rows, number: int, writer: object = None) -> None:
        self._where = where
        self._latest = _latest(where, query)
        run = _run_of(rows)
        self._batch = None if run is None else (run, number)
        self._part = writer, None if run is None else _meaning(rows)

    @property
    def may_be_known(self) -> bool:
        """Whether an earlier run of the query may have written it: this one has written nothing yet."""
        latest = self._latest.batch
        return self._batch is None or latest is None or latest[0] != self._batch[0]

    def check_first(self, advice: str) -> None:
        """Raises `PipelineError` if this run of the query has written another part of the micro-batch."""
        latest, batch = self._latest, self._batch
        if batch is not None and latest.batch == batch and self._part not in latest.parts:
            raise PipelineError(
                f"{self._where}: something of micro-batch {batch[1]} has been written there a moment "
                f"ago, and these rows, which have not, would be taken for the same: {advice}"
            )

    def done(self) -> None:
        if self._batch is None:
            return
        if self._latest.batch != self._batch:
            self._latest.batch, self._latest.parts = self._batch, []
        self._latest.parts.append(self._part)


def _meaning(rows: Rows) -> Any:
    """What rows are computed from, and how: the same of another frame that does the same."""
    if isinstance(rows, Mapping):
        return {name: _meaning(frame) for name, frame in rows.items()}
    return rows.semanticHash()


def number_of(rows: Rows) -> int | None:
    """The number of the micro-batch that is under way; None: there is none, or Spark does not tell it."""
    found = _property(rows, "streaming.sql.batchId")
    return None if found is None else int(found)


def _property(rows: Rows, name: str) -> str | None:
    """What Spark says of the micro-batch that this is; None over Spark Connect."""
    try:
        found = _one_of(rows).sparkSession.sparkContext.getLocalProperty(name)
    except Exception:
        return None
    return None if found is None else str(found)


def _one_of(rows: Rows) -> DataFrame:
    return next(iter(rows.values())) if isinstance(rows, Mapping) else rows


def _run_of(rows: Rows) -> str | None:
    """The run of the query; None where Spark does not tell it, as in a job group of the user's."""
    if is_remote(_one_of(rows)):
        return ""  # over Spark Connect each run has a process of its own for what is given to `foreachBatch`
    try:
        return str(UUID(_property(rows, "spark.jobGroup.id") or ""))
    except ValueError:
        return None


def query_of(rows: Rows) -> str:
    """The identity of the query whose micro-batch this is."""
    found = _property(rows, "sql.streaming.queryId")
    if found is None:
        raise PipelineError(
            "Spark does not tell here which query this is a micro-batch of: say query='a name for it', "
            "another one with each new checkpoint"
        )
    return found


@contextmanager
def computed(rows: DataFrame) -> Iterator[DataFrame]:
    """
    The rows, all of which have been computed, and are not computed again in this block.

    Where what Spark has shuffled is lost with an executor, calls are made again, and may answer otherwise.
    Spark then does all anew that has been made of the first answers, or fails; but it takes what is cached as
    it is, and computes what is missing there from the second ones: rows would be lost, and others twice. So
    they are not cached, but a checkpoint: one job, whose last stage is theirs, and nothing to compute them
    from again.
    """
    kept = rows.localCheckpoint()  # of all: a state store that was read in part cannot commit
    try:
        yield kept
    finally:
        with suppress(Exception):  # over Spark Connect it goes with the frame
            kept._jdf.queryExecution().analyzed().rdd().unpersist(False)
