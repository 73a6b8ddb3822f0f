from __future__ import annotations

import asyncio
import csv
import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncstream.connectors import (
    CsvSink,
    CsvSource,
    JsonLinesSink,
    JsonLinesSource,
    ParquetSource,
    RejectedLine,
    Sink,
    Source,
    SqliteSink,
)
from asyncstream.errors import PipelineError, SinkBroken, SinkError, SourceError
from asyncstream.testing.loop import run_virtual
from tests.connectors.files.reading import check_replay, lines_of, read_all
from tests.tiers import examples


def write_all(sink: Sink[Any], *batches: list[Any]) -> None:
    async def main() -> None:
        try:
            await sink.open()
            for batch in batches:
                await sink.write(batch, None)
            await sink.flush()
        finally:
            await sink.close()

    run_virtual(main())


def brief(rejected: list[RejectedLine]) -> list[tuple[int, str]]:
    return [(each.line_number, each.line) for each in rejected]


# -- JSON lines, reading


@pytest.mark.parametrize(
    ("kind", "head"), [(JsonLinesSource, 5_000_000 * " " + "\n"), (CsvSource, "n\n")], ids=["json", "csv"]
)
def test_one_read_ends_behind_some_megabytes_of_lines(tmp_path: Path, kind: Any, head: str) -> None:
    """However many values it might bring; and a long blank line alone is no end of the file."""
    lengths = [n % 10 * 12_000 for n in range(240)]
    data = head + "".join(f'"{length * "x"}"\n' for length in lengths)
    values, _, positions = read_all(kind(lines_of(tmp_path / "long", data)))
    assert [len(value if isinstance(value, str) else value["n"]) for value in values] == lengths
    offsets = [position["offset"] for position in positions]
    assert all(after - before < 5_000_000 for before, after in pairwise(offsets))
    assert len(offsets) >= 3


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1}\n[2]\nnull\n"\xc3\xa9"\n',
        b'{"a":1}\n[2]\nnull\n"\xc3\xa9"',
        b'{"a":1}\r\n[2]\r\nnull\r\n"\xc3\xa9"\r\n',
        b'\xef\xbb\xbf{"a":1}\n[2]\nnull\n"\xc3\xa9"',
        b'\n \n{"a":1}\n\r\n[2]\n\t\nnull\n\n"\xc3\xa9"\n\n\n',
    ],
    ids=["plain", "no_last_line_end", "crlf", "byte_order_mark", "empty_lines"],
)
@pytest.mark.parametrize("batch", [1, 3, 1000])
def test_json_lines_are_read(tmp_path: Path, data: bytes, batch: int) -> None:
    path = lines_of(tmp_path / "in.jsonl", data)
    assert read_all(JsonLinesSource(path, batch=batch))[0] == [{"a": 1}, [2], None, "é"]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\n"])
def test_json_file_without_values_is_the_end_of_input(tmp_path: Path, data: bytes) -> None:
    assert read_all(JsonLinesSource(lines_of(tmp_path / "in.jsonl", data))) == ([], [], [])


@pytest.mark.usefixtures("virtual_time")
async def test_malformed_json_line_fails_after_the_lines_before_it(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "in.jsonl", '1\n\n2\n{"a":\n3\n')

    source = JsonLinesSource(path)
    await source.open()
    batch = await source.read()
    assert batch is not None
    assert batch.values == [1, 2]
    told = r"in\.jsonl, line 4: not JSON: .*, at character 1; a value must be whole on its line; on_malformed"
    for _ in range(2):
        with pytest.raises(SourceError, match=told):
            await source.read()
    await source.close()


def test_malformed_json_lines_are_rejected(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "in.jsonl", b'1\n{"a":\r\n\xff\n2\n\nNaN')
    values, rejected, _ = read_all(JsonLinesSource(path, on_malformed="reject"))
    assert values == [1, 2]
    assert brief(rejected) == [(2, '{"a":'), (3, "\\xff"), (6, "NaN")]
    assert all(each.path == str(path) and each.reason.startswith("not JSON: ") for each in rejected)


def test_rejected_lines_count_towards_the_batch(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "in.jsonl", "x\n" * 10)
    _, rejected, positions = read_all(JsonLinesSource(path, on_malformed="reject", batch=3))
    assert (len(rejected), len(positions)) == (10, 4)


@pytest.mark.parametrize("end", ["\n", ""])
def test_too_long_line_is_malformed_exact_limit_is_not(tmp_path: Path, end: str) -> None:
    line = '"' + "x" * 5000 + '"'
    path = lines_of(tmp_path / "in.jsonl", f"1\n{line}{end}")
    size = len(line + end)
    assert read_all(JsonLinesSource(path, max_line_bytes=size))[0] == [1, line[1:-1]]
    path = lines_of(path, f"1\n{line}\n2\n")
    values, rejected, _ = read_all(JsonLinesSource(path, max_line_bytes=5000, on_malformed="reject"))
    assert values == [1, 2]
    assert rejected == [RejectedLine(str(path), 2, line[:1000], "longer than 5000 bytes")]


def test_memory_does_not_grow_with_the_file_or_a_line(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.write(b'{"a":"%s"}\n' % (b"x" * 100) * 40_000)
        file.write(b"y" * 8_000_000 + b"\n1\n")

    async def main() -> None:
        source = JsonLinesSource(path, batch=100, max_line_bytes=100_000, on_malformed="reject")
        await source.open()
        count = 0
        while (batch := await source.read()) is not None:
            count += len(batch.values)
        await source.close()
        assert count == 40_001

    tracemalloc.start()
    try:
        run_virtual(main())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3_000_000


# -- position


json_lines = st.lists(
    st.sampled_from(["1", '{"a":"é"}', "", "  ", "broken {", '"\\n"', '"' + "z" * 40 + '"']), max_size=12
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(json_lines, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans(), st.integers(1, 4))
def test_json_replay_goes_on_exactly_after_each_batch(
    tmp_path: Path, lines: list[str], end: str, last_end: bool, mark: bool, batch: int
) -> None:
    path = lines_of(tmp_path / "in.jsonl", ("\ufeff" if mark else "") + end.join(lines) + end * last_end)

    def source() -> JsonLinesSource[Any]:
        return JsonLinesSource(path, on_malformed="reject", batch=batch, max_line_bytes=35)

    check_replay(source)


csv_records = st.lists(
    st.sampled_from(
        ["1,b", 'é,"x\ny"', '"a""b",c', "1,2,3", "", '"open,x', 'x"y,1', '"a"b,c', "x," + "z" * 40]
    ),
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(csv_records, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans(), st.integers(1, 4))
def test_csv_replay_goes_on_exactly_after_each_batch(
    tmp_path: Path, records: list[str], end: str, last_end: bool, mark: bool, batch: int
) -> None:
    text = ("\ufeff" if mark else "") + end.join(["a,b", *records]) + end * last_end
    path = lines_of(tmp_path / "in.csv", text)

    def source() -> CsvSource[dict[str, Any]]:
        return CsvSource(path, on_malformed="reject", batch=batch, max_line_bytes=35)

    check_replay(source)


def test_position_before_the_first_read_is_the_beginning(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "in.csv", "a\n1\n2\n")

    async def position() -> Any:
        source = CsvSource(path)
        await source.open()
        try:
            return source.position()
        finally:
            await source.close()

    assert read_all(CsvSource(path), run_virtual(position()))[0] == [{"a": "1"}, {"a": "2"}]


def test_position_behind_the_end_of_the_file_is_refused(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "in.jsonl", "1\n")
    with pytest.raises(SourceError, match=r"cannot go on at byte 3 of .*in\.jsonl: it has only 2"):
        read_all(JsonLinesSource(path), {"offset": 3, "lines": 2})


# -- CSV, reading


@pytest.mark.parametrize(
    "data",
    ['a,b\n1,"x\ny"\n\n2,é\n', '\ufeffa,b\r\n\r\n1,"x\ny"\r\n2,é', '"a",b\n1,"x\ny"\n2,"é"\n\n'],
    ids=["plain", "byte_order_mark_and_crlf", "quoted_header"],
)
@pytest.mark.parametrize("batch", [1, 1000])
def test_csv_is_read_as_dicts(tmp_path: Path, data: str, batch: int) -> None:
    path = lines_of(tmp_path / "in.csv", data)
    values, _, _ = read_all(CsvSource(path, batch=batch))
    assert values == [{"a": "1", "b": "x\ny"}, {"a": "2", "b": "é"}]


def test_csv_columns_types_and_delimiter(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "in.csv", "1;2.5;x\n")
    source = CsvSource(path, columns=["n", "x", "s"], types={"n": int, "x": float}, delimiter=";")
    assert read_all(source)[0] == [{"n": 1, "x": 2.5, "s": "x"}]


@pytest.mark.parametrize("data", ["", "a,b\n", "\n\n"])
def test_csv_without_records_is_the_end_of_input(tmp_path: Path, data: str) -> None:
    assert read_all(CsvSource(lines_of(tmp_path / "in.csv", data))) == ([], [], [])


def test_malformed_csv_records_are_rejected(tmp_path: Path) -> None:
    path = lines_of(
        tmp_path / "in.csv",
        b'n,b\n1,x\n1,2,3\n1,"x\ny",z\n\xff,1\nseven,1\n"1"2,x\n3,' + b"z" * 99 + b"\n2,y\n",
    )
    source = CsvSource(path, types={"n": int}, on_malformed="reject", max_line_bytes=50)
    values, rejected, _ = read_all(source)
    assert values == [{"n": 1, "b": "x"}, {"n": 2, "b": "y"}]
    assert [(each.line_number, each.line, each.reason) for each in rejected] == [
        (3, "1,2,3", "3 fields instead of 2"),
        (4, '1,"x\ny",z', "3 fields instead of 2"),
        (6, "\\xff,1", "not UTF-8: invalid start byte"),
        (7, "seven,1", "column 'n': ValueError: invalid literal for int() with base 10: 'seven'"),
        (8, '"1"2,x', "not CSV: ',' expected after '\"'"),
        (9, "3," + "z" * 99, "longer than 50 bytes"),
    ]


@pytest.mark.parametrize("after", ["", "2,y\n" * 3, "2,y\n" * 1000])
def test_quote_that_is_never_closed_costs_one_line(tmp_path: Path, after: str) -> None:
    path = lines_of(tmp_path / "in.csv", '1,x\n1,"open\n' + after)
    source = CsvSource(path, columns=["a", "b"], on_malformed="reject", max_line_bytes=1000)
    values, rejected, _ = read_all(source)
    assert values == [{"a": "1", "b": "x"}] + [{"a": "2", "b": "y"}] * after.count("\n")
    assert brief(rejected) == [(2, '1,"open')]


def test_malformed_csv_record_fails_with_its_first_line(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "in.csv", 'a,b\n"x\ny",1\n\n"z\n",2,3\n')
    with pytest.raises(SourceError, match=r"in\.csv, line 5: 3 fields instead of 2"):
        read_all(CsvSource(path))


def test_longer_field_than_the_csv_module_takes_is_rejected_with_what_to_do(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "in.csv", f"a\n{'x' * 131_073}\ny\n")
    with pytest.raises(SourceError, match=r"line 2: .*limit \(131072\); csv\.field_size_limit\(n\) allows"):
        read_all(CsvSource(path))
    values, rejected, _ = read_all(CsvSource(path, on_malformed="reject"))
    assert values == [{"a": "y"}]
    assert "csv.field_size_limit(n)" in rejected[0].reason


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a,b,a\n", "the header names 'a' more than once"),
        (b"a,b\n", "no column 'n' for types=, there are \\['a', 'b'\\]"),
        (b"\xff\n", "line 1: not UTF-8.* there is no header to be read"),
        ("a,b\n".encode("utf-16"), "line 1: not UTF-8.* write the file as UTF-8"),
        (b"a,b\r1,2\r", "line 1: not CSV.* lines that end in"),
    ],
)
def test_wrong_header_fails_on_opening(tmp_path: Path, data: bytes, message: str) -> None:
    path = lines_of(tmp_path / "in.csv", data)
    with pytest.raises(SourceError, match=message):
        read_all(CsvSource(path, types={"n": int}, on_malformed="reject"))


def test_missing_file_is_told_on_opening(tmp_path: Path) -> None:
    for source in (
        JsonLinesSource(tmp_path / "no.jsonl"),
        CsvSource(tmp_path / "no.csv"),
        JsonLinesSource(tmp_path),
    ):
        with pytest.raises(SourceError, match=r"cannot read .*(FileNotFoundError|IsADirectoryError)"):
            read_all(source)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    os.mkfifo(path)
    sources: list[Source[Any]] = [JsonLinesSource(path), CsvSource(path), ParquetSource(path)]
    for source in sources:
        with pytest.raises(SourceError, match="a pipe or a device"):
            read_all(source)


# -- writing


def test_json_lines_are_written(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    write_all(JsonLinesSink(path), [{"a": 1}, None], [], ["é\n"])
    assert path.read_bytes() == b'{"a":1}\nnull\n"\xc3\xa9\\n"\n'


def test_csv_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write_all(CsvSink(path, columns=["b", "a"]), [{"a": 1, "b": 'x,"y"'}, {"b": None, "a": "z\n", "more": 1}])
    assert path.read_bytes() == b'b,a\n"x,""y""",1\n,"z\n"\n'


def test_csv_takes_the_columns_of_the_first_element_if_none_are_given(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write_all(CsvSink(path), [{"b": 1, "a": 2}, {"a": 3}], [{"b": 4}])
    assert path.read_text() == "b,a\n1,2\n,3\n4,\n"
    write_all(CsvSink(path, existing="append"), [{"a": 5, "b": 6}])
    assert path.read_text() == "b,a\n1,2\n,3\n4,\n6,5\n"
    with pytest.raises(SinkError, match="there is no column for 'c', 'd': name all of them, columns="):
        write_all(CsvSink(path, existing="append"), [{"a": 7}, {"d": 1, "b": 2, "c": 3}])
    assert path.read_text().endswith("6,5\n,7\n")
    with pytest.raises(SinkError, match=r"got a int; make one before, as \.map\(lambda value: "):
        write_all(CsvSink(path, existing="overwrite"), [7])
    write_all(CsvSink(path, existing="overwrite"))
    assert path.read_text() == ""


async def test_csv_goes_on_with_the_columns_of_its_file(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    sink = CsvSink(path)
    await sink.recover(None)
    await sink.write([{"b": 1, "a": "x\ny"}], None)
    position = await sink.prepare(1)
    await sink.write([{"b": 2, "a": 2}], None)
    await sink.close()
    await sink.recover(position)
    await sink.write([{"a": 3, "b": 4}], None)
    await sink.close()
    assert path.read_text() == 'b,a\n1,"x\ny"\n4,3\n'


@given(st.lists(st.dictionaries(st.just("a"), st.text(st.characters(exclude_categories=["Cs"]))), max_size=5))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(50))
def test_what_csv_writes_csv_reads(tmp_path: Path, found: list[dict[str, str]]) -> None:
    records = [{"a": record.get("a", ""), "b": "x"} for record in found]
    path = tmp_path / "both.csv"
    write_all(CsvSink(path, columns=["a", "b"], existing="overwrite"), records)
    assert read_all(CsvSource(path))[0] == records


@pytest.mark.parametrize("make", [JsonLinesSink, lambda path, **how: CsvSink(path, columns=["a"], **how)])
def test_existing_file_needs_a_decision(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "out"
    write_all(make(path), [{"a": 1}])
    once = path.read_text()
    with pytest.raises(SinkError, match="exists: pass existing='append' or existing='overwrite'"):
        write_all(make(path), [{"a": 1}])
    assert path.read_text() == once
    write_all(make(path, existing="overwrite"), [{"a": 1}])
    assert path.read_text() == once
    write_all(make(path, existing="append"), [{"a": 1}])
    assert path.read_text() == once + once.splitlines()[-1] + "\n"


@pytest.mark.parametrize("before", ["", "0", "0\n"])
def test_appending_begins_on_a_line_of_its_own(tmp_path: Path, before: str) -> None:
    path = lines_of(tmp_path / "out.jsonl", before)
    write_all(JsonLinesSink(path, existing="append"), [1])
    assert path.read_text().split() == [*before.split(), "1"]


@pytest.mark.parametrize("before", ["", "a,b", "a,b\r\n", "\ufeffa,b\n1,2"])
def test_appended_csv_has_one_header(tmp_path: Path, before: str) -> None:
    path = lines_of(tmp_path / "out.csv", before)
    write_all(CsvSink(path, columns=["a", "b"], existing="append"), [{"a": 3, "b": 4}])
    assert read_all(CsvSource(path))[0][-1] == {"a": "3", "b": "4"}
    assert path.read_bytes().count(b"a,b") == 1


@pytest.mark.parametrize("column", ["a\nb", "a\r\nb", '"', "a,b"])
def test_csv_is_appended_to_whatever_its_columns_are_called(tmp_path: Path, column: str) -> None:
    path = tmp_path / "out.csv"
    for value in (1, 2):
        write_all(CsvSink(path, columns=[column, "n"], existing="append"), [{column: "x", "n": value}])
    assert read_all(CsvSource(path))[0] == [{column: "x", "n": "1"}, {column: "x", "n": "2"}]


@pytest.mark.parametrize("before", [b"", b"\xef\xbb\xbf", b"\n\n", b"\r\n", gzip.compress(b"", mtime=0)])
def test_csv_that_is_appended_to_has_a_header_if_it_had_none(tmp_path: Path, before: bytes) -> None:
    path = tmp_path / ("out.csv.gz" if before[:1] == b"\x1f" else "out.csv")
    path.write_bytes(before)
    for value in (1, 2):
        write_all(CsvSink(path, existing="append"), [{"a": value}])
    assert read_all(CsvSource(path))[0] == [{"a": "1"}, {"a": "2"}]


@pytest.mark.parametrize("before", ["a,bc\n", "a,b,c\n", "a\n", '"a,b"\n'])
def test_appending_below_a_header_that_is_longer_or_shorter_is_refused(tmp_path: Path, before: str) -> None:
    path = lines_of(tmp_path / "out.csv", before)
    with pytest.raises(SinkError, match="its header is"):
        write_all(CsvSink(path, columns=["a", "b"], existing="append"))


def test_appending_below_another_header_is_refused(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "out.csv", "a,c\n")
    with pytest.raises(SinkError, match=r"cannot write behind .*: its header is 'a,c', and .* 'a,b'"):
        write_all(CsvSink(path, columns=["a", "b"], existing="append"))


def test_element_that_cannot_be_written_is_named_and_those_before_it_are_written(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with pytest.raises(SinkError, match=r"cannot write \{2: 3\} to .*out: .*Dict key must be str"):
        write_all(JsonLinesSink(path), [1, {2: 3}, 4])
    assert path.read_text() == "1\n"
    with pytest.raises(SinkError, match=r"cannot write \{'b': 3\} to .*out: KeyError: 'a'"):
        write_all(CsvSink(path, columns=["a"], existing="overwrite"), [{"a": 1}, {"b": 3}])
    assert path.read_text() == "a\n1\n"
    with pytest.raises(SinkError, match="UnicodeEncodeError"):
        write_all(CsvSink(path, columns=["a"], existing="overwrite"), [{"a": "\ud800"}])


def test_missing_directory_is_told_on_opening(tmp_path: Path) -> None:
    for existing in ("refuse", "append", "overwrite"):
        with pytest.raises(SinkError, match=r"there is no directory .*/no$"):
            write_all(JsonLinesSink(tmp_path / "no" / "out.jsonl", existing=existing))


@pytest.mark.usefixtures("virtual_time")
async def test_flush_makes_lines_visible(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"

    sink = JsonLinesSink(path)
    await sink.open()
    await sink.write([1], None)
    assert path.stat().st_size == 0
    await sink.flush()
    assert json.loads(path.read_text()) == 1
    await sink.close()
    await sink.close()


def test_wrong_arguments_are_refused_at_once() -> None:
    refused: list[tuple[str, Callable[[], object]]] = [
        ("path: expected the path of a file", lambda: JsonLinesSource("")),
        ("path: expected the path of a file", lambda: CsvSink("a\0b")),
        ("path: expected the path of a database file", lambda: SqliteSink("a\0b", "t", columns=["n"])),
        ("path: expected the path of a file", lambda: JsonLinesSink(3)),  # type: ignore[arg-type]
        ("on_malformed: expected one of 'fail', 'reject'", lambda: CsvSource("x", on_malformed="no")),  # type: ignore[call-overload]
        ("batch: expected an integer", lambda: CsvSource("x", batch=0)),
        ("max_line_bytes: expected an integer", lambda: JsonLinesSource("x", max_line_bytes=0)),
        ("delimiter: expected one character", lambda: CsvSource("x", delimiter=", ")),
        ("columns: expected a list of different names", lambda: CsvSource("x", columns=["a", "a"])),
        ("columns: expected a list of different names", lambda: CsvSink("x", columns="ab")),
        ("columns: expected a list of different names", lambda: CsvSink("x", columns={"a", "b"})),  # type: ignore[arg-type]
        (r"types\['a'\]: expected a function", lambda: CsvSource("x", types={"a": 3})),  # type: ignore[dict-item]
        ("types: expected some of the columns", lambda: CsvSource("x", columns=["b"], types={"a": int})),
        ("existing: expected one of", lambda: JsonLinesSink("x", existing="w")),  # type: ignore[arg-type]
    ]
    for message, make in refused:
        with pytest.raises(PipelineError, match=message):
            make()


def test_csv_reads_what_the_standard_library_reads(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    rows = [[str(i), f'say "{i}"', "a\r\nb", "", " x "] for i in range(2500)]
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list("abcde"), *rows])
    assert [list(record.values()) for record in read_all(CsvSource(path))[0]] == rows


def test_json_reads_what_orjson_writes(tmp_path: Path) -> None:
    values = [{"i": i, "tags": ["a", None, 1.5]} for i in range(2500)]
    path = lines_of(tmp_path / "in.jsonl", b"".join(orjson.dumps(value) + b"\n" for value in values))
    assert read_all(JsonLinesSource(path))[0] == values


def test_byte_order_mark_counts_only_at_the_beginning(tmp_path: Path) -> None:
    path = lines_of(tmp_path / "in.csv", "\ufeffa\n\ufeffx\n")
    assert read_all(CsvSource(path))[0] == [{"a": "\ufeffx"}]


@pytest.mark.parametrize("how", ["deleted", "replaced"])
@pytest.mark.parametrize("when", ["write", "flush"])
async def test_a_file_that_goes_while_it_is_written_ends_the_job(tmp_path: Path, how: str, when: str) -> None:
    sink = JsonLinesSink(tmp_path / "out")
    await sink.open()
    await sink.write([{"n": 1}], None)
    if how == "deleted":
        (tmp_path / "out").unlink()
    else:
        (tmp_path / "other").write_text("of another\n")
        (tmp_path / "other").replace(tmp_path / "out")
    with pytest.raises(SinkBroken, match="out was deleted, or replaced by another file, while"):
        await (sink.flush() if when == "flush" else sink.write([{"n": 2}], None))
    await sink.close()
    assert how == "deleted" or (tmp_path / "out").read_text() == "of another\n"


async def test_what_has_no_name_from_the_beginning_is_written(tmp_path: Path) -> None:
    """As the stdout of a process that another one has begun with a file of its own."""
    with (tmp_path / "unnamed").open("w+b") as file:
        (tmp_path / "unnamed").unlink()
        sink = JsonLinesSink(f"/dev/fd/{file.fileno()}", existing="append")
        await sink.open()
        await sink.write([{"n": 1}], None)
        await sink.flush()
        await sink.close()
        assert file.read() == b'{"n":1}\n'


@pytest.mark.parametrize("make", [JsonLinesSource, lambda path: CsvSource(path, columns=["n"], batch=1)])
async def test_others_get_their_turn_however_many_lines_are_empty(tmp_path: Path, make: Any) -> None:
    """A billion of them are a megabyte as gzip, and more than half an hour of the event loop."""
    path = lines_of(tmp_path / "in", b"\n" * 55_000 + b"1\n")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    source = make(path)
    await source.open()
    task = asyncio.create_task(others())
    batch = await source.read()
    task.cancel()
    assert [*batch.values] in ([1], [{"n": "1"}])
    assert turns >= 5
    assert await source.read() is None
    await source.close()


def test_a_header_is_not_looked_for_behind_any_number_of_empty_lines(tmp_path: Path) -> None:
    source = CsvSource(lines_of(tmp_path / "in.csv", b"\n" * 9_999 + b"n\n1\n"))
    assert read_all(source)[0] == [{"n": "1"}]
    with pytest.raises(SourceError, match="no header, but 10000 empty lines"):
        read_all(CsvSource(lines_of(tmp_path / "in.csv", b"\n" * 10_000 + b"n\n1\n")))
