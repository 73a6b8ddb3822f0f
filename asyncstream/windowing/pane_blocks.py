"""
Slices merged in blocks, so that a window of hundreds of slices is not merged of each of them.

Theory. After the base intervals of Arasu and Widom ("Resource sharing in continuous sliding-window
aggregates", 2004): a *block* is what those slices hold that start in an interval, which is `_FACTOR` steps
wide, or as many intervals of the next smaller width, and begins at a multiple of its width. So a window of n
slices is covered by some `_FACTOR` times log n blocks and slices, and a slice is merged once for each width,
not once for each window that it is in.

Blocks follow from slices, so they are not kept. A block is made when it is wanted for the second time: then
more windows will want it, while an operator that fires once, as in a micro-batch, makes none. Its slices have
ended by then. If one of them changes all the same, or goes, the block goes, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from asyncstream.state.rows import Rows
from asyncstream.windowing.windows import Span

__all__ = ("Blocks",)

_FACTOR: Final = 4
"""From width to width: with a greater one a window is merged of more, with a smaller one more is held."""

_SHARE: Final = 3
"""Of the longest window a block is no greater part than this: else too few windows need it."""


class Blocks:
    """
    The blocks of an operator's slices.

    Args:
        step_ms: how far apart windows end.
        longest_ms: length of the longest window.
        ends: the end of each slice that there is, by its start.
        starts: theirs, in their order.
        merge: merges blocks and slices, given by where these lie, into the rows of a block.
    """

    def __init__(
        self,
        step_ms: int,
        longest_ms: int,
        ends: Mapping[int, int],
        starts: Sequence[int],
        merge: Callable[[Iterable[Span]], Rows],
    ) -> None:
        self._widths: list[int] = []
        width = _FACTOR * step_ms
        while 0 < _SHARE * width <= longest_ms:
            self._widths.append(width)
            width *= _FACTOR
        self._ends, self._starts, self._merge = ends, starts, merge
        self._rows: dict[Span, Rows | None] = {}  # None: it was wanted once

    def rows(self, place: Span) -> Rows | None:
        """Those of a block; None: it is a slice."""
        return self._rows.get(place)

    def slices(self, window: Span) -> Iterator[Span]:
        """The slices that make up a window, by time; the others are not looked at, however many."""
        return self._cover(*window, 0, makes=False)

    def cover(self, window: Span, makes: bool) -> Iterator[Span]:
        """The blocks and slices that make up a window, by time; whether blocks may be made for it."""
        return self._cover(*window, len(self._widths), makes)

    def _cover(self, start: int, end: int, widths: int, makes: bool) -> Iterator[Span]:
        """The same of an interval, with so many of the widths."""
        starts = self._starts
        if not widths:
            first, past = bisect_left(starts, start), bisect_left(starts, end)
            yield from ((start, self._ends[start]) for start in starts[first:past])
            return
        narrower = widths - 1
        width = self._widths[narrower]
        begin, stop = start + -start % width, end - end % width
        if begin >= stop:
            yield from self._cover(start, end, narrower, makes)
            return
        yield from self._cover(start, begin, narrower, makes)
        first, past = bisect_left(starts, begin), bisect_left(starts, stop)
        while first < past:  # over those that have slices, however far apart
            begin = starts[first] - starts[first] % width
            block, after = (begin, begin + width), bisect_left(starts, begin + width, first)
            if after - first > 1 and self._is_there(block, narrower, makes):
                yield block
            else:
                yield from self._cover(*block, narrower, makes)
            first = after
        yield from self._cover(stop, end, narrower, makes)

    def _is_there(self, block: Span, narrower: int, makes: bool) -> bool:
        if makes and block not in self._rows:
            self._rows[block] = None
        elif makes and self._rows[block] is None:
            self._rows[block] = self._merge(self._cover(*block, narrower, makes))
        return self._rows.get(block) is not None

    def drop(self, start: int) -> None:
        """Have no block with the slice at `start`, which has changed or gone."""
        for width in self._widths:
            begin = start - start % width
            self._rows.pop((begin, begin + width), None)

    def clear(self) -> None:
        """Have no blocks."""
        self._rows.clear()
