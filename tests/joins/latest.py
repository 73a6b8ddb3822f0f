"""A function of two inputs, which keeps state."""

from __future__ import annotations

from asyncstream import KeyedContext, KeyedCoProcessFunction
from asyncstream.operators.emitting import Emitter
from asyncstream.state import ValueDescriptor


class Latest(KeyedCoProcessFunction[int, int, str]):
    def open(self, ctx: KeyedContext) -> None:
        self.latest = ctx.state(ValueDescriptor[int]("latest"))

    def process_left(self, value: int, ctx: KeyedContext, out: Emitter[str]) -> None:
        out(f"{ctx.key}: {value} with {self.latest.get()}")

    def process_right(self, value: int, ctx: KeyedContext, out: Emitter[str]) -> None:
        self.latest.set(value)
