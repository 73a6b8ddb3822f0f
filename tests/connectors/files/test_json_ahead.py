"""JSON lines that are read many at a time are those that are read one by one."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncstream import JsonLinesSource, SourceError
from tests.connectors.files.reading import lines_of, read_all

LINES = st.sampled_from(
    [
        *(
            b'{"id": 1}\n',
            b'{"id": 2}\r\n',
            b'{"id": 18446744073709551617}\n',
            b'{"id": -3, "x": 0.0012345}\n',
        ),
        *(b"\n", b"\r\n", b" \t\n", b"\x0b\n"),
        *(b'{"id": "many"}\n', b"{\n", b"[1]\n", b'"\xff"\n', b'{"id": 4} x\n'),
        *(b'{"id": 5, "text": "' + b"x" * 90 + b'"}\n', b"1.00000000000000000000001\n"),
        b'{"id": 6, "in": ' + b"[" * 120 + b"]" * 120 + b"}\n",
    ]
)


@dataclass
class Row:
    id: int


def numbered(source: Any) -> list[Any]:
    """All that is read, up to the error that ends it, in the order of the lines."""
    values: list[Any] = []
    rejected: list[Any] = []
    try:
        values, rejected, _ = read_all(source)
    except SourceError as error:
        return [str(error)]
    return [*map(repr, values), *rejected]


@pytest.mark.parametrize("model", [None, Row])
@pytest.mark.parametrize("on_malformed", ["reject", "fail"])
@given(
    lines=st.lists(LINES, max_size=40).map(lambda some: some * 9),
    batch=st.sampled_from([64, 70, 100, 1000]),
    limit=st.sampled_from([60, 300, 10**6]),
    end=st.sampled_from([b"", b'{"id": 7}', b"{"]),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_many_at_a_time_are_as_one_by_one(
    tmp_path: Path, model: Any, on_malformed: Any, lines: list[bytes], batch: int, limit: int, end: bytes
) -> None:
    path = lines_of(tmp_path / "in.jsonl", b"".join(lines) + end)
    options: dict[str, Any] = {"on_malformed": on_malformed, "max_line_bytes": limit}
    if model is not None:
        options["model"] = model
    expected = numbered(JsonLinesSource(path, batch=1, **options))
    assert numbered(JsonLinesSource(path, batch=batch, **options)) == expected


def test_empty_lines_between_others_cost_no_more_where_there_are_many(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "in.jsonl", "1\n\n" * 80_000)
    started = time.process_time()
    assert read_all(JsonLinesSource(path, batch=100_000))[0] == [1] * 80_000
    assert time.process_time() - started < 3  # it took 7 s to look at all that follow with each


@pytest.mark.parametrize("bad", [None, 0, 1, 63, 64, 500, 998])
def test_positions_are_behind_the_lines_that_were_read(tmp_path: Path, bad: int | None) -> None:
    lines = [json.dumps({"id": number, "text": "x" * (number % 9)}) for number in range(999)]
    if bad is not None:
        lines[bad] = "{"
    path = lines_of(tmp_path / "in.jsonl", "\n".join(lines) + "\n")

    def source() -> JsonLinesSource[Any]:
        return JsonLinesSource(path, on_malformed="reject", batch=100)

    values, rejected, positions = read_all(source())
    assert [value["id"] for value in values] == [number for number in range(999) if number != bad]
    assert [line.line_number - 1 for line in rejected] == ([] if bad is None else [bad])
    for number, position in enumerate(positions, start=1):
        done = sum(map(len, lines[: number * 100])) + min(number * 100, 999)
        assert (position["offset"], position["lines"]) == (done, min(number * 100, 999))
        later, later_rejected, _ = read_all(source(), position)
        assert len(later) + len(later_rejected) == 999 - min(number * 100, 999)


def test_a_whole_number_of_any_size_is_exact(tmp_path: Path) -> None:
    numbers = [2**64, 2**64 + 1, -(2**63) - 1, 10**40] * 200
    path = lines_of(tmp_path / "in.jsonl", "".join(f'{{"id": {number}}}\n' for number in numbers))
    assert [value["id"] for value in read_all(JsonLinesSource(path))[0]] == numbers
    assert [row.id for row in read_all(JsonLinesSource(path, model=Row))[0]] == numbers
