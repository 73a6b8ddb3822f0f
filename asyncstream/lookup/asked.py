"""
Rows that a table does not have, asked for one by one.
"""

from __future__ import annotations

from typing import Any

from asyncstream.guards.guard import Call, Guard
from asyncstream.lookup.rows import Joined
from asyncstream.operators.functions import AsyncFunction, has_timeout_hook

__all__ = ("Asked",)


class Asked(Guard[Any, list[Any]]):
    """
    Asks for the row of an element; gives what is made of the two, in a list, which is empty without.

    Args:
        fn: gives the row of an element, or None.
        joined: what is made of it.
    """

    def __init__(self, fn: Call[Any, Any], joined: Joined) -> None:
        super().__init__(fn)
        self._joined = joined
        if isinstance(fn, AsyncFunction) and has_timeout_hook(fn):
            self.__dict__["timeout"] = lambda value: self._made(value, fn.timeout(value))

    async def invoke(self, value: Any) -> list[Any]:
        return self._made(value, await self._call(value))

    def _made(self, value: Any, row: Any) -> list[Any]:
        if row is None and self._joined.how == "inner":
            return []
        into = self._joined.into
        return [(value, row) if into is None else into(value, row)]
