"""
Calls in a task of their own: all calls of a function that leaves traces on the next ones, and the call of an
element that is followed, which runs in the context of who submitted it and is recorded in its trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Any

from asyncstream.operators.call_context import CALLING, CURRENT, KEEP
from asyncstream.operators.journey import Journey
from asyncstream.validation import is_async_function

__all__ = ("call_followed", "in_own_task")


async def call_followed(
    function: Callable[[Any], Awaitable[Any]], value: Any, journey: Journey, step: str
) -> Any:
    """Make the call of a step for an element with a journey."""
    if journey.trace is None:
        return await function(value)

    step_of_call, call, keep = CALLING.get(), CURRENT.get(), KEEP.get()

    async def whole() -> Any:
        CALLING.set(step_of_call)
        CURRENT.set(call)
        KEEP.set(keep)
        span.activate()
        return await function(value)

    span = journey.trace.begin("call", step)
    try:
        context = None if journey.context is None else journey.context.copy()
        # a task of its own, for a context is a task's; its name says whose it is, should it hold the loop
        result = await asyncio.create_task(whole(), name=f"asyncstream {step}", context=context)
    except BaseException as error:
        span.end(error)
        raise
    span.end()
    return result


def in_own_task(
    function: Callable[[Any], Awaitable[Any]], base: Context, name: str
) -> Callable[[Any], Awaitable[Any]]:
    """
    A function that makes each call of another in a new task, called `name`, and in a copy of a context.
    """
    loop = asyncio.get_running_loop()

    async def whole(value: Any) -> Any:  # what gives a future, say, does part of its work before
        return await function(value)

    call: Callable[[Any], Any] = function if is_async_function(function) else whole

    async def called(value: Any) -> Any:
        context = base.copy()
        context.run(CURRENT.set, CURRENT.get())  # whose key it uses
        return await asyncio.Task(call(value), loop=loop, name=name, context=context)

    return called
