"""A stream beside one whose elements are for all keys."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    BroadcastContext,
    Checkpoints,
    KeyedBroadcastProcessFunction,
    MemoryStore,
    Pipeline,
    PipelineError,
)
from asyncstream.errors import CheckpointError, UserFunctionError
from asyncstream.joins.broadcast import KeyedBroadcastOperator
from asyncstream.operators.emitting import Emitter
from asyncstream.operators.failures import OnError
from asyncstream.state import ListDescriptor, ListState, MapDescriptor, ValueDescriptor, ValueState
from tests.operators.recorder import Recorder, record

RULES = MapDescriptor[str, int]("rules")
TOTAL = ValueDescriptor[int]("total")


class Above(KeyedBroadcastProcessFunction[tuple[str, int], tuple[str, int], str]):
    """Names the rules whose limit the total of a key has passed."""

    def open(self, ctx: BroadcastContext) -> None:
        self.rules = ctx.broadcast_state(RULES)
        self.total = ctx.state(TOTAL)

    def process_element(self, value: tuple[str, int], ctx: BroadcastContext, out: Emitter[str]) -> None:
        total = (self.total.get() or 0) + value[1]
        self.total.set(total)
        for name, limit in self.rules.items():
            if total > limit:
                out(f"{ctx.key} {name}")

    def process_broadcast(self, value: tuple[str, int], ctx: BroadcastContext, out: Emitter[str]) -> None:
        self.rules.put(*value)


def key_of(value: Any) -> Any:
    return value[0]


def operator_of(
    function: KeyedBroadcastProcessFunction[Any, Any, Any],
) -> tuple[KeyedBroadcastOperator, Recorder]:
    operator = KeyedBroadcastOperator(key_of, function)
    return operator, record(operator)


def test_element_sees_what_was_broadcast_before_it_and_is_not_held_back() -> None:
    operator, recorder = operator_of(Above())
    elements, rules = operator.ports
    elements.process(("a", 5), None)
    rules.process(("high", 7), None)
    elements.process_batch([("b", 5), ("a", 5)], None)
    assert recorder.values() == ["a high"]


def test_rules_outlive_a_job_and_are_described(tmp_path: Path) -> None:
    found: list[str] = []
    for events, rules in (([("a", 5)], [("high", 7)]), ([("a", 5), ("a", 5), ("b", 5)], [("high", 7)])):
        pipeline = Pipeline("alerts")
        stream = pipeline.source(events, name="events").key_by(key_of)
        ruled = pipeline.source(rules, name="rules").broadcast()
        stream.connect(ruled).process(Above(), name="above").to(found, name="found")
        pipeline.run_blocking(checkpoints=tmp_path)
    assert found == ["a high"]
    assert "above   broadcast <- events, rules  (function=Above" in pipeline.describe()
    assert "broadcast_state=in memory, grows until process_broadcast removes" in pipeline.describe()


class Renamed(Above):
    """Calls its rules otherwise."""

    def open(self, ctx: BroadcastContext) -> None:
        self.rules = ctx.broadcast_state(MapDescriptor("limits"))
        self.total = ctx.state(TOTAL)


def test_rules_that_have_another_name_now_are_told_of_and_found_by_migrate(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, found = MemoryStore(), list[str]()

    def run(function: Above, totals: int, **settings: Any) -> None:
        pipeline = Pipeline("alerts")
        stream = pipeline.source([("a", 5)] * totals, name="events").key_by(key_of)
        ruled = pipeline.source([("high", 7)], name="rules").broadcast()
        stream.connect(ruled).process(function, name="above").to(found, name="found")
        pipeline.run_blocking(checkpoints=Checkpoints(store=store, **settings))

    def renamed(state: Any) -> Any:
        rules = state["cells"]["broadcast"]
        rules["limits"] = rules.pop("rules")
        return state

    run(Above(), 1)
    assert "has not asked for" not in caplog.text
    run(Renamed(), 2)
    assert "'above' goes on with state that its function has not asked for in open: 'rules';" in caplog.text
    assert found == []
    caplog.clear()
    run(Renamed(), 3, migrate={"above": renamed})
    assert "has not asked for" not in caplog.text
    assert found == ["a high"]


def test_every_part_of_a_divided_operator_has_all_rules() -> None:
    operator, _ = operator_of(Above())
    operator.port(1).process(("high", 7), None)
    operator.port(0).process_batch([("a", 6), ("b", 6)], None)
    parts = operator.divided(operator.snapshot(), lambda key: ord(key) % 2, {0, 1})
    assert parts is not None
    for number, part in parts.items():
        share, recorder = operator_of(Above())
        share.restore(part)
        share.port(0).process_batch([("a", 2), ("b", 2)], None)
        assert recorder.values() == ["b high" if number == 0 else "a high"]
    whole, recorder = operator_of(Above())
    whole.restore(operator.united([parts[0], parts[1]]))
    whole.port(0).process_batch([("a", 2), ("b", 2)], None)
    assert recorder.values() == ["a high", "b high"]
    whole.port(1).process(("high", 8), None)
    with pytest.raises(CheckpointError, match="'rules' should be the same for all keys"):
        operator.united([parts[0], whole.snapshot()])


class Misuse(Above):
    """Does with elements what broadcast elements may, and the other way round."""

    def process_element(self, value: Any, ctx: BroadcastContext, out: Emitter[str]) -> None:
        if value[1] == 1:
            self.rules.put("mine", 1)
        elif value[1] == 2:
            ctx.apply_to_keyed_state(TOTAL, lambda key, state: None)
        else:
            self.total.set(1)

    def process_broadcast(self, value: Any, ctx: BroadcastContext, out: Emitter[str]) -> None:
        if value == "state":
            self.total.set(5)
        elif value == "timer":
            ctx.register_event_timer(5)
        else:
            ctx.apply_to_keyed_state(TOTAL, lambda key, state: state.set(2))
            self.total.get()


def test_a_rule_under_a_name_that_does_not_equal_itself_is_refused() -> None:
    operator, _ = operator_of(Above())
    with pytest.raises(UserFunctionError, match="a key of a map must equal itself, got nan"):
        operator.port(1).process((math.nan, 1), None)


@pytest.mark.parametrize("value", [("a", 1), ("a", 2)])
def test_elements_of_keys_cannot_write_what_is_for_all(value: Any) -> None:
    operator, _ = operator_of(Misuse())
    with pytest.raises(UserFunctionError, match="written by process_broadcast alone"):
        operator.port(0).process(value, None)


@pytest.mark.parametrize("value", ["state", "timer", "after visiting keys"])
def test_broadcast_element_has_no_key(value: str) -> None:
    operator, _ = operator_of(Misuse())
    operator.port(0).process(("a", 3), None)
    with pytest.raises(UserFunctionError, match="a broadcast element has no key"):
        operator.port(1).process(value, None)


class Visiting(Above):
    """Visits all keys from each key that it visits, and adds up; may give what it should have awaited."""

    def process_broadcast(self, value: tuple[str, int], ctx: BroadcastContext, out: Emitter[str]) -> None:
        async def later(key: str, total: object) -> None:
            raise AssertionError

        def visit(key: str, total: ValueState[int]) -> None:
            all_totals: list[int | None] = []
            ctx.apply_to_keyed_state(TOTAL, lambda key, total: all_totals.append(total.get()))
            out(f"{key} {total.get()} of {sum(filter(None, all_totals))}")

        ctx.apply_to_keyed_state(TOTAL, later if value[0] == "later" else visit)


def test_keys_are_visited_from_a_key_that_is_visited() -> None:
    operator, recorder = operator_of(Visiting())
    operator.port(0).process_batch([("a", 3), ("b", 4)], None)
    operator.port(1).process(("share", 0), None)
    assert recorder.values() == ["a 3 of 7", "b 4 of 7"]


NOTES = ListDescriptor[int]("notes")


class Forgetting(Above):
    """Keeps notes for each key, and forgets those of the key that is named."""

    def open(self, ctx: BroadcastContext) -> None:
        self.notes = ctx.state(NOTES)

    def process_element(self, value: tuple[str, int], ctx: BroadcastContext, out: Emitter[str]) -> None:
        self.notes.add(value[1])

    def process_broadcast(self, value: tuple[str, int], ctx: BroadcastContext, out: Emitter[str]) -> None:
        def visit(key: str, notes: ListState[int]) -> None:
            if key == value[0]:
                notes.clear()

        ctx.apply_to_keyed_state(NOTES, visit)


def test_next_checkpoint_has_nothing_of_keys_that_are_only_visited() -> None:
    operator, _ = operator_of(Forgetting())
    operator.port(0).process_batch([("a", 3), ("b", 4), ("c", 5)], None)
    operator.tables.cut()
    operator.tables.merge()
    operator.port(1).process(("b", 0), None)
    (delta,) = operator.tables.cut().deltas.values()
    assert (delta.rows, delta.gone) == ({}, {None: {"b"}})


def test_function_for_all_keys_that_would_have_to_be_awaited_is_refused() -> None:
    operator, _ = operator_of(Visiting())
    operator.port(0).process(("a", 3), None)
    with pytest.raises(UserFunctionError, match=r"got <coroutine .*await in an async"):
        operator.port(1).process(("later", 0), None)


class Loud(Above):
    """Emits for a broadcast element before, for and behind the keys that it visits; may fail then."""

    def process_broadcast(self, value: Any, ctx: BroadcastContext, out: Emitter[str]) -> None:
        def fail(key: str, total: object) -> None:
            out(f"{key} at first")
            raise ValueError

        out("before")
        if value[0] == "caught":
            with suppress(UserFunctionError):
                ctx.apply_to_keyed_state(TOTAL, fail)
        out("between")
        ctx.apply_to_keyed_state(TOTAL, lambda key, total: out(f"{key} {total.get()}"))
        for _ in range(300):
            out("after")
        ctx.side("all", value)
        self.rules.put(*value)
        if value[0] == "fails":
            raise ValueError


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_operator_that_overhears_leaves_to_another_what_is_of_no_key(on_error: OnError) -> None:
    operator = KeyedBroadcastOperator(key_of, Loud(), on_error)
    overheard, operator.side["all"] = operator.overhearing(1), Recorder()
    recorder = record(operator)
    operator.port(0).process_batch([("a", 2), ("b", 3)], None)
    overheard.process(("low", 1), None)
    assert recorder.values() == ["a 2", "b 3"]
    overheard.process(("caught", 0), None)
    assert recorder.values()[2:] == ["a at first", "a 2", "b 3"]
    operator.port(1).process(("limit", 9), None)
    assert len(recorder.values()[5:]) == 2 + 2 + 300
    operator.port(0).process(("a", 2), None)
    assert recorder.values()[309:] == ["a low", "a caught"]


def test_failure_is_counted_by_the_operator_that_speaks() -> None:
    operator = KeyedBroadcastOperator(key_of, Loud(), "skip")
    overheard, operator.side["all"] = operator.overhearing(1), Recorder()
    recorder = record(operator)
    operator.port(0).process(("a", 2), None)
    overheard.process(("fails", 1), None)
    assert operator.metrics()["failed"] == 0
    operator.port(1).process(("fails", 1), None)
    assert operator.metrics()["failed"] == 1
    assert recorder.values() == [], "of an element that fails nothing is emitted, by neither"
    operator.port(0).process(("a", 2), None)
    assert recorder.values() == ["a fails"], "what it had written stays, in both"
    overheard.process(("fails", 1), None)
    operator.port(1).process(("limit", 9), None)
    assert recorder.values()[1:4] == ["before", "between", "a 4"], "it speaks again"


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_events_without_keys_are_of_one() -> None:
    found: list[str] = []
    pipeline = Pipeline()
    rules = pipeline.source([("high", -1)]).broadcast()
    pipeline.source([("a", 1)]).connect(rules).process(Above()).to(found)
    await pipeline.run()
    assert found in ([], ["None high"])  # as they arrive


def test_what_cannot_be_broadcast_is_refused() -> None:
    pipeline, other = Pipeline(), Pipeline()
    events = pipeline.source([("a", 1)]).key_by(key_of)
    with pytest.raises(PipelineError, match="belongs to another pipeline"):
        events.connect(other.source([1]).broadcast())
    with pytest.raises(PipelineError, match="expected a KeyedBroadcastProcessFunction"):
        events.connect(events.broadcast()).process(5)  # type: ignore[arg-type]

    class Expiring(Above):
        def open(self, ctx: BroadcastContext) -> None:
            ctx.broadcast_state(MapDescriptor("rules", ttl=5))

    class Valued(Above):
        def open(self, ctx: BroadcastContext) -> None:
            ctx.broadcast_state(TOTAL)  # type: ignore[arg-type]

    for function, words in ((Expiring(), "ttl of broadcast state"), (Valued(), "a MapDescriptor")):
        with pytest.raises(PipelineError, match=words):
            operator_of(function)
