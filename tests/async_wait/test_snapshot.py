"""What a snapshot holds, and how an operator goes on from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncstream.elements import Control, EndOfInput, IdleStatus, Watermark
from tests.async_wait.rig import Rig, Service, passes

pytestmark = pytest.mark.usefixtures("virtual_time")

ORDERS = ["ordered", "unordered", "event_time"]
EVERY_ORDER = [*ORDERS, "per_key"]


def keyed(order: str) -> dict[str, Any]:
    return {"order": order, "key_by": (lambda value: value) if order == "per_key" else None}


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_snapshot_is_in_input_order_free_of_side_effects_and_the_same_twice(order: str) -> None:
    service = Service()
    async with Rig(service, concurrency=5, buffer=7, **keyed(order)) as rig:
        await rig.put((1, 1), (2, 2), (3, 3), Watermark(3))
        await rig.put((4, 4), (5, 5), (6, 6), IdleStatus(True), (7, 7))
        rig.operator.emitting.hold()
        await service.answer(5, 2)
        expected = [
            ["call", 1, 1],
            ["finished", 2, 2, [20]],
            ["call", 3, 3],
            ["watermark", 3],
            ["call", 4, 4],
            ["finished", 5, 5, [50]],
            ["call", 6, 6],
            ["idle", True],
            ["call", 7, 7],
        ]
        assert rig.operator.snapshot() == expected
        assert rig.operator.snapshot() == expected
        rig.operator.emitting.release()
        await service.answer(1, 3, 4, 6, 7)
        assert {value for value in rig.log.values if not isinstance(value, Control)} == {
            10, 20, 30, 40, 50, 60, 70,
        }  # fmt: skip


async def test_snapshot_does_not_share_mutable_parts_with_the_operator() -> None:
    service = Service()
    async with Rig(service, flat=True) as rig:
        await rig.put(1, 2)
        await service.answer_with(2, [1, 2])
        taken = rig.operator.snapshot()
        for entry in taken:
            entry.append("x")
            for part in entry:
                if isinstance(part, list):
                    part.append("y")
        await service.answer_with(1, [0])
        assert rig.log.values == [0, 1, 2]


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_snapshot_at_any_moment_between_two_callbacks_has_everything_that_is_not_out(
    order: str,
) -> None:
    """Also between a call's suspension and the turn that sees it."""

    async def call(value: int) -> int:
        if value % 3 == 1:
            await asyncio.sleep(0)
        if value % 3 == 2:
            await asyncio.sleep(value % 5)
        return value

    async with Rig(call, concurrency=3, buffer=8, **keyed(order)) as rig:
        rig.operator.process_batch(range(60), None)
        loop = asyncio.get_running_loop()
        moments = 0
        while len(rig.log.values) < 60:
            for _ in range(20):
                await asyncio.sleep(0)
                state = rig.operator.snapshot()
                inside = [entry[1] for entry in state]
                assert sorted(inside + rig.log.values) == list(range(60)), moments
                if order == "ordered":
                    assert rig.log.values + inside == list(range(60))
                moments += 1
            await asyncio.sleep(1)
        assert loop.time() < 60


@pytest.mark.parametrize("replay", ["unfinished", "all"])
@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_restored_operator_calls_again_what_replay_says_and_gives_all_that_was_not_out(
    order: str, replay: str
) -> None:
    """Flink's case: eight in flight, a watermark after the fourth, 6 and 3 completed before the snapshot."""

    service = Service()
    async with Rig(service, concurrency=8, **keyed(order)) as rig:
        await rig.put(1, 2, 3, 4, Watermark(4), 5, 6, 7, 8)
        await service.answer(6, 3)
        out = list(rig.log.values)
        assert out == {"ordered": [], "event_time": [30]}.get(order, [60, 30])
        state = rig.operator.snapshot()
    again = Service()
    async with Rig(again, concurrency=8, state=state, replay=replay, **keyed(order)) as rig:
        await passes()
        kept = {"ordered": [3, 6], "event_time": [6]}.get(order, [])
        left = [value for value in range(1, 9) if value * 10 not in out]
        assert again.called == (left if replay == "all" else [v for v in left if v not in kept])
        await again.answer(*again.called.copy())
        seen = rig.log.values
        assert {*seen[: seen.index(Watermark(4))]} >= {10, 20, 40}
        if order in ("ordered", "event_time"):
            assert not {*seen[: seen.index(Watermark(4))]} & {50, 60, 70, 80}
        assert sorted(out + [value for value in seen if value != Watermark(4)]) == [
            value * 10 for value in range(1, 9)
        ]


@pytest.mark.parametrize("replay", ["unfinished", "all"])
@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_restore_twice_in_a_row_is_the_same_as_once(order: str, replay: str) -> None:
    """With the way downstream closed all the time, and results of calls that did not suspend among them."""

    async def call(value: int) -> int:
        if value % 2:
            await asyncio.sleep(1)
        return value * 10

    state: Any = None
    for _ in range(4):
        async with Rig(call, concurrency=3, buffer=6, state=state, replay=replay, **keyed(order)) as rig:
            rig.operator.emitting.hold()
            if state is None:
                rig.feed(*((value, value) for value in range(4)), Watermark(4), *range(4, 12))
            await asyncio.sleep(5)
            state = rig.operator.snapshot()
            assert rig.log.records == []
    async with Rig(call, concurrency=3, buffer=6, state=state, replay=replay, **keyed(order)) as rig:
        values = await rig.finish()
        assert sorted(values) == [value * 10 for value in range(12)]
        assert {(value * 10, value) for value in range(4)} <= set(rig.log.records)
        if order == "ordered":
            assert values == sorted(values)


async def test_a_copy_keeps_its_state_as_long_as_nothing_is_taken() -> None:
    state = [
        ["finished", 1, 1, [10, 11]],
        ["watermark", 1],
        ["call", 2, 2],
        ["idle", False],
        ["finished", 3, None, []],
        ["emitted", 40, 4],
    ]
    async with Rig(Service(), state=state) as rig:
        assert rig.operator.snapshot() == state
        rig.operator.emitting.hold()
        await passes()
        assert rig.operator.snapshot() == state
    assert rig.operator.snapshot() == state


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_restore_into_a_smaller_concurrency_and_buffer(order: str) -> None:
    service = Service()
    async with Rig(service, concurrency=8, **keyed(order)) as rig:
        await rig.put(*range(1, 9))
        state = rig.operator.snapshot()
    again = Service()
    async with Rig(again, concurrency=2, buffer=2, state=state, **keyed(order)) as rig:
        await passes()
        while again.running:
            await again.answer(max(again.running))
        assert again.most == 2
        assert sorted(rig.log.values) == [value * 10 for value in range(1, 9)]
        if order == "ordered":
            assert rig.log.values == sorted(rig.log.values)


async def test_restore_into_a_larger_one_then_new_input_as_flink_has_it() -> None:
    service = Service()
    async with Rig(service, concurrency=4, buffer=4) as rig:
        await rig.put(*((value, value) for value in range(1, 5)))
        state = rig.operator.snapshot()
    async with Rig(Service.echo, concurrency=6, buffer=6, state=state) as rig:
        await rig.put(*((value, value) for value in (5, 6, 7)))
        rig.operator.snapshot()
        rig.feed((8, 8))
        await rig.finish()
        assert rig.log.records[:-1] == [(value, value) for value in range(1, 9)]


async def test_full_buffer_is_restored_into_the_same_size() -> None:
    """FLINK-7949."""

    service = Service()
    async with Rig(service, concurrency=10, buffer=10) as rig:
        await rig.put(*range(10))
        state = rig.operator.snapshot()
    async with Rig(Service.echo, concurrency=10, buffer=10, state=state) as rig:
        assert await rig.finish() == list(range(10))


async def test_restoring_more_than_the_inbox_takes_holds_the_feeders() -> None:
    async with Rig(Service(), concurrency=2) as small:
        limit = small.operator.limit
    state = [["call", value, None] for value in range(limit)]
    async with Rig(Service.echo, concurrency=2, state=state) as rig:
        assert not rig.feeding.is_open()
        assert await rig.finish() == list(range(limit))
        assert rig.feeding.is_open()


@pytest.mark.parametrize("outcome", ["skip", "route"])
async def test_elements_that_failed_and_are_not_out_yet(outcome: str) -> None:
    """What was skipped stays skipped; a call whose error was to be routed is made again."""

    service = Service()
    async with Rig(service, on_error=outcome) as rig:
        await rig.put(1, 2)
        await service.answer_with(2, LookupError())
        state = rig.operator.snapshot()
        second = ["finished", 2, None, []] if outcome == "skip" else ["call", 2, None]
        assert state == [["call", 1, None], second]


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_nothing_is_emitted_by_a_call_that_ends_after_the_stop(order: str) -> None:
    service = Service()
    async with Rig(service, **keyed(order)) as rig:
        await rig.put(1, 2)
        service.running[2].set_result(20)
        service.running[1].set_result(10)
        rig.operator.halt()
        await passes()
        assert rig.log.values == []
        assert [entry[1] for entry in rig.operator.snapshot()] == [1, 2]


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_once_settled_no_call_begins_and_what_those_that_run_give_still_leaves(order: str) -> None:
    service = Service()
    async with Rig(service, concurrency=2, **keyed(order)) as rig:
        await rig.put(*range(10))
        rig.operator.settle()
        await rig.put(*range(10, 20))
        assert not rig.operator.is_at_rest()
        await service.answer(0, 1)
        assert service.called == [0, 1]
        assert rig.log.values == [0, 10]
        assert rig.operator.is_at_rest()
        assert (rig.counts["held"], rig.counts["waiting"]) == (0, 18)
        assert rig.operator.snapshot() == [["call", value, None] for value in range(2, 20)]


async def test_snapshot_while_elements_arrive_waits_for_nothing() -> None:
    service = Service()
    async with Rig(service, concurrency=2, buffer=2) as rig:
        for value in range(10):
            rig.feed(value)
            assert [entry[1] for entry in rig.operator.snapshot()] == list(range(value + 1))
            await asyncio.sleep(0)
        assert len(service.running) == 2


async def test_end_of_input_is_not_kept_because_the_source_tells_it_again() -> None:
    service = Service()
    async with Rig(service) as rig:
        await rig.put(1, Watermark(9), EndOfInput())
        state = rig.operator.snapshot()
        assert state == [["call", 1, None], ["watermark", 9]]
    async with Rig(Service.echo, state=state) as rig:
        await rig.finish()
        assert rig.log.values == [1, Watermark(9), EndOfInput()]


async def test_what_is_no_snapshot_of_this_step_is_refused() -> None:
    with pytest.raises(ValueError, match="expected elements as"):
        async with Rig(Service(), state=[["something", 1]]):
            pass
