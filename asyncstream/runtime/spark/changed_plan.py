"""
What Spark says of a plan that is not that of its checkpoint, in words about the plan.

A step that has changed is refused by the tasks that find its state (`worker.group_head`). Spark itself looks
at what it knows of, before any task runs: how many streams are read, and from which folders, how many
operators have state, and by which time. It tells that in words of its own, which say nothing of steps and of
how to go on.
"""

from __future__ import annotations

import re
from typing import Final

from asyncstream.runtime.spark.worker.group_log import WAY_OUT

__all__ = ("changed_plan_in",)

_STREAMS: Final = re.compile(
    r"There are \[(\d+)\] sources in the checkpoint offsets and now there are \[(\d+)\] sources"
)

_OPERATORS: Final = re.compile(
    r"\[STREAMING_STATEFUL_OPERATOR_(?:NOT_MATCH_IN_STATE_METADATA|MISSING_STATE_DIRECTORY)\](?s:.*?)"
    r"(?:Stateful operators in the metadata: \[(.*)\]; )?Stateful operators in current batch: \[(.*)\]"
)

_FOLDER: Final = re.compile(
    r"\[STREAM_FAILED\].*Wrong basePath (.*) for the root path: (.*?)(?: SQLSTATE: .*)?$", re.MULTILINE
)

_TIME: Final = re.compile(r"Cannot change timeMode from (\w+) to (\w+) between restarts")

_KEYED: Final = "transformWithStateInPySpark"
"""What Spark calls a keyed stage."""

_TIMES: Final = {"EventTime": "event time", "ProcessingTime": "processing time", "NoTime": "no time"}

_NOTHING_TO_SAVE: Final = (
    "undo the change, or begin with a new checkpointLocation, behind what has been read; if there was state, "
    "the folder 'state' is gone"
)


def changed_plan_in(text: str) -> str:
    """How a plan differs from that of its checkpoint, if the query has failed for that; else empty."""
    if found := _STREAMS.search(text):
        was, now = found.groups()
        return _told(
            f"reads another number of streams: {was} there and {now} here, where start_from= counts as one, "
            "and stays for as long as the checkpoint that began with it; so do the names of several inputs"
        )
    if found := _OPERATORS.search(text):
        before, after = (part.count(_KEYED) for part in found.groups(""))
        if before != after:
            return _told(
                f"has another number of keyed stages: {before} there and {after} here, where plan.describe() "
                "shows them with their steps",
                WAY_OUT if before else _NOTHING_TO_SAVE,
            )
    if found := _FOLDER.search(text):
        now, was = found.groups()
        return _told(
            f"has read {was} where this one reads {now}; of several inputs, the order of their names tells "
            "which is which"
        )
    if found := _TIME.search(text):
        was, now = (_TIMES.get(mode, mode) for mode in found.groups())
        return _told(f"goes by another time: its keyed steps by {was}, and those of this one by {now}")
    return ""


def _told(difference: str, way_out: str = WAY_OUT) -> str:
    return f"CheckpointError: this stream's checkpoint is of a plan that {difference}; {way_out}"
