"""What users get: a pipeline of their own, simulated; and the simulated world itself."""

from __future__ import annotations

import asyncio
import itertools
import random
from random import Random
from typing import Any, NamedTuple, cast

import pytest

from asyncstream import JsonLinesSink, Pipeline, PipelineError
from asyncstream.guards import retry
from asyncstream.pipeline import SourceStream
from asyncstream.testing.simulation import (
    FaultPlan,
    Life,
    PlainSimulatedSink,
    SimulatedSink,
    SimulatedSource,
    SimulationFailed,
    simulate,
)
from asyncstream.testing.simulation.__main__ import main
from asyncstream.testing.simulation.world import ShufflingLoop, World

EVENTS = list(range(40))
UNKIND = FaultPlan(crash=0.05, crash_after=0.3, failure=0.03)


pytestmark = pytest.mark.usefixtures("quiet")


def enriched(life: Life, sink: Any) -> Pipeline:
    async def enrich(event: int) -> tuple[str, int]:
        await life.access("service", 0.1)
        return "plane", event

    pipeline = Pipeline()
    patient = retry(enrich, random=life.random.random, attempts=50, timeout=None, clock=life)
    pipeline.source(SimulatedSource(life), name="events").async_map(patient, name="enrich").to(
        sink, name="sink"
    )
    return pipeline


@pytest.mark.parametrize("seed", range(10))
def test_pipeline_of_a_user_is_led_through_crashes(seed: int) -> None:
    expected = [("plane", event) for event in EVENTS]
    told = simulate(lambda life: enriched(life, SimulatedSink(life)), EVENTS, expected, seed, plan=UNKIND)
    assert sorted(told.results["sink"]) == expected
    assert told.lives >= 2
    assert [entry[2] for entry in told.trace].count("start") == told.lives


def test_plain_sink_holds_everything_and_some_things_twice() -> None:
    expected = [("plane", event) for event in EVENTS]
    told = [
        simulate(lambda life: enriched(life, PlainSimulatedSink(life)), EVENTS, expected, seed, plan=UNKIND)
        for seed in range(10)
    ]
    assert all(set(expected) == set(one.results["sink"]) for one in told)
    assert any(len(one.results["sink"]) > len(expected) for one in told)


def test_what_is_missing_or_too_much_is_told_with_the_way_to_tell_it_again() -> None:
    with pytest.raises(SimulationFailed) as caught:
        simulate(lambda life: enriched(life, SimulatedSink(life)), [1, 2], [("plane", 1), ("plane", 3)], 4)
    text = str(caught.value)
    assert text.startswith("seed 4: sink: missing: ('plane', 3); too much: ('plane', 2)\n")
    assert "replay it with: simulate(..., seed=4)" in text
    assert "finished" in text
    assert caught.value.seed == 4


def test_element_that_is_lost_when_the_process_dies_is_missed() -> None:
    """A user's own mistake: what is remembered outside of the pipeline's state is gone."""

    def pairs(life: Life) -> Pipeline:
        waiting: list[int] = []

        def pair(event: int) -> list[tuple[int, ...]]:
            waiting.append(event)
            if len(waiting) < 2:
                return []
            found = tuple(waiting)
            waiting.clear()
            return [found]

        pipeline = Pipeline()
        pipeline.source(SimulatedSource(life), name="events").flat_map(pair, name="pairs").to(
            SimulatedSink(life), name="sink"
        )
        return pipeline

    expected = [(number, number + 1) for number in EVENTS[::2]]
    simulate(pairs, EVENTS, expected, 0, plan=UNKIND.kind())

    def find_out() -> None:
        for seed in range(50):
            simulate(pairs, EVENTS, expected, seed, plan=UNKIND)

    with pytest.raises(SimulationFailed, match="missing"):
        find_out()


def test_error_that_the_world_is_not_to_blame_for_fails_the_simulation() -> None:
    def broken(life: Life) -> Pipeline:
        pipeline = Pipeline()
        pipeline.source(SimulatedSource(life), name="events").map(lambda event: 1 // 0, name="broken").to(
            SimulatedSink(life), name="sink"
        )
        return pipeline

    with pytest.raises(SimulationFailed, match="the job failed: UserFunctionError: step 'broken'") as caught:
        simulate(broken, EVENTS, EVENTS, 1, plan=UNKIND.kind())
    assert caught.value.__cause__ is not None


def test_state_that_dies_with_the_process_is_found_out_though_events_are_few() -> None:
    """They had all been read before the first checkpoint, and one of these stories found it."""

    def forgetful(life: Life) -> Pipeline:
        pair: list[int] = []

        def in_pairs(event: int) -> list[int]:
            pair.append(event)
            return [pair.pop(0), pair.pop(0)] if len(pair) == 2 else []

        pipeline = Pipeline()
        pipeline.source([], name="events").flat_map(in_pairs, name="pairs").to([], name="sink")
        return pipeline

    found = 0
    for seed in range(30):
        try:
            simulate(forgetful, {"events": range(30)}, {"sink": range(30)}, seed)
        except SimulationFailed:
            found += 1
    assert found >= 8


def test_pipeline_that_hangs_is_found_out() -> None:
    def hanging(life: Life) -> Pipeline:
        async def hang(event: int) -> None:
            await asyncio.sleep(1e9)

        pipeline = Pipeline()
        pipeline.source(SimulatedSource(life), name="events").async_map(hang, name="hang").to(
            SimulatedSink(life), name="sink"
        )
        return pipeline

    with pytest.raises(SimulationFailed, match=r"it hangs; waiting are\n  \S.* in .*test_simulation\.py:\d+"):
        simulate(hanging, [1], [1], 0, plan=FaultPlan(checkpoint_every=1000.0).kind())


def test_missing_sink_is_named() -> None:
    with pytest.raises(SimulationFailed, match="there is no sink 'other'; there is 'sink'"):
        simulate(lambda life: enriched(life, SimulatedSink(life)), [], {"sink": [], "other": []}, 0)


def test_nothing_that_a_dead_process_does_reaches_the_world() -> None:
    world = World(0, EVENTS)
    life = Life(world, 1, FaultPlan().kind())
    sink = SimulatedSink(life)

    async def main() -> None:
        await sink.recover(None)
        await sink.write([1, 2], None)
        await sink.prepare(1)
        life.end("here")
        told = len(world.trace)
        await sink.commit(1)
        await sink.write([3], None)
        await sink.prepare(2)
        assert await SimulatedSource(life).read() is None
        assert len(world.trace) == told

    asyncio.set_event_loop(None)
    work = life.loop.create_task(main())
    life.loop.run_forever()  # until it ends
    life.loop.run_until_complete(work)
    life.loop.close()
    assert world.disks["sink"].committed == []
    assert world.disks["sink"].staged == [1, 2]


def test_sink_complains_of_whoever_does_not_keep_the_protocol() -> None:
    life = Life(World(0, []), 1, FaultPlan().kind())
    sink = SimulatedSink(life)

    async def main() -> None:
        await sink.write([1], None)
        await sink.recover(None)
        await sink.commit(7)
        await asyncio.gather(*(sink.write([number], None) for number in range(10)))

    life.loop.run_until_complete(main())
    life.loop.close()
    assert dict.fromkeys(life.world.wrong) == dict.fromkeys(
        [
            "sink: write before it has recovered",
            "sink: commit of epoch 7, which was not prepared",
            "sink: write during write",
        ]
    )


def test_timers_of_one_instant_fire_in_any_order_and_never_early() -> None:
    orders = set()
    for seed in range(20):
        loop = ShufflingLoop(Random(seed))
        fired: list[int] = []

        async def main(fired: list[int] = fired) -> None:
            loop = asyncio.get_running_loop()
            for number in range(3):
                loop.call_at(5.0, lambda number=number: fired.append(number))  # type: ignore[misc]
            await asyncio.sleep(4.999)
            assert not fired
            await asyncio.sleep(0.01)

        loop.run_until_complete(main())
        loop.close()
        assert sorted(fired) == [0, 1, 2]
        orders.add(tuple(fired))
    assert len(orders) > 3


def test_command_tells_a_story_and_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--story", "tests.simulation.scenarios:story", "--seed", "2"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:2] == ["life", "1"]
    assert "seed 2: as expected after" in out


def a_story_that_goes_wrong(seed: int) -> object:
    return simulate(lambda life: enriched(life, SimulatedSink(life)), [1], [], seed)


def test_command_fails_with_the_story(capsys: pytest.CaptureFixture[str]) -> None:
    story = f"{__name__}:a_story_that_goes_wrong"
    assert main(["--seed", "2", "--story", story, "--quiet"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("seed 2: sink: too much: ('plane', 1)")


# ------------------------------------------------------------------ a pipeline as it is


def orders(ask: Any, source: Any = (), sink: Any = None) -> Pipeline:
    """What a user has in production: it knows nothing of simulations."""
    pipeline = Pipeline("orders")
    priced = pipeline.source(source, name="orders").async_map(
        retry(ask, attempts=50, timeout=None, wait_max=1), name="price", on_error="route"
    )
    priced.to(JsonLinesSink("priced.jsonl") if sink is None else sink, name="priced")
    priced.failed.to(print, name="failed")
    return pipeline


async def price(order: int) -> tuple[int, int]:
    return order, order * 3


def test_pipeline_is_simulated_as_it_is() -> None:
    expected = {"priced": [(event, event * 3) for event in EVENTS], "failed": []}
    happened: set[tuple[str, str]] = set()
    for seed in range(10):
        told = simulate(
            lambda life: orders(life.unreliable(price, 0.1)), {"orders": EVENTS}, expected, seed, plan=UNKIND
        )
        assert sorted(told.results["priced"]) == expected["priced"]
        happened.update((what, str(detail)) for _, _, what, detail in told.trace)
    assert happened > {("failure", "price"), ("crash", "in price"), ("crash", "in commit")}


def test_one_sink_needs_no_name_whatever_it_is_called() -> None:
    def make(life: Life) -> Pipeline:
        pipeline = Pipeline("doubled")
        placed: SourceStream[int] = pipeline.source((), name="orders")
        placed.map(lambda order: order * 2).to(JsonLinesSink("doubled.jsonl"), name="doubled")
        return pipeline

    doubled = [event * 2 for event in EVENTS]
    assert simulate(make, {"orders": EVENTS}, doubled, plan=UNKIND).results == {"doubled": doubled}
    with pytest.raises(SimulationFailed, match="doubled: too much: 78"):
        simulate(make, {"orders": EVENTS}, doubled[:-1], plan=UNKIND)


def test_of_several_sinks_each_needs_its_name() -> None:
    with pytest.raises(
        SimulationFailed, match=r"expected: say by name .*; there is ('priced', 'failed'|'failed', 'priced')"
    ):
        simulate(lambda life: orders(price), {"orders": EVENTS}, EVENTS)


def test_life_in_which_nothing_goes_wrong_is_the_model() -> None:
    for seed in range(5):
        told = simulate(
            lambda life: orders(life.unreliable(price, 0.1)), {"orders": EVENTS}, seed=seed, plan=UNKIND
        )
        assert len(told.results["priced"]) == len(EVENTS)

    def counting(life: Life) -> Pipeline:
        """Numbers its elements in an attribute, which a crash takes away."""
        numbers = itertools.count()
        pipeline = Pipeline()
        placed: SourceStream[int] = pipeline.source((), name="orders")
        placed.map(lambda order: (order, next(numbers)), name="number").to(
            JsonLinesSink("priced.jsonl"), name="priced"
        )
        return pipeline

    def find_out() -> None:
        for seed in range(50):
            simulate(counting, {"orders": EVENTS}, seed=seed, plan=UNKIND)

    with pytest.raises(SimulationFailed, match="priced: missing"):
        find_out()


def test_story_is_the_same_also_if_the_module_random_is_used() -> None:
    def make(life: Life) -> Pipeline:
        return orders(life.unreliable(price, 0.3))  # and retry draws its waits from the module

    random.seed(1)
    before = random.getstate()
    told = [simulate(make, {"orders": EVENTS}, seed=3, plan=UNKIND).trace for _ in range(2)]
    assert told[0] == told[1]
    assert random.getstate() == before


def test_source_that_is_not_there_is_named() -> None:
    with pytest.raises(SimulationFailed, match="no source 'order'; there is 'orders'"):
        simulate(lambda life: orders(price), {"order": EVENTS})


class Order(NamedTuple):
    number: int


def test_pipeline_that_is_made_already_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"make_pipeline: expected a function, got <Pipeline"):
        simulate(cast(Any, Pipeline("made")), {"orders": range(3)})


def test_function_that_forgets_to_return_its_pipeline_is_told_so() -> None:
    with pytest.raises(
        SimulationFailed, match="make_pipeline: expected a function that returns a Pipeline, got No"
    ):
        simulate(cast(Any, lambda life: None), {"orders": range(3)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": "5"},
        {"seed": -1},
        {"events": 5},
        {"events": "orders"},
        {"plan": {}},
        {"types": int},
        {"expected": "priced"},
        {"expected": 5},
    ],
    ids=str,
)
def test_story_that_cannot_be_told_is_refused(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"events": {"orders": range(3)}} | wrong
    with pytest.raises(PipelineError, match=f"{next(iter(wrong))}: expected"):
        simulate(lambda life: orders(price_of), **given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"latency": 0.0},
        {"checkpoint_every": 0},
        {"crash": 5},
        {"failure": -0.1},
        {"pause": float("nan")},
        {"long": float("inf")},
        {"crash_after": "soon"},
        {"lives": 2.5},
    ],
    ids=str,
)
def test_world_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match=f"{next(iter(wrong))}: expected"):
        FaultPlan(**wrong)
    with pytest.raises(PipelineError, match="plan: expected a FaultPlan"):
        simulate(lambda life: orders(price_of), {"orders": range(3)}, plan=cast(Any, wrong))


def test_classes_of_elements_are_told() -> None:
    placed = [Order(number) for number in range(20)]
    simulate(lambda life: orders(price_of), {"orders": placed}, plan=UNKIND, types=[Order])


async def price_of(order: Order) -> Order:
    return Order(order.number * 3)
