"""
The last of a stream of items, numbered, for any number of readers, each at its own pace.

One buffer serves all: a reader is no more than the number of the item that it has read. One that is slow, or
comes back after a while, goes on where it was as long as that is still kept, and is told what it has missed
otherwise. So memory is bounded by the buffer, however many read, and no reader holds up another, nor the
stream.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from secrets import token_hex
from typing import Generic, TypeVar

__all__ = ("Feed",)

T = TypeVar("T")


class Feed(Generic[T]):
    """
    Args:
        keep: how many items are kept.

    Attributes:
        name: tells this feed from every other: what is remembered of another one says nothing here.
        ended: no more items come.
        newest: the number of the last item; the first has number 1.
    """

    def __init__(self, keep: int) -> None:
        self.name = token_hex(4)
        self.ended = False
        self.newest = 0
        self._items: deque[T] = deque(maxlen=keep)
        self._news = asyncio.Event()

    @property
    def oldest(self) -> int:
        """The number of the oldest item that is kept; that of the next one if none is."""
        return self.newest - len(self._items) + 1

    def put(self, item: T) -> None:
        """Add an item; the oldest goes if there is no room."""
        self._items.append(item)
        self.newest += 1
        self._news.set()

    def end(self) -> None:
        """No more items come."""
        self.ended = True
        self._news.set()

    def after(self, number: int) -> list[T]:
        """The items behind the one with this number that are still kept."""
        return list(islice(self._items, max(0, number + 1 - self.oldest), None))

    async def news(self, number: int) -> bool:
        """Wait for an item behind this one; whether there is one, for the feed may have ended."""
        while self.newest <= number and not self.ended:
            self._news.clear()  # all who wait have been woken by what set it
            await self._news.wait()
        return self.newest > number

    def mark(self, number: int) -> str:
        """What a reader is to remember who has read up to this item."""
        return f"{self.name}-{number}"

    def number_of(self, mark: str) -> int | None:
        """Up to which item the reader has read who remembers this; None if it is no mark of this feed."""
        name, _, number = mark.partition("-")
        if name != self.name or not (number.isascii() and number.isdigit()) or len(number) > 18:
            return None
        return min(int(number), self.newest)
