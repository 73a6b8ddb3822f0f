"""
Where checkpoints are, with which key they were written, and modules of the user's: what several commands are
told.
"""

from __future__ import annotations

import argparse
import stat
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

from asyncstream.checkpoint import CheckpointStore, DirectoryStore, SqliteStore
from asyncstream.errors import CheckpointError, PipelineError, describe_error

__all__ = ("add_key", "imported", "key_of", "store_of")


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the option that `key_of` reads."""
    parser.add_argument(
        "--key-file",
        metavar="PATH",
        help="the key of the checkpoints: all bytes of this file, a last line break included",
    )


def key_of(options: argparse.Namespace) -> bytes | None:
    """The key that was given; raises `CheckpointError` if it cannot be read."""
    if options.key_file is None:
        return None
    try:
        return Path(options.key_file).read_bytes()
    except OSError as error:
        raise CheckpointError(f"--key-file: {describe_error(error)}") from error


def imported(name: str, hint: str = "") -> ModuleType:
    """
    A module of the user's by its dotted name; it may be in the directory that the command is called in.
    Raises `PipelineError` if there is none, with the `hint` what to add.
    """
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does
    if not name or name.startswith("."):
        raise PipelineError(f"expected the name of a module, as it is imported, got {name!r}")
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # it is there, but misses something
        raise PipelineError(f"there is no module {name!r}{hint}") from error


def store_of(path: str) -> CheckpointStore:
    """The store at a path; raises `CheckpointError` if there is nothing, or it cannot be known."""
    try:
        mode = Path(path).stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"there is nothing at {path}") from None
    except OSError as error:  # it is in a directory that may not be looked into, say
        raise CheckpointError(f"{path} cannot be read: {describe_error(error)}") from error
    return DirectoryStore(path) if stat.S_ISDIR(mode) else SqliteStore(path)
