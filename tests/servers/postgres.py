"""
PostgreSQL: `postgres_server` is one for the whole session, `postgres_url` is the address of an empty
database.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psycopg
import pytest

from tests.servers.process import HOST, ServerProcess, do_without

__all__ = ("PostgresServer", "postgres_server", "postgres_url", "running_postgres")

REMEDY = "Debian: apt-get install postgresql"

USER = "postgres" if hasattr(os, "geteuid") and os.geteuid() == 0 else None
"""Whose process it is: it refuses to run as root."""

SETTINGS = {"listen_addresses": HOST, "unix_socket_directories": "", "fsync": "off", "timezone": "UTC"}
"""Processes end in these tests, not the machine: nothing needs to reach the disk."""

_numbers = count(1)


class PostgresServer(ServerProcess):
    """A server in which anybody on this machine is its superuser."""

    @property
    def data(self) -> Path:
        return self._folder / "data"

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@{HOST}:{self.port}/{database}"

    def start(self) -> None:
        super().start()
        until = time.monotonic() + 60
        while True:  # it takes connections before it serves them
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError:
                assert time.monotonic() < until, self.log[-2000:]
                time.sleep(0.02)
            else:
                return

    def execute(self, statement: str, database: str = "postgres") -> list[Any]:
        """Do one statement, and give its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


def binaries() -> Path:
    """The folder of the server's programs, which Debian does not put on the path."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    found = places[-1] if places else shutil.which("postgres")
    if found is None:
        do_without("postgres", REMEDY)
    return Path(found).resolve().parent


@contextmanager
def running_postgres() -> Iterator[PostgresServer]:
    """A server, as long as it is used."""
    programs = binaries()
    memory = Path("/dev/shm")
    folder = Path(mkdtemp(prefix="postgres", dir=memory if memory.is_dir() else None))
    try:
        if USER is not None:
            shutil.chown(folder, USER)
        data = folder / "data"
        make = [
            str(programs / "initdb"),
            "-D",
            str(data),
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
        subprocess.run(make, check=True, capture_output=True, user=USER, cwd=folder, timeout=60)
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        server = PostgresServer(
            lambda port: [str(programs / "postgres"), "-D", str(data), "-p", str(port), *options],
            folder,
            user=USER,
        )
        server.start()
        try:
            yield server
        finally:
            server.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One that every test may use, and leaves running."""
    with running_postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The address of a database with nothing in it."""
    name = f"test_{next(_numbers)}"
    postgres_server.execute(f"CREATE DATABASE {name}")
    return postgres_server.url(name)
