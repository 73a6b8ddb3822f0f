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

        class Table:
            @dataclass(frozen=True)
            class Seat:
                number: int

        @dataclass(frozen=True, slots=True)
        class Chip:
            worth: int

        self.suit, self.card, self.place, self.seat, self.chip = Suit, Card, Place, Table.Seat, Chip
        for kind in (Suit, Card, Place, Table):
            kind.__module__, kind.__qualname__ = "no_module_of_workers", kind.__name__
        Table.Seat.__module__, Table.Seat.__qualname__ = "no_module_of_workers", "Table.Seat"

    def function(self) -> Callable[[Any], Any]:
        suit, card, place, seat, chip = self.suit, self.card, self.place, self.seat, self.chip
        return lambda row: (
            place(card(suit(row["suit"]), row["rank"]), row["table"]),
            seat(row["seat"]),
            chip(row["worth"]),
        )
