"""
Writes to a topic of Kafka exactly once: one transaction for each epoch.

Theory of operation
-------------------
What is written between two checkpoints is one transaction, which `read_committed` readers see as a whole or
not at all. Kafka knows no prepared transactions, but what it does know is enough: a transaction stays open
when its producer dies, until the broker's patience ends (`transaction_timeout`), and the next with its
producer's id and epoch may end it. So `prepare` sends everything, waits until the brokers have it, and puts
id and epoch into the position; `commit` ends the transaction, and so does `recover` in the place of a process
that has died.

A producer has one transaction at a time, and elements are written between `prepare` and `commit`: so there
are *slots*, each a producer with a transactional id of its own, that take turns. There are more than two only
while checkpoints fail.

::

    free ── first write ──> open ── prepare ──> prepared ── commit ──> free
              │ begins                             │ the process dies
              └─ process dies: recover aborts      └─ recover commits it, or aborts it, as the checkpoint says

Each transaction also writes a *row*: the committed offset of a consumer group without consumers, named
after the transactional id. Its offset is the number of the transaction, counted from 1, its metadata whose
the topic is (`writer.lease`). As it is part of the transaction, it tells what is committed, whatever a crash
has left unsaid. So a recovery finds the number N of the last transaction that is committed, and knows:

* the position says the same number: nothing is to be done;
* the position has transactions behind N: they were prepared, and are committed now;
* N is larger: the topic holds results of a later checkpoint, which Kafka cannot take back.

Fencing is Kafka's own: a recovery gets a new epoch for each slot that there may be, whereupon the broker
aborts what is open there and refuses the producers of before. Until then a job that was followed can commit
nothing but what its last saved checkpoint says, which its follower would commit too.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from asyncstream.aside import heed, heed_the_end, to_its_end
from asyncstream.connectors.base import TransactionalSink
from asyncstream.connectors.cancellation import answered_within, carried_through
from asyncstream.connectors.client_options import Options
from asyncstream.connectors.kafka.client import disconnect, settled
from asyncstream.connectors.kafka.sink import KafkaWriter
from asyncstream.connectors.messages import Encode
from asyncstream.connectors.writer import allowed_ahead
from asyncstream.elements import Timestamps
from asyncstream.errors import SinkBroken, SinkError, over_elements
from asyncstream.lease import Lease
from asyncstream.validation import Duration, duration_ms, text

if TYPE_CHECKING:
    from aiokafka import AIOKafkaProducer, TopicPartition

__all__ = ("KafkaTransactionalSink",)

_NEEDED: Final = 2
"""Slots while all goes well: one that is written, and one that is prepared."""

_SLOTS: Final = 8
"""At most: so many checkpoints in a row may fail and still be spoken for by the next one."""

_PATIENCE: Final = 5.0
"""Seconds that a client gets to abort a transaction, or to leave the topic, for a job that ends."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """
    A transaction that is prepared, as it is in a position.

    Attributes:
        number: of the transaction; the first is 1.
        slot: whose it is.
        producer, epoch: the producer's id and epoch, as the broker knows it.
        partitions: those of the topics that it writes to.
    """

    number: int
    slot: int
    producer: int
    epoch: int
    partitions: list[list[Any]]


class _Slot:
    """One producer, with a transactional id of its own."""

    def __init__(self, number: int, producer: AIOKafkaProducer) -> None:
        self.number = number
        self.producer = producer
        self.sent: list[asyncio.Future[Any]] = []


class KafkaTransactionalSink(TransactionalSink[Any]):
    """
    Writes elements to a topic exactly once, in a job with checkpoints: readers with `read_committed` see each
    epoch once its checkpoint is safe. Without checkpoints each write is a transaction.

        KafkaTransactionalSink("priced", transactional_id="pricing", bootstrap_servers="localhost:9092")

    What is committed stays: from an older checkpoint the sink goes on only with `ahead="allow_behind"`, which
    writes results a second time. A job that was down for longer than `transaction_timeout` after it prepared
    an epoch finds that gone, and says so. A record that a broker refuses ends the job, and each restart:
    one that may be too large is best refused before it is sent, by `client={"max_request_size": ...}`.

    Args:
        topic, bootstrap_servers, value, key, headers, partition, timestamps: as for `KafkaSink`.
        transactional_id: tells this sink from all others, the same after a restart. Two jobs that use the
            same one take the topic from each other; that goes for processes by which a job is divided, too.
        transaction_timeout: how long the broker waits for an open transaction: a `timedelta` or seconds;
            longer than from one checkpoint to the next, and than a restart takes. Brokers allow 15 minutes by
            default.
        client: options of `aiokafka.AIOKafkaProducer`.
    """

    def __init__(
        self,
        topic: str,
        *,
        transactional_id: str,
        bootstrap_servers: str | Sequence[str],
        value: Encode = "json",
        key: Callable[[Any], bytes | str | None] | None = None,
        headers: Callable[[Any], Any] | None = None,
        partition: Callable[[Any], int | None] | None = None,
        timestamps: bool = True,
        transaction_timeout: Duration = 900.0,
        client: Options | None = None,
    ) -> None:
        self._writer = KafkaWriter(
            topic, bootstrap_servers, value, key, headers, partition, timestamps, client
        )
        self._id = text("transactional_id", transactional_id)
        self._timeout_ms = duration_ms("transaction_timeout", transaction_timeout)
        self._forget_all()

    def _forget_all(self) -> None:
        self._slots: dict[int, _Slot] = {}
        self._free: list[_Slot] = []
        self._current: _Slot | None = None
        self._prepared: list[tuple[int, _Prepared]] = []  # each with its epoch, the oldest first
        self._number = 0  # of the last transaction that was begun and has become something
        self._committed = 0
        self._has_epochs = self.one_by_one = False
        self._has_row = False
        self._taken = 0
        self._sending: list[asyncio.Future[Any]] = []  # of the write under way, or the last one, of an epoch

    # ------------------------------------------------------------------ the row

    @property
    def _row_place(self) -> TopicPartition:
        from aiokafka import TopicPartition

        return TopicPartition(self._writer.topic, 0)

    async def _read_row(self) -> tuple[int, Lease | None]:
        """The number of the last transaction that is committed, 0: there is none; and whose the topic is."""
        client = self._writer.admin()
        with self._writer.naming():
            try:
                await client.start()
                found = await client.list_consumer_group_offsets(self._id, partitions=[self._row_place])
            finally:
                await client.close()
        row = found.get(self._row_place)
        if row is None or row.offset < 0:
            return 0, None
        try:
            lease = json.loads(row.metadata)["lease"]
            return row.offset, None if lease is None else Lease.from_json(lease)
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(
                f"{self._writer.what}: the group {self._id!r} is used by others; choose another "
                "transactional_id"
            ) from error

    async def _write_row(self, slot: _Slot, number: int, released: bool = False) -> None:
        """In the transaction of this slot."""
        from aiokafka.structs import OffsetAndMetadata

        lease = None if self.writer is None else self.writer.lease
        if lease is not None and released:
            lease = lease.given_back()
        about = json.dumps({"lease": None if lease is None else lease.to_text()})
        offsets = {self._row_place: OffsetAndMetadata(number, about)}
        await self._bounded(slot.producer.send_offsets_to_transaction(offsets, self._id))

    async def _bounded(self, call: Awaitable[None]) -> None:
        """The client tries again for ever; raises `TimeoutError` if it has to for too long."""
        async with answered_within(self._writer.patience):
            await call

    # ------------------------------------------------------------------ beginning

    async def open(self) -> None:
        self._forget_all()
        await self._make_slot(0)

    async def can_recover(self, position: dict[str, Any] | None) -> None:
        await self._check(position)

    async def _check(self, position: dict[str, Any] | None) -> int:
        """As `can_recover`; gives the number of the last transaction that is committed."""
        number, last = await self._read_row()
        what = f"topic {self._writer.topic!r}"
        if self.writer is not None:
            self.writer.check_follows(last, what)
        if number > _last(position) and allowed_ahead(self.writer, what) == "start_over":
            raise SinkError(
                f"{what} holds results of a later checkpoint than the one to start from, and Kafka cannot "
                "take out what is committed: write to another topic, or say ahead='allow_behind' to keep "
                "them, though they may be written a second time"
            )
        return number

    async def recover(self, position: dict[str, Any] | None) -> None:
        self._forget_all()
        self._has_epochs = self.one_by_one = True  # else all of a write, or nothing
        number = await self._check(position)
        for known in () if position is None else position["prepared"]:
            prepared = _Prepared(**known)
            if prepared.number > number:
                await self._commit_left(prepared)
        await asyncio.gather(
            *(self._make_slot(number) for number in range(_NEEDED)),
            *(self._end_left(number) for number in range(_NEEDED, _SLOTS)),
        )
        # from here on no other job can commit: what one did until now is seen
        self._number = self._committed = max(await self._check(position), _last(position))
        with self._writer.naming(broken=True):
            await self._claim(released=False)
        self._has_row = True

    async def _make_slot(self, number: int) -> _Slot:
        """Begin to use a slot: what is open there is aborted, and its last user is refused."""
        slot = self._slots[number] = _Slot(number, self._producer(number))
        await self._writer.connect(slot.producer)
        self._free.append(slot)
        return slot

    async def _end_left(self, number: int) -> None:
        """
        As for a slot that this job may never need: one before it may have, while its checkpoints failed, and
        what is open there would stand before readers until the broker's patience ends.
        """
        producer = self._producer(number)
        try:
            with self._writer.naming():
                await producer.start()
        finally:
            await _disconnected(producer)

    def _producer(self, number: int) -> AIOKafkaProducer:
        """The client of a slot; is not connected."""
        return self._writer.producer(
            transactional_id=f"{self._id}-{number}", transaction_timeout_ms=self._timeout_ms
        )

    async def _commit_left(self, prepared: _Prepared) -> None:
        """Commit what a process had prepared that is gone."""
        from aiokafka import TopicPartition

        producer = self._producer(prepared.slot)
        # in place of what the client would do at its start: ask for a new epoch, which aborts
        transaction = producer._txn_manager
        transaction.set_pid_and_epoch(prepared.producer, prepared.epoch)
        transaction.begin_transaction()
        for topic, partition in prepared.partitions:
            transaction.partitions_to_add().add(TopicPartition(topic, partition))
            transaction.partition_added(TopicPartition(topic, partition))
        transaction.consumer_group_added(self._id)
        try:
            with self._writer.naming():
                await producer.start()
                await self._bounded(producer.commit_transaction())
        except SinkError as error:
            if (await self._read_row())[0] < prepared.number:
                seconds = self._timeout_ms / 1000
                raise SinkError(
                    f"{self._writer.what}: what the checkpoint had prepared there cannot be committed any "
                    f"more ({error}). The broker gives up a transaction after "
                    f"transaction_timeout={seconds:g} s; go on from an older checkpoint (restore=), so that "
                    "its results are made again"
                ) from error
        finally:
            await _disconnected(producer)

    async def _claim(self, released: bool) -> None:
        """Write down whose the topic is, or that it is free."""
        slot = self._free[0]
        await slot.producer.begin_transaction()
        await self._write_row(slot, self._committed, released)
        await self._bounded(slot.producer.commit_transaction())

    # ------------------------------------------------------------------ writing

    @contextmanager
    def _in_epoch(self) -> Iterator[None]:
        """What fails in this block takes what was written of its epoch with it."""
        try:
            with self._writer.naming(broken=True):
                yield
        except SinkBroken as error:
            cause = error.__cause__
            if cause is None or not self._writer.is_over_records(cause):
                raise
            raise SinkBroken(
                f"{error}. It is refused with its transaction, and by each run anew: leave such elements out "
                "before the sink; or, if they are too large, give client={'max_request_size': ...} what the "
                "topic allows, so that the sink refuses each by itself"
            ) from cause

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self._taken, self._sending = 0, []
        if not self._has_epochs:
            with over_elements(self._writer.is_over_records), self._writer.naming():
                await self._write_whole(self._current or await self._begin(), values, timestamps)
            return
        with self._in_epoch():
            slot = self._current or await self._begin()
            _settle(slot.sent)
            try:
                await self._writer.send_all(slot.producer, values, timestamps, self._sending)
            finally:
                slot.sent += self._sending

    async def _write_whole(self, slot: _Slot, values: Sequence[Any], timestamps: Timestamps) -> None:
        """Write these as a transaction of their own; all of them, or none."""
        try:
            await self._writer.send_all(slot.producer, values, timestamps, slot.sent)
            await self._see_sent(slot)
        except BaseException as error:
            aborting = slot.producer.abort_transaction()
            try:
                if isinstance(error, asyncio.CancelledError):
                    # who is cancelled once more waits, too: until it is aborted, readers wait behind it
                    await carried_through(_tried(self._bounded(aborting)))
                else:
                    await _ended(self._bounded(aborting))
            finally:
                self._leave(slot)
            if self._writer.is_over_records(error):  # the broker expects the number next that it has refused
                self._free.remove(slot)
                await _disconnected(slot.producer)
                await self._make_slot(slot.number)
            raise
        cancelled = await _ended(self._bounded(slot.producer.commit_transaction()))
        self._taken = len(values)
        self._leave(slot)
        if cancelled is not None:
            raise cancelled

    async def _begin(self) -> _Slot:
        if not self._free:
            if len(self._slots) >= _SLOTS:
                raise SinkError(
                    f"{self._writer.what}: {len(self._slots)} checkpoints in a row were not committed, each "
                    "of which holds a transaction open"
                )
            await self._make_slot(len(self._slots))
        slot = self._free[0]
        await slot.producer.begin_transaction()
        self._free.remove(slot)
        self._current = slot
        return slot

    def _leave(self, slot: _Slot) -> None:
        """Its transaction has ended."""
        for future in slot.sent:
            heed_the_end(future)
        slot.sent.clear()
        self._free.append(slot)
        if self._current is slot:
            self._current = None

    async def _see_sent(self, slot: _Slot) -> None:
        """Wait until the brokers have all of an epoch."""
        await settled(slot.sent, self._writer.patience)
        _settle(slot.sent)

    def taken(self) -> int:
        return len(self._sending) if self._has_epochs else self._taken

    # ------------------------------------------------------------------ epochs

    async def prepare(self, epoch: int) -> dict[str, Any]:
        slot = self._current
        if slot is not None:
            transaction = slot.producer._txn_manager
            with self._in_epoch():
                await self._write_row(slot, self._number + 1)
                await self._see_sent(slot)
            self._number += 1
            partitions = [[one.topic, one.partition] for one in sorted(transaction.txn_partitions)]
            prepared = _Prepared(
                self._number, slot.number, transaction.producer_id, transaction.producer_epoch, partitions
            )
            self._prepared.append((epoch, prepared))
            self._current = None
        pending = [asdict(prepared) for _, prepared in self._prepared]
        return {"number": self._number, "prepared": pending}

    async def commit(self, epoch: int) -> None:
        while self._prepared and self._prepared[0][0] <= epoch:
            _, prepared = self._prepared[0]
            slot = self._slots[prepared.slot]
            with self._writer.naming(broken=True):
                await self._bounded(slot.producer.commit_transaction())
            self._committed = prepared.number
            del self._prepared[0]
            self._leave(slot)

    async def close(self) -> None:
        slots = list(self._slots.values())
        try:
            if self._current is not None and self._has_epochs:
                await _tried(self._current.producer.abort_transaction())
            if self._has_row and self._free:
                # else another job with another store waits until this process is gone
                await _tried(self._claim(released=True))
        finally:
            self._slots, self._has_row = {}, False
            for future in (future for slot in slots for future in slot.sent):
                heed_the_end(future)
            await asyncio.gather(*(_disconnected(slot.producer) for slot in slots))


def _last(position: dict[str, Any] | None) -> int:
    """The number of the last transaction that a checkpoint knows of."""
    return 0 if position is None else int(position["number"])


def _settle(sent: list[asyncio.Future[Any]]) -> None:
    """Forget what the brokers have; raises `KafkaError` if they refused something."""
    for future in sent:
        if future.done():
            future.result()
    sent[:] = [future for future in sent if not future.done()]


async def _tried(ending: Awaitable[None]) -> None:
    """Wait for what the broker does by itself sooner or later, if it does it soon."""
    with suppress(Exception):
        async with asyncio.timeout(_PATIENCE):
            await ending


async def _ended(ending: Coroutine[Any, Any, None]) -> asyncio.CancelledError | None:
    """Wait until a transaction that begins to end has ended; gives what cancelled the caller meanwhile."""
    task = asyncio.ensure_future(ending)
    cancelled = await to_its_end(task)
    task.result()
    return cancelled


async def _disconnected(producer: AIOKafkaProducer) -> None:
    """Disconnect a client, also one that cannot send what it has any more."""
    waiter = producer._txn_manager._transaction_waiter
    if waiter is not None:
        waiter.add_done_callback(heed)
    await disconnect(producer, producer.client)
