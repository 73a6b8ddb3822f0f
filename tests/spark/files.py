"""Files of events, and what Spark asks of a source that reads them."""

from __future__ import annotations

import gzip
import json
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncstream.runtime.spark.json_lines.columns import with_rejected
from asyncstream.runtime.spark.json_lines.settings import ReadSettings
from tests.spark.cluster import event_columns

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

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
