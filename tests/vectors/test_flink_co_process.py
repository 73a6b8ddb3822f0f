"""What Flink's KeyedCoProcessOperator does, case by case: state and timers of a key shared by two inputs."""

from __future__ import annotations

from typing import Any

import pytest

from asyncstream.joins.co_process import KeyedCoProcessFunction, KeyedCoProcessOperator
from asyncstream.operators.base import Operator
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.keyed_context import KeyedContext, TimeDomain
from asyncstream.state import ListDescriptor, ValueDescriptor
from tests.vectors.cases import Case, cases
from tests.vectors.driver import Rules, counts
from tests.vectors.scripted import Scripted
from tests.vectors.two_inputs import check, comparable, key_of, play

FILE = "flink_co_process.jsonl"


class ScriptedTwo(Scripted, KeyedCoProcessFunction[Any, Any, Any]):
    process_left = Scripted.process_element
    process_right = Scripted.process_element


class Told(KeyedCoProcessFunction[Any, Any, Any]):
    """Emits with the number of the timer call, if it is one; elements are (key, value)."""

    def __init__(self, case: Case, where: dict[str, Any]) -> None:
        self.settings, self.where = case["function"], where
        self.timer: tuple[Any, Any] = (None, None)

    def process_input(self, number: int, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.timer = (None, None)
        self.element(number + 1, value[1], ctx, out)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.where["cb"] += 1
        self.timer = (["e" if ctx.domain is TimeDomain.EVENT else "p", timestamp], self.where["cb"])
        self.fired(timestamp, ctx, out)

    def element(self, number: int, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None: ...

    def fired(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None: ...

    def told(self, *parts: Any) -> Any:
        return (*self.timer, list(parts))


class EnrichLatest(Told):
    def open(self, ctx: KeyedContext) -> None:
        self.latest = ctx.state(ValueDescriptor[Any]("latest"))

    def element(self, number: int, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        if number == 2:
            self.latest.set(value)
        else:
            out(self.told("enrich", ctx.key, value, self.latest.get()))


class MatchTimeout(Told):
    def open(self, ctx: KeyedContext) -> None:
        self.pending = ctx.state(ValueDescriptor[Any]("pending"))

    def element(self, number: int, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        pending = self.pending.get()
        if pending is not None:
            ctx.delete_event_timer(pending[2])
            if pending[0] != number:
                left, right = (pending[1], value) if number == 2 else (value, pending[1])
                out(self.told("match", ctx.key, left, right))
                self.pending.clear()
                return
            ctx.side("aside", self.told("replaced", ctx.key, number, pending[1]))
        deadline = ctx.timestamp + self.settings["timeout"]
        self.pending.set((number, value, deadline))
        ctx.register_event_timer(deadline)

    def fired(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        pending = self.pending.get()
        if pending is not None and pending[2] == timestamp:
            ctx.side("aside", self.told("timeout", ctx.key, *pending[:2]))
            self.pending.clear()


class CountBoth(Told):
    def open(self, ctx: KeyedContext) -> None:
        self.counts = ctx.state(ValueDescriptor[Any]("counts"))

    def element(self, number: int, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        counted = self.counts.get()
        if counted is None:
            ctx.register_processing_timer(ctx.now_ms + self.settings["interval"])
            counted = [0, 0]
        counted[number - 1] += 1
        self.counts.set(counted)

    def fired(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        out(self.told("counts", ctx.key, *(self.counts.get() or [0, 0])))
        self.counts.clear()


class Gate(Told):
    def open(self, ctx: KeyedContext) -> None:
        self.is_open = ctx.state(ValueDescriptor[bool]("open"))
        self.buffer = ctx.state(ListDescriptor[Any]("buffer"))

    def element(self, number: int, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        if number == 2:
            if not value:
                self.is_open.clear()
                return
            self.is_open.set(True)
            for held, _ in self.buffer.get():
                out(self.told("pass", ctx.key, held, "buffered"))
            self.buffer.clear()
        elif self.is_open.get():
            out(self.told("pass", ctx.key, value, "direct"))
        else:
            deadline = ctx.timestamp + self.settings["max_wait"]
            self.buffer.add((value, deadline))
            ctx.register_event_timer(deadline)

    def fired(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        held = list(self.buffer.get())
        for value, deadline in held:
            if deadline == timestamp:
                ctx.side("aside", self.told("expired", ctx.key, value))
        self.buffer.set([one for one in held if one[1] != timestamp])


class Silence(Told):
    def open(self, ctx: KeyedContext) -> None:
        self.alarms = ctx.state(ValueDescriptor[Any]("alarms"))

    def element(self, number: int, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        counted = self.quieten(ctx) + 1
        alarms = (ctx.timestamp + self.settings["gap_e"], ctx.now_ms + self.settings["gap_p"])
        ctx.register_event_timer(alarms[0])
        ctx.register_processing_timer(alarms[1])
        self.alarms.set((*alarms, counted))

    def quieten(self, ctx: KeyedContext) -> int:
        before = self.alarms.get()
        if before is None:
            return 0
        ctx.delete_event_timer(before[0])
        ctx.delete_processing_timer(before[1])
        counted: int = before[2]
        return counted

    def fired(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        counted = self.quieten(ctx)
        out(self.told("silent", ctx.key, self.timer[0][0], timestamp, counted))
        self.alarms.clear()


FUNCTIONS: dict[str, type[Told]] = {
    "enrich_latest": EnrichLatest,
    "match_timeout": MatchTimeout,
    "count_both": CountBoth,
    "gate": Gate,
    "silence": Silence,
}


def run(case: Case, *, on_disk: bool = False) -> Any:
    where: dict[str, Any] = {"op": 0, "cb": 0}
    rules = Rules(case.get("on_timer", []))  # they outlive a restart

    def make() -> Operator:
        kind = case["function"]["kind"]
        function: KeyedCoProcessFunction[Any, Any, Any] = (
            ScriptedTwo(rules, where) if kind == "script" else FUNCTIONS[kind](case, where)
        )
        return KeyedCoProcessOperator((key_of, key_of), function)

    return play(case, make, {"aside": "side"}, counts, where, on_disk=on_disk)


@pytest.mark.parametrize("case", cases(FILE, "co_process"))
def test_does_what_flink_does(case: Case) -> None:
    check(case, run(case), comparable)


@pytest.mark.parametrize("case", cases(FILE, "co_process")[::5])
def test_does_the_same_with_its_state_on_disk(case: Case) -> None:
    check(case, run(case, on_disk=True), comparable)
