"""
What Spark calls in a worker for each partition of a stage.

A generator over Arrow batches, given to `mapInArrow`. Its arguments are pickled with every task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.guards.rate_limit import share_rates
from asyncstream.runtime.spark.stages import Stage, StageKind
from asyncstream.runtime.spark.state_transfer import StateTransfer, route_of
from asyncstream.runtime.spark.wire.batches import NOW, Entering, Leaving
from asyncstream.runtime.spark.wire.columns import Picked, Picks, picked
from asyncstream.runtime.spark.wire.envelope import PACKED, Packer, entering
from asyncstream.runtime.spark.wire.originals import Originals
from asyncstream.runtime.spark.wire.rows import elements_of
from asyncstream.runtime.spark.worker.connection import acknowledge
from asyncstream.runtime.spark.worker.loop import LoopThread, loop_thread
from asyncstream.runtime.spark.worker.operators import Terms, telling_the_cause
from asyncstream.runtime.spark.worker.origins import RowOrigins, of_one_partition, root_of
from asyncstream.runtime.spark.worker.outputs import OutputRows, OutputTask, in_columns, row_writers
from asyncstream.runtime.spark.worker.replay import Replay
from asyncstream.runtime.spark.worker.stage_run import StageRun

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ("StageTask", "run_stage")

BLOCK = 2_000
"""Elements that a task makes of rows, and packs or makes rows of again, at a time: so many are in the
processor's cache yet."""

TOGETHER = 16
"""Elements for each key group among those, or more of them: what is packed by itself costs some of them."""

PACKED_BYTES = 16 << 20
"""Bytes that go into a task before what has come out is packed, however few elements it is."""

UNPACKED = 100
"""Held envelopes whose elements enter together. Each is unpacked when the one before has been taken in."""


@dataclass(frozen=True)
class StageTask:
    """
    What a task needs to know to run a stage.

    Attributes:
        token: tells the stage from all others, in this plan and in others, for as long as a worker lives.
        stage: of the first one only what the rows of this source get to.
        number: among the stages, or of the source among the sources for the first stage.
        source: the routes on which rows enter; None: what enters is envelopes.
        transfer: taken up in place of rows.
        output: the last stage writes rows itself if there is only one output.
        outputs: what leaves for these goes as their rows.
        event_time: envelopes say how far event time has come.
        known_ms: the watermark that the checkpoint had reached, with `transfer`.
        columns: of the source, if Spark is shown others.
        picks: what the stage does with rows of the source, if it only looks at fields.
        pipeline: its name.
        asked: what tells the plan, the job and the source from others (`root_of`), if a step asks where rows
            come from.
        at_once: how many tasks like this one run at once and share every rate; None: that is not known.
    """

    token: str
    stage: Stage
    terms: Terms
    number: int = 0
    source: tuple[int, ...] | None = None
    transfer: StateTransfer | None = None
    output: OutputTask | None = None
    outputs: tuple[OutputTask, ...] = ()
    event_time: bool = False
    known_ms: int = MIN_TIMESTAMP
    at_once: int | None = None
    columns: tuple[str, ...] | None = None
    picks: Picks | None = None
    pipeline: str = ""
    asked: tuple[str, str, str] | None = None


def run_stage(task: StageTask, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run a stage over one partition; outputs leave while inputs come in."""
    from pyspark import TaskContext

    acknowledge()
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    share_rates(task.at_once or 1)
    if task.columns is not None:
        batches = (batch.rename_columns(list(task.columns)) for batch in batches)
    originals = Originals() if task.source is not None and task.output is not None else None
    origins = None if task.asked is None else RowOrigins(root_of(*task.asked, context))
    reader = _Reader(task, origins, originals)
    writer: OutputRows | _Envelopes = (
        _Envelopes(task, (task.number << 32) + partition)
        if task.output is None
        else OutputRows(task.output, originals)
    )
    loop = loop_thread()
    resident = loop.resident(task.token, task.stage)
    run = StageRun(
        resident,
        task.terms,
        spread=partition % task.terms.key_groups,
        watermark=MIN_TIMESTAMP if task.source is None or task.transfer is not None else NOW,
        worth_packing=0 if task.output is not None else _worth_packing(task.terms),
        closing=not task.terms.streaming and task.stage.kind is StageKind.SHUFFLED,
        stage=None if task.source is None else resident.part(task.source, task.stage),
        pipeline=task.pipeline,
    )
    with telling_the_cause():
        try:
            loop.call(run.open())
            yield from _Crossing(task, loop, run, reader, writer).all_of(batches)
        finally:
            loop.call(run.close())


@dataclass
class _Crossing:
    """One task's elements on their way through a stage, from Arrow batches to Arrow batches."""

    _task: StageTask
    _loop: LoopThread
    _run: StageRun
    _reader: _Reader
    _writer: OutputRows | _Envelopes
    _taken_in: int = 0  # bytes, since something has come out

    def all_of(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What leaves while these batches come in, and when there are no more."""
        task, writer = self._task, self._writer
        if task.transfer is not None:
            # how far event time had come is told at the end: it is no time of these
            yield from writer.write(task.transfer.leaving(), MIN_TIMESTAMP)
        for batch in batches if task.picks is None else _together(batches):
            by_column = None if task.picks is None else picked(task.picks, batch, task.terms.key_groups)
            if by_column is not None:
                yield from self._pass_by(by_column)
                continue
            for block in _blocks(task, batch):
                yield from self._take_in(block)
            yield from writer.rest()
        yield from self._rest()

    def _pass_by(self, by_column: Picked) -> Iterator[pa.RecordBatch]:
        """Have rows go on in their columns, behind what came before them."""
        yield from self._writer.write(*self._loop.call(self._run.feed((), pack_few=True)))
        event_time_ms = self._loop.call(self._run.pass_by(by_column))
        yield from self._writer.write(by_column.leaving, event_time_ms)

    def _take_in(self, block: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        items, others = self._reader.entering(block)
        if others:
            yield from self._writer.hand_on(block, others)
        if items is not None:
            self._taken_in += block.nbytes
            pack_few = self._taken_in >= PACKED_BYTES
            leaving, event_time_ms = self._loop.call(self._run.feed(items, pack_few=pack_few))
            self._taken_in = 0 if leaving else self._taken_in
            yield from self._writer.write(leaving, event_time_ms)

    def _rest(self) -> Iterator[pa.RecordBatch]:
        """What waited for the end of the input, and what the stage emits then."""
        task, writer = self._task, self._writer
        for batch in self._reader.held_for_others():
            yield from writer.hand_on(batch, list(range(batch.num_rows)))
        for items in self._reader.held():
            yield from writer.write(*self._loop.call(self._run.feed(items, pack_few=True)))
        leaving, event_time_ms = self._loop.call(self._run.finish())
        if task.known_ms > MIN_TIMESTAMP:
            event_time_ms = max(event_time_ms, task.known_ms + 1)
        yield from writer.write(leaving, event_time_ms, self._run.counts())
        yield from writer.rest()


def _worth_packing(terms: Terms) -> int:
    """How many elements are."""
    if terms.replays:  # marks the first elements with the watermark that follows them
        return PACKED
    return min(max(BLOCK, TOGETHER * terms.key_groups), PACKED)


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows in batches of so many as are packed together."""
    import pyarrow as pa

    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= PACKED or size >= PACKED_BYTES:
            yield pa.concat_batches(held)
            held.clear()
            rows = size = 0
    if held:
        yield pa.concat_batches(held)


def _blocks(task: StageTask, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch, in parts if it is of rows."""
    if task.source is None:
        yield batch
    else:
        yield from (batch.slice(start, BLOCK) for start in range(0, batch.num_rows, BLOCK))


class _Reader:
    """
    Gives the elements of Arrow batches in the order in which the stage must see them.

    Those of a source, and what a bounded job has sorted, come as they come, or are merged to replay event
    time. In a later stage of a stream they are held until the partition has been read, for they must come in
    the order of the watermarks that held where they were emitted, with each watermark before those that it
    held for.
    """

    def __init__(self, task: StageTask, origins: RowOrigins | None, originals: Originals | None) -> None:
        self._origins = origins
        self._originals = originals
        self._source = task.source
        self._transfer = task.transfer
        self._mine = {route.number for route in task.stage.entries} | {route_of(task.number)}
        self._streaming = task.terms.streaming
        self._disordered = self._streaming and task.stage.kind is StageKind.SHUFFLED
        self._replay = Replay() if task.terms.replays else None
        self._held: list[tuple[Any, ...]] = []
        self._for_others: list[pa.RecordBatch] = []

    def entering(self, batch: pa.RecordBatch) -> tuple[Iterable[Entering] | None, list[int]]:
        """What enters at once, if anything does, and the rows that are for others and go on at once."""
        import pyarrow as pa

        if self._transfer is not None:
            return [Entering((), [], transferred=self._transfer.of_first_stage())], []
        if self._source is not None:
            partition = 0
            if self._origins is not None:
                batch, partition = of_one_partition(batch)
            rows = elements_of(batch, self._originals)
            timestamps = None if self._origins is None else self._origins.of(rows, partition)
            return [Entering(self._source, rows, timestamps)], []
        columns = {name: batch.column(name).to_pylist() for name in batch.schema.names}
        mine = [row for row, route in enumerate(columns["route"]) if route in self._mine]
        others = [row for row, route in enumerate(columns["route"]) if route not in self._mine]
        order = (columns[name] for name in ("watermark", "origin", "sequence", "route", "payload"))
        envelopes: list[tuple[Any, ...]] = list(zip(*order, strict=True))
        if (replay := self._replay) is not None:
            return (entered for row in mine for entered in replay.add(*envelopes[row])), others
        if self._streaming:
            self._held += [envelopes[row] for row in mine]
            mine = []
        if self._disordered and others:
            self._for_others.append(batch.take(pa.array(others, pa.int64())))
            others = []
        # one envelope at a time: a batch of them may be a gigabyte of elements
        opened = (entered for row in mine for entered in entering(*envelopes[row][-2:]))
        return (opened if mine else None), others

    def held_for_others(self) -> Iterator[pa.RecordBatch]:
        """The rows that are for others, in order again after a shuffle that did not keep it."""
        import pyarrow as pa

        if self._for_others:
            order = [(name, "ascending") for name in ("watermark", "origin", "sequence")]
            yield from pa.Table.from_batches(self._for_others).sort_by(order).to_batches()

    def held(self) -> Iterator[Iterator[Entering]]:
        """What enters at the end, some envelopes at a time."""
        if self._replay is not None and self._source is None:
            yield self._replay.rest()
        self._held.sort(reverse=True)
        now: int | None = None

        def some() -> Iterator[Entering]:
            nonlocal now
            for _ in range(min(UNPACKED, len(self._held))):
                watermark, _, _, route, payload = self._held.pop()
                yield from entering(route, payload, None if watermark == now else watermark)
                now = watermark

        while self._held:
            yield some()


class _Envelopes:
    """Writes what leaves a stage as envelopes."""

    def __init__(self, task: StageTask, origin: int) -> None:
        self._packer = Packer(origin, event_time=task.event_time)
        self._outputs = row_writers(task.outputs)

    def hand_on(self, batch: pa.RecordBatch, rows: list[int]) -> Iterator[pa.RecordBatch]:
        yield self._packer.handed_on(batch, rows)

    def write(
        self, leaving: Iterable[Leaving], event_time_ms: int, counts: Mapping[int, int] | None = None
    ) -> Iterator[pa.RecordBatch]:
        yield from self._packer.batches(in_columns(leaving, self._outputs), event_time_ms, counts)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What has been written and not been given: nothing."""
        return iter(())
