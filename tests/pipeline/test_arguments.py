"""Arguments of one kind are refused alike wherever they are: flags, functions, figures, options."""

from __future__ import annotations

import math
from asyncio import Queue, Semaphore
from collections.abc import Callable
from datetime import timedelta
from functools import partial, wraps
from operator import add, itemgetter
from typing import Any
from unittest.mock import Mock

import pytest

from asyncstream import (
    AscendingTimestamps,
    AsyncFunction,
    Checkpoints,
    Count,
    CsvSource,
    FrameSource,
    GlobalWindows,
    GlobSource,
    Items,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ManualClock,
    MemoryStore,
    Pattern,
    Pipeline,
    PipelineError,
    PunctuatedWatermarks,
    SplitSource,
    SqliteSource,
    TumblingWindows,
)
from asyncstream.connectors import CallbackSink, ListSink
from asyncstream.connectors.http import HttpLookup, RestSource, SseSource
from asyncstream.guards import (
    AdaptiveLimit,
    Breaker,
    Budget,
    LimitServer,
    RateLimiter,
    SharedConcurrency,
    SharedLimit,
    adaptive_concurrency,
    cached,
    circuit_breaker,
    metered,
    rate_limit,
    retry,
)
from asyncstream.state import AggregatingDescriptor, ReducingDescriptor
from asyncstream.testing import harness, sink_contract, source_contract
from asyncstream.web import app
from asyncstream.windowing import CountTrigger, DeltaEvictor, DeltaTrigger, ProcessingTimeoutTrigger, Reduce


async def fetch(value: int) -> int:
    return value


def started(**given: Any) -> object:
    pipeline = Pipeline()
    pipeline.source([1]).discard()
    return pipeline.start(**given)


def keyed() -> Any:
    timed = Pipeline().source([1]).event_time(int, AscendingTimestamps())
    return timed.key_by(lambda value: value)


def plain(value: Any) -> Any:
    """What type checkers are to let pass."""
    return value


def numbers() -> Any:
    return Pipeline().source([1])


def connected() -> Any:
    stream = numbers().key_by(int)
    return stream.connect(stream)


def looked_up(missing: Any, **options: Any) -> object:
    pipeline = Pipeline()
    table = pipeline.source([1]).key_by(lambda value: value).as_table()
    return plain(pipeline.source([1])).lookup(table, int, missing=missing, **options)


class Comparing:
    """As an array does, it says nothing true or false of being equal."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth value is ambiguous")


class Lock:
    """Returns nothing, as that of threads does not wait for others of its event loop."""

    def acquire(self, amount: float = 1) -> None:
        pass


def guarded(guard: Any, **options: Any) -> object:
    return guard(fetch, **options)


FLAGS: dict[str, Callable[..., object]] = {
    "stagger": lambda **flag: TumblingWindows(1, **flag),
    "fire_at_end": lambda **flag: GlobalWindows(**flag),
    "reset_on_record": lambda **flag: ProcessingTimeoutTrigger(CountTrigger(1), 1, **flag),
    "clear_on_timeout": lambda **flag: ProcessingTimeoutTrigger(CountTrigger(1), 1, **flag),
    "order_free": lambda **flag: Reduce(add, **flag),
    "ranked": lambda **flag: keyed().top(1, int, changes="all", **flag),
    "retracts": lambda **flag: keyed().top(1, int, **flag),
    "consecutive": lambda **flag: Pattern.begin("one", bool).times(2, **flag),
    "tumbling": lambda **flag: keyed().policy_window(length=3, **flag),
    "cancel_body": started,
    "uvloop": lambda **flag: Pipeline().run_blocking(**flag),
    "checkpoints": lambda **flag: Pipeline().describe(**flag),
    "cookies": lambda **flag: HttpLookup("http://api/{}", **flag),
    "rejects": lambda **flag: SplitSource(Items, ["a"], **flag),
    "idle": lambda **flag: harness(CountTrigger(1), window=TumblingWindows(1)).set_idle(**flag),
    **{
        name: lambda **flag: sink_contract(lambda folder: ListSink([]), lambda folder: [], range(16), **flag)
        for name in ("transactional", "durable", "fenced", "in_order", "rewinds")
    },
    **{
        name: lambda **flag: source_contract(lambda folder: Items([1]), range(8), **flag)
        for name in ("replayable", "ends", "replays_in_order")
    },
}


@pytest.mark.parametrize("value", ["false", 0, None, []])
@pytest.mark.parametrize("name", FLAGS)
def test_a_flag_is_true_or_false(name: str, value: object) -> None:
    with pytest.raises(PipelineError, match=f"{name}: expected True or False, got"):
        FLAGS[name](**{name: value})


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no number": (lambda: DeltaTrigger(lambda a, b: 0.0, math.nan), "threshold: expected a number, got nan"),
    "no number to evict by": (
        lambda: DeltaEvictor(lambda a, b: 0.0, math.nan),
        "threshold: expected a number, got nan",
    ),
    "more than a float holds": (lambda: Breaker(failure_ratio=10**400), "failure_ratio: expected a number"),
    "a budget of that": (lambda: Budget(calls=10**400), "calls: expected a number of at least 0"),
    "what is a failure": (lambda: Breaker(on="all"), "on: expected a function, got 'all'"),  # type: ignore[arg-type]
    "clock of a budget": (lambda: Budget(calls=1, clock=5), "clock: expected a Clock, got 5"),  # type: ignore[arg-type]
    "a result that is looked at later": (
        lambda: guarded(retry, on_result=fetch),
        "on_result: expected a plain function",
    ),
    "an error that is looked at later": (
        lambda: guarded(retry, on=fetch),
        "on: expected a plain function",
    ),
    "a key that comes later": (
        lambda: guarded(retry, idempotency_key=fetch),
        "idempotency_key: expected",
    ),
    "errors to retry in a list": (
        lambda: guarded(retry, on=[OSError]),
        "on: expected an exception type, a tuple of them, or a predicate, got [<class 'OSError'>]",
    ),
    "no chance": (lambda: guarded(retry, random=0.5), "random: expected a function, got 0.5"),
    "back-off without end": (
        lambda: guarded(retry, wait_exp_base=math.inf),
        "wait_exp_base: expected a number of at least 1, got inf",
    ),
    "clock of a retry": (lambda: guarded(retry, clock=5), "clock: expected a Clock, got 5"),
    "errors in a list": (
        lambda: guarded(cached, errors=[OSError]),
        "errors: expected types of exceptions, as a tuple, got [",
    ),
    "what there is not": (lambda: guarded(cached, negative=0), "negative: expected a function, got 0"),
    "a size for a cache": (
        lambda: guarded(cached, cache=100),
        "cache: expected a mapping, such as a cache of cachetools, got 100",
    ),
    "weight of a call": (
        lambda: guarded(rate_limit, rate=5, weight="2"),
        "weight: expected a number of at least 0, or a function of the element, got '2'",
    ),
    "cost that comes later": (
        lambda: guarded(metered, cost=fetch, budget=Budget(calls=1)),
        "cost: expected a plain function",
    ),
    "a number for a limit": (
        lambda: guarded(adaptive_concurrency, limit=5),
        "limit: expected an AdaptiveLimit or a SharedConcurrency, got 5",
    ),
    "what is overload": (
        lambda: guarded(adaptive_concurrency, overload=503),
        "overload: expected a function, got 503",
    ),
    "reduce": (
        lambda: ReducingDescriptor("total", None),  # type: ignore[arg-type]
        "reduce of state 'total': expected a function, got None",
    ),
    "reduce that waits": (
        lambda: ReducingDescriptor[int]("total", fetch),  # type: ignore[arg-type]
        "reduce of state 'total': expected a plain function",
    ),
    "class of an aggregation": (
        lambda: AggregatingDescriptor[Any, Any]("total", Count),  # type: ignore[arg-type]
        "aggregation of state 'total': expected an object with create, add, merge and result",
    ),
    "sources by name": (
        lambda: Pipeline().with_ends(sources=[1]),  # type: ignore[arg-type]
        "sources: expected what to use instead, by the names of steps, got [1]",
    ),
    "sinks by name": (
        lambda: Pipeline().with_ends(sinks=5),  # type: ignore[arg-type]
        "sinks: expected what to use instead, by the names of steps, got 5",
    ),
    "a number of dropped steps": (
        lambda: Checkpoints(store=MemoryStore(), allow_dropped=5),  # type: ignore[arg-type]
        "allow_dropped: expected names of steps, as a list, got 5",
    ),
    "duplicates of what": (
        lambda: numbers().deduplicate(),
        "key: expected what makes elements the same, for this stream has no key, got None",
    ),
    "a dropped step without a name": (
        lambda: Checkpoints(store=MemoryStore(), allow_dropped=[5]),  # type: ignore[list-item]
        "allow_dropped: expected a non-empty text, got 5",
    ),
    "a choice that is an array": (
        lambda: Pipeline().source([1]).map(int, on_error=Comparing()),  # type: ignore[call-overload]
        "on_error: expected one of 'fail', 'skip', 'route', got",
    ),
    "a time of a clock": (
        lambda: ManualClock(1.5),  # type: ignore[arg-type]
        "now_ms: expected whole milliseconds since the epoch, got 1.5",
    ),
    "a time that a clock is moved to": (
        lambda: ManualClock().set_ms("1000"),  # type: ignore[arg-type]
        "now_ms: expected whole milliseconds since the epoch, got '1000'",
    ),
    "what is shown of elements comes later": (
        lambda: plain(started()).status(values=fetch),
        "values: expected a plain function",
    ),
    "what the web shows of elements comes later": (
        lambda: app(values=fetch),
        "values: expected a plain function",
    ),
    "a plain function for what is missing": (
        lambda: looked_up(lambda value: value),
        "missing: expected an async def of one element, or an AsyncFunction",
    ),
    "results one by one when it is late": (
        lambda: Pipeline().source([1]).async_map(fetch, timeout=1, on_timeout=lambda value: (yield)),
        "on_timeout: expected a function that returns",
    ),
    "an URL that waits": (
        lambda: HttpLookup(fetch),  # type: ignore[arg-type]
        "url: expected a plain function",
    ),
    "an URL that has no bytes": (lambda: HttpLookup("http://\ud800/{}"), "url: expected a template that"),
    "a breaker and what it is made of": (
        lambda: guarded(circuit_breaker, breaker=Breaker(), failures=3),
        "failures: expected none beside breaker=, which has its own, got 3",
    ),
    "a limiter and what it is made of": (
        lambda: guarded(rate_limit, limiter=RateLimiter(5), burst=3),
        "burst: expected none beside limiter=, which has its own, got 3",
    ),
    "a limit and what it is made of": (
        lambda: guarded(adaptive_concurrency, limit=AdaptiveLimit(), most=3),
        "most: expected none beside limit=, which has its own, got 3",
    ),
    "a cache and its size": (
        lambda: guarded(cached, cache={}, size=3),
        "size: expected none beside cache=, which has its own, got 3",
    ),
    "options of no cache": (
        lambda: HttpLookup("http://api/{}", cache_options={"size": 3}),
        "cache_options: expected cache_ttl= to go with it",
    ),
    "a rate that is a text": (
        lambda: HttpLookup("http://api/{}", rate="5/s"),  # type: ignore[arg-type]
        "rate: expected requests per second, or a limiter, got '5/s'",
    ),
    "options of attempts": (
        lambda: HttpLookup("http://api/{}", retry_options=[1]),  # type: ignore[arg-type]
        "retry_options: expected options by name, got [1]",
    ),
    "a limit that processes share, of nothing": (
        lambda: SharedConcurrency(0, scope=SharedLimit("sqlite:///limits.db")),
        "most: expected an integer of at least 1, got 0",
    ),
    "a rate below one": (
        lambda: guarded(rate_limit, rate=0.5),
        "rate: expected an integer of at least 1, got 0.5; for fewer than one in a second give a longer per=",
    ),
    "a port that is true": (
        lambda: LimitServer(port=True),
        "port: expected an integer of at least 0, got True",
    ),
    "no port": (lambda: LimitServer(port=2**16), "port: expected a port, or 0, got 65536"),
    "streams by number": (
        lambda: numbers().policy_window(length=3, streams=2, stream_of=int),
        "streams: expected at least one name, each once, got 2",
    ),
    "streams that have no names": (
        lambda: numbers().policy_window(length=3, streams=[2], stream_of=int),
        "streams: expected a non-empty text, got 2",
    ),
    "what is late of no name": (
        lambda: numbers().policy_window(length=3, late="too\nlate"),
        "late: expected a text of printable characters, got",
    ),
    "items of a class": (
        lambda: Items(Queue),  # type: ignore[arg-type]
        "items: expected an iterable or an async iterable, got <class",
    ),
    "frames that come later": (
        lambda: FrameSource(plain(fetch)),
        "frame: expected a plain function",
    ),
    "options of a second attempt that is not made": (
        lambda: HttpLookup("http://api/{}", method="POST", retry_options={"wait_max": 1}),
        "retry_options: expected attempts= to go with it, for a POST is sent once, got {'wait_max': 1}",
    ),
    "options of a second attempt that is not made, and are none": (
        lambda: HttpLookup("http://api/{}", attempts=1, retry_options={"wait_most": 1}),
        "retry: there is no option 'wait_most'; there are: attempts, timeout, wait_initial",
    ),
    "attempts twice": (
        lambda: HttpLookup("http://api/{}", retry_options={"attempts": 3}),
        "retry_options: expected no attempts, which is attempts= of the lookup, got {'attempts': 3}",
    ),
    "how long answers are kept twice": (
        lambda: HttpLookup("http://api/{}", cache_ttl=5, cache_options={"ttl": 3}),
        "cache_options: expected no ttl, which is cache_ttl= of the lookup, got {'ttl': 3}",
    ),
    "options without names": (
        lambda: HttpLookup("http://api/{}", retry_options={1: 3}),  # type: ignore[dict-item]
        "retry_options: expected options by name, got {1: 3}",
    ),
    "the class of a limiter": (
        lambda: HttpLookup("http://api/{}", rate=RateLimiter),  # type: ignore[arg-type]
        "rate: expected requests per second, or a limiter, got <class",
    ),
    "the class of a limiter, for a guard": (
        lambda: guarded(rate_limit, limiter=RateLimiter),
        "limiter: expected a RateLimiter or an aiolimiter.AsyncLimiter, got <class",
    ),
    "a limiter that is not waited for": (
        lambda: guarded(rate_limit, limiter=Lock()),
        "limiter.acquire: expected an async def, got <bound method Lock.acquire of",
    ),
    "a limiter without weights": (
        lambda: guarded(rate_limit, limiter=Semaphore()),
        "limiter.acquire: expected a function that takes (amount), got one that takes ()",
    ),
    "a first wait above the longest": (
        lambda: guarded(retry, wait_initial=timedelta(seconds=10)),
        "wait_initial: expected at most wait_max=5, got 10.0; give a longer wait_max= with it",
    ),
    "a first wait of a source above the longest": (
        lambda: SseSource("http://api/", wait_initial=2, wait_max=1),
        "wait_initial: expected at most wait_max=1, got 2.0; give a longer wait_max= with it",
    ),
    "an option that a source does not have": (
        lambda: SseSource("http://api/", retries=2),  # type: ignore[call-arg]
        "SseSource: there is no option 'retries'; there are: decode, replays, on_end, idle_timeout, ",
    ),
    "the first of pages that have no numbers": (
        lambda: RestSource("http://api/", first=0),
        "page: expected with first=, the parameter that takes the number of a page, got None",
    ),
    "how answers are written nowhere": (
        lambda: guarded(cached, codec="pickle"),
        "codec: expected a store to go with it, got 'pickle'",
    ),
    "what is merged": (
        lambda: HttpLookup("http://api/{}", merge="both"),  # type: ignore[arg-type]
        "merge: expected a function, got 'both'",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_work_is_refused_in_words(case: str) -> None:
    build, message = WRONG[case]
    with pytest.raises(PipelineError) as caught:
        build()
    assert message in str(caught.value)


def test_class_where_another_class_is_wanted_is_not_told_to_be_made() -> None:
    with pytest.raises(PipelineError, match=r"^model: expected a dataclass, .*, got <class 'dict'>$"):
        CsvSource("a.csv", model=dict)


class Short(KeyedProcessFunction[int, int]):
    """Knows nothing of `out`."""

    def process_element(self, value: int, ctx: Any) -> None:  # type: ignore[override]
        pass


class ShortPair(KeyedCoProcessFunction[int, int, int]):
    def process_left(self, value: int, ctx: Any) -> None:  # type: ignore[override]
        pass


class ShortCall(AsyncFunction[int, int]):
    async def invoke(self) -> int:  # type: ignore[override]
        return 1


class ShortTrigger(CountTrigger):
    def on_element(self, value: Any) -> Any:  # type: ignore[override]
        pass


async def asked_for_nothing() -> int:
    return 1


def _none() -> None:
    pass


async def answered(value: int) -> int:
    return value


UNCALLABLE: dict[str, tuple[Callable[[], object], str, str]] = {
    "source": (lambda: plain(Pipeline()).source(lambda count: [count]), "source", ""),
    "sink": (lambda: numbers().to(lambda: None), "sink", "element"),
    "map": (lambda: numbers().map(lambda: 1), "fn", "element"),
    "method without its object": (lambda: numbers().map(Text.of), "fn", "element"),
    "key": (lambda: numbers().key_by(lambda a, b: a), "key", "element"),
    "call": (lambda: numbers().async_map(asked_for_nothing), "fn", "element"),
    "call of an object": (lambda: numbers().async_map(ShortCall()), "fn.invoke", "value"),
    "rows": (lambda: looked_up(None, into=lambda row: row), "into", "element, row"),
    "reduce": (lambda: keyed().reduce(lambda a: a), "fn", "before, element"),
    "reduce of windows": (
        lambda: keyed().window(TumblingWindows(1)).reduce(lambda a: a),
        "reduce",
        "before, element",
    ),
    "given": (
        lambda: plain(Pattern.begin("a", bool)).next("b", given=lambda value: True),
        "given",
        "element, before",
    ),
    "process function": (
        lambda: keyed().process(Short()),
        "function.process_element",
        "value, ctx, out",
    ),
    "process function of two": (
        lambda: connected().process(ShortPair()),
        "function.process_left",
        "value, ctx, out",
    ),
    "trigger": (
        lambda: keyed().window(TumblingWindows(1)).trigger(ShortTrigger(2)),
        "trigger.on_element",
        "value, timestamp, window, ctx",
    ),
    "late call": (
        lambda: numbers().async_map(answered, timeout=1, on_timeout=lambda: 0),
        "on_timeout",
        "element",
    ),
    "watermark": (lambda: PunctuatedWatermarks(plain(_none)), "watermark", "element, timestamp"),
    "error that may pass": (lambda: retry(answered, on=plain(_none)), "on", "error"),
    "error of a service": (lambda: Breaker(on=plain(_none)), "on", "error"),
    "key of a call": (lambda: retry(answered, idempotency_key=plain(_none)), "idempotency_key", "element"),
    "cost of a failed call": (
        lambda: metered(answered, cost=1, budget=Budget(usd=1), failed=plain(_none)),
        "failed",
        "element, error",
    ),
    "merged": (lambda: HttpLookup("http://x/{id}", merge=plain(_none)), "merge", "element, answer"),
    "split": (lambda: SplitSource(plain(_none), ["a"]), "make", "split"),
    "class of ours": (lambda: GlobSource("*.db", plain(SqliteSource)), "make", "split"),
    "splits": (lambda: SplitSource(Items, plain(plain)), "splits", ""),
    "items": (lambda: Items(plain(plain)), "items", ""),
    "frame": (lambda: FrameSource(plain(plain)), "frame", ""),
    "callback": (lambda: CallbackSink(plain(_none)), "function", "element"),
    "sinks in place of others": (lambda: Pipeline().with_ends(sinks=plain(plain)), "sinks", "name, sink"),
    "migrated": (
        lambda: Checkpoints(store=MemoryStore(), migrate={"a": plain(_none)}),
        "migrate['a']",
        "state",
    ),
}


class Text:
    def of(self, text: str) -> str:
        return text


@pytest.mark.parametrize("case", UNCALLABLE)
def test_function_that_cannot_be_called_as_it_will_be_is_refused(case: str) -> None:
    build, name, arguments = UNCALLABLE[case]
    with pytest.raises(PipelineError) as caught:
        build()
    said = f"{name}: expected a function that takes ({arguments}), got one that takes ("
    assert str(caught.value).startswith(said)


async def converted(rate: float, order: float) -> float:
    return rate * order


@pytest.mark.parametrize(
    "given",
    [partial(plain(converted), 2.0, 3.0, 4.0), partial(plain(converted), rates=2.0)],
    ids=["more", "misspelled"],
)
def test_partial_that_gives_its_function_what_it_does_not_take_is_refused(given: Any) -> None:
    with pytest.raises(PipelineError, match=r"\(element\), got .*converted.* of one that takes \(rate:"):
        numbers().async_map(given)


def test_partial_of_what_does_not_tell_what_it_takes_is_let_pass() -> None:
    numbers().map(partial(int, base=2))
    numbers().async_map(partial(converted, 2.0))


def test_function_is_asked_what_it_takes_itself() -> None:
    def given_more(fn: Callable[[int, int], int]) -> Callable[[int], int]:
        @wraps(fn)
        def given(value: int) -> int:
            return fn(value, 10)

        return given

    @given_more
    def added(value: int, more: int) -> int:
        return value + more

    found: list[Any] = []
    pipeline = Pipeline()
    pipeline.source([1]).map(added).map(str).map(itemgetter(0)).map(Mock(return_value=7)).to(found.append)
    pipeline.run_blocking()
    assert found == [7]


def test_names_of_dropped_steps_may_come_one_by_one() -> None:
    settings = Checkpoints(store=MemoryStore(), allow_dropped=(name for name in "ab"))
    assert [name in settings.allow_dropped for name in "ba"] == [True, True]


def test_windows_may_be_longer_than_any_timedelta() -> None:
    pipeline = Pipeline()
    timed = pipeline.source([1]).event_time(int, AscendingTimestamps())
    windows = timed.window_all(TumblingWindows(timedelta.max, stagger=True)).allowed_lateness(timedelta.max)
    found: list[Any] = []
    windows.aggregate(Count()).to(found)
    assert "allowed_lateness=999999999 days" in pipeline.describe()
    pipeline.run_blocking()
    assert [result.value for result in found] == [1]
