"""Files of JSON Lines on Spark: which rows they give, in which order, and what is refused."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncstream import PipelineError, SourceError
from asyncstream.runtime.spark import stream_json_lines
from asyncstream.runtime.spark.json_lines import micro_batches, order
from asyncstream.runtime.spark.json_lines.columns import with_rejected
from tests.spark.cluster import event_columns
from tests.spark.fake_spark import StandIn
from tests.spark.files import LINE, Query, Row, add, add_gz, append, made_format, row, stamps

if TYPE_CHECKING:
    pass


# -- order and limits


def test_files_come_in_the_order_of_their_events(tmp_path: Path) -> None:
    for number, name in enumerate("cab"):
        add(tmp_path / f"{name}.jsonl", [row(number * 10 + ts) for ts in (1, 2, 3)])
    query = Query(tmp_path, max_rows_per_trigger=2)
    assert [stamps(rows) for rows in query.drain()] == [[1, 2], [3, 11], [12, 13], [21, 22], [23]]
    assert query.micro_batch() is None


def test_files_of_the_same_time_are_merged(tmp_path: Path) -> None:
    add(tmp_path / "a.jsonl", [row(1), row(4), row(5, 1), row(9)])
    add(tmp_path / "b.jsonl", [row(2), row(3), row(5, 2), row(7)])
    batches = Query(tmp_path, max_rows_per_trigger=3).drain()
    assert [[(each["ts"], each["v"]) for each in rows] for rows in batches] == [
        [(1, 0), (2, 0), (3, 0)],
        [(4, 0), (5, 1), (5, 2)],
        [(7, 0), (9, 0)],
    ]


def test_straggler_does_not_hold_back_its_file(tmp_path: Path) -> None:
    """A row comes with the row before it in its file, if that one happened later."""
    add(tmp_path / "a.jsonl", [row(5), row(1), row(6)])
    add(tmp_path / "b.jsonl", [row(2), row(7)])
    assert [stamps(rows) for rows in Query(tmp_path, max_rows_per_trigger=1).drain()] == [
        [2],
        [5],
        [1],
        [6],
        [7],
    ]


def test_tasks_of_a_micro_batch_follow_each_other_in_event_time(tmp_path: Path) -> None:
    rng = random.Random(1)
    files = [add(tmp_path / f"{name}.jsonl", []) for name in "abc"]
    events: dict[Path, list[Row]] = {path: [] for path in files}
    for ts in range(35_000):
        events[rng.choice(files)].append(row(ts))
    for path, rows in events.items():
        add(path, rows)
    tasks = Query(tmp_path, partitions=3).micro_batch()
    assert tasks is not None
    assert [len(task) for task in tasks] == [10_000, 10_000, 15_000]
    assert stamps(row for task in tasks for row in task) == list(range(35_000))


def test_stream_may_begin_before_its_files(tmp_path: Path) -> None:
    """Spark makes a first micro-batch whatever there is, and runs it again until it ends."""
    query = Query(tmp_path)
    nothing = query.reader.latestOffset(query.offset, query.reader.getDefaultReadLimit())
    assert nothing == query.offset
    assert query.run(nothing, nothing) == []
    add(tmp_path / "a.jsonl", [row(1)])
    assert query.drain() == [[row(1)]]


def test_without_a_time_files_come_by_name(tmp_path: Path) -> None:
    add(tmp_path / "b.jsonl", [row(1), row(2)])
    add(tmp_path / "a.jsonl", [row(9), row(3)])
    query = Query(tmp_path, time=None, max_rows_per_trigger=3)
    assert [stamps(rows) for rows in query.drain()] == [[9, 3, 1], [2]]


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        ({"max_rows_per_trigger": 4}, [4, 2]),
        ({"max_bytes_per_trigger": 3 * LINE}, [3, 3]),
        ({"max_bytes_per_trigger": 3 * LINE - 1}, [2, 2, 2]),
        ({"max_bytes_per_trigger": 1}, [1] * 6),
        ({"max_files_per_trigger": 1}, [2, 2, 2]),
        ({"max_files_per_trigger": 2}, [4, 2]),
        ({"max_files_per_trigger": 2, "max_rows_per_trigger": 3}, [3, 3]),
        ({"max_rows_per_trigger": 3, "max_bytes_per_trigger": 2 * LINE}, [2, 2, 2]),
        ({}, [6]),
    ],
)
def test_micro_batches_are_bounded(tmp_path: Path, limits: Mapping[str, int], sizes: list[int]) -> None:
    for number in range(3):
        path = add(tmp_path / f"{number}.jsonl", [row(number * 2), row(number * 2 + 1)])
    assert path.stat().st_size == 2 * LINE
    assert [len(rows) for rows in Query(tmp_path, **limits).drain()] == sizes


def test_asked_for_all_there_is_no_limit_holds(tmp_path: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    add(tmp_path / "a.jsonl", [row(ts) for ts in range(5)])
    query = Query(tmp_path, max_rows_per_trigger=2)
    end = query.reader.latestOffset(query.offset, ReadAllAvailable())
    assert [len(task) for task in query.run(query.offset, end)] == [5]


def test_lines_and_files_that_are_added_are_read(tmp_path: Path) -> None:
    query = Query(tmp_path)
    add(tmp_path / "a.jsonl", [row(1)])
    assert stamps(query.rows()) == [1]
    assert query.micro_batch() is None
    add(tmp_path / "a.jsonl", [row(2), row(5)])
    add(tmp_path / "b.jsonl", [row(3)])
    (tmp_path / ".hidden.jsonl").write_text("not for us")
    (tmp_path / "other.txt").write_text("not for us")
    assert stamps(query.rows()) == [2, 3, 5]
    add(tmp_path / "b.jsonl", [row(4)])
    assert stamps(query.rows()) == [4]


def test_run_to_the_end_reads_nothing_that_comes_later(tmp_path: Path) -> None:
    add(tmp_path / "a.jsonl", [row(1), row(2)])
    query = Query(tmp_path, max_rows_per_trigger=1)
    query.reader.prepareForTriggerAvailableNow()
    assert stamps(query.rows()) == [1]
    add(tmp_path / "a.jsonl", [row(3)])
    add(tmp_path / "b.jsonl", [row(0)])
    assert [stamps(rows) for rows in query.drain()] == [[2]]
    query.start_again()
    assert [stamps(rows) for rows in query.drain()] == [[0], [3]]


@pytest.mark.parametrize("pattern", ["*/events-*.jsonl", "**/*.jsonl", "b/events-1.jsonl"])
def test_path_may_be_a_pattern_or_a_file(tmp_path: Path, pattern: str) -> None:
    add(tmp_path / "b" / "events-1.jsonl", [row(1)])
    query = Query(tmp_path / pattern)
    assert stamps(query.rows()) == [1]
    assert query.micro_batch() is None


@pytest.mark.parametrize("pattern", ["", "*.jsonl"])
def test_link_to_a_file_that_is_read_is_left_out(tmp_path: Path, pattern: str) -> None:
    add(tmp_path / "elsewhere" / "c.jsonl", [row(3)])
    add(tmp_path / "in" / "b.jsonl", [row(1)])
    (tmp_path / "in" / "a.jsonl").symlink_to("b.jsonl")
    (tmp_path / "in" / "c.jsonl").symlink_to(tmp_path / "elsewhere" / "c.jsonl")
    assert stamps(Query(tmp_path / "in" / pattern).rows()) == [1, 3]


events = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 3), st.booleans(), st.sampled_from([0, 0, 0, 1, 2])),
    max_size=40,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events, st.integers(1, 7), st.integers(1, 4), st.booleans())
def test_every_row_once_and_no_later_than_in_its_file(
    tmp_path_factory: pytest.TempPathFactory, events: list[Any], rows: int, stretch: int, in_order: bool
) -> None:
    """However events are spread over files, added while it runs, and the query started again."""
    folder = tmp_path_factory.mktemp("in")
    if in_order:
        events = sorted(events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "ROWS", stretch)
        query = Query(folder, max_rows_per_trigger=rows)
        written: dict[int, list[Row]] = {}
        found: list[list[Row]] = []
        for number, (ts, file, again, _) in enumerate(events):
            each = row(ts, number)
            add(folder / f"{file}.jsonl", [each])
            written.setdefault(file, []).append(each)
            if again and not in_order:
                query.start_again()
        while (tasks := query.micro_batch()) is not None:
            found.append([each for task in tasks for each in task])
            if len(found) % 2:
                query.start_again()
        for (start, end), batch in zip(query.log, found, strict=True):
            query.start_again()  # as after a crash: nothing is known but offsets
            assert [each for task in query.run(start, end) for each in task] == batch
    read = [each for batch in found for each in batch]
    assert sorted(each["v"] for each in read) == list(range(len(events)))
    assert all(len(batch) == rows for batch in found[:-1])
    if in_order:
        assert stamps(read) == sorted(stamps(read))
    behind = {each["v"]: lateness for rows_ in written.values() for each, lateness in with_lateness([rows_])}
    for each, lateness in with_lateness(found):
        assert lateness <= behind[each["v"]]


def with_lateness(batches: Sequence[Sequence[Row]]) -> Iterator[tuple[Row, int]]:
    """By how much each row is behind what came in batches before; of a single batch, before it."""
    latest = -1
    for rows in batches:
        seen = latest
        for each in rows:
            yield each, max((latest if len(batches) > 1 else seen) - each["ts"], 0)
            seen = max(seen, each["ts"])
        latest = seen


# -- what is being written


def test_beginning_of_a_line_is_left_until_it_is_complete(tmp_path: Path) -> None:
    path = add(tmp_path / "a.jsonl", [row(1)])
    query = Query(tmp_path)
    with path.open("a") as file:
        file.write('{"key": "k", "ts"')
    assert stamps(query.rows()) == [1]
    assert query.micro_batch() is None
    with path.open("a") as file:
        file.write(': 2, "v": 0}')
    assert stamps(query.rows()) == [2]  # no line end, but nothing can follow that changes it
    assert query.micro_batch() is None
    with path.open("a") as file:
        file.write('\n{"key": "k", "ts": 3, "v": 0}\n')
    assert stamps(query.rows()) == [3]
    assert query.micro_batch() is None


@pytest.mark.parametrize("data", [b"1", b'"k"', b"[1]", b"null", b" \t"])
def test_rest_that_may_go_on_is_left(tmp_path: Path, data: bytes) -> None:
    append(add(tmp_path / "a.jsonl", [row(1)]), data)
    assert [stamps(rows) for rows in Query(tmp_path).drain()] == [[1]]


@pytest.mark.parametrize(
    "text", ["\n\n{}\n \n{}\n\n", "{}\r\n{}\r\n", "\ufeff{}\n{}\n", "\ufeff{}\r\n\r\n{}"]
)
def test_line_ends_empty_lines_and_a_byte_order_mark(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(text.format(*(json.dumps(row(ts)) for ts in (1, 2))).encode())
    query = Query(tmp_path, max_rows_per_trigger=1)
    assert [stamps(rows) for rows in query.drain()] == [[1], [2]]
    add(tmp_path / "a.jsonl", [])
    assert query.micro_batch() is None


def test_compressed_files(tmp_path: Path) -> None:
    add_gz(tmp_path / "a.jsonl.gz", [row(ts) for ts in (1, 4, 5)])
    add(tmp_path / "b.jsonl", [row(2), row(6)])
    query = Query(tmp_path, max_rows_per_trigger=2)
    assert stamps(query.rows()) == [1, 2]
    query.start_again()
    assert [stamps(rows) for rows in query.drain()] == [[4, 5], [6]]
    for start, end in query.log:
        query.start_again()
        assert query.run(start, end)


def test_compressed_file_that_was_read_is_not_opened_again(tmp_path: Path) -> None:
    add_gz(tmp_path / "a.jsonl.gz", [row(1)])
    query = Query(tmp_path)
    assert stamps(query.rows()) == [1]
    (tmp_path / "a.jsonl.gz").write_bytes(b"x" * (tmp_path / "a.jsonl.gz").stat().st_size)
    query.start_again()
    assert query.micro_batch() is None


def test_half_a_compressed_file_is_left(tmp_path: Path) -> None:
    whole = add_gz(tmp_path / "x", [row(1), row(2)]).read_bytes()
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole[: len(whole) // 2])
    query = Query(tmp_path)
    assert query.micro_batch() is None
    assert query.micro_batch() is None
    path.write_bytes(whole)
    assert stamps(query.rows()) == [1, 2]


# -- what must not happen to files


def begun(tmp_path: Path) -> tuple[Query, Path]:
    """A query that has read the first of three rows."""
    path = add(tmp_path / "a.jsonl", [row(ts) for ts in (1, 2, 3)])
    query = Query(tmp_path, max_rows_per_trigger=1)
    assert stamps(query.rows()) == [1]
    return query, path


@pytest.mark.parametrize("again", [False, True])
def test_file_that_got_shorter_is_refused(tmp_path: Path, again: bool) -> None:
    query, path = begun(tmp_path)
    os.truncate(path, 20)
    if again:
        query.start_again()
    with pytest.raises(SourceError, match=r"cannot go on at byte 30 of .*a\.jsonl: it has only 20"):
        query.micro_batch()


def test_file_that_was_changed_where_it_was_read_is_refused_on_restart(tmp_path: Path) -> None:
    query, path = begun(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"ts": 1', b'"ts": 7'))
    query.start_again()
    with pytest.raises(SourceError, match=r"a\.jsonl: what is before it has changed"):
        query.micro_batch()


def test_other_file_under_the_same_name_is_refused(tmp_path: Path) -> None:
    query, path = begun(tmp_path)
    add(tmp_path / "other", [row(ts, 5) for ts in range(10)]).replace(path)
    with pytest.raises(SourceError, match=r"a\.jsonl: what is before it has changed"):
        query.micro_batch()


@pytest.mark.parametrize("again", [False, True])
def test_micro_batch_of_other_rows_is_refused(tmp_path: Path, again: bool) -> None:
    query, path = begun(tmp_path)
    query.micro_batch()
    path.write_bytes(path.read_bytes().replace(b'"ts": 2', b'"ts": 7'))
    if again:
        query.start_again()
    with pytest.raises(SourceError, match=r"a\.jsonl: bytes 30 to 60 have changed since"):
        query.run(*query.log[-1])


def test_micro_batch_whose_file_is_gone_is_refused(tmp_path: Path) -> None:
    query, path = begun(tmp_path)
    path.unlink()
    query.start_again()
    with pytest.raises(SourceError, match=r"cannot read .*a\.jsonl: FileNotFoundError"):
        query.run(*query.log[-1])


def test_file_that_is_taken_away_is_forgotten(tmp_path: Path) -> None:
    add(tmp_path / "a.jsonl", [row(1)])
    query = Query(tmp_path)
    assert stamps(query.rows()) == [1]
    (tmp_path / "a.jsonl").unlink()
    assert query.micro_batch() is None
    add(tmp_path / "b.jsonl", [row(2)])
    assert stamps(query.rows()) == [2]
    assert list(query.offset["files"]) == ["b.jsonl"]


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"cannot read .*/missing: FileNotFoundError"):
        Query(tmp_path / "missing").micro_batch()


# -- malformed lines

MALFORMED = [
    (b'{"key": "k", "ts"', "not JSON: "),
    (b"[1]", r"expected an object, got \[1\]"),
    (b'{"key": "k", "v": 1}', "column 'ts': there is no value"),
    (b'{"ts": null}', "column 'ts': there is no value"),
    (b'{"ts": "1"}', "column 'ts': expected an integer of 64 bits, got '1'"),
    (b'{"ts": 1.0}', "column 'ts': expected an integer"),
    (b'{"ts": 1, "v": true}', "column 'v': expected an integer"),
    (b'{"ts": 1, "v": 9223372036854775808}', "column 'v': expected an integer"),
    (b'{"ts": 1, "key": 5}', "column 'key': expected a text, got 5"),
    (b'{"ts": 1, "w": NaN}', "not JSON: "),
    (b'{"ts": 1, "w": "\xff"}', "not JSON: "),
    (b'{"ts": 1}{"ts": 2}', "not JSON: "),
    (b'{"ts": 1, "w": "%s"}' % (b"x" * 300), "longer than 200 bytes"),
]


@pytest.mark.parametrize(("line", "reason"), MALFORMED)
def test_malformed_line_fails_its_micro_batch(tmp_path: Path, line: bytes, reason: str) -> None:
    path = add(tmp_path / "a.jsonl", [row(1), row(2)])
    path.write_bytes(path.read_bytes() + b"\n" + line + b"\n")
    add(path, [row(3)])
    query = Query(tmp_path, max_rows_per_trigger=2, max_line_bytes=200)
    assert stamps(query.rows()) == [1, 2]
    with pytest.raises(SourceError, match=rf"a\.jsonl, line 4: {reason}"):
        query.micro_batch()


@pytest.mark.parametrize(("line", "reason"), MALFORMED)
def test_malformed_line_is_rejected_in_its_place(tmp_path: Path, line: bytes, reason: str) -> None:
    path = add(tmp_path / "a.jsonl", [row(1), row(2)])
    path.write_bytes(path.read_bytes() + b"\n" + line + b"\r\n")
    add(path, [row(3)])
    query = Query(tmp_path, max_rows_per_trigger=3, max_line_bytes=200, on_malformed="reject")
    first, second = query.drain()
    assert first[:2] == [row(1) | {"rejected": None}, row(2) | {"rejected": None}]
    rejected = first[2].pop("rejected")
    assert first[2] == {"key": None, "ts": None, "v": None}
    assert (rejected["path"], rejected["line_number"]) == (str(path), 4)
    assert rejected["line"] in (line.decode(errors="backslashreplace"), line.decode(errors="replace")[:300])
    assert rejected["reason"].startswith(reason.split("'")[0].replace("\\", ""))
    assert stamps(second) == [3]


def test_line_of_exactly_the_limit_is_not_too_long(tmp_path: Path) -> None:
    path = add(tmp_path / "a.jsonl", [row(1)])
    assert stamps(Query(tmp_path, max_line_bytes=path.stat().st_size).rows()) == [1]
    with pytest.raises(SourceError, match="line 1: longer than 29 bytes"):
        Query(tmp_path, max_line_bytes=path.stat().st_size - 1).rows()


# -- bounded


def test_bounded_job_reads_every_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batches, "SMALLEST_PIECE", 100)
    add(tmp_path / "b.jsonl", [row(ts, ts) for ts in range(50)])
    append(add(tmp_path / "a.jsonl", [row(ts, ts) for ts in range(100, 120)]), b'{"ts": 200, "v": 200}')
    add_gz(tmp_path / "c.jsonl.gz", [row(300 + ts, 300 + ts) for ts in range(5)])
    (tmp_path / "empty.jsonl").touch()
    reader = made_format(tmp_path, partitions=6).reader(event_columns())
    tasks = [
        [row for batch in reader.read(each) for row in batch.to_pylist()] for each in reader.partitions()
    ]
    assert len(tasks) >= 5
    found = [row["v"] for task in tasks for row in task]
    assert found == [*range(50), *range(100, 120), 200, *range(300, 305)]  # in the order of first events


def test_bounded_job_tells_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(micro_batches, "SMALLEST_PIECE", 100)
    path = add(tmp_path / "a.jsonl", [row(ts) for ts in range(50)])
    append(path, b'{"ts": 1')
    schema = with_rejected(event_columns())
    reader = made_format(tmp_path, partitions=6, on_malformed="reject").reader(schema)
    rows = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]
    assert len(rows) == 51
    assert [row["rejected"]["line_number"] for row in rows if row["rejected"]] == [51]


# -- arguments


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": ""}, "path: expected the path of a folder"),
        ({"path": "s3://bucket/events"}, "path: expected a path that driver and workers see alike"),
        ({"schema": 5}, "schema: expected a StructType, or columns as text"),
        ({"time": "when"}, "time: expected one of the columns"),
        ({"time": "key"}, "time: column 'key' is StringType"),
        ({"on_malformed": "skip"}, "on_malformed: expected one of 'fail', 'reject'"),
        ({"max_rows_per_trigger": 0}, "max_rows_per_trigger: expected an integer of at least 1"),
        ({"partitions": 0}, "partitions: expected an integer of at least 1"),
        ({"max_line_bytes": "1k"}, "max_line_bytes: expected an integer"),
    ],
)
def test_wrong_arguments_are_refused(given: Row, message: str) -> None:
    spark: Any = StandIn(1)
    chosen = {"path": "in", "schema": event_columns(), "time": "ts", "partitions": 2} | given
    with pytest.raises(PipelineError, match=message):
        stream_json_lines(spark, chosen.pop("path"), **chosen)
