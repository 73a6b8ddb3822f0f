"""
Elements on which a user's function raised: fail the job over them, leave them out, or send them aside.

One mechanism for every step and sink with `on_error=`. Each of them goes on behind the element that failed,
so none is lost or doubled, and what it emits before and after keeps its order.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from asyncstream.errors import InternalError, PipelineError, StateError, UserFunctionError
from asyncstream.operators.base import Operator
from asyncstream.operators.functions import FailedCall
from asyncstream.operators.results import NotAValue
from asyncstream.operators.whereabouts import RecentFailures
from asyncstream.validation import choice

__all__ = ("FAILED", "Failures", "OnError", "attempts_of", "failure_counters", "on_error_choice", "routed_to")

OnError: TypeAlias = Literal["fail", "skip", "route"]
"""What becomes of an element whose function raised: the job fails, it is counted, or it goes to `failed`."""

FAILED: Final = "failed"
"""Tag of the output for elements on which a function raised."""

_FINAL: Final = (UserFunctionError, InternalError, PipelineError, StateError, NotAValue)
"""What fails the job all the same."""

COUNTED: Final = ("failed", "skipped")
"""What is counted of failures that are not the end of the job."""


def on_error_choice(value: OnError) -> OnError:
    """`value`, checked; raises `PipelineError` if it is none of the three."""
    return choice("on_error", value, ("fail", "skip", "route"))


def routed_to(on_error: OnError) -> tuple[str, ...]:
    """The tags of outputs that must be read if `on_error` is this."""
    return (FAILED,) if on_error == "route" else ()


def failure_counters(on_error: OnError) -> tuple[str, ...]:
    """What a step with this `on_error` counts of failures."""
    return () if on_error == "fail" else COUNTED


class Failures:
    """
    What one operator does with the elements that its function fails on, and how many they are.

    Only an `Exception` is about an element. Everything else (an interrupt, a cancellation), what an operator
    downstream has been blamed for, state that is lost, and what is wrong with the plan (an output that is
    not read, a function that should have been awaited) fail the job all the same.
    """

    __slots__ = ("_operator", "_recent", "failed", "fatal", "on_error", "skipped")

    def __init__(self, operator: Operator, on_error: OnError) -> None:
        self._operator = operator
        self.on_error = on_error_choice(on_error)
        self.fatal = on_error == "fail"
        self.failed = 0
        self.skipped = 0
        operator.recent_failures = self._recent = RecentFailures()

    def take(self, value: Any, timestamp: int | None, error: BaseException) -> None:
        """
        Do with an element, of which nothing has been or will be emitted, what was chosen; raises
        `UserFunctionError` if the job is to fail.
        """
        if not self.bears(error):
            self._operator.fail_on(value, error)
        self.failed += 1
        name, now_ms = self._operator.context.name, self._operator.context.clock.now_ms()
        self._recent.note(name, value, error, now_ms, skipped=self.on_error == "skip")
        if self.on_error == "skip":
            self.skipped += 1
            return
        # a plain function takes no time worth measuring
        failed = FailedCall(value, error, attempts_of(error), timestamp, now_ms, now_ms)
        self._operator.side_output(FAILED).process(failed, timestamp)

    def bears(self, error: BaseException) -> bool:
        """Whether the job goes on after `error`."""
        if self.fatal or not isinstance(error, Exception):
            return False
        return not isinstance(error, _FINAL)

    def metrics(self) -> dict[str, int]:
        """The counts, unless every failure is the end of the job."""
        return {} if self.fatal else dict(zip(COUNTED, (self.failed, self.skipped), strict=True))


def attempts_of(error: BaseException) -> int:
    """How many times the function was tried that raised this; starts at 1."""
    attempts: Any = None
    with suppress(Exception):  # of a class that hides its attributes
        attempts = vars(error).get("attempts")  # not getattr: an exception's own code might run
    return attempts if type(attempts) is int else 1  # else it is the user's own
