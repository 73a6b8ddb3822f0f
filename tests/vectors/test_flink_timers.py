"""What Flink's KeyedProcessOperator and its timer service do, case by case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from asyncstream.elements import Timestamps
from asyncstream.operators.base import Operator, OperatorContext, pairs
from asyncstream.operators.process import KeyedProcessOperator
from asyncstream.state import KeyedState, ValueDescriptor
from asyncstream.timers import TimerService
from tests.on_disk import IN_MEMORY_AND_ON_DISK
from tests.vectors.canonical import canonical
from tests.vectors.cases import Case, cases
from tests.vectors.driver import Rules, play
from tests.vectors.scripted import Scripted

FILE = "flink_timers.jsonl"


class Namespaced(Operator):
    """The timer service as an operator that gives its timers namespaces uses it."""

    def __init__(self, rules: Rules, where: dict[str, Any]) -> None:
        super().__init__()
        self.rules, self.where = rules, where

    def open(self, context: OperatorContext) -> None:
        super().open(context)
        self.state = KeyedState(context.clock, self.tables)
        self.count = self.state.state(ValueDescriptor[int]("count"))
        self.timers = TimerService(
            lambda t, key, namespace: self.fired("e", t, key, namespace),
            lambda t, key, namespace: self.fired("p", t, key, namespace),
            context.wake_at,
            tables=self.tables,
        )

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        for (key, commands), timestamp in pairs(values, timestamps):
            self.state.key = key
            self.run(commands, timestamp, lambda emitted: self.emit(None, emitted))

    def fired(self, domain: str, timestamp: int, key: Any, namespace: Any) -> None:
        self.state.key = key
        self.where["cb"] += 1
        timer = [domain, timestamp]
        now_ms = self.context.clock.now_ms()
        told = ["timer", domain, key, namespace, timestamp, self.state.key, self.timers.watermark, now_ms]
        self.emit(timer, told)
        commands = self.rules.commands(domain, key, timestamp, namespace)
        self.run(commands, timestamp, lambda emitted: self.emit(timer, emitted), timer)

    def emit(self, timer: Any, value: Any) -> None:
        self.out.process((timer, None if timer is None else self.where["cb"], value), None)

    def run(
        self, commands: Any, timestamp: int | None, out: Callable[[Any], None], timer: Any = None
    ) -> None:
        key, timers, now_ms = self.state.key, self.timers, self.context.clock.now_ms()
        for name, *arguments in commands:
            if name.startswith("list"):
                queue = timers.event if name == "list_e" else timers.processing
                listed = sorted([timer.key, timer.namespace, timer.timestamp] for timer in queue)
                out([name, listed])
            elif name.startswith(("reg", "del")):
                namespace, time = arguments
                if name == "reg_e_after":
                    assert timestamp is not None
                    time += timestamp
                elif name == "reg_p_after":
                    time += now_ms
                if name.startswith("reg_e"):
                    timers.event.register(time, key, namespace)
                elif name.startswith("reg_p"):
                    timers.register_processing(time, key, namespace)
                else:
                    (timers.event if name == "del_e" else timers.processing).delete(time, key, namespace)
            elif name == "emit":
                out(["emit", key, arguments[0]])
            elif name == "side":
                number = None if timer is None else self.where["cb"]
                self.side_output("aside").process((timer, number, ["side", key, arguments[0]]), timestamp)
            elif name == "count":
                counted = (self.count.get() or 0) + 1
                self.count.set(counted)
                out(["count", key, counted])
            elif name == "clear":
                self.count.clear()
            else:
                assert name == "now"
                out(["now", key, timers.watermark, now_ms, timestamp])

    def advance_watermark(self, timestamp: int) -> None:
        self.timers.advance_watermark(timestamp)
        super().advance_watermark(timestamp)

    def advance_clock(self, now_ms: int) -> None:
        self.timers.advance_clock(now_ms)

    def metrics(self) -> dict[str, int]:
        return {
            "state_entries": len(self.state),
            "event_timers": len(self.timers.event),
            "processing_timers": len(self.timers.processing),
        }


def run(case: Case, *, on_disk: bool) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """The transcript of a case and the counts at its end."""
    where = {"op": -1, "cb": 0}
    rules = Rules(case["on_timer"])

    def make() -> Operator:
        if case["kind"] == "keyed_process":
            return KeyedProcessOperator(lambda value: value[0], Scripted(rules, where))
        return Namespaced(rules, where)

    return play(case, make, where, on_disk=on_disk)


@pytest.mark.parametrize("case", cases(FILE, "keyed_process", "internal_timers"))
@IN_MEMORY_AND_ON_DISK
def test_does_what_flink_does(case: Case, on_disk: bool) -> None:
    records, final = run(case, on_disk=on_disk)
    assert canonical(case, records) == canonical(case, case["expected"])
    assert final == case["final"]
