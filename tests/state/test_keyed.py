"""Keyed state: entries by key and namespace, time to live, merging, snapshots."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from math import nan
from typing import Any

import pytest

from asyncstream.clock import ManualClock
from asyncstream.codec import JsonCodec
from asyncstream.errors import CheckpointError, PipelineError
from asyncstream.state import (
    AggregatingDescriptor,
    ListDescriptor,
    MapDescriptor,
    MapState,
    ReducingDescriptor,
    StateDescriptor,
    TimeToLive,
    ValueDescriptor,
    detached,
)
from asyncstream.windowing import Max, Mean, Min
from tests.state.store import Store

COUNT = ValueDescriptor[int]("count", default=0)
SEEN = ListDescriptor[str]("seen")
PRICES = MapDescriptor[str, int]("prices")
TOTAL = ReducingDescriptor[int]("total", lambda a, b: a + b)
MEAN = AggregatingDescriptor[int, float]("mean", Mean())


def test_each_key_and_namespace_has_its_own_entry() -> None:
    store = Store()
    count = store.state(COUNT)
    for key, namespace, value in (("a", None, 1), ("a", (0, 10), 2), ("b", None, 3)):
        store.key, store.namespace = key, namespace
        count.set(value)
    store.key, store.namespace = "a", None
    assert count.get() == 1
    store.namespace = (0, 10)
    assert count.get() == 2
    store.key = "b"
    assert count.get() == 0


@pytest.mark.parametrize(
    ("look", "found"),
    [
        (lambda prices, _: prices.get("x"), 1),
        (lambda prices, _: prices.get("y"), None),
        (lambda prices, _: "x" in prices, True),
        (lambda prices, _: len(prices), 1),
        (lambda prices, _: list(prices), ["x"]),
        (lambda prices, _: prices.has_entry(), True),
        (lambda prices, _: prices.remove("y"), None),
        (lambda _, store: store.keys_of(PRICES), ["a"]),
    ],
)
def test_a_map_that_is_only_looked_at_is_not_written_again(
    look: Callable[[MapState[str, int], Store], object], found: object
) -> None:
    store = Store()
    store.key = "a"
    prices = store.state(PRICES)
    prices.put("x", 1)
    store.tables.cut()
    assert look(prices, store) == found, "also while it is written"
    store.tables.merge()
    assert look(prices, store) == found
    assert not store.tables.cut().deltas


def test_what_can_be_changed_in_a_map_is_written_with_what_was_done_to_it() -> None:
    store = Store()
    store.key = "a"
    lists = store.state(MapDescriptor[str, list[int]]("lists"))
    lists.put("x", [1])
    kept = store.tables.cut()
    lists.get("x", []).append(2)
    assert [delta.rows for delta in kept.deltas.values()] == [{None: {"a": {"x": [1]}}}]
    store.tables.merge()
    (delta,) = store.tables.cut().deltas.values()
    assert delta.rows == {None: {"a": {"x": [1, 2]}}}


def test_what_is_empty_leaves_no_entry() -> None:
    store = Store()
    store.key = "a"
    count, seen, prices = store.state(COUNT), store.state(SEEN), store.state(PRICES)
    count.set(1)
    count.set(None)  # type: ignore[arg-type]
    seen.add("x")
    seen.set([])
    seen.extend([])
    prices.put("x", 1)
    prices.remove("x")
    prices.remove("y")
    store.state(TOTAL).add(1)
    store.state(TOTAL).clear()
    assert len(store) == 0
    assert not any(store.snapshot()["tables"].values())


def test_lists_and_maps_are_handed_out_as_copies() -> None:
    store = Store()
    store.key = "a"
    seen, prices = store.state(SEEN), store.state(PRICES)
    seen.extend(["x", "y"])
    seen.get().clear()
    prices.put("x", 1)
    prices.items().clear()
    assert seen.get() == ["x", "y"]
    assert (prices.get("x"), prices.get("y"), prices.get("y", 7), "x" in prices, len(prices)) == (
        1,
        None,
        7,
        True,
        1,
    )
    assert list(prices) == ["x"]


def test_reducing_and_aggregating_state_fold_what_is_added() -> None:
    store = Store()
    store.key = "a"
    total, mean = store.state(TOTAL), store.state(MEAN)
    assert (total.get(), mean.get()) == (None, None)
    for value in (1, 2, 6):
        total.add(value)
        mean.add(value)
    assert (total.get(), mean.get()) == (9, 3)


def test_merging_moves_the_entries_of_the_key() -> None:
    store = Store()
    total, seen, mean = store.state(TOTAL), store.state(SEEN), store.state(MEAN)
    for key in "ab":
        for namespace in (1, 2, 3):
            store.key, store.namespace = key, namespace
            total.add(namespace)
            seen.add(str(namespace))
            mean.add(namespace)
    store.key = "a"
    for handle in (total, seen, mean):
        handle.merge_namespaces(9, [1, 2, 7])
    store.namespace = 9
    assert (total.get(), seen.get(), mean.get()) == (3, ["1", "2"], 1.5)
    store.namespace = 1
    assert total.get() is None
    store.key = "b"
    assert total.get() == 1


def test_value_state_refuses_to_merge_two_values() -> None:
    store = Store()
    store.key = "a"
    count = store.state(COUNT)
    store.namespace = 1
    count.set(1)
    count.merge_namespaces(2, [1])  # nothing to merge with: it just moves
    store.namespace = 1
    count.set(5)
    with pytest.raises(PipelineError, match="'count' cannot merge"):
        count.merge_namespaces(2, [1])


def test_an_entry_lives_until_its_ttl_after_the_last_write() -> None:
    clock = ManualClock()
    store = Store(clock)
    store.key = "a"
    count = store.state(ValueDescriptor[int]("count", ttl=1))
    count.set(1)
    clock.set_ms(900)
    count.set(2)
    clock.set_ms(1899)
    assert count.get() == 2
    clock.set_ms(1900)
    assert count.get() is None
    assert len(store) == 0


def test_snapshots_leave_out_what_has_run_out_and_keep_how_long_the_rest_lives() -> None:
    clock = ManualClock()
    store = Store(clock)
    descriptor = ListDescriptor[str]("seen", ttl=1)
    for at, key in ((0, "a"), (500, "b")):
        clock.set_ms(at)
        store.key = key
        store.state(descriptor).add("x")
    clock.set_ms(1000)
    snapshot = store.snapshot()
    assert [key for key, _ in store.rows("seen")] == ["b"]
    other = Store(clock)
    other.restore(snapshot)
    other.key = "b"
    assert other.state(descriptor).get() == ["x"]
    clock.set_ms(1500)
    assert other.state(descriptor).get() == []


@pytest.mark.parametrize("early", [True, False])
def test_a_restore_brings_everything_back(early: bool) -> None:
    store, codec = Store(), JsonCodec()
    store.key, store.namespace = ("a", 1), (0, 10)
    store.state(COUNT).set(3)
    store.state(SEEN).add("x")
    store.state(PRICES).put("x", 1)
    store.state(TOTAL).add(4)
    store.state(MEAN).add(6)
    snapshot = codec.decode(codec.encode(store.snapshot()))
    other = Store()
    if early:  # handles fetched before the restore
        for descriptor in (COUNT, SEEN, PRICES, TOTAL, MEAN):
            other.state(descriptor)
    other.restore(snapshot)
    other.key, other.namespace = ("a", 1), (0, 10)
    found = (other.state(COUNT).get(), other.state(SEEN).get(), other.state(PRICES).items())
    assert found == (3, ["x"], [("x", 1)])
    assert (other.state(TOTAL).get(), other.state(MEAN).get()) == (4, 6)


def test_a_snapshot_shares_nothing_with_the_store() -> None:
    store = Store()
    store.key = "a"
    held: list[Any] = [1]
    values = store.state(ValueDescriptor[list[Any]]("values"))
    values.set(held)
    snapshot = store.snapshot()
    held.append(2)
    store.restore(snapshot)
    restored = values.get()
    assert restored == [1]
    restored.append(3)
    assert snapshot["tables"]["state/values"] == [[None, [["a", [1]]]]]


def test_state_of_another_kind_is_refused() -> None:
    store = Store()
    store.state(ValueDescriptor[int]("x"))
    with pytest.raises(PipelineError, match=r"as ValueDescriptor\(.*and as ListDescriptor\(.*another name"):
        store.state(ListDescriptor[int]("x"))
    store.key = "a"
    store.state(ValueDescriptor[int]("x")).set(1)
    other = Store()
    other.state(ListDescriptor[int]("x"))
    with pytest.raises(CheckpointError, match="another name"):
        other.restore(store.snapshot())
    later = Store()
    later.restore(store.snapshot())
    with pytest.raises(CheckpointError, match="'x' is value state and cannot be read as list state"):
        later.state(ListDescriptor[int]("x"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ValueDescriptor("x", ttl=60), ValueDescriptor("x", ttl=3600)),
        (ValueDescriptor("x", ttl=60), ValueDescriptor("x")),
        (ValueDescriptor("x", ttl=60), ValueDescriptor("x", ttl=TimeToLive(60, "on_read"))),
        (ValueDescriptor("x", default=0), ValueDescriptor("x", default=1)),
        (ValueDescriptor("x"), ListDescriptor("x")),
        (AggregatingDescriptor("x", Min()), AggregatingDescriptor("x", Max())),
    ],
)
def test_state_that_is_asked_for_in_two_ways_is_refused(
    first: StateDescriptor[Any], second: StateDescriptor[Any]
) -> None:
    store = Store()
    store.state(first)
    with pytest.raises(PipelineError) as refused:
        store.state(second)
    assert repr(first) in str(refused.value)
    assert repr(second) in str(refused.value)


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (ValueDescriptor("x", ttl=60), ValueDescriptor("x", ttl=TimeToLive(timedelta(minutes=1)))),
        (ValueDescriptor("x", default=nan), ValueDescriptor("x", default=float("nan"))),
        (ReducingDescriptor("x", lambda a, b: a + b), ReducingDescriptor("x", lambda a, b: a + b)),
        (AggregatingDescriptor("x", Mean()), AggregatingDescriptor("x", Mean())),
    ],
)
def test_descriptors_that_mean_the_same_give_one_handle(
    first: StateDescriptor[Any], again: StateDescriptor[Any]
) -> None:
    store = Store()
    assert store.state(first) is store.state(again)


def test_an_aggregation_that_saves_its_accumulators_is_asked_to() -> None:
    class Listed(Mean):
        """Is what a codec does not keep."""

        def save(self, accumulator: Any) -> Any:
            return {"kept": list(accumulator)}

        def load(self, kept: Any) -> Any:
            return tuple(kept["kept"])

    mean = AggregatingDescriptor[int, float]("mean", Listed())
    store, other = Store(), Store()
    store.key = other.key = "a"
    for value in (1, 2, 6):
        store.state(mean).add(value)
    snapshot = store.snapshot()
    assert snapshot["tables"]["state/mean"] == [[None, [["a", {"kept": [3, 9]}]]]]
    other.restore(snapshot)
    other.state(mean).add(3)
    assert other.state(mean).get() == 3.0


@pytest.mark.parametrize("is_declared_first", [False, True])
def test_state_that_another_aggregation_has_made_is_told_of(
    caplog: pytest.LogCaptureFixture, *, is_declared_first: bool
) -> None:
    def told(before: Any, kind: str | None = None) -> list[str]:
        caplog.clear()
        store, other = Store(), Store()
        store.key = other.key = "a"
        store.state(AggregatingDescriptor[int, int]("x", before)).add(3)
        snapshot = store.snapshot()
        if kind is not None:
            snapshot["cells"]["state"]["x"] = kind
        if not is_declared_first:
            other.restore(snapshot)
        most = other.state(AggregatingDescriptor[int, int]("x", Max()))
        if is_declared_first:
            other.restore(snapshot)
        assert most.get() == 3
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    (words,) = told(Min())
    assert "state 'x' was made by Min(of=nothing), and is now read by Max(of=nothing)" in words
    assert told(Min(), "aggregating") == []  # as earlier versions say it
    assert told(Max()) == []


@pytest.mark.parametrize(("name", "ttl"), [("", None), (3, None), ("x", 0), ("x", -1), ("x", "soon")])
def test_bad_descriptors_are_refused(name: Any, ttl: Any) -> None:
    with pytest.raises(PipelineError):
        StateDescriptor(name, ttl=ttl)


def test_detached_copies_what_can_change_and_only_that() -> None:
    plain = (1, ("x", None))
    assert detached(plain) is plain
    original: dict[str, Any] = {"list": [1, (2, [3])], "set": {1}, "text": "x"}
    copy = detached(original)
    assert copy == original
    original["list"][1][1].append(4)
    original["set"].add(2)
    assert copy == {"list": [1, (2, [3])], "set": {1}, "text": "x"}


def test_detached_copies_what_holds_itself() -> None:
    rows: list[Any] = [1]
    inside: dict[str, Any] = {"rows": (rows,)}
    rows.append(inside)
    copy = detached(rows)
    rows[0] = 2
    assert copy[0] == 1
    assert copy[1]["rows"][0] is copy


def test_detached_takes_exceptions_as_they_are_for_many_cannot_be_made_again() -> None:
    class Coded(Exception):
        def __init__(self, text: str, code: int) -> None:
            super().__init__(text)
            self.code = code

    failed = Coded("failed", 7)
    (_, copied), rows = detached([1, failed]), detached({"errors": [failed]})
    assert copied is failed
    assert rows["errors"][0] is failed


@pytest.mark.parametrize("wrong", ["count", ValueDescriptor, None])
def test_what_is_no_descriptor_is_refused(wrong: Any) -> None:
    with pytest.raises(PipelineError, match=r"state: expected a descriptor, such as ValueDescriptor.*got"):
        Store().state(wrong)


def test_value_has_the_default_that_is_asked_for_where_nothing_was_written() -> None:
    store = Store()
    store.key = "a"
    count, plain = store.state(COUNT), store.state(ValueDescriptor[int]("plain"))
    assert (count.get(), count.get(5), plain.get(), plain.get(5)) == (0, 5, None, 5)
    plain.set(0)
    assert plain.get(5) == 0
