"""Classes of a script, which are in no module that workers know, and others with each run of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple


class Run:
    """One run of a script, with the classes that it defines."""

    def __init__(self) -> None:
        class Suit(Enum):
            HEARTS = "h"
            CLUBS = "c"

        @dataclass(frozen=True)
        class Card:
            suit: Suit
            rank: int

        class Place(NamedTuple):
            card: Card
            table: int

        self.suit, self.card, self.place = Suit, Card, Place
        for kind in (Suit, Card, Place):
            kind.__module__, kind.__qualname__ = "no_module_of_workers", kind.__name__

    def function(self) -> Callable[[Any], Any]:
        suit, card, place = self.suit, self.card, self.place
        return lambda row: place(card(suit(row["suit"]), row["rank"]), row["table"])
