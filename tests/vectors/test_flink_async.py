"""What Flink's AsyncWaitOperator does, case by case."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from asyncstream.async_wait import AsyncWaitOperator, AsyncWaitSettings, OutputOrder
from asyncstream.elements import Timestamps
from asyncstream.errors import RetriesExhausted
from asyncstream.guards import retry
from asyncstream.operators.base import Operator, OperatorContext, pairs
from tests.async_wait.rig import ScriptedTimeLoop
from tests.vectors.cases import Case, cases

ORDERS = {"ordered": OutputOrder.ORDERED, "unordered": OutputOrder.EVENT_TIME}

CASES = [
    *cases("flink_async.jsonl", "async_wait"),
    *cases("flink_async_restart.jsonl", "async_wait"),
    *cases("flink_async_more.jsonl", "async_wait"),
]

PASSES = 20
"""Passes of the event loop in which everything that follows from one step has happened."""

HOUR_MS = 3_600_000

EMISSIONS = ("out", "wm", "timeout", "fail", "ended")


class Script(Operator):
    """Runs one case; it stands downstream of the operator, and plays the service that is called."""

    def __init__(self, case: Case, loop: ScriptedTimeLoop) -> None:
        super().__init__()
        self.case, self.loop = case, loop
        self.records: list[dict[str, Any]] = []
        self.step = -1
        self.failed = False
        self.calls: dict[str, asyncio.Future[list[Any]]] = {}

    def record(self, kind: str, what: Any, **more: Any) -> None:
        if not self.failed:
            self.records.append({"op": self.step, kind: what, **more})

    # ---------------------------------------------------------------- downstream

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        for value, timestamp in pairs(values, timestamps):
            self.record("out", value, ts=timestamp)

    def advance_watermark(self, timestamp: int) -> None:
        self.record("wm", timestamp)

    def end_input(self) -> None:
        self.record("ended", True)

    def fail(self, error: BaseException) -> None:
        self.record("fail", type(error).__name__)
        self.failed = True

    # ---------------------------------------------------------------- the service

    def guarded(self) -> Callable[[str], Awaitable[list[Any]]]:
        """The call, again by the strategy of the case, if it has one."""
        strategy = self.case.get("retry")
        if strategy is None:
            return self.call
        again = retry(
            self.call,
            attempts=strategy["attempts"] + 1,  # Flink counts from the second
            timeout=None,
            wait_initial=strategy["delay"] / 1000,
            wait_max=strategy.get("max_delay", HOUR_MS) / 1000,
            wait_jitter=0,
            wait_exp_base=strategy.get("multiplier", 1),
            on=lambda error: strategy["on_error"],
            on_result=(lambda results: not results) if strategy["on_empty"] else None,
        )

        async def or_nothing(element: str) -> list[Any]:
            try:
                return await again(element)
            except RetriesExhausted as exhausted:
                if exhausted.__cause__ is not None:
                    raise
                return []  # Flink emits the last result, though it was refused

        return or_nothing

    async def call(self, element: str) -> list[Any]:
        self.record("invoke", element)
        self.calls[element] = self.loop.create_future()
        results: list[Any] = await self.calls[element]
        return results

    def waiting(self, element: str) -> asyncio.Future[list[Any]] | None:
        """The call of an element, unless its time was up, or it was done with before a restart."""
        call = self.calls.get(element)
        return None if call is None or call.done() else call

    def timed_out(self, element: str) -> list[Any]:
        self.record("timeout", element)
        if self.case["on_timeout"] == "fail":
            raise TimeoutError
        return [f"timeout:{element}"]

    # ---------------------------------------------------------------- the script

    def opened(self) -> AsyncWaitOperator:
        timeout = self.case["timeout"]
        settings = AsyncWaitSettings(
            self.guarded(),
            order=ORDERS[self.case["mode"]],
            concurrency=self.case["capacity"],
            buffer=self.case["capacity"],
            timeout=timeout / 1000 if timeout else None,
            on_timeout=self.timed_out if timeout else "fail",
            replay="all",
            flat=True,
        )
        operator = AsyncWaitOperator(settings)
        operator.out = self
        operator.open(OperatorContext(clock=self.loop, fail=self.fail))
        return operator

    async def run(self) -> None:
        operator = self.opened()
        for step in self.case["ops"]:
            self.step += 1
            if "el" in step:
                operator.process(*step["el"])
            elif "wm" in step:
                operator.advance_watermark(step["wm"])
            elif "pt" in step:
                self.loop.now = step["pt"] / 1000
            elif "done" in step:
                element, results = step["done"]
                if (call := self.waiting(element)) is not None:
                    call.set_result(results)
            elif "fail" in step:
                if (call := self.waiting(step["fail"])) is not None:
                    call.set_exception(RuntimeError("as the script says"))
            elif "restart" in step:
                kept = operator.snapshot()
                await operator.stop()
                self.calls = {}
                operator = self.opened()
                operator.restore(kept)
            else:
                assert "end" in step
                operator.end_input()
            for _ in range(0 if step.get("hold") else PASSES):
                await asyncio.sleep(0)
        await operator.stop()


def of_step(records: list[dict[str, Any]], number: int, *kinds: str) -> list[dict[str, Any]]:
    # which exception failed the job is Java's affair
    return [
        {**record, "fail": True} if "fail" in record else record
        for record in records
        if record["op"] == number and any(kind in record for kind in kinds)
    ]


def called_at(records: list[dict[str, Any]], number: int, case: Case) -> list[str]:
    """
    The elements called at a step.

    In no order after a restart, where it is that of a hash set in Flink, and of calls that are made again
    when the clock moves: the loop keeps timers of one time in none.
    """
    called = [record["invoke"] for record in of_step(records, number, "invoke")]
    step = case["ops"][number]
    return sorted(called) if "restart" in step or ("retry" in case and "pt" in step) else called


@pytest.mark.parametrize("case", CASES)
def test_does_what_flink_does(case: Case) -> None:
    with asyncio.Runner(loop_factory=ScriptedTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, ScriptedTimeLoop)
        script = Script(case, loop)
        runner.run(script.run())
    # What a step emits and which calls it starts have an order each. How the two interleave within a step
    # is scheduling, not semantics: Flink's mailbox hands over one result at a time, a turn a whole batch.
    expected = case["expected"]
    for number in range(len(case["ops"])):
        emitted = of_step(script.records, number, *EMISSIONS)
        assert emitted == of_step(expected, number, *EMISSIONS), f"step {number}"
        called = called_at(script.records, number, case)
        assert called == called_at(expected, number, case), f"step {number}"
