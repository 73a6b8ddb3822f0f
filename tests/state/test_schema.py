"""Whether state that was kept is a step's own: what may change, what may not, and how it is said."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from datetime import timedelta
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import CheckpointError, Count, Sum
from asyncstream.state import Schema, adapted, compare, described
from asyncstream.windowing import (
    Collect,
    ContinuousEventTimeTrigger,
    CountTrigger,
    PurgingTrigger,
    Quantile,
    Reduce,
    SlidingWindows,
    TumblingWindows,
)
from tests.naming import shown

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
MAPS = st.dictionaries(st.sampled_from("abcd"), PLAIN, max_size=4)
SCHEMAS = st.builds(Schema, MAPS, MAPS, MAPS)
NAMES = st.lists(st.lists(st.sampled_from("abc"), max_size=2, unique=True).map(tuple), min_size=2, max_size=4)


@given(SCHEMAS)
def test_a_schema_is_equal_to_what_json_keeps_of_it(schema: Schema) -> None:
    back = Schema.of(json.loads(json.dumps(schema.plain())))
    assert not compare(back, schema)
    assert not compare(schema, back)
    assert back.fingerprint() == schema.fingerprint()


@given(SCHEMAS, SCHEMAS)
def test_fingerprints_are_equal_exactly_if_the_state_can_stay_as_it_is(one: Schema, other: Schema) -> None:
    change = compare(one, other)
    as_it_is = not (change.conflicts or change.added or change.removed or change.reordered)
    assert (one.fingerprint() == other.fingerprint()) == as_it_is


@given(MAPS, MAPS, st.data())
def test_parts_may_come_and_go_and_change_places(old: Any, new: Any, data: st.DataObject) -> None:
    order = data.draw(st.permutations([*{**new, **old}]))
    was, now = Schema(parts=old), Schema(parts={name: {**new, **old}[name] for name in order})
    change = compare(was, now)
    assert not change.conflicts
    assert set(change.added) == set(new) - set(old)
    assert change.removed == ()
    assert set(compare(now, was).removed) == set(change.added)


@given(NAMES, NAMES, st.data())
def test_inputs_may_have_other_names_and_not_change_places(
    some: Any, others: Any, data: st.DataObject
) -> None:
    was = Schema().joining(some)
    assert not compare(Schema.of(json.loads(json.dumps(was.plain()))), was)
    assert not compare(Schema(), was), "kept by a version that knew nothing of it"
    assert not compare(was, Schema().joining([(f"new {n}",) for n, _ in enumerate(some)]))
    moved = data.draw(st.permutations(some))
    change = compare(was, Schema().joining(moved))
    assert bool(change) is bool(change.conflicts) is (some != moved)
    if not set(some) & set(others):
        assert not compare(was, Schema().joining(others))


def test_another_form_is_refused_with_both_sides() -> None:
    was = Schema({"window": described(TumblingWindows(2))})
    now = Schema({"window": described(SlidingWindows(2, 1))})
    with pytest.raises(
        CheckpointError, match=r"'w' .*window was TumblingWindows\(.*2000.* and is SlidingWindows\("
    ):
        adapted("w", {}, was.plain(), now)


def test_another_part_under_a_name_is_refused() -> None:
    was, now = (Schema(parts={"n": described(part), "x": 1}) for part in (Sum("x"), Sum("y")))
    with pytest.raises(CheckpointError, match=r"n was Sum\(of='x'\) and is Sum\(of='y'\)"):
        adapted("w", {}, was.plain(), now)


def test_new_parts_are_converted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    now = Schema(parts={"b": 1, "a": 1}, convert=lambda state, was: [state, list(was.parts)])
    was = Schema(parts={"a": 1, "c": 1})
    assert adapted("w", "kept", was.plain(), now) == ["kept", ["a", "c"]]
    assert "'b' is new and starts from nothing; what 'c' held is gone" in caplog.text


def test_parts_in_another_order_are_converted_and_told(caplog: pytest.LogCaptureFixture) -> None:
    now = Schema(parts={"b": 1, "a": 1}, convert=lambda state, was: [state, list(was.parts)])
    assert adapted("w", "kept", {**now.plain(), "parts": {"a": 1, "b": 1}}, now) == ["kept", ["a", "b"]]
    assert "what it holds has another order" in caplog.text


def test_names_inside_a_part_have_no_order() -> None:
    one, other = (dict.fromkeys(names, 1) for names in ("xy", "yx"))
    assert Schema({"f": one}, {"p": one}).fingerprint() == Schema({"f": other}, {"p": other}).fingerprint()


def test_another_setting_is_told_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    was, now = Schema(settings={"lateness": 1}), Schema(settings={"lateness": 2})
    assert adapted("w", "kept", was.plain(), now) == "kept"
    assert "lateness was 1 and is 2" in caplog.text
    assert was.fingerprint() == now.fingerprint()


def test_what_is_unknown_is_not_compared() -> None:
    assert adapted("w", "kept", None, Schema({"a": 1})) == "kept"
    assert adapted("w", "kept", {"form": {}, "parts": {}, "settings": {}}, None) == "kept"


class Mine:
    def __init__(self, weight: int, *, hidden: int = 0, table: Any = ()) -> None:
        self.weight, self._hidden, self.table, self.inner = weight, hidden, table, CountTrigger(2)


@dataclass
class Data:
    a: int
    b: Any = None


@dataclass
class Later:
    a: int
    b: int = field(init=False, repr=False)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("x", "x"),
        (timedelta(seconds=1), 1000.0),
        (itemgetter(1), "a function"),
        (len, "a function"),
        (int, "a function"),
        (Count(), {"type": "Count", "of": None}),
        (Collect(itemgetter(0)), {"type": "Collect", "of": "a function"}),
        (Reduce(max), {"type": "Reduce", "order_free": False, "reduce": "a function"}),
        (TumblingWindows(2, offset=1), described(TumblingWindows(2, offset=1))),
        (
            PurgingTrigger(CountTrigger(2)),
            {"type": "PurgingTrigger", "can_merge": True, "of": described(CountTrigger(2))},
        ),
        (ContinuousEventTimeTrigger(1), {"type": "ContinuousEventTimeTrigger", "interval_ms": 1000}),
        (Data(1, {2, 1}), {"type": "Data of the program", "a": 1, "b": [1, 2]}),
        (Later(1), {"type": "Later of the program", "a": 1, "b": None}),
        (list(range(1000)), "list"),
    ],
    ids=shown,
)
def test_settings_are_described_as_plain_data(value: object, expected: Any) -> None:
    assert described(value) == expected
    json.dumps(described(value))


def test_objects_of_the_program_are_told_apart_by_all_that_is_plain() -> None:
    assert described(Mine(1)) == described(Mine(1))
    assert described(Mine(1)) != described(Mine(2))
    assert described(Mine(1)) != described(Mine(1, hidden=1))
    assert "list" in str(described(Mine(1, table=[0] * 1000)))


def test_an_object_that_holds_itself_is_described_to_a_depth() -> None:
    mine = Mine(1)
    mine.table = mine
    assert json.dumps(described(mine))


def test_quantiles_are_told_apart() -> None:
    pytest.importorskip("datasketches")
    assert described(Quantile(0.5)) != described(Quantile(0.5, k=100))
