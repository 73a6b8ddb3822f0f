from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from asyncstream.connectors import CallbackSink, Items, ListSink
from asyncstream.errors import PipelineError, SourceError, UserFunctionError
from asyncstream.testing.loop import run_virtual

pytestmark = pytest.mark.usefixtures("virtual_time")


async def opened(source: Items[Any]) -> Items[Any]:
    await source.open()
    return source


async def batches(source: Items[Any]) -> list[list[Any]]:
    """All that is left in the source, read by read."""
    found = []
    while (batch := await source.read()) is not None:
        found.append(list(batch.values))
    return found


async def read(source: Items[Any]) -> list[Any] | None:
    batch = await source.read()
    return None if batch is None else list(batch.values)


async def every_second(n: int) -> AsyncIterator[int]:
    for i in range(n):
        await asyncio.sleep(1)
        yield i


async def at_once(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


async def test_sequence_comes_in_batches() -> None:
    source = await opened(Items(range(5), batch=2))
    assert source.position() == 0
    assert await batches(source) == [[0, 1], [2, 3], [4]]
    assert source.position() == 5
    assert await source.read() is None


async def test_sequence_goes_on_after_the_position() -> None:
    first = await opened(Items([1, 2, 3, 4, 5], batch=2))
    await first.read()
    second = await opened(Items([1, 2, 3, 4, 5], batch=2))
    await second.seek(first.position() or 0)
    assert await batches(second) == [[3, 4], [5]]
    assert second.position() == 5


async def test_sequence_can_be_read_again() -> None:
    source = Items(["a", "b"])
    for _ in range(2):
        await source.open()
        assert await batches(source) == [["a", "b"]]
        await source.close()


async def test_none_and_falsy_elements_are_elements() -> None:
    assert await batches(await opened(Items([None, 0, ""]))) == [[None, 0, ""]]
    assert await batches(await opened(Items([]))) == []


@pytest.mark.parametrize("items", [iter([1, 2]), {1, 2}, at_once(2)])
async def test_what_is_no_sequence_has_no_position_and_cannot_seek(items: Any) -> None:
    source = await opened(Items(items))
    assert source.position() is None
    for ask in (source.can_seek, source.seek):
        with pytest.raises(SourceError, match=r"cannot go on at element 1 of a .*: only of a sequence"):
            await ask(1)
    await source.close()


async def test_seek_behind_the_end_is_refused() -> None:
    source = await opened(Items(deque([1])))
    for ask in (source.can_seek, source.seek):
        with pytest.raises(SourceError, match="cannot go on at element 2 of 1"):
            await ask(2)


async def test_elements_before_a_failing_one_are_delivered_first() -> None:
    def failing() -> Iterator[int]:
        yield from (1, 2)
        raise ValueError("no more")

    async def async_failing() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise ValueError("no more")

    for items in (failing(), async_failing()):
        source = await opened(Items(items))
        assert await read(source) == [1, 2]
        for _ in range(2):
            with pytest.raises(SourceError, match="failed after 2 elements: ValueError: no more") as caught:
                await source.read()
            assert isinstance(caught.value.__cause__, ValueError)
        await source.close()


async def test_generator_is_closed_with_the_source() -> None:
    closed = []

    def generate() -> Iterator[int]:
        try:
            yield from (1, 2, 3)
        finally:
            closed.append("plain")

    async def async_generate() -> AsyncIterator[int]:
        try:
            for i in (1, 2, 3):
                yield i
        finally:
            await asyncio.sleep(0)
            closed.append("async")

    async def waiting() -> AsyncIterator[int]:
        try:
            await asyncio.sleep(3600)
            yield 1
        finally:
            closed.append("waiting")

    for items in (generate(), async_generate()):
        source = await opened(Items(items, batch=1))
        assert await read(source) == [1]
        await source.close()
    source = await opened(Items(waiting()))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(source.read(), 1)
    await source.close()
    assert closed == ["plain", "async", "waiting"]


async def test_source_that_was_never_read_closes() -> None:
    await (await opened(Items(at_once(3)))).close()
    await Items(at_once(3)).close()


async def test_failure_while_closing_is_told() -> None:
    async def generate() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            raise ValueError("stuck")

    source = await opened(Items(generate(), batch=1))
    await source.read()
    with pytest.raises(SourceError, match="when closed: ValueError: stuck"):
        await source.close()


async def test_async_iterable_that_does_not_suspend_fills_batches() -> None:
    assert await batches(await opened(Items(at_once(5), batch=2))) == [[0, 1], [2, 3], [4]]
    assert await batches(await opened(Items(at_once(4), batch=2))) == [[0, 1], [2, 3]]


async def test_async_item_is_delivered_when_it_comes() -> None:
    loop = asyncio.get_running_loop()
    source = await opened(Items(every_second(3)))
    times = []
    while (values := await read(source)) is not None:
        times.append((loop.time(), values))
    assert times == [(1, [0]), (2, [1]), (3, [2])]


async def test_burst_comes_as_one_batch() -> None:
    async def bursts() -> AsyncIterator[int]:
        for start in (0, 10):
            await asyncio.sleep(1)
            for i in range(start, start + 3):
                yield i

    assert await batches(await opened(Items(bursts()))) == [[0, 1, 2], [10, 11, 12]]


async def test_cancelled_read_loses_no_item() -> None:
    source = await opened(Items(every_second(5)))
    found: list[int] = []
    for _ in range(100):
        try:
            values = await asyncio.wait_for(read(source), 0.3)
        except TimeoutError:
            continue
        if values is None:
            break
        found += values
    assert found == [0, 1, 2, 3, 4]


async def test_iterable_is_at_most_one_item_ahead_of_the_reader() -> None:
    taken = []

    async def generate() -> AsyncIterator[int]:
        for i in range(10):
            await asyncio.sleep(1)
            taken.append(i)
            yield i

    source = await opened(Items(generate()))
    await asyncio.sleep(10)
    assert taken == []
    assert await read(source) == [0]
    await asyncio.sleep(10)
    assert taken == [0, 1]
    assert await read(source) == [1]
    assert await read(source) == [2]
    await source.close()


async def test_endless_iterable_that_does_not_suspend_is_held_to_the_batch() -> None:
    taken = 0

    async def endless() -> AsyncIterator[int]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    source = await opened(Items(endless(), batch=10))
    for _ in range(3):
        assert len(await read(source) or []) == 10
        await asyncio.sleep(1)
    assert taken <= 31
    await source.close()


def test_async_iterable_runs_in_one_task_and_context() -> None:
    seen = contextvars.ContextVar("seen", default=0)

    async def generate() -> AsyncIterator[tuple[Any, int]]:
        for _ in range(3):
            seen.set(seen.get() + 1)
            async with asyncio.timeout(5):
                await asyncio.sleep(1)
            yield asyncio.current_task(), seen.get()

    async def main() -> None:
        found = [item for batch in await batches(await opened(Items(generate()))) for item in batch]
        assert len({task for task, _ in found}) == 1
        assert [count for _, count in found] == [1, 2, 3]

    run_virtual(main())


async def test_cancellation_from_inside_the_iterable_is_not_the_end_of_input() -> None:
    async def generate() -> AsyncIterator[int]:
        yield 1
        raise asyncio.CancelledError

    source = await opened(Items(generate()))
    assert await read(source) == [1]
    with pytest.raises(SourceError, match="cancelled from inside"):
        await source.read()
    await source.close()


async def test_list_sink_keeps_the_order() -> None:
    found: list[int] = []
    sink = ListSink(found)
    await sink.write([1, 2], None)
    await sink.write((3,), [7])
    assert found == [1, 2, 3]


async def test_callback_may_be_plain_or_async() -> None:
    found: list[int] = []

    async def slowly(value: int) -> None:
        await asyncio.sleep(1)
        found.append(value)

    for callback in (found.append, slowly, lambda value: slowly(value)):
        await CallbackSink(callback).write([1, 2], None)
    assert found == [1, 2] * 3


@pytest.mark.parametrize("made", ["text", {"a": 1}])
async def test_function_that_makes_one_value_is_told_so(made: Any) -> None:
    source = Items(lambda: made)
    with pytest.raises(SourceError, match=r"which is one value; .* a list of it"):
        await source.open()


async def test_failing_callback_is_named_with_the_element() -> None:
    def refuse_two(value: int) -> None:
        if value == 2:
            raise ValueError("two")

    with pytest.raises(UserFunctionError, match=r"refuse_two': ValueError: two, on element 2") as caught:
        await CallbackSink(refuse_two).write([1, 2, 3], None)
    assert caught.value.element == 2


def test_wrong_arguments_are_refused_at_once() -> None:
    with pytest.raises(PipelineError, match="items: expected an iterable or an async iterable, got 3"):
        Items(3)  # type: ignore[arg-type]
    for one in ("text", b"text", {"a": 1}):
        with pytest.raises(PipelineError, match=r"items: expected an iterable of elements, .*list of it"):
            Items(one)
    with pytest.raises(PipelineError, match="batch: expected an integer of at least 1"):
        Items([], batch=0)
    with pytest.raises(PipelineError, match="target: expected a list"):
        ListSink({})  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="function: expected a function"):
        CallbackSink(None)  # type: ignore[arg-type]


def yields(value: int) -> Iterator[int]:
    yield value


async def yields_later(value: int) -> AsyncIterator[int]:
    yield value


class Yields:
    def __call__(self, value: int) -> Iterator[int]:
        yield value


@pytest.mark.parametrize("function", [lambda v: yields(v), lambda v: yields_later(v), Yields()])
def test_function_that_gives_a_generator_is_refused_at_the_first_element(function: Any) -> None:
    sink = CallbackSink(function)
    with pytest.raises(UserFunctionError, match="has given a generator"):
        run_virtual(sink.write([1], None))
    assert sink.taken() == 0
