"""
How a source or a sink that anybody may write conducts itself: what runtimes look at before they believe it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from asyncstream.connectors.base import Sink, SourceBatch
from asyncstream.connectors.memory import one_value
from asyncstream.errors import safe_repr

__all__ = ("fault_of", "way_to_write")


def fault_of(batch: Any, rejects: bool) -> str | None:
    """What is wrong with what a `read` brought, or None; `rejects`: the source may reject."""
    if not isinstance(batch, SourceBatch):
        return f"read() gave {safe_repr(batch)} instead of a SourceBatch, or None at the end of input"
    values: Any = batch.values
    timestamps: Any = batch.timestamps
    rejected: Any = batch.rejected
    split: Any = batch.split
    if type(values) is not list and (one_value(values) or not isinstance(values, Sequence)):
        return f"a SourceBatch has {safe_repr(values)} as its values instead of a list"
    if timestamps is not None:
        if not isinstance(timestamps, Sequence):
            return f"a SourceBatch has {safe_repr(timestamps)} as its timestamps instead of a list"
        if len(values) != len(timestamps):
            return (
                f"a SourceBatch has {len(values)} values and {len(timestamps)} timestamps instead of one each"
            )
        # the types in one go: a look at each timestamp would be felt in a batch of thousands
        if not _WHOLE.issuperset(map(type, timestamps)):
            for index, timestamp in enumerate(timestamps):
                if isinstance(timestamp, bool) or not isinstance(timestamp, int | None):
                    return (
                        f"value {index} of a SourceBatch has {safe_repr(timestamp)} as its timestamp instead "
                        "of an int, milliseconds since the epoch, or None"
                    )
    if not isinstance(split, str | None):
        return f"a SourceBatch has {safe_repr(split)} as its split instead of the name of one"
    if not isinstance(rejected, Sequence):
        return f"a SourceBatch has {safe_repr(rejected)} as what was rejected instead of a list"
    if rejected and not rejects:
        return (
            f"a SourceBatch has rejected {safe_repr(rejected[0])}, but the source does not say "
            "rejects = True (rejects=True for a GlobSource): it would be lost"
        )
    return None


_WHOLE = frozenset({int, type(None)})


def way_to_write(sink: Sink[Any]) -> Literal["write", "write_batch"] | None:
    """Which of its two ways to write a sink is to be written by; None: it defines neither."""
    for kind in type(sink).__mro__:
        if kind is Sink:
            return None
        if "write_batch" in vars(kind):
            return "write_batch"
        if "write" in vars(kind):
            return "write"
    return None
