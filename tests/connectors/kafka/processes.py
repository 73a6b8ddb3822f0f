"""Runs of a pipeline in processes of their own, to be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

from tests.connectors.kafka import app
from tests.stamps import newest_ns

__all__ = ("Process",)

PATIENCE = 60.0


class Process:
    """One run of the pipeline, forked: nothing is imported again."""

    def __init__(
        self,
        folder: Path,
        id: str,
        *arguments: Any,
        work: Callable[..., Coroutine[Any, Any, None]] = app.main,
    ) -> None:
        self._kept = folder / id
        self._has_ended = False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does not use
            self._child = os.fork()
        if not self._child:
            self._run(work(folder, id, *arguments))

    def _run(self, work: Coroutine[Any, Any, None]) -> NoReturn:
        try:
            asyncio.new_event_loop().run_until_complete(work)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def is_running(self) -> bool:
        self._has_ended = self._has_ended or os.waitpid(self._child, os.WNOHANG)[0] != 0
        return not self._has_ended

    async def checkpoints(self) -> None:
        """Until there is a new one: processes are as slow as the machine is busy."""
        before = self._newest_ns()
        async with asyncio.timeout(PATIENCE):
            while self._newest_ns() == before and self.is_running():  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.01)

    def _newest_ns(self) -> int:
        return newest_ns(self._kept.glob("*.checkpoint"))

    def kill(self) -> None:
        if not self._has_ended:
            os.kill(self._child, signal.SIGKILL)
            os.waitpid(self._child, 0)
            self._has_ended = True

    async def ended(self) -> None:
        _, status = await asyncio.to_thread(os.waitpid, self._child, 0)
        assert status == 0
