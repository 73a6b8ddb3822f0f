"""
An object of the user's that one operator at a time works with, since it may remember things.

Within a pipeline the plan refuses it in a second step; here it is refused in a second job, and in any other
operator, while the first still serves. An operator that is gone without a `close` serves nothing.
"""

from __future__ import annotations

from weakref import ref

from asyncstream.errors import PipelineError
from asyncstream.operators.base import Operator

__all__ = ("give_back", "take")

_users: dict[int, ref[Operator]] = {}
"""Which operator works with an object, by the object's identity."""


def take(operator: Operator, function: object) -> None:
    """
    Have `function` serve `operator` alone, until that gives it back; raises `PipelineError` if it serves
    another one.
    """
    mine = ref(operator)
    user = _users.setdefault(id(function), mine)()  # in one step: a job in another thread may begin
    if user is None:
        _users[id(function)] = mine
    elif user is not operator:
        raise PipelineError(
            f"step {operator.context.name!r}: its {type(function).__name__} serves another job that runs, "
            "and would work on the state of both; make one for each"
        )


def give_back(operator: Operator, function: object) -> bool:
    """Let others have it; False if it did not serve `operator`, which was refused."""
    user = _users.get(id(function))
    if user is not None and user() not in (operator, None):
        return False
    _users.pop(id(function), None)
    return True
