"""
How tests of killed processes start them, and how they end.

They are forked from a process that has imported what they need: an interpreter of its own would spend more
time on imports than most of them live. What is forked has nothing else of the test's process.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ("PATIENCE", "ROOT", "Forked", "killed_within")

PATIENCE = 200.0
"""Seconds after which a process hangs."""

ROOT = Path(__file__).parents[2]

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        *(f"tests.crash.{name}_app" for name in ("batch", "disk", "inbox", "journal")),
        *("tests.crash.app", "rocksdict", "uvloop"),
    ]
)


@cache
def _said() -> tempfile.TemporaryDirectory[str]:
    """What processes say on their standard errors; for as long as this one lives."""
    return tempfile.TemporaryDirectory(prefix="said-")


class Forked:
    """`python -m MODULE ARGUMENTS`, without the start of an interpreter."""

    def __init__(self, module: str, *arguments: str) -> None:
        number, said = tempfile.mkstemp(dir=_said().name)
        os.close(number)
        self._said = Path(said)
        self._process = _FORKS.Process(target=_run, args=(module, arguments, said))
        self._process.start()

    def ended(self) -> int | None:
        """Its exit status, or minus the signal that ended it; None: it runs."""
        return self._process.exitcode

    def is_stopped(self) -> bool:
        """Whether it is paused by a signal, or at its end."""
        try:
            status = Path(f"/proc/{self._process.pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        return status.rpartition(")")[2].split()[0] in "TZX"

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        assert self._process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def wait(self, seconds: float = PATIENCE) -> int | None:
        """Its exit status; None: it still runs after that time."""
        self._process.join(seconds)
        return self.ended()

    def kill(self) -> int:
        """Kill it, unless it has ended: how it has ended."""
        self._process.kill()
        status = self.wait()
        assert status is not None
        return status

    def errors(self) -> str:
        """What it has said on its standard error."""
        return self._said.read_text()


def _run(module: str, arguments: tuple[str, ...], said: str) -> None:
    number = os.open(said, os.O_WRONLY)
    os.dup2(number, sys.stderr.fileno())
    os.close(number)
    sys.argv[1:] = arguments
    sys.modules.pop(module, None)  # it was imported for its imports
    runpy.run_module(module, run_name="__main__", alter_sys=True)


@atexit.register
def _end_all() -> None:
    """What a test that failed has left would be waited for, for good."""
    for process in multiprocessing.active_children():
        process.kill()


def killed_within(process: Forked, seconds: float) -> str:
    """How a process ended: "killed" by itself or, after that time, by us; else its last words."""
    status = process.wait(seconds)
    if status is None:
        process.kill()
        return "killed"
    return "killed" if status == -signal.SIGKILL else process.errors() or str(status)
