"""A folder of JSON Lines with a file for each micro-batch: whole or not there, and never twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncstream import SinkError
from asyncstream.runtime.spark.json_lines.sink import BatchFolder, Written
from tests.spark.files import lines


def written(folder: BatchFolder, number: int, *tasks: list[int], query: str = "query-1") -> list[Written]:
    import pyarrow as pa

    batches = [[pa.record_batch({"v": pa.array(task, pa.int64())})] if task else [] for task in tasks]
    return [folder.write(query, number, task, rows) for task, rows in enumerate(batches)]


def aside(folder: Path) -> list[str]:
    return [path.name for path in (folder / ".unfinished").iterdir()]


def test_micro_batch_appears_when_it_is_committed(tmp_path: Path) -> None:
    folder = BatchFolder(str(tmp_path / "out"), "refuse")
    first = written(folder, 0, [1, 2], [], [3])
    assert lines(tmp_path / "out") == {}
    folder.commit(first[::-1])
    folder.commit(written(folder, 1, [4]))
    folder.commit(written(folder, 2, [], []))
    folder.commit([])
    assert lines(tmp_path / "out") == {"query-1-00000000.jsonl": [1, 2, 3], "query-1-00000001.jsonl": [4]}
    assert aside(tmp_path / "out") == []


def test_micro_batch_that_is_run_again_replaces_its_file(tmp_path: Path) -> None:
    folder = BatchFolder(str(tmp_path), "refuse")
    folder.commit(written(folder, 0, [1], [2]))
    written(folder, 1, [3], [4])  # a crash between write and commit
    folder = BatchFolder(str(tmp_path), "refuse")
    folder.commit(written(folder, 1, [3], [5]))
    folder.commit(written(folder, 1, [3], [5]))  # a crash between our commit and Spark's
    assert lines(tmp_path) == {"query-1-00000000.jsonl": [1, 2], "query-1-00000001.jsonl": [3, 5]}
    folder.commit(written(folder, 1, [], []))
    assert list(lines(tmp_path)) == ["query-1-00000000.jsonl"]
    assert aside(tmp_path) == []


def test_query_that_goes_on_from_an_older_checkpoint_is_refused(tmp_path: Path) -> None:
    """Files of micro-batches that it knows nothing of would stay beside those that have their rows anew."""
    folder = BatchFolder(str(tmp_path), "append")
    for number in range(99_999_998, 100_000_001):
        folder.commit(written(folder, number, [number]))
    (tmp_path / "query-1-99999998.jsonl").rename(tmp_path / "query-1-99999998.jsonl.gz")
    with pytest.raises(SinkError, match=r"query-1-100000000\.jsonl of a later micro-batch than 99999999"):
        folder.commit(written(folder, 99_999_999, [1, 2]))
    (tmp_path / "query-1-100000000.jsonl").unlink()
    folder.commit(written(folder, 99_999_999, [1, 2]))
    (tmp_path / "query-1-99999998.jsonl.gz").unlink()
    assert lines(tmp_path) == {"query-1-99999999.jsonl": [1, 2]}


def test_task_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[Any]:
        yield from ()
        raise ZeroDivisionError

    folder = BatchFolder(str(tmp_path), "refuse")
    others = written(folder, 0, [1])
    with pytest.raises(ZeroDivisionError):
        folder.write("query-1", 0, 1, failing())
    assert len(aside(tmp_path)) == 1
    folder.abort(others)
    assert (aside(tmp_path), lines(tmp_path)) == ([], {})


def test_other_query_is_refused_unless_it_is_to_append(tmp_path: Path) -> None:
    folder = BatchFolder(str(tmp_path), "refuse")
    folder.commit(written(folder, 0, [1]))
    with pytest.raises(SinkError, match=r"holds what others have written, such as query-1-00000000\.jsonl"):
        folder.commit(written(folder, 0, [2], query="abcdefghi"))
    assert lines(tmp_path) == {"query-1-00000000.jsonl": [1]}
    folder = BatchFolder(str(tmp_path), "append")
    folder.commit(written(folder, 0, [2], query="abcdefghi"))
    assert lines(tmp_path) == {"abcdefgh-00000000.jsonl": [2], "query-1-00000000.jsonl": [1]}
