"""Processes that are told to end do, in bounded time, and say which step kept them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

MODULE = """
import asyncio, time
from asyncstream import AsyncFunction, Items, Pipeline, Sink, Source, SourceBatch

async def deaf():
    print("here", flush=True)
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

class Bad(Sink, Source):
    def __init__(self, moment):
        self.moment = moment
    async def _at(self, moment):
        if moment == self.moment:
            await deaf()
    async def open(self):
        await self._at("open")
    async def read(self):
        await self._at("read")
        print("here", flush=True)
        await asyncio.sleep(1000)
    async def write(self, values, timestamps):
        if self.moment == "thread":
            print("here", flush=True)
            await asyncio.to_thread(time.sleep, 1000)
        await self._at("write")
    async def flush(self):
        await self._at("flush")
    async def close(self):
        await self._at("close")

class BadCall(AsyncFunction):
    async def invoke(self, value):
        print("here", flush=True)
        await asyncio.sleep(1000)
    async def close(self):
        await deaf()

def spin(value):
    print("here", flush=True)
    while True:
        time.sleep(0.01)

def block(value):
    print("here", flush=True)
    time.sleep(1000)

async def deaf_call(value):
    await deaf()

def endless():
    yield 1

def build(kind):
    pipeline = Pipeline("it")
    if kind.startswith("source"):
        pipeline.source(Bad(kind.split("_")[1]), name="bad").to([], name="out")
        return pipeline
    stream = pipeline.source([1], name="in")
    if kind.startswith("sink"):
        stream.to(Bad(kind.split("_")[1]), name="bad")
        pipeline.source(Bad("no"), name="other").to([], name="out")
    elif kind == "call":
        stream.async_map(deaf_call, name="bad").to([], name="out")
    elif kind == "function_close":
        stream.async_map(BadCall(), name="bad").to([], name="out")
    elif kind == "busy":
        stream.map(spin, name="bad").to([], name="out")
    elif kind == "thread":
        stream.thread_map(block, name="bad").to([], name="out")
    return pipeline
""" + "\n".join(
    f"def {kind}(): return build({kind!r})"
    for kind in (
        *("source_open", "source_read", "source_close", "sink_open", "sink_write", "sink_close"),
        *("sink_thread", "call", "function_close", "busy", "thread"),
    )
)

KINDS = {  # what the end of each is to say
    "source_open": "'bad' ignored its cancellation while it was opened",
    "source_read": "ignored their cancellation for 3 s: 'bad'",
    "source_close": "step 'bad': closing it: it did not end within 3 s",
    "sink_open": "'bad' ignored its cancellation while it was opened",
    "sink_write": "ignored their cancellation for 3 s: 'bad'",
    "sink_close": "step 'bad': closing it: it did not end within 3 s",
    "sink_thread": "threads that do not end: asyncstream-thread-1_0",
    "call": "1 calls ignored their cancellation for 3 s",
    "function_close": "did not end within 3 s, when it was closed",
    "busy": "unfinished: ",
    "thread": "threads that do not end: AnyIO worker thread",
}


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, float]]:
    """Status, stderr, and seconds after the signal, of each kind of process; they run at the same time."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "work.py").write_text(MODULE)
    running = {kind: start(folder, kind) for kind in KINDS}
    found = {}
    try:
        for kind, process in running.items():
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n", kind
        began = time.monotonic()
        for process in running.values():
            process.send_signal(signal.SIGTERM)
        time.sleep(1)  # two signals that have not arrived are one
        running["busy"].send_signal(signal.SIGTERM)  # or the test would take as long as the process may
        for kind, process in running.items():
            _, errors = process.communicate(timeout=90)
            found[kind] = (process.returncode, errors, time.monotonic() - began)
    finally:
        for process in running.values():
            process.kill()
            process.communicate()
    return found


def start(folder: Path, kind: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "asyncstream", "run", f"work:{kind}", "--checkpoints", kind, "--grace", "0.1"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_process_that_is_held_ends_and_says_by_what(
    kind: str, ends: dict[str, tuple[int, str, float]]
) -> None:
    status, errors, seconds = ends[kind]
    assert KINDS[kind] in errors
    assert "Fatal Python" not in errors
    assert status in (1, 128 + signal.SIGTERM)
    assert seconds < 80
    if kind == "busy":
        assert "in spin" in errors, "the stack tells where"
