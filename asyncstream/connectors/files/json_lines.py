"""
Elements as lines of JSON; and what makes lines of any kind, those of CSV too (`csv_lines`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from asyncstream.connectors.rows import Default, JsonWriter

__all__ = ("Encoding", "JsonLines")


class Encoding(Protocol):
    """Makes lines of elements."""

    def head(self) -> bytes:
        """What comes before the first element of an empty file; nothing while that is not known."""

    def line(self, value: Any) -> bytes:
        """The line of an element, with its end; may raise anything."""

    def lines(self, values: Sequence[Any]) -> bytes | None:
        """The lines of elements, if that is quicker than one by one; None: ask for that of each."""


class JsonLines:
    """One JSON value per line."""

    def __init__(self, default: Default | None) -> None:
        self.line = JsonWriter(default, orjson.OPT_APPEND_NEWLINE).write

    def head(self) -> bytes:
        return b""

    def lines(self, values: Sequence[Any]) -> None:
        return None
