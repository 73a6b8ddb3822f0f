"""
Puts one `AsyncWaitOperator` on a bench: feeds it, stands in for the service, writes down what comes out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from types import TracebackType
from typing import Any

from asyncstream.async_wait import AsyncWaitOperator, AsyncWaitSettings
from asyncstream.clock import SystemClock
from asyncstream.elements import Control, EndOfInput, IdleStatus, Timestamps, Watermark
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.operators.flow import Gate
from asyncstream.testing.loop import VirtualTimeLoop

__all__ = ("Log", "Rig", "ScriptedTimeLoop", "Service", "passes")


class ScriptedTimeLoop(VirtualTimeLoop):
    """Virtual time that moves in one jump to where the script says: all that is due then fires together."""

    now = 0.0

    def time(self) -> float:
        return self.now


async def passes(count: int = 12) -> None:
    """Let the event loop run until everything has followed that needs no time."""
    for _ in range(count):
        await asyncio.sleep(0)


class Log(Operator):
    """Writes down what arrives: `(value, timestamp)` or the control element."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []
        self.ended = asyncio.Event()

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.records += pairs(values, timestamps)

    def advance_watermark(self, timestamp: int) -> None:
        self.records.append(Watermark(timestamp))

    def set_idle(self, idle: bool) -> None:
        self.records.append(IdleStatus(idle))

    def end_input(self) -> None:
        self.records.append(EndOfInput())
        self.ended.set()

    @property
    def values(self) -> list[Any]:
        """Without timestamps; control elements as they are."""
        return [record[0] if isinstance(record, tuple) else record for record in self.records]


class Service:
    """
    A service whose answers the test gives by hand; an answer is by default ten times the element.

    Attributes:
        running: the elements whose calls run, with their answers.
        called: every element called for, in order.
        most: how many calls ran at once at the most.
        cancelled: elements whose calls were cancelled.
    """

    def __init__(self) -> None:
        self.running: dict[Any, asyncio.Future[Any]] = {}
        self.called: list[Any] = []
        self.cancelled: list[Any] = []
        self.most = 0

    async def __call__(self, value: Any) -> Any:
        self.called.append(value)
        assert value not in self.running
        answer = self.running[value] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.running))
        try:
            return await answer
        except asyncio.CancelledError:
            self.cancelled.append(value)
            raise
        finally:
            del self.running[value]

    @staticmethod
    async def echo(value: Any) -> Any:
        """Answers at once, with the element."""
        return value

    async def answer(self, *values: Any) -> None:
        """Answer calls, one after the other."""
        for value in values:
            self.running[value].set_result(value * 10)
            await passes()

    async def answer_with(self, value: Any, result: Any) -> None:
        """Answer a call with `result`, or by raising it."""
        if isinstance(result, BaseException):
            self.running[value].set_exception(result)
        else:
            self.running[value].set_result(result)
        await passes()


class Rig:
    """
    An operator between a test and a `Log`; an async context manager.

    Errors that the operator reports are collected in `errors`; leaving the block stops it.

    Args:
        function: what is called.
        state: what an earlier operator's `snapshot` gave.
        options: of `AsyncWaitSettings`.
    """

    def __init__(
        self,
        function: Any,
        *,
        state: Any = None,
        key_by: Callable[[Any], Hashable] | None = None,
        **options: Any,
    ) -> None:
        self.operator = AsyncWaitOperator(AsyncWaitSettings(function, key_by=key_by, **options))
        self.errors: list[BaseException] = []
        self.log = Log()
        self.failed = Log()
        self.timed_out = Log()
        self.operator.out = self.log
        self.operator.side = {"failed": self.failed, "timed_out": self.timed_out}
        self.feeding = Gate(lambda: None)
        self._state = state

    async def __aenter__(self) -> Rig:
        self.operator.gates = (self.feeding,)
        self.operator.open(OperatorContext("enrich", clock=SystemClock(), fail=self._fail))
        await self.operator.start()
        if self._state is not None:
            self.operator.restore(self._state)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.operator.stop()

    def feed(self, *elements: Any) -> None:
        """Values, `(value, timestamp)` pairs and control elements."""
        for element in elements:
            if isinstance(element, Watermark):
                self.operator.advance_watermark(element.timestamp)
            elif isinstance(element, IdleStatus):
                self.operator.set_idle(element.idle)
            elif isinstance(element, EndOfInput):
                self.operator.end_input()
            elif isinstance(element, tuple):
                self.operator.process(*element)
            else:
                self.operator.process(element, None)

    async def put(self, *elements: Any) -> None:
        """Feed, and let what follows from it happen."""
        self.feed(*elements)
        await passes()

    def _fail(self, error: BaseException) -> None:
        self.errors.append(error)
        self.log.ended.set()  # nothing more comes

    async def finish(self) -> list[Any]:
        """End the input, wait until all is out, or has failed; gives the values, without control elements."""
        self.operator.end_input()
        await self.log.ended.wait()
        return [value for value in self.log.values if not isinstance(value, Control)]

    @property
    def counts(self) -> dict[str, int]:
        return self.operator.metrics()
