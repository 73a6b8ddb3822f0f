"""
Elements that are followed on their way through a pipeline, for latencies from end to end and for traces.

Most elements are not, and nothing is kept for them. One that is goes down its chain in a batch of its own,
while `Journeys.current` says whose journey it is: what keeps it on the way (the inbox of an async step, a
sink) looks there, notes it with the element, and sets it again when it passes the element on. What an
operator makes of a followed element at once (a result, a window that its watermark fires) goes on with its
journey.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Protocol

__all__ = ("Journey", "Journeys", "Span", "Trace")


class Span(Protocol):
    """A part of a trace, under way."""

    def activate(self) -> None:
        """Make it the one that what happens in the present context belongs to."""

    def end(self, error: BaseException | None = None) -> None:
        """It has ended, with an error perhaps."""


class Trace(Protocol):
    """What is recorded of one element."""

    def begin(self, what: str, step: str) -> Span:
        """The step of this name has begun with the element, as a verb says: "call" or "write"."""


@dataclass(frozen=True, slots=True, eq=False)
class Journey:
    """
    The way of one element.

    Attributes:
        began: loop time at which it was accepted.
        context: the variables of who submitted it, in which its calls are made; None: those of the job.
        trace: what is recorded of it; None: only how long it takes.
    """

    began: float
    context: Context | None = None
    trace: Trace | None = None


class Journeys:
    """Those of one run; `current` is whose element is being passed on at this instant, if it is followed."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current: Journey | None = None

    @contextmanager
    def on(self, journey: Journey | None) -> Iterator[None]:
        """What is passed on in this block is on that journey."""
        before, self.current = self.current, journey
        try:
            yield
        finally:
            self.current = before
