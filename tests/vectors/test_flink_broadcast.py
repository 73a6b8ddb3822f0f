"""What Flink's CoBroadcastWithKeyedOperator does, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.joins.broadcast import (
    BroadcastContext,
    KeyedBroadcastOperator,
    KeyedBroadcastProcessFunction,
)
from asyncstream.operators.base import Operator
from asyncstream.operators.emitting import Emitter
from asyncstream.state import MapDescriptor, ValueDescriptor
from tests.vectors.cases import Case, cases
from tests.vectors.driver import Rules, counts
from tests.vectors.scripted import Scripted
from tests.vectors.two_inputs import check, comparable, key_of, play

FILE = "flink_broadcast.jsonl"

RULES = MapDescriptor[str, Any]("rules")
TOTAL = ValueDescriptor[int]("total")
COUNT = ValueDescriptor[int]("count")


class Told(KeyedBroadcastProcessFunction[Any, Any, Any]):
    """Elements are (key, value), and what it emits says which timer call it is from."""

    def __init__(self, where: dict[str, Any]) -> None:
        self.where = where

    def open(self, ctx: BroadcastContext) -> None:
        self.rules = ctx.broadcast_state(RULES)
        self.total = ctx.state(TOTAL)


class ThresholdRules(Told):
    def process_element(self, value: Any, ctx: BroadcastContext, out: Emitter[Any]) -> None:
        hits = [name for name, least in sorted(self.rules.items()) if value[1] >= least]
        for name in hits:
            out((None, None, ["hit", ctx.key, name, value[1]]))
        if not hits:
            ctx.side("aside", (None, None, ["none", ctx.key, value[1]]))

    def process_broadcast(self, value: Any, ctx: BroadcastContext, out: Emitter[Any]) -> None:
        name, threshold = value
        if threshold is None:
            self.rules.remove(name)
        else:
            self.rules.put(name, threshold)
        out((None, None, ["rules", len(self.rules)]))


class Totals(Told):
    def process_element(self, value: Any, ctx: BroadcastContext, out: Emitter[Any]) -> None:
        self.total.set((self.total.get() or 0) + value[1])

    def process_broadcast(self, value: Any, ctx: BroadcastContext, out: Emitter[Any]) -> None:
        what, *by = value
        found: list[Any] = []

        def visit(key: Any, total: Any) -> None:
            found.append((key, total.get()))
            if what == "add":
                total.set(total.get() + by[0])
            elif what == "reset":
                total.clear()

        ctx.apply_to_keyed_state(TOTAL, visit)
        if what == "report":
            for key, total in sorted(found):
                out((None, None, ["total", key, total]))
        else:
            out((None, None, [what, len(found)]))


class Delayed(Told):
    def process_element(self, value: Any, ctx: BroadcastContext, out: Emitter[Any]) -> None:
        self.total.set((self.total.get() or 0) + value[1])
        ctx.register_event_timer(ctx.timestamp + self.rules.get("delay", 5))

    def process_broadcast(self, value: Any, ctx: BroadcastContext, out: Emitter[Any]) -> None:
        self.rules.put("delay", value)

    def on_timer(self, timestamp: int, ctx: BroadcastContext, out: Emitter[Any]) -> None:
        self.where["cb"] += 1
        told = ["fire", ctx.key, timestamp, self.total.get(), self.rules.get("delay")]
        out((["e", timestamp], self.where["cb"], told))


class ScriptedRules(Scripted, KeyedBroadcastProcessFunction[Any, Any, Any]):
    def open(self, ctx: Any) -> None:
        super().open(ctx)
        self.shared = ctx.broadcast_state(RULES)

    def process_broadcast(self, value: Any, ctx: Any, out: Emitter[Any]) -> None:
        for name, *arguments in value:
            if name == "bput":
                self.shared.put(*arguments)
            elif name == "bdel":
                self.shared.remove(*arguments)
            elif name == "bclear":
                self.shared.clear()
            elif name == "blist":
                out((None, None, ["blist", None, sorted(map(list, self.shared.items()))]))
            elif name == "emit":
                out((None, None, ["emit", None, *arguments]))
            elif name == "side":
                ctx.side("aside", (None, None, ["side", None, *arguments]))
            elif name == "now":
                # how Flink writes "none" here, and only here
                stamp = MIN_TIMESTAMP if ctx.timestamp_or_none is None else ctx.timestamp
                out((None, None, ["now", None, ctx.watermark, ctx.now_ms, stamp]))
            else:
                self.apply(name, arguments, ctx, out)

    def apply(self, name: str, arguments: Any, ctx: Any, out: Emitter[Any]) -> None:
        found: list[Any] = []

        def visit(key: Any, count: Any) -> None:
            found.append((key, count.get()))
            if name == "apply_add":
                count.set(count.get() + arguments[0])
            elif name == "apply_clear":
                count.clear()

        ctx.apply_to_keyed_state(COUNT, visit)
        for key, count in sorted(found):
            out((None, None, ["apply", key, count]))

    def run(self, commands: Any, ctx: Any, out: Any, timer: Any) -> None:
        for command in commands:
            if command[0] == "bget":
                out(["bget", ctx.key, command[1], self.shared.get(command[1])])
            elif command[0] == "blist":
                out(["blist", ctx.key, sorted(map(list, self.shared.items()))])
            else:
                super().run([command], ctx, out, timer)


FUNCTIONS = {"threshold_rules": ThresholdRules, "totals": Totals, "delayed": Delayed}


def run(case: Case, *, on_disk: bool = False) -> Any:
    where: dict[str, Any] = {"op": 0, "cb": 0}
    rules = Rules(case.get("on_timer", []))

    def make() -> Operator:
        kind = case["function"]["kind"]
        function: KeyedBroadcastProcessFunction[Any, Any, Any] = (
            ScriptedRules(rules, where) if kind == "script" else FUNCTIONS[kind](where)
        )
        return KeyedBroadcastOperator(key_of, function)

    return play(case, make, {"aside": "side"}, counts, where, on_disk=on_disk)


@pytest.mark.parametrize("case", cases(FILE, "broadcast"))
def test_does_what_flink_does(case: Case) -> None:
    check(case, run(case), comparable)


@pytest.mark.parametrize("case", cases(FILE, "broadcast")[::5])
def test_does_the_same_with_its_state_on_disk(case: Case) -> None:
    check(case, run(case, on_disk=True), comparable)
