"""
Lookups in a table that is read whole, and read again in the background.

    start ──▶ read ──▶ rows ──▶ elements
               ▲                   │ every so often, by the clock
               └───── a task ◀─────┘ the rows of before are used until it has ended

The rows are no state: they are read when the job starts, before the first element, also after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asyncstream.aside import is_at_work
from asyncstream.async_wait.tasks import end_tasks
from asyncstream.elements import Timestamps
from asyncstream.errors import PipelineError, SourceError, describe_error, naming_step
from asyncstream.long_work import in_slices
from asyncstream.lookup.answers import MISSED, Answers, Joined
from asyncstream.lookup.table import SLICE, LookupTable
from asyncstream.operators.flow import Attended
from asyncstream.operators.spec import Spec

__all__ = ("ReadLookup", "ReadLookupSpec")

_log = logging.getLogger("asyncstream.lookup")


class ReadLookup(Attended):
    """
    Emits each element with its row, at once and in order; passes all else on.

    It does not start before the table has been read. Then it never waits for it: while it is read again, and
    if that fails, the rows of before are used. A failure is in the log and in `failed_reads`.
    Snapshot holds: nothing.
    """

    def __init__(self, table: LookupTable[Any], joined: Joined) -> None:
        super().__init__()
        self._table = table
        self._rows: dict[Any, Any] = {}
        self._answers = Answers(self, joined)
        self._reads = 0
        self._failed_reads = 0
        self._is_failing = False
        self._due_ms: int | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_open = False

    async def start(self) -> None:
        self._is_open = True
        await self._table.open()
        with naming_step(self.context.name, PipelineError, SourceError):
            self._rows = await self._table.read()
        self._reads += 1
        self._wait()

    async def stop(self) -> None:
        self._due_ms = None
        try:
            if self._reading is not None:
                await end_tasks([self._reading], self.context.patience)
        finally:
            if self._is_open:
                self._is_open = False
                await self._table.close()

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._answers.give(values, timestamps, self._rows.get)

    def advance_clock(self, now_ms: int) -> None:
        is_reading = self._reading is not None and not self._reading.done()
        if not is_reading and self._due_ms is not None and self._due_ms <= now_ms:
            self._reading = asyncio.get_running_loop().create_task(self._read_again())

    def metrics(self) -> dict[str, int]:
        return {
            "table_rows": len(self._rows),
            "reads": self._reads,
            "failed_reads": self._failed_reads,
            "missed": self._answers.missed,
        }

    def _wait(self) -> None:
        """Ask to be woken when the next reading is due."""
        if self._table.every_ms is not None:
            self._due_ms = self.context.clock.now_ms() + self._table.every_ms
            self.context.wake_at(self._due_ms)

    async def _read_again(self) -> None:
        me = asyncio.current_task()
        try:
            before, self._rows = self._rows, await self._table.read()
            self._reads += 1
            self._is_failing = False
            await in_slices(_letting_go(before))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a cancellation is one more error, unless it is the job that stops
            if isinstance(error, asyncio.CancelledError) and self._due_ms is None:
                raise
            if not is_at_work(me):  # it is collected, for its loop is gone
                raise
            self._failed_reads += 1
            is_known, self._is_failing = self._is_failing, True
            _log.warning(
                "step %r: reading %s again failed, and the rows of before are used: %s",
                self.context.name,
                self._table.shown,
                describe_error(error),
                exc_info=None if is_known else error,  # where it fails is said once, until it has worked
            )
        self._wait()


def _letting_go(rows: dict[Any, Any]) -> Iterator[None]:
    """Let rows go that nobody asks for any more: all at once would hold the event loop."""
    while rows:
        for _ in range(min(SLICE, len(rows))):
            rows.popitem()
        yield


@dataclass(frozen=True)
class ReadLookupSpec(Spec):
    """
    Looks elements up in a table that is read whole.

    Attributes:
        table: which.
        joined: what is asked, and what is made of the answer.
    """

    table: LookupTable[Any]
    joined: Joined

    operator = ReadLookup
    counters = ("reads", "failed_reads", "missed")
    needs_loop = "looks things up in a table that is read again in the background"

    def build(self) -> ReadLookup:
        return ReadLookup(self.table, self.joined)

    @property
    def required(self) -> tuple[str, ...]:
        return (MISSED,) if self.joined.asks else ()
