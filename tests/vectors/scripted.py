"""A process function that does what a recorded case tells it to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncstream.operators.emitting import Emitter
from asyncstream.operators.keyed_context import KeyedContext, TimeDomain
from asyncstream.operators.process import KeyedProcessFunction
from asyncstream.state import ValueDescriptor
from tests.vectors.driver import Rules


class Scripted(KeyedProcessFunction[Any, Any]):
    """Runs the commands of the case; everything emitted says which timer call it is from."""

    def __init__(self, rules: Rules, where: dict[str, Any]) -> None:
        self.rules, self.where = rules, where

    def open(self, ctx: KeyedContext) -> None:
        self.count = ctx.state(ValueDescriptor[int]("count"))

    def process_element(self, value: Any, ctx: KeyedContext, out: Emitter[Any]) -> None:
        self.run(value[1], ctx, lambda emitted: out((None, None, emitted)), None)

    def on_timer(self, timestamp: int, ctx: KeyedContext, out: Emitter[Any]) -> None:
        domain = "e" if ctx.domain is TimeDomain.EVENT else "p"
        self.where["cb"] += 1
        number, timer = self.where["cb"], [domain, timestamp]
        out((timer, number, ["timer", domain, ctx.key, timestamp, ctx.watermark, ctx.now_ms]))
        commands = self.rules.commands(domain, ctx.key, timestamp)
        self.run(commands, ctx, lambda emitted: out((timer, number, emitted)), timer)

    def run(self, commands: Any, ctx: KeyedContext, out: Callable[[Any], None], timer: Any) -> None:
        for name, *arguments in commands:
            argument = arguments[0] if arguments else 0
            if name == "reg_e":
                ctx.register_event_timer(argument)
            elif name == "reg_p":
                ctx.register_processing_timer(argument)
            elif name == "del_e":
                ctx.delete_event_timer(argument)
            elif name == "del_p":
                ctx.delete_processing_timer(argument)
            elif name == "reg_e_after":
                ctx.register_event_timer(ctx.timestamp + argument)
            elif name == "reg_p_after":
                ctx.register_processing_timer(ctx.now_ms + argument)
            elif name == "emit":
                out(["emit", ctx.key, argument])
            elif name == "side":
                number = None if timer is None else self.where["cb"]
                ctx.side("aside", (timer, number, ["side", ctx.key, argument]))
            elif name == "count":
                counted = (self.count.get() or 0) + 1
                self.count.set(counted)
                out(["count", ctx.key, counted])
            elif name == "clear":
                self.count.clear()
            else:
                assert name == "now"
                out(["now", ctx.key, ctx.watermark, ctx.now_ms, ctx.timestamp_or_none])
