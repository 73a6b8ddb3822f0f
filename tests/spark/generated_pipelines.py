"""
A pipeline of drawn steps, and what the embedded engine gives for it.

Plain steps, event time, then keyed and plain steps in turn. Embedded, the input is W(0) rows(0) W(1) rows(1)
... W(n), with Spark's micro-batches.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncstream import (
    BoundedOutOfOrderness,
    NoWatermarks,
    Pipeline,
    PunctuatedWatermarks,
    Stream,
    WatermarkStrategy,
)
from asyncstream.testing.loop import run_virtual
from tests.spark.cluster import columns
from tests.spark.newer_steps import Newer
from tests.spark.steps import Plain, Processed, Step, Told, event_of, event_of_result, is_kept, ms, time_of

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from asyncstream.runtime.spark import SparkPlan

__all__ = ("Batches", "Drawn", "Rows", "embedded", "is_of", "row_columns", "watermark_of", "with_watermarks")

Rows = list[dict[str, Any]]
Batches = list[list[Rows]]
"""Micro-batches, each a list of partitions."""


def row_columns() -> StructType:
    """k, n, ts: what a row has."""
    from pyspark.sql.types import LongType

    return columns(k=LongType(), n=LongType(), ts=LongType())


@dataclass(frozen=True)
class Drawn:
    """
    A pipeline.

    Attributes:
        before: steps before event time is given.
        after: steps behind that; the keyed ones can be read too.
        sources: their number; the rows of all are as one.
        both: the last step's elements and some that came straight from the source as one output.
        apart: a sink for each output.
    """

    before: tuple[Plain, ...]
    after: tuple[tuple[Step | Newer, bool], ...]
    ordered: bool
    delay: int
    sources: int
    both: bool
    apart: bool

    def _define(self, timed: Stream[Any], told: Told) -> None:
        """The steps behind event time."""
        stream = timed
        for step, is_read in self.after:
            stream = step.add(stream, told)
            if not isinstance(step, Plain):
                if is_read:
                    told.add(type(step).__name__.lower(), stream, ordered=step.ordered)
                stream = stream.map(event_of_result)
        told.add("last", stream, ordered=self.ordered)
        if self.both:
            told.add("both", stream.union(timed.filter(is_kept)))

    def define(self, sources: list[Stream[Any]], watermarks: WatermarkStrategy | None, to: list[str]) -> Told:
        """
        All steps.

        Args:
            watermarks: None: the elements have their event time already.
            to: what all sinks write to.
        """
        told = Told()
        timed: list[Stream[Any]] = []
        for source in sources:
            stream = source.map(event_of)
            for step in self.before:
                stream = step.add(stream, told)
            timed.append(stream if watermarks is None else stream.event_time(time_of, watermarks))
        self._define(timed[0] if len(timed) == 1 else timed[0].union(*timed[1:]), told)
        streams = told.outputs
        if not self.apart:
            first, *others = streams.values()
            streams = {"lines": first.union(*others) if others else first}
        for name, lines in streams.items():
            lines.to(to, name=name)
        return told

    def processes(self) -> bool:
        """Whether there may be process functions, which see event time move in a bounded job, too."""
        return any(isinstance(step, Processed | Newer) for step, _ in self.after)

    def on_spark(
        self,
        spark: Any,
        inputs: Sequence[Any],
        watermarks: WatermarkStrategy | None = None,
        *,
        named: bool = False,
        **options: Any,
    ) -> tuple[SparkPlan, Told]:
        """
        The plan, and its outputs.

        Args:
            watermarks: in place of those that follow the largest event time.
            named: what all steps are called by their places is taken for names of the user's.
        """
        from pyspark.sql.types import StringType

        pipeline = Pipeline("drawn")
        names = [f"rows{number}" for number in range(self.sources)]
        sources: list[Stream[Any]] = [pipeline.source([], name=name) for name in names]
        told = self.define(sources, watermarks or BoundedOutOfOrderness(ms(self.delay)), [])
        if named:
            pipeline._graph.unnamed.clear()
        schema = columns(line=StringType())
        sinks = told.outputs if self.apart else ["lines"]
        plan = pipeline.on_spark(
            spark,
            inputs=dict(zip(names, inputs, strict=True)),
            outputs=dict.fromkeys(sinks, schema),
            **options,
        )
        return plan, told

    def divided(self, partitions: list[Rows], source: int) -> list[Rows]:
        """The partitions that a source reads."""
        return partitions[source :: self.sources]

    def largest(self, rows: Rows) -> int | None:
        """The latest event time of what rows become before it is given."""
        events = [event_of(row) for row in rows]
        for step in self.before:
            events = [made for event in events for made in step.results(event)]
        return max((event["ts"] for event in events), default=None)


def is_of(number: int, row: dict[str, Any]) -> bool:
    return row.get("source") == number


def with_watermarks(
    drawn: Drawn, batches: Batches, stopped_before: Collection[int] = ()
) -> Iterator[tuple[int | None, Rows]]:
    """
    W(0) and rows(0), W(1) and rows(1), … W(n), with the watermark of the source that is behind.

    Args:
        stopped_before: the micro-batches before which it is forgotten how far each source had come.
    """
    largest: dict[int, int] = {}
    known: int | None = None
    for number, partitions in enumerate([*batches, []]):
        if number in stopped_before:
            largest.clear()
        rows = [
            {**row, "source": source}
            for source in range(drawn.sources)
            for part in drawn.divided(partitions, source)
            for row in part
        ]
        yield known, rows
        for source in range(drawn.sources):
            latest = drawn.largest([row for row in rows if row["source"] == source])
            if latest is not None:
                largest[source] = max(latest, largest.get(source, latest))
        if len(largest) == drawn.sources:
            reached = min(largest.values()) - drawn.delay - 1
            known = reached if known is None else max(known, reached)


def merged(drawn: Drawn, partitions: list[Rows], strategy: WatermarkStrategy) -> Iterator[tuple[int, Rows]]:
    """The rows of all partitions by the watermarks of each, those without one before its first."""
    marked: list[tuple[int, int, int, dict[str, Any]]] = []
    origins = [
        (source, rows) for source in range(drawn.sources) for rows in drawn.divided(partitions, source)
    ]
    for origin, (source, rows) in enumerate(origins):
        generator, watermark = strategy.generator(), None
        for place, row in enumerate(rows):
            found = generator.on_element(row, row["ts"])
            mark = watermark if watermark is not None else found
            assert mark is not None, "the first element has made one"
            marked.append((mark, origin, place, {**row, "source": source}))
            watermark = found if found is not None else watermark
        if watermark is not None:
            marked.append((watermark, origin, len(rows), {}))
    for mark, _, _, row in sorted(marked, key=lambda each: each[:3]):
        yield mark, [row] if row else []


def embedded(
    drawn: Drawn,
    batches: Batches,
    *,
    streaming: bool,
    moving: WatermarkStrategy | None = None,
    stopped_before: Collection[int] = (),
) -> list[str]:
    """
    What the embedded engine gives, in its order; of a stream, while its input has not ended.

    Args:
        moving: the watermarks of a bounded job's partitions; None: there is one at the end.
        stopped_before: see `with_watermarks`.
    """

    async def elements() -> AsyncIterator[dict[str, Any]]:
        if moving is not None:
            for watermark, rows in merged(drawn, batches[0], moving):
                yield {"watermark": watermark}
                for row in rows:
                    yield row
            return
        for known, rows in with_watermarks(drawn, batches, stopped_before):
            if streaming:
                # nothing goes ahead of a watermark, and a micro-batch has ended when the next begins
                if known is not None:
                    yield {"watermark": known}
                await asyncio.sleep(1)
            for row in rows:
                yield row
            await asyncio.sleep(100 * streaming)
        if streaming:
            await asyncio.Event().wait()

    pipeline = Pipeline("embedded")
    strategy = PunctuatedWatermarks(watermark_of) if streaming or moving else NoWatermarks()
    source = pipeline.source(elements()).event_time(lambda row: row.get("ts", 0), strategy)
    found: list[str] = []
    drawn.define([source.filter(partial(is_of, number)) for number in range(drawn.sources)], None, found)

    async def main() -> None:
        clock: Any = asyncio.get_running_loop()
        async with pipeline.start(clock=clock) as job:
            if streaming:
                await asyncio.sleep(200 * len(batches) + 1000)
                await job.stop()
            else:
                await job.wait()

    run_virtual(main())
    return found


def watermark_of(row: dict[str, Any], timestamp: int) -> Any:
    return row.get("watermark")
