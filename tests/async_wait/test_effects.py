"""Idempotency keys: one for each element and step, and the same whenever its call is made."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    BoundedOutOfOrderness,
    Checkpoints,
    Count,
    DeadLetterSource,
    Items,
    JsonLinesSink,
    JsonLinesSource,
    MemoryStore,
    Pipeline,
    PipelineError,
    TumblingWindows,
    UserFunctionError,
    call_context,
)
from asyncstream.connectors import to_dead_letter
from asyncstream.guards import batched, cached, in_threads, retry, single_flight

pytestmark = pytest.mark.usefixtures("virtual_time")

ORDERS = ["ordered", "unordered", "event_time", "per_key"]


class Seen:
    """Notes which key each element's calls had."""

    def __init__(self) -> None:
        self.keys: dict[Any, list[str]] = defaultdict(list)

    def note(self, value: Any) -> None:
        self.keys[value].append(call_context().idempotency_key)

    def once(self) -> list[str]:
        """The keys, of which each element has one that no other has."""
        assert all(len(set(keys)) == 1 for keys in self.keys.values()), self.keys
        found = [keys[0] for keys in self.keys.values()]
        assert len(set(found)) == len(found)
        return found


def charged(stream: Any, function: Any, order: str = "ordered", **options: Any) -> Any:
    if order == "per_key":
        stream = stream.key_by(lambda value: value % 7)
    return stream.async_map(function, order=order, name="charge", **({"effect": True} | options))


@pytest.mark.parametrize("isolation", ["pool", "task"])
@pytest.mark.parametrize("order", ORDERS)
async def test_a_call_that_is_made_again_after_a_restore_has_the_same_key(order: str, isolation: Any) -> None:
    seen, store = Seen(), MemoryStore()

    async def charge(value: int) -> int:
        seen.note(value)
        await asyncio.sleep(value % 5)
        seen.note(value)  # also when other calls have begun meanwhile
        return value

    results: list[int] = []

    def make() -> Pipeline:
        pipeline = Pipeline("shop")
        orders = pipeline.source(Items(range(300), batch=7), name="orders").filter(lambda value: value % 3)
        charged(orders, charge, order, concurrency=20, isolation=isolation).to(results, name="results")
        return pipeline

    for seconds in (3.5, 4.5):
        job = make().start(checkpoints=Checkpoints(store=store, every=1))
        await job.__aenter__()
        await asyncio.sleep(seconds)
        await job._run.close()  # as a crash does: no last checkpoint
    await make().run(checkpoints=Checkpoints(store=store, every=1))

    assert set(results) == {value for value in range(300) if value % 3}
    assert any(len(keys) > 2 for keys in seen.keys.values()), "some calls were made again"
    assert len(seen.once()) == 200


async def test_attempts_share_a_key_and_steps_do_not() -> None:
    first, second = Seen(), Seen()

    async def charge(value: int) -> list[int]:
        first.note(value)
        if len(first.keys[value]) < 3:
            raise ConnectionError
        return [value, value]

    numbers = iter(range(100))

    async def mail(value: int) -> None:
        second.note((value, next(numbers)))

    pipeline = Pipeline()
    source = pipeline.source(range(10), name="orders")
    charges = source.async_flat_map(retry(charge), name="charge", effect=True)
    charges.async_map(mail, name="mail", effect=True).discard()
    await pipeline.run()

    assert len(second.keys) == 20
    assert len({*first.once(), *second.once()}) == 30


async def test_a_dead_letter_that_is_fed_back_has_the_key_that_it_had(tmp_path: Path) -> None:
    seen, broken = Seen(), True

    async def charge(value: int) -> int:
        seen.note(value)
        if broken and value % 3 == 0:
            raise ConnectionError("down")
        return value

    pipeline = Pipeline("shop")
    charges = charged(pipeline.source(range(10), name="orders"), charge, on_error="route")
    charges.discard()
    charges.failed.map(to_dead_letter).to(JsonLinesSink(tmp_path / "failed.jsonl"))
    await pipeline.run()

    broken = False
    done: list[int] = []
    again = Pipeline("shop again")
    letters = DeadLetterSource(JsonLinesSource(tmp_path / "failed.jsonl"))
    charged(again.source(letters, name="letters"), charge).to(done)
    await again.run()

    assert done == [0, 3, 6, 9]
    assert [len(seen.keys[value]) for value in done] == [2, 2, 2, 2]
    seen.once()


async def test_a_failed_element_keeps_its_origin_on_the_way_to_another_step() -> None:
    seen = Seen()

    async def refuse(value: int) -> int:
        raise ConnectionError

    async def instead(failed: Any) -> None:
        seen.note(failed.value)
        assert failed.origin[1] == failed.value

    pipeline = Pipeline()
    charges = charged(pipeline.source(range(5), name="orders"), refuse, on_error="route")
    charges.discard()
    charges.failed.async_map(instead, name="instead", effect=True).discard()
    await pipeline.run()

    assert len(seen.once()) == 5


async def test_a_run_that_begins_anew_has_other_keys() -> None:
    seen = Seen()
    runs = iter("ab")
    for run in runs:

        async def charge(value: int, run: str = run) -> None:
            seen.note((run, value))

        pipeline = Pipeline("shop")
        charged(pipeline.source(range(5), name="orders"), charge).discard()
        await pipeline.run()

    assert len(seen.once()) == 10


async def test_what_tells_elements_apart_may_be_said_where_they_have_no_position() -> None:
    keys: list[str] = []

    async def charge(value: Any) -> None:
        keys.append(call_context().idempotency_key)

    def orders() -> Iterator[dict[str, Any]]:
        yield {"id": 1}
        yield {"id": "1"}
        yield {"id": 1}

    for _ in range(2):
        pipeline = Pipeline("shop")
        charged(pipeline.source(orders(), name="orders"), charge, effect="id").discard()
        await pipeline.run()

    assert keys[0] == keys[2] == keys[3] != keys[1]


async def test_an_identity_that_is_not_the_same_everywhere_is_an_error_of_its_element() -> None:
    async def charge(value: Any) -> None:
        raise AssertionError("it has no key")

    failed: list[Any] = []
    pipeline = Pipeline()
    charges = charged(pipeline.source([object()]), charge, effect=lambda value: value, on_error="route")
    charges.discard()
    charges.failed.to(failed)
    await pipeline.run()

    assert isinstance(failed[0].error, TypeError)
    assert "it gave object" in str(failed[0].error)


def window(stream: Any) -> Any:
    timed = stream.event_time(lambda value: value, BoundedOutOfOrderness(1))
    return timed.key_by(lambda value: value).window(TumblingWindows(1)).aggregate(n=Count())


def test_elements_without_a_position_are_refused_when_the_pipeline_is_built() -> None:
    async def charge(value: Any) -> Any:
        return value

    pipeline = Pipeline()
    with pytest.raises(PipelineError, match="'generator' have none, for it cannot be read again"):
        charged(pipeline.source((value for value in range(3)), name="generator"), charge)
    with pytest.raises(PipelineError, match="'submissions' have none"):
        charged(pipeline.submissions(name="submissions").map(str), charge)
    with pytest.raises(PipelineError, match="'aggregate' are made on the way; say what tells"):
        charged(window(pipeline.source(range(3), name="list")).map(str), charge)
    fine = pipeline.source(range(3), name="fine")
    with pytest.raises(PipelineError, match="'generator' have none"):
        charged(fine.union(stream_of(pipeline, "generator")), charge)
    with pytest.raises(PipelineError, match=r"failed' are made"):
        charged(fine.map(str, on_error="route").failed, charge)
    charged(window(fine), charge, effect=lambda result: result.key)


@pytest.mark.parametrize("options", [{"effect": True}, {"journal": True}, {"journal": "fsync"}])
def test_the_refusal_names_the_argument_that_asks_for_positions(options: dict[str, Any]) -> None:
    async def charge(value: Any) -> Any:
        return value

    stream = window(Pipeline().source(range(3), name="list"))
    with pytest.raises(
        PipelineError, match=f"^{next(iter(options))}: expected elements that have a position"
    ):
        stream.async_map(charge, **options)


def stream_of(pipeline: Pipeline, name: str) -> Any:
    from asyncstream.pipeline import Stream
    from asyncstream.plan import Output

    return Stream(pipeline._graph, Output(name))


@pytest.mark.parametrize("effect", [3, None, ""])
def test_an_effect_that_says_nothing_is_refused(effect: Any) -> None:
    async def charge(value: Any) -> Any:
        return value

    with pytest.raises(PipelineError, match="effect"):
        charged(Pipeline().source(range(3)), charge, effect=effect)


async def test_calls_that_nobody_keeps_track_of_have_no_context() -> None:
    errors: list[Any] = []

    async def charge(value: int) -> None:
        call_context()

    pipeline = Pipeline()
    charges = charged(pipeline.source([1]), charge, effect=False, on_error="route")
    charges.discard()
    charges.failed.to(errors)
    await pipeline.run()

    assert isinstance(errors[0].error, PipelineError)
    assert "give the step effect=True" in str(errors[0].error)


@pytest.mark.parametrize("order", ORDERS)
async def test_steps_behind_a_call_have_no_context_of_it(order: str) -> None:
    """A plain function was told the key of an element that had nothing to do with its own."""

    async def charge(value: int) -> int:
        await asyncio.sleep(0.01)
        return value

    pipeline = Pipeline()
    charges = charged(pipeline.source(range(3)), charge, order)
    charges.map(lambda value: call_context().idempotency_key, name="refund").discard()
    with pytest.raises(UserFunctionError, match="step 'refund': PipelineError: call_context"):
        await pipeline.run()


async def test_guards_hand_the_key_on_and_shared_calls_have_none() -> None:
    seen, shared = Seen(), []

    def plain(value: int) -> int:
        seen.note(value)
        return value

    async def many(values: list[int]) -> list[int]:
        try:
            call_context()
        except PipelineError:
            shared.append(len(values))
        return values

    pipeline = Pipeline()
    source = pipeline.source(range(10), name="orders")
    first = source.async_map(cached(single_flight(in_threads(plain))), name="plain", effect=True)
    first.async_map(batched(many, size=5), name="many", effect=True).discard()
    await pipeline.run()

    assert len(seen.once()) == 10
    assert sum(shared) == 10


async def test_a_task_that_outlives_its_call_keeps_its_key() -> None:
    seen, tasks = Seen(), []

    async def later(value: int) -> None:
        await asyncio.sleep(5)
        seen.note(value)

    async def charge(value: int) -> None:
        seen.note(value)
        tasks.append(asyncio.create_task(later(value)))

    pipeline = Pipeline()
    charged(pipeline.source(range(10), name="orders"), charge, concurrency=2).discard()
    await pipeline.run()
    await asyncio.gather(*tasks)

    assert len(seen.once()) == 10
