"""In what order results leave, how much is held on the way, and who is made to wait."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import weakref
from contextvars import ContextVar
from typing import Any

import pytest

from asyncstream.elements import EndOfInput, IdleStatus, Watermark
from asyncstream.errors import UserFunctionError
from asyncstream.operators.base import Operator
from asyncstream.operators.basic import Map
from tests.async_wait.rig import Log, Rig, Service, passes

pytestmark = pytest.mark.usefixtures("virtual_time")

ORDERS = ["ordered", "unordered", "event_time"]
EVERY_ORDER = [*ORDERS, "per_key"]


def keyed(order: str) -> dict[str, Any]:
    """What `order` needs besides itself: per key, each element is a key of its own."""
    return {"order": order, "key_by": (lambda value: value) if order == "per_key" else None}


async def immediately(value: Any) -> Any:
    return value * 10


async def test_ordered_output_is_exact_under_every_completion_order() -> None:
    for completion in itertools.permutations(range(5)):
        service = Service()
        async with Rig(service, concurrency=5) as rig:
            await rig.put(*((value, value) for value in range(5)))
            await service.answer(*completion)
            assert rig.log.records == [(value * 10, value) for value in range(5)]


async def test_ordered_with_watermarks_and_a_small_buffer_as_flink_has_it() -> None:
    async with Rig(immediately, concurrency=2, buffer=2) as rig:
        rig.feed((1, 1), (2, 2), Watermark(2), (3, 3))
        await rig.finish()
        assert rig.log.records == [(10, 1), (20, 2), Watermark(2), (30, 3), EndOfInput()]


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_more_input_than_room_comes_out_whole(order: str) -> None:
    async def call(value: int) -> int:
        await asyncio.sleep(value * 7 % 5)
        return value * 10

    async with Rig(call, concurrency=2, buffer=3, **keyed(order)) as rig:
        rig.operator.process_batch(range(50), None)
        values = await rig.finish()
        expected = [value * 10 for value in range(50)]
        assert values == expected if order == "ordered" else sorted(values) == expected


async def test_timestamps_out_of_order_are_kept_as_they_are() -> None:
    async with Rig(immediately) as rig:
        rig.feed((1, 3), (2, 1), (3, 2), Watermark(3))
        await rig.finish()
        assert rig.log.records == [(10, 3), (20, 1), (30, 2), Watermark(3), EndOfInput()]


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_watermark_overtakes_no_element_whatever_the_order(order: str) -> None:
    for completion in itertools.permutations(range(4)):
        service = Service()
        async with Rig(service, concurrency=4, **keyed(order)) as rig:
            await rig.put(0, 1, Watermark(1), 2, Watermark(2), 3)
            await service.answer(*completion)
            seen = rig.log.values
            assert sorted(seen[: seen.index(Watermark(1))])[:2] == [0, 10]
            assert {0, 10, 20} <= set(seen[: seen.index(Watermark(2))])
            assert len(seen) == 6


async def test_no_element_crosses_a_watermark_in_event_time() -> None:
    for completion in itertools.permutations(range(5)):
        service = Service()
        async with Rig(service, concurrency=5, order="event_time") as rig:
            await rig.put(0, 1, Watermark(1), 2, 3, Watermark(3), 4)
            await service.answer(*completion)
            seen = rig.log.values
            assert [set(seen[:2]), seen[2], set(seen[3:5]), *seen[5:]] == [
                {0, 10}, Watermark(1), {20, 30}, Watermark(3), 40,
            ]  # fmt: skip
            inside = [value for value in completion if value < 2]
            assert [value // 10 for value in seen[:2]] == inside, "completion order within a segment"


async def test_unordered_element_passes_a_watermark_that_waits() -> None:
    service = Service()
    async with Rig(service, order="unordered") as rig:
        await rig.put(1, Watermark(1), 2)
        await service.answer(2)
        assert rig.log.values == [20]
        await service.answer(1)
        assert rig.log.values == [20, 10, Watermark(1)]


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_calls_that_do_not_suspend_keep_their_place_among_those_that_do(order: str) -> None:
    """Between a call that has just suspended and the turn that sees it, others may already have ended."""

    service = Service()

    async def call(value: int) -> Any:
        return await service(value) if value % 3 == 0 else value * 10

    async with Rig(call, concurrency=4, buffer=32, **keyed(order)) as rig:
        await rig.put(1, 2, 3, 4, Watermark(4), 5, 6, 7, Watermark(7), 8)
        expected = {
            "ordered": [10, 20],
            "event_time": [10, 20, 40],
            "unordered": [10, 20, 40, 50, 70, 80],
            "per_key": [10, 20, 40, 50, 70, 80],
        }[order]
        assert rig.log.values == expected
        await service.answer(6)
        await service.answer(3)
        seen = rig.log.values
        if order == "ordered":
            assert seen == [10, 20, 30, 40, Watermark(4), 50, 60, 70, Watermark(7), 80]
        elif order == "event_time":
            assert seen[:5] == [10, 20, 40, 30, Watermark(4)]
            assert sorted(seen[5:8]) == [50, 60, 70], (
                "they have ended, in whatever order, when they may leave"
            )
            assert seen[8:] == [Watermark(7), 80]
        else:
            assert seen == [*expected, 60, 30, Watermark(4), Watermark(7)]


async def test_workers_that_start_together_keep_the_input_order() -> None:
    """Both workers are replaced at once, because of what their calls left behind; the queue is empty then."""
    left_behind: ContextVar[int] = ContextVar("left_behind")

    async def call(value: int) -> int:
        left_behind.set(value)
        if value != 4:
            await asyncio.sleep(1)
        return value

    async with Rig(call, concurrency=2) as rig:
        rig.feed(1, 2, 3, 4)
        assert await rig.finish() == [1, 2, 3, 4]


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_idle_status_and_end_of_input_wait_for_the_elements_before_them(order: str) -> None:
    """Flink announces "idle" while results are still to come."""

    service = Service()
    async with Rig(service, **keyed(order)) as rig:
        await rig.put(1, IdleStatus(True), IdleStatus(False), EndOfInput())
        assert rig.log.values == []
        await service.answer(1)
        assert rig.log.values == [10, IdleStatus(True), IdleStatus(False), EndOfInput()]


async def test_control_elements_go_to_every_output_after_what_came_before_them() -> None:
    service = Service()
    async with Rig(service, on_error="route") as rig:
        await rig.put(1, 2, Watermark(2))
        await service.answer_with(1, LookupError("none"))
        await service.answer(2)
        assert rig.log.values == [20, Watermark(2)]
        assert [getattr(value, "value", value) for value in rig.failed.values] == [1, Watermark(2)]
        assert rig.timed_out.values == [Watermark(2)]


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_flat_map_gives_any_number_of_results_with_the_timestamp_of_their_element(order: str) -> None:
    async def call(value: int) -> Any:
        if value % 2:
            await asyncio.sleep(value)
        return (f"{value}.{number}" for number in range(value))

    async with Rig(call, flat=True, **keyed(order)) as rig:
        rig.feed((0, 5), (3, 6), (0, 7), (2, 8), Watermark(9))
        await rig.finish()
        first, second = ([(f"3.{n}", 6) for n in range(3)], [(f"2.{n}", 8) for n in range(2)])
        if order != "ordered":
            first, second = second, first
        assert rig.log.records == [*first, *second, Watermark(9), EndOfInput()]


async def test_two_async_steps_and_a_map_between_them_in_a_row() -> None:
    async def twice(value: int) -> int:
        await asyncio.sleep(10 - value)
        return value * 2

    async with Rig(twice, concurrency=6) as first, Rig(twice, concurrency=3, order="unordered") as second:
        between = Map(lambda value: value + 1)
        first.operator.out, between.out = between, second.operator
        first.feed(*((value, value) for value in range(5, 10)), EndOfInput())
        await second.log.ended.wait()
        assert sorted(second.log.records[:-1]) == [(22, 5), (26, 6), (30, 7), (34, 8), (38, 9)]


# -------------------------------------------------------------------- how many at once


@pytest.mark.parametrize("concurrency", [1, 2, 3, 7])
@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_never_more_than_concurrency_calls_run_at_once_and_as_many_as_that(
    order: str, concurrency: int
) -> None:
    service = Service()
    async with Rig(service, concurrency=concurrency, **keyed(order)) as rig:
        await rig.put(*range(20))
        while service.running:
            ended = len(service.called) - len(service.running)
            assert len(service.running) == min(concurrency, 20 - ended)
            await service.answer(max(service.running))
        assert service.most == concurrency
        assert sorted(rig.log.values) == [value * 10 for value in range(20)]


@pytest.mark.parametrize("concurrency", [2, 4, 5, 16])
async def test_all_calls_that_may_run_start_at_once_and_their_time_runs_from_then(concurrency: int) -> None:
    loop = asyncio.get_running_loop()
    times: list[tuple[int, float]] = []

    async def never(value: int) -> None:
        await asyncio.Event().wait()

    def at(value: int) -> None:
        times.append((value, loop.time()))

    async with Rig(never, concurrency=concurrency, timeout=1, on_timeout=at) as rig:
        rig.operator.process_batch(range(3 * concurrency), None)
        await rig.finish()
    assert times == [(value, 1.0 + value // concurrency) for value in range(3 * concurrency)]


@pytest.mark.parametrize("order", ["ordered", "event_time"])
async def test_a_slow_head_holds_back_results_but_no_calls_while_there_is_buffer(order: str) -> None:
    service = Service()
    async with Rig(service, concurrency=2, buffer=6, order=order) as rig:
        await rig.put("slow", Watermark(1), *range(20))
        for value in range(4):
            await service.answer(value)
            assert rig.counts["held"] <= 6
        assert rig.log.values == []
        assert rig.counts["held"] == 6
        assert service.called == ["slow", 0, 1, 2, 3], "the sixth place is the watermark's"
        await service.answer_with("slow", "fast")
        assert rig.log.values == ["fast", Watermark(1), 0, 10, 20, 30]


async def test_control_elements_count_as_held() -> None:
    service = Service()
    async with Rig(service, concurrency=2, buffer=4) as rig:
        await rig.put(1, *map(Watermark, range(10)), 2)
        assert rig.counts["held"] == 4
        assert rig.counts["waiting"] == 8
        await service.answer(1)
        assert rig.log.values == [10, *map(Watermark, range(10))]
        assert service.called == [1, 2]


async def test_no_thread_and_no_task_is_made_for_an_element() -> None:
    before = threading.active_count()

    async def call(value: int) -> int:
        await asyncio.sleep(1)
        return value

    async with Rig(call, concurrency=5, timeout=10) as rig:
        rig.operator.process_batch(range(500), None)
        most = 0
        for _ in range(50):
            await asyncio.sleep(2)
            most = max(most, len(asyncio.all_tasks()))
        assert threading.active_count() == before
        assert most <= 1 + 5


# -------------------------------------------------------------------- who waits


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_nothing_is_busy_while_every_call_waits(order: str) -> None:
    service = Service()
    loop = asyncio.get_running_loop()
    async with Rig(service, concurrency=2, timeout=3600, on_timeout="skip", **keyed(order)) as rig:
        await rig.put(*range(10), Watermark(3))
        busy = 0
        call_soon = loop.call_soon

        def counted(*args: Any, **more: Any) -> Any:
            nonlocal busy
            busy += 1
            return call_soon(*args, **more)

        loop.call_soon = counted  # type: ignore[method-assign,assignment]
        await asyncio.sleep(1800)
        assert busy <= 2, "the end of this very sleep"


async def test_feeders_are_held_when_the_inbox_is_full_and_go_on_when_half_is_taken() -> None:
    """They go on when elements are taken, although no call has ended."""

    service = Service()
    async with Rig(service, concurrency=600) as rig:
        rig.operator.limit = limit = 1000
        rig.operator.process_batch(range(limit - 1), None)
        assert rig.feeding.is_open()
        rig.feed(limit - 1)
        assert not rig.feeding.is_open()
        await passes(40)
        assert len(service.running) == 600
        assert rig.feeding.is_open()


async def test_feeders_stay_held_while_the_service_is_stuck() -> None:
    service = Service()
    async with Rig(service, concurrency=3) as rig:
        limit = rig.operator.limit
        rig.operator.process_batch(range(limit + 3), None)
        await passes(40)
        assert not rig.feeding.is_open()
        for _ in range(limit // 2 - 1):
            value = min(service.running)
            service.running[value].set_result(value)
            await passes(3)
        assert not rig.feeding.is_open()
        await service.answer(min(service.running))
        assert rig.feeding.is_open()


@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_nothing_is_emitted_while_the_way_downstream_is_closed_and_all_of_it_when_it_opens(
    order: str,
) -> None:
    async with Rig(immediately, concurrency=2, buffer=4, **keyed(order)) as rig:
        rig.operator.emitting.hold()
        rig.operator.emitting.hold()
        await rig.put(*range(3), Watermark(3), *range(4, 20))
        assert rig.log.values == []
        assert rig.counts["held"] == 4
        rig.operator.emitting.release()
        await passes()
        assert rig.log.values == []
        rig.operator.emitting.release()
        await passes()
        seen = rig.log.values
        assert seen[:4] == [0, 10, 20, Watermark(3)]
        assert seen[4:] == [value * 10 for value in range(4, 20)]


async def test_output_gate_closing_within_an_emission_stops_the_next_one() -> None:
    async with Rig(immediately, concurrency=1, buffer=4) as rig:

        class Full(Log):
            def process_batch(self, values: Any, timestamps: Any) -> None:
                super().process_batch(values, timestamps)
                rig.operator.emitting.hold()

        rig.operator.out = full = Full()
        await rig.put(*range(20))
        assert len(full.values) <= 4
        while len(full.values) < 20:
            before = len(full.values)
            rig.operator.emitting.release()
            await passes()
            assert before < len(full.values) <= before + 4
        assert full.values == [value * 10 for value in range(20)]


async def test_a_failure_downstream_is_not_blamed_on_an_element() -> None:
    class Broken(Operator):
        def process_batch(self, values: Any, timestamps: Any) -> None:
            raise OSError("disk full")

    async with Rig(immediately, on_error="skip") as rig:
        rig.operator.out = Broken()
        await rig.put(1, 2, 3)
        assert [type(error) for error in rig.errors] == [OSError]
        assert rig.counts["failed"] == rig.counts["skipped"] == 0


class Odd(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Odd("downstream")], ids=repr)
@pytest.mark.parametrize("control", [False, True])
async def test_a_downstream_failure_that_is_no_exception_is_reported_too(
    error: BaseException, control: bool
) -> None:
    class Broken(Operator):
        def process_batch(self, values: Any, timestamps: Any) -> None:
            raise error

        def advance_watermark(self, timestamp: int) -> None:
            raise error

    async with Rig(immediately) as rig:
        rig.operator.out = Broken()
        await rig.put(Watermark(1) if control else 1)
        assert rig.errors == [error]


async def test_a_failure_downstream_leaves_the_first_error_standing() -> None:
    async def call(value: int) -> int:
        if value == 2:
            raise LookupError("none")
        return value

    class Broken(Operator):
        def process_batch(self, values: Any, timestamps: Any) -> None:
            raise OSError("disk full")

    async with Rig(call) as rig:
        rig.operator.out = Broken()
        await rig.put(1, 2, 3)
        assert len(rig.errors) == 1
        assert isinstance(rig.errors[0], UserFunctionError | OSError)


@pytest.mark.parametrize("timeout", [None, 3600])
@pytest.mark.parametrize("order", EVERY_ORDER)
async def test_what_has_left_is_kept_alive_by_no_worker_and_no_deadline(order: str, timeout: Any) -> None:
    class Large:
        pass

    made: list[weakref.ref[Large]] = []

    def large() -> Large:
        one = Large()
        made.append(weakref.ref(one))
        return one

    async def call(value: Large) -> Large:
        await asyncio.sleep(len(made) % 3)
        return large()

    async with Rig(call, concurrency=20, order=order, timeout=timeout, key_by=id) as rig:
        for elements in (50, 1, 50):
            rig.operator.process_batch([large() for _ in range(elements)], None)
            await asyncio.sleep(60)
        assert len(rig.log.values) == 101
        rig.log.records.clear()
        gc.collect()
        assert sum(one() is not None for one in made) <= 1  # which an iterator gave last
