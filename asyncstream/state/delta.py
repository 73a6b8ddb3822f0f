"""
What has changed in a table between two cuts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

from asyncstream.state.rows import Rows

__all__ = ("Changed", "Delta", "SavedRows")


class Changed(Protocol):
    """The rows of one namespace that were put: a dict, or what gives (key, value) as one does."""

    def items(self) -> Iterable[tuple[Any, Any]]:
        """Keys and values in their order."""

    def __len__(self) -> int:
        """How many there are."""


class SavedRows:
    """
    Rows as they are saved, each when it is asked for: there may be more than should be in memory twice.

    Args:
        rows: as they are.
        save_key, save: make of a key and a value what is saved.
    """

    __slots__ = ("_rows", "_save", "_save_key")

    def __init__(self, rows: Changed, save_key: Callable[[Any], Any], save: Callable[[Any], Any]) -> None:
        self._rows, self._save_key, self._save = rows, save_key, save

    def items(self) -> Iterator[tuple[Any, Any]]:
        save_key, save = self._save_key, self._save
        return ((save_key(key), save(value)) for key, value in self._rows.items())

    def __len__(self) -> int:
        return len(self._rows)


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
        self,
        rows: Mapping[Any, Rows] | Mapping[Any, SavedRows],
        gone: Mapping[Any, set[Any]] | None = None,
        dropped: Iterable[Any] = (),
    ) -> None:
        self.rows: Mapping[Any, Changed] = rows
        self.gone = {} if gone is None else gone
        self.dropped = dropped if isinstance(dropped, set) else set(dropped)

    def __bool__(self) -> bool:
        return bool(self.dropped or self.gone or self.rows)

    def __len__(self) -> int:
        """How many rows, keys and namespaces it names."""
        return sum(map(len, self.rows.values())) + sum(map(len, self.gone.values())) + len(self.dropped)
