"""
The tables of key groups that a worker holds in memory from one micro-batch to the next, decoded.

Decoded rows are some fifteen times as large as in the log: a tumbling window of a key takes 10 to 20 bytes
there and 200 in memory. So tables are weighed as they are in memory, by a sample of their rows, and anew when
the log has been rewritten or has grown by a quarter.

There is a bound for all groups of a worker, and beyond it those go that it has not had for longest. That
alone would be of no use where a worker has more groups in turn than there is room for: each would push out
the one that comes next. So a group *has room* if there would be as much for all others that this worker has
had since this one's turn before. What has none goes into a file, which is there for other workers too. A
group that comes for the first time has room, and those of queries that have ended are no others any more.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from asyncstream.runtime.spark.wire.values import Classes
from asyncstream.runtime.spark.worker.group_log import Log, Position, catch_up
from asyncstream.state import Scale, Tables

__all__ = ("has_room", "hold", "room", "take_back")

HELD_BYTES: Final = 512 * 2**20
"""What a worker holds, if neither the user nor Spark says: windows of a million keys and as much again. Spark
has two or three workers for a core."""

SHARE: Final = 4
"""A quarter of the memory that Spark gives a worker is for tables: modules, rows and copies need the rest."""

KNOWN: Final = 10_000
"""Groups whose turns are known."""


@dataclass
class _Held:
    """
    Tables of a group by step, at the position of a token; how many bytes of memory they are; and which
    classes the plan has whose keys and values are in them.
    """

    token: bytes
    weight: int
    tables: Mapping[str, Tables]
    classes: Classes


@dataclass
class _Group:
    """
    What is known of a group that this worker has had.

    Attributes:
        others: how many other groups it has had between the last two turns of this one.
        weight: bytes of memory, when they were weighed last.
        size: bytes of the log then.
    """

    others: int = 0
    weight: int = 0
    size: int = -1


@dataclass
class _Worker:
    """
    What this process holds.

    Attributes:
        held: by log, the one that was held last at the end.
        weight: of all, bytes.
        groups: by log, the one whose turn was last at the end.
    """

    held: OrderedDict[bytes, _Held] = field(default_factory=OrderedDict)
    weight: int = 0
    groups: OrderedDict[bytes, _Group] = field(default_factory=OrderedDict)


_worker = _Worker()


def room(asked: int | None) -> int:
    """
    Bytes that a worker may hold: as `asked`, or a part of what `spark.executor.pyspark.memory` leaves for
    one.
    """
    if asked is not None:
        return asked
    whole_mb = os.environ.get("PYSPARK_EXECUTOR_MEMORY_MB")
    return HELD_BYTES if whole_mb is None else min(HELD_BYTES, int(whole_mb) * 2**20 // SHARE)


def take_back(position: Position, log: Log) -> Mapping[str, Tables] | None:
    """
    It is the turn of a group: its tables by step, if they are held and at this position, or can be brought
    there; they are held no more. Those of a plan with other classes of the same names are not: no key of the
    one equals a key of the other.

    Args:
        log: where the entries are that others have written since, and which classes they are read in.
    """
    _note_turn(position.log)
    held = _let_go(position.log)
    missing = None if held is None else position.ahead_of(held.token)
    if held is None or missing is None or held.classes != log.classes:
        return None
    if missing and not catch_up(held.tables, log.read(position, missing)):
        return None
    return held.tables


def has_room(position: Position, tables: Mapping[str, Tables], most: int) -> bool:
    """
    Whether tables that are at this position, and have just been merged, should be held; `most`: see `room`.
    """
    return _weight(position, tables) * (1 + _group(position.log).others) <= most


def hold(position: Position, tables: Mapping[str, Tables], most: int, classes: Classes) -> None:
    """
    Hold tables that are at this position, and have just been merged, and less of others if that is more than
    `most`, see `room`; `classes` are those of the plan.
    """
    _let_go(position.log)
    weight = _weight(position, tables)
    if not position.token or weight > most:
        return
    _worker.held[position.log] = _Held(position.token, weight, tables, classes)
    _worker.weight += weight
    while _worker.weight > most:
        _let_go(next(iter(_worker.held)))


def _let_go(log: bytes) -> _Held | None:
    held = _worker.held.pop(log, None)
    if held is not None:
        _worker.weight -= held.weight
    return held


def _group(log: bytes) -> _Group:
    group = _worker.groups.get(log)
    if group is None:
        group = _worker.groups[log] = _Group()
        if len(_worker.groups) > KNOWN:
            _worker.groups.popitem(last=False)
    return group


def _note_turn(log: bytes) -> None:
    """A group is new as long as it has no log."""
    groups = _worker.groups
    if log in groups:
        groups[log].others = list(reversed(groups)).index(log)
        groups.move_to_end(log)
    elif log:
        _group(log)


def _weight(position: Position, tables: Mapping[str, Tables]) -> int:
    group = _group(position.log)
    if not group.size <= position.size <= group.size + group.size // 4:
        scale = Scale()
        group.size, group.weight = position.size, sum(each.bytes_here(scale) for each in tables.values())
    return group.weight
