"""Locks end with the process that took them."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import pytest

from asyncstream.filesystem.locks import lock

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks, and no fork")


def test_process_that_is_forked_holds_no_lock_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "results"
    reading, writing = os.pipe()
    file = path.open("wb")
    assert lock(file)
    file.write(b"once")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that may hold locks
        child = os.fork()
    if not child:
        try:
            file.flush()
            os.close(writing)
            os.read(reading, 1)  # until the other one has closed it, or ended
        finally:
            os._exit(0)
    try:
        file.close()
        with path.open("rb+") as again:
            assert lock(again)
            assert again.read() == b"once"
    finally:
        os.close(writing)
        os.waitpid(child, 0)
        os.close(reading)
