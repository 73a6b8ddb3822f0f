"""Work that nobody waits for any more: done now and then, or stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import fsspec
import pytest

from asyncstream import JsonLinesSource, Source
from asyncstream.connectors.cancellation import now_and_then, stopped
from asyncstream.connectors.message_source import MessageSource
from asyncstream.errors import SourceError, told_as
from asyncstream.testing.loop import run_virtual


def test_what_is_done_now_and_then_goes_on_though_it_fails() -> None:
    called: list[float] = []

    async def call() -> None:
        called.append(asyncio.get_running_loop().time())
        raise SourceError("the server is away")

    async def main() -> None:
        begun = asyncio.get_running_loop().time()
        task = asyncio.ensure_future(now_and_then(2.0, call))
        await asyncio.sleep(7.0)
        await stopped(task)
        assert [moment - begun for moment in called] == [2.0, 4.0, 6.0]

    run_virtual(main())


def test_what_no_server_says_ends_it() -> None:
    async def call() -> None:
        raise TypeError("of this program")

    async def main() -> None:
        with pytest.raises(TypeError, match="of this program"):
            await now_and_then(2.0, call)

    run_virtual(main())


class Silent(MessageSource[Any, Any, object]):
    """Of a broker that sends nothing."""

    _what = "nothing"
    _told = staticmethod(told_as)

    def __init__(self) -> None:
        super().__init__("fail", ends=False, batch=1)

    async def _connect(self) -> object:
        return object()

    async def _disconnect(self, client: object) -> None:
        pass

    async def _fetch(self) -> Sequence[Any]:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    def _element(self, message: Any) -> Any:
        return message

    def _taken(self, messages: Sequence[Any]) -> None:
        pass

    def position(self) -> Any:
        return None


def test_what_has_ended_in_a_loop_that_is_closed_is_left_at_once() -> None:
    async def failing() -> asyncio.Task[Any]:
        async def fail() -> None:
            raise SourceError("gone")

        task = asyncio.ensure_future(fail())
        await asyncio.wait({task})
        return task

    task = asyncio.run(failing())
    asyncio.run(stopped(task))


@pytest.mark.parametrize("is_far", [True, False])
async def test_read_that_is_under_way_when_its_source_is_closed_ends_by_itself(is_far: bool) -> None:
    source: Source[Any] = Silent()
    if is_far:
        fsspec.filesystem("memory").pipe_file(path := f"/{uuid4().hex}.jsonl", b'{"a": 1}\n')
        source = JsonLinesSource(f"memory:/{path}")
    await source.open()
    reading = asyncio.ensure_future(source.read())
    await asyncio.sleep(0)  # for it to begin
    await source.close()
    async with asyncio.timeout(60):
        with suppress(asyncio.CancelledError, SourceError):
            assert await reading is not None
    assert reading.done()
