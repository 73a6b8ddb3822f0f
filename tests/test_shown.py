"""Objects are shown as they were made, or nearly so, and without what is secret."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import asyncstream
from asyncstream import (
    Checkpoints,
    Collect,
    Count,
    CsvSource,
    CumulativeWindows,
    DeadLetterSource,
    DirectoryStore,
    DynamicSessionWindows,
    GlobalWindows,
    GlobSource,
    Items,
    JsonLinesSink,
    JsonLinesSource,
    LookupTable,
    ManualClock,
    Max,
    MemoryStore,
    NatsSink,
    Pattern,
    Pipeline,
    PostgresSink,
    Quantile,
    RedisStreamSource,
    SessionWindows,
    Sink,
    SlidingWindows,
    SqliteSink,
    SystemClock,
    TumblingWindows,
)
from asyncstream.connectors.http import HttpLookup, SseSource
from asyncstream.connectors.kafka import KafkaSource
from asyncstream.guards import (
    Breaker,
    Budget,
    RateLimiter,
    SharedLimit,
    cached,
    circuit_breaker,
    in_threads,
    rate_limit,
    retry,
)
from asyncstream.pipeline.connected import Broadcast
from asyncstream.shown import shown_value
from asyncstream.windowing import (
    Aggregates,
    CountEvictor,
    CountTrigger,
    PurgingTrigger,
    Reduce,
    TimeEvictor,
)
from asyncstream.windowing.policies import CountEviction, CountTriggerPolicy
from asyncstream.windowing.policies.settings import policy_settings


async def fetch(value: int) -> int:
    return value


async def fetch_all() -> list[Any]:
    return []


def is_small(value: int) -> bool:
    return value < 10


SHOWN: list[tuple[Any, str]] = [
    (Pattern.begin("small", is_small), "Pattern.begin('small', is_small)"),
    (
        Pattern.begin("a", "is_new").times(2).next("b", "y").at_least(3, consecutive=True),
        "Pattern.begin('a', 'is_new').times(2).next('b', 'y').at_least(3, consecutive=True)",
    ),
    (
        Pattern.begin("a", is_small).followed_by("b", given=lambda value, taken: True).times(1, 3).optional(),
        "Pattern.begin('a', is_small).followed_by('b', given=<lambda>).times(1, 3).optional()",
    ),
    (
        Pattern.begin("a", "x").not_next("b", "x").next("c", "x").not_followed_by("d", "x").within(60),
        "Pattern.begin('a', 'x').not_next('b', 'x').next('c', 'x').not_followed_by('d', 'x').within(0:01:00)",
    ),
    (
        LookupTable.from_call(fetch_all, key="id", every=300),
        "LookupTable(fetch_all, key='id', every=0:05:00)",
    ),
    (LookupTable.from_call(fetch_all), "LookupTable(fetch_all)"),
    (LookupTable.from_file("planes.csv", len), "LookupTable(planes.csv, key=len)"),
    (TumblingWindows(3600), "TumblingWindows(size=1:00:00)"),
    (
        TumblingWindows(60, offset=5, time="processing"),
        "TumblingWindows(size=0:01:00, offset=0:00:05, time='processing')",
    ),
    (SlidingWindows(60, 10), "SlidingWindows(size=0:01:00, slide=0:00:10)"),
    (CumulativeWindows(60, 10), "CumulativeWindows(size=0:01:00, step=0:00:10)"),
    (SessionWindows(60), "SessionWindows(gap=0:01:00)"),
    (DynamicSessionWindows(len), "DynamicSessionWindows(gap_of=len)"),
    (GlobalWindows(), "GlobalWindows()"),
    (PurgingTrigger(CountTrigger(5)), "PurgingTrigger(of=CountTrigger(n=5))"),
    (CountEvictor(5), "CountEvictor(n=5)"),
    (TimeEvictor(60, "after"), "TimeEvictor(size=0:01:00, when='after')"),
    (Count(), "Count()"),
    (Max("price"), "Max(of='price')"),
    (Collect(len), "Collect(of=len)"),
    (Quantile(0.5, "price"), "Quantile(share=0.5, of='price')"),
    (Reduce(max), "Reduce(reduce=max)"),
    (Aggregates(n=Count(), dear=Max("price")), "Aggregates(n=Count(), dear=Max(of='price'))"),
    (JsonLinesSource("a.jsonl"), "JsonLinesSource(path='a.jsonl')"),
    (JsonLinesSource(Path("a/b.jsonl")), "JsonLinesSource(path='a/b.jsonl')"),
    (CsvSource("a.csv", delimiter=";"), "CsvSource(path='a.csv', delimiter=';')"),
    (GlobSource("*.csv", CsvSource, watch=5), "GlobSource(pattern='*.csv', make=CsvSource, watch=5)"),
    (DeadLetterSource(JsonLinesSource("a")), "DeadLetterSource(letters=JsonLinesSource(path='a'))"),
    (JsonLinesSink("a", existing="append"), "JsonLinesSink(path='a', existing='append')"),
    (SqliteSink("a.db", "t", columns=["n"]), "SqliteSink(path='a.db', table='t', columns=['n'])"),
    (KafkaSource("a", "b", bootstrap_servers="h"), "KafkaSource('a', 'b', bootstrap_servers='h')"),
    (RateLimiter(50, per=timedelta(minutes=1)), "RateLimiter(rate=50, per=0:01:00)"),
    (Breaker(failures=3), "Breaker(failures=3)"),
    (Budget(usd=5), "Budget(usd=5)"),
    (retry(attempts=5), "retry(attempts=5)"),
    (retry(fetch, attempts=5, on=OSError), "retry(fetch, attempts=5, on=OSError)"),
    (cached(rate_limit(fetch, rate=5), ttl=60), "cached(rate_limit(fetch, rate=5), ttl=60)"),
    (
        circuit_breaker(fetch, breaker=Breaker(failures=3)),
        "circuit_breaker(fetch, breaker=Breaker(failures=3))",
    ),
    (in_threads(len, threads=4), "InThreads(fn=len, threads=4)"),
    (CountEviction(5), "CountEviction(length=5)"),
    (CountTriggerPolicy(5), "CountTriggerPolicy(slide=5)"),
    (SystemClock(), "SystemClock()"),
    (ManualClock(5), "ManualClock(now_ms=5)"),
    (MemoryStore(), "MemoryStore()"),
    (DirectoryStore("kept"), "DirectoryStore(path='kept')"),
    # of elements, which are shown only to who asks for them, the number
    (Items(["anna"]), "Items(items=<list of 1>)"),
    (Items(iter(["anna"])), "Items(items=<list_iterator>)"),
]


@pytest.mark.parametrize(("made", "shown"), SHOWN, ids=[shown for _, shown in SHOWN])
def test_object_is_shown_as_it_is_made(made: Any, shown: str) -> None:
    assert repr(made) == shown


SECRET = [
    PostgresSink("postgresql://shop:SECRET@db/shop", "t", columns=["n"]),
    PostgresSink("host=db password=SECRET", "t", columns=["n"]),
    RedisStreamSource("redis://:SECRET@cache", "orders"),
    NatsSink("nats://me:SECRET@bus", "orders", client={"password": "SECRET"}),
    HttpLookup("https://me:SECRET@host/{id}?key=SECRET", headers={"X-Key": "SECRET"}),
    SseSource("https://host/events?key=SECRET"),
    cached(fetch, store="redis://:SECRET@cache"),
    cached(store="redis://:SECRET@cache"),
    rate_limit(fetch, rate=5, scope=SharedLimit("redis://:SECRET@cache", name="ours")),
    Checkpoints(store=MemoryStore(), key=b"SECRET, and some more"),
]


@pytest.mark.parametrize("made", SECRET, ids=lambda made: type(made).__name__)
def test_secret_is_not_shown(made: object) -> None:
    assert "SECRET" not in repr(made)
    assert repr(made).startswith(("Postgres", "Redis", "Nats", "Http", "Sse", "cached(", "rate_l", "Checkp"))


class Mine(Sink[int]):
    """Holds what only its author knows the meaning of."""

    def __init__(self, code: str, most: int) -> None:
        self.code = code
        self.login = ("me", code)
        self.most = most
        self._client = code

    async def write_batch(self, values: Sequence[int], /) -> None:
        pass


class Dated(JsonLinesSource[Any]):
    """Adds nothing to how it is made."""


def test_class_of_others_is_shown_without_texts_of_unknown_meaning() -> None:
    assert repr(Mine("SECRET", 5)) == "Mine(code=..., login=..., most=5)"
    assert repr(Dated("a.jsonl")) == "Dated(path='a.jsonl')"


def test_object_is_shown_the_same_when_it_has_been_sent() -> None:
    sent = pickle.loads(pickle.dumps(SlidingWindows(60, 10)))
    assert repr(sent) == "SlidingWindows(size=0:01:00, slide=0:00:10)"


class Proxy:
    """Stands for what is not there yet."""

    def __getattr__(self, name: str) -> object:
        raise RuntimeError("there is no request")


class Odd(int):
    def __repr__(self) -> str:
        raise RuntimeError("not now")


def _in_itself() -> list[Any]:
    held: list[Any] = []
    held.append(held)
    return held


@pytest.mark.parametrize("value", [Proxy(), [Proxy()], Odd(5), _in_itself(), 10**5000], ids=type)
def test_object_can_be_made_of_what_cannot_be_shown(value: object) -> None:
    assert repr(Broadcast(value)).startswith("Broadcast(stream=")


def test_argument_is_shown_in_part_if_it_is_long() -> None:
    for value in ("http://" + "a" * 10_000, [["x" * 300] * 10] * 10, tuple("x" * 300 for _ in range(9))):
        assert len(shown_value("of", value)) <= 200


def test_negative_length_of_time_has_its_sign() -> None:
    assert shown_value("before", timedelta(minutes=-1)) == "-0:01:00"
    pipeline = Pipeline()
    stream = pipeline.source([1]).key_by(str)
    stream.join(stream).within(timedelta(minutes=-1), timedelta(hours=1)).discard()
    assert "before=-0:01:00, after=1:00:00" in pipeline.describe()


@pytest.mark.parametrize("length", [5, timedelta(seconds=5)])
@pytest.mark.parametrize("slide", [5, timedelta(seconds=5)])
@pytest.mark.parametrize("time", ["event", "processing"])
def test_what_is_made_for_each_key_holds_no_text(length: Any, slide: Any, time: Any) -> None:
    settings = policy_settings(length, slide, time=time)
    for made in (settings.eviction_policy(), settings.trigger_policy()):
        assert not any(isinstance(held, str | tuple) for held in vars(made).values())
        assert "=5" in repr(made)


def test_wrong_call_is_refused_as_python_does() -> None:
    make: Any = CountTrigger
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'n'"):
        make()
    with pytest.raises(TypeError, match="unexpected keyword argument 'm'"):
        make(5, m=1)


def test_what_stands_between_streams_is_shown() -> None:
    pipeline = Pipeline("shop")
    keyed = pipeline.source([{"k": 1}], name="orders").key_by("k")
    assert repr(pipeline) == "<Pipeline 'shop' of 1 step>"
    assert repr(keyed.window(TumblingWindows(60))) == (
        "<WindowedStream of orders, window=TumblingWindows(size=0:01:00)>"
    )
    join = "Join(left=<KeyedStream of orders>, right=<KeyedStream of orders>, how='left')"
    assert repr(keyed.join(keyed, how="left")) == join
    keyed.discard()
    assert repr(pipeline.start()) == "<Job 'shop', new>"
    assert repr(pipeline.start_in_thread()) == "<ThreadedJob 'shop', new>"


@pytest.mark.parametrize("name", asyncstream.__all__)
def test_what_users_make_is_not_shown_as_an_address(name: str) -> None:
    kind = getattr(asyncstream, name)
    # contexts and emitters are given to functions, protocols and functions of users' are for them to write
    of_users = ("Context", "Emitter", "Function", "FrameResult", "Subscription")
    if isinstance(kind, type) and not name.endswith(of_users) and not getattr(kind, "_is_protocol", False):
        shown: Any = kind.__repr__
        assert shown is not object.__repr__


async def test_job_is_shown_with_its_state() -> None:
    pipeline = Pipeline("shop")
    pipeline.submissions(name="orders").discard()
    async with pipeline.start() as job:
        assert repr(job) == "<Job 'shop', running>"
        await asyncio.sleep(0)
    assert repr(job) == "<Job 'shop', finished>"
