"""
Ends a process of tests that hangs where the timeout of a test does not come through: a loop that waits in C
takes no signals. It says first where every thread is.

pytest's own (`faulthandler_timeout`) begins and ends a thread for each test, which on a busy machine takes
longer than most tests do. This one is wound up once a minute.
"""

from __future__ import annotations

import faulthandler
import time

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

__all__ = ("pytest_runtest_protocol",)

PATIENCE = 1000.0
"""Seconds that a test may take, or less by `EVERY`: more than the longest timeout of a test."""

EVERY = 60.0
"""Seconds after which it is wound up with the next test."""

_WOUND_UP = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    stash, now = item.config.stash, time.monotonic()
    if now >= stash.get(_WOUND_UP, -EVERY) + EVERY:
        stash[_WOUND_UP] = now
        stderr = stash[fault_handler_stderr_fd_key]  # what is captured goes down with the process
        faulthandler.dump_traceback_later(PATIENCE, exit=True, file=stderr)
