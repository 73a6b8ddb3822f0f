"""
A checkpoint as bytes: what it is, then what each step remembers, all of it under one checksum.

    magic       8 bytes, b"astream\\n"
    version     2 bytes, big-endian like all numbers here
    sizes       4 bytes for the description, 8 bytes for the contents
    checksum    32 bytes, BLAKE2b over everything else
    description JSON, for people and tools: no codec is needed to read it
    contents    what the steps remember, each part by itself through the codec

Large states are cut into parts of a few thousand entries. Encoding one part takes about a millisecond, so a
thread that encodes them lets the event loop run in between.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal, TypeAlias

from asyncstream.codec import Codec
from asyncstream.errors import CheckpointError, CodecError, DamagedCheckpoint, describe_error

__all__ = ("CheckpointInfo", "Encoded", "Role", "StepInfo", "encode_state", "pack", "unpack", "unpack_info")

MAGIC: Final = b"astream\n"
VERSION: Final = 1

_HEAD: Final = struct.Struct(">8sHIQ")
_SUM_BYTES: Final = 32
_START: Final = _HEAD.size + _SUM_BYTES

PART: Final = 1000
"""Entries that are encoded in one go."""

Role: TypeAlias = Literal["source", "operator", "sink"]

_Path: TypeAlias = tuple[str, ...]
Encoded: TypeAlias = list[tuple[_Path, bytes]]
"""The parts of one step's state: all but its long lists, then pieces of these, each with its path."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """
    What a checkpoint says of one step that remembers something.

    Attributes:
        role: whether it is a source (its position), an operator, or a sink that takes part in epochs.
        kind: what the step did, such as "async_map"; its state is of no use to another kind.
        size: bytes of its state.
        schema: what the state consists of, as plain JSON; None: unknown, as in checkpoints from before it was
            kept, and not compared.
    """

    role: Role
    kind: str
    size: int
    schema: Any = None


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """
    What a checkpoint says of itself.

    Attributes:
        id: its number; later ones have larger numbers.
        pipeline: the name of the pipeline.
        created_ms: when, milliseconds since the epoch by the pipeline's clock.
        codec: name of the codec that its values went through.
        finished: every element accepted was finished, and the job ended with it.
        size: bytes in all.
        steps: the steps that remember something, by name.
    """

    id: int
    pipeline: str
    created_ms: int
    codec: str
    finished: bool
    size: int
    steps: Mapping[str, StepInfo]


# ------------------------------------------------------------------ states and their parts


def encode_state(step: str, state: Any, codec: Codec) -> Encoded:
    """
    A step's state as bytes.

    Raises:
        CheckpointError: if the codec refuses a value; names the step.
    """
    encoded: Encoded = []
    try:
        for path, value in _parts(state):
            encoded.append((path, codec.encode(value)))
    except CodecError as error:
        raise CheckpointError(f"step {step!r} cannot be kept in a checkpoint: {error}") from error
    return encoded


def _parts(state: Any) -> Iterator[tuple[_Path, Any]]:
    long: list[tuple[_Path, list[Any]]] = []
    yield (), _without_long_lists(state, (), long)
    for path, values in long:
        for start in range(0, len(values), PART):
            yield path, values[start : start + PART]


def _without_long_lists(state: Any, path: _Path, long: list[tuple[_Path, list[Any]]]) -> Any:
    """`state` with its long lists emptied; only dicts with plain names are looked into."""
    if type(state) is list and len(state) > PART:
        long.append((path, state))
        return []
    if type(state) is dict and all(type(key) is str for key in state):
        return {key: _without_long_lists(value, (*path, key), long) for key, value in state.items()}
    return state


def _decode_state(step: str, encoded: Iterable[tuple[_Path, bytes]], codec: Codec) -> Any:
    state: Any = None
    try:
        for number, (path, data) in enumerate(encoded):
            value = codec.decode(data)
            if number == 0:
                state = value
            else:
                _list_at(state, path).extend(value)
    except CodecError as error:
        raise CheckpointError(f"the checkpoint's state of step {step!r} cannot be read: {error}") from error
    return state


def _list_at(state: Any, path: _Path) -> Any:
    for key in path:
        state = state[key]
    return state


# ------------------------------------------------------------------ a whole checkpoint


def pack(info: CheckpointInfo, states: Mapping[str, Encoded]) -> bytes:
    """
    The bytes of a checkpoint.

    Args:
        info: what it says of itself; its `size`, and the sizes of its steps, are filled in here.
        states: by name, for each of its steps.
    """
    steps = {
        name: {
            "role": step.role,
            "kind": step.kind,
            "schema": step.schema,
            "parts": [[list(path), len(data)] for path, data in states[name]],
        }
        for name, step in info.steps.items()
    }
    description = json.dumps(
        {
            "id": info.id,
            "pipeline": info.pipeline,
            "created_ms": info.created_ms,
            "codec": info.codec,
            "finished": info.finished,
            "steps": steps,
        }
    ).encode()
    parts = [data for name in info.steps for _, data in states[name]]
    head = _HEAD.pack(MAGIC, VERSION, len(description), sum(map(len, parts)))
    return b"".join((head, _checksum((head, description, *parts)), description, *parts))


def unpack_info(data: bytes) -> CheckpointInfo:
    """
    What a checkpoint says of itself; nothing of its contents is decoded.

    Raises:
        DamagedCheckpoint: if these are not, or not all, the bytes of a checkpoint.
        CheckpointError: if a newer version of this package wrote them.
    """
    return _info(_description(data), len(data))


def unpack(data: bytes, codec: Codec) -> tuple[CheckpointInfo, dict[str, Any]]:
    """
    A checkpoint: what it says of itself, and by name what its steps remember.

    Raises:
        DamagedCheckpoint: if these are not, or not all, the bytes of a checkpoint.
        CheckpointError: if a newer version of this package wrote them, or another codec did, or a value
            cannot be read any more.
    """
    description = _description(data)
    info = _info(description, len(data))
    if info.codec != codec.name:
        raise CheckpointError(
            f"checkpoint {info.id} was written with codec={info.codec!r}, and is now read with {codec.name!r}"
        )
    at = len(data) - sum(size for step in description["steps"].values() for _, size in step["parts"])
    states = {}
    for name, step in description["steps"].items():
        encoded: Encoded = []
        for path, size in step["parts"]:
            encoded.append((tuple(path), data[at : at + size]))
            at += size
        states[name] = _decode_state(name, encoded, codec)
    return info, states


def _description(data: bytes) -> Any:
    if not data.startswith(MAGIC[: len(data)]):
        raise DamagedCheckpoint("it does not begin as a checkpoint does")
    if len(data) < _START:
        raise DamagedCheckpoint(f"it ends after {len(data)} bytes, in its header")
    _, version, size, rest = _HEAD.unpack_from(data)
    if version > VERSION:
        raise CheckpointError(
            f"a newer version of asyncstream wrote it: its format is {version}, this one knows {VERSION}"
        )
    if len(data) != _START + size + rest:
        raise DamagedCheckpoint(f"it has {len(data)} bytes instead of {_START + size + rest}")
    view = memoryview(data)
    if _checksum((view[: _HEAD.size], view[_START:])) != data[_HEAD.size : _START]:
        raise DamagedCheckpoint("its checksum is wrong")
    try:
        return json.loads(data[_START : _START + size])
    except ValueError as error:
        raise DamagedCheckpoint(f"its description is not JSON: {describe_error(error)}") from error


def _info(description: Any, size: int) -> CheckpointInfo:
    steps = {
        name: StepInfo(step["role"], step["kind"], sum(size for _, size in step["parts"]), step.get("schema"))
        for name, step in description["steps"].items()
    }
    plain = {key: value for key, value in description.items() if key != "steps"}
    return CheckpointInfo(**plain, size=size, steps=steps)


def _checksum(parts: Iterable[bytes | memoryview]) -> bytes:
    digest = blake2b(digest_size=_SUM_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()
