"""
What has changed in a table between two cuts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from asyncstream.state.rows import Rows

__all__ = ("Delta",)


class Delta:
    """
    What has changed in a table between two cuts; nothing in it changes any more.

    Attributes:
        dropped: namespaces of which nothing is left but what is in `rows`.
        gone: keys by namespace that were removed.
        rows: what was put, values by key, by namespace; a row that is gone too was put again after that.
    """

    __slots__ = ("dropped", "gone", "rows")

    def __init__(
        self, rows: dict[Any, Rows], gone: Mapping[Any, set[Any]] | None = None, dropped: Iterable[Any] = ()
    ) -> None:
        self.rows = rows
        self.gone = {} if gone is None else gone
        self.dropped = dropped if isinstance(dropped, set) else set(dropped)

    def __bool__(self) -> bool:
        return bool(self.dropped or self.gone or self.rows)

    def __len__(self) -> int:
        """How many rows, keys and namespaces it names."""
        return sum(map(len, self.rows.values())) + sum(map(len, self.gone.values())) + len(self.dropped)
