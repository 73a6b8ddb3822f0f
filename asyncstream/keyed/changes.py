"""
Changes of a result: what a step emits that has to correct what it said before.

A *change log* is a stream of `Change`s. It says of every row when it came (`+I`), by what it was replaced
(`-U` the old one, `+U` the new one) and when it went (`-D`), so that a reader who follows it holds at any
time what the step would say now. The names are those of Flink's SQL.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from asyncstream.codec import JsonCodec
from asyncstream.errors import CodecError
from asyncstream.validation import choice

__all__ = (
    "CODEC",
    "DELETE",
    "INSERT",
    "UPDATE_AFTER",
    "UPDATE_BEFORE",
    "Change",
    "ChangeKind",
    "ChangeLog",
    "Changes",
    "change_log",
    "comes",
    "is_same",
    "new_change",
)

T = TypeVar("T")

ChangeKind: TypeAlias = Literal["+I", "-U", "+U", "-D"]
"""A row is new; is replaced; replaces one; is gone."""

Changes: TypeAlias = Literal["all", "upserts", "updates"]
"""
What a change log says: everything; nothing of the old row that another replaces; or `+U` alone, whether or
not there was a row before.
"""

INSERT: Final = "+I"
UPDATE_BEFORE: Final = "-U"
UPDATE_AFTER: Final = "+U"
DELETE: Final = "-D"


class Change(NamedTuple, Generic[T]):
    """
    One change of a result.

    Attributes:
        kind: "+I" the row is new, "-U" it is replaced, "+U" it replaces one, "-D" it is gone.
        value: the row, an element of the stream.
        rank: its place, from 1; None where places are not told.
    """

    kind: ChangeKind
    value: T
    rank: int | None = None


new_change: Final = partial(tuple.__new__, Change)
"""`Change(...)` from a tuple of all three, without the detour through its generated `__new__`."""


@dataclass(frozen=True)
class ChangeLog:
    """
    What is said of a replacement.

    Attributes:
        update_before: also which row is replaced.
        insert: whether there was none.
    """

    update_before: bool
    insert: bool


_LOGS: Final[dict[Any, ChangeLog]] = {
    "all": ChangeLog(update_before=True, insert=True),
    "upserts": ChangeLog(update_before=False, insert=True),
    "updates": ChangeLog(update_before=False, insert=False),
}

CODEC: Final = JsonCodec()
"""Rows that do not say whether they are equal are the same if it makes the same bytes of them."""


def is_same(one: Any, other: Any) -> bool:
    """
    Whether rows are equal; if they do not say so, as those with arrays, whether a checkpoint keeps the same
    bytes of them.
    """
    try:
        return bool(one == other)
    except (TypeError, ValueError):
        with suppress(CodecError):
            return CODEC.encode(one) == CODEC.encode(other)
        return False


def comes(change: Change[Any]) -> bool:
    """
    Whether the row of a change comes; else it goes.

    Raises:
        TypeError: if it says neither: users make changes, too.
    """
    if change.kind in (INSERT, UPDATE_AFTER):
        return True
    if change.kind in (UPDATE_BEFORE, DELETE):
        return False
    raise TypeError(f"expected a Change of the kind '+I', '-U', '+U' or '-D', got {change.kind!r}")


def change_log(changes: Changes | None, allowed: tuple[Changes, ...]) -> ChangeLog | None:
    """
    What `changes=` asks for; None: no change log.

    Args:
        changes: what the user has asked for.
        allowed: what the step can give.

    Raises:
        PipelineError: if it is none of `allowed`.
    """
    return None if changes is None else _LOGS[choice("changes", changes, allowed)]
