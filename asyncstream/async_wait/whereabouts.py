"""
Where the elements of an async step are, told from the outside: a walk over what it holds.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncstream.async_wait.promise import PENDING, Passage, Promise
from asyncstream.async_wait.settings import OutputOrder
from asyncstream.async_wait.worker import Worker
from asyncstream.operators.whereabouts import SEVERAL, Whereabouts

__all__ = ("longest_call", "whereabouts")


def whereabouts(
    order: OutputOrder,
    inbox: int,
    held: Iterable[Promise],
    workers: Iterable[Worker],
    *,
    limited: int,
    may_emit: bool,
    now: float,
) -> Whereabouts:
    """
    Where the elements of an async step are.

    Args:
        order: in which its results leave.
        inbox: how many elements wait there.
        held: the contents of its promise queue, but elements whose calls have not begun.
        workers: all of them.
        limited: how many calls wait for leave to begin, as the function says, perhaps of other steps too.
        may_emit: there is room downstream.
        now: loop time.
    """
    busy = [worker for worker in workers if worker.is_busy()]
    unfinished, in_turn, out_of_turn = 0, 0, 0
    for promise in held:
        outcome = promise.outcome
        if isinstance(outcome, Passage):
            if unfinished and order is OutputOrder.EVENT_TIME:
                order = OutputOrder.ORDERED  # nothing behind this one may leave before what is ahead of it
        elif outcome is PENDING:
            unfinished += 1
        elif unfinished and order is OutputOrder.ORDERED:
            out_of_turn += 1
        else:
            in_turn += 1
    # those without a worker wait for another call of their key
    at_work = sum(worker.held_promise().outcome is PENDING for worker in busy)
    limit = min(limited, len(busy))
    since, element = longest_call(busy, now)
    return Whereabouts(
        inbox=inbox,
        limit=limit,
        call=len(busy) - limit,
        order=unfinished - at_work + out_of_turn + (in_turn if may_emit else 0),
        downstream=0 if may_emit else in_turn,
        since=since,
        element=element,
    )


def longest_call(busy: Iterable[Worker], now: float) -> tuple[float | None, object]:
    """Since when the longest of these calls runs, and its element; a call not seen suspended begins now."""
    since, element = None, SEVERAL
    for worker in busy:
        started = worker.held_promise().started.time
        began = now if started is None else started
        if since is None or began < since:
            since, element = began, worker.element()
    return since, element
