"""
What nests of guards take a place in, and in which order.

A call that has a place of a limit, that tries a service for a breaker, or for which a part of a budget is
reserved keeps that while it goes on inwards, where it may wait for another. If two nests take two of them in
opposite orders, the calls of each may have what those of the other wait for, and all wait for ever. So all
nests of a process take them in one order. It is that of the guards that are there, and one that contradicts
them is refused when it is made.

What other processes have nested, and what is guarded inside of a function, is not known. What belongs to one
guard alone is in no other order anywhere, and is not looked at.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Iterator
from threading import Lock
from typing import Any, Final
from weakref import WeakSet, WeakValueDictionary

from asyncstream.errors import safe_repr
from asyncstream.guards.guard import Guard, guards_in
from asyncstream.validation import refuse

__all__ = ("shares_on_one_host", "take_place")


class _Takers(WeakSet[Guard[Any, Any]]):
    """The guards in which calls have a place of one thing; a copy of one of these is not known as such."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Takers, ()


_takers: Final[WeakValueDictionary[Hashable, _Takers]] = WeakValueDictionary()
"""By what is taken; kept by the guards themselves."""

_turn = Lock()
"""Guards are made in several threads."""


def _begin_anew() -> None:
    """In a process that is forked, the thread is not there that perhaps has the lock."""
    global _turn
    _turn = Lock()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_begin_anew)


def take_place(name: str, guard: Guard[Any, Any], *, twice: bool = False) -> None:
    """
    Note that calls of this guard keep a place in what it shares while they go on inwards.

    Args:
        name: of the argument that was given.
        guard: is being made.
        twice: whether a guard inside may have the same.

    Raises:
        PipelineError: if a call would wait for the place that it has itself, or perhaps for one whose caller
            waits for it.
    """
    shared, identity = guard.shares, _identity(guard.shares)
    inside = list(guards_in(guard.inner))
    if not twice and any(one.keeps_place and _identity(one.shares) == identity for one in inside):
        advice = "a call would wait for the place that it has itself"
        raise refuse(name, "one that no guard inside of this one has", shared, advice)
    with _turn:
        takers = _takers.get(identity)
        if takers is None:
            takers = _takers[identity] = _Takers()
        for one in _waited_for(guard) if takers else ():  # what is new is inside of nothing
            if _identity(one) != identity and _is_outside(one, identity):
                expected = f"one that is outside of {safe_repr(one)} in all nests, as it is here"
                advice = (
                    "in another it is inside, so calls of the two could wait for each other for ever; nest "
                    "these guards in one order"
                )
                raise refuse(name, expected, shared, advice)
        takers.add(guard)
    guard.takers = takers


def shares_on_one_host(fn: object) -> bool:
    """Whether a guard of `fn` has a scope whose store only processes of one host reach."""
    scopes = (getattr(guard.shares, "scope", None) for guard in guards_in(fn))
    return any(scope is not None and scope.is_of_one_host for scope in scopes)


def _is_outside(shared: object, sought: Hashable) -> bool:
    """Whether calls that have a place in something may wait for another, by way of any number of nests."""
    known, following = set[Hashable](), [_identity(shared)]
    while following:
        identity = following.pop()
        if identity in known:
            continue
        known.add(identity)
        for guard in list(_takers.get(identity, ())):
            following += map(_identity, _waited_for(guard))
        if sought in following:
            return True
    return False


def _waited_for(guard: Guard[Any, Any]) -> Iterator[object]:
    """What calls of a guard may wait for while they have their place in what it shares."""
    return (one.shares for one in guards_in(guard.inner) if one.keeps_place and one.waits_for_place)


def _identity(shared: object) -> Hashable:
    """The same for what is one: itself, or what it has in common with other processes."""
    scope = getattr(shared, "scope", None)
    return id(shared) if scope is None else (type(shared), scope)
