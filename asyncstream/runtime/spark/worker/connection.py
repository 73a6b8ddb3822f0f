"""
Has what Spark sends reach a task at once, where the two talk by TCP: they do unless Spark is told otherwise.

Spark sends a worker the function to run, and then, in pieces of their own, the rows. By Nagle's algorithm a
small piece is held back until what went before is acknowledged, and Linux acknowledges after 40 ms what it is
not asked to sooner: there might be something to send along. But a task has nothing to send before it has
read, so each took 40 ms more than its work. The same holds for the last piece of what it sends.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

__all__ = ("acknowledge",)

DESCRIPTORS = "/proc/self/fd"

SECRET = "PYTHON_WORKER_FACTORY_SECRET"
"""In the environment of a worker that Spark talks to by TCP, and of no other process."""


@dataclass
class _Worker:
    """
    What this process knows.

    Attributes:
        process: its number; one that is forked from it has a connection of its own.
        spark: the connection with Spark; None: there is none by TCP.
    """

    process: int = 0
    spark: socket.socket | None = None


_worker = _Worker()


def acknowledge() -> None:
    """A task begins: tell Spark at once that what has come for it has come, so that the rest is sent."""
    if _worker.process != os.getpid():
        _worker.process, _worker.spark = os.getpid(), _connection()
        if _worker.spark is not None:
            _worker.spark.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if _worker.spark is not None:  # the system forgets that it was told
        _worker.spark.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)


def _connection() -> socket.socket | None:
    """The one that the process was forked with: all others have been opened later."""
    if SECRET not in os.environ or not hasattr(socket, "TCP_QUICKACK"):
        return None
    for descriptor in sorted(map(int, os.listdir(DESCRIPTORS))):
        with suppress(OSError):  # it is of something else, or closed by now
            one = socket.socket(fileno=os.dup(descriptor))
            if one.family in (socket.AF_INET, socket.AF_INET6) and one.type == socket.SOCK_STREAM:
                return one
            one.close()
    return None
