"""
An object of the user's that serves one at a time, since it may remember things: an operator works with a
function, a run with its sources and sinks.

Within a pipeline the plan refuses it in a second step; here it is refused in a second job, and in any other
operator, while the first still serves. A user that is gone without giving it back is served no more; nor is a
run whose event loop is closed, as where a program has left its job to `asyncio.run`.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable
from weakref import ref

from asyncstream.errors import PipelineError

__all__ = ("give_back", "take")


@runtime_checkable
class _OnLoop(Protocol):
    """A user that can do nothing without its event loop."""

    loop: Any


_users: dict[int, ref[object]] = {}
"""Whom an object serves, by the object's identity."""


def take(user: object, step: str, thing: object) -> None:
    """
    Have `thing` of this step serve `user` alone, until that gives it back; raises `PipelineError` if it
    serves another one.
    """
    mine = ref(user)
    taken = _users.setdefault(id(thing), mine)()  # in one step: a job in another thread may begin
    if taken is None or (isinstance(taken, _OnLoop) and taken.loop.is_closed()):
        _users[id(thing)] = mine
    elif taken is not user:
        raise PipelineError(
            f"step {step!r}: its {type(thing).__name__} serves another job that runs, and can serve one at a "
            "time; make one for each"
        )


def give_back(user: object, thing: object) -> bool:
    """Let others have it; False if it did not serve `user`, who was refused."""
    taken = _users.get(id(thing))
    if taken is not None and taken() not in (user, None):
        return False
    _users.pop(id(thing), None)
    return True
