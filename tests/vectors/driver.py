"""What the cases of keyed operators share: rules for their timers, a record of what comes out, a player."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from asyncstream.clock import ManualClock
from asyncstream.elements import MIN_TIMESTAMP, Timestamps
from asyncstream.operators.base import Operator, OperatorContext, pairs
from tests.on_disk import bring_away, keep_on_disk
from tests.vectors.cases import Case


class Rules:
    """Which commands a firing timer runs: those of the first rule that fits and is not used up."""

    def __init__(self, rules: list[dict[str, Any]]) -> None:
        self.rules = rules
        self.used = [0] * len(rules)

    def commands(self, domain: str, key: Any, timestamp: int, namespace: Any = None) -> list[Any]:
        facts = {"domain": domain, "key": key, "ts": timestamp, "ns": namespace}
        for number, rule in enumerate(self.rules):
            fits = all(rule[name] == fact for name, fact in facts.items() if name in rule)
            if fits and self.used[number] < rule.get("max", 1 << 60):
                self.used[number] += 1
                return list(rule["do"])
        return []


class Log(Operator):
    """Writes down what an operator pushes, with the step and the timer call it came from."""

    def __init__(self, kind: str, records: list[dict[str, Any]], where: dict[str, Any]) -> None:
        super().__init__()
        self.kind, self.records, self.where = kind, records, where

    def process_batch(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        for value, timestamp in pairs(values, timestamps):
            emitted = value
            calls: dict[str, Any] = {}
            if isinstance(value, tuple):  # (timer, number of the call, value)
                timer, number, emitted = value
                if timer is not None:
                    calls = {"t": timer, "cb": number}
            if self.kind == "side" and timestamp is None:
                timestamp = MIN_TIMESTAMP  # how Flink writes "none" here
            self.records.append({"op": self.where["op"], self.kind: emitted, "ts": timestamp, **calls})

    def advance_watermark(self, timestamp: int) -> None:
        if self.kind == "out":  # side outputs get it too; Flink's record has it once
            self.records.append({"op": self.where["op"], "wm": timestamp})


def play(
    case: Case, make: Callable[[], Operator], where: dict[str, Any], *, on_disk: bool = False
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """
    The transcript of a case and the counts at its end; `where` is kept at the step that is played.

    All that is remembered goes to disk after each step, if `on_disk`.
    """
    records: list[dict[str, Any]] = []
    clock = ManualClock()

    def opened() -> Operator:
        operator = make()
        operator.out = Log("out", records, where)
        operator.side = {"aside": Log("side", records, where)}
        if on_disk:
            keep_on_disk(operator)
        operator.open(OperatorContext(clock=clock))
        return operator

    operator, watermark = opened(), MIN_TIMESTAMP
    for number, step in enumerate(case["ops"]):
        where["op"] = number
        if "el" in step:
            key, commands, timestamp = step["el"]
            operator.process((key, commands), timestamp)
        elif "wm" in step:
            if step["wm"] > watermark:  # else Flink's valve in front ignores it
                watermark = step["wm"]
                operator.advance_watermark(watermark)
        elif "pt" in step:
            clock.set_ms(step["pt"])
            operator.advance_clock(step["pt"])
        elif "restart" in step:
            kept = operator.snapshot()
            operator, watermark = opened(), MIN_TIMESTAMP
            operator.restore(kept)
        else:
            records.append({"op": number, "probe": counts(operator)})
        if on_disk:
            bring_away(operator.tables)
    return records, counts(operator)


def counts(operator: Operator) -> dict[str, int]:
    metrics = operator.metrics()
    return {
        "state": metrics["state_entries"],
        "event_timers": metrics["event_timers"],
        "proc_timers": metrics["processing_timers"],
    }
