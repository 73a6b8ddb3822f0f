"""
A stand-in for Spark: runs a plan's stages in this process, called as Spark would call them, with no Java.

It has the part of PySpark's DataFrame that a `SparkPlan` uses, so the plan does not know the difference.
What Spark leaves open is drawn from a seed: in which order a shuffle brings rows, how rows are divided into
Arrow batches, which tasks and micro-batches are run again. Otherwise it keeps Spark's rules:

* a task gets its function through pickle; what outlives it is the loop of the worker, and what is `Shipped`;
* a micro-batch sees the largest event time of the micro-batches before it as its watermark, 0 at first, that
  of the slowest input with a watermark; a query that is started again knows the watermark, but not how far
  each input had come; and a stream ends with a micro-batch without data if the watermark would still move;
* a shuffle brings a row to the partition that Spark's hash of its group says;
* a micro-batch has one time, a second after the one before, also if it is run again;
* state belongs to a partition and a group; a task that is given up leaves it as it was;
* a group's rows come before timers; a timer fires when its time <= the watermark, and is gone after it.

Time in a worker is virtual: what a call sleeps costs nothing, and a timeout is exact.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

from asyncstream.runtime.spark.session import ROCKSDB
from asyncstream.runtime.spark.wire import envelope
from asyncstream.runtime.spark.wire.arrow_types import arrow_schema
from asyncstream.runtime.spark.wire.columns import FEW
from asyncstream.runtime.spark.wire.keys import group_of
from asyncstream.runtime.spark.worker import loop, outputs, tasks
from asyncstream.testing.loop import VirtualTimeLoop

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row
    from pyspark.sql.types import StructType

__all__ = ("Frame", "StandIn")

T = TypeVar("T")

BEGUN_MS = 1_700_000_000_000
"""The time of the first micro-batch."""

Rows = Sequence[Mapping[str, Any]]
Partition = list["pa.RecordBatch"]
Made = Callable[["MicroBatch", int], list[Partition]]
"""The partitions of a frame in a micro-batch; the int is the number of the first among those of the task."""


@dataclass(eq=False)
class StandIn:
    """
    Stands in for a session.

    Args:
        seed: of all that Spark leaves open.
        partitions: of shuffles.
        records: rows in an Arrow batch, at most.
        packed: elements in an envelope, at most; as many as there are if left out.
        unsteady: some tasks and micro-batches are given up halfway and run again.

    Attributes:
        stop_before: the micro-batch before which a query ends, to be started again by another one at the same
            checkpoint.
        checkpoints: what queries have left, by the place.
    """

    seed: int
    partitions: int = 2
    records: int = 7
    packed: int = envelope.PACKED
    unsteady: bool = True
    conf: dict[str, str] = field(init=False)
    stop_before: int | None = None
    checkpoints: dict[str, Left] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.conf = {
            "spark.sql.shuffle.partitions": str(self.partitions),
            "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        }

    @property
    def dataSource(self) -> SimpleNamespace:
        return SimpleNamespace(register=lambda source: None)

    @property
    def readStream(self) -> SimpleNamespace:
        """
        Of the registered formats there are the one by which a checkpoint is taken up, a row, once, and the
        one that has a schema, and no rows.
        """
        from pyspark.sql.types import LongType, StructField, StructType

        row = self.stream([[[{"id": 0}]]], StructType([StructField("id", LongType())]))

        def empty(schema: StructType) -> SimpleNamespace:
            nothing = SimpleNamespace(load=lambda: self.stream([], schema))
            return SimpleNamespace(option=lambda name, value: nothing)

        return SimpleNamespace(format=lambda name: SimpleNamespace(load=lambda: row, schema=empty))

    def range(self, start: int, end: int, step: int, partitions: int) -> Frame:
        from pyspark.sql.types import LongType, StructField, StructType

        assert partitions == 1
        rows = [{"id": number} for number in range(start, end, step)]
        return self.bounded([rows], StructType([StructField("id", LongType())]))

    def rescale(self, location: str, partitions: int) -> None:
        """Divide the state of a query, and what its shuffles bring, among so many partitions."""
        self.partitions = partitions
        self.conf["spark.sql.shuffle.partitions"] = str(partitions)
        left = self.checkpoints[location]
        stores: Stores = {}
        for (operator, _), groups in left.stores.items():
            for group, kept in groups.items():
                stores.setdefault((operator, group_of(group) % partitions), {})[group] = kept
        left.stores = stores

    def bounded(self, partitions: Sequence[Rows], schema: StructType) -> Frame:
        """A frame of these rows."""
        return Frame(self, lambda batch, first: [_batches(rows, schema) for rows in partitions], schema)

    def stream(self, batches: Sequence[Sequence[Rows]], schema: StructType) -> Frame:
        """A stream of these micro-batches, each a list of partitions."""

        def made(batch: MicroBatch, first: int) -> list[Partition]:
            here = batches[batch.number] if batch.number < len(batches) else []
            return [_batches(rows, schema) for rows in here]

        return Frame(self, made, schema, len(batches))


class Frame:
    """
    Stands in for a DataFrame.

    Args:
        batches: the micro-batches of a stream; None: it is bounded.
    """

    def __init__(self, spark: StandIn, made: Made, schema: StructType, batches: int | None = None) -> None:
        self.sparkSession = spark
        self.schema = schema
        self.isStreaming = batches is not None
        self.made = made
        self.batches = batches

    def _next(self, made: Made, schema: StructType | None = None) -> Frame:
        return Frame(self.sparkSession, made, schema or self.schema, self.batches)

    def mapInArrow(self, function: Callable[[Iterator[Any]], Iterator[Any]], schema: StructType) -> Frame:
        shipped = _shipped(function)

        def made(batch: MicroBatch, first: int) -> list[Partition]:
            before = self.made(batch, first)
            return [batch.map(shipped, first + number, rows) for number, rows in enumerate(before)]

        return self._next(made, schema)

    def union(self, other: Frame) -> Frame:
        def made(batch: MicroBatch, first: int) -> list[Partition]:
            mine = self.made(batch, first)
            return mine + other.made(batch, first + len(mine))

        both = self._next(made)
        if self.batches is not None and other.batches is not None:
            both.batches = max(self.batches, other.batches)
        return both

    def withWatermark(self, column: str, delay: str) -> Frame:
        assert delay == "0 seconds"

        def made(batch: MicroBatch, first: int) -> list[Partition]:
            partitions = self.made(batch, first)
            node = batch.numbered()
            for arrow in (arrow for partition in partitions for arrow in partition):
                times = [time // 1000 for time in arrow[column].cast("int64").to_pylist()]
                batch.reached[node] = max([batch.reached.get(node, 0), *times])
            batch.reached.setdefault(node, 0)
            return partitions

        return self._next(made)

    def select(self, *columns: str) -> Frame:
        from pyspark.sql.types import StructType

        if columns == ("*",):
            return self._next(self.made)

        def made(batch: MicroBatch, first: int) -> list[Partition]:
            return [[arrow.select(columns) for arrow in rows] for rows in self.made(batch, first)]

        return self._next(made, StructType([self.schema[name] for name in columns]))

    def where(self, condition: str) -> Frame:
        import pyarrow.compute as columns

        name, value = condition.split(" = ")

        def made(batch: MicroBatch, first: int) -> list[Partition]:
            return [
                [arrow.filter(columns.equal(arrow[name], int(value))) for arrow in rows]
                for rows in self.made(batch, first)
            ]

        return self._next(made)

    def repartition(self, count: int, column: str) -> Frame:
        return self._next(lambda batch, first: batch.shuffled(self.made(batch, 0), count, column))

    def sortWithinPartitions(self, *columns: str) -> Frame:
        order = [(name, "ascending") for name in columns]

        def made(batch: MicroBatch, first: int) -> list[Partition]:
            return [
                [] if (rows := _table(partition)) is None else rows.sort_by(order).to_batches()
                for partition in self.made(batch, first)
            ]

        return self._next(made)

    def groupBy(self, column: str) -> Grouped:
        return Grouped(self, column)

    def persist(self) -> Frame:
        kept: list[list[Partition]] = []

        def made(batch: MicroBatch, first: int) -> list[Partition]:
            if not kept:
                kept.append(self.made(batch, first))
            return kept[0]

        return self._next(made)

    def unpersist(self) -> Frame:
        return self

    def localCheckpoint(self) -> Frame:
        kept = self.persist()
        kept.count()
        return kept

    def count(self) -> int:
        return len(self.collect())

    def collect(self) -> list[Row]:
        """The rows of a bounded frame."""
        assert not self.isStreaming
        with MicroBatch(self.sparkSession) as batch:
            return [row for partition in self.made(batch, 0) for row in _rows(partition)]

    @property
    def writeStream(self) -> Query:
        assert self.isStreaming
        return Query(self)


class Grouped:
    """Stands in for what `groupBy` gives."""

    def __init__(self, frame: Frame, column: str) -> None:
        self._frame = frame
        self._column = column

    def transformWithState(self, processor: Any, schema: StructType, mode: str, time: str) -> Frame:
        assert mode == "append"
        spark, frame, column = self._frame.sparkSession, self._frame, self._column
        shipped = _shipped(processor)
        on_driver = _unshipped(shipped)
        on_driver.init(Handle({}, time == "EventTime", 0, 0))
        on_driver.close()

        def made(batch: MicroBatch, first: int) -> list[Partition]:
            parts = batch.shuffled(frame.made(batch, 0), spark.partitions, column)
            node = batch.numbered()
            return [
                batch.keyed(shipped, schema, column, time == "EventTime", (node, number), rows)
                for number, rows in enumerate(parts)
            ]

        return frame._next(made, schema)


Groups = dict[Any, "Kept"]
Stores = dict[tuple[int, int], Groups]
"""The state, by stateful operator and partition."""


@dataclass
class Left:
    """What a query has left in its checkpoint; the state is that of the micro-batches that have ended."""

    number: int = 0
    watermark_ms: int = 0
    next_ms: int = 0
    stores: Stores = field(default_factory=dict)


@dataclass
class Kept:
    """What the state store has of a group."""

    values: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)


class Handle:
    """Stands in for a `StatefulProcessorHandle`, over the groups of a partition."""

    def __init__(self, groups: Groups, event_time: bool, watermark_ms: int, begun_ms: int) -> None:
        self._statefulProcessorApiClient = self
        self._begun_ms = begun_ms
        self.asked = 0
        self.groups = groups
        self.group: Any = None
        self._event_time = event_time
        self._watermark_ms = watermark_ms

    def _get_batch_timestamp(self) -> int:
        self.asked += 1
        assert self.asked == 1, "a message to Spark's state for each group, where one for all would do"
        return self._begun_ms

    @property
    def kept(self) -> Kept:
        assert self.group is not None, "there is no group before rows or a timer"
        return self.groups.setdefault(self.group, Kept())

    def getValueState(self, name: str, schema: StructType) -> Value:
        return Value(self, name)

    def getMapState(self, name: str, key: StructType, value: StructType) -> Map:
        return Map(self, name)

    def registerTimer(self, time_ms: int) -> None:
        assert self._event_time, "there are no timers without event time"
        assert self._watermark_ms < time_ms < 2**63, "a timer that is due, or no number of Java's"
        self.kept.timers.add(time_ms)

    def deleteTimer(self, time_ms: int) -> None:
        assert self._event_time, "there are no timers without event time"
        self.kept.timers.remove(time_ms)

    def listTimers(self) -> Iterator[int]:
        return iter(sorted(self.kept.timers))


class Value:
    """Stands in for a `ValueState`."""

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle = handle
        self._name = name

    def exists(self) -> bool:
        return self.get() is not None

    def get(self) -> tuple[Any, ...] | None:
        return self._handle.kept.values.get(self._name)

    def update(self, value: tuple[Any, ...]) -> None:
        assert all(type(part) is bytes for part in value)
        self._handle.kept.values[self._name] = value

    def clear(self) -> None:
        self._handle.kept.values.pop(self._name, None)


class Map:
    """Stands in for a `MapState` with chunks of bytes under numbers."""

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle = handle
        self._name = name

    def _entries(self) -> dict[Any, Any]:
        return dict(self._handle.kept.values.get(self._name, ()))

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        return self._entries().get(key)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        assert [*map(type, (*key, *value))] == [int, bytes, bool]
        self._handle.kept.values[self._name] = tuple({**self._entries(), key: value}.items())

    def removeKey(self, key: tuple[Any, ...]) -> None:
        entries = self._entries()
        del entries[key]
        self._handle.kept.values[self._name] = tuple(entries.items())


class Worker(loop.LoopThread):
    """A worker's loop, on virtual time and without a thread: it stands still between two calls."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._residents = OrderedDict()
        self._loop = VirtualTimeLoop()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(coroutine)

    def end(self) -> None:
        """Ends as a process does, with no word to anybody."""
        left = asyncio.all_tasks(self._loop)
        self._loop.close()
        assert not left, f"calls that outlive their task: {left}"


class MicroBatch:
    """
    One micro-batch, or a bounded job.

    Attributes:
        reached: the largest event time of each input so far, this micro-batch's included.
        stores: the state.
    """

    def __init__(
        self,
        spark: StandIn,
        number: int = 0,
        watermark_ms: int = 0,
        stores: Stores | None = None,
        reached: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self.number = number
        self.watermark_ms = watermark_ms
        self.reached = dict(reached)
        self.stores = {} if stores is None else stores
        self._spark = spark
        self._workers = [Worker(), Worker()]
        self._numbered = 0

    def numbered(self) -> int:
        """The number of an operation that has to be found again in the next micro-batch."""
        self._numbered += 1
        return self._numbered

    def __enter__(self) -> MicroBatch:
        return self

    def __exit__(self, *error: object) -> None:
        for worker in self._workers:
            worker.end()

    def map(self, shipped: bytes, number: int, rows: Partition) -> Partition:
        """One task of `mapInArrow`."""
        context = SimpleNamespace(partitionId=lambda: number)
        whole = _table(rows)
        arrows = [] if whole is None else whole.to_batches(self._spark.records)
        with (
            patch("pyspark.TaskContext.get", lambda: context),
            patch.object(envelope, "PACKED", self._spark.packed),
            patch.object(tasks, "PACKED", self._spark.packed),
            patch.object(outputs, "FEW", min(self._spark.packed, FEW)),
            patch.object(tasks, "BLOCK", max(1, self._spark.packed // 3)),
            patch.object(loop, "_of_this_process", self._spark.random.choice(self._workers)),
        ):
            if self._fails():
                given_up: Any = _unshipped(shipped)(iter(arrows))
                for _ in range(self._spark.random.randrange(3)):
                    next(given_up, None)
                given_up.close()
            return list(_unshipped(shipped)(iter(arrows)))

    def keyed(
        self, shipped: bytes, schema: StructType, column: str, event_time: bool, place: Any, rows: Partition
    ) -> Partition:
        """One task of `transformWithState`."""
        if self._fails():
            groups = deepcopy(self.stores.get(place, {}))
            list(self._keyed(_unshipped(shipped), column, event_time, groups, rows))
        groups = self.stores.setdefault(place, {})
        found = list(self._keyed(_unshipped(shipped), column, event_time, groups, rows))
        return _batches(found, schema)

    def _keyed(
        self, processor: Any, column: str, event_time: bool, groups: Groups, rows: Partition
    ) -> Iterator[dict[str, Any]]:
        begun_ms = BEGUN_MS + 1000 * self.number
        handle = Handle(groups, event_time, self.watermark_ms, begun_ms)
        time_ms, clock_ms = (self.watermark_ms, begun_ms) if event_time else (-1, -1)
        times = SimpleNamespace(
            getCurrentWatermarkInMs=lambda: time_ms, getCurrentProcessingTimeInMs=lambda: clock_ms
        )
        processor.init(handle)
        by_group: dict[Any, list[Row]] = {}
        for row in _rows(rows):
            by_group.setdefault(row[column], []).append(row)
        for group, mine in sorted(by_group.items()):
            handle.group = group
            for row in processor.handleInputRows(key=(group,), rows=iter(mine), timerValues=times):
                yield row.asDict()
        expired = [(time, group) for group, kept in groups.items() for time in kept.timers if time <= time_ms]
        for time, group in sorted(expired):
            handle.group = group
            info = SimpleNamespace(getExpiryTimeInMs=lambda time=time: time)
            for row in processor.handleExpiredTimer(key=(group,), timerValues=times, expiredTimerInfo=info):
                yield row.asDict()
            groups[group].timers.discard(time)
        processor.close()

    def shuffled(self, partitions: list[Partition], count: int, column: str) -> list[Partition]:
        """The rows by what is in a column, in no order."""
        import pyarrow as pa

        rows = _table([arrow for partition in partitions for arrow in partition])
        if rows is None:
            return [[] for _ in range(count)]
        places: list[list[int]] = [[] for _ in range(count)]
        for row, value in enumerate(rows[column].to_pylist()):
            places[group_of(value) % count].append(row)
        for place in places:
            self._spark.random.shuffle(place)
        return [rows.take(pa.array(place, pa.int64())).to_batches() for place in places]

    def _fails(self) -> bool:
        return self._spark.unsteady and self._spark.random.random() < 0.15


class Query:
    """Stands in for a `DataStreamWriter`, and for the query that it starts."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def foreachBatch(self, write: Callable[[Frame, int], None]) -> Query:
        self._write = write
        return self

    def option(self, name: str, value: str) -> Query:
        assert name == "checkpointLocation"
        self._location = value
        return self

    def trigger(self, *, availableNow: bool) -> Query:
        assert availableNow
        return self

    def start(self) -> Query:
        """Run to the end."""
        frame, spark = self._frame, self._frame.sparkSession
        left = spark.checkpoints.setdefault(self._location, Left())
        reached: dict[int, int] = {}
        while left.number < (frame.batches or 0) or left.next_ms > left.watermark_ms:
            if left.number == spark.stop_before:
                break
            watermark_ms = left.next_ms
            if spark.unsteady and spark.random.random() < 0.1:
                # the driver ends before it has committed, and the next one begins with what was
                with MicroBatch(spark, left.number, watermark_ms, deepcopy(left.stores)) as given_up:
                    frame.made(given_up, 0)
            stores = deepcopy(left.stores)
            with MicroBatch(spark, left.number, watermark_ms, stores, reached) as batch:
                rows = frame.made(batch, 0)
            self._write(Frame(spark, partial(_as_they_are, rows), frame.schema), left.number)
            reached, left.stores = batch.reached, stores
            left.number, left.watermark_ms = left.number + 1, watermark_ms
            left.next_ms = max(watermark_ms, min(reached.values(), default=0))
        return self

    def awaitTermination(self, timeout: float) -> bool:
        return True

    def stop(self) -> None:
        """It has ended."""


def _as_they_are(rows: list[Partition], batch: MicroBatch, first: int) -> list[Partition]:
    return rows


def _shipped(code: Any) -> bytes:
    from pyspark import cloudpickle

    shipped: bytes = cloudpickle.dumps(code)
    return shipped


def _unshipped(shipped: bytes) -> Any:
    from pyspark import cloudpickle

    return cloudpickle.loads(shipped)


def _batches(rows: Iterable[Mapping[str, Any]], schema: StructType) -> Partition:
    import pyarrow as pa

    rows = list(rows)
    return [pa.RecordBatch.from_pylist(rows, arrow_schema(schema))] if rows else []


def _rows(partition: Partition) -> Iterator[Row]:
    from pyspark.sql import Row

    for arrow in partition:
        for row in arrow.to_pylist():
            yield Row(**row)


def _table(partition: Partition) -> pa.Table | None:
    """The rows in one piece, or None if there are none."""
    import pyarrow as pa

    return pa.Table.from_batches(partition).combine_chunks() if partition else None
