"""
The entries of a cache in memory: so many, of which the least recently used one makes room.

A hit is a look into a dict and a move to its end, which both are done by Python itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

__all__ = ("Recent",)


class Recent(OrderedDict[Hashable, Any]):
    """Holds so many entries. To read one is not to use it: `move_to_end` is. A copy begins empty."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __setitem__(self, key: Hashable, entry: Any) -> None:
        super().__setitem__(key, entry)
        self.move_to_end(key)
        if len(self) > self.size:
            self.popitem(last=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # without them: until when they are of use is said by the clock of an event loop of this process
        return Recent, (self.size,)
