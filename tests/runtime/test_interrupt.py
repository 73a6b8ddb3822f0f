"""Ctrl-C: what is open is closed, and the program ends as interrupted programs do."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio
import signal
from asyncstream import AsyncFunction, Pipeline

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have these tests ignore it

class Call(AsyncFunction):
    async def invoke(self, value):
        print("calling", flush=True)
        await asyncio.sleep(60)
    async def close(self):
        print("closed", flush=True)

async def main():
    await pipeline.run()

pipeline = Pipeline()
pipeline.source([1]).async_map(Call()).discard()
{run}
"""

WAYS = {
    "run_blocking": "pipeline.run_blocking()",
    "run_blocking_on_uvloop": "pipeline.run_blocking(uvloop=True)",
    "asyncio_run": "asyncio.run(main())",
}


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("way", WAYS)
def test_interrupted_program_closes_what_is_open(way: str) -> None:
    if "uvloop" in way:
        pytest.importorskip("uvloop")
    program = PROGRAM.format(run=WAYS[way])
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "calling\n"
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    assert out == "closed\n"
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "never retrieved" not in errors
    assert "was destroyed" not in errors
