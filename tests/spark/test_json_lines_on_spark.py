"""JSON Lines in and out of a real Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from asyncstream import BoundedOutOfOrderness, Pipeline, PipelineError, Stream
from asyncstream.runtime.spark import read_json_lines, stream_json_lines, write_json_lines
from asyncstream.windowing import Count, TumblingWindows
from tests.spark.cluster import columns, event_columns, run_stream, run_to_the_end
from tests.spark.contract import DELAY, key_of, on_spark, told
from tests.spark.files import VALUES, add, kinds, lines, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_stream_of_files_into_a_folder_goes_on_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    add(source / "b.jsonl", [row(ts, ts) for ts in range(4)])
    add(source / "a.jsonl", [row(ts, ts) for ts in range(4, 7)])

    def run() -> None:
        rows = stream_json_lines(spark, source, schema=event_columns(), time="ts", max_rows_per_trigger=4)
        run_to_the_end(write_json_lines(rows, out), checkpoint, 100)

    run()
    assert list(lines(out).values()) == [[0, 1, 2, 3], [4, 5, 6]]
    for path in checkpoint.glob("commits/*1*"):  # as if the driver had died before it noted down the last one
        path.unlink()
    add(source / "c.jsonl", [row(ts, ts) for ts in range(7, 10)])
    run()
    found = lines(out)
    assert [name[-10:] for name in found] == [f"{number:04}.jsonl" for number in range(3)]
    assert list(found.values()) == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_bounded_frame_of_a_micro_batch_has_its_file_to_itself(spark: SparkSession, tmp_path: Path) -> None:
    source, out, checkpoint = tmp_path / "in", tmp_path / "out", tmp_path / "checkpoint"
    add(source / "a.jsonl", [row(ts, ts) for ts in range(5)])

    def write(rows: Any, number: int) -> None:
        for _ in range(2):  # it tries again
            write_json_lines(rows, out).save()
        with pytest.raises(PipelineError, match=f"something of micro-batch {number} has been written there"):
            write_json_lines(rows.where("ts < 2"), out)

    for _ in range(2):
        rows = stream_json_lines(spark, source, schema=event_columns(), time="ts", max_rows_per_trigger=3)
        run_to_the_end(rows.writeStream.foreachBatch(write), checkpoint, 100)
        assert list(lines(out).values()) == [[0, 1, 2], [3, 4]]
        for path in checkpoint.glob("commits/*1*"):
            path.unlink()


def test_windows_over_files_in_any_order_are_the_embedded_ones(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing is late, though the oldest file has the latest events."""
    rng = random.Random(5)
    rows = [row(1_700_000_000_000 + number * 40, number, rng.choice("abc")) for number in range(1_000)]
    far = row(rows[-1]["ts"] + 3_600_000, key="far")
    for number in range(5):
        mine = rows[number * 200 : number * 200 + 200] + ([far] if number == 4 else [])
        add(
            tmp_path / "in" / f"{9 - number}.jsonl",
            [mine.pop(rng.randrange(min(9, len(mine)))) for _ in mine[:]],
        )

    def define(timed: Stream[Any]) -> dict[str, Stream[Any]]:
        counts = timed.key_by(key_of).window(TumblingWindows(5)).aggregate(n=Count())
        return {"counts": counts, "late": counts.late}

    source = stream_json_lines(
        spark, tmp_path / "in", schema=event_columns(), time="ts", max_rows_per_trigger=260
    )
    found = run_stream(on_spark(spark, source, define, key_groups=5), tmp_path / "checkpoint")["lines"]
    pipeline = Pipeline("embedded")
    expected: list[str] = []
    events = pipeline.source([*rows, far]).event_time(lambda row: row["ts"], BoundedOutOfOrderness(DELAY))
    told(define(events)).to(expected)
    pipeline.run_blocking()
    assert sorted(found) == sorted(line for line in expected if "far" not in line)
    assert not any(line.startswith("late") for line in found)


def test_bounded_frames_go_through_a_folder(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.sql import functions as F

    schema = columns(**kinds())
    values = {name: text for name, text, _ in VALUES[::-1]}
    (tmp_path / "in.jsonl").write_text(
        "{" + ", ".join(f'"{name}": {text}' for name, text in values.items()) + "}\n"
    )
    rows = read_json_lines(spark, tmp_path / "in.jsonl", schema=schema)
    write_json_lines(rows, tmp_path / "out").save()
    again = read_json_lines(spark, tmp_path / "out", schema=schema)
    assert again.collect() == rows.collect()
    as_text = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    assert read_json_lines(spark, tmp_path / "out", schema=as_text).collect() == rows.collect()
    assert again.select(F.size("counts"), "at").first()[0] == 2
    (tmp_path / "out" / "x.jsonl").write_text('{"flag": 1}\n')
    with pytest.raises(Exception, match=r"x\.jsonl, line 1: column 'flag': expected true or false, got 1"):
        read_json_lines(spark, tmp_path / "out", schema=schema).collect()
    sorted_out = read_json_lines(spark, tmp_path / "out", schema=schema, on_malformed="reject")
    assert [line.rejected.line for line in sorted_out.where("rejected IS NOT NULL").collect()] == [
        '{"flag": 1}'
    ]
    with pytest.raises(Exception, match="holds what others have written"):
        write_json_lines(rows, tmp_path / "out").save()
