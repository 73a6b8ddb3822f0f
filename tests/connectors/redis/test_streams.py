"""Redis Streams in a pipeline: groups and their dead, acknowledgements, ids, and what errors say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from math import nan
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from asyncstream import (
    Checkpoints,
    MemoryStore,
    Pipeline,
    PipelineError,
    Restarts,
    SinkBroken,
    SinkError,
    SourceError,
)
from asyncstream.connectors import RedisGroupSource, RedisStreamSink, RedisStreamSource, RejectedMessage
from asyncstream.connectors.base import Source
from asyncstream.connectors.writer import Writer
from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.lease import Holder, Lease
from tests.connectors.refusals import check_cannot_be_read, check_cannot_be_written
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.broker


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


def add(redis: Redis, numbers: Sequence[int]) -> None:
    for number in numbers:
        redis.xadd("in", {"data": json.dumps(number)}, id=f"{number}-0")


def member(url: str, consumer: str = "a", lease: int = 1, **more: Any) -> RedisGroupSource[int]:
    source: RedisGroupSource[int] = RedisGroupSource(url, "in", group="g", consumer=consumer, **more)
    source.writer = Writer(Lease(lease, "here", Holder.here(0), 0), 3, "refuse")
    return source


async def numbers_of(source: Source[int], most: int = 1000) -> list[int]:
    found: list[int] = []
    while len(found) < most and (batch := await source.read()) is not None:
        found += batch.values
    return found


def pending(redis: Redis) -> int:
    about: Any = redis.xpending("in", "g")
    return int(about["pending"])


async def is_heard_of(redis: Redis, consumer: str) -> None:
    """Until it has just been: on a busy machine it comes to that when it can."""
    async with asyncio.timeout(60):
        while True:
            about: Any = redis.xinfo_consumers("in", "g")
            if any(one["name"] == consumer.encode() and one["idle"] < 500 for one in about):
                return
            await asyncio.sleep(0.01)


async def test_entries_are_acknowledged_when_a_checkpoint_holds_them(redis: Redis, redis_url: str) -> None:
    add(redis, range(1, 11))
    source = member(redis_url, batch=4)
    await source.open()
    await source.read()
    position = source.position()
    await source.read()
    assert pending(redis) == 8
    await source.forget(position)
    assert pending(redis) == 4
    await source.close()


async def test_a_job_acknowledges_all_in_the_end(redis: Redis, redis_url: str) -> None:
    add(redis, range(1, 11))
    pipeline, seen = Pipeline("numbers"), list[int]()
    source = RedisGroupSource[int](redis_url, "in", group="g", batch=3)
    pipeline.source(source, name="in").to(seen.append, name="out")
    async with pipeline.start(checkpoints=Checkpoints(store=MemoryStore(), every=0.02, keep=1)):
        async with asyncio.timeout(60):
            while len(seen) < 10 or pending(redis):  # noqa: ASYNC110 - what is in a server
                await asyncio.sleep(0.01)
    assert seen == list(range(1, 11))


async def test_without_checkpoints_nothing_is_pending(redis: Redis, redis_url: str) -> None:
    add(redis, range(1, 11))
    source = RedisGroupSource[int](redis_url, "in", group="g", ends=True)
    await source.open()
    assert await numbers_of(source) == list(range(1, 11))
    assert pending(redis) == 0
    await source.close()


async def test_without_checkpoints_nothing_is_lost_that_comes_as_the_job_stops(
    redis: Redis, redis_url: str
) -> None:
    add(redis, [1])
    source = RedisGroupSource[int](redis_url, "in", group="g")
    await source.open()
    assert await numbers_of(source, 1) == [1]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await source.read()
    add(redis, [2])
    async with asyncio.timeout(60):
        while not pending(redis):  # noqa: ASYNC110 - what is in a server
            await asyncio.sleep(0.01)
    await source.close()
    following = RedisGroupSource[int](redis_url, "in", group="g", ends=True)
    await following.open()
    assert await numbers_of(following) == [2]
    assert pending(redis) == 0
    await following.close()


async def test_what_could_not_be_acknowledged_is_the_next_time(redis: Redis, redis_url: str) -> None:
    add(redis, range(1, 4))
    source = member(redis_url)
    await source.open()
    await source.read()
    redis.rename("in", "elsewhere")
    redis.set("in", "no stream")
    with pytest.raises(SourceError, match="cannot acknowledge entries of stream 'in'"):
        await source.forget(source.position())
    redis.rename("elsewhere", "in")
    await source.forget(source.position())
    assert pending(redis) == 0
    await source.close()


@pytest.mark.parametrize("reads", [1, 2, 3])
async def test_what_the_dead_had_is_claimed_and_held_by_positions(
    redis: Redis, redis_url: str, reads: int
) -> None:
    add(redis, range(1, 11))
    dead = member(redis_url, "dead", batch=4)
    await dead.open()
    await dead.read()
    await dead.close()
    first = member(redis_url, "alive", batch=3)
    await first.open()
    assert await numbers_of(first, 3) == [5, 6, 7]
    await first.close()
    await asyncio.sleep(0.25)  # until the server says that nothing was heard for so long
    alive = member(redis_url, "alive", lease=2, batch=3, dead_after=0.2, ends=True)
    await alive.open()
    await alive.seek(first.position())
    assert not alive.started_over
    seen: list[int] = []
    for _ in range(reads):
        batch = await alive.read()
        assert batch is not None
        seen += batch.values
    position = alive.position()
    assert len(position["claimed"]) == min(len(seen), 4)
    rest = await numbers_of(alive)
    assert seen + rest == [1, 2, 3, 4, 8, 9, 10]
    await alive.close()
    # a crash: the next run reads what came behind the position, and that only
    again = member(redis_url, "alive", lease=3, batch=3, ends=True)
    await again.open()
    await again.seek(position)
    assert again.started_over  # what was claimed came last
    assert await numbers_of(again) == rest
    await again.forget(again.position())
    assert pending(redis) == 0
    await again.close()


@pytest.mark.parametrize("is_dead", [False, True])
async def test_where_others_have_taken_over_other_entries_come_than_before(
    redis: Redis, redis_url: str, is_dead: bool
) -> None:
    add(redis, range(1, 11))
    first = member(redis_url, "first", batch=4)
    await first.open()
    await first.read()
    position = first.position()
    await first.read()
    await first.close()
    if is_dead:
        await asyncio.sleep(0.25)  # until the server says that nothing was heard for so long
    other = member(redis_url, "other", dead_after=0.2 if is_dead else 60, ends=True)
    await other.open()
    found = await numbers_of(other)
    assert len(found) == (10 if is_dead else 2)
    again = member(redis_url, "first", lease=2)
    await again.open()
    await again.seek(position)
    assert again.started_over is is_dead
    for source in (other, again):
        await source.close()


async def test_what_several_had_that_are_dead_comes_in_order(redis: Redis, redis_url: str) -> None:
    add(redis, range(1, 7))
    first = member(redis_url)
    await first.open()
    for consumer in ("z", "y"):  # the server names them the other way round
        redis.xreadgroup("g", consumer, {"in": ">"}, count=3)
    await first.close()
    await asyncio.sleep(0.1)  # until the server says that nothing was heard for so long
    alive = member(redis_url, dead_after=0.05)
    await alive.open()
    assert await numbers_of(alive, 6) == [1, 2, 3, 4, 5, 6]
    position = alive.position()
    await alive.close()
    again = member(redis_url, lease=2, ends=True)
    await again.open()
    await again.seek(position)
    assert await numbers_of(again) == []
    await again.close()


async def test_what_is_forgotten_while_a_run_begins_is_acknowledged_all_the_same(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(redis, range(1, 7))
    redis.xgroup_create("in", "g", "0")
    redis.xreadgroup("g", "a.1", {"in": ">"})
    redis.xclaim("in", "g", "a.2", 0, ["1-0", "2-0", "3-0"])  # as far as that run came, before it crashed
    source = member(redis_url, lease=3, ends=True)
    await source.open()
    await source.seek({"run": 1, "read": "6-0", "claimed": []})
    client, pending_of, has_adopted = source._opened(), source._pending, asyncio.Event()
    acknowledge = client.xack
    forgetting: list[asyncio.Task[None]] = []

    async def slow(*args: Any) -> None:
        await has_adopted.wait()
        await acknowledge(*args)

    async def pending_then(redis: Any, name: bytes) -> list[bytes]:
        if name == b"a.2":
            old = {"run": 1, "read": "5-0", "claimed": []}
            forgetting.append(asyncio.create_task(source.forget(old)))
        return await pending_of(redis, name)

    monkeypatch.setattr(client, "xack", slow)
    monkeypatch.setattr(source, "_pending", pending_then)
    assert await source.read() is None
    has_adopted.set()
    await forgetting[0]
    await source.forget(source.position())
    assert pending(redis) == 0
    await source.close()


async def test_a_member_whose_name_is_no_text_disturbs_no_other(redis: Redis, redis_url: str) -> None:
    add(redis, [1, 2])
    redis.xgroup_create("in", "g", "0")
    stranger: Any = b"\xff.1"
    redis.xreadgroup("g", stranger, {"in": ">"}, count=1)
    source = member(redis_url, ends=True)
    await source.open()
    assert await numbers_of(source) == [2]
    await source.close()


async def test_what_a_process_takes_when_it_wakes_up_is_not_lost(redis: Redis, redis_url: str) -> None:
    add(redis, range(1, 5))
    old = member(redis_url, batch=2)
    await old.open()
    assert await numbers_of(old, 2) == [1, 2]
    held = old.position()
    new = member(redis_url, lease=2, batch=2)
    await new.open()
    await new.seek(held)
    assert await numbers_of(new, 2) == [3, 4]
    add(redis, [5, 6])
    assert await numbers_of(old, 2) == [5, 6]  # it was stopped, and does not know that it was followed
    add(redis, [7])
    assert await numbers_of(new, 1) == [7]
    held = new.position()
    for source in (old, new):
        await source.close()
    last = member(redis_url, lease=3, ends=True)
    await last.open()
    await last.seek(held)
    assert await numbers_of(last) == [5, 6]
    await last.forget(last.position())
    assert pending(redis) == 0
    await last.close()


async def test_a_consumer_is_heard_of_while_nobody_reads(redis: Redis, redis_url: str) -> None:
    add(redis, range(1, 5))
    slow, other = (
        member(redis_url, "slow", dead_after=2),
        member(redis_url, "other", dead_after=2, ends=True),
    )
    for source in (slow, other):
        await source.open()
    await slow.read()
    await asyncio.sleep(3)  # longer than the dead are silent
    await is_heard_of(redis, "slow.1")
    assert await numbers_of(other) == []
    for source in (slow, other):
        await source.close()


@pytest.mark.parametrize("kind", ["source", "sink"])
async def test_who_is_cancelled_while_it_opens_ends_so(redis: Redis, redis_url: str, kind: str) -> None:
    """By Python 3.11 the client goes on if it is cancelled while it sends."""
    for turns in range(1, 40):
        opened: Any = RedisStreamSink(redis_url, "out")
        if kind == "source":
            opened = RedisStreamSource(redis_url, "in")
        opening = asyncio.ensure_future(opened.open())
        for _ in range(turns):
            await asyncio.sleep(0)
        if opening.cancel():
            async with asyncio.timeout(60):
                await asyncio.wait({opening})
            assert opening.cancelled(), f"after {turns} turns"
        await opened.close()


async def test_with_ids_a_repeat_is_not_doubled(redis: Redis, redis_url: str) -> None:
    sink = RedisStreamSink(redis_url, "out", id="n")
    rows = [{"n": n} for n in range(5)]
    await sink.open()
    await sink.write(rows[:3], None)
    await sink.write(rows[1:], None)
    await sink.close()
    found: Any = redis.xrange("out")
    assert [json.loads(fields[b"data"]) for _, fields in found] == rows


@pytest.mark.parametrize("nothing", [None, "", nan])
async def test_an_element_without_an_id_is_refused(nothing: Any, redis: Redis, redis_url: str) -> None:
    sink = RedisStreamSink(redis_url, "out", id="id")
    await sink.open()
    with pytest.raises(SinkError, match=f"it has no id=, but {nothing!r}"):
        await sink.write([{"id": nothing}], None)
    await sink.close()


async def test_ids_are_forgotten_in_time(redis: Redis, redis_url: str) -> None:
    sink = RedisStreamSink(redis_url, "out", id="n", remember=0.05)
    await sink.open()
    await sink.write([{"n": 1}], None)
    await asyncio.sleep(0.1)
    await sink.write([{"n": 2}], None)
    assert redis.zrange("{out}:ids", 0, -1) == [b"2"]
    await sink.write([{"n": 1}], None)
    assert redis.xlen("out") == 3
    await sink.close()


@pytest.mark.parametrize("id", [None, "n"])
async def test_a_server_without_memory_is_not_written_to(redis: Redis, redis_url: str, id: Any) -> None:
    sink = RedisStreamSink(redis_url, "out", id=id)
    await sink.open()
    redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(SinkBroken, match="used memory"):
            await sink.write([{"n": 1}, {"n": 2}], None)
    finally:
        redis.config_set("maxmemory", 0)
    await sink.write([{"n": 1}, {"n": 2}], None)
    assert redis.xlen("out") == 2
    await sink.close()


async def test_a_time_that_is_longer_than_times_are_is_the_longest(redis: Redis, redis_url: str) -> None:
    redis.xadd("s", {"data": "1"}, id="18446744073709551615-0")
    source = RedisStreamSource[Any](redis_url, "s", ends=True)
    await source.open()
    batch = await source.read()
    assert batch is not None
    assert batch.timestamps == [MAX_TIMESTAMP]
    await source.close()


async def test_entries_of_many_fields(redis: Redis, redis_url: str) -> None:
    element = {"name": "Ada", "born": 1815, "of": ["analysis"]}
    for id in (None, "name"):
        sink = RedisStreamSink(redis_url, "out", field=None, longest=100, id=id)
        await sink.open()
        await sink.write([element], None)
        await sink.close()
    source = RedisStreamSource[Any](redis_url, "out", field=None, ends=True)
    await source.open()
    batch = await source.read()
    assert batch is not None
    assert batch.values == [{"name": "Ada", "born": "1815", "of": '["analysis"]'}] * 2
    assert batch.timestamps is not None
    assert all(timestamp is not None and timestamp > 10**12 for timestamp in batch.timestamps)
    await source.close()


async def test_what_is_no_element_is_rejected_or_fails(redis: Redis, redis_url: str) -> None:
    add(redis, [1])
    redis.xadd("in", {"data": "{"}, id="2-0")
    redis.xadd("in", {"other": "3"}, id="3-0")
    add(redis, [4])
    source = RedisStreamSource[int](redis_url, "in", on_malformed="reject", ends=True)
    await source.open()
    batch = await source.read()
    assert batch is not None
    assert list(batch.values) == [1, 4]
    first, second = batch.rejected
    assert isinstance(first, RejectedMessage)
    assert (first.id, first.value) == ("2-0", {b"data": b"{"})
    assert second.reason == "it has no field 'data'; there are: 'other'"
    await source.close()
    strict = RedisStreamSource[int](redis_url, "in", ends=True)
    await strict.open()
    batch = await strict.read()
    assert batch is not None
    assert batch.values == [1]
    assert strict.position() == {"id": "1-0", "number": 1}
    with pytest.raises(SourceError, match=r"stream 'in' of Redis at 127.0.0.1:\d+/0, 2-0: it cannot be read"):
        await strict.read()
    await strict.close()


async def test_a_stream_that_was_trimmed_is_refused(redis: Redis, redis_url: str) -> None:
    add(redis, range(1, 6))
    redis.xtrim("in", minid="4-0", approximate=False)
    source = RedisStreamSource[int](redis_url, "in", ends=True)
    await source.open()
    with pytest.raises(SourceError, match="entries behind it were trimmed"):
        await source.seek({"id": "2-0", "number": 2})
    with pytest.raises(SourceError, match="is it the same stream"):
        await source.seek({"id": "9-0", "number": 9})
    await source.close()
    lenient = RedisStreamSource[int](redis_url, "in", ends=True, if_trimmed="go_on")
    await lenient.open()
    await lenient.seek({"id": "2-0", "number": 2})
    assert await numbers_of(lenient) == [4, 5]
    await lenient.seek({"id": "3-0", "number": 3})  # behind which nothing is missing
    assert await numbers_of(lenient) == [4, 5]
    await lenient.close()


async def test_a_server_that_does_not_count_entries_is_refused(
    redis: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(redis, [1])
    asked = AsyncRedis.xinfo_stream

    async def of_version_6(self: Any, *args: Any) -> Any:
        about: Any = await asked(self, *args)
        return {name: value for name, value in about.items() if name != "entries-added"}

    monkeypatch.setattr(AsyncRedis, "xinfo_stream", of_version_6)
    source = RedisStreamSource[int](redis_url, "in")
    for call in (source.open(), source.can_seek({"id": "0-0", "number": 0})):
        with pytest.raises(SourceError, match=r"cannot read stream 'in' of Redis .* from version 7 on"):
            await call
    await source.close()


async def test_what_is_trimmed_before_it_is_read_is_missed_by_nobody_unseen(
    redis: Redis, redis_url: str
) -> None:
    add(redis, range(1, 11))
    strict = RedisStreamSource[int](redis_url, "in", ends=True, batch=2)
    lenient = RedisStreamSource[int](redis_url, "in", ends=True, batch=2, if_trimmed="go_on")
    for source in (strict, lenient):
        await source.open()
        assert await source.read() is not None
    redis.xtrim("in", minid="5-0", approximate=False)
    with pytest.raises(SourceError, match=r"cannot go on behind entry 2-0 .* entries behind it were trimmed"):
        await strict.read()
    assert await numbers_of(lenient) == [5, 6, 7, 8, 9, 10]
    for source in (strict, lenient):
        await source.close()


async def test_what_is_added_and_trimmed_at_once_is_missed_by_nobody_unseen(
    redis: Redis, redis_url: str
) -> None:
    add(redis, [1])
    source = RedisStreamSource[int](redis_url, "in")
    await source.open()
    assert await numbers_of(source, 1) == [1]
    waiting = asyncio.ensure_future(source.read())
    async with asyncio.timeout(60):
        while not any(client["cmd"] == "xread" for client in redis.client_list()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    with redis.pipeline(transaction=True) as pipeline:
        for number in range(2, 6):
            pipeline.xadd("in", {"data": number}, id=f"{number}-0", maxlen=2, approximate=False)
        pipeline.execute()
    with pytest.raises(SourceError, match=r"cannot go on behind entry 1-0 .* entries behind it were trimmed"):
        await waiting
    await source.close()


@pytest.mark.parametrize("more", [2, 4])
async def test_a_stream_that_was_made_anew_is_refused(redis: Redis, redis_url: str, more: int) -> None:
    add(redis, range(1, 4))
    source = RedisStreamSource[int](redis_url, "in", batch=3)
    await source.open()
    await source.read()
    position = source.position()
    redis.delete("in")  # as by a restart of a Redis that keeps nothing
    add(redis, range(10, 10 + more))
    with pytest.raises(SourceError, match="the stream was made anew"):
        await source.can_seek(position)
    with pytest.raises(SourceError, match="the stream was made anew"):
        await source.read()
    await source.close()
    lenient = RedisStreamSource[int](redis_url, "in", ends=True, if_trimmed="go_on")
    await lenient.open()
    await lenient.seek(position)
    assert await numbers_of(lenient) == list(range(10, 10 + more))
    await lenient.close()


@pytest.mark.parametrize("start", ["first", "next"])
@pytest.mark.parametrize("with_stream", [False, True])
async def test_a_group_that_is_gone_is_not_begun_anew(
    redis: Redis, redis_url: str, start: str, with_stream: bool
) -> None:
    add(redis, [1])
    pipeline, seen, store = Pipeline("numbers"), list[int](), MemoryStore()
    pipeline.source(member(redis_url, start=start), name="in").to(seen.append, name="out")
    async with asyncio.timeout(60), pipeline.start(checkpoints=Checkpoints(store=store, every=60)) as job:
        add(redis, [2])
        while 2 not in seen:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await job.stop()
    redis.delete("in") if with_stream else redis.xgroup_destroy("in", "g")
    add(redis, [3])
    for _ in range(2):  # which is no way around it
        with pytest.raises(SourceError, match=r"group 'g' is not there any more.*XGROUP CREATE in g 2-0"):
            await pipeline.run(checkpoints=Checkpoints(store=store, every=60))
    redis.xgroup_create("in", "g", "2-0")
    pipeline, before = Pipeline("numbers"), list(seen)
    pipeline.source(member(redis_url, ends=True, start=start), name="in").to(seen.append, name="out")
    await pipeline.run(checkpoints=Checkpoints(store=store, every=60))
    assert seen == [*before, 3]


async def test_what_a_group_misses_is_told_of_once(
    redis: Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    add(redis, range(1, 11))
    source = member(redis_url, batch=3)

    async def read_on() -> list[int]:
        source._look_for_dead = 0.0  # as after a while
        batch = await source.read()
        return [] if batch is None else list(batch.values)

    def told() -> list[str]:
        found = [record.getMessage() for record in caplog.records if "has missed" in record.getMessage()]
        caplog.clear()
        return found

    await source.open()
    assert await read_on() == [1, 2, 3]
    redis.xtrim("in", maxlen=4, approximate=False)
    assert await read_on() == [7, 8, 9]
    assert await read_on() == [10]
    [one] = told()
    assert "has missed 3 entries since it was made" in one
    redis.xtrim("in", maxlen=0, approximate=False)  # all were read
    add(redis, [11, 12])
    assert await read_on() == [11, 12]
    assert told() == []
    with redis.pipeline() as both:
        for number in range(13, 17):
            both.xadd("in", {"data": json.dumps(number)}, id=f"{number}-0")
        both.xtrim("in", maxlen=2, approximate=False)
        both.execute()
    assert await read_on() == [15, 16]
    [one] = told()
    assert "has missed 5 entries" in one
    await source.close()


async def test_a_member_needs_no_right_to_transactions(redis: Redis, redis_url: str) -> None:
    add(redis, [1, 2])
    rights = ["+@read", "+@write", "+@scripting", "+@connection"]
    redis.acl_setuser("member", enabled=True, passwords=["+p"], keys=["*"], categories=rights)
    source = member(redis_url.replace("://", "://member:p@"), ends=True)
    try:
        await source.open()
        assert await numbers_of(source) == [1, 2]
        await source.close()
    finally:
        redis.acl_deluser("member")


@pytest.mark.parametrize("says", [[], [(None, None), (None, None)]], ids=["", "by a server before version 7"])
async def test_what_is_trimmed_while_its_member_is_away_is_told_of(
    redis: Redis, redis_url: str, caplog: pytest.LogCaptureFixture, says: list[Any]
) -> None:
    add(redis, range(1, 11))
    source = member(redis_url, batch=4)
    await source.open()
    position = source.position()
    await source.read()
    await source.close()
    redis.xtrim("in", maxlen=8, approximate=False)
    following = member(redis_url, lease=2, ends=True)
    await following.open()
    await following.seek(position)
    client = following._opened()
    claim = client.xclaim

    async def claimed(*arguments: Any, **options: Any) -> Any:
        found = await claim(*arguments, **options)
        return found if options.get("justid") else [*says, *found]

    client.xclaim = claimed
    assert await numbers_of(following) == list(range(3, 11))
    await following.forget(following.position())
    assert "2 entries of stream 'in' of" in caplog.text
    assert "came no more" in caplog.text
    await following.close()


async def test_members_of_one_name_are_told_of(
    redis: Redis, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    def opened(name: str) -> RedisGroupSource[int]:
        return RedisGroupSource(redis_url, "in", group="g", consumer=name, batch=1, dead_after=3600)

    add(redis, range(1, 11))
    gone = opened("a")  # an earlier run, just now
    await gone.open()
    await gone.read()
    await gone.close()
    first, other = opened("a"), opened("b")
    for source in (first, other):
        await source.open()
        await source.read()
        source._look_for_dead = 0.0  # as after a while
        await source.read()
    assert "goes by consumer=" not in caplog.text
    second = opened("a")
    await second.open()
    await second.read()
    second._opened_at -= 1
    await first._show()
    second._look_for_dead = 0.0
    second._again.clear()
    await second.read()
    assert caplog.text.count("another member of group 'g' of") == 1
    assert "goes by consumer='a'" in caplog.text
    for source in (first, second, other):
        await source.close()


async def test_what_is_trimmed_when_it_was_read_is_missed_by_nobody(redis: Redis, redis_url: str) -> None:
    add(redis, range(1, 6))
    source = RedisStreamSource[int](redis_url, "in", ends=True, batch=2)
    await source.open()
    assert await source.read() is not None
    redis.xdel("in", "3-0")
    assert await numbers_of(source) == [4, 5]
    add(redis, range(6, 8))
    redis.xtrim("in", minid="6-0", approximate=False)
    assert await numbers_of(source) == [6, 7]
    redis.delete("in")
    with pytest.raises(SourceError, match="there is no stream 'in' of Redis"):
        await source.read()
    await source.close()


async def test_a_source_may_begin_with_what_comes_next(redis: Redis, redis_url: str) -> None:
    add(redis, [1, 2])
    for source in (
        RedisStreamSource[int](redis_url, "in", start="next", ends=True),
        RedisGroupSource[int](redis_url, "in", group="later", start="next", ends=True),
    ):
        await source.open()
        assert await source.read() is None
        await source.close()


async def test_wrong_settings_are_told_of(redis: Redis, redis_url: str) -> None:
    redis.set("text", "no stream")
    commands = ["+ping", "+exists", "+type"]
    redis.acl_setuser("guest", enabled=True, passwords=["+secret"], keys=["*"], commands=commands)
    guest = redis_url.replace("redis://", "redis://guest:secret@")
    away = "redis://:secret@127.0.0.1:1/0"
    for source, says in (
        (
            RedisStreamSource[int](redis_url, "lacking"),
            "there is no stream 'lacking' of Redis at 127",
        ),
        (RedisGroupSource[int](redis_url, "lacking", group="g"), "there is no stream 'lacking'"),
        (RedisStreamSource[int](redis_url, "text"), "cannot read stream 'text' of .*WRONGTYPE"),
        (RedisStreamSource[int](guest, "text"), "no permissions"),
        (RedisStreamSource[int](away, "in"), "cannot read stream 'in' of Redis at 127.0.0.1:1/0"),
    ):
        await check_cannot_be_read(source, says)
    for sink, says in (
        (RedisStreamSink(redis_url, "text"), "stream 'text' of .* is no stream, but a string"),
        (RedisStreamSink(guest, "new"), "cannot write to stream 'new' .*no permissions"),
        (RedisStreamSink(redis_url, "new", encode="bytes"), "cannot write 1 to .*expected bytes"),
        (RedisStreamSink(redis_url, "new", id="n"), "cannot write 1 to stream 'new'"),
    ):
        await check_cannot_be_written(sink, says)


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_stream_that_is_quiet_is_no_server_that_is_silent(
    redis: Redis, redis_url: str, group: str | None
) -> None:
    url = f"{redis_url}?socket_timeout=1"
    log = RedisStreamSource[int](url, "in")
    source = log if group is None else RedisGroupSource[int](url, "in", group=group, dead_after=0.002)
    add(redis, [1])
    await source.open()
    assert await numbers_of(source, 1) == [1]
    reading = asyncio.ensure_future(source.read())
    await asyncio.wait({reading}, timeout=1.5)  # longer than an answer may take
    assert not reading.done()
    add(redis, [2])
    batch = await asyncio.wait_for(reading, 60)
    assert batch is not None
    assert batch.values == [2]
    await source.close()


async def test_a_server_that_comes_back_is_gone_on_with(redis_server: RedisServer, redis: Redis) -> None:
    add(redis, [1])
    pipeline, seen = Pipeline("numbers"), list[int]()
    pipeline.source(RedisStreamSource[int](redis_server.url, "in"), name="in").to(seen.append, name="out")
    restarts = Restarts(attempts=1000, backoff=0.05, longest=0.05)
    running = asyncio.ensure_future(
        pipeline.run(checkpoints=Checkpoints(store=MemoryStore(), every=60), restart=restarts)
    )
    async with asyncio.timeout(60):
        while not seen:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        redis_server.kill()
        await asyncio.sleep(0.2)
        redis_server.start()  # which has nothing on the disk
        add(redis, [1, 2])
        while 2 not in seen:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"url": "nonsense"}, "url: expected the address of a Redis"),
        ({"decode": "xml"}, "decode: expected 'json', 'bytes', 'text' or a function"),
        ({"field": None, "decode": "text"}, "decode: expected nothing where field=None"),
        ({"start": "last"}, "start: expected one of 'first', 'next'"),
    ],
)
def test_wrong_arguments_are_refused(more: dict[str, Any], says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        RedisStreamSource(**{"url": "redis://localhost", "stream": "in", **more})


async def test_an_id_is_remembered_of_what_was_added_and_not_of_what_failed(
    redis: Redis, redis_url: str
) -> None:
    sink = RedisStreamSink(redis_url, "out", field=None, id="n")
    await sink.open()
    redis.set("out", "no stream")
    with pytest.raises(SinkBroken, match="WRONGTYPE"):
        await sink.write([{"n": 1}], None)
    redis.delete("out")
    await sink.write([{"n": 1}, {"n": 1}], None)
    assert redis.xlen("out") == 1
    with pytest.raises(SinkError, match="4001 fields are too many") as raised:
        await sink.write([{"n": 2} | {f"f{number}": number for number in range(4000)}], None)
    assert not isinstance(raised.value, SinkBroken)
    with pytest.raises(SinkError, match=r"expected names of columns, got 1$"):
        await sink.write([{"n": 2, 1: 2}], None)
    await sink.write([{"n": 2} | {f"f{number}": number for number in range(3899)}], None)
    assert redis.xlen("out") == 2
    await sink.close()
