"""
Cache: answers that are kept for a while in memory, and behind it in a store that outlives the process.

An entry goes through four ages. *Fresh*: it is the answer. *Stale*: it still is, but the first call that gets
it starts a call in the background that renews it. *Kept*: a call is made, and if it fails the old answer is
given after all. *Expired*: as if it were not there. The entry carries the ends of its ages itself, so one
cache keeps answers of different ages (what is there, what is not, errors), and a cache of cachetools in the
place of ours decides only whom to throw out when it is full.

With a store, memory is the first of two tiers. What is not in it, or is stale there, is looked for in the
store: another process, or an earlier one, may have the answer. Times are those of the wall clock then, which
all of them share, and not of the event loop.

With a `lease`, one process of all makes the call for a key, and within it one of all callers
(`single_flight`). The others look into the store until the answer is there, or the lease is theirs.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, MutableMapping
from functools import partial
from typing import Any, Final, TypeVar

from asyncstream.addresses import without_secrets
from asyncstream.clock import Clock, checked_clock, epoch_seconds
from asyncstream.codec import Codec
from asyncstream.codec import codec as codec_of
from asyncstream.guards.cache_store import CacheStore
from asyncstream.guards.guard import (
    Background,
    Call,
    Guard,
    chain,
    hashable,
    refuse_beside,
    usable_as_decorator,
)
from asyncstream.guards.outcomes import is_retryable
from asyncstream.guards.redis_cache import RedisCache
from asyncstream.guards.retry import of_no_attempt
from asyncstream.guards.single_flight import SingleFlight
from asyncstream.guards.sqlite_cache import SqliteCache
from asyncstream.guards.stored_answers import Entry, StoredAnswers, bare
from asyncstream.validation import Duration, count, duration_seconds, function, refuse, selector

__all__ = ("Cached", "cached")

In = TypeVar("In")
Out = TypeVar("Out")

_FIRST_LOOK: Final = 0.005
"""Seconds until the first look whether another process has the answer; each later one waits twice as long."""

_LAST_LOOK: Final = 0.25
"""The longest of these waits."""


def _is_none(answer: object) -> bool:
    return answer is None


class Cached(Guard[In, Out]):
    """
    Answers from memory, and perhaps from a store behind it, what has been answered not long ago.

    All who ask for a key get the same object: it must not be changed. Calls for a key that is not there
    yet are made as often as it is asked for; put `single_flight` inside to make one of them, or say `lease`.

    Args:
        fn: the async function that it wraps.
        ttl: how long an answer is fresh; None: as long as there is room.
        size: answers kept in memory at most; the least recently used one makes room. A store has a size of
            its own.
        key: function of the element that gives something hashable, or the name of a field, or several; by
            default the element itself. With a store: of what a codec can keep.
        stale_for: how much longer an answer is given while a call in the background renews it.
        stale_if_error: how much longer than fresh an answer is given where a call fails, by an error that may
            pass.
        negative: whether an answer means that there is nothing; None: if it is None.
        negative_ttl: how long such an answer is fresh; None: as long as others; 0: not kept.
        errors: types of errors that are kept as answers, for `negative_ttl`.
        cache: where to keep entries in memory instead: any cache of cachetools, or another mapping. Guards of
            different functions must not share one.
        store: where answers outlive the process: the path of an SQLite file, or "sqlite:///path", a
            `SqliteCache`; "redis://host", a `RedisCache`; None: nowhere. Answers belong to the function that
            gave them, and to `key`: they are not found once its code, or a constant in it, is another.
        name: with a store, part of each key. It tells apart functions of the same code, and is to be changed
            when answers of before are of no more use: with the model, or the version of the service.
        lease: with a store, for how long one process is waited for that makes the call; longer than a call
            takes. Others then make it themselves; so they do at once if that process has died and this can be
            known (SQLite). None: each process makes its own.
        codec: with a store, how answers become bytes: "json", "pickle" or a `Codec`.
        clock: with a store, tells the time; None: the machine's.
    """

    counted: tuple[str, ...] = ("cached", "cache_misses", "cache_renewed")

    def __init__(
        self,
        fn: Call[In, Out],
        *,
        ttl: Duration | None = 300.0,
        size: int = 10_000,
        key: Callable[[In], Hashable] | str | tuple[str, ...] | None = None,
        stale_for: Duration = 0.0,
        stale_if_error: Duration = 0.0,
        negative: Callable[[Any], bool] | None = None,
        negative_ttl: Duration | None = None,
        errors: type[Exception] | tuple[type[Exception], ...] = (),
        cache: MutableMapping[Any, Any] | None = None,
        store: CacheStore | str | os.PathLike[str] | None = None,
        name: str = "",
        lease: Duration | None = None,
        codec: str | Codec = "json",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(fn)
        self._ttl = math.inf if ttl is None else duration_seconds("ttl", ttl)
        self._key = None if key is None else selector("key", key)
        self._stale_for = duration_seconds("stale_for", stale_for, zero=True)
        self._stale_if_error = duration_seconds("stale_if_error", stale_if_error, zero=True)
        self._negative = _is_none if negative is None else function("negative", negative, "answer")
        self._negative_ttl = (
            self._ttl if negative_ttl is None else duration_seconds("negative_ttl", negative_ttl, zero=True)
        )
        self._errors = errors if isinstance(errors, tuple) else (errors,)
        if not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in self._errors):
            raise refuse("errors", "types of exceptions, as a tuple", errors, classes=True)
        if math.isinf(min(self._ttl, self._negative_ttl)) and (stale_for or stale_if_error):
            advice = "an answer that is fresh for ever is never stale"
            raise refuse("ttl", "a length of time beside stale_for= and stale_if_error=", ttl, advice)
        self._cache: MutableMapping[Any, Any]
        self._use: Callable[[Any], None] | None = None
        """Tells the cache that an entry was used; None: it is told by being read."""
        if cache is None:
            self._cache = recent = _Recent(count("size", size))
            self._use = recent.move_to_end
        elif isinstance(cache, MutableMapping):
            refuse_beside("cache", Cached, size=size)
            self._cache = cache
        else:
            raise refuse("cache", "a mapping, such as a cache of cachetools", cache)
        self._renewing: set[Hashable] = set()
        self._background = Background()
        self._hits = 0  # counted for each element: a number of its own is counted in half the time
        if self._stale_if_error:
            self._counts["cache_stale_on_error"] = 0

        self._stored: StoredAnswers | None = None
        self._most_ahead = math.inf
        """Seconds; of what is to be fresh for longer the clock must have been set back since."""
        self._lease: int | None = None  # milliseconds
        self._flight: SingleFlight[In, Out] | None = None
        if not isinstance(name, str):
            raise refuse("name", "a text", name)
        if store is None:
            kept = None if codec == "json" else codec
            others = {"name": name or None, "lease": lease, "clock": clock, "codec": kept}
            for what, given in others.items():
                if given is not None:
                    raise refuse(what, "a store to go with it", given, "e.g. store='answers.db'")
        else:
            found = checked_clock(clock)
            wall = self._own_time = self._time = epoch_seconds if found is None else partial(_seconds, found)
            *_, innermost = chain(self)
            longest = max(self._ttl, self._negative_ttl) + max(self._stale_for, self._stale_if_error)
            self._most_ahead = 2 * longest  # as the store has it: clocks of other processes differ
            answers = StoredAnswers(_store(store), innermost, key, name, codec_of(codec), wall, longest)
            self._stored = self.shares = answers
            self._counts["cache_stored"] = 0
        if lease is not None:
            self._lease = math.ceil(duration_seconds("lease", lease) * 1000)
            self._flight = SingleFlight(self._ask_alone, key=key)
        self.counted = (*self._counts, *(() if self._flight is None else self._flight.counted))

    async def stop(self) -> None:
        try:
            await self._background.stop()
        finally:
            self._renewing.clear()  # a task that was cancelled before it began could not do so
            if self._flight is not None:
                await self._flight.stop()

    async def invoke(self, value: In) -> Out:
        key = value if self._key is None else self._key(value)
        entry: Entry | None
        try:
            entry = self._cache[key]
            if self._use is not None:
                self._use(key)
        except KeyError:
            entry = None
        except TypeError:
            hashable(key)
            raise
        if entry is not None:
            now = self._time()
            if entry.fresh_until - now > self._most_ahead:
                del self._cache[key]
                entry = None
            elif now < entry.fresh_until or (now < entry.stale_until and self._stored is None):
                self._hits += 1
                if now >= entry.fresh_until:
                    self._begin_to_renew(key, value)
                if entry.is_error:
                    # an error raised again and again would collect a traceback without end
                    raise entry.answer.with_traceback(None)
                return entry.answer  # type: ignore[no-any-return]
        stored = self._stored
        if stored is None:
            return await self._ask(key, value, entry)
        name = stored.name_of(key)
        found = stored.find(name) if stored.finds_at_once else await stored.get(name)
        if found is not None:
            self._remember(key, found)
            entry = found
        if entry is not None and self._time() < entry.stale_until:
            return self._stored_answer(key, value, entry)
        if self._flight is not None:
            return await self._flight.invoke(value)
        return await self._ask(key, value, entry)

    # ------------------------------------------------------------------ the call

    async def _ask(self, key: Hashable, value: In, entry: Entry | None) -> Out:
        """Make the call; `entry` is what was known before."""
        self._counts["cache_misses"] += 1
        try:
            answer = await self._call(value)
        except self._errors as error:
            self._keep(key, bare(error), self._negative_ttl, is_error=True)
            raise
        except Exception as error:
            if entry is None or entry.is_error or self._time() >= entry.kept_until or not is_retryable(error):
                raise
            self._counts["cache_stale_on_error"] += 1
            return entry.answer  # type: ignore[no-any-return]
        self._keep_answer(key, answer)
        if self._stored is not None:
            await self._stored.store.has_room()
        return answer

    def _keep_answer(self, key: Hashable, answer: Any) -> None:
        self._keep(key, answer, self._negative_ttl if self._negative(answer) else self._ttl)

    def _keep(self, key: Hashable, answer: Any, ttl: float, is_error: bool = False) -> None:
        if ttl == 0:
            self._cache.pop(key, None)  # a stale answer that this one contradicts
            if self._stored is not None:
                self._stored.store.delete(self._stored.name_of(key))
            return
        fresh_until = self._time() + ttl
        stale_until = fresh_until if is_error else fresh_until + self._stale_for
        entry = Entry(fresh_until, stale_until, fresh_until + self._stale_if_error, answer, is_error)
        self._remember(key, entry)
        if self._stored is not None:
            self._stored.put(self._stored.name_of(key), entry)

    def _remember(self, key: Hashable, entry: Entry) -> None:
        try:
            self._cache[key] = entry
        except ValueError:
            # cachetools: more than the whole cache may hold, if it measures what it keeps
            pass

    # ------------------------------------------------------------------ stale answers

    def _begin_to_renew(self, key: Hashable, value: In) -> None:
        if key not in self._renewing:
            self._renewing.add(key)
            self._background.start(self._renew(key, value))

    async def _renew(self, key: Hashable, value: In) -> None:
        name = None
        try:
            if self._stored is not None and self._lease is not None:
                name = self._stored.name_of(key)
                if not await self._stored.store.lease(name, self._lease):
                    name = None
                    return  # another process renews it
            try:
                # a service that knows the element's key would give the answer that it gave then
                of_no_attempt()
                answer = await self._call(value)
            except Exception:
                # no caller waits for this one, and a stale answer is better than none
                return
            self._keep_answer(key, answer)
            self._counts["cache_renewed"] += 1
        finally:
            self._renewing.discard(key)
            if name is not None and self._stored is not None:
                self._stored.store.release(name)

    # ------------------------------------------------------------------ the store

    async def _look(self, stored: StoredAnswers, key: Hashable) -> Entry | None:
        """What the store has, which memory has too from now on."""
        entry = await stored.get(stored.name_of(key))
        if entry is not None:
            self._remember(key, entry)
        return entry

    def _stored_answer(self, key: Hashable, value: In, entry: Entry) -> Out:
        self._hits += 1
        self._counts["cache_stored"] += 1
        if self._time() >= entry.fresh_until:
            self._begin_to_renew(key, value)
        if entry.is_error:
            raise entry.answer.with_traceback(None)
        return entry.answer  # type: ignore[no-any-return]

    async def _ask_alone(self, value: In) -> Out:
        """Make the call when no other process does; what it has found meanwhile is the answer."""
        stored, lease = self._stored, self._lease
        assert stored is not None
        assert lease is not None
        key: Any = value if self._key is None else self._key(value)
        name, pause = stored.name_of(key), _FIRST_LOOK
        while not await stored.store.lease(name, lease):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_LOOK)
            entry = await self._look(stored, key)
            if entry is not None and self._time() < entry.stale_until:
                return self._stored_answer(key, value, entry)
        try:
            # from the holder before
            entry = await self._look(stored, key) or self._cache.get(key)
            if entry is not None and self._time() < entry.stale_until:
                return self._stored_answer(key, value, entry)
            return await self._ask(key, value, entry)
        finally:
            stored.store.release(name)

    def counters(self) -> dict[str, int]:
        shared = {} if self._flight is None else self._flight.counters()
        return self._counts | {"cached": self._hits} | shared


class _Recent(OrderedDict[Hashable, Any]):
    """
    So many entries in memory, of which the least recently used one makes room. To read one is not to use it:
    `move_to_end` is. A copy begins empty.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def __setitem__(self, key: Hashable, entry: Any) -> None:
        super().__setitem__(key, entry)
        self.move_to_end(key)
        if len(self) > self.size:
            self.popitem(last=False)

    def __reduce__(self) -> tuple[Any, ...]:
        # without them: until when they are of use is said by the clock of an event loop of this process
        return _Recent, (self.size,)


def _seconds(clock: Clock) -> float:
    """The time of a clock, in seconds since the epoch."""
    return clock.now_ms() / 1000


def _store(given: object) -> CacheStore:
    if isinstance(given, CacheStore):
        return given
    if isinstance(given, str) and given.startswith(("redis://", "rediss://", "unix://")):
        return RedisCache(given)
    if isinstance(given, str) and given.startswith("sqlite:///"):
        given = given.removeprefix("sqlite:///")
    if isinstance(given, str | os.PathLike) and os.fspath(given):
        if "://" in str(given):
            raise refuse("store", "a path, 'sqlite:///path' or 'redis://host'", without_secrets(str(given)))
        return SqliteCache(given)
    raise refuse("store", "the path of a file, an address, a SqliteCache or a RedisCache", given)


cached = usable_as_decorator(Cached)
