"""Calls that answer at once keep their places among what comes between them."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream.elements import EndOfInput, Watermark
from asyncstream.operators.journey import Journey
from asyncstream.testing.loop import run_virtual
from tests.async_wait.rig import Log, Rig, passes

HIT, FOLLOWED, WAITS, FAILS, MARKS = "hit", "followed", "waits", "fails", "watermark"
Story = list[list[str]]


async def call(element: tuple[int, str]) -> tuple[int, str]:
    number, kind = element
    if kind == WAITS:
        await asyncio.sleep(number % 3)
    if kind == FAILS:
        raise ValueError(number)
    return element


async def told(
    story: Story, order: str, look_in: int | None = None
) -> tuple[list[Any], list[Any], list[Any]]:
    """What was fed in turns of the loop, what came out, and both and a snapshot in the midst of it."""
    fed: list[Any] = []
    then: list[Any] = []
    async with Rig(call, order=order, concurrency=3, buffer=40, on_error="skip") as rig:
        for turn, elements in enumerate(story):
            for kind in elements:
                place = len(fed)
                if kind == MARKS:
                    fed.append(Watermark(place))
                    rig.feed(fed[-1])
                    continue
                fed.append((place, kind))
                if kind == FOLLOWED:
                    with rig.operator.context.journeys.on(Journey(0.0)):
                        rig.operator.process((place, kind), place)
                else:
                    rig.feed(((place, kind), place))
            if turn == look_in:
                then = [fed.copy(), rig.log.records.copy(), rig.operator.snapshot()]
            await asyncio.sleep(0)
        await rig.finish()
        assert not rig.errors
        assert rig.counts["held"] == rig.counts["waiting"] == 0
        return fed, rig.log.records, then


def wanted(fed: list[Any]) -> list[Any]:
    """What comes out in order, in the form of a log."""
    return [
        item if isinstance(item, Watermark) else (item, item[0])
        for item in fed
        if isinstance(item, Watermark) or item[1] != FAILS
    ]


def segments(records: list[Any]) -> list[Any]:
    return [
        sorted(group, key=repr) for _, group in groupby(records, lambda record: isinstance(record, Watermark))
    ]


STORIES = st.lists(
    st.lists(st.sampled_from((HIT, HIT, HIT, FOLLOWED, WAITS, FAILS, MARKS)), max_size=8), max_size=6
)


@given(STORIES)
def test_order_is_kept_whatever_comes_between(story: Story) -> None:
    fed, records, _ = run_virtual(told(story, "ordered"))
    assert records == [*wanted(fed), EndOfInput()]


@given(STORIES)
def test_no_result_crosses_a_watermark_in_either_direction(story: Story) -> None:
    fed, records, _ = run_virtual(told(story, "event_time"))
    assert segments(records[:-1]) == segments(wanted(fed))


@given(STORIES.filter(len), st.integers(0, 5))
def test_what_came_out_and_a_snapshot_are_together_all_that_was_fed(story: Story, turn: int) -> None:
    _, _, (fed, out, snapshot) = run_virtual(told(story, "ordered", turn % len(story)))

    async def go_on() -> list[Any]:
        async with Rig(call, order="ordered", concurrency=3, on_error="skip", state=snapshot) as rig:
            await rig.finish()
            return rig.log.records[:-1]

    assert [*out, *run_virtual(go_on())] == wanted(fed)


async def test_followed_element_leaves_the_others_their_batch() -> None:
    async with Rig(call, order="ordered", concurrency=3) as rig:
        with rig.operator.context.journeys.on(Journey(0.0)):
            rig.operator.process((0, FOLLOWED), 0)
        rig.feed(*(((n, HIT), n) for n in range(1, 9)), Watermark(8), *(((n, HIT), n) for n in range(9, 12)))
        batches: list[int] = []
        process_batch = Log.process_batch

        class Batches(Log):
            def process_batch(self, values: Any, timestamps: Any) -> None:
                batches.append(len(values))
                process_batch(self, values, timestamps)

        rig.operator.out = Batches()
        await passes()
        assert batches == [1, 8, 3]


@pytest.mark.parametrize("order", ["ordered", "unordered", "event_time"])
async def test_what_has_ended_is_held_and_waits_for_room(order: str) -> None:
    async with Rig(call, order=order, concurrency=2, buffer=6) as rig:
        rig.operator.emitting.hold()
        await rig.put(((0, HIT), 0), Watermark(0), *(((n, HIT), n) for n in range(1, 9)))
        assert (rig.counts["held"], rig.counts["waiting"]) == (6, 4)
        kinds = [entry[0] for entry in rig.operator.snapshot()]
        assert kinds.count("call") == 4, "all that is held has a result"
        assert not rig.log.records
        rig.operator.emitting.release()
        await passes()
        assert len(rig.log.records) == 10
