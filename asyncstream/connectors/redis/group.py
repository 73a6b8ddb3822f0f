"""
A stream of Redis read as a member of a consumer group: its members share the entries.

Theory of operation
-------------------
The server hands each entry to one consumer and keeps it *pending* for that one until it is acknowledged. An
entry is acknowledged when no checkpoint is kept that does not hold it. After a crash, pending entries are of
two kinds: those in the checkpoint, which must not be read a second time, and those behind it, which must.

Each run of a job is a consumer of its own, `<consumer>.<number of its lease>`, or a number by chance in a job
without checkpoints, so that a process which was stopped, and wakes up after it was followed, takes nothing
under the name of its follower. New entries come in the order of their ids, so of what this consumer has, a
checkpoint *holds* all up to `read`. What is taken from others comes in any order, and goes to a second
consumer, `<...>.claimed`; those of its entries that are held are in the position one by one. A position is::

    run        the number of the run that read them
    read       the id of the last entry that came in order
    claimed    ids of entries that were claimed and not acknowledged

A run that begins makes the pending entries of earlier runs its own. Of a run from `run` on those are held
that the position says; of runs before it nothing is, for that one had taken over all there was: what they
have taken since they took when they woke up.

A consumer that is not heard of for a while is dead, and others claim what it had.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final, Literal, TypeVar

from asyncstream.connectors.message_source import OLDER
from asyncstream.connectors.messages import Decode
from asyncstream.connectors.redis.connection import Client, Entry, id_of
from asyncstream.connectors.redis.source import FIRST, RedisSource, entries_of
from asyncstream.errors import SourceError
from asyncstream.validation import Duration, choice, duration_ms, text

__all__ = ("RedisGroupSource",)

T = TypeVar("T")

_log = logging.getLogger("asyncstream.connectors.redis")

_PART: Final = 1000
"""Entries that are acknowledged, or change hands, in one command."""

_LAST: Final = f"{2**63}-0"
"""No entry has a larger id: who asks for pending ones behind it is given none, and is heard of."""

_MARGIN: Final = 100
"""Milliseconds by which the server may be wrong about when it has heard of a consumer."""

_LEAVE: Final = """
local pending = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if #pending == 0 then redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2]) end
"""
"""Forgets a consumer that has nothing pending: what it has would be lost with it."""


class RedisGroupSource(RedisSource[T]):
    """
    Reads a stream as a member of a consumer group; acknowledges an entry when a checkpoint holds it.

    A job that goes on after a crash neither misses an entry nor reads one twice. Only what a member had that
    was away for longer than `dead_after` is read by others, and a second time if it was in a checkpoint of
    that member. Without checkpoints, entries are acknowledged when the next are read. Timestamps are those of
    the ids. Members share the stream, so its order is kept within each of them. A group that is gone, with
    the stream or without it, is not gone on with. Entries that are trimmed before they are read are missed; a
    warning says so where the server can tell (`XINFO GROUPS`), looked for three times in `dead_after`.

    Args:
        url, stream, field, decode, on_malformed, ends, batch: as for `RedisStreamSource`.
        group: the name of the group; made if it is not there.
        consumer: the name of this member, the same after a restart and of no other: one that starts reads
            what those of its name have under way. Where another one is heard of, a warning says so.
        start: where a new group begins: at the "first" entry, or with the "next" one that is added.
        dead_after: after which time a member that is not heard of is dead: a `timedelta` or seconds; more
            than a restart takes.
    """

    needs_writer = True

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        group: str,
        consumer: str = "asyncstream",
        field: str | None = "data",
        decode: Decode = "json",
        start: Literal["first", "next"] = "first",
        dead_after: Duration = 60.0,
        on_malformed: Literal["fail", "reject"] = "fail",
        ends: bool = False,
        batch: int = 1000,
    ) -> None:
        super().__init__(url, stream, field, decode, on_malformed, ends, batch)
        self._group = text("group", group)
        self._consumer = text("consumer", consumer)
        self._family = re.compile(re.escape(self._consumer.encode()) + rb"\.(\d+)(\.claimed)?")
        self._start = "0" if choice("start", start, ("first", "next")) == "first" else "$"
        self._dead_ms = duration_ms("dead_after", dead_after)
        self._block_ms = max(1, min(self._block_ms, self._dead_ms // 4))  # 0 would be for ever
        self._begin(0)

    def _begin(self, run: int) -> None:
        self._run = run
        self._name = f"{self._consumer}.{run}"
        self._claimer = f"{self._name}.claimed"
        self._base: dict[str, Any] = {"run": run, "read": FIRST.decode(), "claimed": []}
        self._has_adopted = False
        self._read = FIRST
        self._unacknowledged: deque[bytes] = deque()  # of those that came in order
        self._claimed: set[bytes] = set()  # of the others
        self._again: deque[bytes] = deque()  # that are to be read, though they are pending
        self._gives_claimed = False  # what was fetched last came out of order
        self._opened_at = 0.0  # by the loop's time
        self._look_for_dead = 0.0
        self._missed = 0  # entries that no member has read, as was seen last
        self._is_alone = True  # no other member of its name was heard of

    async def open(self) -> None:
        from redis.exceptions import ResponseError

        await super().open()
        by_chance = int.from_bytes(os.urandom(6))
        self._begin(by_chance if self.writer is None else self.writer.lease.number)
        if self.writer is None:
            self._base["run"] = 0  # nothing is held of any run
        self._opened_at = asyncio.get_running_loop().time()
        redis = self._opened()
        with self._naming():
            if not await redis.exists(self._stream):
                raise SourceError(f"there is no {self._what}")
            try:
                await redis.xgroup_create(self._stream, self._group, self._start)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise
        self._show_every(self._dead_ms / 4000, self._show)

    async def _show(self) -> None:
        """Be heard of."""
        redis = self._opened()
        with self._naming():
            for name in (self._name, self._claimer):
                await redis.xreadgroup(self._group, name, {self._stream: _LAST}, count=1)

    # ------------------------------------------------------------------ reading

    async def _fetch(self) -> Sequence[Entry]:
        redis = self._opened()
        if not self._has_adopted:
            await self._adopt(redis)
        while True:
            await self._look_at_others(redis)
            while self._again:
                if entries := await self._take_again(redis):
                    return entries
            block = None if self._ends else self._block_ms
            found = await redis.xreadgroup(
                self._group, self._name, {self._stream: ">"}, count=self._batch, block=block
            )
            entries, self._gives_claimed = entries_of(found), False
            if entries or self._ends:
                return entries

    def _taken(self, entries: Sequence[Entry]) -> None:
        ids = [id for id, _ in entries]
        if self._gives_claimed:
            self._claimed.update(ids)
            return
        self._read = ids[-1]
        self._unacknowledged.extend(ids)

    async def _take_again(self, redis: Client) -> list[Entry]:
        """The next of the entries that are pending, and to be read; none if they were deleted."""
        read = id_of(self._read)
        self._gives_claimed = id_of(self._again[0]) <= read
        part: list[bytes] = []
        while self._again and len(part) < self._batch:
            if (id_of(self._again[0]) <= read) != self._gives_claimed:
                break
            part.append(self._again.popleft())
        name = self._claimer if self._gives_claimed else self._name
        claimed = await redis.xclaim(self._stream, self._group, name, 0, part)
        found = [entry for entry in claimed if entry[0] is not None]  # of one that is gone, before version 7
        if gone := len(part) - len(found):
            _log.warning(
                "%d entries of %s that were under way when a member of group %r ended came no more: they "
                "were trimmed or deleted, or another one has done with them",
                *(gone, self._what, self._group),
            )
        return found

    # ------------------------------------------------------------------ what is pending

    async def _adopt(self, redis: Client) -> None:
        """Make what earlier runs have pending this one's own; see what is held, and what to read again."""
        read, claimed = id_of(self._base["read"]), {id.encode() for id in self._base["claimed"]}
        again: list[bytes] = []
        for about in await redis.xinfo_consumers(self._stream, self._group):
            matched = self._family.fullmatch(about["name"])  # of others, it may be no text
            if matched is None:
                continue
            pending = await self._pending(redis, about["name"])
            held: list[bytes] = []
            if int(matched[1]) >= self._base["run"]:
                held = [id for id in pending if (id in claimed if matched[2] else id_of(id) <= read)]
            again += set(pending).difference(held)
            name = self._claimer if matched[2] else self._name
            for part in _parts(held):
                await redis.xclaim(self._stream, self._group, name, 0, part, justid=True)
            if matched[2]:
                self._claimed.update(held)
            else:
                self._unacknowledged.extend(held)
        self._unacknowledged = deque(sorted(self._unacknowledged, key=id_of))
        self._again = deque(sorted(again, key=id_of))
        self._has_adopted = True

    async def _pending(self, redis: Client, name: bytes) -> list[bytes]:
        """The ids of all entries that a consumer has pending."""
        found: list[bytes] = []
        start: bytes = b"-"
        while True:
            page = await redis.xpending_range(
                self._stream, self._group, min=start, max="+", count=_PART, consumername=name
            )
            found += [entry["message_id"] for entry in page]
            if len(page) < _PART:
                return found
            start = b"(" + found[-1]

    async def _look_at_others(self, redis: Client) -> None:
        """Claim, now and then, what consumers have pending that are dead."""
        now = asyncio.get_running_loop().time()
        if now < self._look_for_dead or self._again:
            return
        self._look_for_dead = now + self._dead_ms / 3000
        await self._look_for_missed(redis)
        own = (self._name.encode(), self._claimer.encode())
        for about in await redis.xinfo_consumers(self._stream, self._group):
            if about["name"] in own:
                continue
            if about["idle"] < self._dead_ms:
                self._look_at_name(about, (now - self._opened_at) * 1000)
                continue
            pending = await self._pending(redis, about["name"]) if about["pending"] else []
            for part in _parts(pending):
                # who is quicker has it: then it is no longer pending for so long
                self._again += await redis.xclaim(
                    self._stream, self._group, self._claimer, self._dead_ms, part, justid=True
                )
            await redis.eval(_LEAVE, 1, self._stream, self._group, about["name"])
        self._again = deque(sorted(self._again, key=id_of))  # those behind `read` come in order from here on

    def _look_at_name(self, about: dict[str, Any], open_ms: float) -> None:
        """Say it once if a consumer that is heard of goes by the name of this one."""
        if self._is_alone and about["idle"] + _MARGIN < open_ms and self._family.fullmatch(about["name"]):
            self._is_alone = False
            _log.warning(
                "another member of group %r of %s goes by consumer=%r: what it has under way this one has "
                "read, too; give each a name of its own",
                *(self._group, self._what, self._consumer),
            )

    async def _look_for_missed(self, redis: Client) -> None:
        """Say it if entries are gone that no member had read, as far as can be told at this moment."""
        # a transaction takes a right of its own; what others read between the two is no miss
        async with redis.pipeline(transaction=False) as both:
            about, groups = await both.xinfo_stream(self._stream).xinfo_groups(self._stream).execute()
        group = next((one for one in groups if one["name"] == self._group.encode()), None)
        if group is None or group.get("entries-read") is None:  # the server has lost count
            return
        first, last = about["first-entry"], group["last-delivered-id"]
        if last == about["last-generated-id"]:
            unread = 0
        elif first is None or id_of(first[0]) > id_of(last):
            unread = about["length"]
        else:  # it is not known how many of those there are
            return
        missed = about["entries-added"] - group["entries-read"] - unread
        if missed > self._missed:
            _log.warning(
                "group %r of %s has missed %d entries since it was made: they were trimmed or deleted before "
                "a member had read them",
                *(self._group, self._what, missed),
            )
        self._missed = missed

    # ------------------------------------------------------------------ positions

    def position(self) -> dict[str, Any]:
        if not self._has_adopted:
            return self._base
        claimed = sorted(id.decode() for id in self._claimed)
        return {"run": self._run, "read": self._read.decode(), "claimed": claimed}

    async def _check(self, client: Client, position: dict[str, Any]) -> None:
        """Refuse a position that this stream has not had, or whose group is gone: it would begin anew."""
        about: dict[str, Any] = await client.xinfo_stream(self._stream)
        groups = await client.xinfo_groups(self._stream)
        read, last = position["read"], about["last-generated-id"].decode()
        if id_of(last) < id_of(read):
            reason = f"its last one is {last}: {OLDER}"
        elif self._group.encode() not in [group["name"] for group in groups]:
            reason = (
                f"group {self._group!r} is not there any more, so what its members had not acknowledged may "
                f"be lost. Make it again (XGROUP CREATE {self._stream} {self._group} {read}); or begin anew, "
                "by another name for the source or restore='none'"
            )
        else:
            return
        raise SourceError(f"cannot go on behind entry {read} of {self._what}: {reason}")

    async def seek(self, position: dict[str, Any]) -> None:
        await super().seek(position)
        with self._naming():
            members = await self._opened().xinfo_consumers(self._stream, self._group)
        had = {about["name"]: about["pending"] for about in members}
        name = f"{self._consumer}.{position['run']}".encode()
        # others have taken over what it had; or what it had claimed came in another order than it will
        self.started_over = name not in had or had.get(name + b".claimed", 0) > 0
        self._base, self._read = position, position["read"].encode()

    async def forget(self, position: dict[str, Any]) -> None:
        if not self._has_adopted:
            return  # what is held is not known yet: the next position says it, too
        read = id_of(position["read"])
        claimed = [id for id in map(str.encode, position["claimed"]) if id in self._claimed]
        in_order = list(takewhile(lambda id: id_of(id) <= read, self._unacknowledged))
        with self._naming("acknowledge entries of"):
            for part in _parts(claimed + in_order):
                await self._opened().xack(self._stream, self._group, *part)
        # not before: what fails is said again
        self._claimed.difference_update(claimed)
        for _ in in_order:
            self._unacknowledged.popleft()


def _parts(ids: list[bytes]) -> list[list[bytes]]:
    return [ids[start : start + _PART] for start in range(0, len(ids), _PART)]
