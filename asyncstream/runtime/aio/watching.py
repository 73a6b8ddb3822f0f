"""
Notices when something holds the event loop, and who.

Theory of operation
-------------------
A thread of the process knocks at the loop of every job each `TICK` seconds and waits for the answer. How long
that takes is the pause that everything in the loop had at that moment. There is none where the loop is seen
to wait for something to happen; it is not woken to say so, which would cost more than all else here. While an
answer is late, the thread looks at what the loop's thread is doing, frame by frame: the innermost operator on
its stack is the step whose function does not return, and the innermost frame that is the user's own is the
place in it. If most looks do not find the same step, many share a pass of the loop, and none is named.

Nothing is measured in the loop itself, so elements pay nothing. Loops on virtual time are not watched: their
clock stands still meanwhile. What keeps Python's own lock keeps this thread waiting, too: if the garbage
collector has gone through all objects between two looks, it was that which took the time between them, and
not the step that had it begin. No step is named where there is no such lock, in a free-threaded Python:
reading variables of a frame that another thread runs may crash it. There every loop is asked, also one that
waits.

Nor is a step to blame where the thread itself came late to a look, and the process has done next to nothing
meanwhile: it was stopped, or its machine.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import sysconfig
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, process_time
from types import FrameType
from typing import Final, NamedTuple
from weakref import ref

from asyncstream.clock import Clock
from asyncstream.metrics import Timings
from asyncstream.operators.base import Operator
from asyncstream.runtime.aio.reading import SourceDriver

__all__ = ("BLOCKED", "LoopWatch")

log = logging.getLogger("asyncstream.loop")

TICK: Final = 0.05
"""Seconds between two knocks. On the average a pause has lasted for half of that when it meets the first."""

BLOCKED: Final = 0.1
"""Seconds after which a step that holds the loop is named."""

STOPPED: Final = 1.0
"""Seconds between two looks in which the process did not run, if it has computed for less than a tenth."""

QUIET: Final = 10.0
"""Seconds between two warnings about one step."""

TASK_NAME: Final = "asyncstream "
"""How the names of tasks begin that belong to a step; its name follows."""

OURS: Final = str(Path(__file__).parents[2]) + os.sep

NOT_THE_USERS: Final = (
    OURS,
    *(path + os.sep for path in {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib")}),
    "<frozen ",
)
"""Where code is that is not the user's own, unless there is no other on the stack."""


_PASS: Final = asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]
"""One pass of an event loop of asyncio's."""


class _Place(NamedTuple):
    """What was seen on the stack: the step, or None, and the user's function with its file and line."""

    step: str | None
    where: str


class LoopWatch:
    """Watches the loop in which it is made, for one job."""

    def __init__(self, pipeline: str, parts: Mapping[str, SourceDriver | Operator]) -> None:
        self._pauses = Timings()
        self._rests = 0  # knocks that found the loop waiting: the thread counts them,
        self._told_rests = 0  # and of so many `pauses` has been told: each is written in one thread only
        self._pipeline = pipeline
        self._names = {id(part): name for name, part in parts.items()}
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._knocked: float | None = None  # when, if there is no answer yet
        self._looked = (0.0, 0.0)  # when this thread last saw the loop, and the time before
        self._collections = 0  # how often the garbage collector had gone through all objects by then,
        self._collected = 0.0  # and the seconds between looks since the knock in which it did
        self._told_of_collector = False
        self._computed = 0.0  # seconds, by the processor, of the whole process by the last look
        self._stopped = 0.0  # and the seconds between looks since the knock in which it did not run
        self._seen: Counter[_Place] = Counter()  # since then
        self._quiet_until: dict[str, float] = {}

    def begin(self) -> None:
        """Watch from now on, unless time is virtual here."""
        if not isinstance(self._loop, Clock):
            _THREAD.add(self)

    def end(self) -> None:
        """Watch no more."""
        _THREAD.remove(self)

    @property
    def pauses(self) -> Timings:
        """How long knocks have waited for an answer."""
        rests = self._rests - self._told_rests
        if rests:
            self._told_rests += rests
            self._pauses.add(0.0, monotonic(), rests)
        return self._pauses

    # ------------------------------------------------------------------ in the watching thread

    def knock(self) -> None:
        """Ask for an answer, or look at what keeps the loop from giving one."""
        if self._loop.is_closed():  # with its job left open: an answer that is still awaited never comes
            self.end()
            return
        knocked, now = self._knocked, monotonic()
        if knocked is None:
            frame = self._innermost()
            if frame is not None and self._waits(frame):
                self._rests += 1
                return
            self._knocked, self._collected, self._stopped = now, 0.0, 0.0
            self._looked, self._collections, self._computed = (now, now), _full_collections(), process_time()
            with suppress(RuntimeError):  # closed just now
                self._loop.call_soon_threadsafe(self._answer, now)
        elif now - knocked >= TICK / 2:
            self._look(now)
            frame = self._innermost()
            if frame is not None:
                self._seen[_Place(self._step_in(frame), _where(frame))] += 1

    def _look(self, now: float) -> None:
        """Count what is no step's doing since the look before."""
        computed, collections, (before, last) = process_time(), _full_collections(), self._looked
        if now - last >= STOPPED and computed - self._computed < (now - last) / 10:
            self._stopped += now - last
        if collections > self._collections:
            # the last look may have been amid it, in the callback of a weak reference
            self._collected += now - before
        self._looked, self._collections, self._computed = (last, now), collections, computed

    def _innermost(self) -> FrameType | None:
        """The frame in which the loop's thread is; None if it has ended, or may run on while that is read."""
        return sys._current_frames().get(self._thread) if _has_lock() else None

    def _waits(self, innermost: FrameType) -> bool:
        """Whether the loop has nothing to do; only asyncio's own shows it."""
        caller = innermost.f_back
        if caller is None or caller.f_code is not _PASS or innermost.f_code.co_name != "select":
            return False
        known = caller.f_locals
        # with a timeout of 0 it only looks, in the midst of its work; and another loop may run in this thread
        return known.get("self") is self._loop and known.get("timeout", 0) != 0

    def _step_in(self, innermost: FrameType) -> str | None:
        """The step whose code runs, by the innermost part on the stack, or by the name of the task."""
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_filename.startswith(OURS):
                name = self._names.get(id(frame.f_locals.get("self")))
                if name is not None:
                    return name
            frame = frame.f_back
        task = asyncio.current_task(self._loop)
        told = "" if task is None else task.get_name().removeprefix(TASK_NAME)
        return told if told in self._names.values() else None

    # ------------------------------------------------------------------ in the loop

    def _answer(self, knocked: float) -> None:
        now, seen = monotonic(), self._seen
        self._seen, self._knocked = Counter(), None
        self._pauses.add(now - knocked, now)
        seconds = now - knocked + TICK / 2
        if seconds < BLOCKED:
            return
        self._look(now)
        if 2 * self._stopped > now - knocked:
            log.info(
                "the process did not run for %.2f s: it, or its machine, was stopped or asleep; or code in C "
                "has waited for something without letting go of Python's lock",
                self._stopped,
                extra={"pipeline": self._pipeline, "seconds": self._stopped},
            )
        elif 2 * self._collected > now - knocked:
            self._tell_of_collector(self._collected)
        elif (place := _mostly(seen)) is not None:
            step, where = place
            if step is not None and now >= self._quiet_until.get(step, now):
                self._quiet_until[step] = now + QUIET
                self._warn(step, where, seconds)

    def _warn(self, step: str, where: str, seconds: float) -> None:
        log.warning(
            "step %r has held the event loop for %.2f s, in %s: nothing else could run; await something that "
            "does not block, or call it in a thread, as stream.thread_map and asyncio.to_thread do",
            step,
            seconds,
            where,
            extra={"pipeline": self._pipeline, "step": step, "seconds": seconds, "where": where},
        )

    def _tell_of_collector(self, seconds: float) -> None:
        """Once, for it comes again and again; and no warning, for no function is at fault."""
        if self._told_of_collector:
            return
        self._told_of_collector = True
        log.info(
            "Python's garbage collector has held the event loop for %.2f s: it went through all objects; "
            "gc.freeze() once all is set up spares it those that stay, gc.set_threshold() makes it rarer",
            seconds,
            extra={"pipeline": self._pipeline, "seconds": seconds},
        )


def _mostly(seen: Counter[_Place]) -> _Place | None:
    """Where in the step that was seen most of the time; None if there is none."""
    looks = Counter[str | None]()
    for place, count in seen.items():
        looks[place.step] += count
    step = next((step for step, count in looks.items() if 2 * count > seen.total()), None)
    return next((place for place, _ in seen.most_common() if place.step == step), None)


def _full_collections() -> int:
    """How often the garbage collector has gone through all objects."""
    stats: list[dict[str, int]] = gc.get_stats()
    return stats[-1]["collections"]


def _has_lock() -> bool:
    """Whether one thread at a time runs Python code; in a free-threaded build an import can change it."""
    asks: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)  # from 3.13 on
    return asks is None or asks()


def _where(innermost: FrameType) -> str:
    """The user's function that runs, with its file and line; else the innermost of all."""
    frame: FrameType | None = innermost
    while frame is not None and frame.f_code.co_filename.startswith(NOT_THE_USERS):
        # whoever runs the loop stands below it, and does nothing meanwhile
        is_below = frame.f_code is _PASS or frame.f_code.co_filename == asyncio.runners.__file__
        frame = None if is_below else frame.f_back
    shown = frame or innermost
    line = shown.f_lineno or shown.f_code.co_firstlineno  # None: the compiler put it in
    return f"{shown.f_code.co_qualname} ({Path(shown.f_code.co_filename).name}:{line})"


class _WatchingThread:
    """The one thread of the process; there is none while there is nothing to watch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: list[ref[LoopWatch]] = []  # a job that is gone, and its loop, are watched no more
        self._thread: threading.Thread | None = None
        self._left = threading.Event()

    def add(self, watch: LoopWatch) -> None:
        with self._lock:
            self._watched = [*self._watched, ref(watch)]
            if self._thread is None or not self._thread.is_alive():  # it has ended over an error of the log
                self._left = threading.Event()
                self._thread = threading.Thread(
                    target=self._run, args=(self._left,), name="asyncstream watch", daemon=True
                )
                self._thread.start()

    def remove(self, watch: LoopWatch | None) -> None:
        """Watch this one no more, nor those that are gone."""
        with self._lock:
            self._watched = [other for other in self._watched if other() not in (None, watch)]
            if not self._watched and self._thread is not None:
                self._thread = None
                self._left.set()

    def _run(self, left: threading.Event) -> None:
        while not left.wait(TICK):
            for watched in self._watched:
                watch = watched()
                if watch is None:
                    self.remove(None)
                else:
                    watch.knock()
                del watch


_THREAD = _WatchingThread()


def _begin_anew() -> None:
    """In a process that is forked: the thread is not there, nor who perhaps has its lock."""
    global _THREAD
    _THREAD = _WatchingThread()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_begin_anew)
