"""
Windows: what elements of one key are grouped by.

Both kinds are tuples, so they are hashed at the speed of tuples, a snapshot keeps them as plain tuples,
and a plain tuple finds the entry of the window that equals it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from asyncstream.elements import MAX_TIMESTAMP

__all__ = (
    "GLOBAL_WINDOW",
    "Bound",
    "GlobalWindow",
    "Span",
    "TimeWindow",
    "Window",
    "WindowResult",
    "max_timestamp",
    "new_result",
    "window_from",
)

if TYPE_CHECKING:  # where nothing is said of the types, they may be any
    from typing_extensions import TypeVar as Defaulted

    K = Defaulted("K", default=Any)
    V = Defaulted("V", default=Any)
else:
    K = TypeVar("K")
    V = TypeVar("V")


Span: TypeAlias = tuple[int, int]
"""A window, or a slice of some, as a plain tuple: its first millisecond, and the first one after it."""


Bound: TypeAlias = int | Any
"""
Where a window begins or ends, in milliseconds. Of a global window it is None, for which type checkers are not
to ask everybody else.
"""


def max_timestamp(span: Span) -> int:
    """The last millisecond in it; a window fires when event time comes to that."""
    return span[1] - 1


class TimeWindow(NamedTuple):
    """
    The span of time [start, end).

    Attributes:
        start_ms: first millisecond inside, since the epoch.
        end_ms: first millisecond after it.
    """

    start_ms: int
    end_ms: int

    @property
    def max_timestamp(self) -> int:
        """The last millisecond inside: the window is complete once the watermark reaches it."""
        return self.end_ms - 1

    def touches(self, other: TimeWindow) -> bool:
        """Whether the two overlap or one begins where the other ends."""
        return self.start_ms <= other.end_ms and other.start_ms <= self.end_ms

    def cover(self, other: TimeWindow) -> TimeWindow:
        """The smallest window around both."""
        return TimeWindow(min(self.start_ms, other.start_ms), max(self.end_ms, other.end_ms))


class GlobalWindow(tuple[()]):
    """The one window that holds all elements of a key; it ends with time itself."""

    __slots__ = ()

    start_ms: Final[Any] = None
    end_ms: Final[Any] = None
    max_timestamp: Final = MAX_TIMESTAMP

    def __repr__(self) -> str:
        return "GlobalWindow()"


GLOBAL_WINDOW: Final = GlobalWindow()

Window: TypeAlias = TimeWindow | GlobalWindow


def window_from(plain: Sequence[int]) -> Window:
    """The window that a snapshot kept as a plain list."""
    return TimeWindow(plain[0], plain[1]) if plain else GLOBAL_WINDOW


class WindowResult(NamedTuple, Generic[K, V]):
    """
    What an aggregate gave for one key and window: `WindowResult[K, V]`, by the types of key and value.

    Attributes:
        key: whose window.
        start_ms: first millisecond of the window, since the epoch; None for a global window.
        end_ms: first millisecond after it; None for a global window.
        value: the aggregate's result, or the list of values where there is no aggregate.
    """

    key: K
    start_ms: Bound
    end_ms: Bound
    value: V


new_result: Final = partial(tuple.__new__, WindowResult)
"""`WindowResult(...)` from a tuple, without the detour through its generated `__new__`: half the time."""
