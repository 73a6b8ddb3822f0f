"""
The two ends of a running pipeline: the task that pulls a source, and the operator that feeds a sink.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import repeat
from typing import Any

from asyncstream.connectors.base import Sink, Source
from asyncstream.elements import MAX_TIMESTAMP, Timestamps
from asyncstream.operators.base import Operator
from asyncstream.operators.flow import Gate, Intake

__all__ = ("SinkOperator", "SourceDriver")

SINK_LIMIT = 1024
"""Elements that may wait for a sink before the pipeline is held."""


class SinkOperator(Intake):
    """
    Collects what arrives, and writes it to a sink in batches from a task of its own.

    Backpressures when: `limit` elements wait while a write is under way.
    Completes when: the input has ended and everything is written and flushed.
    Snapshot holds: the elements not yet written, those of a write under way included.
    """

    def __init__(self, sink: Sink[Any]) -> None:
        super().__init__(SINK_LIMIT)
        self.sink = sink
        self._values: list[Any] = []
        self._timestamps: list[int | None] = []
        self._writing: tuple[list[Any], list[int | None]] = ([], [])
        self._ended = False
        self._changed = asyncio.Event()
        self._written = 0

    async def start(self) -> None:
        await self.sink.open()

    async def run(self) -> None:
        """Write until the input has ended."""
        while True:
            if self._values:
                self._writing = (self._values, self._timestamps)
                self._values, self._timestamps = [], []
                self._release_if_drained()
                await self.sink.write(*self._writing)
                self._written += len(self._writing[0])
                self._writing = ([], [])
            elif self._ended:
                await self.sink.flush()
                return
            else:
                self._changed.clear()
                await self._changed.wait()

    async def stop(self) -> None:
        await self.sink.close()

    def process(self, value: Any, timestamp: int | None) -> None:
        self._values.append(value)
        self._timestamps.append(timestamp)
        self._changed.set()
        self._hold_if_full()

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._values += values
        self._timestamps += repeat(None, len(values)) if timestamps is None else timestamps
        self._changed.set()
        self._hold_if_full()

    def advance_watermark(self, timestamp: int) -> None:
        """A sink has no use for it."""

    def set_idle(self, idle: bool) -> None:
        """A sink has no use for it."""

    def end_input(self) -> None:
        self._ended = True
        self._changed.set()

    def waiting(self) -> int:
        return len(self._values)

    def has_written_all(self) -> bool:
        """Whether nothing waits and no write is under way."""
        return not self._values and not self._writing[0]

    def metrics(self) -> dict[str, int]:
        return {"written": self._written, "waiting": len(self._values)}

    def snapshot(self) -> Any:
        values, timestamps = self._writing
        return [[*values, *self._values], [*timestamps, *self._timestamps]]

    def restore(self, state: Any) -> None:
        self.process_batch(*state)


class SourceDriver:
    """
    Pulls a source while there is room downstream.

    Args:
        source: what to read.
        head: the first operator.
        rejected: where what the source could not read as an element goes.
    """

    def __init__(self, source: Source[Any], head: Operator, rejected: Operator) -> None:
        self.source = source
        self.gate = Gate(self._reopened)
        self._head = head
        self._rejected = rejected
        self._open = asyncio.Event()
        self._read = 0
        self._ended = False

    def _reopened(self) -> None:
        self._open.set()

    async def run(self) -> None:
        """Read until the source ends."""
        while True:
            while not self.gate.is_open():
                self._open.clear()
                await self._open.wait()
            batch = await self.source.read()
            if batch is None:
                break
            self._read += len(batch.values)
            if batch.rejected:
                self._rejected.process_batch(batch.rejected, None)
            if batch.values:
                self._head.process_batch(batch.values, batch.timestamps)
            # a source that never waits must not keep everybody else from running
            await asyncio.sleep(0)
        self.end()

    def end(self) -> None:
        """Tell the pipeline that this source is at its end, once."""
        if not self._ended:
            self._ended = True
            for operator in (self._head, self._rejected):
                operator.advance_watermark(MAX_TIMESTAMP)
                operator.end_input()

    def metrics(self) -> dict[str, int]:
        return {"read": self._read}
