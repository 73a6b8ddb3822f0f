"""
What the code that a step calls can ask of the call: which step it is of, and a key for what it has done.

A service that is sent the same idempotency key twice does its work once. The key is made of where the element
comes from (`origins`) and the step that calls, so it is the same for each attempt, for a call that is made
again after a crash, and for a dead letter that is fed back; and no other element has it.

The context of a call never changes, so a task that outlives its call does not take another element's key.
A task that calls for several elements at once, or for none, does so `on_behalf_of_none`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from asyncstream.errors import PipelineError
from asyncstream.operators.call_log import CallLog
from asyncstream.operators.origins import Origin, digest

__all__ = (
    "CALLING",
    "CURRENT",
    "KEEP",
    "NOWHERE",
    "CallContext",
    "CallingStep",
    "KeptCall",
    "call_context",
    "current_key",
    "identified",
    "kept_call",
    "on_behalf_of_none",
)


@dataclass(slots=True, eq=False)
class CallContext:
    """
    The call that a piece of code is part of.

    Attributes:
        step: the name of the step that calls.
        origin: what tells the element from all others; None: that is not known.
    """

    step: str
    origin: Origin | None

    @property
    def idempotency_key(self) -> str:
        """
        What tells this element's call by this step from all others, 32 characters; the same each time that
        the call is made, also after a restore.

        Raises:
            PipelineError: if the element's origin is not known.
        """
        if self.origin is None:
            raise PipelineError(
                f"step {self.step!r}: the element has no position in a source to make an idempotency key "
                "of; say what tells it from others, effect=function of the element"
            )
        return digest(self.step, *self.origin)


class CallingStep(NamedTuple):
    """
    What all calls of a step have in common.

    Attributes:
        log: where the attempts of its calls are kept; None: nowhere.
        retry: by which retry.
        tells_key: its calls are told where their elements come from.
    """

    name: str
    log: CallLog | None
    retry: object
    tells_key: bool


CALLING: Final[ContextVar[CallingStep | None]] = ContextVar("asyncstream_calling_step", default=None)
"""The step whose calls `CURRENT` is about; set once for all calls, as a variable's new value is paid for."""

NOWHERE: Final[Origin] = ()
"""In place of an origin that is not known."""

CURRENT: Final[ContextVar[Origin | None]] = ContextVar("asyncstream_call", default=None)
"""
Where the element comes from whose call the running code is part of; None: it is part of no call that keeps
track of its element. A `CallContext` is made when one is asked for, which most calls never do.
"""


KEEP: Final[ContextVar[frozenset[Callable[[], None]]]] = ContextVar("asyncstream_keep", default=frozenset())
"""
What asks for a checkpoint of the job that the call is made for, if it keeps any; of each of the jobs, where
the call is for elements of several.
"""


def call_context() -> CallContext:
    """
    The call that the running code is part of, also in tasks and threads that it has started.

    Raises:
        PipelineError: if it is part of none, or of one of a step without `effect=`.
    """
    found = _told()
    if found is None:
        raise PipelineError(
            "call_context: expected to be called by the function of an async step that keeps track of where "
            "elements come from; give the step effect=True, e.g. .async_map(charge, effect=True). A call for "
            "several elements (batched) has none"
        )
    return found


def _told() -> CallContext | None:
    step, origin = CALLING.get(), CURRENT.get()
    if step is None or origin is None or not step.tells_key:
        return None
    return CallContext(step.name, origin or None)


def current_key() -> str | None:
    """The idempotency key of the call that the running code is part of; None: there is none."""
    found = _told()
    return None if found is None or found.origin is None else found.idempotency_key


class KeptCall(NamedTuple):
    """A call whose attempts are kept over a crash, for the retry that makes them."""

    log: CallLog
    origin: Origin


def kept_call(retry: object) -> KeptCall | None:
    """The call that the running code is part of, if its attempts are kept, and by this retry."""
    step, origin = CALLING.get(), CURRENT.get()
    if step is None or step.retry is not retry or step.log is None or not origin:
        return None
    return KeptCall(step.log, origin)


def on_behalf_of_none() -> None:
    """What the running task calls from now on is part of no single element's call."""
    CURRENT.set(None)


def identified(identity: Callable[[Any], Any], pipeline: str, value: Any) -> Origin:
    """
    The origin of an element of a pipeline, made of what the user says tells it from others; raises
    `TypeError` if that is not made of texts, numbers and bytes, which are the same in every process.
    """
    found = identity(value)
    parts = found if type(found) is tuple else (found,)
    if not parts or not {str, int, bytes}.issuperset(map(type, parts)):
        raise TypeError(
            "effect: expected a function that gives a text, an int, bytes, or a tuple of these, it gave "
            f"{type(found).__name__}"
        )
    return (pipeline, *parts)
