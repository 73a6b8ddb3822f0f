"""
Windows on Spark as they are written today: a stateful processor for `transformWithState`, grouped by key.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

__all__ = ("ByKey", "result_type")

COLUMNS = ("key", "start_ms", "n", "total")


def result_type() -> StructType:
    """The columns of a result, as Spark's types."""
    from pyspark.sql.types import LongType, StructField, StructType

    return StructType([StructField(name, LongType()) for name in COLUMNS])


class ByKey:
    """
    Tumbling windows with count and sum of `v`; the windows of a key are one value of its state.

    Args:
        window_ms: how long they are.
        at_once: read and write the state once for all rows of a key; otherwise with each of them.
    """

    def __init__(self, window_ms: int, *, at_once: bool) -> None:
        self._window_ms = window_ms
        self._at_once = at_once

    def init(self, handle: Any) -> None:
        from pyspark.sql.types import BinaryType, StructField, StructType

        self._handle = handle
        self._state = handle.getValueState("windows", StructType([StructField("kept", BinaryType())]))

    def handleInputRows(self, key: Any, rows: Iterable[Row], timerValues: Any) -> Iterator[Row]:
        for part in [list(rows)] if self._at_once else ([row] for row in rows):
            windows = self._load()
            for row in part:
                start = row.ts - row.ts % self._window_ms
                if start not in windows:
                    windows[start] = (0, 0)
                    self._handle.registerTimer(start + self._window_ms)
                n, total = windows[start]
                windows[start] = (n + 1, total + row.v)
            self._save(windows)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        from pyspark.sql import Row

        start = expiredTimerInfo.getExpiryTimeInMs() - self._window_ms
        windows = self._load()
        n, total = windows.pop(start)
        self._save(windows)
        yield Row(*COLUMNS)(key[0], start, n, total)

    def close(self) -> None:
        """Nothing is open."""

    def _load(self) -> dict[int, tuple[int, int]]:
        kept = self._state.get()
        return {} if kept is None else pickle.loads(kept[0])

    def _save(self, windows: dict[int, tuple[int, int]]) -> None:
        if windows:
            self._state.update((pickle.dumps(windows, 5),))
        else:
            self._state.clear()
