"""Files of events, and what Spark asks of a source that reads them."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterable
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncstream.runtime.spark.json_lines.columns import with_rejected
from asyncstream.runtime.spark.json_lines.settings import ReadSettings
from tests.spark.cluster import event_columns

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

    from asyncstream.runtime.spark.json_lines.format import JsonLinesFormat

Row = dict[str, Any]


LINE = len(b'{"key": "k", "ts": 1, "v": 0}\n')


def row(ts: int, v: int = 0, key: str = "k") -> Row:
    return {"key": key, "ts": ts, "v": v}


def add(path: Path, rows: Iterable[Row]) -> Path:
    """Append to a file."""
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        file.writelines(json.dumps(row).encode() + b"\n" for row in rows)
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def add_gz(path: Path, rows: Iterable[Row]) -> Path:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    return path


def made_format(path: Path, **given: Any) -> JsonLinesFormat:
    from asyncstream.runtime.spark.json_lines.format import JsonLinesFormat

    chosen: Row = {"time": "ts", "on_malformed": "fail", "max_line_bytes": 2**24, "partitions": 2} | given
    return JsonLinesFormat(ReadSettings(str(path), **chosen).options())


class Query:
    """What Spark does with a source, without Spark: offsets are JSON, and what goes to tasks is pickled."""

    def __init__(self, path: Path, schema: StructType | None = None, **given: Any) -> None:
        self._format = made_format(path, **given)
        self._schema = schema or event_columns()
        if given.get("on_malformed") == "reject":
            self._schema = with_rejected(self._schema)
        self.start_again()
        self.offset = self.reader.initialOffset()
        self.log: list[tuple[Any, Any]] = []

    def start_again(self) -> None:
        self.reader = self._format.streamReader(self._schema)

    def micro_batch(self) -> list[list[Row]] | None:
        """The next one, as the rows of its tasks; None if there is nothing to read."""
        limit = self.reader.getDefaultReadLimit()
        end = json.loads(json.dumps(self.reader.latestOffset(self.offset, limit)))
        if end == self.offset:
            return None
        self.log.append((self.offset, end))
        self.offset = end
        return self.run(*self.log[-1])

    def run(self, start: Any, end: Any) -> list[list[Row]]:
        reader = pickle.loads(pickle.dumps(self._format.streamReader(self._schema)))
        tasks = pickle.loads(pickle.dumps(self.reader.partitions(start, end)))
        return [[row for batch in reader.read(task) for row in batch.to_pylist()] for task in tasks]

    def rows(self) -> list[Row]:
        """Those of the next micro-batch."""
        return [row for task in self.micro_batch() or [] for row in task]

    def drain(self) -> list[list[Row]]:
        """The rows of the micro-batches that are left."""
        found = []
        while (tasks := self.micro_batch()) is not None:
            found.append([row for task in tasks for row in task])
        return found


def stamps(rows: Iterable[Row]) -> list[int]:
    return [row["ts"] for row in rows]


def kinds() -> dict[str, DataType]:
    from pyspark.sql import types

    pair = types.StructType(
        [types.StructField("n", types.LongType()), types.StructField("x", types.DoubleType())]
    )
    return {
        "flag": types.BooleanType(),
        "small": types.ByteType(),
        "whole": types.LongType(),
        "real": types.DoubleType(),
        "text": types.StringType(),
        "day": types.DateType(),
        "at": types.TimestampType(),
        "local": types.TimestampNTZType(),
        "pair": pair,
        "pairs": types.ArrayType(pair),
        "times": types.ArrayType(types.TimestampType(), False),
        "counts": types.MapType(types.StringType(), types.LongType()),
    }


VALUES = [
    ("flag", "true", True),
    ("small", "-128", -128),
    ("whole", "9223372036854775807", 2**63 - 1),
    ("real", "1", 1.0),
    ("real", "1.5e3", 1500.0),
    ("real", "1152921504606846977", float(2**60)),
    ("text", '"\\u00e9 \\n"', "é \n"),
    ("day", '"2024-02-29"', date(2024, 2, 29)),
    ("at", '"2024-05-01T12:00:00+02:00"', datetime.fromisoformat("2024-05-01T10:00:00+00:00")),
    ("at", '"2024-05-01T12:00:00.25Z"', datetime.fromisoformat("2024-05-01T12:00:00.250000+00:00")),
    ("local", '"2024-05-01T12:00:00"', datetime.fromisoformat("2024-05-01T12:00:00")),
    ("pair", '{"n": 1, "y": 2}', {"n": 1, "x": None}),
    ("pairs", '[{"x": 1152921504606846977}, null]', [{"n": None, "x": float(2**60)}, None]),
    ("times", '["2024-05-01T12:00:00Z"]', [datetime.fromisoformat("2024-05-01T12:00:00+00:00")]),
    ("counts", '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
    ("text", "null", None),
]


def lines(folder: Path) -> dict[str, list[int]]:
    """What a reader of the folder finds."""
    return {
        path.name: [json.loads(line)["v"] for line in path.read_text().splitlines()]
        for path in sorted(folder.glob("*.jsonl"))
    }
