"""
Numbers the elements of a source, so that each is known by its number in this run and in those that follow.

The number counts from the beginning of the run that had no checkpoint to go on from. A checkpoint holds it
with the source's position: the elements behind that position are read again, and get the same numbers. A
random text made at the beginning goes with it, so that a job that starts anew, perhaps with another file of
the same name, has other numbers. The elements of a source that cannot be read again have those of this run
only: other elements take their places after a crash. Where a source has splits, which come mixed in another
order the next time, the elements of each are numbered by themselves; those of one that begins anew go on
from a number by chance, for the next ones may have been given to what was there before. By another one after
a crash before the next checkpoint: a service that did their work does it again, where it would do none.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from typing import Any, Final

from asyncstream.connectors.base import SourceBatch
from asyncstream.elements import Timestamps
from asyncstream.operators.origins import Origin, digest, placed

__all__ = ("Numbering", "position_in", "with_position")

_KEY: Final = "asyncstream numbering"
"""Tells what a checkpoint holds of a source that is numbered from a position of the source's own."""


_BITS: Final = 62
"""Of a number by chance; what is counted on from there is a whole number of JSON still."""


class Numbering:
    """The numbers of one source's elements."""

    def __init__(self, pipeline: str, source: str) -> None:
        self._root = digest(pipeline, source, os.urandom(16), size=8)
        self._count = 0
        self._of_splits: dict[str, int] = {}

    def number(self, batch: SourceBatch[Any]) -> Timestamps:
        """The timestamps of a batch, with its elements' origins; those that it brings along it keeps."""
        root, size, split = self._root, len(batch.values), batch.split
        origins: list[Origin | None]
        if split is None:
            first = self._count
            self._count += size
            origins = [(root, number) for number in range(first, first + size)]
        else:
            first = self._of_splits.get(split, 0)
            self._of_splits[split] = first + size
            origins = [(root, split, number) for number in range(first, first + size)]
        for place, origin in batch.origins.items():
            origins[place] = origin
        return placed(batch.timestamps, origins)

    def start_over(self, split: str) -> None:
        """The next elements of a split have numbers that nothing under its name has had."""
        self._of_splits[split] = secrets.randbits(_BITS)

    def saved(self, position: Any) -> Any:
        """What a checkpoint holds of a source that stands at `position`."""
        of_splits = [dict(self._of_splits)] if self._of_splits else []
        return {_KEY: [self._root, self._count, *of_splits], "position": position}

    def restore(self, saved: Any) -> None:
        """Go on as `saved` says, if it was numbered then."""
        if _is_numbered(saved):
            self._root, self._count, *of_splits = saved[_KEY]
            self._of_splits = dict(of_splits[0]) if of_splits else {}


def _is_numbered(saved: Any) -> bool:
    return isinstance(saved, Mapping) and _KEY in saved


def position_in(saved: Any) -> Any:
    """The source's own position in what a checkpoint holds of it."""
    return saved["position"] if _is_numbered(saved) else saved


def with_position(saved: Any, position: Any) -> Any:
    """`saved` with another position of the source."""
    return {**saved, "position": position} if _is_numbered(saved) and position is not None else position
