"""
What becomes of an element and the row that it asks for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from asyncstream.operators.spec import KeyBy

__all__ = ("MISSED", "How", "Joined")

How: TypeAlias = Literal["left", "inner"]
"""Of an element without a row: it is given with None, or left out."""

MISSED: Final = "missed"
"""Tag of the output for elements whose row is not there."""


@dataclass(frozen=True)
class Joined:
    """
    What is asked, and what is made of the answer.

    Attributes:
        on: gives for an element the key of its row.
        into: makes one of an element and its row; None: a pair.
        how: what becomes of an element without a row.
        asks: such an element goes to `missed` instead.
    """

    on: KeyBy
    into: Callable[[Any, Any], Any] | None = None
    how: How = "left"
    asks: bool = False
