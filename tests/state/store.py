"""Keyed state by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncstream.clock import Clock
from asyncstream.state import KeyedState, Tables
from asyncstream.state.upgrade import keyed_state, snapshot


class Store(KeyedState):
    """Keyed state with tables of its own, and what an operator does with them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.tables = Tables()
        super().__init__(clock, self.tables)

    def snapshot(self) -> dict[str, Any]:
        self.purge()
        return self.tables.snapshot()

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.tables.restore(dict(kept))

    def restore_old(self, kept: Mapping[str, Any]) -> None:
        """Of a version that kept each state in a form of its own."""
        tables, kinds = keyed_state("state", kept)
        self.restore(snapshot(tables, {"state": kinds}, {"state": "merge"}))

    def rows(self, name: str) -> list[Any]:
        """[key, value] of all entries of a state, as a snapshot has them."""
        kept = self.snapshot()["tables"].get(f"state/{name}", ())
        return [row for _, rows in kept for row in rows]
