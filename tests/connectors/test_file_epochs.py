"""Files as sinks of a job with checkpoints: what is behind the position is cut off, the rest stays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    Checkpoints,
    CsvSink,
    JsonLinesSink,
    MemoryStore,
    Pipeline,
    SinkError,
    TransactionalSink,
)

ROW = {"n": 1}
MAKE: dict[str, Callable[..., TransactionalSink[Any]]] = {
    "json": JsonLinesSink,
    "csv": lambda path, **options: CsvSink(path, columns=["n"], **options),
}
LINE = {"json": b'{"n":1}\n', "csv": b"1\n"}
HEAD = {"json": b"", "csv": b"n\n"}
KINDS = pytest.mark.parametrize("kind", MAKE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out"


def content(path: Path) -> bytes:
    return path.read_bytes()


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


async def lives(sink: TransactionalSink[Any], position: Any, before: int, after: int) -> Any:
    """One run that writes so many rows before and after it prepares, and crashes then; gives the position."""
    await sink.recover(position)
    await sink.write([ROW] * before, None)
    position = await sink.prepare(1)
    await sink.write([ROW] * after, None)
    await sink.close()
    return position


@KINDS
def test_what_was_written_behind_the_position_is_cut_off(path: Path, kind: str) -> None:
    async def main() -> None:
        position = await lives(MAKE[kind](path), None, 2, 3)
        assert content(path) == HEAD[kind] + 5 * LINE[kind]
        position = await lives(MAKE[kind](path), position, 1, 4)
        await lives(MAKE[kind](path), position, 0, 0)
        assert content(path) == HEAD[kind] + 3 * LINE[kind]

    asyncio.run(main())


@KINDS
def test_crash_before_the_first_checkpoint_leaves_nothing_in_the_way(path: Path, kind: str) -> None:
    async def main() -> None:
        for _ in range(2):
            position = await lives(MAKE[kind](path), None, 0, 0)
            assert content(path) == b""
        await lives(MAKE[kind](path), position, 1, 0)
        assert content(path) == HEAD[kind] + LINE[kind]

    asyncio.run(main())


@KINDS
def test_position_at_the_beginning_cuts_off_everything(path: Path, kind: str) -> None:
    async def main() -> None:
        position = await lives(MAKE[kind](path), None, 0, 5)
        await lives(MAKE[kind](path), position, 1, 0)
        assert content(path) == HEAD[kind] + LINE[kind]

    asyncio.run(main())


@KINDS
def test_file_that_was_there_is_refused_at_the_first_start_only(path: Path, kind: str) -> None:
    async def main() -> None:
        put(path, HEAD[kind] + LINE[kind])
        with pytest.raises(SinkError, match="exists"):
            await MAKE[kind](path).recover(None)
        position = await lives(MAKE[kind](path, existing="append"), None, 1, 1)
        await lives(MAKE[kind](path), position, 1, 0)
        assert content(path) == HEAD[kind] + 3 * LINE[kind]

    asyncio.run(main())


@KINDS
def test_overwriting_is_for_the_first_start_only(path: Path, kind: str) -> None:
    async def main() -> None:
        put(path, b"something else")
        position = await lives(MAKE[kind](path, existing="overwrite"), None, 1, 1)
        await lives(MAKE[kind](path, existing="overwrite"), position, 1, 0)
        assert content(path) == HEAD[kind] + 2 * LINE[kind]

    asyncio.run(main())


@KINDS
def test_file_that_has_become_shorter_is_refused(path: Path, kind: str) -> None:
    async def main() -> None:
        position = await lives(MAKE[kind](path), None, 5, 0)
        put(path, LINE[kind])
        with pytest.raises(SinkError, match="at the checkpoint"):
            await MAKE[kind](path).recover(position)
        remove(path)
        with pytest.raises(SinkError):
            await MAKE[kind](path).recover(position)

    asyncio.run(main())


@KINDS
def test_empty_run_leaves_what_one_without_checkpoints_leaves(path: Path, kind: str) -> None:
    pipeline = Pipeline()
    pipeline.source([], name="s").to(MAKE[kind](path), name="t")
    asyncio.run(pipeline.run(checkpoints=Checkpoints(store=MemoryStore())))
    assert content(path) == HEAD[kind]
