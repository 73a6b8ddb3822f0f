"""A function of whose state nobody knows before it is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncstream import KeyedProcessFunction


class Opens(KeyedProcessFunction[Any, Any]):
    """Asks for the state that `make` describes, and does nothing with it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make

    def open(self, ctx: Any) -> None:
        ctx.state(self.make())

    def process_element(self, value: Any, ctx: Any, out: Any) -> None: ...
