"""
Programs that tests start, watch and kill, with every process that comes of them.

A program leads a session of its own. To that belongs whatever it starts, also what has outlived its parent or
has moved to a process group of its own, as Spark's Python workers do.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")

SETTINGS = {
    "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # starts sooner
    "SPARK_LOCAL_IP": "127.0.0.1",
}
"""For every program that is started."""

DAEMON = "spark.daemon pyspark.worker"
"""In the commands of Python workers and of what forks them: PySpark's daemon, or `tests.spark.daemon`."""


class Process(NamedTuple):
    """One of a program's, not a zombie; `command` with its arguments."""

    pid: int
    parent: int
    command: str


class Program:
    """
    A program under way; as a context it is killed at the end of its block.

    Args:
        log: where it writes what it says.
        settings: variables of its environment; None takes one away.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        folder: Path,
        settings: Mapping[str, str | None] | None = None,
    ) -> None:
        environment = {**os.environ, **SETTINGS, **(settings or {})}
        self._log = log
        with log.open("ab") as out:
            self._leader = subprocess.Popen(
                command,
                cwd=folder,
                env={name: value for name, value in environment.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._leader.pid

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def _last_words(self) -> str:
        lines = self.said.splitlines(keepends=True)
        return "".join(line for line in lines if not line.startswith("\tat "))[-5000:]  # Java's tracebacks

    def is_running(self) -> bool:
        return self._leader.poll() is None

    def until(self, reached: Callable[[], T], seconds: float) -> T:
        """What `reached` gives as soon as that is true; fails if the program ends before, or the time."""
        deadline = time.monotonic() + seconds
        while True:
            is_running = self.is_running()  # asked first: it may reach something and end
            found = reached()
            if found:
                return found
            assert is_running, f"ended with {self._leader.returncode}: {self._last_words()}"
            assert time.monotonic() < deadline, f"not after {seconds} s: {self._last_words()}"
            time.sleep(0.05)

    def finish(self, seconds: float) -> None:
        """Wait for its good end."""
        try:
            code = self._leader.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s: {self._last_words()}") from None
        assert code == 0, self._last_words()

    def until_gone(self, seconds: float) -> None:
        """Wait until the last of its processes has ended, none of which is killed."""
        deadline = time.monotonic() + seconds
        while processes := self.processes():
            assert time.monotonic() < deadline, f"after {seconds} s there are still {processes}"
            time.sleep(0.05)
        self._leader.wait()

    def processes(self, having: str = "") -> list[Process]:
        """Those with this in their command."""
        return [process for session, process in every(having) if session == self.pid]

    def workers(self) -> list[Process]:
        """Spark's Python workers, which are children of a daemon that looks like them."""
        daemons = self.processes(DAEMON)
        return [process for process in daemons if any(process.parent == other.pid for other in daemons)]

    def kill(self) -> None:
        """End all of its processes at once."""
        while processes := self.processes():
            for process in processes:
                slay(process.pid)
            time.sleep(0.01)
        self._leader.wait()


def every(having: str) -> Iterator[tuple[int, Process]]:
    """All processes with this in their command that are no zombies, with the sessions that they belong to."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                command = (folder / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue  # it has just ended
            if state != "Z" and having in command:
                yield int(session), Process(int(folder.name), int(parent), command)


def workers_of_this_process() -> list[int]:
    """The Python workers for tasks of the Spark that this process has started."""
    processes = {process.pid: process for _, process in every("")}

    def is_below(pid: int) -> bool:
        while pid in processes:
            if pid == os.getpid():
                return True
            pid = processes[pid].parent
        return False

    return [
        pid
        for pid, (_, parent, command) in processes.items()
        if DAEMON in command
        and DAEMON in processes.get(parent, Process(0, 0, "")).command
        and is_below(parent)
    ]


@contextmanager
def killing_workers(checkpoint: Path, seed: int, *, most: int) -> Iterator[list[int]]:
    """
    SIGKILL Python workers of this process at random while the block runs a query; gives what was killed.

    Args:
        checkpoint: the query's.
        most: in one micro-batch, so that no task fails more often than Spark tries it.
    """
    drawn = random.Random(seed)
    killed: list[int] = []
    counts: dict[int, int] = {}
    ended = threading.Event()

    def kill() -> None:
        while not ended.wait(0.01 + 0.4 * drawn.random()):
            begun = len(list(checkpoint.glob("offsets/[0-9]*")))
            workers = workers_of_this_process()
            if begun and workers and counts.get(begun, 0) < most:
                counts[begun] = counts.get(begun, 0) + 1
                killed.append(drawn.choice(workers))
                slay(killed[-1])

    thread = threading.Thread(target=kill, name="kills workers")
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def slay(pid: int) -> None:
    """SIGKILL, if it still runs."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
