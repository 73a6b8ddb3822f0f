"""
Runs a pipeline as the work of this process: what `run` and `enrich` have in common.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from asyncstream.checkpoint import Checkpoints
from asyncstream.cli.dashboard import serving
from asyncstream.cli.logs import LEVELS, logging_to_stderr, say, tell
from asyncstream.cli.progress import showing_progress
from asyncstream.errors import AsyncStreamError, PipelineError, describe_error
from asyncstream.pipeline import Pipeline
from asyncstream.runtime.aio.job import Job
from asyncstream.runtime.aio.process import (
    GRACE,
    LIMIT,
    PROCESS_PATIENCE,
    Signals,
    leave,
    run_bounded,
    until_signal,
)
from asyncstream.runtime.aio.restarts import Restarts, run_with_restarts
from asyncstream.validation import count, duration_seconds, refuse

__all__ = ("EVERY_SECONDS", "PROGRESS_SECONDS", "RunOptions", "add_run_options", "run_pipeline", "seconds")

EVERY_SECONDS = 10.0
"""Seconds between two checkpoints."""

PROGRESS_SECONDS = 10.0
"""Seconds between two lines of progress: few enough for a log that is kept."""


def seconds(text: str) -> float:
    """The `type=` of a length of time: argparse says "invalid seconds value", by the name of the function."""
    return float(text)


def add_run_options(parser: argparse.ArgumentParser, keeps: str) -> None:
    """
    Add the options of a run, from which `RunOptions.of` is made; by `keeps` it is told where to keep
    checkpoints.
    """
    parser.add_argument(
        "--grace",
        type=seconds,
        default=GRACE,
        metavar="S",
        help=f"seconds that calls may run on after a signal ({GRACE:g}); the process ends {LIMIT:g} s later",
    )
    parser.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help=f"after a failure go on from the last checkpoint, at most so many times (0); needs {keeps}",
    )
    parser.add_argument(
        "--restarts-within",
        type=seconds,
        metavar="S",
        help="count only the restarts of the last so many seconds (all)",
    )
    parser.add_argument(
        "--progress-every",
        type=seconds,
        default=PROGRESS_SECONDS,
        metavar="S",
        help=f"seconds between lines of progress if stderr is not a terminal ({PROGRESS_SECONDS:g}); 0: "
        "show no progress, not even a bar on a terminal",
    )
    parser.add_argument(
        "--dashboard",
        type=int,
        metavar="PORT",
        help="show the job live on http://127.0.0.1:PORT/, for this machine only; 0: on a free port",
    )
    parser.add_argument(
        "--dashboard-token-file", metavar="PATH", help="require the token in this file to open it"
    )
    parser.add_argument(
        "--log-level",
        choices=LEVELS,
        help="log messages from this level up (warning), including those of your own code",
    )


@dataclass(frozen=True)
class RunOptions:
    """
    How to run, checked.

    Attributes:
        grace: seconds that running calls get after a signal.
        restarts: when to try again; None: never.
        progress_every: seconds between two lines of progress; 0: none.
        dashboard: the port to show the job on; None: on none.
        token: what one must know who opens it; None: nothing.
        log_level: one of `LEVELS`, or None.
        is_verbose: write tracebacks.
    """

    grace: float
    restarts: Restarts | None
    progress_every: float
    dashboard: int | None
    token: str | None
    log_level: str | None
    is_verbose: bool

    @classmethod
    def of(cls, options: argparse.Namespace, keeps: str, *, is_kept: bool) -> RunOptions:
        """
        Those that were given.

        Args:
            keeps: the option by which it is told where to keep checkpoints.
            is_kept: it was told.

        Raises:
            PipelineError: if they cannot be.
        """
        restarts = None
        if options.max_restarts and not is_kept:
            raise PipelineError(
                f"--max-restarts needs {keeps}: without it, a restart would begin at the start"
            )
        if options.max_restarts != 0:
            count("--max-restarts", options.max_restarts, least=0)
            restarts = Restarts(options.max_restarts, options.restarts_within)
        elif options.restarts_within is not None:
            raise PipelineError("--restarts-within counts restarts: give --max-restarts as well")
        return cls(
            duration_seconds("--grace", options.grace, zero=True),
            restarts,
            duration_seconds("--progress-every", options.progress_every, zero=True),
            _port(options.dashboard),
            _token(options),
            options.log_level,
            options.verbose,
        )


def _port(port: int | None) -> int | None:
    if port is not None and not 0 <= port < 2**16:
        raise refuse("--dashboard", "a port between 0 and 65535", port)
    return port


def _token(options: argparse.Namespace) -> str | None:
    path = options.dashboard_token_file
    if path is None:
        return None
    if options.dashboard is None:
        raise PipelineError("--dashboard-token-file is for a dashboard: give --dashboard PORT as well")
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeError) as error:
        raise PipelineError(f"--dashboard-token-file: {describe_error(error)}") from error
    if not token or not token.isprintable():  # without what came
        raise PipelineError("--dashboard-token-file: expected a token in one line, got another text")
    return token


def run_pipeline(
    pipeline: Pipeline,
    checkpoints: Checkpoints | None,
    options: RunOptions,
    hint: Callable[[AsyncStreamError], str | None] = lambda error: None,
) -> int:
    """
    Run until all sources have ended, or a signal comes; says on stderr how it goes.

    Args:
        hint: gives what to say of a failure besides what it says itself.

    Returns the exit status: 0 if all went well; 1 if not; 128 + the number of the signal that cut it short.
    The process is to exit with it: it may do so by itself, if threads are left that do not end.
    """
    with logging_to_stderr(options.log_level, tracebacks=options.is_verbose) as log:
        try:
            status = run_bounded(_run_until_signal(pipeline, checkpoints, options))
        except AsyncStreamError as error:
            tell(error, tracebacks=options.is_verbose and error is not log.told)
            if advice := hint(error):
                say(advice)
            status = 1
        return leave(status)


async def _run_until_signal(pipeline: Pipeline, checkpoints: Checkpoints | None, options: RunOptions) -> int:
    keeps = checkpoints is not None

    def start(kept: Checkpoints | None) -> Job:
        job = pipeline.start(checkpoints=kept, end_timeout=PROCESS_PATIENCE)
        job.graph.check_alone()
        signals.watch(job)
        dashboard.watch(job)
        return job

    async def body(job: Job) -> None:
        if checkpoints is not None:
            say(_beginning(pipeline, job, checkpoints))
        async with showing_progress(job, pipeline.name, options.progress_every, say):
            await until_signal(job, signals, keeps=keeps, grace=options.grace, say=say)

    async with serving(options.dashboard, options.token, say) as dashboard:
        with Signals(options.grace, say) as signals:
            try:
                if options.restarts is None:
                    async with start(checkpoints) as job:
                        await body(job)
                else:
                    await run_with_restarts(
                        start, checkpoints, options.restarts, pipeline.name, body, signals.first
                    )
            except asyncio.CancelledError:
                if signals.cut_short is None:
                    raise
                say("stopped at once")
                return 128 + signals.cut_short
    return 0


def _beginning(pipeline: Pipeline, job: Job, checkpoints: Checkpoints) -> str:
    """Where the job begins."""
    info = job.resumed_from
    if info is None:
        place = str(checkpoints.store)
        return f"pipeline {pipeline.name!r} starts at the beginning, and keeps checkpoints in {place}"
    taken = datetime.fromtimestamp(info.created_ms / 1000, UTC).isoformat(" ", "seconds")
    ending = ", when all was finished" if info.finished else ""
    return f"pipeline {pipeline.name!r} goes on from checkpoint {info.id} of {taken}{ending}"
