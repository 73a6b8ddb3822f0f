"""
Where sliding windows that overlap cut time.

Time is cut into *slices* wherever a window starts or ends, so a window is a run of whole slices: one for
each slide, or two where the size is no multiple of the slide. (Slices as long as the greatest common divisor
of both were more, without bound: 10,800,000 in 3 h by 1 h + 1 ms.) All elements of a slice are in the same
windows.
"""

from __future__ import annotations

from asyncstream.errors import InternalError
from asyncstream.windowing.assigners import SlidingWindows, WindowAssigner

__all__ = ("Cuts",)


class Cuts:
    """
    The slices of some sliding windows.

    Attributes:
        size_ms: length of a window, milliseconds.
        slide_ms: from one window's start to the next one's.
        cut_ms: from a window's start to the next end of another; 0 if they fall together.
    """

    def __init__(self, assigner: WindowAssigner) -> None:
        if not isinstance(assigner, SlidingWindows):
            raise InternalError(f"{type(assigner).__name__} has no slices")
        self.size_ms = assigner.size_ms
        self.slide_ms = assigner.slide_ms
        self.offset_ms = assigner.offset_ms
        self.cut_ms = assigner.size_ms % assigner.slide_ms

    def slice_at(self, timestamp: int) -> tuple[int, int]:
        """The start and the end of the slice that a timestamp lies in."""
        start = timestamp - (timestamp - self.offset_ms) % self.slide_ms
        if not self.cut_ms:
            return start, start + self.slide_ms
        cut = start + self.cut_ms
        return (start, cut) if timestamp < cut else (cut, start + self.slide_ms)

    def windows_of(self, start: int) -> range:
        """The starts of the windows that the slice at `start` is in, newest first."""
        newest = start - (start - self.offset_ms) % self.slide_ms
        return range(newest, start - self.size_ms, -self.slide_ms)
