"""
What serves one user at a time, since it may remember things: an operator works with a function of the
user's, a run with its graph, and with the sources and sinks of that.

Within a pipeline the plan refuses it in a second step; here it is refused in a second job, and in any other
operator, while the first still serves. A user that is gone without giving it back is served no more; nor is
one that took it in an event loop that is closed, as where a program has left its job to `asyncio.run`.
"""

from __future__ import annotations

from weakref import ref

from asyncstream.aside import can_go_on, running_loop
from asyncstream.errors import PipelineError

__all__ = ("give_back", "serves", "take")


class _Use:
    """Who uses something, and whether the event loop in which he took it goes on, if he did in one."""

    def __init__(self, user: object) -> None:
        self._user = ref(user)
        loop = running_loop()
        self._goes_on = None if loop is None else can_go_on(loop)

    def user(self) -> object | None:
        """Whom it serves; None: he is gone, or can do nothing any more."""
        return self._user() if self._goes_on is None or self._goes_on() else None


_uses: dict[int, _Use] = {}
"""Of what is served, by its identity."""


def take(user: object, step: str, thing: object) -> None:
    """
    Have `thing` of this step serve `user` alone, until that gives it back; raises `PipelineError` if it
    serves another one.
    """
    mine = _Use(user)
    taken = _uses.setdefault(id(thing), mine).user()  # in one step: a job in another thread may begin
    if taken is None:
        _uses[id(thing)] = mine
    elif taken is not user:
        raise PipelineError(
            f"step {step!r}: its {type(thing).__name__} serves another job that runs, and can serve one at a "
            "time; make one for each"
        )


def give_back(user: object, thing: object) -> bool:
    """Let others have it; False if it did not serve `user`, who was refused."""
    use = _uses.get(id(thing))
    if use is not None and use.user() not in (user, None):
        return False
    _uses.pop(id(thing), None)
    return True


def serves(thing: object) -> bool:
    """Whether somebody has taken it, and not given it back."""
    use = _uses.get(id(thing))
    return use is not None and use.user() is not None
