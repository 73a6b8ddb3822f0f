"""
What the user asked of a step of batch jobs, checked when the pipeline is built.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from asyncstream.async_wait.settings import OutputOrder
from asyncstream.operators.failures import OnError, on_error_choice
from asyncstream.operators.functions import AsyncFunction, call_of
from asyncstream.validation import Duration, choice, count, duration_seconds

__all__ = ("BatchSettings",)


@dataclass(frozen=True)
class BatchSettings:
    """
    How elements become jobs; made by `checked`.

    Attributes:
        submit: gives what the provider knows the job by, for its elements and key.
        poll: whether a job is done.
        fetch: the answers of a job that is, one for each of its elements, in order.
        size: elements of a job, at most.
        every: seconds between two questions how a job stands.
        wait: seconds after the first element of a job until it is submitted all the same.
        jobs: how many may be under way.
        order: in which results leave.
        on_error: what becomes of elements without an answer.
        opened: those of the functions that are opened and closed.
    """

    submit: Callable[[list[Any], str], Awaitable[Any]]
    poll: Callable[[Any], Awaitable[object]]
    fetch: Callable[[Any], Awaitable[Iterable[Any]]]
    size: int
    every: float
    wait: float
    jobs: int
    order: OutputOrder
    on_error: OnError
    opened: tuple[AsyncFunction[Any, Any], ...]

    @classmethod
    def checked(
        cls,
        submit: Callable[[list[Any], str], Awaitable[Any]],
        poll: Callable[[Any], Awaitable[object]] | AsyncFunction[Any, object],
        fetch: Callable[[Any], Awaitable[Iterable[Any]]] | AsyncFunction[Any, Iterable[Any]],
        size: int,
        every: Duration,
        wait: Duration | None,
        jobs: int,
        order: OutputOrder | str,
        on_error: OnError,
    ) -> BatchSettings:
        """
        What the user asked for.

        Raises:
            PipelineError: if an argument is not as described.
        """
        call_of("submit", submit, "elements", "key", expected="an async def of a list of elements and a key")
        wanted = "an async def of what submit gives"
        seconds = duration_seconds("every", every)
        orders = ("ordered", "unordered", "event_time")
        return cls(
            submit,
            call_of("poll", poll, "job", expected=wanted),
            call_of("fetch", fetch, "job", expected=wanted),
            count("size", size),
            seconds,
            seconds if wait is None else duration_seconds("wait", wait),
            count("jobs", jobs),
            OutputOrder(choice("order", getattr(order, "value", order), orders)),
            on_error_choice(on_error),
            tuple(function for function in (poll, fetch) if isinstance(function, AsyncFunction)),
        )
