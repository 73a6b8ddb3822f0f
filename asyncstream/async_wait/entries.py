"""
The elements of a snapshot: a kind, then what belongs to it, as plain lists.

    ["call", value, timestamp]                  running or waiting: its call is to be made
    ["finished", value, timestamp, results]     its call has ended; it waits for its turn
    ["emitted", result, timestamp]              a result on its way out; read of earlier versions, and kept on
    [..., origin]                               each, where the step keeps track of where elements come from
    ["watermark", timestamp]  ["idle", bool]  ["end"]
    ["reached", timestamp]                      the last watermark that was emitted
    ["mark"]                                    is made, and left out: it is of this run
"""

from __future__ import annotations

from types import NoneType
from typing import Any, Final

from asyncstream.async_wait.promise import DROPPED, PENDING, Arrived, Passage, Routed, Several
from asyncstream.elements import (
    CONTROLS,
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    EndOfInput,
    IdleStatus,
    Mark,
    Watermark,
)
from asyncstream.errors import safe_repr
from asyncstream.operators.journey import Journey
from asyncstream.operators.origins import Origin

__all__ = (
    "MARKED",
    "OF_THIS_RUN",
    "REACHED",
    "UNCALLED",
    "Finished",
    "Known",
    "entry_of",
    "inbox_item",
    "reached_in",
)


REACHED: Final = "reached"
"""The kind of the entry that says how far event time had come behind the operator."""

OF_THIS_RUN: Final = (["end"], ["watermark", MAX_TIMESTAMP], ["mark"])
"""Entries that are left out: that nothing follows, which the sources say again, and marks of the sources."""


class Finished:
    """
    In an inbox: an element whose outcome is known. It takes its place in the queue, and is not called.
    """

    __slots__ = ("outcome", "timestamp")

    def __init__(self, outcome: Any, timestamp: int | None) -> None:
        self.outcome = outcome
        self.timestamp = timestamp


class Known:
    """In an inbox: the timestamp of an element that is followed."""

    __slots__ = ("journey", "timestamp")

    def __init__(self, timestamp: int | None, journey: Journey) -> None:
        self.timestamp = timestamp
        self.journey = journey


_PLAIN: Final = (NoneType, int)
"""Types of what stands in an inbox in place of a timestamp that is one, or none."""

_EMITTED: Final = object()
"""In place of the value of an element of which only the result is kept."""

UNCALLED = CONTROLS | {Finished}
"""What stands in an inbox in place of a timestamp when the item is not an element to call for."""


MARKED = UNCALLED | {Known}
"""All that stands there in place of one."""


def entry_of(value: Any, timestamp: Any, outcome: Any = PENDING, origin: Origin | None = None) -> list[Any]:
    """The entry for an inbox item, or for a promise with its outcome."""
    if outcome is PENDING and type(timestamp) in _PLAIN:  # as most
        return ["call", value, timestamp, *_known(origin)]
    if isinstance(timestamp, Finished):
        return entry_of(value, timestamp.timestamp, timestamp.outcome, origin)
    if isinstance(timestamp, Known):  # a journey ends with its job
        timestamp = timestamp.timestamp
    if isinstance(outcome, Arrived):
        outcome = outcome.outcome
    control = outcome.control if isinstance(outcome, Passage) else timestamp
    if isinstance(control, Watermark):
        return ["watermark", control.timestamp]
    if isinstance(control, IdleStatus):
        return ["idle", control.idle]
    if isinstance(control, EndOfInput):
        return ["end"]
    if isinstance(control, Mark):
        return ["mark"]
    if outcome is PENDING or isinstance(outcome, Routed):  # an exception cannot be kept: call again
        return ["call", value, timestamp, *_known(origin)]
    if outcome is DROPPED:
        return ["finished", value, timestamp, [], *_known(origin)]
    results = list(outcome.results) if isinstance(outcome, Several) else [outcome]
    if value is _EMITTED:
        return ["emitted", *results, timestamp, *_known(origin)]
    return ["finished", value, timestamp, results, *_known(origin)]


def _known(origin: Origin | None) -> list[list[Any]]:
    return [] if origin is None else [list(origin)]


def inbox_item(entry: list[Any], *, call_all: bool) -> tuple[Any, Any, Origin | None]:
    """
    The inbox item for an entry; with `call_all`, calls are made again whose results are known. Raises
    `ValueError` if it is no entry: `migrate=` may give anything.
    """
    match entry:
        case ["watermark", int(timestamp)]:
            return None, Watermark(timestamp), None
        case ["idle", idle]:
            return None, IdleStatus(idle), None
        case ["end"]:
            return None, EndOfInput(), None
        case ["emitted", result, None | int() as timestamp, *origin]:
            return _EMITTED, Finished(Several([result]), timestamp), tuple(origin[0]) if origin else None
        case ["finished", value, None | int() as timestamp, list(results), *origin]:
            stamp = timestamp if call_all else Finished(Several(results), timestamp)
            return value, stamp, tuple(origin[0]) if origin else None
        case ["call", value, None | int() as timestamp, *origin]:
            return value, timestamp, tuple(origin[0]) if origin else None
    raise _no_entry(entry)


def reached_in(entries: Any) -> int:
    """The last watermark that was emitted, as the entries of a snapshot say. Raises as `inbox_item`."""
    if type(entries) is not list:
        raise ValueError(f"expected a list of elements, got {safe_repr(entries)}")
    reached = MIN_TIMESTAMP
    for entry in entries:
        match entry:
            case ["reached", int(timestamp)]:
                reached = max(reached, timestamp)
            case [str(kind), *_] if kind != REACHED:
                pass
            case _:
                raise _no_entry(entry)
    return reached


def _no_entry(entry: Any) -> ValueError:
    return ValueError(
        "expected elements as ['call', value, timestamp] or ['finished', value, timestamp, results], got "
        f"{safe_repr(entry)}"
    )
