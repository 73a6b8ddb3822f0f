"""A process that is forked from that of a test."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable


def forked(check: Callable[[], None]) -> int:
    """The exit code of a process that is forked here: 7 if the check passes in it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that may hold locks
        child = os.fork()
    if not child:
        try:
            signal.alarm(60)
            check()
            os._exit(7)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
