"""
Rows on disk that were read lately, as they are there: what is touched again and again is read once.

They also tell what need not be read before it is written: a row keeps its place among the others, and shares
its name with those of the same hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

__all__ = ("NOTHING", "Recent")

NOTHING: Final[list[Any]] = []
"""What stands under a name that has no entry."""


class Recent:
    """
    What stands under names, decoded.

    The names are in two dicts. When the newer one is full, it becomes the older, and what that had is
    forgotten, but for what was asked for meanwhile. So what is often asked for stays.
    """

    __slots__ = ("_limit", "_newer", "_older")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._newer: dict[bytes, Any] = {}
        self._older: dict[bytes, Any] = {}

    def get(self, name: bytes) -> Any:
        """What stands there, which may be `NOTHING`; None: that is not known."""
        held = self._newer.get(name)
        if held is None and (held := self._older.pop(name, None)) is not None:
            self.note(name, held)
        return held

    def note(self, name: bytes, held: Any) -> None:
        """This stands there."""
        newer = self._newer
        newer[name] = held
        if len(newer) >= self._limit:
            self._older, self._newer = newer, {}

    def renew(self, changed: Mapping[bytes, Any]) -> None:
        """
        This stands there now.

        Of no interest is what was not known, and what is new there: that something was looked for before it
        was put does not say that it is wanted again.
        """
        newer, older = self._newer, self._older
        for name, held in changed.items():
            rows = newer if name in newer else older
            if rows.get(name):
                rows[name] = held
            else:
                newer.pop(name, None)
                older.pop(name, None)

    def forget(self, names: Iterable[bytes]) -> None:
        """Nothing is known of these names any more."""
        for name in names:
            self._newer.pop(name, None)
            self._older.pop(name, None)

    def clear(self) -> None:
        """Nothing is known of any."""
        self._newer, self._older = {}, {}
