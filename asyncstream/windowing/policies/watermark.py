"""
Storm's watermark generator: how far event time has come, from the elements themselves.

The watermark is the lowest, over the streams, of the highest timestamp seen, less the lag. It is taken
in intervals of processing time, so between two of them nothing new is late. A watermark w of this kind
says that no element *below* w follows; an element at exactly w is not late. The watermark that a
pipeline knows (no element at or below it follows) is therefore w - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.errors import PipelineError
from asyncstream.shown import Shown
from asyncstream.state import Cell

__all__ = ("WatermarkEventGenerator",)


class WatermarkEventGenerator(Shown):
    """
    Tracks the timestamps of several streams.

    Args:
        lag_ms: how far the elements of one stream may be out of order, milliseconds.
        streams: the streams to wait for; at least one. Elements of other streams are judged, but do not
            count for the watermark.
        idle_after_ms: a stream that has said nothing for this long is not waited for, milliseconds of
            processing time; None: wait for ever.

    Attributes:
        watermark_ms: the last watermark, milliseconds since the epoch; `MIN_TIMESTAMP` before the first.
    """

    def __init__(self, lag_ms: int, streams: Sequence[str], idle_after_ms: int | None = None) -> None:
        if not streams:
            raise PipelineError("a watermark needs at least one stream to wait for")
        self.watermark_ms = MIN_TIMESTAMP
        self._lag_ms = lag_ms
        self._idle_after_ms = idle_after_ms
        self._highest: dict[str, int | None] = dict.fromkeys(streams)
        self._spoke_ms: dict[str, int] = {}
        self._idle: set[str] = set()

    def track(self, stream: str, timestamp_ms: int, now_ms: int = 0) -> bool:
        """
        An element of `stream` has arrived.

        Args:
            stream: name of the stream.
            timestamp_ms: the element's time; of several, the highest.
            now_ms: processing time.

        Returns:
            False if it is late.
        """
        if stream in self._highest:
            highest = self._highest[stream]
            if highest is None or timestamp_ms > highest:
                self._highest[stream] = timestamp_ms
            self._spoke_ms[stream] = now_ms
            self._idle.discard(stream)
        return timestamp_ms >= self.watermark_ms

    def mark_idle(self, stream: str) -> None:
        """Do not wait for `stream` until it speaks again."""
        if stream not in self._highest:
            raise PipelineError(f"no stream {stream!r} is waited for; there are {sorted(self._highest)}")
        self._idle.add(stream)

    def tick(self, now_ms: int = 0) -> int | None:
        """The new watermark at processing time `now_ms`, if it is higher than the last."""
        if self._idle_after_ms is not None:
            for stream in self._highest:
                # from the first tick on, also for a stream that never spoke
                if now_ms - self._spoke_ms.setdefault(stream, now_ms) >= self._idle_after_ms:
                    self._idle.add(stream)
        active = [highest for stream, highest in self._highest.items() if stream not in self._idle]
        if not active:
            # no stream to wait for: go as far as any has come
            active = [max((h for h in self._highest.values() if h is not None), default=None)]
        if any(highest is None for highest in active):
            return None
        watermark = min(highest for highest in active if highest is not None) - self._lag_ms
        if watermark <= self.watermark_ms:
            return None
        self.watermark_ms = watermark
        return watermark

    def cells(self) -> dict[str, Cell]:
        """What is to be kept, by name: the watermark, each stream's highest timestamp, and who is idle."""
        highest = {
            f"highest/{stream}": Cell(
                partial(self._highest.get, stream), partial(self._highest.__setitem__, stream), "max"
            )
            for stream in self._highest
        }
        return {
            "watermark": Cell.of(self, "watermark_ms", "min"),
            "idle": Cell(lambda: sorted(self._idle), self._idle.update, "min"),
            **highest,
        }
