"""
A stream of Redis read as a log: by any number of jobs, each with a position of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic, Literal, TypeVar

from asyncstream.connectors.message_source import OLDER, MessageSource
from asyncstream.connectors.messages import Decode, RejectedMessage, decoder, unreadable
from asyncstream.connectors.redis.connection import (
    Client,
    Entry,
    block_ms_of,
    checked_url,
    connect,
    id_of,
    place_of,
)
from asyncstream.elements import MAX_TIMESTAMP
from asyncstream.errors import SourceError
from asyncstream.validation import choice, refuse, text

__all__ = ("FIRST", "RedisSource", "RedisStreamSource", "entries_of")

T = TypeVar("T")

FIRST = b"0-0"
"""Smaller than the id of any entry."""


class RedisSource(MessageSource[T, Entry, Client], Generic[T]):
    """What sources of Redis share: how entries become elements."""

    def __init__(
        self,
        url: str,
        stream: str,
        field: str | None,
        decode: Decode,
        on_malformed: str,
        ends: bool,
        batch: int,
    ) -> None:
        self._url = checked_url(url)
        self._block_ms = block_ms_of(url)
        self._stream = text("stream", stream)
        self._what = f"stream {stream!r} of {place_of(url)}"
        self._field = None if field is None else text("field", field).encode()
        self._decode = decoder(decode)
        if field is None and decode != "json":
            raise refuse("decode", "nothing where field=None: an element is a dict of texts", decode)
        super().__init__(on_malformed, ends=ends, batch=batch)

    async def _connect(self) -> Client:
        return connect(self._url)

    async def _disconnect(self, client: Client) -> None:
        await client.aclose()

    @contextmanager
    def _naming(self, doing: str = "read") -> Iterator[None]:
        from redis.exceptions import ResponseError

        with super()._naming(doing):
            try:
                yield
            except ResponseError as error:
                if "no such key" not in str(error):
                    raise
                raise SourceError(f"there is no {self._what}") from error

    def _element(self, message: Entry) -> Any:
        id, fields = message
        field = self._field
        try:
            if field is None:
                return {name.decode(): value.decode() for name, value in fields.items()}
            if field in fields:
                return self._decode(fields[field])
            there = ", ".join(repr(name.decode(errors="replace")) for name in fields)
            reason = f"it has no field {field.decode()!r}; there are: {there}"
        except Exception as error:
            reason = unreadable(error)
        return RejectedMessage(self._what, id.decode(), dict(fields), reason)

    def _time_ms(self, message: Entry) -> int:
        return min(int(message[0].partition(b"-")[0]), MAX_TIMESTAMP)  # an id may have a bit more


class RedisStreamSource(RedisSource[T]):
    """
    Reads a stream from a position on; in a job with checkpoints it is the checkpoint's, so each entry is read
    once.

    Nothing is acknowledged, and others may read the same stream. Entries must stay until they are read: a
    stream that was trimmed behind the position, or made anew, is refused. Timestamps are those of the ids.
    The server must be as Redis is from version 7 on.

    Args:
        url: the address of the Redis: `redis://user:password@host:6379/0`.
        stream: the key of the stream, which must be there.
        field: the field that holds the element; None: an element is the dict of all fields, as texts.
        decode: what a field holds: "json", "bytes", "text", or a function that makes an element of its bytes.
        start: where to begin without a position: at the "first" entry, or with the "next" one that is added.
        on_malformed: what to do with an entry that is no element: "fail" with `SourceError`, after all before
            it were delivered; or "reject": a `RejectedMessage` goes to the source's `rejected` output.
        if_trimmed: what to do if entries behind the position are gone, at the start or while it reads:
            "refuse", or "go_on" with those there are; also if they were deleted one by one.
        ends: end when there are no more entries, rather than wait for more.
        batch: how many entries one read brings at most.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        field: str | None = "data",
        decode: Decode = "json",
        start: Literal["first", "next"] = "first",
        on_malformed: Literal["fail", "reject"] = "fail",
        if_trimmed: Literal["refuse", "go_on"] = "refuse",
        ends: bool = False,
        batch: int = 1000,
    ) -> None:
        super().__init__(url, stream, field, decode, on_malformed, ends, batch)
        self._from_first = choice("start", start, ("first", "next")) == "first"
        self._refuses_gaps = choice("if_trimmed", if_trimmed, ("refuse", "go_on")) == "refuse"
        self._read = FIRST
        self._number = 0  # how many entries were added up to the one that was read
        self._newest = (FIRST, 0)  # the last entry that was seen to be there, and its number

    async def open(self) -> None:
        await super().open()
        with self._naming():
            about = await self._about(self._opened())
        self._read, self._number = about["last-generated-id"], about["entries-added"]
        if self._from_first:
            self._read, self._number = FIRST, self._number - about["length"]

    async def _about(self, redis: Client) -> dict[str, Any]:
        found: dict[str, Any] = await redis.xinfo_stream(self._stream)
        if "entries-added" not in found:
            raise SourceError(
                f"cannot read {self._what} as a log: the server does not tell how many entries were ever "
                "added, as Redis does from version 7 on, so some might be trimmed unread, and unseen; take "
                "another one, or RedisGroupSource"
            )
        return found

    async def _fetch(self) -> Sequence[Entry]:
        redis, place = self._opened(), {self._stream: self._read}
        while True:
            # in one moment: nothing is trimmed between the two
            async with redis.pipeline(transaction=True) as both:
                about, found = await both.xinfo_stream(self._stream).xread(place, count=self._batch).execute()
            self._compare(self.position(), about)
            self._newest = (about["last-generated-id"], about["entries-added"])
            if found or self._ends:
                return entries_of(found)
            # what this brings was added, and others before it perhaps trimmed, since that look
            await redis.xread(place, count=1, block=self._block_ms)

    def _taken(self, entries: Sequence[Entry]) -> None:
        self._read, self._number = entries[-1][0], self._number + len(entries)
        if self._read == self._newest[0]:  # of those before it, some may have been deleted
            self._number = self._newest[1]

    def position(self) -> dict[str, Any]:
        return {"id": self._read.decode(), "number": self._number}

    async def _check(self, client: Client, position: dict[str, Any]) -> None:
        self._compare(position, await self._about(client))

    async def seek(self, position: dict[str, Any]) -> None:
        await super().seek(position)
        self._read, self._number = position["id"].encode(), position["number"]

    def _compare(self, position: dict[str, Any], about: dict[str, Any]) -> None:
        """Refuse a position that this stream has not had, or behind which entries are gone."""
        first, unread = about["first-entry"], about["entries-added"] - position["number"]
        is_cut = first is None or id_of(first[0]) > id_of(position["id"])
        if id_of(about["last-generated-id"]) < id_of(position["id"]):
            reason = f"its last one is {about['last-generated-id'].decode()}: {OLDER}"
        elif self._refuses_gaps and is_cut and about["length"] < unread:
            reason = "entries behind it were trimmed or deleted; if_trimmed='go_on' goes on with the others"
        elif self._refuses_gaps and is_cut and about["length"] > unread:  # than there can be of that stream
            reason = (
                "the stream was made anew, and what was not read of the one before is gone; "
                "if_trimmed='go_on' goes on with the new one"
            )
        else:
            return
        raise SourceError(f"cannot go on behind entry {position['id']} of {self._what}: {reason}")


def entries_of(found: Any) -> list[Entry]:
    """The entries in an answer about one stream."""
    return list(found[0][1]) if found else []
