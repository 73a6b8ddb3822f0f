"""
The command line's parser, and the commands that run and describe the pipelines of programs; those that look
at checkpoints are in `checkpoints`.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, get_args

from asyncstream.checkpoint import Checkpoints, DirectoryStore
from asyncstream.cli.checkpoints import add_checkpoint_commands
from asyncstream.cli.completion import add_completion_command
from asyncstream.cli.enrich import add_enrich_command
from asyncstream.cli.logs import logging_to_stderr, say, tell
from asyncstream.cli.places import add_key, imported, key_of
from asyncstream.cli.running import EVERY_SECONDS, RunOptions, add_run_options, run_pipeline, seconds
from asyncstream.cli.state import add_state_command
from asyncstream.connectors.writer import Ahead
from asyncstream.errors import AsyncStreamError, PipelineError, describe_error
from asyncstream.pipeline import Pipeline
from asyncstream.validation import is_async_function

__all__ = ("main", "parser")

_SETTINGS = ("every", "keep", "restore", "pipeline_was", "on_held", "ahead")
"""Options that say how checkpoints are kept: None where they are not given."""

_WAYS_OUT = {
    "restore": "--restore WHICH",
    "pipeline_was": "--pipeline-was NAME",
    "renamed": "--renamed OLD=NEW",
    "allow_dropped": "--allow-dropped STEP",
    "ahead": "--ahead CHOICE",
    "on_held": "--on-held wait",
}
"""Options for what messages name as arguments of `Checkpoints`."""

UNREAD = 128 + 13
"""The status of a command whose output nobody reads any more: as if SIGPIPE, which is 13, had ended it."""


def main(arguments: Sequence[str] | None = None) -> int:
    """
    Do what the arguments say, those of the process by default.

    Returns the exit status: 0 if all went well; 1 if it did not, and stderr says why; 128 + the number of
    the signal that cut it short, or would have, where nobody reads what it prints.

    Args:
        arguments: the words behind the program's name; None: those of the process.
    """
    if sys.stderr is None:  # it is closed: what is said goes nowhere, and not to stdout
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    # stderr does so by itself; "surrogateescape" is what stdout has in the locale C
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")
    verbose = False
    try:
        options = _options(arguments)
        verbose = options.verbose
        status: int = options.do(options)
        _flush()
    except AsyncStreamError as error:
        tell(error, tracebacks=verbose)
        return 1
    except KeyboardInterrupt:  # a run has handlers of its own
        say("stopped at once")
        return 128 + signal.SIGINT
    except Exception as error:  # of the user's module, mostly
        if _is_unread(error):
            _print_no_more()
            return UNREAD
        tell(error, f"{describe_error(error)}{_place_of(error)}", tracebacks=verbose)
        return 1
    return status


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What the arguments ask for; raises `SystemExit` if that is help, the version, or nothing there is."""
    try:
        return parser().parse_args(arguments)
    except SystemExit:
        _flush()
        raise


def _flush() -> None:
    """Have what was printed written now, where an error is told as any other."""
    if sys.stdout is not None:
        try:
            sys.stdout.flush()
        except OSError:
            _print_no_more()
            raise


def _is_unread(error: Exception) -> bool:
    """Whether it was raised because who reads what is printed here has gone, as `head` does."""
    raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
    return isinstance(error, BrokenPipeError) and Path(raised_in).parent == Path(__file__).parent


def _print_no_more() -> None:
    """Let what is still to be printed go nowhere: Python would try, and complain, once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _place_of(error: Exception) -> str:
    """Where it was raised, and how to learn more."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    at = f", raised in {frames[-1].filename}, line {frames[-1].lineno}"
    if isinstance(error, SyntaxError):  # it was raised in Python's own, and its text says where it is
        at = ""
    return f"{at}; -v shows how it came there"


def parser() -> argparse.ArgumentParser:
    """What reads the arguments of the command; the function to call for them is in `do`."""
    parser = argparse.ArgumentParser(prog="asyncstream", description="Runs pipelines of event streams.")
    version = import_module("asyncstream").__version__
    parser.add_argument("--version", action="version", version=f"asyncstream {version}")
    verbose: Any = {"action": "store_true", "help": "show tracebacks of errors"}
    parser.add_argument("-v", "--verbose", **verbose)
    shared = argparse.ArgumentParser(add_help=False)
    # suppressed: or it would take back what stands before the command
    shared.add_argument("-v", "--verbose", default=argparse.SUPPRESS, **verbose)
    commands = parser.add_subparsers(required=True, metavar="command")

    run = commands.add_parser(
        "run", parents=[shared], help="run a pipeline until its sources end, or a signal comes"
    )
    _add_pipeline(run)
    run.add_argument("--checkpoints", metavar="DIR", help="keep checkpoints here, and go on from the newest")
    run.add_argument("--every", type=seconds, metavar="S", help=f"seconds between two ({EVERY_SECONDS:g})")
    run.add_argument("--keep", type=int, metavar="N", help="how many to keep (3)")
    run.add_argument(
        "--savepoint",
        action="store_true",
        help="the checkpoint with which it ends stays, whatever --keep says, for the way back",
    )
    run.add_argument("--restore", metavar="WHICH", help="newest, none, or the number of one (newest)")
    run.add_argument(
        "--pipeline-was", metavar="NAME", help="what the pipeline was called when the checkpoint was taken"
    )
    run.add_argument(
        "--renamed",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="the step called OLD in the checkpoint is now called NEW; may be repeated",
    )
    run.add_argument(
        "--allow-dropped",
        action="append",
        default=[],
        metavar="STEP",
        help="this step is gone, and its state may be lost; may be repeated",
    )
    run.add_argument(
        "--on-held",
        choices=("refuse", "wait"),
        help="if another job keeps its checkpoints there (refuse): wait until it has ended, or is silent",
    )
    run.add_argument(
        "--ahead",
        choices=get_args(Ahead),
        help="if a sink holds results of a later checkpoint (refuse): allow_behind keeps them, start_over "
        "removes them",
    )
    add_key(run)
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="start nothing: say from which checkpoint a run would go on, and if it could (status 1 if not)",
    )
    add_run_options(run, "--checkpoints")
    run.set_defaults(do=_run)

    add_enrich_command(commands, shared)

    describe = commands.add_parser(
        "describe", parents=[shared], help="show the steps of a pipeline, and what it guarantees"
    )
    _add_pipeline(describe)
    describe.add_argument("--mermaid", action="store_true", help="as a Mermaid flowchart")
    describe.set_defaults(do=_describe)

    add_checkpoint_commands(commands, shared)
    add_state_command(commands, shared)
    add_completion_command(commands, shared)
    return parser


def _add_pipeline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pipeline", help="module:name, where name is a Pipeline or a function that makes one")


def _pipeline(target: str) -> Pipeline:
    module, _, name = target.partition(":")
    if not module or not name or module.startswith(".") or "/" in module:
        raise PipelineError(f"expected module:name, with the module as it is imported, got {target!r}")
    hint = f"; if that is a file: {module.removesuffix('.py')}:{name}" if module.endswith(".py") else ""
    found: Any = (there := imported(module, hint))
    for part in name.split("."):
        if not hasattr(found, part):
            names = ", ".join(one for one, value in vars(there).items() if isinstance(value, Pipeline))
            raise PipelineError(f"module {module!r} has no {name!r}; its pipelines: {names or 'none'}")
        found = getattr(found, part)
    if callable(found):
        try:
            inspect.signature(found).bind()
        except (TypeError, ValueError) as error:  # a missing argument; or it tells of none
            raise PipelineError(f"{target} must make a Pipeline without arguments: {error}") from error
        if is_async_function(found):
            raise PipelineError(f"{target} is an async def; only a plain function can make the Pipeline")
        found = found()
    if not isinstance(found, Pipeline):
        raise PipelineError(f"{target} is not a Pipeline, but of type {type(found).__name__}")
    return found


# ------------------------------------------------------------------ run and describe


def _run(options: argparse.Namespace) -> int:
    how = RunOptions.of(options, "--checkpoints", is_kept=options.checkpoints is not None)
    checkpoints = None
    if options.checkpoints is None:
        for name in (*_SETTINGS, "savepoint", "renamed", "allow_dropped", "key_file", "dry_run"):
            if getattr(options, name) not in (None, False, []):
                raise PipelineError(f"--{name.replace('_', '-')} needs --checkpoints")
    else:
        settings = {name: value for name in _SETTINGS if (value := getattr(options, name)) is not None}
        if settings.get("restore", "").isdecimal():
            settings["restore"] = int(settings["restore"])
        checkpoints = Checkpoints(
            store=DirectoryStore(options.checkpoints),
            savepoint=options.savepoint,
            renamed=_renamed(options.renamed),
            allow_dropped=options.allow_dropped,
            key=key_of(options),
            **{"every": EVERY_SECONDS, **settings},
        )
    pipeline = _pipeline(options.pipeline)  # last: its module may go to another folder
    if checkpoints is not None and options.dry_run:
        with logging_to_stderr(how.log_level, tracebacks=how.is_verbose):
            report = asyncio.run(pipeline.dry_run(checkpoints))
        print(report)
        if not report.can_start and (advice := _ways_out(report)):
            say(advice)
        return int(not report.can_start)
    return run_pipeline(pipeline, checkpoints, how, _ways_out)


def _ways_out(message: object) -> str | None:
    """What to type for the arguments that a message, which does not know of a command line, names."""
    text = str(message)
    ways = [option for name, option in _WAYS_OUT.items() if f"{name}=" in text]
    return f"options for that: {', '.join(ways)}" if ways else None


def _renamed(pairs: Sequence[str]) -> dict[str, str]:
    """New names by the old, of texts such as "price=pricing"."""
    renamed = {}
    for pair in pairs:
        old, equals, new = pair.partition("=")
        if not (old and equals and new):
            raise PipelineError(f"--renamed: expected OLD=NEW, got {pair!r}")
        renamed[old] = new
    return renamed


def _describe(options: argparse.Namespace) -> int:
    pipeline = _pipeline(options.pipeline)
    print(pipeline.describe("mermaid") if options.mermaid else pipeline.describe(checkpoints=True))
    return 0
