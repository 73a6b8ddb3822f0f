"""
The command line: run a pipeline, describe it, look at its checkpoints.

    asyncstream run shop.orders:pipeline --checkpoints state --every 10
    asyncstream describe shop.orders:pipeline --mermaid
    asyncstream checkpoint list state

`run` stops gracefully at the first SIGTERM or SIGINT: it reads no more, and gives running calls and sinks
some time to end. With checkpoints, a last one then holds what is left, and open windows stay open for the
next run. Without, the job is drained: open windows fire, for nobody will go on with them. At the second
signal it stops at once, and the last checkpoint that was taken stands.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

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
from asyncstream.pipeline import Pipeline
from asyncstream.runtime.aio import Job

__all__ = ("main",)

SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
        "--grace", type=float, default=30.0, metavar="S", help="seconds to finish after a signal (30)"
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
    checkpoints = None
    if options.checkpoints is not None:
        restore = int(options.restore) if options.restore.isdecimal() else options.restore
        store = DirectoryStore(options.checkpoints)
        checkpoints = Checkpoints(store=store, every=options.every, keep=options.keep, restore=restore)
    return asyncio.run(_run_until_signal(pipeline, checkpoints, options.grace))


async def _run_until_signal(pipeline: Pipeline, checkpoints: Checkpoints | None, grace: float) -> int:
    signals = _Signals()
    try:
        async with pipeline.start(checkpoints=checkpoints) as job:
            work = asyncio.create_task(job.wait())
            first = asyncio.create_task(signals.first.wait())
            await asyncio.wait({work, first}, return_when=asyncio.FIRST_COMPLETED)
            first.cancel()
            if not work.done():
                await _stop(job, grace, keeps=checkpoints is not None)
            await work
    except asyncio.CancelledError:
        if signals.second is None:
            raise
        print("asyncstream: stopped at once", file=sys.stderr)
        return 128 + signals.second
    finally:
        signals.restore()
    return 0


async def _stop(job: Job, grace: float, *, keeps: bool) -> None:
    print(f"asyncstream: stopping, within {grace:g} s; a second signal stops at once", file=sys.stderr)
    if keeps:
        await job.stop(grace=grace)
        return
    try:
        await job.drain(grace)
    except TimeoutError:
        await job.stop()
        print("asyncstream: what was not finished in time is lost: no checkpoints are kept", file=sys.stderr)


class _Signals:
    """Sets `first` at the first signal, and cancels the task that made it at the second."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second: int | None = None
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._came, number)

    def _came(self, number: int) -> None:
        if not self.first.is_set():
            self.first.set()
        elif self._task is not None and self.second is None:
            self.second = number
            self._task.cancel()

    def restore(self) -> None:
        for number in SIGNALS:
            self._loop.remove_signal_handler(number)


def _describe(options: argparse.Namespace) -> int:
    pipeline = _pipeline(options.pipeline)
    print(pipeline.describe("mermaid") if options.mermaid else pipeline.describe(checkpoints=True))
    return 0


# ------------------------------------------------------------------ checkpoints


def _store(path: str) -> CheckpointStore:
    if not Path(path).exists():
        raise CheckpointError(f"there is nothing at {path}")
    return DirectoryStore(path) if Path(path).is_dir() else SqliteStore(path)


def _read_all(path: str) -> dict[int, CheckpointInfo | CheckpointError]:
    """By number, what each says of itself, or what is wrong with it."""

    async def read() -> dict[int, CheckpointInfo | CheckpointError]:
        return await History(_store(path), JsonCodec()).infos()

    return asyncio.run(read())


def _list(options: argparse.Namespace) -> int:
    for number, info in _read_all(options.store).items():
        if isinstance(info, CheckpointInfo):
            ending = "  finished" if info.finished else ""
            print(f"{number:8}  {_moment(info)}  {info.size:12,} bytes  {info.pipeline}{ending}")
        else:
            print(f"{number:8}  {_state(info)}: {info}")
    return 0


def _verify(options: argparse.Namespace) -> int:
    found = _read_all(options.store)
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
    width = max(map(len, info.steps), default=0)
    for name, step in info.steps.items():
        print(f"  {step.role:<8}  {name:<{width}}  {step.kind:<12}  {step.size:12,} bytes")
    return 0


def _state(info: CheckpointInfo | CheckpointError) -> str:
    if isinstance(info, CheckpointInfo):
        return "whole"
    return "damaged" if isinstance(info, DamagedCheckpoint) else "unreadable"


def _moment(info: CheckpointInfo) -> str:
    return datetime.fromtimestamp(info.created_ms / 1000, UTC).isoformat(" ", "seconds")
