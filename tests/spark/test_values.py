"""State as bytes, read by another run of the same script: its classes are those of the run that reads."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import pytest
from pyspark.cloudpickle import cloudpickle

from asyncstream.codec.fields import fields_of
from asyncstream.runtime.spark.wire.keys import KeyGroups
from asyncstream.runtime.spark.wire.values import classes_in, dumps, loads, written_out
from asyncstream.runtime.spark.worker import group_head
from asyncstream.runtime.spark.worker.shipped import Shipped
from tests.spark.scripts import Run

KEYS: dict[str, Callable[[Run], Any]] = {
    "enum": lambda run: run.suit.CLUBS,
    "dataclass": lambda run: run.card(run.suit.HEARTS, 3),
    "named tuple": lambda run: run.place(run.card(run.suit.CLUBS, 1), 7),
    "in a tuple": lambda run: ("table", run.suit.HEARTS),
    "nested": lambda run: run.seat(4),
    "with slots": lambda run: run.chip(10),
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_keys_of_another_run_are_those_of_this_one(key: Callable[[Run], Any]) -> None:
    before, now = Run(), Run()
    kept = dumps({key(before): [key(before)]})
    assert loads(kept, classes_in(now.function())) == {key(now): [key(now)]}
    assert KeyGroups(128).of(key(before)) == KeyGroups(128).of(key(now))
    again = dumps(loads(kept, classes_in(now.function())))
    assert loads(again, classes_in(before.function())) == {key(before): [key(before)]}


@pytest.mark.parametrize("stays", [True, False])
def test_a_nested_class_has_its_own_name_in_workers_and_in_state(
    monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    def other_process() -> None:  # one that has none of the classes that are read in it
        monkeypatch.setattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", WeakValueDictionary())

    before, now = Run(), Run()
    sent = pickle.dumps(Shipped(before.seat, stays=stays))
    other_process()
    seat = pickle.loads(sent).value
    assert seat is not before.seat
    assert repr(seat(3)) == "Table.Seat(number=3)"
    kept = dumps(seat(3))
    assert loads(kept, classes_in(now.function())) == now.seat(3)
    other_process()
    assert repr(loads(kept)) == "Table.Seat(number=3)"


def test_state_is_read_also_by_a_run_that_does_not_know_its_classes() -> None:
    before, other = Run(), Run()
    kept = dumps(before.card(before.suit.CLUBS, 2))
    for classes in (None, {}, classes_in([before.function(), other.function()])):  # two of each name
        assert loads(kept, classes) == before.card(before.suit.CLUBS, 2)


def test_classes_of_modules_need_no_finding() -> None:
    assert classes_in(lambda: (Run, Enum, int)) == {}
    assert classes_in([Run().function(), threading.Lock()]) == {}  # cannot be pickled


def test_state_that_names_a_module_of_version_0_2_can_be_read_and_told_from_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Kind(NamedTuple):
        kind: str
        operator: str
        schema: dict[str, Any] | None

    before: Any = ModuleType("asyncstream.runtime.spark.keyed")
    Kind.__module__, Kind.__qualname__, before.Kind = before.__name__, "Kind", Kind
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, before.__name__, before)
        data = dumps(Kind("aggregate", "FusedWindowOperator", None))
    found = loads(data)
    assert type(found) is group_head.Kind
    assert found == ("aggregate", "FusedWindowOperator", None)
    with pytest.raises(ModuleNotFoundError, match="no_module_at_all"):
        loads(b"cno_module_at_all\nKind\n.")


def test_class_of_a_script_has_the_same_fields_in_a_worker() -> None:
    @dataclass
    class Kept:
        a: int
        b: int = 3
        c: list[int] = field(default_factory=list)

    there = pickle.loads(written_out(Kept))
    assert [(each.name, each.default and each.default()) for each in fields_of(there)] == [
        ("a", None),
        ("b", 3),
        ("c", []),
    ]
