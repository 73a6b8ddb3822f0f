"""A codec that the user wrote is held to what it promises, when the job is told of it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from asyncstream import CheckpointError, Checkpoints, MemoryStore, Pipeline, PipelineError
from asyncstream.codec import JsonCodec, PickleCodec, codec
from asyncstream.errors import CodecError


class Own:
    """Keeps all that pickle keeps."""

    name: Any = "own"

    def encode(self, value: Any) -> Any:
        return pickle.dumps(value)

    def decode(self, data: bytes) -> Any:
        return pickle.loads(data)


class Tuples(Own):
    """Reads lists as tuples."""

    def decode(self, data: bytes) -> Any:
        return _with_tuples(super().decode(data))


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, tuple | list) else value


class Json(Own):
    """Reads tuples as lists, and keys of dicts as texts: for values that have neither."""

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class Buffers(Own):
    """Gives the same buffer each time."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def encode(self, value: Any) -> Any:
        self.buffer = bytearray(super().encode(value))
        return memoryview(self.buffer)


class Picky(Own):
    """Raises what comes over it."""

    def encode(self, value: Any) -> Any:
        if "bad" in repr(value):
            raise ValueError("not in my schema")
        return super().encode(value)


class Messages(Own):
    """Keeps one kind of value only."""

    def encode(self, value: Any) -> bytes:
        return b"%d" % value


class Texts(Own):
    def encode(self, value: Any) -> str:
        return json.dumps(repr(value))


def _named(name: Any) -> Own:
    own = Own()
    own.name = name
    return own


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (_named(7), "whose name is a text"),
        (_named(""), "whose name is a text"),
        (Tuples(), r"lists and dicts as what they are.*it makes \(None"),
        (Messages(), "codec 'own' refuses a list: TypeError"),
        (Texts(), "codec 'own' gave a str for a value, and not bytes"),
    ],
)
def test_codec_that_would_spoil_checkpoints_is_refused_at_once(wrong: Own, told: str) -> None:
    with pytest.raises(PipelineError, match=f"codec: .*{told}"):
        Checkpoints(MemoryStore(), codec=wrong)


def test_codec_for_values_of_some_kinds_is_taken() -> None:
    assert Checkpoints(MemoryStore(), codec=Json()).values_codec().decode(b"[1]") == [1]


def test_what_it_writes_are_bytes_of_their_own() -> None:
    own = codec(Buffers())
    first, second = own.encode("a"), own.encode("b")
    assert (type(first), own.decode(first), own.decode(second)) == (bytes, "a", "b")


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda own: own.encode("bad"), "codec 'own' refuses a str: ValueError: not in my schema"),
        (lambda own: own.encode_ordered({"bad"}), "codec 'own' refuses a set: ValueError"),
        (lambda own: own.decode(b"?"), "codec 'own' cannot read these bytes: UnpicklingError"),
    ],
)
def test_what_it_raises_says_whose_it_is(use: Callable[[Any], object], told: str) -> None:
    with pytest.raises(CodecError, match=told):
        use(codec(Picky()))


def test_codec_that_orders_is_asked_to() -> None:
    class Ordered(PickleCodec):
        name = "ordered"

    ordered: Any = codec(Ordered())
    many = {f"member {number}" for number in range(100)}
    assert ordered.encode_ordered(many) == PickleCodec().encode_ordered(many)
    assert isinstance(codec(JsonCodec()), JsonCodec)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_value_that_it_refuses_is_told_with_the_step_and_fails_the_job() -> None:
    pipeline = Pipeline()
    firsts = pipeline.submissions(name="in").key_by(str).reduce(lambda one, _: one, name="firsts")
    firsts.to([], name="list")
    told = r"step 'firsts' cannot be kept in a checkpoint: key 'bad': codec 'own'.*not in my schema"
    with pytest.raises(CheckpointError, match=told):  # noqa: PT012
        async with pipeline.start(checkpoints=Checkpoints(MemoryStore(), codec=Picky())) as job:
            await job.submit("bad")
            await job.checkpoint()
    assert job.state == "failed"
