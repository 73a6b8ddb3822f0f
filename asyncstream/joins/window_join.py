"""
Joins of what is in the same window: pairs, or both groups as they are.

After Flink's CoGroupedStreams: both streams go into the windows of one window operator, each element with the
name of its side, so sessions merge across inputs, and triggers and evictors see both together. A firing gives
the whole window again: within the allowed lateness one late element emits all pairs of its window once more.

The two inputs are one stream here, as those of a union: one that wakes behind the other does not hold it
back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from asyncstream.elements import Timestamps
from asyncstream.joins.interval import LATE_LEFT, LATE_RIGHT, How, emits_alone
from asyncstream.joins.timed import LEFT, RIGHT
from asyncstream.operators.ports import MultiInput
from asyncstream.operators.results import FirstKeys
from asyncstream.operators.spec import ClockUse, KeyBy, Spec
from asyncstream.state.schema import Schema
from asyncstream.state.timer_queue import Timer
from asyncstream.windowing import WindowOperator, WindowPlan, window_schema
from asyncstream.windowing.plan import COUNTERS
from asyncstream.windowing.windows import Bound, Window

__all__ = ("CoGrouped", "Made", "WindowJoinOperator", "WindowJoinSpec")

L = TypeVar("L")
R = TypeVar("R")

Made: TypeAlias = How | Literal["groups"]
"""What is made of a window: pairs, and of which sides elements without a partner; or one `CoGrouped`."""

_SIDES: Final = ("left", "right")


class CoGrouped(NamedTuple, Generic[L, R]):
    """
    What two streams have in one window of a key.

    Attributes:
        key: whose window.
        start_ms: first millisecond of the window, since the epoch; None for a global window.
        end_ms: first millisecond after it; None for a global window.
        left: the elements of the left stream, as they came; of sessions that merged, those of the earlier
            one come first.
        right: those of the right one.
    """

    key: Any
    start_ms: Bound
    end_ms: Bound
    left: list[L]
    right: list[R]


class WindowJoinOperator(MultiInput, WindowOperator):
    """
    Joins elements of one key that are in the same window.

    Emits when a window fires, with its last millisecond as timestamp: a tuple (left, right) for each left
    element with each right one, in the order that `CoGrouped` has; or the window's `CoGrouped`. Late elements
    go to the side outputs "late_left" and "late_right", or are counted.
    Snapshot holds: what `WindowOperator` keeps.
    """

    def __init__(self, key_of: Sequence[KeyBy], plan: WindowPlan, made: Made = "inner") -> None:
        """
        The plan neither aggregates nor has a process function; functions of its assigner, trigger and evictor
        are given pairs ("left" or "right", element).
        """
        WindowOperator.__init__(self, self._key_of, plan)
        self._key_of_left: KeyBy = FirstKeys(self, key_of[LEFT], "_key_of_left")
        self._key_of_right: KeyBy = FirstKeys(self, key_of[RIGHT], "_key_of_right")
        self._made = made
        self.have_ports(*[partial(self._process_side, side) for side in _SIDES], holds_back=False)

    def _key_of(self, sided: tuple[str, Any]) -> Any:
        side, value = sided
        return self._key_of_right(value) if side == _SIDES[RIGHT] else self._key_of_left(value)

    def _process_side(self, side: str, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.process_batch([(side, value) for value in values], timestamps)

    def blame(self, value: object, error: BaseException) -> BaseException:
        is_sided = isinstance(value, tuple) and not isinstance(value, Timer)
        return super().blame(value[1] if is_sided else value, error)  # type: ignore[index]

    def _late_output(self, value: Any) -> tuple[str, Any]:
        return (LATE_RIGHT if value[0] == _SIDES[RIGHT] else LATE_LEFT), value[1]

    def _emit(self, key: Any, window: Window, contents: Any) -> None:
        left = [value for side, value in contents if side == _SIDES[LEFT]]
        right = [value for side, value in contents if side == _SIDES[RIGHT]]
        made = self._made
        if made == "groups":
            self._emitter.emit(CoGrouped(key, window.start_ms, window.end_ms, left, right))
            return
        if not right and emits_alone(made, LEFT):
            right = [None]
        elif not left and emits_alone(made, RIGHT):
            left = [None]
        for value in left:
            self._emitter.extend([(value, partner) for partner in right], self._emitter.timestamp)


@dataclass(frozen=True)
class WindowJoinSpec(Spec):
    """
    Joins two streams by key and window.

    Attributes:
        key_of: for the left and the right input, what gives the key of an element.
        plan: which windows, and when they fire.
        made: what is made of a window that fires.
    """

    key_of: tuple[KeyBy, KeyBy]
    plan: WindowPlan
    made: Made

    operator = WindowJoinOperator
    counters = COUNTERS

    def __post_init__(self) -> None:
        self.plan.check_firing()

    def build(self) -> WindowJoinOperator:
        return WindowJoinOperator(self.key_of, self.plan, self.made)

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return self.key_of

    @property
    def schema(self) -> Schema:
        windows = window_schema(self.plan)
        settings = {**windows.settings, "made": self.made}
        return Schema({**windows.form, "join": "window"}, {}, settings)

    @property
    def clock(self) -> ClockUse:
        return ClockUse.WAITS if self.plan.closes_with_input else ClockUse.MAY_EMIT
