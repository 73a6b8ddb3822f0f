"""
The answers of one function in a store: what their keys are, and how an answer becomes bytes.

A key is a digest of what tells the function from others (its code, and the name that the user gave) and of
the element's key. So a function that was changed finds nothing of what it answered before.

    entry     flags 1 byte, fresh until 8, stale until 8, kept until 8, answer by the codec, checksum 4

Times are seconds since the epoch. The checksum is over the key and all before it: what was changed under way,
or belongs to another key, is not given out as an answer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, NamedTuple
from zlib import crc32

import orjson

from asyncstream.codec import Codec
from asyncstream.codec.classes import arguments_of, make_error, members_besides
from asyncstream.errors import CodecError, describe_error
from asyncstream.guards.cache_store import CacheStore
from asyncstream.guards.in_threads import InThreads
from asyncstream.operators.fingerprint import fingerprint
from asyncstream.sharing import hold, release

__all__ = ("Entry", "StoredAnswers", "bare")

log = logging.getLogger("asyncstream.cache")

_HEAD: Final = Struct("<Bddd")

_CHECKSUM: Final = Struct("<I")

_WHOLE: Final = 0x2144DF1C
"""The CRC-32 of anything that is followed by its own CRC-32: to check it, nothing need be taken apart."""

_ERROR: Final = 1
"""The flag of an answer that is an error."""


class Entry(NamedTuple):
    """
    What a cache holds for a key.

    Attributes:
        fresh_until: until then it is the answer.
        stale_until: until then it is given, and renewed in the background.
        kept_until: until then it is given if the call fails.
        answer: the result, or the error if `is_error`.
    """

    fresh_until: float
    stale_until: float
    kept_until: float
    answer: Any
    is_error: bool


def bare(error: BaseException) -> BaseException:
    """
    The same error and causes without what they came through: the frames of a traceback keep alive all that
    the call had in hand. Itself, if no other can be made that says the same.
    """
    try:
        found = make_error(type(error), arguments_of(error))
        members_besides(error, found)
        vars(found).update(vars(error))
        if describe_error(found) != describe_error(error):
            return error
        found.__cause__ = None if error.__cause__ is None else bare(error.__cause__)
    except Exception:  # of a class that does more than to hold what it is given
        return error
    return found


class StoredAnswers:
    """
    The answers of one function, the innermost one; by the `name` it is told from others of the same code.

    One that would be kept for more than twice the `longest`, in seconds, is none: the clock of who put it was
    far ahead, or answers were to be kept for longer then.
    """

    def __init__(
        self,
        store: CacheStore,
        function: Any,
        key: Any,
        name: str,
        codec: Codec,
        now: Callable[[], float],
        longest: float,
    ) -> None:
        self.store = store
        # who makes threads for a plain function twice has it twice, and not two that look alike
        self._function = function.fn if isinstance(function, InThreads) else function
        self._name = name
        self._codec = codec
        self._now = now
        self._longest = longest
        self._said: set[str] = set()
        marks = f"{name}\n{fingerprint(function)}"
        if key is not None:  # by another one, the key of this element may have been that of another element
            marks += f"\n{fingerprint(key) if callable(key) else key}"
        self._namespace = blake2b(marks.encode(), digest_size=16, person=b"cached answers").digest()
        self._keyed = blake2b(digest_size=16, key=self._namespace)
        self.finds_at_once = store.finds_at_once

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_keyed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._keyed = blake2b(digest_size=16, key=self._namespace)

    async def open(self) -> None:
        """Begin; must be closed, also if this raises."""
        await hold(self.store)
        if not self._name:
            self.store.claim(self._namespace, self._function)

    async def close(self) -> None:
        """End."""
        if not self._name:
            self.store.disclaim(self._namespace, self._function)
        await release(self.store)

    def name_of(self, key: Hashable) -> bytes:
        """Under which name the answer for a key is kept."""
        if key.__class__ is str or key.__class__ is int:  # as the codec would, in a tenth of the time
            try:
                data = orjson.dumps(key)
            except TypeError:
                data = self._codec.encode(key)
        else:
            data = self._codec.encode(key)
        digest = self._keyed.copy()  # half of the work is the key
        digest.update(data)
        return digest.digest()

    async def get(self, name: bytes) -> Entry | None:
        """What is kept; None: nothing that is still of use."""
        return self._entry(name, await self.store.get(name))

    def find(self, name: bytes) -> Entry | None:
        """As `get`, of a store that `finds_at_once`."""
        return self._entry(name, self.store.find(name))

    def _entry(self, name: bytes, data: bytes | None) -> Entry | None:
        if data is None:
            return None
        try:
            if crc32(data, crc32(name)) != _WHOLE:
                raise ValueError("its checksum does not match")
            flags, fresh_until, stale_until, kept_until = _HEAD.unpack_from(data)
            if not 0 < kept_until - self._now() <= 2 * self._longest:
                self.store.delete(name)
                return None
            answer = self._codec.decode(data[_HEAD.size : -_CHECKSUM.size])
        except Exception as error:  # of a wrong shape, or of a class that is there no more
            self._say("an answer in %s cannot be read, and is asked for again: %s", error)
            return None
        return Entry(fresh_until, stale_until, kept_until, answer, flags == _ERROR)

    def put(self, name: bytes, entry: Entry) -> None:
        """Keep it."""
        try:
            answer = self._codec.encode(entry.answer)
        except CodecError as error:
            self._say("%s does not keep an answer, which costs a call after a restart: %s", error)
            return
        kept_until = max(entry.stale_until, entry.kept_until)
        flags = _ERROR if entry.is_error else 0
        data = _HEAD.pack(flags, entry.fresh_until, entry.stale_until, kept_until) + answer
        checksum = _CHECKSUM.pack(crc32(data, crc32(name)))
        left = None if math.isinf(kept_until) else max(1, math.ceil((kept_until - self._now()) * 1000))
        self.store.put(name, data + checksum, left)

    def _say(self, text: str, error: Exception) -> None:
        """Say once what is wrong."""
        if text not in self._said:
            self._said.add(text)
            log.error(text, self.store, describe_error(error))
