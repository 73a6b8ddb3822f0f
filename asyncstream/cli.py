"""
The command line: run a pipeline, describe it, look at its checkpoints.

    asyncstream run shop.orders:pipeline --checkpoints state --every 10
    asyncstream describe shop.orders:pipeline --mermaid
    asyncstream checkpoint list state

`run` stops gracefully at the first SIGTERM or SIGINT: it reads no more, starts no call, and gives running
calls and sinks some time to end: 10 s by default, and all is over 15 s later, inside the 30 s that most
supervisors give. With checkpoints, one is taken at once and a last one at the end, and open windows stay open
for the next run. Without, the job is drained: open windows fire, for no run will go on with them. At the
second signal it stops at once, and the last checkpoint that was taken stands.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from asyncstream.arguments import count, duration_seconds
from asyncstream.checkpoint import (
    CheckpointInfo,
    Checkpoints,
    CheckpointStore,
    DirectoryStore,
    History,
    SqliteStore,
)
from asyncstream.codec import JsonCodec
from asyncstream.errors import AsyncStreamError, CheckpointError, DamagedCheckpoint, PipelineError
from asyncstream.lease import presence
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
    run.set_defaults(do=_run)

    describe = commands.add_parser("describe", help="show the steps of a pipeline, and what it guarantees")
    _add_pipeline(describe)
    describe.add_argument("--mermaid", action="store_true", help="as a Mermaid flowchart")
    describe.set_defaults(do=_describe)

    checkpoint = commands.add_parser("checkpoint", help="look at kept checkpoints")
    looks = checkpoint.add_subparsers(required=True, metavar="command")
    for name, do, text in (
        ("list", _list, "one line for each"),
        ("show", _show, "what one of them holds"),
        ("verify", _verify, "read them all, and say which are damaged"),
    ):
        look = looks.add_parser(name, help=text)
        look.add_argument("store", help="the directory, or the SQLite file, that they are in")
        if name == "show":
            look.add_argument("number", nargs="?", type=int, help="which one; the newest by default")
        look.set_defaults(do=do)
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
    if options.checkpoints is not None:
        restore = int(options.restore) if options.restore.isdecimal() else options.restore
        store = DirectoryStore(options.checkpoints)
        checkpoints = Checkpoints(store=store, every=options.every, keep=options.keep, restore=restore)
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


# ------------------------------------------------------------------ checkpoints


def _store(path: str) -> CheckpointStore:
    if not Path(path).exists():
        raise CheckpointError(f"there is nothing at {path}")
    return DirectoryStore(path) if Path(path).is_dir() else SqliteStore(path)


def _read_all(path: str, *, parts: bool = False) -> dict[int, CheckpointInfo | CheckpointError]:
    """By number, what each says of itself, or what is wrong with it, or with one of its `parts`."""

    async def read() -> dict[int, CheckpointInfo | CheckpointError]:
        history = History(_store(path), JsonCodec())
        found = await history.infos()
        for number, info in found.items() if parts else ():
            if isinstance(info, CheckpointInfo):
                try:
                    await history.check(number)
                except CheckpointError as error:
                    found[number] = error
        return found

    return asyncio.run(read())


def _writer(path: str) -> str:
    """Who writes to a store now, for people."""
    lease = asyncio.run(_store(path).holder())
    if lease is None:
        return "no job has written to it with a lease"
    state = "has ended" if lease.released else f"is {presence(lease.holder)}"
    return f"lease {lease.number}, of {lease.holder}, which {state}"


def _list(options: argparse.Namespace) -> int:
    for number, info in _read_all(options.store).items():
        if isinstance(info, CheckpointInfo):
            ending = "  finished" if info.finished else ""
            print(f"{number:8}  {_moment(info)}  {info.size:12,} bytes  {info.pipeline}{ending}")
        else:
            print(f"{number:8}  {_state(info)}: {info}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    found = _read_all(options.store, parts=True)
    for number, info in found.items():
        print(f"{number:8}  {_state(info)}" + ("" if isinstance(info, CheckpointInfo) else f": {info}"))
    return int(not all(isinstance(info, CheckpointInfo) for info in found.values()))


def _show(options: argparse.Namespace) -> int:
    found = _read_all(options.store)
    if not found:
        raise CheckpointError(f"there is no checkpoint in {options.store}")
    number = max(found) if options.number is None else options.number
    if number not in found:
        raise CheckpointError(f"there is no checkpoint {number} in {options.store}")
    info = found[number]
    if isinstance(info, CheckpointError):
        raise info
    print(f"checkpoint {info.id} of pipeline {info.pipeline!r}")
    print(f"  taken     {_moment(info)}{', when all was finished' if info.finished else ''}")
    print(f"  size      {info.size:,} bytes, codec {info.codec}")
    print(f"  lease     {info.lease or 'none'}; now {_writer(options.store)}")
    width = max(map(len, info.steps), default=0)
    for name, step in info.steps.items():
        print(f"  {step.role:<8}  {name:<{width}}  {step.kind:<12}  {step.size:12,} bytes")
        for part in step.parts if len(step.parts) > 1 or step.parts[0].stored else ():
            name = "/".join(part.path) or "(rest)"
            print(f"            {name}: {part.size:,} bytes, {part.stored or 'inline'}")
    return 0


def _state(info: CheckpointInfo | CheckpointError) -> str:
    if isinstance(info, CheckpointInfo):
        return "whole"
    return "damaged" if isinstance(info, DamagedCheckpoint) else "unreadable"


def _moment(info: CheckpointInfo) -> str:
    return datetime.fromtimestamp(info.created_ms / 1000, UTC).isoformat(" ", "seconds")
