"""
What a step remembers, as parts: bytes with names, which checkpoints share as long as they do not change.

A step's state is a list of named parts. Of a step that keeps tables there are those of each table (`chains`),
with the table's name; of another state its long lists, with the path to each ("contents"). The part without a
name is all the rest. Each part is encoded in *chunks* of a thousand entries, fewer where they are large:
encoding one takes about a millisecond, so a thread that encodes them lets the event loop run in between.

A small part lies in the manifest. A large one is kept by itself, under a name that is made from its bytes:
one that has not changed since the last checkpoint has the same name, so it need not be written again, and one
that was damaged is found out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from hashlib import blake2b
from itertools import groupby, islice
from operator import getitem, itemgetter
from typing import Any, Final, TypeAlias, TypeVar

from asyncstream.codec import Codec
from asyncstream.errors import CheckpointError, CodecError, DamagedCheckpoint
from asyncstream.state.rows import paced

__all__ = (
    "INLINE_BYTES",
    "CannotKeep",
    "Encoded",
    "Part",
    "at_names_in",
    "check_part",
    "decode_state",
    "digest_in",
    "is_part_name",
    "encode_state",
    "in_chunks",
    "not_kept",
    "part_name",
    "parts_of",
)

PART: Final = 1000
"""Entries that are encoded in one go, at most."""

_PART_NAME: Final = re.compile("[0-9a-z]+-[0-9]+")

INLINE_BYTES: Final = 32 * 1024
"""Parts up to this size lie in the manifest: to bring one more file to the disk costs more."""

T = TypeVar("T")

_Path: TypeAlias = tuple[str, ...]
Encoded: TypeAlias = list[tuple[_Path, bytes]]
"""One step's state: all but its long lists, then chunks of these, each with its path."""


# ------------------------------------------------------------------ states and chunks


class CannotKeep(CheckpointError):
    """Something that will not change by trying again."""


def encode_state(step: str, state: Any, codec: Codec) -> Encoded:
    """A step's state as bytes; raises `CannotKeep` if the codec refuses a value, naming the step."""
    long: list[tuple[_Path, list[Any]]] = []
    short = _without_long_lists(state, (), long)
    try:
        encoded: Encoded = [((), codec.encode(short))]
        for path, values in long:
            encoded += [(path, data) for data in in_chunks(values, codec.encode)]
    except CodecError as error:
        raise not_kept(step, f"what it holds{at_names_in(error.path)}", error) from error
    return encoded


def in_chunks(entries: Iterable[T], encode: Callable[[list[T]], bytes]) -> Iterator[bytes]:
    """The chunks that `encode` makes of some entries at a time: each tells how many are in the next."""
    rest, count = iter(entries), 1
    while some := list(islice(rest, count)):
        data = encode(some)
        yield data
        count = paced(len(some), len(data), PART)


def at_names_in(path: str) -> str:
    """Where in a value, without the numbers that the path begins with: they are places in lists of ours."""
    names = re.sub(r"^(\[\d+\])+", "", path)
    return f", at {names}" if names else ""


def not_kept(step: str, where: str, error: CodecError) -> CannotKeep:
    """The error for a step of which the codec refuses a value; to be raised by the caller."""
    return CannotKeep(f"step {step!r} cannot be kept in a checkpoint: {where}: {error.reason}")


def _without_long_lists(state: Any, path: _Path, long: list[tuple[_Path, list[Any]]]) -> Any:
    """`state` with its long lists emptied; only dicts with plain names are looked into."""
    if type(state) is list and len(state) > PART:
        long.append((path, state))
        return []
    if type(state) is dict and all(type(key) is str for key in state):
        return {key: _without_long_lists(value, (*path, key), long) for key, value in state.items()}
    return state


def decode_state(step: str, encoded: Iterable[tuple[_Path, bytes]], codec: Codec) -> Any:
    """
    A step's state from what `encode_state` gave; raises `CheckpointError` if a value cannot be read any more,
    naming the step.
    """
    state: Any = None
    try:
        for number, (path, data) in enumerate(encoded):
            value = codec.decode(data)
            if number == 0:
                state = value
            else:
                reduce(getitem, path, state).extend(value)
    except CodecError as error:
        raise CheckpointError(f"the checkpoint's state of step {step!r} cannot be read: {error}") from error
    return state


# ------------------------------------------------------------------ chunks and parts


@dataclass(frozen=True, slots=True)
class Part:
    """
    A part of a step's state.

    Attributes:
        path: which part of the state; empty for all that is no long list.
        chunks: sizes in bytes of what was encoded in one go.
        stored: the name under which the store keeps it; None: it lies in the manifest.
        data: its bytes, where they are here.
    """

    path: _Path
    chunks: tuple[int, ...]
    stored: str | None = None
    data: bytes | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls, path: _Path, chunks: Sequence[bytes], name_of: Callable[[str], str], inline_bytes: int
    ) -> Part:
        """
        The part that has these chunks.

        Args:
            name_of: the name under which the part with this digest is kept, or is to be.
            inline_bytes: larger parts are for the store.
        """
        data = b"".join(chunks)
        stored = None if len(data) <= inline_bytes else name_of(_digest(data))
        return cls(path, tuple(map(len, chunks)), stored, data)

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(self.chunks)

    def chunks_in(self, data: bytes | None = None) -> Iterator[bytes]:
        """Its chunks, of the bytes that are here, or of these; each is copied when it is asked for."""
        data = self.data if data is None else data
        assert data is not None
        at = 0
        for size in self.chunks:
            yield data[at : at + size]
            at += size

    def without_data(self) -> Part:
        """The same, without bytes that the store has."""
        return self if self.stored is None or self.data is None else replace(self, data=None)


def parts_of(encoded: Encoded, name_of: Callable[[str], str], inline_bytes: int = INLINE_BYTES) -> list[Part]:
    """A step's state in parts; `name_of` and `inline_bytes` as for `Part.of`."""
    return [
        Part.of(path, [data for _, data in group], name_of, inline_bytes)
        for path, group in groupby(encoded, itemgetter(0))
    ]


def part_name(digest: str, writer: int) -> str:
    """
    The name of a part.

    Args:
        digest: of its bytes.
        writer: the number of the lease. What a process deletes that has lost its lease is then never what its
            follower has written.
    """
    return f"{digest}-{writer}"


def is_part_name(name: str) -> bool:
    """
    Whether `part_name` gives such names. In a directory there may be files of others that are called parts:
    those of a sink, or of Spark, which have an ending.
    """
    return _PART_NAME.fullmatch(name) is not None


def digest_in(name: str) -> str:
    """The digest in the name of a part."""
    return name.partition("-")[0]


def check_part(name: str, data: bytes) -> None:
    """See whether these are the bytes of the part; raises `DamagedCheckpoint` if not."""
    if _digest(data) != digest_in(name):
        raise DamagedCheckpoint(f"its part {name} is not what was written")


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=20).hexdigest()
