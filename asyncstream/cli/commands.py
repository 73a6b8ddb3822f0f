"""
The commands that run and describe pipelines; those that look at checkpoints are in `checkpoints`.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from asyncstream.arguments import count, duration_seconds
from asyncstream.checkpoint import Checkpoints, DirectoryStore
from asyncstream.cli.checkpoints import add_checkpoint_commands, add_key, key_of
from asyncstream.errors import AsyncStreamError, PipelineError
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

__all__ = ("main",)


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Do what the arguments say, those of the process by default.

    Returns the exit status: 0 if all went well; 1 if it did not, and stderr says why; 128 + the number of
    the signal that cut a run short.
    """
    options = _parser().parse_args(arguments)
    try:
        status: int = options.do(options)
    except AsyncStreamError as error:
        print(f"asyncstream: {error}", file=sys.stderr)
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="asyncstream", description="Runs pipelines of event streams.")
    commands = parser.add_subparsers(required=True, metavar="command")

    run = commands.add_parser("run", help="run a pipeline until its sources end, or a signal comes")
    _add_pipeline(run)
    run.add_argument("--checkpoints", metavar="DIR", help="keep checkpoints here, and go on from the newest")
    run.add_argument("--every", type=float, default=10.0, metavar="S", help="seconds between two (10)")
    run.add_argument("--keep", type=int, default=3, metavar="N", help="how many to keep (3)")
    run.add_argument(
        "--restore", default="newest", metavar="WHICH", help="newest, none, or the number of one (newest)"
    )
    run.add_argument(
        "--grace",
        type=float,
        default=GRACE,
        metavar="S",
        help=f"seconds that running calls get after a signal ({GRACE:g}); all ends {LIMIT:g} s later",
    )
    run.add_argument(
        "--max-restarts",
        type=int,
        default=0,
        metavar="N",
        help="go on from the last checkpoint so many times after a failure (0); needs --checkpoints",
    )
    run.add_argument(
        "--restarts-within",
        type=float,
        metavar="S",
        help="count only the restarts of the last so many seconds; all, if not given",
    )
    add_key(run)
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="start nothing: say what a run would go on from, and whether it could (status 1 if not)",
    )
    run.set_defaults(do=_run)

    describe = commands.add_parser("describe", help="show the steps of a pipeline, and what it guarantees")
    _add_pipeline(describe)
    describe.add_argument("--mermaid", action="store_true", help="as a Mermaid flowchart")
    describe.set_defaults(do=_describe)

    add_checkpoint_commands(commands)
    return parser


def _add_pipeline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pipeline", help="module:name, where name is a Pipeline or a function that makes one")


def _pipeline(target: str) -> Pipeline:
    module, _, name = target.partition(":")
    if not module or not name:
        raise PipelineError(f"expected module:name, got {target!r}")
    sys.path.insert(0, "")  # as `python -m` does
    try:
        found: Any = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # it is there, but misses something
        raise PipelineError(f"there is no module {module!r}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise PipelineError(f"module {module!r} has no {name!r}")
        found = getattr(found, part)
    if callable(found):
        try:
            inspect.signature(found).bind()
        except TypeError as error:
            raise PipelineError(f"{target} is to make a Pipeline without arguments: {error}") from error
        found = found()
    if not isinstance(found, Pipeline):
        raise PipelineError(f"{target} is no Pipeline but a {type(found).__name__}")
    return found


# ------------------------------------------------------------------ run and describe


def _run(options: argparse.Namespace) -> int:
    pipeline = _pipeline(options.pipeline)
    grace = duration_seconds("--grace", options.grace, zero=True)
    restarts = None
    if options.max_restarts and options.checkpoints is None:
        raise PipelineError("--max-restarts needs --checkpoints: without, a restart would begin at the start")
    if options.max_restarts != 0:
        count("--max-restarts", options.max_restarts, least=0)
        restarts = Restarts(options.max_restarts, options.restarts_within)
    elif options.restarts_within is not None:
        raise PipelineError("--restarts-within counts restarts: give --max-restarts as well")
    checkpoints = None
    for option, is_given in (("--dry-run", options.dry_run), ("--key-file", options.key_file is not None)):
        if is_given and options.checkpoints is None:
            raise PipelineError(f"{option} needs --checkpoints")
    if options.checkpoints is not None:
        restore = int(options.restore) if options.restore.isdecimal() else options.restore
        store = DirectoryStore(options.checkpoints)
        checkpoints = Checkpoints(
            store=store, every=options.every, keep=options.keep, restore=restore, key=key_of(options)
        )
        if options.dry_run:
            report = asyncio.run(pipeline.dry_run(checkpoints))
            print(report)
            return int(not report.can_start)
    try:
        return leave(run_bounded(_run_until_signal(pipeline, checkpoints, grace, restarts)))
    except AsyncStreamError as error:
        _say(str(error))
        return leave(1)


async def _run_until_signal(
    pipeline: Pipeline, checkpoints: Checkpoints | None, grace: float, restarts: Restarts | None
) -> int:
    keeps = checkpoints is not None

    def start(kept: Checkpoints | None) -> Job:
        job = pipeline.start(checkpoints=kept, end_timeout=PROCESS_PATIENCE)
        signals.watch(job)
        return job

    async def body(job: Job) -> None:
        await until_signal(job, signals, keeps=keeps, grace=grace, say=_say)

    with Signals(grace, _say) as signals:
        try:
            if restarts is None:
                async with start(checkpoints) as job:
                    await body(job)
            else:
                await run_with_restarts(start, checkpoints, restarts, pipeline.name, body, signals.first)
        except asyncio.CancelledError:
            if signals.cut_short is None:
                raise
            _say("stopped at once")
            return 128 + signals.cut_short
    return 0


def _say(text: str) -> None:
    print(f"asyncstream: {text}", file=sys.stderr, flush=True)


def _describe(options: argparse.Namespace) -> int:
    pipeline = _pipeline(options.pipeline)
    print(pipeline.describe("mermaid") if options.mermaid else pipeline.describe(checkpoints=True))
    return 0
