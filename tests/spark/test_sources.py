"""Sources cut into micro-batches, without Spark: what is read again is what was read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable

from asyncstream import PipelineError, SourceError
from asyncstream.connectors import DeadLetterSource, Items, Source, SourceBatch, SplitSource
from asyncstream.connectors.kafka import KafkaSource
from asyncstream.connectors.mqtt import MqttSource
from asyncstream.connectors.nats import NatsConsumerSource
from asyncstream.connectors.postgres import PostgresOutbox
from asyncstream.connectors.redis import RedisGroupSource
from asyncstream.runtime.spark import register_source
from asyncstream.runtime.spark.sources.pulled import Offset, Pulled
from asyncstream.runtime.spark.sources.register import SourceSettings
from asyncstream.testing.loop import run_virtual
from tests.spark.cluster import event_columns
from tests.spark.fake_spark import StandIn


def in_splits(parts: Sequence[int], batch: int, parallel: int) -> SplitSource[tuple[str, int]]:
    """Splits of so many elements each, that say which they are."""

    def make(name: str) -> Items[tuple[str, int]]:
        return Items([(name, number) for number in range(parts[int(name)])], batch=batch)

    return SplitSource(make, [str(number) for number in range(len(parts))], parallel=parallel)


async def all_batches(pulled: Pulled, start: Offset, most: int | None) -> list[tuple[Offset, Offset, Any]]:
    """Micro-batches until nothing more comes; offsets as Spark keeps them."""
    found = []
    while (end := json.loads(json.dumps(await pulled.latest(start, most)))) != start:
        found.append((start, end, await pulled.values(start, end)))
        start = end
    return found


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=5),
    st.integers(1, 7),
    st.integers(1, 7),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_micro_batches_have_everything_once_and_come_again_alike(
    parts: list[int], batch: int, other: int, most: int, parallel: int
) -> None:
    async def main() -> None:
        pulled = Pulled(lambda: in_splits(parts, batch, parallel), 0.2)
        found = await all_batches(pulled, await pulled.initial(), most)
        await pulled.close()
        seen: dict[str, list[Any]] = {str(number): [] for number in range(len(parts))}
        for start, end, splits in found:
            assert 0 < sum(map(len, splits.values())) < most + batch
            for name, elements in splits.items():
                seen[name] += elements
            again = Pulled(lambda: in_splits(parts, other, parallel), 0.2)
            assert await again.values(start, end) == splits, "read in pieces of another size"
            rest = await all_batches(again, end, most)
            await again.close()
            behind = {name: sum(len(later.get(name, ())) for *_, later in rest) for name in seen}
            assert behind == {name: parts[int(name)] - len(seen[name]) for name in seen}
        assert seen == {name: [(name, number) for number in range(parts[int(name)])] for name in seen}

    run_virtual(main())


class Slow(Source[int]):
    """Gives a number every so often, for ever, and says what it is told."""

    def __init__(self, seconds: float, told: list[tuple[str, int]] | None = None) -> None:
        self.seconds, self.told, self.at = seconds, [] if told is None else told, 0

    async def read(self) -> SourceBatch[int]:
        await asyncio.sleep(self.seconds)
        self.at += 1
        return SourceBatch([self.at])

    def position(self) -> int:
        return self.at

    async def seek(self, position: int) -> None:
        self.at = position

    async def acknowledge(self, position: int) -> None:
        self.told.append(("acknowledge", position))

    async def forget(self, position: int) -> None:
        self.told.append(("forget", position))


def run_pulled(
    make: Callable[[], Source[Any]], use: Callable[[Pulled], Coroutine[Any, Any, None]], wait: float = 0.2
) -> None:
    async def main() -> None:
        pulled = Pulled(make, wait)
        try:
            await use(pulled)
        finally:
            await pulled.close()

    run_virtual(main())


class Next(Slow):
    """Begins with what comes next."""

    came: ClassVar[list[int]]

    async def open(self) -> None:
        self.at = len(self.came)

    async def read(self) -> SourceBatch[int]:
        if self.at == len(self.came):
            await asyncio.Event().wait()
        found = self.came[self.at :]
        self.at = len(self.came)
        return SourceBatch(found)


def test_a_first_micro_batch_has_its_rows_though_its_source_would_begin_elsewhere_by_now() -> None:
    """Spark asks again where it begins: before its rows are read, and in a driver that is started again."""

    class Log(Next):
        came: ClassVar[list[int]] = [1, 2, 3]

    async def use(pulled: Pulled) -> None:
        start = await pulled.initial()
        Log.came += [4, 5]
        end = json.loads(json.dumps(await pulled.latest(start, None)))
        Log.came += [6, 7]
        assert await pulled.initial() == start
        assert await pulled.values(start, end) == {"": [4, 5]}
        again = Pulled(partial(Log, 0), 0.2)
        assert await again.values(await again.initial(), end) == {"": [4, 5]}
        last = await again.latest(end, None)
        assert await again.values(end, last) == {"": [6, 7]}
        await again.close()

    run_pulled(partial(Log, 0), use)


@pytest.mark.parametrize("error", [OSError("gone"), SourceError("gone"), SystemExit("gone")])
def test_what_a_source_raises_names_it(error: BaseException) -> None:
    from asyncstream.runtime.spark.sources.format import StreamReader

    class Failing(Slow):
        async def read(self) -> SourceBatch[int]:
            raise error

    settings = SourceSettings(lambda: Failing(0), "prices", event_columns(), 50, 5.0)
    reader = StreamReader(settings, event_columns(), 50, None)
    with pytest.raises(SourceError, match=r"^source 'prices': (\w+: )?gone"):
        reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    reader.stop()


def test_source_that_stands_where_it_stood_before_what_it_gave_is_an_error() -> None:
    """Two micro-batches of as many rows would have one offset, and Spark leaves the second out."""

    class Unmoved(Slow):
        def position(self) -> Any:
            return None if self.at < 3 else 3  # as of events of which few have an id

    async def use(pulled: Pulled) -> None:
        start = await pulled.initial()
        with pytest.raises(SourceError, match="given elements, 1 first, and stands where it stood"):
            await pulled.latest(start, 2)
        end = await pulled.latest(start, 3)
        assert await pulled.values(start, end) == {"": [1, 2, 3]}
        with pytest.raises(SourceError, match="given elements, 4 first, and stands where it stood"):
            await pulled.latest(end, 1)

    run_pulled(lambda: Unmoved(0.01), use)


def test_position_that_no_offset_can_hold_is_told_by_the_name_of_its_source() -> None:
    class Objects(Slow):
        def position(self) -> Any:
            return {"at": [object()]}

    async def use(pulled: Pulled) -> None:
        told = r"Objects stands at \{'at': .* position\(\)\['at'\]\[0\] is to be made of plain values"
        with pytest.raises(SourceError, match=told):
            await pulled.initial()

    run_pulled(lambda: Objects(0.01), use)


def test_source_that_shares_out_what_it_reads_is_refused() -> None:
    """Without a job of ours it acknowledges as it reads, and what is acknowledged does not come again."""
    sources: list[Callable[[], Source[Any]]] = [
        lambda: KafkaSource("orders", bootstrap_servers="kafka:9092", group="billing"),
        lambda: RedisGroupSource("redis://cache", "orders", group="billing"),
        lambda: NatsConsumerSource("nats://hub", "orders", durable="billing"),
        lambda: MqttSource("mqtt://hub", "orders", client_id="billing"),
        lambda: PostgresOutbox("postgresql://db/shop", "orders"),
        lambda: DeadLetterSource(KafkaSource("failed", bootstrap_servers="kafka:9092", group="billing")),
    ]
    session: Any = StandIn(1)
    for make in sources:
        with pytest.raises(PipelineError, match=r"^make: \w+ shares out what it reads"):
            register_source(session, make, schema=event_columns())


def test_micro_batch_is_what_comes_while_it_waits() -> None:
    async def use(pulled: Pulled) -> None:
        start = await pulled.initial()
        assert start == {"position": "0", "rows": {}}
        end = await pulled.latest(start, None)
        assert end == {"position": "4", "rows": {"": 4}, "from": "0"}
        assert await pulled.values(start, end) == {"": [1, 2, 3, 4]}
        end = await pulled.latest(end, 2)
        assert end["position"] == "6", "it is full"

    run_pulled(lambda: Slow(0.045), use)


def test_what_a_silent_source_gives_later_is_not_lost() -> None:
    async def use(pulled: Pulled) -> None:
        start = await pulled.initial()
        for _ in range(4):
            assert await pulled.latest(start, None) == start
        end = await pulled.latest(start, None)
        assert await pulled.values(start, end) == {"": [1]}, "its read was not begun anew"
        assert await pulled.latest(end, None, wait_seconds=5) == {"position": "2", "rows": {"": 1}}

    run_pulled(lambda: Slow(0.9), use)


def test_source_is_told_what_is_done() -> None:
    told: list[tuple[str, int]] = []

    async def use(pulled: Pulled) -> None:
        end = await pulled.latest(await pulled.initial(), 3)
        await pulled.latest(end, 3)
        await pulled.done(end)

    run_pulled(lambda: Slow(0.01, told), use)
    assert told == [("acknowledge", 3), ("forget", 3)]


@pytest.mark.parametrize("fails", ["acknowledge", "forget"])
def test_source_that_cannot_be_told_what_is_done_is_told_it_with_the_next(
    fails: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def use(pulled: Pulled) -> None:
        end = await pulled.latest(await pulled.initial(), 3)
        with patch.object(Slow, fails, side_effect=OSError("the broker is away")):
            await pulled.done(end)
        await pulled.done(await pulled.latest(end, 3))

    told: list[tuple[str, int]] = []
    run_pulled(lambda: Slow(0.01, told), use)
    assert told[-2:] == [("acknowledge", 6), ("forget", 6)]
    assert "Slow was not told what is done: OSError: the broker is away" in caplog.text


@pytest.mark.parametrize("hangs", ["read", "close"])
def test_source_that_hangs_when_it_is_let_go_is_not_waited_for_for_ever(hangs: str) -> None:
    class Hanging(Slow):
        ended = False

        async def _hang(self, here: str) -> None:
            while here == hangs and not self.ended:
                try:
                    await asyncio.sleep(1_000)
                except asyncio.CancelledError:
                    pass

        async def read(self) -> SourceBatch[int]:
            await self._hang("read")
            return await super().read()

        async def close(self) -> None:
            await self._hang("close")

    async def main() -> None:
        sources: list[Hanging] = []

        def make() -> Hanging:
            sources.append(Hanging(0))
            return sources[-1]

        pulled = Pulled(make, 0.2)
        start = await pulled.initial()
        await pulled.latest(start, 1)
        closing = asyncio.create_task(pulled.close())
        await asyncio.wait({closing}, timeout=60)
        has_ended = closing.done()
        sources[0].ended = True
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=2_000)
        assert has_ended
        with suppress(TimeoutError):
            closing.result()

    run_virtual(main())


def test_rows_that_do_not_come_again_are_an_error() -> None:
    async def use(pulled: Pulled) -> None:
        lost = r"Items has ended, and 2 elements of a micro-batch that Spark runs again have not come"
        with pytest.raises(SourceError, match=lost):
            await pulled.values({"position": "1", "rows": {}}, {"position": "5", "rows": {"": 4}})
        with pytest.raises(SourceError, match="cannot go on at element 7 of 3"):
            await pulled.latest({"position": "7", "rows": {}}, None)

    run_pulled(lambda: Items([1, 2, 3]), use)


def test_what_a_source_rejects_is_an_error() -> None:
    class Rejecting(Slow):
        rejects = True

        async def read(self) -> SourceBatch[int]:
            return SourceBatch([], rejected=["?"])

    async def use(pulled: Pulled) -> None:
        with pytest.raises(SourceError, match=r"Rejecting has rejected .* leave on_malformed='reject' out"):
            await pulled.latest(await pulled.initial(), None)

    run_pulled(lambda: Rejecting(0), use)


def test_wrong_arguments_are_refused() -> None:
    session: Any = StandIn(1)
    given: dict[str, Any] = {"make": lambda: Items([1]), "schema": event_columns()}
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"make": [1]}, "make: expected a function, got"),
        ({"make": lambda: [1]}, r"make: expected a function that gives a Source, got \[1\]"),
        ({"schema": 5}, "schema: expected a StructType"),
        ({"name": ""}, "name: expected a non-empty text"),
        ({"max_rows_per_trigger": 0}, "max_rows_per_trigger: expected an integer of at least 1"),
        ({"quiet": -1}, "quiet: expected"),
    ]
    for arguments, message in wrong:
        with pytest.raises(PipelineError, match=message):
            register_source(session, **(given | arguments))


def test_options_are_refused_unless_there_are_such() -> None:
    settings = SourceSettings(lambda: Items([1]), "prices", event_columns(), 50, 5.0)
    assert settings.most({}) == 50
    assert settings.most({"maxRowsPerTrigger": "7"}) == 7
    with pytest.raises(PipelineError, match="format 'prices' has no option 'path'"):
        settings.most({"path": "x"})
    with pytest.raises(PipelineError, match="maxRowsPerTrigger: expected an integer of at least 1, got 'x'"):
        settings.most({"maxRowsPerTrigger": "x"})


def test_a_stream_begins_at_the_offset_that_another_has_told() -> None:
    settings = SourceSettings(lambda: Slow(0.01), "numbers", event_columns(), 50, 5.0)

    async def main() -> None:
        pulled = Pulled(settings.make, 0.1)
        told = await pulled.latest(await pulled.initial(), 4)
        assert told["rows"] == {"": 4}
        start = settings.starting({"startingOffsets": json.dumps(told)}, streaming=True)
        assert start is not None
        again = Pulled(settings.make, 0.1)
        end = await again.latest(start, 2)
        assert await again.values(start, end) == {"": [5, 6]}
        await pulled.close()
        await again.close()

    run_virtual(main())


def test_a_first_micro_batch_has_its_rows_though_another_beginning_is_asked_for_by_now() -> None:
    """It has failed, perhaps over its first row, and runs again: options are for a query that is new."""

    async def main() -> None:
        pulled = Pulled(partial(Slow, 0.01), 0.1)
        begin = await pulled.latest(await pulled.initial(), 2)
        start = await (first := Pulled(partial(Slow, 0.01), 0.1)).initial(begin)
        end = json.loads(json.dumps(await first.latest(start, 2)))
        other = await first.latest(end, 2)
        for starting in (None, other):
            again = Pulled(partial(Slow, 0.01), 0.1)
            assert await again.values(await again.initial(starting), end) == {"": [3, 4]}
            await again.close()
        await pulled.close()
        await first.close()

    run_virtual(main())


def test_where_a_stream_begins_is_refused_unless_it_is_an_offset() -> None:
    settings = SourceSettings(lambda: Slow(0.01), "numbers", event_columns(), 50, 5.0)
    for begin in ({}, {"startingOffsets": "earliest"}):
        assert settings.starting(begin, streaming=True) is None
    for wrong in ("latest", "1200", '{"position": 1200}', '{"position": "{"}', "[]"):
        with pytest.raises(PipelineError, match="startingOffsets: expected 'earliest', or an offset"):
            settings.starting({"startingOffsets": wrong}, streaming=True)
    with pytest.raises(PipelineError, match="startingOffsets: a bounded DataFrame has all rows"):
        settings.starting({"startingOffsets": '{"position": null}'}, streaming=False)
