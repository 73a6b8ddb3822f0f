"""
The call of an element that is followed: in the context of who submitted it, and recorded in its trace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from asyncstream.operators.call_context import CURRENT
from asyncstream.operators.journey import Journey

__all__ = ("call_followed",)


async def call_followed(
    function: Callable[[Any], Awaitable[Any]], value: Any, journey: Journey, step: str
) -> Any:
    """
    Make a call.

    Args:
        function: what to call.
        value: the element.
        journey: its.
        step: the name of the step whose call it is.
    """
    if journey.trace is None:
        return await function(value)

    call = CURRENT.get()

    async def whole() -> Any:
        CURRENT.set(call)
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
