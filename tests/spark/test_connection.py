"""What Spark sends a task by TCP is acknowledged at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from asyncstream.runtime.spark.worker import connection
from asyncstream.runtime.spark.worker.connection import SECRET, acknowledge

PROGRAM = """
import os, socket, sys
from asyncstream.runtime.spark.worker.connection import acknowledge

connection = socket.socket(fileno=os.dup(int(sys.argv[1])))
other = socket.socket()
acknowledge()
print([one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for one in (connection, other)])
"""

needs_linux = pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="there is no such setting")


@needs_linux
@pytest.mark.parametrize(("environment", "told"), [({SECRET: "s"}, "[1, 0]"), ({}, "[0, 0]")])
def test_only_the_connection_that_a_worker_was_forked_with_is_told(
    environment: dict[str, str], told: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        inherited, _ = server.accept()
        with inherited:
            found = subprocess.run(
                [sys.executable, "-c", PROGRAM, str(inherited.fileno())],
                pass_fds=[inherited.fileno()],
                env={**os.environ, **environment},
                capture_output=True,
                text=True,
                check=True,
            )
    assert found.stdout.strip() == told


@needs_linux
def test_each_task_acknowledges_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    class Recording:
        def setsockopt(self, *option: Any) -> None:
            told.append(option)

    monkeypatch.setattr(connection, "_worker", connection._Worker(os.getpid(), Recording()))  # type: ignore[arg-type]
    acknowledge()
    acknowledge()
    assert told == [(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)] * 2
