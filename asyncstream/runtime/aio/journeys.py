"""
The journeys of a run: which elements are followed, some for their latency, and those that a tracer wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import copy_context
from typing import Final, Protocol

from asyncstream.operators.journey import Journey, Journeys, Trace

__all__ = ("Followed", "Tracer")

EVERY: Final = 0.1
"""Seconds after which one element more of a source is followed for its latency."""


class Tracer(Protocol):
    """Records what happens to elements."""

    def begin(self, pipeline: str, step: str) -> Trace | None:
        """
        An element is accepted, in the present context.

        Args:
            pipeline: its name.
            step: the source.

        Returns:
            What is recorded of it; None: nothing.
        """


class Followed(Journeys):
    """
    The journeys of one run, from their beginnings.

    Attributes:
        tracer: asked about each element that is submitted, and about those of other sources that are timed.
    """

    __slots__ = ("_due", "_pipeline", "_time", "tracer")

    def __init__(self, pipeline: str, tracer: Tracer | None) -> None:
        super().__init__()
        self.tracer = tracer
        self._pipeline = pipeline
        self._time: Callable[[], float] = asyncio.get_running_loop().time
        self._due: dict[str, float] = {}

    def submitted(self, step: str) -> Journey | None:
        """The journey of an element that is accepted now, in this context; None: it is not followed."""
        trace = None if self.tracer is None else self.tracer.begin(self._pipeline, step)
        if trace is not None:
            return Journey(self._time(), copy_context(), trace)
        return self._timed(step)

    def read(self, step: str) -> Journey | None:
        """The journey of an element that a source brings now; None: none."""
        journey = self._timed(step)
        if journey is None or self.tracer is None:
            return journey
        return Journey(journey.began, None, self.tracer.begin(self._pipeline, step))

    def _timed(self, step: str) -> Journey | None:
        now = self._time()
        if now < self._due.get(step, now):
            return None
        self._due[step] = now + EVERY
        return Journey(now)
