"""
Cache: answers that are kept for a while, in a `cachetools` cache.

An entry goes through three ages. *Fresh*: it is the answer. *Stale*: it still is, but the first who gets
it starts a call in the background that renews it. *Expired*: as if it were not there. The entry carries
both ends itself, so one cache keeps answers of different ages (what is there, what is not, errors), and
any mapping of cachetools decides only whom to throw out when it is full.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, NamedTuple, TypeVar

from asyncstream.errors import MissingExtra
from asyncstream.guards.guard import Background, Call, Guard, hashable, usable_as_decorator
from asyncstream.operators.call_context import on_behalf_of_none
from asyncstream.validation import Duration, count, duration_seconds, selector

__all__ = ("Cached", "Entry", "cached")

In = TypeVar("In")
Out = TypeVar("Out")


class Entry(NamedTuple):
    """
    What a cache holds for a key.

    Attributes:
        fresh_until, stale_until: event loop's time, seconds.
        answer: the result, or the error if `is_error`.
    """

    fresh_until: float
    stale_until: float
    answer: Any
    is_error: bool


def _is_none(answer: object) -> bool:
    return answer is None


class Cached(Guard[In, Out]):
    """
    Answers from memory what has been answered not long ago.

    All who ask for a key get the same object: it must not be changed. Calls for a key that is not there
    yet are made as often as it is asked for; put `single_flight` inside to make one of them.

    Args:
        ttl: how long an answer is fresh; None: as long as there is room.
        size: answers kept at most; the least recently used one makes room.
        key: function of the element that gives something hashable, or the name of a field, or several; by
            default the element itself.
        stale_for: how much longer an answer is given while a call in the background renews it.
        negative: whether an answer means that there is nothing; by default, whether it is None.
        negative_ttl: how long such an answer is fresh; None: as long as others; 0: not kept.
        errors: types of errors that are kept as answers, for `negative_ttl`.
        cache: where to keep entries, instead of a new `cachetools.LRUCache(size)`: any cache of cachetools,
            or another mapping. Guards of different functions must not share one.

    Raises:
        MissingExtra: when built without `cache`, if cachetools is not installed.
    """

    counted = ("cached", "cache_misses", "cache_renewed")

    def __init__(
        self,
        fn: Call[In, Out],
        *,
        ttl: Duration | None = 300.0,
        size: int = 10_000,
        key: Callable[[In], Hashable] | str | tuple[str, ...] | None = None,
        stale_for: Duration = 0.0,
        negative: Callable[[Any], bool] = _is_none,
        negative_ttl: Duration | None = None,
        errors: type[Exception] | tuple[type[Exception], ...] = (),
        cache: MutableMapping[Any, Any] | None = None,
    ) -> None:
        super().__init__(fn)
        self._ttl = math.inf if ttl is None else duration_seconds("ttl", ttl)
        self._key = None if key is None else selector("key", key)
        self._stale_for = duration_seconds("stale_for", stale_for, zero=True)
        self._negative = negative
        self._negative_ttl = (
            self._ttl if negative_ttl is None else duration_seconds("negative_ttl", negative_ttl, zero=True)
        )
        self._errors = errors
        self._cache = _lru_cache(count("size", size)) if cache is None else cache
        self._renewing: set[Hashable] = set()
        self._background = Background()
        self._hits = 0
        self._misses = 0
        self._renewed = 0

    async def invoke(self, value: In) -> Out:
        key = value if self._key is None else self._key(value)
        entry: Entry | None
        try:
            entry = self._cache[key]
        except KeyError:
            entry = None
        except TypeError:
            hashable(key)
            raise
        if entry is not None:
            fresh_until, stale_until, answer, is_error = entry
            now = self._time()
            if now < stale_until:
                self._hits += 1
                if now >= fresh_until and key not in self._renewing:
                    self._renewing.add(key)
                    self._background.start(self._renew(key, value))
                if is_error:
                    # an error raised again and again would collect a traceback without end
                    raise answer.with_traceback(None)
                return answer  # type: ignore[no-any-return]
        self._misses += 1
        return await self._ask(key, value)

    async def _ask(self, key: Hashable, value: In) -> Out:
        try:
            answer = await self._call(value)
        except self._errors as error:
            self._keep(key, error, self._negative_ttl, is_error=True)
            raise
        self._keep(key, answer, self._negative_ttl if self._negative(answer) else self._ttl)
        return answer

    def _keep(self, key: Hashable, answer: Any, ttl: float, is_error: bool = False) -> None:
        if ttl == 0:
            self._cache.pop(key, None)  # a stale answer that this one contradicts
            return
        fresh_until = self._time() + ttl
        stale_until = fresh_until if is_error else fresh_until + self._stale_for
        try:
            self._cache[key] = Entry(fresh_until, stale_until, answer, is_error)
        except ValueError:
            # cachetools: more than the whole cache may hold, if it measures what it keeps
            pass

    async def _renew(self, key: Hashable, value: In) -> None:
        try:
            # no element's call: a service that knows the key would give the answer that it gave then
            with on_behalf_of_none():
                answer = await self._call(value)
        except Exception:
            # no caller waits for this one, and a stale answer is better than none
            pass
        else:
            self._keep(key, answer, self._negative_ttl if self._negative(answer) else self._ttl)
            self._renewed += 1
        finally:
            self._renewing.discard(key)

    async def stop(self) -> None:
        await self._background.stop()
        self._renewing.clear()  # a task that was cancelled before it began could not do so

    def counters(self) -> dict[str, int]:
        return {"cached": self._hits, "cache_misses": self._misses, "cache_renewed": self._renewed}


def _lru_cache(size: int) -> MutableMapping[Any, Any]:
    try:
        from cachetools import LRUCache
    except ImportError as error:
        raise MissingExtra("cached()", "guards") from error
    return LRUCache(size)


cached = usable_as_decorator(Cached)
