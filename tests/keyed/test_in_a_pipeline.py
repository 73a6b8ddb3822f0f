"""What a user types, and what is refused when it is typed."""

from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    Change,
    CheckpointError,
    Checkpoints,
    ManualClock,
    MemoryStore,
    Pipeline,
    PipelineError,
    Ranking,
    Stream,
    UserFunctionError,
)
from asyncstream.keyed import DeduplicateSpec
from asyncstream.keyed.rolling import RollingSpec
from asyncstream.operators.spec import no_key
from asyncstream.state import TimeToLive
from asyncstream.testing import harness
from tests.operators.recorder import record

SECOND = 1_000


def key_of(value: Any) -> Any:
    return value["key"]


def event(key: str, value: int) -> dict[str, Any]:
    return {"key": key, "v": value}


def test_of_each_key_the_first_passes() -> None:
    with harness(lambda stream: stream.deduplicate("key")) as tested:
        tested.push_all([event("a", 1), event("b", 2), event("a", 3)])
        assert tested.collect() == [event("a", 1), event("b", 2)]


def test_a_key_is_new_again_when_its_time_is_over_exactly() -> None:
    with harness(lambda stream: stream.key_by("key").deduplicate(within=timedelta(seconds=10))) as tested:
        tested.push(event("a", 1))
        tested.advance_clock(9_999)
        tested.restart()
        tested.push(event("a", 2))
        tested.advance_clock(10_000)
        tested.push(event("a", 3))
        tested.advance_clock(19_999)
        tested.push(event("a", 4))
        assert [one["v"] for one in tested.collect()] == [1, 3]


def test_keys_whose_time_is_over_leave_memory_whether_or_not_they_come_again() -> None:
    with harness(lambda stream: stream.deduplicate("key", within=10)) as tested:
        tested.push_all(event(str(number), 0) for number in range(50))
        tested.advance_clock(5_000)
        tested.restart()
        tested.push_all(event(str(number), 0) for number in range(50, 60))
        tested.advance_clock(10_000)
        tested.push_all(event("0", 0) for _ in range(30))
        assert next(iter(tested.metrics().values()))["state_entries"] == 11
        assert len(tested.collect()) == 61


def test_a_key_that_came_again_is_not_forgotten_with_its_first_time() -> None:
    """It came again before those that were older were let go, two with each element."""
    with harness(lambda stream: stream.deduplicate("key", within=10)) as tested:
        tested.push_all(event(str(number), 0) for number in range(8))
        tested.advance_clock(10_000)
        tested.push(event("7", 1))
        tested.push_all(event("new", 2) for _ in range(10))
        tested.push(event("7", 3))
        assert [one["v"] for one in tested.collect()] == [0] * 8 + [1, 2]


def test_another_time_to_live_holds_for_what_was_seen() -> None:
    def lives(seconds: float | None) -> Any:
        return DeduplicateSpec(key_of, within=None if seconds is None else TimeToLive(seconds)).build

    with harness(lives(None)) as first, harness(lives(10)) as second, harness(lives(None)) as third:
        first.push(event("a", 0))
        second.restore(first.snapshot())
        second.advance_clock(9_999)
        second.push(event("a", 1))
        third.restore(second.snapshot())
        third.advance_clock(50_000)
        third.push(event("a", 2))
        assert (second.collect(), third.collect()) == ([], [])
        second.advance_clock(10_000)
        second.push(event("a", 3))
        assert second.collect() == [event("a", 3)]


def test_a_key_of_its_own_takes_the_place_of_the_streams() -> None:
    with harness(lambda stream: stream.key_by("key").deduplicate("v")) as tested:
        tested.push_all([event("a", 1), event("b", 1), event("a", 2)])
        assert tested.collect() == [event("a", 1), event("a", 2)]


def test_the_last_passes_whenever_it_is_another() -> None:
    with harness(lambda stream: stream.deduplicate("key", keep="last", within=10)) as tested:
        tested.push_all([event("a", 1), event("a", 1), event("a", 2), event("a", 1)])
        assert [one["v"] for one in tested.collect()] == [1, 2, 1]


def test_the_last_by_event_time_passes_whenever_it_is_another() -> None:
    with harness(lambda stream: stream.deduplicate("key", keep="last", by="event_time")) as tested:
        for value, at in [(1, 10), (1, 10), (2, 10), (3, 9), (2, 11)]:
            tested.push(event("a", value), at=at)
        assert tested.collect(timestamps=True) == [
            (event("a", 1), 10),
            (event("a", 2), 10),
            (event("a", 2), 11),
        ]


def test_the_first_by_event_time_waits_for_the_watermark() -> None:
    with harness(lambda stream: stream.deduplicate("key", by="event_time")) as tested:
        tested.push(event("a", 1), at=30)
        tested.push(event("a", 2), at=20)
        tested.advance(19)
        assert tested.collect() == []
        tested.advance(20)
        tested.push(event("b", 3), at=19)
        assert tested.collect(timestamps=True) == [(event("a", 2), 20)]
        assert tested.collect("late") == [event("b", 3)]


def test_a_change_log_says_what_is_replaced() -> None:
    with harness(lambda stream: stream.deduplicate("key", by="event_time", changes="all")) as tested:
        tested.push(event("a", 1), at=30)
        tested.push(event("a", 2), at=20)
        kinds = [(change.kind, change.value["v"]) for change in tested.collect()]
        assert kinds == [("+I", 1), ("-U", 1), ("+U", 2)]


def test_the_top_is_told_whenever_it_changes() -> None:
    with harness(lambda stream: stream.key_by("key").top(2, by="v")) as tested:
        tested.push_all(event("a", value) for value in (1, 3, 0, 2))
        told = tested.collect()
    assert [[one["v"] for one in ranking.values] for ranking in told] == [[1], [3, 1], [3, 2]]
    assert all(type(ranking) is Ranking and ranking.key == "a" for ranking in told)


def test_the_top_begins_behind_those_that_are_skipped() -> None:
    with harness(lambda stream: stream.key_by("key").top(2, by="v", skip=1)) as tested:
        tested.push_all(event("a", value) for value in (5, 4, 3, 2))
        told = tested.collect()
    assert [one["v"] for one in told[-1].values] == [4, 3]


def test_changes_of_one_step_are_the_rows_of_the_next() -> None:
    """The last price of each item, and of these the two smallest."""

    def define(stream: Stream[Any]) -> Stream[Any]:
        latest = stream.deduplicate("key", keep="last", changes="all")
        return latest.key_by(lambda change: None).top(2, by="v", order="ascending", retracts=True)

    with harness(define) as tested:
        tested.push_all([event("a", 5), event("b", 7), event("c", 6), event("a", 9)])
        assert [[one["key"] for one in ranking.values] for ranking in tested.collect()][-1] == ["c", "b"]
        tested.push(event("c", 8))
        assert [one["key"] for one in tested.collect()[-1].values] == ["b", "c"]


def test_row_that_is_replaced_by_one_of_another_key_leaves_its_ranking() -> None:
    """The cheapest of the last price of each item, by shop: an item moves from one shop to another."""

    def offer(shop: str, item: str, price: int) -> dict[str, Any]:
        return {"shop": shop, "item": item, "price": price}

    def define(stream: Stream[Any]) -> Stream[Any]:
        latest = stream.deduplicate("item", keep="last", changes="all")
        by_shop = latest.key_by(lambda change: change.value["shop"])
        return by_shop.top(1, by="price", order="ascending", retracts=True)

    with harness(define) as tested:
        tested.push_all([offer("A", "tea", 5), offer("A", "jam", 3)])
        tested.collect()
        tested.push(offer("B", "jam", 4))
        told = [(ranking.key, [row["item"] for row in ranking.values]) for ranking in tested.collect()]
        assert told == [("A", ["tea"]), ("B", ["jam"])]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("part", [lambda: float("nan"), lambda: np.array([1, 2])])
def test_a_row_that_does_not_equal_a_copy_can_be_taken_back(restarts: bool, part: Any) -> None:
    """As with NaN, unless it is the very same; or an array, which says of each part whether that is equal."""

    def row(number: int) -> tuple[str, int, Any]:
        return ("k", number, part())

    def define(stream: Stream[Any]) -> Stream[Any]:
        return stream.key_by(lambda change: change.value[0]).top(2, by=lambda row: row[1], retracts=True)

    with harness(define) as tested:
        for number in range(3):
            tested.push(Change("+I", row(number)), at=0)
        if restarts:
            tested.restart()
        tested.push(Change("-D", row(1)), at=0)
        tested.push(Change("-D", row(7)), at=0)
        assert [values[1] for values in tested.collect()[-1].values] == [2, 0]
        assert next(iter(tested.metrics().values()))["not_there"] == 1


def test_the_last_of_rows_with_arrays_is_kept() -> None:
    def row(*numbers: int) -> dict[str, Any]:
        return {"key": "k", "v": np.array(numbers)}

    with harness(lambda stream: stream.deduplicate("key", keep="last")) as tested:
        for one in (row(1, 2), row(1, 2), row(1, 3), row(1, 3, 5)):
            tested.push(one)
            tested.restart()
        assert [one["v"].tolist() for one in tested.collect()] == [[1, 2], [1, 3], [1, 3, 5]]


def test_a_row_that_is_not_there_is_counted() -> None:
    with harness(lambda stream: stream.key_by(lambda _: 0).top(1, by="v", retracts=True)) as tested:
        tested.push_all(
            [Change("-D", event("a", 1)), Change("+I", event("a", 1)), Change("-D", event("a", 2))]
        )
        assert len(tested.collect()) == 1
        assert next(iter(tested.metrics().values()))["not_there"] == 2


def test_a_change_of_no_kind_is_refused() -> None:
    """It is the user's own; and would be lost, or keep a row that is gone."""
    change: Any = Change("d", event("a", 1))  # type: ignore[arg-type]
    ranked = harness(lambda stream: stream.key_by(lambda _: 0).top(1, by="v", retracts=True))
    looked_up = harness(lambda events, rows: events.lookup(rows.as_table("key"), on="key"))
    with ranked, pytest.raises(UserFunctionError, match=r"of the kind '\+I', '-U', '\+U' or '-D', got 'd'"):
        ranked.push(change)
    with looked_up, pytest.raises(UserFunctionError, match="got 'd', on element Change"):
        looked_up.push(change, input=1)


def test_rolling_results_come_with_each_element() -> None:
    with harness(lambda stream: stream.key_by(str.lower).reduce(lambda one, other: one + other)) as tested:
        tested.push_all(["a", "b", "A", "a"])
        assert tested.collect() == ["a", "b", "aA", "aAa"]
    with harness(lambda stream: stream.key_by("key").max_by("v", ttl=10)) as tested:
        tested.push_all([event("a", 2), event("a", 1), event("a", 3)])
        tested.advance_clock(10_000)
        tested.push(event("a", 0))
        assert [one["v"] for one in tested.collect()] == [2, 2, 3, 0]


@pytest.mark.parametrize(("order", "best"), [("ascending", "min_by"), ("descending", "max_by")])
@pytest.mark.parametrize("by", [float, Decimal, lambda value: (value, 0)])
def test_nan_is_never_among_the_first_while_there_are_numbers(order: Any, best: str, by: Any) -> None:
    for values in permutations([math.nan, 1.0, 3.0, math.nan, 2.0], 4):
        numbers = sorted((value for value in values if value == value), reverse=order == "descending")
        with (
            harness(lambda stream: stream.key_by(no_key).top(3, by, order=order)) as top,
            harness(lambda stream: getattr(stream.key_by(no_key), best)(by)) as rolling,
        ):
            top.push_all(values)
            first = top.collect()[-1].values
            assert first[: len(numbers)] == numbers
            assert all(map(math.isnan, first[len(numbers) :]))
            rolling.push_all(values)
            assert rolling.collect()[-1] == numbers[0]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_what_was_seen_is_seen_after_a_restart_and_no_other_way_reads_it() -> None:
    store, clock = MemoryStore(), ManualClock(0)

    async def run(values: str, **options: Any) -> list[Any]:
        out: list[Any] = []
        made = Pipeline("firsts")
        made.submissions(name="in").deduplicate(lambda value: value, name="first", **options).to(
            out, name="out"
        )
        async with made.start(checkpoints=Checkpoints(store=store), clock=clock) as job:
            for value in values:
                await job.submit(value)
            await job.drain()
        return out

    assert await run("abcab", within=60) == ["a", "b", "c"]
    assert await run("cdbd", within=60) == ["d"]
    with pytest.raises(CheckpointError, match="keep was 'first' and is 'last'"):
        await run("a", keep="last")


def test_what_cannot_be_folded_is_the_users_error() -> None:
    async def later(one: Any, other: Any) -> Any:
        return one

    with (
        harness(lambda stream: stream.key_by("key").reduce(lambda a, b: later(a, b))) as tested,
        pytest.raises(UserFunctionError, match="ask a service in an async_map"),
    ):
        tested.push_all([event("a", 1), event("a", 2)])


@pytest.mark.parametrize("kind", [DeduplicateSpec, partial(RollingSpec, reduce=max)])
def test_what_came_before_an_element_that_fails_is_passed_on(kind: Any) -> None:
    operator = kind(lambda value: 1 // value).build()
    recorder = record(operator)
    with pytest.raises(UserFunctionError):
        operator.process_batch([1, 2, 0], [5, 6, 7])
    assert recorder.seen == [(1, 5), (2, 6)]


def test_event_time_is_needed_where_it_counts() -> None:
    with (
        harness(lambda stream: stream.deduplicate("key", keep="last", by="event_time")) as tested,
        pytest.raises(UserFunctionError, match="deduplication by event time needs a timestamp"),
    ):
        tested.push(event("a", 1))


WRONG: list[tuple[Any, str]] = [
    (lambda s: s.deduplicate("key", keep="any"), "keep: expected one of 'first', 'last', got 'any'"),
    (lambda s: s.deduplicate("key", by="time"), "by: expected one of 'arrival', 'event_time'"),
    (lambda s: s.deduplicate("key", within=TimeToLive(5)), "within: expected a timedelta or a number of"),
    (lambda s: s.deduplicate("key", within=0), "within: expected a positive duration, got 0"),
    (lambda s: s.deduplicate("key", within="1h"), "within: expected a timedelta or a number"),
    (lambda s: s.deduplicate("key", changes="some"), "changes: expected one of 'all', 'upserts', 'updates'"),
    (lambda s: s.deduplicate(3), "key: expected a function, got 3"),
    (lambda s: s.deduplicate("key").late, "does not wait for event time, so nothing is late"),
    (lambda s: s.key_by("key").top(0, by="v"), "n: expected an integer of at least 1, got 0"),
    (lambda s: s.key_by("key").top(1, by=None), "by: expected a function, got None"),
    (lambda s: s.key_by("key").top(1, by="v", order="up"), "order: expected one of"),
    (lambda s: s.key_by("key").top(1, by="v", skip=-1), "skip: expected an integer of at least 0"),
    (lambda s: s.key_by("key").top(1, by="v", ranked=True), "ranked: expected changes= with it"),
    (
        lambda s: s.key_by("key").top(1, by="v", changes="updates"),
        "changes: expected one of 'all', 'upserts'",
    ),
    (lambda s: s.key_by("key").top(1, by="v", ttl=TimeToLive), "ttl: expected a timedelta"),
    (lambda s: s.key_by("key").reduce(3), "fn: expected a function, got 3"),
    (lambda s: s.key_by("key").min_by(3), "by: expected a function, got 3"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_refused_when_it_is_typed(wrong: Any, message: str) -> None:
    stream: Stream[Any] = Pipeline("p").source([event("a", 1)])
    with pytest.raises(PipelineError, match=message):
        wrong(stream.event_time("v", BoundedOutOfOrderness(1)))
