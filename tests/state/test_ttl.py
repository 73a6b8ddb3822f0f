"""Time to live: entries age piece by piece, also over a restart and a change of mind, and leave memory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncstream.clock import ManualClock
from asyncstream.errors import CheckpointError, PipelineError
from asyncstream.state import (
    ListDescriptor,
    MapDescriptor,
    ReducingDescriptor,
    TimeToLive,
    ValueDescriptor,
)
from tests.state.store import Store

TTL_MS = 10


def milliseconds(count: int | None) -> timedelta | None:
    return None if count is None else timedelta(milliseconds=count)


class Model:
    """Lists and maps of (value, time written), looked through from end to end at every question."""

    def __init__(self, refreshes: bool) -> None:
        self.refreshes = refreshes
        self.list: list[list[Any]] = []
        self.map: dict[str, list[Any]] = {}
        self.total: list[Any] = []

    def expire(self, now_ms: int) -> None:
        self.list = [entry for entry in self.list if entry[1] + TTL_MS > now_ms]
        self.map = {key: entry for key, entry in self.map.items() if entry[1] + TTL_MS > now_ms}
        if self.total and self.total[1] + TTL_MS <= now_ms:
            self.total = []

    def read(self, entries: Any, now_ms: int) -> list[Any]:
        entries = list(entries)
        if self.refreshes:
            for entry in entries:
                entry[1] = now_ms
        return [entry[0] for entry in entries]


STEPS = st.one_of(
    st.tuples(st.just("wait"), st.integers(1, TTL_MS + 2)),
    st.tuples(st.sampled_from(["add", "set", "fold"]), st.integers(0, 9)),
    st.tuples(st.sampled_from(["put", "get", "in", "remove"]), st.sampled_from("abc")),
    st.tuples(st.sampled_from(["list", "items", "len", "total", "clear", "restart", "snapshot"]), st.none()),
)


@example(  # an entry that is put again after it has expired comes last, whether or not it has been seen to
    steps=[("put", "a"), ("wait", 6), ("put", "b"), ("wait", 5), ("put", "a"), ("items", None)],
    refresh="on_write",
)
@given(steps=st.lists(STEPS, max_size=60), refresh=st.sampled_from(["on_write", "on_read"]))
def test_every_entry_lives_as_long_as_in_a_model_that_looks_at_all_of_them(
    steps: list[tuple[str, Any]], refresh: Any
) -> None:
    clock, model, now_ms = ManualClock(), Model(refresh == "on_read"), 0
    ttl = TimeToLive(timedelta(milliseconds=TTL_MS), refresh=refresh)

    def opened() -> tuple[Any, Any, Any, Any]:
        store = Store(clock)
        store.key = "k"
        return (
            store,
            store.state(ListDescriptor[int]("list", ttl=ttl)),
            store.state(MapDescriptor[str, int]("map", ttl=ttl)),
            store.state(ReducingDescriptor[int]("total", lambda a, b: a + b, ttl=ttl)),
        )

    store, values, table, total = opened()
    for number, (step, what) in enumerate(steps):
        model.expire(now_ms)
        if step == "wait":
            now_ms += what
            clock.set_ms(now_ms)
        elif step == "add":
            values.add(what)
            model.list.append([what, now_ms])
        elif step == "set":
            values.set([what, what + 1])
            model.list = [[what, now_ms], [what + 1, now_ms]]
        elif step == "fold":
            total.add(what)
            model.total = [what + (model.total[0] if model.total else 0), now_ms]
        elif step == "put":
            table.put(what, number)
            model.map[what] = [number, now_ms]
        elif step == "get":
            entry = [model.map[what]] if what in model.map else []
            assert [table.get(what, -1)] == (model.read(entry, now_ms) or [-1])
        elif step == "in":
            entry = [model.map[what]] if what in model.map else []
            assert (what in table) == bool(model.read(entry, now_ms))
        elif step == "remove":
            table.remove(what)
            model.map.pop(what, None)
        elif step == "list":
            assert values.get() == model.read(model.list, now_ms)
        elif step == "items":
            assert [value for _, value in table.items()] == model.read(model.map.values(), now_ms)
        elif step == "len":
            assert len(table) == len(model.map)
        elif step == "total":
            assert total.get() == (model.read([model.total], now_ms)[0] if model.total else None)
        elif step == "clear":
            table.clear()
            model.map.clear()
        elif step == "snapshot":
            cells = {name: rows[0][1] for name in ("list", "map") if (rows := store.rows(name))}
            assert cells.get("list", []) == [entry[0] for entry in model.list]
            assert cells.get("map", {}) == {key: entry[0] for key, entry in model.map.items()}
        else:
            snapshot = store.snapshot()
            store, values, table, total = opened()
            store.restore(snapshot)


@pytest.mark.parametrize("is_open_before", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "lives_until"),
    [(10, 10, 110), (10, 30, 130), (30, 10, 110), (10, None, None), (None, 10, 115)],
)
def test_a_changed_time_to_live_holds_for_what_is_there(
    is_open_before: bool, before: int | None, after: int | None, lives_until: int | None
) -> None:
    clock = ManualClock(100)
    first = Store(clock)
    first.key = "k"
    first.state(ListDescriptor[int]("x", ttl=milliseconds(before))).add(1)
    clock.set_ms(105)
    second = Store(clock)
    second.key = "k"
    if is_open_before:
        second.state(ListDescriptor[int]("x", ttl=milliseconds(after)))
    second.restore(first.snapshot())
    handle = second.state(ListDescriptor[int]("x", ttl=milliseconds(after)))
    if lives_until is None:
        clock.set_ms(10**6)
        assert handle.get() == [1]
    else:
        clock.set_ms(lives_until - 1)
        assert handle.get() == [1]
        clock.set_ms(lives_until)
        assert handle.get() == []


@pytest.mark.parametrize("is_open_before", [True, False])
def test_what_was_written_in_a_run_without_a_time_to_live_is_not_as_old_as_what_was_there(
    is_open_before: bool,
) -> None:
    clock = ManualClock(100)
    kinds = (ValueDescriptor[int], ListDescriptor[int], MapDescriptor[int, int])

    def opened(store: Store, ttl_ms: int | None) -> tuple[Any, Any, Any]:
        value, values, table = (
            store.state(kind(name, ttl=milliseconds(ttl_ms))) for kind, name in zip(kinds, "vlm", strict=True)
        )
        return value, values, table

    kept = Store(clock).snapshot()
    for number, ttl_ms in enumerate((TTL_MS, None, TTL_MS)):
        clock.set_ms(100 + number * TTL_MS)
        store = Store(clock)
        store.key = "k"
        if is_open_before:
            opened(store, ttl_ms)
        store.restore(kept)
        value, values, table = opened(store, ttl_ms)
        if number < 2:
            value.set(number)
            values.set(range(number, 2))
            table.clear()
            table.put(number, number)
        kept = store.snapshot()
    clock.set_ms(100 + 3 * TTL_MS - 1)  # lives began with the last run
    assert (value.get(), values.get(), table.items()) == (1, [1], [(1, 1)])
    table.remove(1)
    clock.set_ms(100 + 3 * TTL_MS)
    assert (value.get(), values.get(), table.items()) == (None, [], [])


@pytest.mark.parametrize("is_open_before", [True, False])
def test_times_of_expiry_from_before_version_0_2_are_understood(is_open_before: bool) -> None:
    clock = ManualClock(100)
    store = Store(clock)
    store.key = "k"
    old = {
        "value": {"kind": "value", "cells": [("k", None, 7, 105)]},
        "list": {"kind": "list", "cells": [("k", None, [1, 2], 105)]},
        "map": {"kind": "map", "cells": [("k", None, {"a": 1}, 105)]},
        "ever": {"kind": "value", "cells": [("k", None, 8, None)]},
    }
    if is_open_before:
        store.state(ValueDescriptor[int]("value", ttl=milliseconds(TTL_MS)))
        store.state(ListDescriptor[int]("list", ttl=milliseconds(TTL_MS)))
        store.state(MapDescriptor[str, int]("map", ttl=milliseconds(TTL_MS)))
    store.restore_old(old)
    value = store.state(ValueDescriptor[int]("value", ttl=milliseconds(TTL_MS)))
    values = store.state(ListDescriptor[int]("list", ttl=milliseconds(TTL_MS)))
    table = store.state(MapDescriptor[str, int]("map", ttl=milliseconds(TTL_MS)))
    clock.set_ms(104)
    assert (value.get(), values.get(), table.get("a")) == (7, [1, 2], 1)
    clock.set_ms(105)
    assert (value.get(), values.get(), table.get("a")) == (None, [], None)
    assert store.state(ValueDescriptor[int]("ever")).get() == 8


@pytest.mark.parametrize("is_open_before", [True, False])
def test_times_of_expiry_from_before_version_0_2_are_read_once(is_open_before: bool) -> None:
    clock = ManualClock(100)
    kinds = (ValueDescriptor[int], ListDescriptor[int], MapDescriptor[int, int])

    def opened(store: Store) -> list[Any]:
        store.key = "k"
        return [store.state(kind(kind.handle.kind, ttl=milliseconds(TTL_MS))) for kind in kinds]

    def gone_on_from(kept: Mapping[str, Any]) -> Store:
        store = Store(clock)
        if is_open_before:
            opened(store)
        store.restore(kept)
        return store

    before = Store(clock)
    before.restore_old(
        {
            "value": {"kind": "value", "cells": [(key, None, 7, 105) for key in "kj"]},
            "list": {"kind": "list", "cells": [(key, None, [1, 2], 105) for key in "kj"]},
            "map": {"kind": "map", "cells": [(key, None, {1: 1}, 105) for key in "kj"]},
        }
    )
    value, values, table = opened(before)
    before.key = "j"
    for handle in (value, values, table):
        handle.clear()
    before.key = "k"
    clock.set_ms(104)
    value.set(8)
    values.set([3])
    table.put(1, 2)
    store = gone_on_from(before.snapshot())
    clock.set_ms(104 + TTL_MS - 1)
    value, values, table = opened(store)
    assert (value.get(), values.get(), table.items()) == (8, [3], [(1, 2)])
    assert sorted(store.tables["state/value written"].whole()) == ["k"]
    store = gone_on_from(store.snapshot())
    clock.set_ms(104 + TTL_MS)
    value, values, table = opened(store)
    assert (value.get(), values.get(), table.items()) == (None, [], [])


@pytest.mark.parametrize("other", ["x written", "x expires"])
@pytest.mark.parametrize("is_open_before", [True, False])
def test_state_is_never_taken_for_the_times_of_another(other: str, is_open_before: bool) -> None:
    first = Store(ManualClock(100))
    first.key = "k"
    first.state(ValueDescriptor[int]("x")).set(1)
    first.state(ValueDescriptor[int](other)).set(2)
    second = Store(ManualClock(100))
    second.key = "k"
    if is_open_before:
        second.state(ValueDescriptor[int]("x"))
    second.restore(first.snapshot())
    assert second.state(ValueDescriptor[int]("x")).get() == 1
    assert second.state(ValueDescriptor[int](other)).get() == 2
    lives, stays = ValueDescriptor[int]("x", ttl=1), ValueDescriptor[int](other)
    for descriptors in ((lives, stays), (stays, lives)):
        third = Store(ManualClock(100))
        for descriptor in descriptors[:-1]:
            third.state(descriptor)
        with pytest.raises(PipelineError, match=f"state '{other}' is called as the times of state 'x'"):
            third.state(descriptors[-1])
    third = Store(ManualClock(100))
    third.state(lives)
    with pytest.raises(CheckpointError, match="use another name for one of them"):
        third.restore(first.snapshot())


@pytest.mark.parametrize("is_open_before", [True, False])
def test_times_that_are_of_no_use_any_more_are_never_taken_for_a_state(is_open_before: bool) -> None:
    first = Store(ManualClock(100))
    first.key = "k"
    first.state(ValueDescriptor[int]("x", ttl=1)).set(1)
    second = Store(ManualClock(100))
    second.key = "k"
    if is_open_before:
        second.state(ValueDescriptor[int]("x"))
    second.restore(first.snapshot())
    assert second.state(ValueDescriptor[int]("x")).get() == 1
    assert second.state(ValueDescriptor[int]("x written")).get() is None


def test_state_that_no_descriptor_has_claimed_yet_stays_as_it_was_kept() -> None:
    clock = ManualClock(100)
    first = Store(clock)
    first.key = "k"
    first.state(ListDescriptor[int]("x", ttl=milliseconds(TTL_MS))).add(1)
    kept = first.snapshot()
    second = Store(clock)
    second.restore(kept)
    assert second.snapshot() == kept


def test_entries_that_are_never_read_again_leave_memory_as_others_are_written() -> None:
    clock = ManualClock()
    store = Store(clock)
    value = store.state(ValueDescriptor[int]("value", ttl=milliseconds(TTL_MS)))
    table = store.state(MapDescriptor[int, int]("map", ttl=milliseconds(TTL_MS)))
    largest = 0
    for number in range(2000):
        clock.set_ms(number)
        store.key = number
        value.set(number)
        store.key = "one"
        table.put(number, number)
        # not len(table), nor a snapshot: they would clean up
        largest = max(largest, len(store) + len(table._rows.peek(None, "one")))
    assert largest <= 4 * TTL_MS + 2


def test_a_merge_keeps_the_age_of_what_is_moved() -> None:
    clock = ManualClock()
    store = Store(clock)
    store.key = "k"
    values = store.state(ListDescriptor[int]("values", ttl=milliseconds(TTL_MS)))
    total = store.state(ReducingDescriptor[int]("total", lambda a, b: a + b, ttl=milliseconds(TTL_MS)))
    for at, namespace in ((0, 1), (4, 2), (8, 3)):
        clock.set_ms(at)
        store.namespace = namespace
        values.add(namespace)
        total.add(namespace)
    clock.set_ms(9)
    values.merge_namespaces(9, [1, 2, 3])
    total.merge_namespaces(9, [1])
    store.namespace = 9
    clock.set_ms(10)
    assert (values.get(), total.get()) == ([2, 3], None)
    total.merge_namespaces(9, [2, 3])  # folded: both are as old as the fold
    clock.set_ms(19)
    assert (values.get(), total.get()) == ([], 5)


@pytest.mark.parametrize("settings", [{"duration": 0}, {"duration": 1, "refresh": "never"}])
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match="of TimeToLive: expected"):
        TimeToLive(**settings)
