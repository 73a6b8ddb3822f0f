"""Ctrl-C and exits: what is open is closed, and the program ends as interrupted programs do."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asyncstream import AsyncFunction, Pipeline, Stream
from asyncstream.runtime.aio.process import run_bounded

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


ELSEWHERE = """
import sys
import threading

def interrupted():
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=interrupted, daemon=True).start()
pipeline.run_blocking({options})
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("options", ["", "uvloop=True"])
def test_interruption_that_another_thread_gets_wakes_a_loop_that_waits(options: str) -> None:
    """As one that comes when the loop is just about to wait: nothing interrupts the waiting itself."""
    if options:
        pytest.importorskip("uvloop")
    program = PROGRAM.format(run=ELSEWHERE.format(options=options))
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "calling\n"
        try:
            out, _ = process.communicate("\n", timeout=30)
        finally:
            process.kill()
    assert out == "closed\n"


class Exits(AsyncFunction[Any, Any]):
    """A function that has the process end when it is opened, called or closed."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def _at(self, moment: str) -> None:
        if moment == self.moment:
            raise SystemExit(3)

    async def open(self) -> None:
        self._at("open")

    async def invoke(self, value: Any) -> Any:
        self._at("call")

    async def close(self) -> None:
        self._at("close")


async def exits(*values: Any) -> Any:
    raise SystemExit(3)


async def exiting() -> AsyncIterator[int]:
    yield 1
    await asyncio.sleep(0)
    raise SystemExit(3)


EXITS: dict[str, Callable[[Pipeline], Stream[Any]]] = {
    "iterable": lambda pipeline: pipeline.source(exiting()),
    "job at a provider": lambda pipeline: pipeline.source([1]).async_batch(
        exits, exits, exits, size=1, every=1
    ),
    "open": lambda pipeline: pipeline.source([1]).async_map(Exits("open")),
    "call": lambda pipeline: pipeline.source([1]).async_map(Exits("call")),
    "close": lambda pipeline: pipeline.source([1]).async_map(Exits("close")),
}


@pytest.mark.usefixtures("quiet", "others_gone")
@pytest.mark.parametrize("runs", [Pipeline.run_blocking, lambda pipeline: asyncio.run(pipeline.run())])
@pytest.mark.parametrize("place", EXITS)
def test_an_exit_goes_up_and_no_task_is_said_to_have_been_forgotten(
    place: str, runs: Callable[[Pipeline], None], caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline()
    EXITS[place](pipeline).discard()
    with caplog.at_level(logging.ERROR, "asyncio"):
        has_exited = False
        try:
            runs(pipeline)
        except SystemExit:  # not kept, as `pytest.raises` does: its frames know the tasks
            has_exited = True
        assert has_exited
        del pipeline
        gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.parametrize("runs", [Pipeline.run_blocking, lambda pipeline: asyncio.run(pipeline.run())])
@pytest.mark.parametrize("isolation", ["pool", "task"])
def test_what_is_open_is_closed_wherever_a_call_exits(
    isolation: Any, runs: Callable[[Pipeline], None]
) -> None:
    """In a task of its own too: who waits for that task is not to exit once more, and leave all as it is."""
    closed = []

    class Call(AsyncFunction[int, int]):
        async def invoke(self, value: int) -> int:
            await asyncio.sleep(0 if value == 3 else 3600)
            raise SystemExit(3)

        async def close(self) -> None:
            closed.append(self)

    pipeline = Pipeline()
    pipeline.source(range(9)).async_map(Call(), isolation=isolation, concurrency=9).discard()
    with pytest.raises(SystemExit):
        runs(pipeline)
    assert closed


def test_a_task_that_exits_as_a_loop_ends_leaves_nothing_open() -> None:
    """Who waits for a job in another thread may be heard only when the job has exited, and exits too."""
    loops = []
    closed = []

    async def waits() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0)
            closed.append("task")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loops.append(loop)
        waiting = loop.create_task(waits())
        await asyncio.sleep(0)
        asyncio.run_coroutine_threadsafe(exits(), loop)
        assert not waiting.done()
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        run_bounded(main())
    assert closed == ["task"]
    assert loops[0].is_closed()
