"""
How far a job has come: what its sources have read, of how much, and what is still on its way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from asyncstream.operators.base import Operator
from asyncstream.runtime.aio.reading import SourceDriver

__all__ = ("JobProgress", "SourceProgress", "progress_of")


@dataclass(frozen=True)
class SourceProgress:
    """
    How far a source has been read.

    Attributes:
        name: its step.
        read: how many elements this job has read of it.
        share: how much of it is behind where it is read, from 0 to 1, what earlier jobs have read included;
            None: it does not know how much there is.
    """

    name: str
    read: int
    share: float | None


@dataclass(frozen=True)
class JobProgress:
    """
    How far a job has come.

    Attributes:
        sources: in the order of the pipeline.
        in_flight: elements that were accepted and are not finished: they wait, are in a call, or have a
            result that is not written yet. Not those that windows hold.
        failed: elements on which a function or a sink has failed, timeouts included, and what a source has
            rejected.
    """

    sources: tuple[SourceProgress, ...]
    in_flight: int
    failed: int

    @property
    def read(self) -> int:
        """How many elements this job has read."""
        return sum(source.read for source in self.sources)


def progress_of(parts: Mapping[str, SourceDriver | Operator]) -> JobProgress:
    """How far the job has come whose steps are run by `parts`, by name."""
    sources: list[SourceProgress] = []
    in_flight = failed = 0
    for name, part in parts.items():
        counts = part.metrics()
        if isinstance(part, SourceDriver):
            sources.append(SourceProgress(name, counts["read"], part.share()))
            failed += counts.get("rejected", 0)
        else:
            where = part.whereabouts()  # of elements alone: metrics count watermarks, which take room, too
            in_flight += 0 if where is None else sum(where.waiting().values())
            failed += counts.get("failed", 0) + counts.get("timed_out", 0)
    return JobProgress(tuple(sources), in_flight, failed)
