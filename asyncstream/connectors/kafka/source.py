"""
Reads topics of Kafka: each partition is a split, whose position is the offset of the next record.

The position in the checkpoint is the truth. The first one is taken before anything is read, so it also pins
down what `start` meant on that day. Offsets that have been deleted since (retention) are an error, never a
jump. While the pipeline has no room nothing is asked of the client, which stops to fetch when its buffer of
one response per partition is full; a partition that `hold` names is paused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from asyncstream.connectors.base import Source, SourceBatch
from asyncstream.connectors.cancellation import answered_within, now_and_then, stopped
from asyncstream.connectors.client_options import Options
from asyncstream.connectors.kafka.client import (
    addresses,
    check_options,
    check_topics,
    disconnect,
    give_up,
    naming,
    patience_of,
)
from asyncstream.connectors.kafka.group import Handover, begins_at, check_handover, listener, shows_itself
from asyncstream.connectors.kafka.partitions import Presence, chosen, gone, split_of, to_read
from asyncstream.connectors.kafka.records import RecordReader, time_of, topic_name
from asyncstream.connectors.messages import Decode
from asyncstream.errors import PipelineError, SourceError
from asyncstream.validation import Duration, choice, count, duration_seconds, flag, refuse, text

if TYPE_CHECKING:
    from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

__all__ = ("KafkaSource",)

_OURS = frozenset(
    {
        "auto_offset_reset",
        "bootstrap_servers",
        "enable_auto_commit",
        "group_id",
        "isolation_level",
        "key_deserializer",
        "max_poll_records",
        "value_deserializer",
    }
)

_LOOK = 0.2
"""Seconds between two looks for what no record tells of, such as new partitions, and for the end."""


class KafkaSource(Source[Any]):
    """
    Reads topics of Kafka.

        pipeline.source(KafkaSource("orders", bootstrap_servers="localhost:9092"), name="orders")

    The job is assigned its partitions: all of the topics, those that are added later too, or those that
    `partitions` names, where several jobs share a topic. Each is read in order, and is a split
    (`Source.splits`) by the name of "orders-0". Elements have the timestamps of their records.

    Args:
        topics: their names; at least one.
        bootstrap_servers: "host:port", with commas between several; or a list.
        value: how a record becomes an element: "json", "bytes", "text", or a function of bytes. What it
            raises for is a bad record. It is not asked for tombstones, which become None.
        records: elements are `KafkaRecord`, with key, headers and place, rather than values.
        partitions: numbers of the partitions to read, for each of the topics; None: all.
        group: share the topics with all jobs that name the same consumer group: the broker deals partitions
            out, and what is acknowledged is committed there. At least once: what a member that has died had
            read and not committed, another one reads again. What steps remember of a partition, such as
            windows, does not move with it: `Pipeline.guarantees` names them.
        handover: how long a member may take to finish what it has read, before it lets go of its partitions:
            a `timedelta` or seconds, less than `rebalance_timeout_ms` of the client, which is its
            `session_timeout_ms` (10 s) unless it is given.
        start: where to begin without a checkpoint: "earliest" or "latest".
        stop_at_end: end when all is read that was there when the source was opened.
        on_malformed: what to do with a bad record: "fail" with `SourceError`, after all elements before it
            were delivered, or "reject": it goes to the source's `rejected` output as a `RejectedRecord`.
        isolation: "read_committed" leaves out what transactions have not committed; or "read_uncommitted".
        batch: how many records one read brings at most.
        client: options of `aiokafka.AIOKafkaConsumer`, such as `security_protocol`, `ssl_context`,
            `sasl_mechanism`.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str],
        value: Decode = "json",
        records: bool = False,
        partitions: Mapping[str, Sequence[int]] | None = None,
        group: str | None = None,
        handover: Duration = 5.0,
        start: Literal["earliest", "latest"] = "earliest",
        stop_at_end: bool = False,
        on_malformed: Literal["fail", "reject"] = "fail",
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
        batch: int = 1000,
        client: Options | None = None,
    ) -> None:
        self._topics = tuple(topic_name("topics", topic) for topic in topics)
        if not self._topics or len(set(self._topics)) != len(self._topics):
            raise refuse("topics", "one or more different names", topics)
        self._servers = addresses(bootstrap_servers)
        self._chosen = None if partitions is None else chosen(partitions, self._topics)
        self._group = None if group is None else text("group", group)
        self.hands_over = group is not None
        if group is not None and (partitions is not None or stop_at_end):
            raise PipelineError(
                "group: expected neither partitions= nor stop_at_end=, for the broker deals partitions out, "
                "and none of them has an end that is this job's"
            )
        self._hand_over_in = duration_seconds("handover", handover)
        self._start = choice("start", start, ("earliest", "latest"))
        self._stops = flag("stop_at_end", stop_at_end)
        self.rejects = choice("on_malformed", on_malformed, ("fail", "reject")) == "reject"
        self._reader = RecordReader(value, records, self.rejects)
        self._isolation = choice("isolation", isolation, ("read_committed", "read_uncommitted"))
        self._batch = count("batch", batch)
        self._options = check_options(client, "AIOKafkaConsumer", _OURS)
        self._patience = patience_of(self._options)
        self._shows_itself = 0.0
        if group is not None:
            check_handover(self._hand_over_in, self._options)
            self._shows_itself = shows_itself(self._options)
        self._where = ",".join(self._servers)
        self._what = f"cannot read {', '.join(map(repr, self._topics))} at {self._where}"
        self._consumer: AIOKafkaConsumer | None = None
        self._forget_all()

    def _forget_all(self) -> None:
        self._positions: dict[str, int] = {}
        self._partitions: dict[str, TopicPartition] = {}
        self._ends: dict[str, int] = {}
        self._fetched: deque[tuple[str, list[ConsumerRecord[Any, Any]]]] = deque()
        self._held: frozenset[str] = frozenset()
        self._kept: dict[str, int] = {}  # of a checkpoint, or of what was revoked: not assigned again yet
        self._read_on: set[str] = set()  # by others, since then: what comes next was not to come next
        self._first: frozenset[str] = frozenset()  # as a member: the partitions when it was opened
        self._handover = Handover(self._hand_over_in)
        self._is_member = False
        self._has_changed = False
        self._failed: SourceError | None = None
        self._presence = Presence(self._topics, self._patience, self._what)
        self._looks_at = 0.0  # the next time, by the loop's
        self._polling: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ opening

    async def _connected(self) -> AIOKafkaConsumer:
        """A client that knows the topics."""
        from aiokafka import AIOKafkaConsumer

        with naming(SourceError, self._what):
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self._servers,
                auto_offset_reset="none",
                enable_auto_commit=False,
                group_id=self._group,
                isolation_level=self._isolation,
                max_poll_records=self._batch,
                **self._options,
            )
        try:
            with naming(SourceError, self._what):
                await consumer.start()
                await consumer.topics()
                check_topics(consumer._client.cluster, self._topics, SourceError, self._where)
        except BaseException:
            await disconnect(consumer, consumer._client)
            raise
        return consumer

    async def open(self) -> None:
        self._forget_all()
        self._consumer = await self._connected()
        if self._group is not None:  # it joins when it is read, and knows by then where to go on
            self._first = frozenset(map(split_of, self._found(self._consumer)))
            return
        with naming(SourceError, self._what):
            await self._assign(self._found(self._consumer), self._start)
            if self._stops:
                ends = await self._consumer.end_offsets(list(self._partitions.values()))
                self._ends = {split_of(partition): end for partition, end in ends.items()}

    def _found(self, consumer: AIOKafkaConsumer) -> list[TopicPartition]:
        return to_read(consumer, self._topics, self._chosen)

    async def _assign(self, partitions: Sequence[TopicPartition], start: str) -> None:
        """Read these too, from their beginning or their end."""
        consumer = self._opened()
        new = [partition for partition in partitions if split_of(partition) not in self._partitions]
        offsets = await (consumer.end_offsets if start == "latest" else consumer.beginning_offsets)(new)
        for partition in new:
            name = split_of(partition)
            self._partitions[name], self._positions[name] = partition, offsets[partition]
        consumer.assign(list(self._partitions.values()))
        self._fetched.clear()  # of partitions that are held: it is fetched again
        for name, partition in self._partitions.items():
            consumer.seek(partition, self._positions[name])
        consumer.pause(*(self._partitions[name] for name in self._held))

    # ------------------------------------------------------------------ reading

    async def read(self) -> SourceBatch[Any] | None:
        consumer = self._opened()
        if self._group is not None and not self._is_member:
            self._join(consumer)
        while True:
            for index, (name, _) in enumerate(self._fetched):
                if name not in self._held:
                    return self._batch_of(index)
            if self._stops and await self._is_at_end(consumer):
                return None
            if self._failed is not None:
                raise self._failed
            if self._has_changed:
                self._has_changed = False
                return SourceBatch([])  # for the pipeline to hear which partitions there are
            await self._fetch(consumer, _LOOK, self._batch)
            await self._look(consumer)

    async def _fetch(self, consumer: AIOKafkaConsumer, seconds: float, most: int) -> None:
        """
        Keep the records that come within some time, so many at most. Raises `SourceError` if those that were
        to come next are not there any more, or never were.
        """
        from aiokafka.errors import NoOffsetForPartitionError, OffsetOutOfRangeError

        fetched: dict[TopicPartition, list[ConsumerRecord[Any, Any]]] = {}
        with naming(SourceError, self._what):
            try:
                fetched = await consumer.getmany(timeout_ms=round(seconds * 1000), max_records=most)
            except NoOffsetForPartitionError:
                pass  # the client looks where a member is to begin at the same time as `_assigned` does, ...
            except OffsetOutOfRangeError as error:
                for partition, offset in error.args[0].items():
                    # ... and perhaps begins there
                    if offset >= self._positions.get(split_of(partition), offset + 1):
                        first = await consumer.beginning_offsets([partition])
                        raise gone(split_of(partition), offset, first[partition]) from error
        for partition, records in fetched.items():
            # of a group's member, the client may be ahead of `_assigned`, which sends it back
            if split_of(partition) in self._partitions:
                self._fetched.append((split_of(partition), records))

    def _batch_of(self, index: int) -> SourceBatch[Any]:
        """The elements of what was fetched in that place; what is left of it is for the next read."""
        name, records = self._fetched[index]
        values, taken, rejected = self._reader.read(name, records)
        count = len(taken) + len(rejected)
        if count < len(records):
            self._fetched[index] = name, records[count:]
        else:
            del self._fetched[index]
        self._positions[name] = records[count - 1].offset + 1
        is_other = name in self._read_on
        self._read_on.discard(name)
        return SourceBatch(values, list(map(time_of, taken)), rejected, split=name, started_over=is_other)

    async def _is_at_end(self, consumer: AIOKafkaConsumer) -> bool:
        """Whether all is read that was there."""
        if self._fetched:
            return False
        await self._pass_marks(consumer)
        return all(self._positions[name] >= end for name, end in self._ends.items())

    async def _pass_marks(self, consumer: AIOKafkaConsumer) -> None:
        """
        Go on behind what is no record, as the client does when it fetches: marks of transactions, and what
        they have aborted. One who stayed before them would miss them when the topic has deleted them.
        """
        for name in self._partitions.keys() - {name for name, _ in self._fetched}:
            passed = await consumer.position(self._partitions[name])
            self._positions[name] = max(self._positions[name], passed)

    async def _look(self, consumer: AIOKafkaConsumer) -> None:
        """Look every so often, also while records come, for what no record tells of."""
        now = asyncio.get_running_loop().time()
        if now < self._looks_at:
            return
        self._looks_at = now + _LOOK
        await self._presence.check(consumer, list(self._partitions.values()))
        await self._pass_marks(consumer)
        if self._group is None and self._chosen is None and not self._stops:
            found = self._found(consumer)
            if len(found) > len(self._partitions):  # of those that were added, nothing was there before
                with naming(SourceError, self._what):
                    await self._assign(found, "earliest")

    def splits(self) -> Sequence[str]:
        return tuple(self._partitions)

    def hold(self, splits: Collection[str]) -> None:
        consumer = self._opened()
        self._held = frozenset(splits)
        held = {self._partitions[name] for name in self._held & self._partitions.keys()}
        consumer.resume(*(consumer.paused() - held))
        consumer.pause(*held)

    def unread(self) -> int:
        return sum(len(records) for _, records in self._fetched)

    # ------------------------------------------------------------------ the group

    def _join(self, consumer: AIOKafkaConsumer) -> None:
        self._is_member = True
        with naming(SourceError, self._what):
            consumer.subscribe(self._topics, listener=listener(self._revoked, self._assigned))
        self._polling = asyncio.create_task(now_and_then(self._shows_itself, self._poll))

    async def _poll(self) -> None:
        """
        Ask for records though the pipeline has no room: the broker takes a member that does not for longer
        than `max_poll_interval_ms` for dead. What comes is kept, so it is one at a time.
        """
        await self._fetch(self._opened(), 0, 1)

    async def _revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Bring to an end what was given out of these, and let go of them."""
        names = [name for name in map(split_of, partitions) if name in self._partitions]
        self._fetched = deque(one for one in self._fetched if one[0] not in names)
        await self._handover.finish(names, self._positions, self.checkpoint_soon)
        self._kept |= {name: self._handover.acknowledged[name] for name in names}
        self._handover.end(names)
        for name in names:
            del self._positions[name], self._partitions[name]
        self._has_changed = True

    async def _assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Read these, from what is committed, or from what is kept if that is further."""
        from aiokafka.errors import CommitFailedError

        consumer = self._opened()
        try:
            with naming(SourceError, self._what):
                begun: dict[TopicPartition, int] = {}
                firsts = await consumer.beginning_offsets(partitions)
                ends = await consumer.end_offsets(partitions)
                known = {partition: await consumer.committed(partition) for partition in partitions}
                for partition, committed in known.items():
                    name, extent = split_of(partition), (firsts[partition], ends[partition])
                    is_latest = self._start == "latest" and name in self._first
                    offset = begins_at(name, extent, self._kept.get(name), committed, is_latest)
                    if committed is None and self._start == "latest":
                        begun[partition] = offset
                    consumer.seek(partition, offset)
                    if name in self._held:  # to the client it is another one than before
                        consumer.pause(partition)
                    if offset > self._kept.get(name, offset):
                        self._read_on.add(name)
                    self._partitions[name], self._positions[name] = partition, offset
                    self._handover.begin(name, offset)
                # or who has it when this member has died begins with what comes by then
                with suppress(CommitFailedError):  # they are dealt out again
                    await self._commit(consumer, begun)
        except SourceError as error:  # the client would log it, and go on
            self._failed = error
        self._kept.clear()
        self._has_changed = True

    def acknowledges(self) -> bool:
        return self._group is not None

    async def acknowledge(self, position: dict[str, int]) -> None:
        from aiokafka.errors import CommitFailedError

        new = self._handover.new(position)
        if new and self._consumer is not None:
            offsets = {self._partitions[name]: offset for name, offset in new.items()}
            with naming(SourceError, f"cannot commit offsets of group {self._group!r}"):
                try:
                    await self._commit(self._consumer, offsets)
                except CommitFailedError:  # they are dealt out again: it would fail the next time, too
                    self._handover.acknowledge(new)
                    raise
        self._handover.acknowledge(new)

    async def _commit(self, consumer: AIOKafkaConsumer, offsets: dict[TopicPartition, int]) -> None:
        async with answered_within(self._patience):  # the client tries again for ever
            if offsets:
                await consumer.commit(offsets)

    # ------------------------------------------------------------------ positions

    def position(self) -> dict[str, int] | None:
        return {**self._kept, **self._positions} if self._consumer is not None else None

    async def can_seek(self, position: dict[str, int]) -> None:
        if self._group is not None:
            return  # the broker says what there is to read, and from where
        consumer = await self._connected()
        try:
            await self._check(consumer, position)
        finally:
            await disconnect(consumer, consumer._client)

    async def _check(self, consumer: AIOKafkaConsumer, position: dict[str, int]) -> None:
        """See whether all that was not read is still there."""
        partitions = {split_of(partition): partition for partition in self._found(consumer)}
        for name in position:
            if name not in partitions:
                raise SourceError(
                    f"cannot go on in {name}, which was read until offset {position[name]}: this source does "
                    "not read it; name its topic, and in partitions= its number, or its rest is lost"
                )
        with naming(SourceError, self._what):
            first = await consumer.beginning_offsets(list(partitions.values()))
            last = await consumer.end_offsets(list(partitions.values()))
        for name, offset in position.items():
            least, most = first[partitions[name]], last[partitions[name]]
            if not least <= offset <= most:
                raise gone(name, offset, least)

    async def seek(self, position: dict[str, int]) -> None:
        consumer = self._opened()
        if self._group is not None:
            self._kept = dict(position)
            return
        await self._check(consumer, position)
        self._fetched.clear()
        for name in self._partitions:
            if name in position:
                self._positions[name] = position[name]
            elif self._start == "latest":  # added since: nothing of it was there before
                with naming(SourceError, self._what):
                    first = await consumer.beginning_offsets([self._partitions[name]])
                self._positions[name] = first[self._partitions[name]]
            consumer.seek(self._partitions[name], self._positions[name])

    async def close(self) -> None:
        consumer, self._consumer = self._consumer, None
        try:
            await stopped(self._polling)
            if consumer is not None:
                await give_up(consumer)  # a handover, too, of which nothing is acknowledged any more
        finally:
            if consumer is not None:
                await disconnect(consumer, consumer._client)

    def _opened(self) -> AIOKafkaConsumer:
        if self._consumer is None:
            raise SourceError(f"the source of {', '.join(self._topics)} is not open")
        return self._consumer
