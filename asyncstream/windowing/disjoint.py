"""
Fast windows that do not overlap: tumbling, and sliding ones whose slide is at least their size.

An element goes by one comparison into the window that the one before it went into, as nearly all do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncstream.elements import Timestamps
from asyncstream.operators.base import pairs
from asyncstream.windowing.operator import check_timestamp
from asyncstream.windowing.plain import MISSING, NONE_AT_HAND
from asyncstream.windowing.whole import WholeWindowOperator

__all__ = ("DisjointWindowOperator",)


class DisjointWindowOperator(WholeWindowOperator):
    """Windows of which an element is in at most one."""

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        key_by, add, create = self._key_by, self._aggregate.add, self._aggregate.create
        size, slide, offset = self._size_ms, self._slide_ms, self._offset_ms
        watermark, lateness = self._watermark, self._lateness_ms
        start, end, cells = NONE_AT_HAND  # the open window that the last element went into
        done: dict[Any, Any] | None = None
        value: Any = None
        timestamp: Any = 0
        try:
            for value, timestamp in pairs(values, timestamps):
                key = key_by(value)
                if not start <= timestamp < end:
                    check_timestamp(timestamp)
                    start = timestamp - (timestamp - offset) % slide
                    end = start + size
                    if timestamp >= end or end - 1 <= watermark:
                        if timestamp < end and end - 1 + lateness > watermark:
                            self._add_late(start, key, value)
                        else:
                            self._leave_out(value, timestamp, timestamp)
                        end = start
                        continue
                    cells = self._opened(start)
                    done = self._done.get(start)
                held = cells.get(key, MISSING)
                if held is MISSING:
                    held = done.pop(key) if done and key in done else create()
                cells[key] = add(held, value)
        except BaseException as error:
            raise self._failed(value, timestamp, error) from error
        self._at_hand = (start, end, cells)
        self._emitter.flush()
