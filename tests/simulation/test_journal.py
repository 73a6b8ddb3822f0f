"""
Stories of crashes between a call, the writing down of its result, and its emission: nothing is paid for twice
that was written down, and nothing goes on that was not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from asyncstream import Pipeline, call_context
from asyncstream.async_wait.journaled import Journaled, _results
from asyncstream.checkpoint.journal import Journal, StepJournal, ended_in, frames
from asyncstream.codec import codec
from asyncstream.testing.simulation import (
    FaultPlan,
    Life,
    PlainSimulatedSink,
    SimulatedSink,
    SimulatedSource,
    Simulation,
    SimulationFailed,
    simulate,
)
from tests.simulation.models import ORDERS
from tests.simulation.scenarios import swept

SEEDS = 120
WITHIN = 1200
"""Seeds."""

pytestmark = pytest.mark.usefixtures("quiet")


def story(seed: int) -> Simulation:
    random = Random(f"{seed} journal")
    order = random.choice(ORDERS)
    waits, flat = random.random() < 0.3, random.random() < 0.3
    # one that cannot take back lets a job go back to an older checkpoint
    sink = random.choice((SimulatedSink, PlainSimulatedSink))
    events = list(range(random.randint(5, 60)))
    emitted: set[int] = set()  # what has gone on from the step, in any life
    keys: dict[int, str] = {}

    def make_pipeline(life: Life) -> Pipeline:
        written = _written(life)

        async def call(event: int) -> Any:
            key = call_context().idempotency_key
            if keys.setdefault(event, key) != key:
                life.complain(f"call {event} has another key")
            if event in written:
                life.complain(f"call {event} is made again, though it is in the journal")
            if event in emitted:
                life.complain(f"call {event} is made again, though its result has gone on")
            await life.latency()
            if not flat:
                return event
            return [event, -event] if event % 2 else [event]

        def note(event: int) -> int:
            if not life.is_over:
                emitted.add(abs(event))
            return event

        pipeline = Pipeline("simulated")
        source: Any = pipeline.source(SimulatedSource(life, life.world.events), name="events")
        if order == "per_key":
            source = source.key_by(lambda event: event % 3)
        step = source.async_flat_map if flat else source.async_map
        concurrency = life.random.choice((1, 3, 8))
        journal: Any = "fsync" if waits else True
        called = step(call, name="call", order=order, concurrency=concurrency, journal=journal)
        called.map(note, name="note").to(sink(life), name="sink")
        return pipeline

    plan = FaultPlan(
        lives=random.choice((3, 6, 10)),
        crash_after=random.choice((0.1, 0.5)),
        crash=random.choice((0.0, 0.05, 0.1)),
        failure=random.choice((0.0, 0.02)),
        latency=random.choice((0.003, 0.05)),
        checkpoint_every=random.choice((0.05, 0.5)),
        damage=random.choice((0.0, 0.0, 0.5)),
    )
    results = [value for event in events for value in ((event, -event) if flat and event % 2 else (event,))]
    return simulate(make_pipeline, events, results, seed, plan=plan, replay=f"story({seed})")


def _written(life: Life) -> set[int]:
    """The events whose results are in the files of the checkpoint that this life goes on from, and later."""
    newest = life.world.newest_whole()
    found: set[int] = set()
    for name, data in life.world.journal.items():
        if newest is not None and int(name.split("-")[1]) >= newest:
            for payload in frames(data, name):
                _, _, *group = codec("json").decode(payload)
                found |= {results[0] for _, results in ended_in(group)}
    return found


@pytest.mark.timeout(300)
def test_no_call_is_made_again_that_is_written_down() -> None:
    spared = 0
    for seed in swept(range(SEEDS)):
        told = story(seed)
        spared += any(what == "append" for _, _, what, _ in told.trace)
    assert spared > SEEDS / 2


Patch = Callable[[pytest.MonkeyPatch], None]


def nothing_is_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepJournal, "append", lambda step, *columns, single: None)


def results_go_on_before_they_are_written(patch: pytest.MonkeyPatch) -> None:
    def write(journaled: Journaled, *, single: bool) -> None:
        ended, calls = journaled.ended.copy(), journaled.calls.copy()
        journaled.ended.clear()
        journaled.calls.clear()
        if journaled.waits:
            journaled._let_go(ended)
        found = [(promise.origin, promise.value, _results(promise.outcome) or []) for promise in ended]
        found += [
            (block.origins[place], element, _results(block.outcomes[place]) or [])
            for block, place, element in calls
        ]
        if found:
            asyncio.get_running_loop().call_soon(append, journaled, found)

    def append(journaled: Journaled, found: list[Any]) -> None:
        of, elements, results = map(list, zip(*found, strict=True))
        journaled._log.append(of, elements, results, single=False)

    patch.setattr(Journaled, "write", write)


def what_was_written_is_not_read(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepJournal, "remember", lambda step, ended, checks: None)


def it_is_asked_for_and_called_all_the_same(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journaled, "take", lambda journaled, origin, element: None)


def a_checkpoint_does_not_begin_a_file(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "rotate", lambda journal, checkpoint: None)


def what_is_still_to_be_asked_for_is_not_carried_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StepJournal, "carry_over", lambda step: step._known.clear())


def files_are_deleted_that_an_older_checkpoint_needs(patch: pytest.MonkeyPatch) -> None:
    async def forget(journal: Journal, oldest: int, whole: Any = Journal.forget) -> None:
        await whole(journal, int(journal._name.split("-")[1]))

    patch.setattr(Journal, "forget", forget)


def a_file_is_begun_a_checkpoint_late(patch: pytest.MonkeyPatch) -> None:
    def rotate(journal: Journal, checkpoint: int, in_time: Any = Journal.rotate) -> None:
        in_time(journal, checkpoint - 1)

    patch.setattr(Journal, "rotate", rotate)


@pytest.mark.parametrize(
    ("put_in", "first"),
    [
        (nothing_is_written, 0),
        (results_go_on_before_they_are_written, 0),
        (what_was_written_is_not_read, 0),
        (it_is_asked_for_and_called_all_the_same, 0),
        (a_checkpoint_does_not_begin_a_file, 0),
        (what_is_still_to_be_asked_for_is_not_carried_over, 0),
        (files_are_deleted_that_an_older_checkpoint_needs, 630),  # one story in six hundred shows it
        (a_file_is_begun_a_checkpoint_late, 0),
    ],
    ids=lambda bug: getattr(bug, "__name__", None),
)
@pytest.mark.timeout(300)
def test_bug_is_caught_when(put_in: Patch, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch)
    with pytest.raises(SimulationFailed):
        tell_all(first)


def tell_all(first: int) -> None:
    for seed in swept(range(first, first + WITHIN)):
        story(seed)
