"""
Guards around an async call: each takes an async function and is one, alone or nested, with or without a
pipeline.

    lookup = cached(single_flight(retry(circuit_breaker(rate_limit(fetch, rate=100)), attempts=5)), ttl=60)

Read from the outside in, this is the sensible order:

1. `cached`: an answer at hand needs nothing of what follows.
2. `single_flight`: of equal calls that overlap, one goes on.
3. `retry`: outside of what follows, so that every attempt is counted, slowed down and held back like a
   first one, and an element that waits for its next attempt takes up no place in them.
4. `circuit_breaker`: sees each attempt; while it is open, no attempt uses up the rate.
5. `hedge`: outside of the limits, which are to count its second calls.
6. `metered`: each attempt may cost, and one that waits for a budget uses up no limit.
7. `adaptive_concurrency`, or `concurrency_limit`: sees each attempt's latency and overload.
8. `rate_limit`: innermost, because a rate is exact only for what starts at once.

`batched` turns the function itself from one of lists into one of elements. What is inside of it (a retry,
a limit) counts batches, what is outside counts elements: `cached(batched(retry(fetch_many)))`.

With `scope=SharedLimit(...)`, a rate, a limit of calls at once and a breaker are those of all processes that
are given the same: on one host, on several, in the tasks of a Spark job.

`in_threads` makes an async function of a plain one that blocks: `retry(in_threads(ask, threads=20))`.
"""

from asyncstream.guards.batched import Batched, batched
from asyncstream.guards.breaker import Breaker, CircuitState
from asyncstream.guards.budget import Budget
from asyncstream.guards.cache_store import CacheStore
from asyncstream.guards.cached import Cached, cached
from asyncstream.guards.circuit_breaker import CircuitBreaker, circuit_breaker
from asyncstream.guards.concurrency import (
    AdaptiveConcurrency,
    AdaptiveLimit,
    ConcurrencyLimit,
    adaptive_concurrency,
    concurrency_limit,
)
from asyncstream.guards.guard import Call, Guard
from asyncstream.guards.hedge import Hedge, hedge
from asyncstream.guards.in_threads import InThreads, in_threads
from asyncstream.guards.metered import Metered, metered
from asyncstream.guards.rate_limit import Limiter, RateLimit, RateLimiter, rate_limit
from asyncstream.guards.redis_cache import RedisCache
from asyncstream.guards.retry import Attempt, Retry, current_attempt, retry
from asyncstream.guards.shared import LimitServer, SharedLimit
from asyncstream.guards.shared.breaker import SharedBreaker
from asyncstream.guards.shared.concurrency import SharedConcurrency
from asyncstream.guards.shared.rate_limiter import SharedRateLimiter
from asyncstream.guards.single_flight import SingleFlight, single_flight
from asyncstream.guards.sqlite_cache import SqliteCache

__all__ = (
    "AdaptiveConcurrency",
    "AdaptiveLimit",
    "Attempt",
    "Batched",
    "Breaker",
    "Budget",
    "CacheStore",
    "Cached",
    "Call",
    "CircuitBreaker",
    "CircuitState",
    "ConcurrencyLimit",
    "Guard",
    "Hedge",
    "InThreads",
    "LimitServer",
    "Limiter",
    "Metered",
    "RateLimit",
    "RateLimiter",
    "RedisCache",
    "Retry",
    "SharedBreaker",
    "SharedConcurrency",
    "SharedLimit",
    "SharedRateLimiter",
    "SingleFlight",
    "SqliteCache",
    "adaptive_concurrency",
    "batched",
    "cached",
    "circuit_breaker",
    "concurrency_limit",
    "current_attempt",
    "hedge",
    "in_threads",
    "metered",
    "rate_limit",
    "retry",
    "single_flight",
)
