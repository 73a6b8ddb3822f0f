"""What an async step may be given, what is refused when it is built, and what its counters say."""

from __future__ import annotations

import asyncio
import functools
from datetime import timedelta
from typing import Any

import pytest

from asyncstream.async_wait import (
    AsyncWaitSettings,
    OrderedQueue,
    OutputOrder,
    SegmentedQueue,
    UnorderedQueue,
)
from asyncstream.elements import Watermark
from asyncstream.errors import PipelineError
from asyncstream.operators.functions import AsyncFunction
from tests.async_wait.rig import Rig, Service
from tests.naming import shown

pytestmark = pytest.mark.usefixtures("virtual_time")


async def call(value: Any) -> Any:
    return value


async def hook(value: Any) -> Any:
    return value


def plain(value: Any) -> Any:
    return value


class Callable:
    async def __call__(self, value: Any) -> Any:
        return value


class Client(AsyncFunction[Any, Any]):
    async def invoke(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    "function", [call, functools.partial(call), Callable(), Client(), Client().invoke], ids=shown
)
async def test_async_functions_of_every_form_are_called(function: Any) -> None:
    async with Rig(function) as rig:
        rig.feed(1, 2)
        assert await rig.finish() == [1, 2]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"function": plain}, "fn"),
        ({"function": None}, "fn"),
        ({"order": "sorted"}, "order"),
        ({"order": None}, "order"),
        ({"order": "per_key"}, "order"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": None}, "concurrency"),
        ({"buffer": 99}, "buffer"),
        ({"buffer": 0}, "buffer"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": "1"}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
        ({"timeout": timedelta(0)}, "timeout"),
        ({"on_timeout": "skip"}, "on_timeout"),
        ({"on_timeout": plain}, "on_timeout"),
        ({"on_timeout": "retry", "timeout": 1}, "on_timeout"),
        ({"on_timeout": "or a plain function", "timeout": 1}, "on_timeout"),
        ({"on_timeout": None, "timeout": 1}, "on_timeout"),
        ({"on_timeout": hook, "timeout": 1}, "on_timeout"),
        ({"on_error": "ignore"}, "on_error"),
        ({"on_error": plain}, "on_error"),
        ({"isolation": "process"}, "isolation"),
        ({"replay": "none"}, "replay"),
    ],
    ids=shown,
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(PipelineError, match=f"^{named}: expected"):
        AsyncWaitSettings(**{"function": call, **options})


@pytest.mark.parametrize("order", list(OutputOrder))
def test_order_may_be_given_as_text(order: OutputOrder) -> None:
    key_by = plain if order is OutputOrder.PER_KEY else None
    text: Any = order.value
    assert AsyncWaitSettings(call, order=text, key_by=key_by).order is order


def test_each_order_has_its_queue() -> None:
    queues = {order: type(order.queue()) for order in OutputOrder}
    assert queues == {
        OutputOrder.ORDERED: OrderedQueue,
        OutputOrder.UNORDERED: UnorderedQueue,
        OutputOrder.EVENT_TIME: SegmentedQueue,
        OutputOrder.PER_KEY: UnorderedQueue,
    }


def test_buffer_is_sixteen_times_the_concurrency_unless_told_otherwise() -> None:
    assert AsyncWaitSettings(call, concurrency=10).buffer_size == 160
    assert AsyncWaitSettings(call, concurrency=10, buffer=10).buffer_size == 10


def test_timeout_may_be_a_timedelta() -> None:
    timeout: Any = timedelta(milliseconds=1500)
    assert AsyncWaitSettings(call, timeout=timeout).timeout == 1.5


async def test_counters_add_up() -> None:
    service = Service()
    options: dict[str, Any] = {"on_error": "route", "on_timeout": "skip", "timeout": 10}
    async with Rig(service, concurrency=3, buffer=4, flat=True, order="unordered", **options) as rig:
        await rig.put(*range(8))
        started = {"elements_in": 8, "results_out": 0, "failed": 0, "timed_out": 0, "skipped": 0}
        now = {"running": 3, "most_running": 3, "overdue": 0, "held": 3}
        assert rig.counts == {**started, **now, "waiting": 5}
        await service.answer_with(0, [1, 2, 3])
        await service.answer_with(1, [])
        await service.answer_with(2, LookupError())
        assert rig.counts == {
            **started,
            **now,
            "results_out": 3,
            "failed": 1,
            "waiting": 2,
        }
        await asyncio.sleep(11)
        assert rig.counts["timed_out"] == rig.counts["skipped"] == 3
        assert (rig.counts["running"], rig.counts["waiting"]) == (2, 0)


@pytest.mark.parametrize("flat", [False, True])
async def test_workers_that_find_no_call_count_as_none_that_ran(flat: bool) -> None:
    service = Service()
    async with Rig(service, concurrency=9, flat=flat) as rig:
        await rig.put(0, *[Watermark(time) for time in range(20)])
        assert rig.counts["most_running"] == 1
        await rig.put(*range(1, 6))
        assert rig.counts["most_running"] == rig.counts["running"] == 6


async def test_counters_count_calls_that_never_suspend_like_all_others() -> None:
    async with Rig(call, concurrency=2) as rig:
        rig.operator.process_batch(range(1000), None)
        await rig.finish()
        assert rig.counts == {
            "elements_in": 1000,
            "results_out": 1000,
            "failed": 0,
            "timed_out": 0,
            "skipped": 0,
            "running": 0,
            "most_running": 1,
            "overdue": 0,
            "held": 0,
            "waiting": 0,
        }
