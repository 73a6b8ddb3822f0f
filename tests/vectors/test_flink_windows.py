"""What Flink's WindowOperator does, case by case: the general operator, and the factory's choice."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from asyncstream.clock import ManualClock
from asyncstream.elements import Timestamps
from asyncstream.errors import AsyncStreamError
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.state import ValueDescriptor
from asyncstream.windowing import (
    AggregateFunction,
    ProcessWindowFunction,
    Reduce,
    WindowContext,
    WindowOperator,
    WindowPlan,
    WindowResult,
    window_operator,
)
from asyncstream.windowing.upgrade import panes_of
from tests.on_disk import IN_MEMORY_AND_ON_DISK, bring_away, keep_on_disk
from tests.vectors.canonical import canonical
from tests.vectors.cases import Case, cases
from tests.vectors.windows import (
    TRACED,
    Slipping,
    Traced,
    assigner,
    comparable_counts,
    evictor,
    trigger,
)

FILE = "flink_windows.jsonl"


class Average(AggregateFunction[tuple[str, int], float]):
    order_free = True

    def create(self) -> Any:
        return (0, 0)

    def add(self, accumulator: Any, value: tuple[str, int]) -> Any:
        return (accumulator[0] + value[1], accumulator[1] + 1)

    def merge(self, accumulator: Any, other: Any) -> Any:
        return (accumulator[0] + other[0], accumulator[1] + other[1])

    def result(self, accumulator: Any) -> float:
        return accumulator[0] / accumulator[1] if accumulator[1] else math.nan


class Listing(ProcessWindowFunction[WindowResult]):
    """All values; with `told`, also what the context knows."""

    def __init__(self, case: Case, where: dict[str, Any]) -> None:
        self.case = case
        self.told = case["function"]["kind"] == "process_context"
        self.sessions = "session" in case["assigner"]["kind"]
        self.where = where

    def process(
        self, key: Any, contents: Any, ctx: WindowContext, out: Callable[[WindowResult], None]
    ) -> None:
        is_untraced = self.where["untraced"] and self.where["step"] == "wm" and self.where["timer"] is None
        if is_untraced:
            self.where["cb"] += 1
        values: Any = [value for _, value in contents]
        if self.told:
            key_firings = ctx.key_state(ValueDescriptor[int]("firings", default=0))
            key_firings.set((key_firings.get() or 0) + 1)
            values = {"vals": values, "wm": ctx.watermark, "pt": ctx.now_ms, "key_firings": key_firings.get()}
            if not self.sessions:
                window_firings = ctx.window_state(ValueDescriptor[int]("firings", default=0))
                window_firings.set((window_firings.get() or 0) + 1)
                values["window_firings"] = window_firings.get()
        out(WindowResult(key, ctx.window.start_ms, ctx.window.end_ms, values))
        if is_untraced:
            self.where["operator"]._emitter.flush()

    def clear(self, key: Any, ctx: WindowContext) -> None:
        if self.told:
            self.where["operator"]._emitter.flush()
            record: dict[str, Any] = {"clear": [key, ctx.window.start_ms, ctx.window.end_ms]}
            if self.where["untraced"]:
                lateness = self.case["allowed_lateness"]
                self.where["cb"] += lateness > 0  # then it has a timer of its own
                record |= {"t": ["e", ctx.window.max_timestamp + lateness], "cb": self.where["cb"]}
            self.where["log"](record)
            if not self.sessions:
                ctx.window_state(ValueDescriptor[int]("firings", default=0)).clear()


class Log(Operator):
    """Writes down what an operator pushes."""

    def __init__(self, kind: str, where: dict[str, Any]) -> None:
        super().__init__()
        self.kind, self.where = kind, where

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        for value, timestamp in pairs(values, timestamps):
            record = {self.kind: list(value), "ts": timestamp}
            if self.where["untraced"] and self.where["step"] == "wm" and self.where["timer"] is None:
                # a fast operator: it emits nothing but results at the window's end, ticks aside
                self.where["cb"] += not self.where["told"]  # a function has counted what it was called for
                record |= {"t": ["e", timestamp], "cb": self.where["cb"]}
            self.where["log"](record)

    def advance_watermark(self, timestamp: int) -> None:
        if self.kind == "out":  # side outputs get it too; Flink's record has it once
            self.where["log"]({"wm": timestamp})


def plan(case: Case, where: dict[str, Any]) -> WindowPlan:
    aggregate: AggregateFunction[Any, Any] | None = None
    kind = case["function"]["kind"]
    if kind == "reduce_sum":
        aggregate = Reduce(lambda a, b: (a[0], a[1] + b[1]), order_free=True)
    elif kind == "aggregate_avg":
        aggregate = Average()
    return WindowPlan(
        assigner(case["assigner"], case["time"]),
        trigger=trigger(case["trigger"]),
        evictor=evictor(case["evictor"]),
        allowed_lateness_ms=case["allowed_lateness"],
        aggregate=aggregate,
        process=None if aggregate else Listing(case, where),
    )


def run(
    case: Case, path: str, *, on_disk: bool = False, slips: bool = True
) -> tuple[list[dict[str, Any]], dict[str, int] | None]:
    """
    The transcript of a case, and the counts at its end unless it ended in an error.

    Args:
        slips: the general operator makes Flink's slip, see `Slipping`; the fast ones never do.
    """
    records: list[dict[str, Any]] = []
    clock = ManualClock()
    where: dict[str, Any] = {"op": -1, "cb": 0, "timer": None, "step": "", "untraced": False}

    def log(record: dict[str, Any]) -> None:
        if where["timer"] is not None:
            record |= {"t": where["timer"], "cb": where["cb"]}
        if case["function"]["kind"] == "reduce_sum" and "out" in record and record["out"][3] is not None:
            record["out"][3] = record["out"][3][1]
        records.append({"op": where["op"], **record})

    where["log"] = log

    def key_by(element: tuple[str, int]) -> str:
        return element[0]

    def opened() -> Operator:
        described = where["plan"] = plan(case, where)
        operator = window_operator(key_by, described)
        where["told"] = described.process is not None
        where["untraced"] = type(operator) is not WindowOperator and path == "chosen"
        traced = TRACED.get(type(operator)) if where["untraced"] else Slipping if slips else Traced
        if traced is not None:
            operator = traced(key_by, described)
            operator.where = where
        operator.out = Log("out", where)
        if case["side_output"]:
            operator.side = {"late": Log("side", where)}
        if on_disk:
            keep_on_disk(operator)
        operator.open(OperatorContext(clock=clock))
        where["operator"] = operator
        return operator

    try:
        operator = opened()
        for number, step in enumerate(case["ops"]):
            where["op"], where["step"] = number, next(iter(step))
            if "el" in step:
                key, value, timestamp = step["el"]
                operator.process((key, value), timestamp)
            elif "wm" in step:
                operator.advance_watermark(step["wm"])
            elif "pt" in step:
                clock.set_ms(step["pt"])
                operator.advance_clock(step["pt"])
            elif "restart" in step:
                kept = operator.snapshot()
                operator = opened()
                operator.restore(kept)
            else:
                records.append({"op": number, "probe": counts(operator, where["plan"])})
            if on_disk:
                bring_away(operator.tables)
    except AsyncStreamError as error:
        records.append({"op": where["op"], "err": type(error).__name__})
        return records, None
    return records, counts(operator, where["plan"])


def counts(operator: Operator, described: WindowPlan) -> dict[str, int]:
    """As far as they are comparable: timers left by windows that merged away count with Flink."""
    kept = operator.snapshot()
    return {
        "panes": len(panes_of(kept, described)),
        "late_dropped": operator.metrics()["late_dropped"],
        "state": any(rows for name, rows in kept["tables"].items() if not name.startswith("timers/")),
    }


def comparable(record: dict[str, Any]) -> dict[str, Any]:
    if "probe" in record:
        return {**record, "probe": comparable_counts(record["probe"])}
    return {**record, "err": "error"} if "err" in record else record


@pytest.mark.parametrize("path", ["general", "chosen"])
@pytest.mark.parametrize("case", cases(FILE, "window"))
@IN_MEMORY_AND_ON_DISK
def test_does_what_flink_does(case: Case, path: str, on_disk: bool) -> None:
    is_sound = path == "chosen" and case["assigner"]["kind"] == "dynamic_session"
    records, final = run(case, path, on_disk=on_disk, slips=not is_sound)
    wanted, counted = case["expected"], case.get("final")
    if is_sound:
        wanted, counted = run(case, "general", on_disk=on_disk, slips=False)
    expected = [comparable(record) for record in wanted]
    assert canonical(case, [comparable(record) for record in records]) == canonical(case, expected)
    if final is not None:
        assert counted is not None
        assert final == comparable_counts(counted)
