"""
Lives that end in the middle of what they do, as when a process is killed.

A life is a coroutine that makes what it needs, does some calls, and returns: there it ends, and nothing is
closed, flushed or rolled back. Where what it has written outlives a process, it is led in one, by `fork`,
that ends by `os._exit`: what was only in its memory is gone, and the system takes its files and locks.
Elsewhere it is led in this process, and what it has made is just left.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from asyncstream.aside import Tasks, heed
from asyncstream.codec import JsonCodec
from asyncstream.errors import describe_error
from asyncstream.lease import Holder, enter, leave
from asyncstream.testing.contracts.checks import ContractBroken

__all__ = ("CODEC", "CUTS", "HOPS", "Lead", "Life", "Report", "begun", "interrupted", "leading", "running")

CODEC = JsonCodec()
"""Keeps positions between two lives, as checkpoints do."""

HOPS = (0, 1, 2, 3, 5, 8)
"""After how many passes of the event loop a call that is quick is cancelled."""

CUTS = (1, 0.001)
"""When a call that has begun is cut off: after passes of the event loop (int), or seconds (float)."""

PATIENCE = 60.0
"""Seconds that a life in a process of its own may take."""

LOOK = 0.002
"""Seconds between two looks at a process."""

Report: TypeAlias = Callable[[Any], None]
"""Takes something that a life has to tell, made of values that the codec keeps."""

Life: TypeAlias = Callable[[Report], Coroutine[Any, Any, None]]
"""What happens until it ends."""

Lead: TypeAlias = Callable[[Life], Awaitable[list[Any]]]
"""Leads a life to where it ends, and gives what it has told."""


async def _lead_here(life: Life) -> list[Any]:
    """Lead a life in this process; what it had begun is cancelled."""
    told: list[Any] = []
    before = asyncio.all_tasks()
    await life(lambda what: told.append(CODEC.decode(CODEC.encode(what))))
    begun = asyncio.all_tasks() - before
    for task in begun:
        task.cancel()
    if begun:
        await asyncio.wait(begun)
    return told


async def _lead_in_a_process(life: Life) -> list[Any]:
    """
    Lead a life in a process that ends with it; raises `ContractBroken` with the error that it has ended with,
    if it was one.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # of threads that may hold locks: the pools of event loops, which the child does not use
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(reading)
        _live(life, writing)
    os.close(writing)
    try:
        return _read(await _told(reading, child))
    finally:
        os.close(reading)


def _live(life: Life, writing: int) -> None:
    """In the child: the whole of a life. Does not return."""
    try:
        try:
            loop = asyncio.new_event_loop()
            loop.run_until_complete(life(lambda what: _tell(writing, "told", CODEC.encode(what).hex())))
        except BaseException as error:
            _tell(writing, "failed", describe_error(error))
    finally:
        os._exit(0)


def _tell(writing: int, kind: str, what: str) -> None:
    data = json.dumps([kind, what]).encode() + b"\n"
    while data:
        data = data[os.write(writing, data) :]


async def _told(reading: int, child: int) -> bytes:
    """All that a child has told, which has ended then."""
    os.set_blocking(reading, False)
    loop = asyncio.get_running_loop()
    until = loop.time() + PATIENCE
    told = b""
    ended = False
    try:
        while not ended:
            ended = _wait(child, os.WNOHANG)
            while True:
                try:
                    part = os.read(reading, 1 << 16)
                except BlockingIOError:
                    break
                if not part:
                    break
                told += part
            if not ended:
                if loop.time() > until:
                    raise ContractBroken(f"it does not come to its end within {PATIENCE:g} s")
                await asyncio.sleep(LOOK)
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            _wait(child)
    return told


def _wait(child: int, options: int = 0) -> bool:
    """Whether it has ended."""
    return os.waitpid(child, options)[0] == child


def _read(told: bytes) -> list[Any]:
    found = []
    for line in told.splitlines():
        kind, what = json.loads(line)
        if kind == "failed":
            raise ContractBroken(what)
        found.append(CODEC.decode(bytes.fromhex(what)))
    return found


@contextmanager
def running(*holders: Holder, goes_on: bool = True) -> Iterator[None]:
    """The jobs of these holders live until the end of the block, or are dead from the beginning."""
    for holder in holders:
        enter(holder, lambda: goes_on)
    try:
        yield
    finally:
        for holder in holders:
            leave(holder)


def leading(durable: bool) -> Lead:
    """How to lead lives: in processes if what they leave is `durable`, and the system can fork."""
    return _lead_in_a_process if durable and hasattr(os, "fork") else _lead_here


async def begun(call: Coroutine[Any, Any, Any], cut: float) -> None:
    """Begin a call, and go on before it has ended: the life ends here."""
    task = asyncio.ensure_future(call)
    _begun.keep(task)
    task.add_done_callback(heed)  # what it raises after its process has "ended" is not reported
    await _wait_until(cut)


async def _wait_until(cut: float) -> None:
    if isinstance(cut, int):
        for _ in range(cut):
            await asyncio.sleep(0)
    else:
        await asyncio.sleep(cut)


_begun = Tasks()


async def interrupted(call: Coroutine[Any, Any, Any], cut: float) -> Any:
    """
    Begin a call and cancel it, at one of the `CUTS`; gives what it gave, and `interrupted` itself if it was
    cancelled.
    """
    task = asyncio.ensure_future(call)
    await _wait_until(cut)
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        return interrupted
