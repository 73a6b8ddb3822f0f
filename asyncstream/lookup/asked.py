"""
Rows that a table does not have, asked for one by one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from asyncstream.lookup.rows import Joined
from asyncstream.operators.functions import AsyncFunction
from asyncstream.sharing import hold, release

__all__ = ("Asked",)


class Asked(AsyncFunction[Any, list[Any]]):
    """
    Asks for the row of an element; gives what is made of the two, in a list, which is empty without.

    Args:
        fn: gives the row of an element, or None.
        joined: what is made of it.
    """

    def __init__(self, fn: Callable[[Any], Awaitable[Any]] | AsyncFunction[Any, Any], joined: Joined) -> None:
        self.fn = fn
        self._joined = joined
        self._ask = fn.invoke if isinstance(fn, AsyncFunction) else fn
        self.__name__ = getattr(fn, "__name__", type(fn).__name__)

    async def open(self) -> None:
        if isinstance(self.fn, AsyncFunction):
            await hold(self.fn)

    async def close(self) -> None:
        if isinstance(self.fn, AsyncFunction):
            await release(self.fn)

    def metrics(self) -> dict[str, int]:
        return self.fn.metrics() if isinstance(self.fn, AsyncFunction) else {}

    def counter_names(self) -> tuple[str, ...]:
        return self.fn.counter_names() if isinstance(self.fn, AsyncFunction) else ()

    async def invoke(self, value: Any) -> list[Any]:
        row = await self._ask(value)
        if row is None and self._joined.how == "inner":
            return []
        into = self._joined.into
        return [(value, row) if into is None else into(value, row)]
