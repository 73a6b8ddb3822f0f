"""What Flink's keyed state does, case by case: all kinds, between timers and restarts; its time to live."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal

import pytest

from asyncstream.operators.emitting import Emitter
from asyncstream.operators.keyed_context import KeyedContext, TimeDomain
from asyncstream.operators.process import KeyedProcessFunction, KeyedProcessOperator
from asyncstream.state import (
    AggregatingDescriptor,
    ListDescriptor,
    MapDescriptor,
    ReducingDescriptor,
    TimeToLive,
    ValueDescriptor,
)
from asyncstream.windowing import Mean
from tests.on_disk import IN_MEMORY_AND_ON_DISK
from tests.vectors.canonical import canonical
from tests.vectors.cases import Case, cases
from tests.vectors.driver import Rules, play

LEFT_OUT = "return_expired_if_not_cleaned_up"
"""A mode in which expired entries are read as long as they happen to lie around: we do not have it."""


class StateOfAllKinds(KeyedProcessFunction[Any, Any]):
    """Runs commands on five pieces of state; each reading emits what it found."""

    def __init__(
        self, rules: Rules, where: dict[str, Any], ttl: Callable[[str], TimeToLive | None], total: Any
    ) -> None:
        self.rules, self.where, self.ttl, self.total = rules, where, ttl, total

    def open(self, ctx: KeyedContext) -> None:
        self.v = ctx.state(ValueDescriptor[int]("v", ttl=self.ttl("v")))
        self.l = ctx.state(ListDescriptor[int]("l", ttl=self.ttl("l")))
        self.m = ctx.state(MapDescriptor[str, int]("m", ttl=self.ttl("m")))
        self.r = ctx.state(ReducingDescriptor[int]("r", self.total, ttl=self.ttl("r")))
        self.a = ctx.state(AggregatingDescriptor[int, float]("a", Mean(), ttl=self.ttl("a")))

    def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.run(value[1], ctx, lambda emitted: out((None, None, emitted)))

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        domain = "e" if ctx.domain is TimeDomain.EVENT else "p"
        self.where["cb"] += 1
        number, timer = self.where["cb"], [domain, timestamp]
        out((timer, number, ["timer", domain, ctx.key, timestamp, ctx.watermark, ctx.now_ms]))
        commands = self.rules.commands(domain, ctx.key, timestamp)
        self.run(commands, ctx, lambda emitted: out((timer, number, emitted)))

    def run(self, commands: Any, ctx: KeyedContext, out: Callable[[Any], None]) -> None:
        for command, *arguments in commands:
            if command == "emit":
                out([command, ctx.key, *arguments])
            elif not (self.timer(command, arguments, ctx) or self.write(command.replace("_", ""), arguments)):
                out([command, ctx.key, *self.read(command, *arguments)])

    def timer(self, command: str, arguments: list[Any], ctx: KeyedContext) -> bool:
        match command:
            case "reg_e":
                ctx.register_event_timer(*arguments)
            case "reg_p":
                ctx.register_processing_timer(*arguments)
            case _:
                return False
        return True

    def write(self, command: str, arguments: list[Any]) -> bool:
        match command:
            case "vset":
                self.v.set(*arguments)
            case "ladd":
                self.l.add(*arguments)
            case "lext":
                self.l.extend(*arguments)
            case "lset":
                self.l.set(*arguments)
            case "mput":
                self.m.put(*arguments)
            case "mrem" | "mdel":
                self.m.remove(*arguments)
            case "radd":
                self.r.add(*arguments)
            case "aadd":
                self.a.add(*arguments)
            case "vclear" | "lclear" | "mclear" | "rclear" | "aclear":
                getattr(self, command[0]).clear()
            case _:
                return False
        return True

    def read(self, command: str, key: Any = None) -> list[Any]:
        """What is emitted behind the key; with underscores as the cases of time to live have it."""
        match command:
            case "vget" | "v_get" | "rget" | "r_get" | "aget":
                return [getattr(self, command[0]).get()]
            case "lget" | "l_get":
                return [self.l.get()]
            case "mget":
                return [self.m.get(key)]
            case "mhas":
                return [int(key in self.m)]
            case "m_get":
                return [key, self.m.get(key)]
            case "m_has":
                return [key, key in self.m]
            case "m_empty":
                return [len(self.m) == 0]
        assert command in ("mitems", "m_list")
        return [sorted([entry, value] for entry, value in self.m.items())]


def run(
    case: Case,
    function: Callable[[Rules, dict[str, Any]], StateOfAllKinds],
    *,
    on_disk: bool,
) -> tuple[Any, dict[str, int]]:
    where = {"op": -1, "cb": 0}
    rules = Rules(case.get("on_timer", []))

    def make() -> KeyedProcessOperator:
        return KeyedProcessOperator(lambda value: value[0], function(rules, where))

    return play(case, make, where, on_disk=on_disk)


@pytest.mark.parametrize("case", cases("flink_keyed_state.jsonl", "keyed_state"))
@IN_MEMORY_AND_ON_DISK
def test_state_of_all_kinds_does_what_flinks_does(case: Case, on_disk: bool) -> None:
    def ttl(name: str) -> TimeToLive | None:
        duration_ms = case["ttl"].get(name)
        return TimeToLive(timedelta(milliseconds=duration_ms)) if duration_ms else None

    records, final = run(
        case,
        lambda rules, where: StateOfAllKinds(rules, where, ttl, lambda a, b: a * 2 + b),
        on_disk=on_disk,
    )
    assert canonical(case, records) == canonical(case, case["expected"])
    expected = dict(case["final"])
    if case["ttl"]:  # we clean up as we write, Flink here does not
        del final["state"], expected["state"]
    assert final == expected


@pytest.mark.parametrize("case", cases("flink_ttl.jsonl", "ttl"))
@IN_MEMORY_AND_ON_DISK
def test_time_to_live_is_flinks(case: Case, on_disk: bool) -> None:
    if case["visibility"] == LEFT_OUT:
        pytest.skip("no mode reads what has expired")
    refresh: Literal["on_read", "on_write"] = "on_read" if "read" in case["update"] else "on_write"
    ttl = TimeToLive(timedelta(milliseconds=case["ttl"]), refresh=refresh)
    records, _ = run(
        case,
        lambda rules, where: StateOfAllKinds(rules, where, lambda name: ttl, lambda a, b: a + b),
        on_disk=on_disk,
    )
    assert canonical(case, records) == canonical(case, case["expected"])
