"""Which checkpoint to go on from, and which ones to let go."""

from __future__ import annotations

import logging

import pytest

from asyncstream import MemoryStore
from asyncstream.checkpoint import CheckpointInfo, History, StepInfo
from asyncstream.checkpoint.format import encode_state, pack
from asyncstream.codec import JsonCodec
from asyncstream.errors import CheckpointError, DamagedCheckpoint
from asyncstream.testing.loop import run_virtual


async def filled(*numbers: int) -> tuple[MemoryStore, History]:
    store = MemoryStore()
    for number in numbers:
        states = {"step": encode_state("step", number, JsonCodec())}
        info = CheckpointInfo(number, "p", 0, "json", False, 0, {"step": StepInfo("operator", "map", 0)})
        await store.save(number, pack(info, states))
    return store, History(store, JsonCodec())


def test_newest_is_read() -> None:
    async def main() -> None:
        _, history = await filled(1, 2, 10)
        found = await history.read_newest()
        assert found is not None
        assert (found[0].id, found[1], history.newest) == (10, {"step": 10}, 10)

    run_virtual(main())


def test_empty_store_has_none() -> None:
    async def main() -> None:
        _, history = await filled()
        assert await history.read_newest() is None
        assert history.newest == 0

    run_virtual(main())


def test_damaged_newest_leads_to_the_one_before_loudly(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store, history = await filled(1, 2, 3)
        await store.save(3, (await store.load(3))[:-1])
        with caplog.at_level(logging.WARNING):
            found = await history.read_newest()
        assert found is not None
        assert found[0].id == 2
        assert history.newest == 3, "its number is not used again"
        assert "checkpoint 3 is damaged" in caplog.text

    run_virtual(main())


def test_all_damaged_is_an_error_and_not_a_new_beginning() -> None:
    async def main() -> None:
        store, history = await filled(1, 2)
        for number in (1, 2):
            await store.save(number, b"")
        with pytest.raises(CheckpointError, match="every checkpoint"):
            await history.read_newest()
        with pytest.raises(DamagedCheckpoint, match="checkpoint 2 is damaged"):
            await history.read(2)

    run_virtual(main())


def test_newest_from_the_future_is_refused_and_not_skipped() -> None:
    async def main() -> None:
        store, history = await filled(1, 2)
        data = bytearray(await store.load(2))
        data[8:10] = b"\xff\xff"
        await store.save(2, bytes(data))
        with pytest.raises(CheckpointError, match="newer version"):
            await history.read_newest()

    run_virtual(main())


def test_old_ones_are_let_go() -> None:
    async def main() -> None:
        store, history = await filled(1, 2, 3, 4)
        await history.let_go(2)
        assert await store.numbers() == [3, 4]
        await history.let_go(5)
        assert await store.numbers() == [3, 4]

    run_virtual(main())
