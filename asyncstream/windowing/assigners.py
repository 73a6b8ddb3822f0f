"""
Window assigners: which windows an element belongs to.

An assigner is configuration without memory. In event time it is given the element's timestamp, in
processing time the clock's; the arithmetic is the same. Sliding windows are assigned newest first, cumulative
ones oldest first.

Where windows lie on a grid, time is cut into *slices* wherever one starts or ends. So all elements of a slice
are in the same windows, and a window is a run of whole slices. Windows that do not overlap are slices
themselves. Sliding ones have a slice for each slide, or two where the size is no multiple of the slide.
(Slices as long as the greatest common divisor of both were more, without bound: 10,800,000 in 3 h by 1 h +
1 ms.) Slices, and windows made of them, are plain tuples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from copy import copy
from typing import Any, Literal, TypeAlias

from asyncstream import validation
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.shown import Shown
from asyncstream.state.schema import attributes
from asyncstream.validation import Duration, duration_ms, flag, refuse, signed_ms
from asyncstream.windowing.triggers import (
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
)
from asyncstream.windowing.windows import GLOBAL_WINDOW, Span, TimeWindow, Window, window_from

__all__ = (
    "CumulativeWindows",
    "DynamicSessionWindows",
    "GlobalWindows",
    "SessionWindows",
    "Sessions",
    "SlicedWindows",
    "SlidingWindows",
    "TimeKind",
    "TumblingWindows",
    "WindowAssigner",
    "is_event_time",
    "sliced",
)

TimeKind: TypeAlias = Literal["event", "processing"]
"""Whether windows follow the elements' timestamps or the clock."""

MOST_OVERLAPPING = 1_000_000
"""Windows that an element may be in: the first of a key is an entry, and a firing, of each."""


class WindowAssigner(Shown):
    """
    Base of all assigners.

    Attributes:
        event_time: whether the windows follow the elements' timestamps; else they follow the clock.
        merging: whether windows that touch become one, as sessions do.
        needs_timestamp: whether an element without a timestamp is refused.
    """

    event_time: bool = True
    merging: bool = False
    needs_timestamp: bool = False

    def assign(self, value: Any, time_ms: int, /) -> Sequence[Window]:
        """
        The windows of one element.

        Args:
            value: the element.
            time_ms: its timestamp, or the clock's in processing time, milliseconds since the epoch.
        """
        raise TypeError(f"{type(self).__name__} does not override assign")

    def default_trigger(self) -> Trigger:
        """The trigger where the user names none: at the window's end."""
        return EventTimeTrigger() if self.event_time else ProcessingTimeTrigger()

    def state_schema(self) -> Any:
        """Which windows these are, as plain JSON: contents of others are not taken up."""
        return attributes(self, without=("needs_timestamp",))

    def anchored(self, now_ms: int) -> WindowAssigner:
        """The assigner to use from the first element on, which came at processing time `now_ms`."""
        return self


class SlicedWindows(WindowAssigner):
    """
    Windows that are made of slices, no two of which end at the same time.

    Attributes:
        is_disjoint: whether windows do not overlap, and are one slice each.
        offset_ms: where their grid lies.
    """

    is_disjoint: bool = False
    offset_ms: int = 0

    def _follow(self, time: TimeKind) -> None:
        """Have them follow this time."""
        self.event_time = self.needs_timestamp = is_event_time(time)

    def assign(self, value: Any, time_ms: int) -> Sequence[Window]:
        return [window_from(window) for window in self.windows_of(self.slice_at(time_ms)[0])]

    def slice_at(self, timestamp: int, /) -> Span:
        """The slice that a timestamp lies in."""
        raise TypeError(f"{type(self).__name__} does not override slice_at")

    def windows_of(self, start: int, /) -> Collection[Any]:
        """The windows that the slice at `start` is in, in the order in which they are assigned."""
        return [self.slice_at(start)]

    def overlap_ms(self) -> tuple[int, int]:
        """How far apart windows that overlap end, and how long the longest is; (0, 0): they do not."""
        return 0, 0


class TumblingWindows(SlicedWindows):
    """
    One window after the other, each element in exactly one.

    Args:
        size: a `timedelta` or seconds; at least a millisecond.
        offset: windows start at multiples of the size plus this; as `size`, less than it, and may be
            negative.
        time: "event" or "processing".
        stagger: whether windows start when the first element came instead of all on the same grid, so
            that not all parallel steps fire at once.
    """

    is_disjoint = True

    def __init__(
        self, size: Duration, *, offset: Duration = 0, time: TimeKind = "event", stagger: bool = False
    ) -> None:
        self._follow(time)
        self.size_ms = duration_ms("size", size)
        self.offset_ms = _offset_ms(offset, self.size_ms)
        self.stagger = flag("stagger", stagger)

    def slice_at(self, timestamp: int) -> Span:
        start = timestamp - (timestamp - self.offset_ms) % self.size_ms
        return start, start + self.size_ms

    def anchored(self, now_ms: int) -> WindowAssigner:
        if not self.stagger:
            return self
        anchored = copy(self)
        anchored.offset_ms = (self.offset_ms + now_ms % self.size_ms) % self.size_ms
        anchored.stagger = False
        return anchored


class SlidingWindows(SlicedWindows):
    """
    A window of `size` starts every `slide`, so windows overlap, or leave holes if the slide is longer.

    Args:
        size: a `timedelta` or seconds; at least a millisecond.
        slide: from the start of one window to that of the next; as `size`.
        offset: windows start at multiples of the slide plus this; as `slide`, less than it, and may be
            negative.
        time: "event" or "processing".
    """

    def __init__(
        self, size: Duration, slide: Duration, *, offset: Duration = 0, time: TimeKind = "event"
    ) -> None:
        self._follow(time)
        self.size_ms = duration_ms("size", size)
        self.slide_ms = duration_ms("slide", slide)
        _check_overlap("slide", slide, self.size_ms, self.slide_ms)
        self.offset_ms = _offset_ms(offset, self.slide_ms)

    @property
    def is_disjoint(self) -> bool:  # type: ignore[override]
        return self.slide_ms >= self.size_ms

    def slice_at(self, timestamp: int) -> Span:
        slide = self.slide_ms
        start = timestamp - (timestamp - self.offset_ms) % slide
        if not (cut_ms := self.size_ms % slide):  # from a window's start to the next end of another
            return start, start + slide
        cut = start + cut_ms
        return (start, cut) if timestamp < cut else (cut, start + slide)

    def windows_of(self, start: int) -> Collection[Span]:
        size, newest = self.size_ms, start - (start - self.offset_ms) % self.slide_ms
        return [(first, first + size) for first in range(newest, start - size, -self.slide_ms)]

    def overlap_ms(self) -> tuple[int, int]:
        return self.slide_ms, self.size_ms


class CumulativeWindows(SlicedWindows):
    """
    Windows that start together and end a `step` apart, until one has the full `size`; then anew.

    Args:
        size: of the longest window: a `timedelta` or seconds; at least a millisecond. A multiple of `step`.
        step: of the shortest, and by how much each is longer than the one before; as `size`.
        offset: windows start at multiples of the size plus this; as `size`, less than it, and may be
            negative.
        time: "event" or "processing".
    """

    def __init__(
        self, size: Duration, step: Duration, *, offset: Duration = 0, time: TimeKind = "event"
    ) -> None:
        self._follow(time)
        self.size_ms = duration_ms("size", size)
        self.step_ms = duration_ms("step", step)
        if self.size_ms % self.step_ms:
            raise refuse("size", f"a multiple of the step of {self.step_ms} ms", size)
        _check_overlap("step", step, self.size_ms, self.step_ms)
        self.offset_ms = _offset_ms(offset, self.size_ms)

    def slice_at(self, timestamp: int) -> Span:
        start = timestamp - (timestamp - self.offset_ms) % self.step_ms
        return start, start + self.step_ms

    def windows_of(self, start: int) -> Collection[Span]:
        step, first = self.step_ms, start - (start - self.offset_ms) % self.size_ms
        return [(first, end) for end in range(start + step, first + self.size_ms + 1, step)]

    def overlap_ms(self) -> tuple[int, int]:
        return self.step_ms, self.size_ms


class Sessions(WindowAssigner):
    """
    Windows of a key that become one where they touch: from an element to a gap behind it.

    Args:
        time: "event" or "processing".

    Attributes:
        gap_ms: the gap behind each element, milliseconds; 0: each has its own.
    """

    merging = True
    gap_ms: int = 0

    def __init__(self, time: TimeKind) -> None:
        self.event_time = is_event_time(time)

    def assign(self, value: Any, time_ms: int) -> Sequence[Window]:
        return (TimeWindow(time_ms, min(time_ms + self.gap_after(value), MAX_TIMESTAMP)),)

    def gap_after(self, value: Any, /) -> int:
        """How long a key must be silent after this element for its session to end, milliseconds."""
        raise TypeError(f"{type(self).__name__} does not override gap_after")


class SessionWindows(Sessions):
    """
    Elements of a key less than `gap` apart, or exactly a gap apart, share a window.

    Args:
        gap: how long a key must be silent for its session to end: a `timedelta` or seconds; at least a
            millisecond.
        time: "event" or "processing".
    """

    def __init__(self, gap: Duration, *, time: TimeKind = "event") -> None:
        super().__init__(time)
        self.gap_ms = duration_ms("gap", gap)

    def gap_after(self, value: Any) -> int:
        return self.gap_ms


class DynamicSessionWindows(Sessions):
    """
    Sessions whose gap each element brings with it.

    Args:
        time: "event" or "processing".

    Attributes:
        gap_of: gives an element's gap, a `timedelta` or seconds; at least a millisecond.
    """

    def __init__(self, gap_of: Callable[[Any], Duration], *, time: TimeKind = "event") -> None:
        super().__init__(time)
        if not callable(gap_of):
            raise refuse("gap_of", "a function of an element", gap_of, "one gap for all: SessionWindows")
        self.gap_of = validation.function("gap_of", gap_of, "element")

    def gap_after(self, value: Any) -> int:
        return duration_ms("gap of an element", self.gap_of(value))


class GlobalWindows(SlicedWindows):
    """
    All elements of a key in one window that never ends; for triggers that count or compare.

    Attributes:
        fire_at_end: whether the default trigger fires at the end of time, when a finite stream has ended;
            else it never fires, and windows without another are refused.
    """

    event_time = False  # never late, not even at the end of time
    is_disjoint = True

    def __init__(self, *, fire_at_end: bool = False) -> None:
        self.fire_at_end = flag("fire_at_end", fire_at_end)

    def slice_at(self, timestamp: int) -> Span:
        return MIN_TIMESTAMP, MAX_TIMESTAMP + 1

    def windows_of(self, start: int) -> Collection[Any]:
        return (GLOBAL_WINDOW,)

    def default_trigger(self) -> Trigger:
        return EventTimeTrigger() if self.fire_at_end else NeverTrigger()


def sliced(assigner: WindowAssigner) -> SlicedWindows | None:
    """
    `assigner`, if its windows are made of slices. A subclass may assign otherwise, and the first element is
    still to say where staggered windows begin.
    """
    kinds = (TumblingWindows, SlidingWindows, CumulativeWindows, GlobalWindows)
    if isinstance(assigner, kinds) and type(assigner) in kinds and not getattr(assigner, "stagger", False):
        return assigner
    return None


def is_event_time(time: TimeKind) -> bool:
    """
    Whether `time`, as a user gives it, is the elements' own.

    Raises:
        PipelineError: if it is no kind of time.
    """
    return validation.choice("time", time, ("event", "processing")) == "event"


def _offset_ms(offset: Duration, period_ms: int) -> int:
    """`offset`, which may be negative, brought into the first period."""
    offset_ms = signed_ms("offset", offset)
    if abs(offset_ms) >= period_ms:
        raise refuse("offset", f"less than the {period_ms} ms from one window to the next", offset)
    return offset_ms % period_ms


def _check_overlap(name: str, given: Duration, size_ms: int, apart_ms: int) -> None:
    """Refuse windows of which no memory holds those of a single element."""
    if size_ms // apart_ms > MOST_OVERLAPPING:
        least_ms = -(-size_ms // MOST_OVERLAPPING)
        raise refuse(
            name,
            f"at least {least_ms} ms with a size of {size_ms} ms",
            given,
            f"an element would be in {size_ms // apart_ms:,} windows; {MOST_OVERLAPPING:,} are the most",
        )
