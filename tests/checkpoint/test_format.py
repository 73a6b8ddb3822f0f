"""The bytes of a checkpoint: they hold everything, say if they are damaged, and never pretend."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.checkpoint import CheckpointInfo, StepInfo
from asyncstream.checkpoint.format import VERSION, Draft, pack, unpack, unpack_info
from asyncstream.checkpoint.parts import PART, Part, check_part, encode_state, part_name, parts_of
from asyncstream.checkpoint.segments import plain_state
from asyncstream.codec import JsonCodec
from asyncstream.errors import CheckpointError, DamagedCheckpoint

STATES: dict[str, Any] = {
    "source": {"offset": 12, "lines": 3},
    "window": {
        "contents": [[f"k{n}", [0, 10], n] for n in range(2 * PART + 1)],
        "timers": {"event": list(range(PART + 1))},
    },
    "async": [["call", {"id": n}, None] for n in range(PART + 7)],
    "sink": (1, b"x"),
}

SCHEMAS: dict[str, Any] = {
    "window": {"form": {"window": {"size_ms": 10}}, "parts": {"b": 1, "a": 2}, "settings": {}}
}


def packed(number: int = 5) -> bytes:
    return drafted(number).manifest


def drafted(number: int = 5, inline_bytes: int = 10**9) -> Draft:
    codec = JsonCodec()
    states = {
        name: parts_of(encode_state(name, state, codec), lambda digest: part_name(digest, 1), inline_bytes)
        for name, state in STATES.items()
    }
    steps = {name: StepInfo("operator", name, schema=SCHEMAS.get(name)) for name in STATES}
    info = CheckpointInfo(number, "p", 1000, codec.name, False, 0, steps)
    return pack(info, states)


def read(manifest: bytes, stored: Mapping[str, bytes]) -> tuple[CheckpointInfo, dict[str, Any]]:
    """What a checkpoint says of itself, and by name what its steps remember."""

    def chunks(part: Part) -> list[bytes]:
        return list(part.chunks_in(None if part.stored is None else stored[part.stored]))

    info, parts = unpack(manifest)
    states = {
        name: [(part.path, chunk) for part in of_step for chunk in chunks(part)]
        for name, of_step in parts.items()
    }
    return info, {name: plain_state(name, state, JsonCodec()) for name, state in states.items()}


def test_a_part_that_steps_share_counts_once_when_it_is_read_as_when_it_was_written() -> None:
    parts = parts_of([(("held",), b"x" * 100)], lambda digest: part_name(digest, 1), inline_bytes=10)
    steps = {name: StepInfo("operator", name) for name in ("a", "b")}
    draft = pack(CheckpointInfo(5, "p", 1000, "json", False, 0, steps), dict.fromkeys(steps, parts))
    assert unpack(draft.manifest)[0].size == draft.info.size == len(draft.manifest) + 100


def test_what_went_in_comes_out() -> None:
    data = packed()
    info, states = read(data, {})
    assert states == STATES
    assert (info.id, info.pipeline, info.created_ms, info.finished, info.size) == (
        5,
        "p",
        1000,
        False,
        len(data),
    )


def test_description_is_read_without_a_codec() -> None:
    info = unpack_info(packed())
    assert list(info.steps) == list(STATES)
    assert info.steps["window"].size > info.steps["source"].size > 0


def test_the_schema_of_a_step_is_read_with_the_description_in_its_order() -> None:
    steps = unpack_info(packed()).steps
    assert {name: step.schema for name, step in steps.items() if step.schema} == SCHEMAS
    assert list(steps["window"].schema["parts"]) == ["b", "a"]


def test_a_checkpoint_from_before_schemas_says_that_it_has_none() -> None:
    head, description, contents = _cut(packed())
    told = json.loads(description)
    for step in told["steps"].values():
        del step["schema"]
    info = unpack_info(_joined(head, json.dumps(told).encode(), contents))
    assert [step.schema for step in info.steps.values()] == [None] * len(STATES)


@pytest.mark.parametrize("inline_bytes", [0, 100, 30_000, 10**9])
def test_large_parts_are_kept_by_themselves_and_come_out_too(inline_bytes: int) -> None:
    draft = drafted(5, inline_bytes)
    info, states = read(draft.manifest, draft.parts)
    assert states == STATES
    assert info == draft.info
    assert info.stored == draft.parts.keys()
    assert info.size == len(draft.manifest) + sum(map(len, draft.parts.values()))
    assert all(len(data) > inline_bytes for data in draft.parts.values())


def test_a_part_that_has_not_changed_has_the_same_name_and_no_other() -> None:
    first, second = drafted(5, 0), drafted(6, 0)
    assert first.parts == second.parts
    for name, data in first.parts.items():
        check_part(name, data)
        with pytest.raises(DamagedCheckpoint, match="not what was written"):
            check_part(name, data + b"\0")


@pytest.mark.parametrize("length", [0, 1, 7, 8, 20, 53, 54, 60, 500, -1])
def test_cut_short_it_is_damaged(length: int) -> None:
    with pytest.raises(DamagedCheckpoint):
        unpack_info(packed()[:length])


@given(st.integers(0, len(packed()) - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed(place: int, change: int) -> None:
    data = bytearray(packed())
    data[place] ^= change
    with pytest.raises(DamagedCheckpoint):
        unpack(bytes(data))


def test_more_bytes_than_there_should_be_are_damage() -> None:
    with pytest.raises(DamagedCheckpoint, match="bytes instead of"):
        unpack_info(packed() + b"\0")


def test_something_else_is_no_checkpoint() -> None:
    with pytest.raises(DamagedCheckpoint, match="does not begin"):
        unpack_info(b"SQLite format 3\0" + bytes(200))


def test_a_version_from_the_future_is_refused_and_not_taken_for_damage() -> None:
    head, description, contents = _cut(packed())
    later = head[:8] + (VERSION + 1).to_bytes(2, "big") + head[10:]
    with pytest.raises(CheckpointError, match="newer version") as raised:
        unpack_info(_joined(later, description, contents))
    assert not isinstance(raised.value, DamagedCheckpoint)


def test_refused_value_names_the_step_the_place_and_the_type() -> None:
    with pytest.raises(CheckpointError, match=r"step 'enrich'.* what it holds, at \['a'\]\[1\]: .*object"):
        encode_state("enrich", [5, {"a": [1, object()]}], JsonCodec())


_HEAD = struct.Struct(">8sHIQ")


def _cut(data: bytes) -> tuple[bytes, bytes, bytes]:
    """The head, the description and the contents of a checkpoint."""
    size = _HEAD.unpack_from(data)[2]
    start = _HEAD.size + 32
    return data[: _HEAD.size], data[start : start + size], data[start + size :]


def _joined(head: bytes, description: bytes, contents: bytes) -> bytes:
    """A checkpoint of these, with a checksum that is right."""
    magic, version, _, rest = _HEAD.unpack(head)
    head = _HEAD.pack(magic, version, len(description), rest)
    digest = blake2b(head + description + contents, digest_size=32).digest()
    return head + digest + description + contents


def _crafted(change: Any) -> bytes:
    """A manifest that is whole, with another description."""
    manifest = packed()
    size, rest = struct.unpack_from(">IQ", manifest, 10)
    description = json.loads(manifest[54 : 54 + size])
    changed = change(description) or description
    text = changed if isinstance(changed, bytes) else json.dumps(changed).encode()
    head = struct.pack(">8sHIQ", b"astream\n", VERSION, len(text), rest)
    contents = manifest[54 + size :]
    return head + blake2b(head + text + contents, digest_size=32).digest() + text + contents


def _with_parts(*parts: Any) -> Any:
    def change(description: Any) -> None:
        for step in description["steps"].values():
            step["parts"] = list(parts)

    return change


def _with(name: str, value: Any) -> Any:
    def change(description: Any) -> None:
        for step in description["steps"].values():
            step[name] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda description: b"[" * 100_000,
        lambda description: [1],
        lambda description: b"{}",
        lambda description: {**description, "more": 1},
        lambda description: {**description, "created_ms": "now"},
        lambda description: {**description, "id": "5"},
        lambda description: {**description, "finished": 1},
        lambda description: {**description, "steps": [1]},
        _with("role", "boss"),
        _with("kind", None),
        _with("schema", {"form": 3}),
        _with("schema", [1]),
        _with_parts([[], [10**15], None]),
        _with_parts([[], [-5], None]),
        _with_parts([[], ["5"], None]),
        _with_parts([[], [3], "../../part"]),
        _with_parts([[], [3], "a\0b"]),
        _with_parts([[], [3], 5]),
        _with_parts(3),
    ],
)
def test_whole_bytes_that_describe_no_checkpoint_are_damage(change: Any) -> None:
    with pytest.raises(DamagedCheckpoint, match="its description is not"):
        unpack(_crafted(change))
