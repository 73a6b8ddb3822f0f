"""
What the operator knows of one of its workers.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any, Final

from asyncstream.async_wait.promise import Promise
from asyncstream.operators.origins import Origin

__all__ = ("UNMADE", "Worker")


class _Unmade(Enum):
    UNMADE = "unmade"


UNMADE: Final = _Unmade.UNMADE
"""Stands for a promise that has not been needed yet."""


class Worker:
    """
    A long-lived task that makes calls, one at a time.

    Attributes:
        task: it runs here.
        promise: that of the element whose call it runs, UNMADE if it has not been needed yet, or None.
        entry: the element, and its timestamp.
        origin: where the element comes from, where that is kept track of.
        parked: what it waits for when there is nothing to do, or None.
        doomed: we cancelled it; whatever its call gives no longer counts.
    """

    __slots__ = ("doomed", "entry", "origin", "parked", "promise", "task")

    task: asyncio.Task[None]
    entry: tuple[Any, Any]

    def __init__(self) -> None:
        self.promise: Promise | _Unmade | None = None
        self.parked: asyncio.Future[None] | None = None
        self.doomed = False
        self.origin: Origin | None = None
