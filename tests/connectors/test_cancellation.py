"""Work that nobody waits for any more: done now and then, or stopped."""

from __future__ import annotations

import asyncio

import pytest

from asyncstream.connectors.cancellation import now_and_then, stopped
from asyncstream.errors import SourceError
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
