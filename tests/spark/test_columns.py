"""Rows that go to key groups in columns, against the way of all other rows: no session, no Java."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import BoundedOutOfOrderness, Pipeline, PipelineError, Stream, UserFunctionError
from asyncstream.plan import Output
from asyncstream.runtime.spark.stages import stages_of
from asyncstream.runtime.spark.wire import columns
from asyncstream.runtime.spark.wire.columns import Columns, picks_of
from asyncstream.runtime.spark.wire.envelope import PAYLOAD, entering
from asyncstream.runtime.spark.worker import tasks
from asyncstream.runtime.spark.worker.operators import Terms
from asyncstream.runtime.spark.worker.tasks import StageTask, run_stage
from asyncstream.windowing import Count, TumblingWindows
from tests.spark.cluster import event_columns, run_stream
from tests.spark.contract import batches_of, embedded, on_spark, windows
from tests.spark.fake_spark import StandIn

GROUPS = 3

Define = Callable[[Stream[Any]], Any]


def first_task(define: Define) -> StageTask:
    """That of the source, with what the plan would have it pick."""
    pipeline = Pipeline()
    define(pipeline.source([], name="rows"))
    stage, *_ = stages_of(pipeline._graph, streaming=True)
    wanted = frozenset(route.number for route in stage.exits)
    clocks = frozenset(step.name for step in stage.steps)
    routes = {r.number for r in (*stage.entries, *stage.exits) if r.output == Output("rows")}
    source = tuple(sorted(routes))
    terms = Terms(GROUPS, wanted, streaming=True, clocks=clocks)
    picks = picks_of(stage, source, wanted, {})
    return StageTask(uuid4().hex, stage, terms, source=source, event_time=True, picks=picks)


def counted(timed: Stream[Any], key: Any = "key") -> None:
    timed.key_by(key).window(TumblingWindows(1)).aggregate(n=Count()).to([])


def timed(rows: Stream[Any], timestamp: Any = "ts", **options: Any) -> Stream[Any]:
    return rows.event_time(timestamp, BoundedOutOfOrderness(2), **options)


def told(task: StageTask, batches: list[Any]) -> tuple[dict[tuple[int, int], list[Any]], list[Any]]:
    """The elements by route and key group, with their timestamps; and how far event time has come."""
    found: dict[tuple[int, int], list[Any]] = {}
    times: list[Any] = []
    for batch in run_stage(task, iter(batches)):
        for row in batch.to_pylist():
            times.append(row["event_time"])
            elements = found.setdefault((row["route"], row["group"]), [])
            parts = list(entering(row["route"], row["payload"])) if row["payload"] else []
            for part in parts:
                elements += zip(part.values, part.timestamps or [], strict=True)
            assert sum(len(part.values) for part in parts) == row["count"]
    return dict(sorted(found.items())), times[-1:]


@pytest.fixture
def any_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows go in columns too, and are made dicts a few at a time."""
    monkeypatch.setattr(columns, "FEW", 0)
    monkeypatch.setattr(columns, "PART", 2)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Of how many rows it was asked whether they may go in columns, if they might."""
    seen: list[int] = []

    def picked(picks: Any, batch: Any, groups: int) -> Any:
        found = columns.picked(picks, batch, groups)
        if found is not None:
            seen.append(batch.num_rows)
        return found

    monkeypatch.setattr(tasks, "picked", picked)
    return seen


def keyed_by_name(row: Any) -> Any:
    """As most have it."""
    return row["key"]


@pytest.mark.parametrize("key", ["key", ("key", "v"), keyed_by_name, itemgetter("key"), lambda r: r["key"]])
@pytest.mark.parametrize("timestamp", ["ts", lambda row: row["ts"]])
def test_fields_are_picked(key: Any, timestamp: Any) -> None:
    picks = first_task(lambda rows: counted(timed(rows, timestamp), key)).picks
    assert picks is not None
    assert picks.time == "ts"
    assert [fields for _, fields in picks.keys] == [("key", "v") if isinstance(key, tuple) else "key"]


def read_twice(rows: Stream[Any]) -> None:
    stream = timed(rows)
    counted(stream)
    stream.to([])


@pytest.mark.parametrize(
    "define",
    [
        lambda rows: counted(timed(rows), lambda row: row.get("key")),
        lambda rows: counted(timed(rows, lambda row: row["ts"] * 1000)),
        lambda rows: counted(timed(rows.map(dict))),
        lambda rows: counted(timed(rows).filter(bool)),
        lambda rows: rows.key_by("key").count_window(2).collect().to([]),
        read_twice,
    ],
    ids=["key", "time", "before", "behind", "untimed", "sink"],
)
def test_nothing_is_picked_where_a_row_is_looked_at(define: Define) -> None:
    assert first_task(define).picks is None


def test_rows_for_several_steps_go_by_the_key_of_each(any_number: None, taken: list[int]) -> None:
    import pyarrow as pa

    def define(rows: Stream[Any]) -> None:
        stream = timed(rows)
        counted(stream)
        counted(stream, ("key", "v"))

    task = first_task(define)
    batch = pa.record_batch({"ts": [5, 3, 4], "key": ["a", "b", "a"], "v": [1, 1, 2]})
    assert told(task, [batch]) == told(replace(task, picks=None), [batch])
    assert taken == [3]


def kinds() -> dict[str, tuple[Any, st.SearchStrategy[Any]]]:
    """Types of columns, and what is in them."""
    import pyarrow as pa

    instants = st.datetimes(datetime(1960, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
    few = st.integers(-3, 3)
    return {
        "int": (pa.int64(), few),
        "short": (pa.int16(), few),
        "float": (pa.float64(), st.sampled_from([0.0, -0.0, 1.0, 1.5, float("nan")])),
        "text": (pa.string(), st.sampled_from(["", "a", "\N{SNOWMAN}"])),
        "bytes": (pa.binary(), st.sampled_from([b"", b"a"])),
        "bool": (pa.bool_(), st.booleans()),
        "decimal": (pa.decimal128(10, 2), st.sampled_from([Decimal("0.00"), Decimal("1.50")])),
        "instant": (pa.timestamp("us", "Europe/Berlin"), instants),
        "local": (pa.timestamp("us"), instants.map(lambda at: at.replace(tzinfo=None))),
        "list": (pa.list_(pa.int64()), st.lists(few, max_size=1)),
    }


@st.composite
def tables(draw: Any) -> tuple[list[Any], Any]:
    """Arrow batches of one partition, and the fields of the key."""
    import pyarrow as pa

    of_time = draw(st.sampled_from(["int", "int", "short", "instant", "instant", "local", "float"]))
    names = draw(st.lists(st.sampled_from(sorted(kinds())), min_size=1, max_size=2))
    key = tuple(f"k{number}" for number in range(len(names)))
    of_columns = {"ts": of_time, **dict(zip(key, names, strict=True)), "v": "text"}
    has_gaps = draw(st.sampled_from([False, False, True]))
    batches = []
    for size in draw(st.lists(st.integers(0, 6), max_size=3)):
        arrays = {}
        for name, kind in of_columns.items():
            of_type, values = kinds()[kind]
            if name != "ts" or has_gaps:
                values = st.none() | values
            arrays[name] = pa.array(draw(st.lists(values, min_size=size, max_size=size)), of_type)
        batches.append(pa.record_batch(arrays))
    return batches, key[0] if len(key) == 1 else key


@given(drawn=tables())
def test_rows_in_columns_are_those_of_the_other_way(drawn: tuple[list[Any], Any]) -> None:
    batches, key = drawn
    task = first_task(lambda rows: counted(timed(rows), key))
    assert task.picks is not None

    def found(task: StageTask) -> str:
        try:
            return repr(told(task, batches))
        except UserFunctionError as error:
            return repr(error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "FEW", 0)
        patch.setattr(columns, "PART", 2)
        patch.setattr(tasks, "PACKED", 5)
        assert found(task) == found(replace(task, picks=None))


@pytest.mark.parametrize("kind", ["number", "instant"])
def test_rows_around_one_that_is_looked_at_keep_their_order(
    kind: str, any_number: None, taken: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    monkeypatch.setattr(tasks, "PACKED", 4)
    of_type = pa.timestamp("us", "UTC") if kind == "instant" else pa.int64()
    stamps = [None if number == 6 else number * 10**6 for number in range(12)]
    batches = [
        pa.record_batch(
            {
                "ts": pa.array(stamps[start : start + 4], of_type),
                "key": [1, 2, 1, 2],
                "v": range(start, start + 4),
            }
        )
        for start in range(0, 12, 4)
    ]
    task = first_task(lambda rows: counted(timed(rows, on_error="skip")))
    assert told(task, batches) == told(replace(task, picks=None), batches)
    assert taken == [4, 4]


@pytest.mark.usefixtures("any_number")
def test_key_that_does_not_equal_itself_is_blamed_on_its_element() -> None:
    import pyarrow as pa

    task = first_task(lambda rows: counted(timed(rows)))
    batch = pa.record_batch({"ts": [1, 2], "key": [1.0, float("nan")]})
    with pytest.raises(UserFunctionError, match=r"on element \{'ts': 2, 'key': nan\}"):
        told(task, [batch])


@pytest.mark.usefixtures("any_number")
def test_zone_that_python_does_not_know_is_told_as_ever() -> None:
    import pyarrow as pa

    task = first_task(lambda rows: counted(timed(rows)))
    times = pa.array([0, 1]).cast(pa.timestamp("us", tz="UTC-8"))
    with pytest.raises(PipelineError, match=r"column 'ts' .*'spark\.sql\.session\.timeZone'"):
        told(task, [pa.record_batch({"ts": times, "key": [1, 2]})])


@pytest.mark.parametrize("error", [ValueError("no"), GeneratorExit("no"), BaseException("no")], ids=repr)
def test_whatever_a_key_raises_is_blamed_on_its_element(error: BaseException) -> None:
    import pyarrow as pa

    def refuse(row: Any) -> Any:
        raise error

    task = first_task(lambda rows: counted(timed(rows), refuse))
    with pytest.raises(UserFunctionError, match=r"no, on element \{'ts': 1\}"):
        told(task, [pa.record_batch({"ts": [1]})])


@pytest.mark.usefixtures("any_number")
@pytest.mark.parametrize("column", ["ts", "key"])
def test_column_that_is_not_there_is_missed_as_ever(column: str) -> None:
    import pyarrow as pa

    task = first_task(lambda rows: counted(timed(rows)))
    batch = pa.record_batch({name: [1] for name in ("ts", "key") if name != column})
    with pytest.raises(UserFunctionError, match=f"no field {column!r}|{column}"):
        told(task, [batch])


def test_few_rows_for_each_group_go_the_other_way(taken: list[int]) -> None:
    import pyarrow as pa

    task = first_task(lambda rows: counted(timed(rows)))
    for count in (columns.FEW * GROUPS, columns.FEW * GROUPS + 1):
        told(task, [pa.record_batch({"ts": range(count), "key": range(count)})])
    assert taken == [columns.FEW * GROUPS + 1]


def test_large_rows_in_columns_are_packed_a_few_at_a_time() -> None:
    import pyarrow as pa

    count = columns.FEW * GROUPS + 1
    text = "x" * (PAYLOAD // 10)
    batch = pa.record_batch({"ts": range(count), "key": [1] * count, "v": [text] * count})
    out = list(run_stage(first_task(lambda rows: counted(timed(rows))), iter([batch])))
    sizes = [len(payload) for some in out for payload in some["payload"].to_pylist()]
    assert max(sizes) <= PAYLOAD
    assert sum(count for some in out for count in some["count"].to_pylist()) == count


def test_columns_are_a_sequence_of_rows() -> None:
    import pickle

    import pyarrow as pa

    rows = [{"a": number, "b": str(number)} for number in range(5)]
    packed = Columns(pa.RecordBatch.from_pylist(rows))
    assert list(packed) == rows
    assert list(packed[1:3]) == rows[1:3]
    assert packed[-1] == rows[-1]
    assert pickle.loads(pickle.dumps(packed[1:4])) == rows[1:4]
    assert len(pickle.dumps(packed[:1])) < len(pickle.dumps(packed))


def test_first_timestamp_in_another_unit_is_told(caplog: pytest.LogCaptureFixture, any_number: None) -> None:
    import pyarrow as pa

    task = first_task(lambda rows: counted(timed(rows)))
    seconds = int(
        (datetime(2024, 1, 1, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1)
    )
    batch = pa.record_batch({"ts": [seconds], "key": [1]})
    told(task, [batch, batch])
    assert [record.message.count("in seconds") for record in caplog.records] == [1]


@pytest.mark.parametrize("parts", [1, 2])
def test_stream_in_columns_gives_what_the_embedded_engine_gives(
    parts: int, any_number: None, taken: list[int]
) -> None:
    batches = batches_of(parts)

    def partitions() -> Iterator[list[list[dict[str, Any]]]]:
        for rows in batches:
            size = -(-len(rows) // parts)
            yield [rows[start : start + size] for start in range(0, len(rows), size)]

    source: Any = StandIn(1).stream(list(partitions()), event_columns())
    plan = on_spark(source.sparkSession, source, windows, key_groups=GROUPS)
    assert sorted(run_stream(plan, Path())["lines"]) == embedded(batches, windows)
    assert len(taken) >= parts * len(batches)
