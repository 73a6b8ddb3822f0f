"""Locks end with the process that took them."""

from __future__ import annotations

import os
import socket
import sys
import warnings
from pathlib import Path
from typing import BinaryIO

import pytest

from asyncstream.filesystem.locks import lock

if sys.platform != "win32":
    import fcntl

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks, and no fork")


@pytest.mark.parametrize("at_once", [False, True])
def test_process_that_is_forked_holds_no_lock_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    path = tmp_path / "results"
    ours, of_child = socket.socketpair()
    ours.settimeout(60)
    file = path.open("wb")
    file.write(b"once")
    child = 0

    def fork() -> None:
        nonlocal child
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that may hold locks
            child = os.fork()
        if not child:
            try:
                ours.close()
                file.flush()
                of_child.send(b"flushed")
                of_child.recv(1)  # until the other one has looked, or ended
            finally:
                os._exit(0)

    if at_once:  # as another thread may, which runs while the system is asked for the lock
        flock = fcntl.flock

        def locked(file: BinaryIO, how: int) -> None:
            flock(file, how)
            fork()

        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", locked)
            assert lock(file)
    else:
        assert lock(file)
        fork()
    try:
        of_child.close()
        assert ours.recv(7) == b"flushed"
        file.close()
        with path.open("rb+") as again:
            assert lock(again)
            assert again.read() == b"once"
    finally:
        ours.close()
        os.waitpid(child, 0)
