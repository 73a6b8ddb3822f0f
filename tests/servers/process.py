"""
A server in a process of its own, on a port of the loopback address that was free.

A test that needs one takes its fixture. Where there is no such program the test is skipped, with the reason;
in continuous integration it fails, so that nothing goes untested without being noticed.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn, Self

import pytest

__all__ = ("HOST", "ServerProcess", "do_without", "free_port", "program")

HOST: Final = "127.0.0.1"

_START: Final = 60.0
"""Seconds in which a server must take a connection."""

_TRIES: Final = 3
"""Ports to try: another process may take one between the look and the start."""


def do_without(what: str, remedy: str) -> NoReturn:
    """End a test for which there is no server."""
    message = f"needs {what} ({remedy})"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def program(name: str, remedy: str) -> str:
    """The path of a program; without it the test is skipped."""
    found = shutil.which(name)
    if found is None:
        do_without(name, remedy)
    return found


class ServerProcess:
    """
    One server, which can be stopped and started again on the same port.

    Args:
        command: what to run, for a port.
        folder: where it works; its output goes to `server.log` there.
        user: whose process it is to be; None: of who runs the tests.
    """

    def __init__(
        self, command: Callable[[int], Sequence[str]], folder: Path, user: str | int | None = None
    ) -> None:
        self._command = command
        self._folder = folder
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    @property
    def log(self) -> str:
        """What it has said so far."""
        return (self._folder / "server.log").read_text(errors="replace")

    def start(self) -> None:
        """Start it and wait until it takes connections; the first time on a port that is free."""
        fixed = self.port
        for _ in range(_TRIES):
            self.port = fixed or free_port()
            with (self._folder / "server.log").open("ab") as log:
                self._process = subprocess.Popen(
                    self._command(self.port),
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    user=self._user,
                )
            if self._has_come_up(self._process):
                return
        raise AssertionError(f"the server has not come up: {self.log[-2000:]}")

    @contextmanager
    def running(self) -> Iterator[Self]:
        """It runs, as long as it is used."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    @contextmanager
    def held(self) -> Iterator[None]:
        """It gets no time, as on a machine that is busy."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # until each of its threads has stopped
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _has_come_up(self, process: subprocess.Popen[bytes]) -> bool:
        until = time.monotonic() + _START
        while process.poll() is None:
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
            except OSError:
                if time.monotonic() > until:
                    self.kill()
                    return False
                time.sleep(0.01)
            else:
                return True
        return False

    def stop(self) -> None:
        """Stop it in its own way."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    """
    A port for a server that is to be started, or started again and again.

    A connection to it has just ended. So for a minute the system gives it to nobody who takes any port, and a
    server that asks for this one may have it.
    """
    with socket.create_server((HOST, 0)) as taken:
        port: int = taken.getsockname()[1]
        with socket.create_connection((HOST, port)), taken.accept()[0]:
            return port  # the server's end of the connection is closed first, which is the one that lingers
