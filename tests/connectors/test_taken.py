"""How many elements of a write a sink says that it has taken, after one that failed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    ArrowIpcSink,
    CsvFolderSink,
    CsvSink,
    FrameSink,
    JsonLinesFolderSink,
    JsonLinesSink,
    ParquetSink,
    Sink,
    SinkError,
    SqliteSink,
)

MAKES: dict[str, Callable[[Path], Sink[Any]]] = {
    "json": lambda folder: JsonLinesSink(folder / "out"),
    "csv": lambda folder: CsvSink(folder / "out"),
    "folder of json": lambda folder: JsonLinesFolderSink(folder / "out"),
    "folder of json, divided": lambda folder: JsonLinesFolderSink(folder / "out", partition_by="day"),
    "folder of csv": lambda folder: CsvFolderSink(folder / "out"),
    "parquet": lambda folder: ParquetSink(folder / "out"),
    "parquet, divided": lambda folder: ParquetSink(folder / "out", partition_by="day"),
    "arrow": lambda folder: ArrowIpcSink(folder / "out"),
    "sqlite": lambda folder: SqliteSink(folder / "out", "t", columns=["n"]),
    "frame": lambda folder: FrameSink(),
}


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
async def test_of_a_write_that_fails_over_its_first_element_nothing_is_taken(
    make: Callable[[Path], Sink[Any]], tmp_path: Path
) -> None:
    sink = make(tmp_path)
    await sink.open()
    good = [{"n": number, "day": "a"} for number in range(3)]
    await sink.write(good, None)
    bad = {"n": object(), "day": "b"}
    for _ in range(2):
        with pytest.raises(SinkError, match=r"cannot write \{'n': <object object>"):
            await sink.write([bad, *good, *good], None)
        assert sink.taken() == 0
        await sink.write(good[:1], None)
    await sink.flush()
    await sink.close()
    assert not (tmp_path / "out" / "day=b").exists(), "there is a folder of nothing"
