"""A keyed step that knows nothing of persistence has it: kept, divided, united, aged and migrated."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from asyncstream import (
    CheckpointError,
    Checkpoints,
    ManualClock,
    MemoryStore,
    Pipeline,
    PipelineError,
    Stream,
)
from asyncstream.operators.base import Operator, OperatorContext
from asyncstream.operators.spec import Spec
from asyncstream.state import ListDescriptor, Table, ValueDescriptor
from tests.operators.deduplicating import DeduplicateSpec, deduplicated
from tests.operators.recorder import Recorder, record

SECOND = 1_000


def own(value: Any) -> Any:
    return value


def opened(clock: ManualClock, *, ttl: float | None = None, state: Any = None) -> tuple[Any, Recorder]:
    operator = DeduplicateSpec(own, ValueDescriptor("seen", ttl=ttl)).build()
    recorder = record(operator, clock)
    if state is not None:
        operator.restore(state)
    return operator, recorder


def values_of(recorder: Recorder) -> list[Any]:
    return recorder.values()


def pipeline(out: list[Any], ttl: float | None = None) -> Pipeline:
    made = Pipeline("firsts")
    deduplicated(made.submissions(name="in"), own, ttl).to(out, name="out")
    return made


async def run(store: MemoryStore, values: Any, clock: ManualClock, ttl: float | None = None) -> list[Any]:
    out: list[Any] = []
    async with pipeline(out, ttl).start(checkpoints=Checkpoints(store=store), clock=clock) as job:
        for value in values:
            await job.submit(value)
            await job.checkpoint()
        await job.drain()
    return out


@pytest.mark.parametrize("ttl", [None, 60.0])
@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_what_was_seen_before_a_restart_is_seen(ttl: float | None) -> None:
    store, clock = MemoryStore(), ManualClock(0)
    assert await run(store, "abcab", clock, ttl) == ["a", "b", "c"]
    assert await run(store, "cdbd", clock, ttl) == ["d"]
    assert await run(store, "abcde", clock, ttl) == ["e"]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_entries_grow_old_across_restarts() -> None:
    store, clock = MemoryStore(), ManualClock(0)
    assert await run(store, "a", clock, 10.0) == ["a"]
    clock.set_ms(clock.now_ms() + 6 * SECOND)
    assert await run(store, "ab", clock, 10.0) == ["b"]
    clock.set_ms(clock.now_ms() + 6 * SECOND)
    assert await run(store, "ab", clock, 10.0) == ["a"]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_time_to_live_that_comes_later_holds_for_what_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, clock = MemoryStore(), ManualClock(0)
    assert await run(store, "a", clock) == ["a"]
    with caplog.at_level(logging.INFO):
        assert await run(store, "ab", clock, 10.0) == ["b"]
    assert "step 'first' has changed since its state was kept: seen was ValueDescriptor(" in caplog.text
    assert "ttl=nothing, default=nothing) and is ValueDescriptor(name='seen', ttl=10.0" in caplog.text
    clock.set_ms(clock.now_ms() + 11 * SECOND)
    assert await run(store, "ab", clock, 10.0) == ["a", "b"]
    clock.set_ms(clock.now_ms() + 11 * SECOND)
    assert await run(store, "ab", clock) == []


def test_what_is_restored_leaves_memory_when_it_is_old() -> None:
    clock = ManualClock(0)
    first, _ = opened(clock, ttl=10.0)
    first.process_batch(list(range(50)), None)
    second, _ = opened(clock, ttl=10.0, state=first.snapshot())
    for number in range(50):
        clock.set_ms(clock.now_ms() + SECOND)
        second.process_batch([f"new {number}"], None)
    assert not any(key in range(50) for _, key, _ in second.tables["state/seen"].items())


@pytest.mark.parametrize("ttl", [None, 10.0])
def test_snapshot_divides_by_key_and_unites(ttl: float | None) -> None:
    clock = ManualClock(0)
    whole, _ = opened(clock, ttl=ttl)
    whole.process_batch(list(range(20)), None)
    parts = whole.divided(whole.snapshot(), lambda key: key % 3, range(3))
    for share, part in parts.items():
        one, recorder = opened(clock, ttl=ttl, state=part)
        one.process_batch(list(range(20)), None)
        assert values_of(recorder) == [number for number in range(20) if number % 3 != share]
    united, recorder = opened(clock, ttl=ttl, state=whole.united(list(parts.values())))
    united.process_batch([*range(20), 99], None)
    assert values_of(recorder) == [99]


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_without_a_name_it_is_refused_where_there_are_checkpoints() -> None:
    made = Pipeline("firsts")
    deduplicated(made.submissions(name="in"), own, name=None).to([], name="out")
    with pytest.raises(PipelineError, match="these steps have no name of their own: 'deduplicate'"):
        async with made.start(checkpoints=Checkpoints(store=MemoryStore())):
            pass


class Numbered(Operator):
    """Remembers, though its spec does not say so."""

    def __init__(self) -> None:
        super().__init__()
        self.tables.declare(Table("count"))


@dataclass(frozen=True)
class NumberedSpec(Spec):
    operator = Numbered

    def build(self) -> Numbered:
        return Numbered()


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_what_is_remembered_without_a_key_or_a_schema_is_not_lost_in_silence() -> None:
    made = Pipeline("numbers")
    stream = made.submissions(name="in")
    Stream(made._graph, stream._step("number", "numbers", NumberedSpec(), {})).to([], name="out")
    with pytest.raises(CheckpointError, match="'numbers' has tables, of which its spec says nothing"):
        async with made.start(checkpoints=Checkpoints(store=MemoryStore())):
            pass


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_state_of_another_kind_under_its_name_is_refused() -> None:
    store = MemoryStore()
    await run(store, "a", ManualClock(0))
    operator = DeduplicateSpec(own, ValueDescriptor("seen")).build()
    operator.open(OperatorContext())
    state = operator.snapshot()
    state["cells"]["state"] = {"seen": ListDescriptor.__name__}
    with pytest.raises(CheckpointError, match="state 'seen' is ListDescriptor state and cannot be read as"):
        operator.restore(state)
