"""
Elements of an async step, or results of its calls, in columns: a list for each thing that is known of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from asyncstream.operators.origins import Origin

__all__ = ("Columns",)


class Columns(NamedTuple):
    """Elements or results; a timestamp for each, and an origin, where these are tracked."""

    values: list[Any]
    timestamps: list[int | None]
    origins: list[Origin | None]

    def take(self) -> Columns:
        """All that is in these lists, which are empty then."""
        taken = Columns(self.values.copy(), self.timestamps.copy(), self.origins.copy())
        self.values.clear()
        self.timestamps.clear()
        self.origins.clear()
        return taken
