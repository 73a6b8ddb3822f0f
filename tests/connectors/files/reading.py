"""What tests of files of lines read with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from asyncstream.codec import JsonCodec
from asyncstream.connectors import RejectedLine, Source
from asyncstream.testing.loop import run_virtual

__all__ = ("check_replay", "lines_of", "read_all")


def lines_of(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def read_all(source: Source[Any], position: Any = None) -> tuple[list[Any], list[RejectedLine], list[Any]]:
    """Elements, rejected lines, and the position after each batch."""

    async def main() -> tuple[list[Any], list[RejectedLine], list[Any]]:
        values: list[Any] = []
        rejected: list[RejectedLine] = []
        positions: list[Any] = []
        await source.open()
        try:
            if position is not None:
                await source.seek(position)
            while (batch := await source.read()) is not None:
                values += batch.values
                rejected += batch.rejected
                positions.append(source.position())
        finally:
            await source.close()
        return values, rejected, positions

    return run_virtual(main())


def check_replay(source: Callable[[], Source[Any]]) -> None:
    values, rejected, positions = read_all(source())
    codec = JsonCodec()
    for position in positions:
        later, later_rejected, _ = read_all(source(), codec.decode(codec.encode(position)))
        assert values[len(values) - len(later) :] == later
        assert rejected[len(rejected) - len(later_rejected) :] == later_rejected
    # batch by batch, what came before a position and what comes after it make up the whole
    for number, position in enumerate(positions):
        *_, later_positions = read_all(source(), position)
        assert later_positions == positions[number + 1 :]
