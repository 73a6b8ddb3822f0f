"""
Where checkpoints are, and with which key they were written: what several commands are told.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from asyncstream.checkpoint import CheckpointStore, DirectoryStore, SqliteStore
from asyncstream.errors import CheckpointError, describe_error

__all__ = ("add_key", "key_of", "store_of")


def add_key(parser: argparse.ArgumentParser) -> None:
    """Add the option that `key_of` reads."""
    parser.add_argument(
        "--key-file",
        metavar="PATH",
        help="the key of the checkpoints: all bytes of this file, a last line break included",
    )


def key_of(options: argparse.Namespace) -> bytes | None:
    """
    The key that was given.

    Raises:
        CheckpointError: if it cannot be read.
    """
    if options.key_file is None:
        return None
    try:
        return Path(options.key_file).read_bytes()
    except OSError as error:
        raise CheckpointError(f"--key-file: {describe_error(error)}") from error


def store_of(path: str) -> CheckpointStore:
    """
    The store at a path.

    Raises:
        CheckpointError: if there is nothing.
    """
    if not Path(path).exists():
        raise CheckpointError(f"there is nothing at {path}")
    return DirectoryStore(path) if Path(path).is_dir() else SqliteStore(path)
