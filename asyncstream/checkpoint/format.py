"""
A checkpoint as a manifest: what it is, what each step remembers, and which parts that is in; under one
checksum.

    magic       8 bytes, b"astream\\n"
    version     2 bytes, big-endian like all numbers here
    sizes       4 bytes for the description, 8 bytes for the contents
    checksum    32 bytes, BLAKE2b over everything else
    description JSON, for people and tools: no codec is needed to read it
    contents    the parts that are small, each chunk by itself through the codec; the others are in the store

This is version 2. In version 1 all parts were contents; it can still be read. The head will stay as it is, so
that a later version can be told from damage: its checksum is right.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from hashlib import blake2b
from itertools import chain
from typing import Any, Final, Literal, TypeAlias, get_args

from asyncstream.checkpoint.parts import Part
from asyncstream.errors import CheckpointError, DamagedCheckpoint, describe_error

__all__ = (
    "CheckpointInfo",
    "Draft",
    "Role",
    "StepInfo",
    "pack",
    "unpack",
    "unpack_info",
)

MAGIC: Final = b"astream\n"
VERSION: Final = 2

_HEAD: Final = struct.Struct(">8sHIQ")
_SUM_BYTES: Final = 32
_START: Final = _HEAD.size + _SUM_BYTES

Role: TypeAlias = Literal["source", "operator", "sink"]


@dataclass(frozen=True, slots=True)
class StepInfo:
    """
    What a checkpoint says of one step that remembers something.

    Attributes:
        role: whether it is a source (its position), an operator, or a sink that takes part in epochs.
        kind: what the step did, such as "async_map"; its state is of no use to another kind.
        schema: what the state consists of, as plain JSON; None: unknown, as in checkpoints from before it was
            kept, and not compared.
        parts: those that its state is in, without data.
    """

    role: Role
    kind: str
    schema: Any = None
    parts: tuple[Part, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of its state."""
        return sum(part.size for part in self.parts)


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
        size: bytes in all, those of its parts included, which it may share with others.
        steps: the steps that remember something, by name.
        lease: the number of the lease under which it was written; 0 if there was none.
        savepoint: it stays, whatever number of checkpoints is kept, until it is deleted.
        renamed: what the job that wrote it was told of new names of steps, by the old.
        migrated: what tells the functions from others that it was given to make states of old ones, by step.
    """

    id: int
    pipeline: str
    created_ms: int
    codec: str
    finished: bool
    size: int
    steps: Mapping[str, StepInfo]
    lease: int = 0
    savepoint: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    migrated: Mapping[str, str] = field(default_factory=dict)

    @property
    def stored(self) -> frozenset[str]:
        """The names of the parts that the store keeps by themselves."""
        return frozenset(
            part.stored for step in self.steps.values() for part in step.parts if part.stored is not None
        )


@dataclass(frozen=True, slots=True)
class Draft:
    """
    A checkpoint as bytes, not yet in a store.

    Attributes:
        info: what it says of itself.
        manifest: to be committed, after its parts were put.
        parts: by name. Those that are in the store already may be left out.
    """

    info: CheckpointInfo
    manifest: bytes
    parts: dict[str, bytes]


def pack(info: CheckpointInfo, states: Mapping[str, Sequence[Part]]) -> Draft:
    """
    The bytes of a checkpoint, of the parts of each of its steps, by name; of those that have no data the
    store has it. Its size and parts are filled in here.
    """
    here = [(part.stored, part.data) for name in info.steps for part in states[name] if part.data is not None]
    contents = [data for stored, data in here if stored is None]
    stored = {stored: data for stored, data in here if stored is not None}
    steps = {
        name: replace(step, parts=tuple(replace(part, data=None) for part in states[name]))
        for name, step in info.steps.items()
    }
    plain = {one.name: getattr(info, one.name) for one in fields(info) if one.name not in ("size", "steps")}
    described = {
        name: {
            "role": step.role,
            "kind": step.kind,
            "schema": step.schema,
            "parts": [[list(part.path), list(part.chunks), part.stored] for part in step.parts],
        }
        for name, step in steps.items()
    }
    description = json.dumps({**plain, "steps": described}).encode()
    head = _HEAD.pack(MAGIC, VERSION, len(description), sum(map(len, contents)))
    manifest = b"".join((head, _checksum((head, description, *contents)), description, *contents))
    size = len(manifest) + _stored_bytes(steps)
    return Draft(replace(info, size=size, steps=steps), manifest, stored)


def _stored_bytes(steps: Mapping[str, StepInfo]) -> int:
    """Of the parts that the store keeps by themselves; steps that hold the same share one."""
    sizes = {part.stored: part.size for step in steps.values() for part in step.parts if part.stored}
    return sum(sizes.values())


def unpack_info(data: bytes) -> CheckpointInfo:
    """What a checkpoint says of itself. As for `unpack`."""
    return unpack(data)[0]


def unpack(data: bytes) -> tuple[CheckpointInfo, dict[str, list[Part]]]:
    """
    What a checkpoint says of itself, and by name the parts of its steps, without data those that the store
    keeps; nothing is decoded.

    Raises:
        DamagedCheckpoint: if these are not, or not all, the bytes of a manifest.
        CheckpointError: if a newer version of this package wrote them.
    """
    description, rest = _read(data)
    try:
        return _unpacked(description, rest, len(data))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DamagedCheckpoint(
            f"its description is not that of a checkpoint: {describe_error(error)}"
        ) from error


def _unpacked(
    description: dict[str, Any], rest: memoryview, size: int
) -> tuple[CheckpointInfo, dict[str, list[Part]]]:
    """As `unpack`; raises any error of Python's if the description has another shape."""
    steps = {name: _step(step) for name, step in description["steps"].items()}
    plain = {key: value for key, value in description.items() if key != "steps"}
    info = CheckpointInfo(**plain, size=size + _stored_bytes(steps), steps=steps)
    for name in ("id", "pipeline", "created_ms", "codec", "finished", "lease", "savepoint"):
        if CheckpointInfo.__annotations__[name] != type(getattr(info, name)).__name__:
            raise TypeError(f"its {name} is a {type(getattr(info, name)).__name__}")
    if {*map(type, chain(*info.renamed.items(), *info.migrated.items()))} - {str}:
        raise TypeError("what its job was told is no text")
    parts: dict[str, list[Part]] = {name: [] for name in steps}
    for name, step in steps.items():
        for part in step.parts:
            if part.stored is not None:
                parts[name].append(part)
                continue
            if part.size > len(rest):
                raise ValueError(f"the contents of step {name!r} are not there")
            parts[name].append(replace(part, data=bytes(rest[: part.size])))
            rest = rest[part.size :]
    return info, parts


def _step(step: Mapping[str, Any]) -> StepInfo:
    """What a description says of a step; in version 1 a part is a path and a size."""
    parts = tuple(
        Part(tuple(path), (chunks,) if isinstance(chunks, int) else tuple(chunks), *stored)
        for path, chunks, *stored in step["parts"]
    )
    info = StepInfo(step["role"], step["kind"], step.get("schema"), parts)
    names = [part.stored for part in parts if part.stored is not None]
    if not all(type(name) is str and name.isprintable() and "/" not in name for name in names):
        raise ValueError("a part has no name")
    if any(type(size) is not int or size < 0 for part in parts for size in part.chunks):
        raise ValueError("a part has no size")
    if info.role not in get_args(Role) or type(info.kind) is not str:
        raise ValueError(f"a step is a {info.role!r}")
    if info.schema is not None and not all(
        isinstance(info.schema.get(name), dict) for name in ("form", "parts", "settings")
    ):
        raise ValueError("a schema has no form")
    return info


def _read(data: bytes) -> tuple[Any, memoryview]:
    """The description, and the contents; both as they were written."""
    if not data.startswith(MAGIC[: len(data)]):
        raise DamagedCheckpoint("it does not begin as a checkpoint does")
    if len(data) < _START:
        raise DamagedCheckpoint(f"it ends after {len(data)} bytes, in its header")
    _, version, size, rest = _HEAD.unpack_from(data)
    if len(data) != _START + size + rest:
        raise DamagedCheckpoint(f"it has {len(data)} bytes instead of {_START + size + rest}")
    view = memoryview(data)
    if _checksum((view[: _HEAD.size], view[_START:])) != data[_HEAD.size : _START]:
        raise DamagedCheckpoint("its checksum is wrong")
    if version > VERSION:
        raise CheckpointError(
            f"a newer version of asyncstream wrote it: its format is {version}, this one knows {VERSION}"
        )
    try:
        return json.loads(data[_START : _START + size]), view[_START + size :]
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"its description is not JSON: {describe_error(error)}") from error


def _checksum(parts: Iterable[bytes | memoryview]) -> bytes:
    digest = blake2b(digest_size=_SUM_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()
