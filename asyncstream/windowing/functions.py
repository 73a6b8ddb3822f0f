"""
Window functions: what is computed over the elements of a window.

Two kinds, which combine. An *aggregate* folds each element into an accumulator as it comes, so a window
costs one accumulator however many elements it has. A *process function* is called when the window fires,
with the aggregate's result, or with the list of all elements where there is no aggregate, and a context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, ClassVar, Final, Generic, TypeVar

from asyncstream.clock import Clock
from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.errors import PipelineError
from asyncstream.operators.emitting import BufferedEmitter, Emitter
from asyncstream.shown import Shown
from asyncstream.state import KeyedState, State, StateDescriptor, Tables, detached
from asyncstream.state.schema import attributes
from asyncstream.validation import flag, function
from asyncstream.windowing.windows import Window, window_from

__all__ = (
    "FOLDING",
    "AggregateFunction",
    "OrderMatters",
    "ProcessWindowFunction",
    "Reduce",
    "WindowContext",
    "can_merge",
    "clears",
)

T = TypeVar("T")
In_contra = TypeVar("In_contra", contravariant=True)
Out = TypeVar("Out")
S = TypeVar("S", bound=State)


class OrderMatters(Exception):
    """
    Raised when an element comes with which an aggregate hangs on the order of elements.

    Attributes:
        rest: (value, timestamp) of the elements from this one on, which nothing has been done with.
    """

    rest: Sequence[tuple[Any, int | None]] = ()


class AggregateFunction(Shown, Generic[In_contra, Out]):
    """
    Folds elements into an accumulator, which snapshots keep: make it of plain values.

    It is a setting, which any number of steps and jobs may share: what it learns while it runs belongs in the
    accumulator and never in an attribute of its own.

    Attributes:
        order_free: whether the result depends only on which elements were added, never on the order in
            which accumulators were built and merged. Then sliding windows can share the work.
        joins_in_order: whether merging the accumulators of elements that follow one another, in their order,
            gives what adding all of them to one does, to the last digit. Then they can do so, too.
    """

    order_free: bool = False
    joins_in_order: bool = False

    def create(self) -> Any:
        """An accumulator that has seen nothing."""
        raise TypeError(f"{type(self).__name__} does not override create")

    def add(self, accumulator: Any, value: In_contra, /) -> Any:
        """The accumulator with `value` in it; may change the one given and return it."""
        raise TypeError(f"{type(self).__name__} does not override add")

    def merge(self, accumulator: Any, other: Any, /) -> Any:
        """
        One accumulator for both; sessions need it.

        May change and return the first. The second stays in use elsewhere: never change it, and return it
        only if nothing can change it.
        """
        raise TypeError(f"{type(self).__name__} does not override merge")

    def result(self, accumulator: Any, /) -> Out:
        """What the accumulator amounts to. It may be asked again later: share nothing mutable with it."""
        raise TypeError(f"{type(self).__name__} does not override result")

    def is_order_free(self, value: In_contra, /) -> bool:
        """
        Whether the result stays the same, to the last digit, in whatever order this element comes.

        Asked for each element before it is added in sliding windows if the aggregate is `order_free`.
        """
        return True

    def holds_order_free(self, accumulator: Any) -> bool:
        """Whether the same goes for all that an accumulator may have seen."""
        return True

    def save(self, accumulator: Any) -> Any:
        """The accumulator as plain values for a snapshot; it must not change when the accumulator does."""
        return detached(accumulator)

    def load(self, kept: Any) -> Any:
        """The accumulator that `save` made into `kept`."""
        return detached(kept)

    def state_schema(self) -> Any:
        """
        What accumulators mean, as plain JSON: those kept under another one are not taken up.

        By default the class with its attributes; override it to leave out what changes nothing about them.
        """
        return attributes(self)


FOLDING: Final = ("create", "add", "result")
"""The methods that every aggregate overrides."""


def can_merge(aggregate: AggregateFunction[Any, Any]) -> bool:
    """Whether `aggregate` has a `merge` of its own."""
    return getattr(aggregate.merge, "__func__", None) is not AggregateFunction.merge


class _Nothing(Enum):
    """The accumulator of a reduction that has seen nothing; a checkpoint keeps it, and a copy is the same."""

    NOTHING = "nothing"


_NOTHING: Final = _Nothing.NOTHING


class Reduce(AggregateFunction[T, T | None]):
    """
    Folds elements into one of their own type.

    Attributes:
        reduce: gives one element for two, both of which it leaves as they are.
        order_free: whether `reduce` gives the same in whatever order it is applied.
    """

    def __init__(self, reduce: Callable[[T, T], T], *, order_free: bool = False) -> None:
        self.reduce: Callable[[T, T], T] = function("reduce", reduce, "before", "element", gives=True)
        self.order_free = flag("order_free", order_free)

    def create(self) -> Any:
        return _NOTHING

    def add(self, accumulator: Any, value: T) -> Any:
        return value if accumulator is _NOTHING else self.reduce(accumulator, value)

    def merge(self, accumulator: Any, other: Any) -> Any:
        if other is _NOTHING:
            return accumulator
        return other if accumulator is _NOTHING else self.reduce(accumulator, other)

    def result(self, accumulator: Any) -> T | None:
        return None if accumulator is _NOTHING else accumulator


class WindowContext:
    """
    What a `ProcessWindowFunction` may ask for.

    Attributes:
        window: the window that fires or goes.
    """

    __slots__ = ("_clock", "_merging", "_out", "_reached", "_states", "_window_states", "window")

    window: Window

    def __init__(
        self, out: BufferedEmitter, reached: Callable[[], int], clock: Clock, merging: bool, tables: Tables
    ) -> None:
        """`reached` gives the event time reached; the state of the function is kept in `tables`."""
        self._states = KeyedState(clock, tables, "key")
        self._window_states = KeyedState(clock, tables, "window", window_from)
        self._out = out
        self._reached = reached
        self._clock = clock
        self._merging = merging

    def point_at(self, key: Any, window: Window) -> None:
        """Be about this key and window from now on; the operator does that."""
        self.window = window
        self._states.key = self._window_states.key = key
        self._window_states.namespace = window

    @property
    def watermark(self) -> int:
        """The event time reached, milliseconds since the epoch."""
        return self._reached()

    @property
    def now_ms(self) -> int:
        """Processing time, milliseconds since the epoch."""
        return self._clock.now_ms()

    def side(self, tag: str, value: Any) -> None:
        """
        Send `value` to the side output `tag`, with the timestamp that the window's results carry.

        Raises:
            PipelineError: if nothing reads that output; `.side(tag).discard()` says that it is not needed.
        """
        self._out.aside(tag, value, min(self.window.max_timestamp, MAX_TIMESTAMP))

    def key_state(self, descriptor: StateDescriptor[S]) -> S:
        """State of the key, shared by all its windows. Nothing clears it but you."""
        return self._states.state(descriptor)

    def window_state(self, descriptor: StateDescriptor[S]) -> S:
        """
        State of this window of the key; clear it in `ProcessWindowFunction.clear`.

        Raises:
            PipelineError: for sessions, whose windows merge.
        """
        if self._merging:
            raise PipelineError("sessions have no window state: they merge, and it cannot; use key_state")
        return self._window_states.state(descriptor)


class ProcessWindowFunction(Generic[Out]):
    """
    The user's code for a window that fires: override `process`, and `clear` if it keeps window state.

    One object serves all keys and windows of one step; in two steps, or in two jobs at once, it is refused.
    What is to last belongs in `ctx.key_state` or `ctx.window_state`: checkpoints know of nothing else.

    Attributes:
        sides: the tags that it sends to with `ctx.side`, as of a `KeyedProcessFunction`.
    """

    sides: ClassVar[tuple[str, ...] | None] = None

    def process(self, key: Any, contents: Any, ctx: WindowContext, out: Emitter[Out], /) -> None:
        """
        Handle a firing; `out(result)` emits with the window's last millisecond as timestamp.

        Args:
            key: whose window.
            contents: the aggregate's result, or a new list of the window's elements in order of arrival; of
                sessions that merged, those of the earlier session come first.
            ctx: the window and what else there is.
            out: takes the results.
        """
        raise TypeError(f"{type(self).__name__} does not override process")

    def clear(self, key: Any, ctx: WindowContext, /) -> None:
        """The window goes: clear its state."""


def clears(process: ProcessWindowFunction[Any]) -> bool:
    """Whether `process` has a `clear` of its own."""
    return getattr(process.clear, "__func__", None) is not ProcessWindowFunction.clear
