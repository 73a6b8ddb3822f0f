"""
Evictors: which elements of a window are thrown out when it fires, before or after its function sees them.

What an evictor throws out is gone for good. A window with an evictor keeps all its elements, so that an
aggregate is computed anew at each firing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from asyncstream import validation
from asyncstream.shown import Shown
from asyncstream.validation import Duration, choice, duration_ms, function, real_number
from asyncstream.windowing.windows import Window

__all__ = ("CountEvictor", "DeltaEvictor", "Elements", "Evictor", "TimeEvictor", "When")

Elements: TypeAlias = list[tuple[Any, int | None]]
"""
(value, timestamp in milliseconds or None) of each element of a window, in order of arrival; of sessions that
merged, those of the earlier session come first.
"""

When: TypeAlias = Literal["before", "after"]
"""Whether elements are thrown out before or after the window's function has seen them."""


class Evictor(Shown):
    """
    Base of all evictors: keeps everything. A subclass overrides `kept`, or one of the other two.

    An evictor is a setting, which all keys and windows of any number of steps and jobs share: what it decides
    depends on the elements it is given, and it never remembers anything in an attribute of its own.

    Attributes:
        when: at which of the two moments `kept` is asked.
    """

    def __init__(self, when: When = "before") -> None:
        self.when: When = choice("when", when, ("before", "after"))

    def kept(self, elements: Elements, window: Window, /) -> Elements:
        """What stays of `elements`."""
        return elements

    def before(self, elements: Elements, window: Window, /) -> Elements:
        """What stays of `elements` when the window fires; its function sees that."""
        return self.kept(elements, window) if self.when == "before" else elements

    def after(self, elements: Elements, window: Window, /) -> Elements:
        """What stays of `elements` after the function has seen them."""
        return self.kept(elements, window) if self.when == "after" else elements


class CountEvictor(Evictor):
    """
    Keeps the last `n` elements.

    Args:
        n: how many stay; at least 0.
        when: whether elements leave "before" the function sees the window, or "after".
    """

    def __init__(self, n: int, when: When = "before") -> None:
        super().__init__(when)
        self.n = validation.count("n", n, least=0)

    def kept(self, elements: Elements, window: Window) -> Elements:
        return elements[max(0, len(elements) - self.n) :]


class TimeEvictor(Evictor):
    """
    Keeps the elements less than `size` older than the newest.

    Elements without timestamps are all kept; that some have one and others not is an error.

    Args:
        size: a `timedelta` or seconds; at least a millisecond.
        when: whether elements leave "before" the function sees the window, or "after".
    """

    def __init__(self, size: Duration, when: When = "before") -> None:
        super().__init__(when)
        self.size_ms = duration_ms("size", size)

    def kept(self, elements: Elements, window: Window) -> Elements:
        if all(timestamp is None for _, timestamp in elements):
            return elements
        oldest = max(map(_timestamp, elements)) - self.size_ms
        return [element for element in elements if _timestamp(element) > oldest]


class DeltaEvictor(Evictor):
    """
    Throws out the elements that are `threshold` or more away from the last one.

    Args:
        when: whether elements leave "before" the function sees the window, or "after".

    Attributes:
        delta: called with an element and the last one, gives their distance.
        threshold: exactly this far is thrown out; what is no number (NaN) is no distance, and stays.
    """

    def __init__(self, delta: Callable[[Any, Any], float], threshold: float, when: When = "before") -> None:
        super().__init__(when)
        self.delta = function("delta", delta, "element", "last")
        real_number("threshold", threshold, "a number", lambda n: n == n)
        self.threshold = threshold

    def kept(self, elements: Elements, window: Window) -> Elements:
        if not elements:
            return elements
        last: Sequence[Any] = elements[-1]
        return [element for element in elements if not self.delta(element[0], last[0]) >= self.threshold]


def _timestamp(element: tuple[Any, int | None]) -> int:
    if element[1] is None:
        raise ValueError(
            f"a time evictor met an element without a timestamp among others with one: {element[0]!r}"
        )
    return element[1]
