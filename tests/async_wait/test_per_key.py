"""Order per key: the calls of a key one after the other, in input order; keys do not wait for each other."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from asyncstream.elements import EndOfInput, Watermark
from asyncstream.errors import UserFunctionError
from asyncstream.testing.loop import run_virtual
from tests.async_wait.rig import Rig, Service, passes

pytestmark = pytest.mark.usefixtures("virtual_time")


def parity(value: int) -> int:
    return value % 2


def key_of(element: str) -> str:
    return element[0]


def per_key(function: Any, key_by: Any = parity, **options: Any) -> Rig:
    return Rig(function, order="per_key", key_by=key_by, **options)


class KeyedService:
    """Takes a while per element; notes what ran at the same time."""

    def __init__(self) -> None:
        self.running: dict[str, list[str]] = defaultdict(list)
        self.called: list[str] = []
        self.most_of_one_key = 0
        self.most = 0

    async def __call__(self, element: str) -> str:
        self.called.append(element)
        running = self.running[key_of(element)]
        running.append(element)
        self.most_of_one_key = max(self.most_of_one_key, len(running))
        self.most = max(self.most, sum(map(len, self.running.values())))
        try:
            await asyncio.sleep(hash(element) % 7)
        finally:
            running.remove(element)
        return element


def by_key(elements: list[str]) -> dict[str, list[str]]:
    found = defaultdict(list)
    for element in elements:
        found[key_of(element)].append(element)
    return dict(found)


async def test_parity_as_flink_has_it_per_key_and_watermarks_in_their_places() -> None:
    async def call(value: int) -> int:
        await asyncio.sleep(value * 3 % 4)
        return value * 2

    async with per_key(call, concurrency=4, buffer=4) as rig:
        rig.feed((1, 3), (2, 1), (3, 2), Watermark(3), (4, 5), (5, 4), Watermark(5))
        await rig.finish()
        seen = rig.log.records
        assert [record for record in seen if record in [(2, 3), (6, 2), (10, 4)]] == [
            (2, 3), (6, 2), (10, 4),
        ]  # fmt: skip
        assert [record for record in seen if record in [(4, 1), (8, 5)]] == [(4, 1), (8, 5)]
        assert {(2, 3), (4, 1), (6, 2)} <= set(seen[: seen.index(Watermark(3))])
        assert seen[-2:] == [Watermark(5), EndOfInput()]
        assert len(seen) == 8


async def test_next_of_a_key_starts_when_the_one_before_has_ended_while_other_keys_run() -> None:
    service = Service()
    async with per_key(service, concurrency=2) as rig:
        await rig.put(1, 2, Watermark(2), 3, 4)
        assert list(service.running) == [1, 2]
        await service.answer(1)
        assert list(service.running) == [2, 3]
        await service.answer(2)
        assert list(service.running) == [3, 4]
        assert rig.log.values == [10, 20, Watermark(2)]
        await service.answer(4, 3)
        assert rig.log.values == [10, 20, Watermark(2), 40, 30]
        assert service.most == 2


@pytest.mark.parametrize("concurrency", [1, 2, 5])
async def test_input_order_within_each_key_and_one_call_at_a_time(concurrency: int) -> None:
    service = KeyedService()
    elements = [f"{'abcdefg'[number * number % 7]}{number}" for number in range(200)]
    async with per_key(service, key_of, concurrency=concurrency, buffer=40) as rig:
        rig.operator.process_batch(elements, None)
        assert by_key(await rig.finish()) == by_key(elements)
        assert by_key(service.called) == by_key(elements)
        assert service.most_of_one_key == 1
        assert service.most <= concurrency


async def test_hot_key_holds_up_no_other_key_while_there_is_buffer() -> None:
    service = Service()
    async with per_key(service, key_of, concurrency=3, buffer=20) as rig:
        await rig.put(*(f"h{number}" for number in range(15)), "a1", "b1")
        assert list(service.running) == ["h0", "a1", "b1"]
        for element in ("a1", "b1"):
            await service.answer_with(element, element)
        assert rig.log.values == ["a1", "b1"]
        assert list(service.running) == ["h0"]
        assert rig.counts["held"] == 15


async def test_hot_key_is_bounded_by_the_buffer_and_goes_on_all_the_same() -> None:
    service = KeyedService()
    elements = [f"h{number}" for number in range(50)] + ["a1"]
    async with per_key(service, key_of, concurrency=2, buffer=5) as rig:
        rig.operator.process_batch(elements, None)
        await passes()
        assert rig.counts["held"] == 5
        assert by_key(await rig.finish()) == by_key(elements)
        assert service.most_of_one_key == 1


@pytest.mark.parametrize("isolation", ["pool", "task"])
async def test_next_of_a_key_waits_for_the_end_of_a_timed_out_call(isolation: str) -> None:
    running = 0

    async def call(element: str) -> str:
        nonlocal running
        running += 1
        assert running == 1
        try:
            await asyncio.sleep(100 if element == "a0" else 0)
        except asyncio.CancelledError:
            await asyncio.sleep(5)
        running -= 1
        return element

    async with per_key(
        call, key_of, timeout=1, on_timeout=lambda element: f"{element} late", isolation=isolation
    ) as rig:
        rig.feed("a0", "a1", "a2")
        await asyncio.sleep(2)
        assert rig.log.values == ["a0 late"]
        assert await rig.finish() == ["a0 late", "a1", "a2"]


@pytest.mark.parametrize("on_error", ["skip", "route"])
async def test_failed_element_frees_its_key(on_error: str) -> None:
    async def call(element: str) -> str:
        await asyncio.sleep(1)
        if element == "a0":
            raise LookupError(element)
        return element

    async with per_key(call, key_of, on_error=on_error) as rig:
        rig.feed("a0", "a1", "b0")
        assert sorted(await rig.finish()) == ["a1", "b0"]


class Odd(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize("error", [KeyError("plane"), asyncio.CancelledError(), Odd()], ids=repr)
async def test_key_function_that_fails_fails_the_job_and_names_the_element(error: BaseException) -> None:
    def key(element: str) -> str:
        if element == "a1":
            raise error
        return element[0]

    async with per_key(Service.echo, key) as rig:
        await rig.put("a0", "a1", "a2")
        (failure,) = rig.errors
        assert isinstance(failure, UserFunctionError)
        assert failure.element == "a1"
        assert failure.__cause__ is error
        assert ["call", "a1", None] in rig.operator.snapshot()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_key_function_in_which_the_process_is_asked_to_stop_stops_it(error: type[BaseException]) -> None:
    def key(element: str) -> str:
        raise error

    rig = per_key(Service.echo, key)

    async def main() -> None:
        async with rig:
            rig.feed("a0")
            await asyncio.sleep(10)
            pytest.fail("it went on")

    with pytest.raises(error):
        run_virtual(main())
    assert rig.operator.snapshot() == [["call", "a0", None]]


async def test_unhashable_key_fails_the_job_and_names_the_element() -> None:
    async with per_key(Service.echo, lambda element: [element]) as rig:
        await rig.put("a0", "a1")
        (failure,) = rig.errors
        assert isinstance(failure, UserFunctionError)
        assert failure.element == "a0"
        assert isinstance(failure.__cause__, TypeError)


async def test_key_whose_hash_changes_under_way_is_an_error_and_no_hang() -> None:
    class Key:
        def __init__(self, element: Any) -> None:
            self.element = element

        def __hash__(self) -> int:
            return hash(self.element["state"])

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Key) and self.element == other.element

    async def call(element: dict[str, int]) -> int:
        await asyncio.sleep(1)
        element["state"] += 1
        return element["state"]

    async with per_key(call, Key) as rig:
        rig.feed({"state": 0}, {"state": 0})
        await asyncio.sleep(5)
        (failure,) = rig.errors
        assert isinstance(failure, UserFunctionError)
        assert failure.element == {"state": 1}


async def test_keys_that_are_gone_leave_nothing_behind() -> None:
    """Flink's operator does not clear the state of a key whose elements have all finished."""

    async with per_key(Service.echo, lambda element: element) as rig:
        await rig.put(*range(1000))
        assert rig.operator.snapshot() == []
        assert rig.counts["held"] == 0
        assert rig.operator._pool.serializer is not None
        assert not rig.operator._pool.serializer._waiting


async def test_snapshot_has_the_input_order_of_a_key_twice_in_a_row() -> None:
    """Flink's class gives b, a, c for a finished, b running, c waiting; and then b, b, a, c, c."""

    service = Service()
    async with per_key(service, key_of) as rig:
        await rig.put("a0", "a1", "a2", "b0", Watermark(1), "a3")
        rig.operator.emitting.hold()
        await service.answer_with("a0", "A0")
        expected = [
            ["finished", "a0", None, ["A0"]],
            ["call", "a1", None],
            ["call", "a2", None],
            ["call", "b0", None],
            ["watermark", 1],
            ["call", "a3", None],
        ]
        assert rig.operator.snapshot() == expected
        assert rig.operator.snapshot() == expected


@pytest.mark.parametrize("on_error", ["skip", "route"])
@pytest.mark.parametrize("replay", ["unfinished", "all"])
async def test_restored_keys_keep_their_order_whatever_had_come_of_their_elements(
    on_error: str, replay: str
) -> None:
    """A call that failed is made again; what came after it in its key must not go ahead of it."""

    service = Service()
    async with per_key(service, key_of, on_error=on_error, replay=replay) as rig:
        await rig.put("a0", "a1", "a2", "b0")
        rig.operator.emitting.hold()
        await service.answer_with("a0", LookupError())
        await service.answer_with("a1", "a1")
        state = rig.operator.snapshot()
    after = KeyedService()
    async with per_key(after, key_of, replay=replay, state=state) as rig:
        rig.feed("a3")
        results = by_key(await rig.finish())
        expected = ["a1", "a2", "a3"]
        if on_error == "route" or replay == "all":
            expected = ["a0", *expected]
        assert results == {"a": expected, "b": ["b0"]}
        assert after.most_of_one_key == 1
