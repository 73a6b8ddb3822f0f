"""
A stream of Redis as a sink: entries with ids of the user's, each of which is added once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeAlias

from asyncstream.connectors.message_sink import MessageSink
from asyncstream.connectors.messages import Encode
from asyncstream.connectors.redis.connection import Client, checked_url, connect, place_of
from asyncstream.connectors.rows import Default, JsonWriter, check_names, record_of, without_fields
from asyncstream.errors import SinkError
from asyncstream.validation import Duration, Fields, count, duration_ms, refuse, text

__all__ = ("RedisStreamSink",)

_Message: TypeAlias = tuple[bytes, dict[bytes, bytes]]
"""An id, and the fields of an entry."""

_ADD: Final = """
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
local forgotten_ms = now_ms - ARGV[1]
local at = 3
while at <= #ARGV do
  local count = tonumber(ARGV[at + 1])
  local added_ms = redis.call('ZSCORE', KEYS[2], ARGV[at])
  if not added_ms or tonumber(added_ms) <= forgotten_ms then
    local fields = {unpack(ARGV, at + 2, at + 1 + count)}
    if ARGV[2] == '0' then
      redis.call('XADD', KEYS[1], '*', unpack(fields))
    else
      redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', unpack(fields))
    end
    redis.call('ZADD', KEYS[2], now_ms, ARGV[at])
  end
  at = at + 2 + count
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', forgotten_ms)
"""
"""
Adds those whose ids were not added within the time; as one command that no other comes between. An id is
written down last: what has failed before is not undone. Ids are forgotten at the end: a script that has begun
to write is not told that the server has no memory left.
"""

_MOST_FIELDS: Final = 3900
"""Of an entry with an id: a script can hand over about 8,000 names and values."""


class RedisStreamSink(MessageSink[_Message, Client]):
    """
    Adds elements to a stream: each batch as a whole, and with `id` each element once.

    A job that goes on after a crash writes again what it has written since its last checkpoint. With `id` an
    element whose id is remembered is not added again, so readers see each once, as it comes. The ids are kept
    in a sorted set beside the stream, some hundred bytes each.

    Args:
        url: the address of the Redis: `redis://user:password@host:6379/0`.
        stream: the key of the stream; made if it is not there.
        field: the field that holds the element; None: each of its fields is one, as text or as JSON.
        encode: what the field holds: "json", "bytes", "text", or a function that makes bytes of an element.
        default: for JSON, makes of a value of your own type one that can be written.
        id: what tells an element from others, and is the same when it is made again: a function of it, or the
            name of a field. None: what is written again is there again.
        remember: for how long ids are remembered: a `timedelta` or seconds; longer than from a checkpoint to
            the end of a restart.
        longest: about how many entries the stream keeps; None: all.
    """

    def __init__(
        self,
        url: str,
        stream: str,
        *,
        field: str | None = "data",
        encode: Encode = "json",
        default: Default | None = None,
        id: Callable[[Any], object] | Fields | None = None,
        remember: Duration = timedelta(days=1),
        longest: int | None = None,
    ) -> None:
        self._url = checked_url(url)
        self._stream = text("stream", stream)
        # in a cluster both are in one place
        self._ids = f"{stream}:ids" if "{" in stream else f"{{{stream}}}:ids"
        super().__init__(f"stream {stream!r} of {place_of(url)}", encode, default, id)
        self._field = None if field is None else text("field", field).encode()
        if field is None and encode != "json":
            raise refuse("encode", "nothing where field=None: each field is a text or JSON", encode)
        self._json = JsonWriter(default)
        self._remember_ms = duration_ms("remember", remember)
        self._longest = None if longest is None else count("longest", longest)

    async def open(self) -> None:
        self._client = connect(self._url)
        with self._naming():
            kind = await self._client.type(self._stream)
        if kind not in (b"stream", b"none"):
            raise SinkError(f"{self._what} is no stream, but a {kind.decode()}")

    def _message(self, value: Any) -> _Message:
        id = (self._id_of(value) or "").encode()
        if self._field is not None:
            return id, {self._field: self._encode(value)}
        record = record_of(value)
        if not record:
            raise without_fields(value)
        check_names(record)
        if id and len(record) > _MOST_FIELDS:
            raise ValueError(
                f"{len(record)} fields are too many, with id= at most {_MOST_FIELDS}: give field="
            )
        return id, {name.encode(): self._cell(cell) for name, cell in record.items()}

    def _cell(self, value: Any) -> bytes:
        return value.encode() if type(value) is str else self._json.write(value)

    async def _send(self, client: Client, messages: Sequence[_Message]) -> None:
        if self._id is None:
            async with client.pipeline(transaction=True) as pipeline:
                for _, fields in messages:
                    pipeline.xadd(self._stream, fields, maxlen=self._longest)
                await pipeline.execute()
        else:
            arguments: list[Any] = [self._remember_ms, self._longest or 0]
            for id, fields in messages:
                arguments += (id, 2 * len(fields))
                for name, cell in fields.items():
                    arguments += (name, cell)
            await client.register_script(_ADD)(keys=(self._stream, self._ids), args=arguments)
        self._taken = len(messages)

    def _is_over_message(self, error: BaseException) -> bool:
        from redis.exceptions import DataError

        return isinstance(error, DataError)

    async def _disconnect(self, client: Client) -> None:
        await client.aclose()
