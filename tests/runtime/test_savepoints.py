"""Savepoints: checkpoints that stay, however few are kept, and lead back from all that comes after."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    Checkpoints,
    DirectoryStore,
    Inbox,
    JsonLinesSink,
    Pipeline,
    PipelineError,
    SourceError,
    SqliteStore,
)
from asyncstream.checkpoint.stores import holding
from asyncstream.cli import main

STORES = {"directory": DirectoryStore, "sqlite": SqliteStore}


def firsts(folder: Path, inbox: Inbox | None = None) -> Pipeline:
    """Writes each value once."""
    pipeline = Pipeline("firsts")
    values = pipeline.submissions(inbox=inbox, name="in") if inbox else pipeline.submissions(name="in")
    values.deduplicate(str, name="first").to(JsonLinesSink(folder / "out.jsonl"), name="out")
    return pipeline


async def life(
    pipeline: Pipeline, checkpoints: Checkpoints, values: str, savepoints: str = "", *, durable: bool = False
) -> list[int]:
    """A job with a checkpoint after each value: the numbers of those that are savepoints."""
    found = []
    async with pipeline.start(checkpoints=checkpoints) as job:
        for value in values:
            await job.submit(value, durable=durable)
            info = await job.checkpoint(savepoint=value in savepoints)
            assert info.savepoint == (value in savepoints)
            if info.savepoint:
                found.append(info.id)
        await job.stop()
    return found


@pytest.fixture(params=STORES)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Makes settings with a store; parts are small enough to be shared and compacted."""

    def settings(**more: Any) -> Checkpoints:
        return Checkpoints(store=STORES[request.param](tmp_path / "kept"), keep=2, inline_bytes=16, **more)

    return settings


async def test_a_job_goes_back_to_a_savepoint_long_after(tmp_path: Path, kept: Any) -> None:
    letters = "".join(map(chr, range(0x400, 0x418)))
    (number,) = await life(firsts(tmp_path), kept(), letters, savepoints=letters[9])
    for more in "xyz":
        assert not await life(firsts(tmp_path), kept(), more)
    numbers = await kept().store.numbers()
    assert numbers[0] == number
    assert len(numbers) == 3
    await life(firsts(tmp_path), kept(restore=number), letters[:12])
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert written == list(letters[:12]), "what came after is taken back; what came before is remembered"


async def test_the_last_checkpoint_can_be_a_savepoint(tmp_path: Path, kept: Any) -> None:
    await life(firsts(tmp_path), kept(savepoint=True), "a")
    last = (await kept().store.numbers())[-1]
    for more in "bcd":
        await life(firsts(tmp_path), kept(), more)
    numbers = await kept().store.numbers()
    assert numbers[0] == last
    assert len(numbers) == 3


async def test_those_who_share_a_checkpoint_have_a_savepoint_if_one_asks_for_it(
    tmp_path: Path, kept: Any
) -> None:
    async with firsts(tmp_path).start(checkpoints=kept()) as job:
        asked = (job.checkpoint(savepoint=wanted) for wanted in (False, True, False))
        infos = await asyncio.gather(*asked)
        assert len({info.id for info in infos}) == 1
        assert infos[0].savepoint
        assert not (await job.checkpoint()).savepoint
        with pytest.raises(PipelineError, match="savepoint: expected True or False"):
            await job.checkpoint(savepoint="yes")  # type: ignore[arg-type]


async def test_an_inbox_does_not_keep_all_since_a_savepoint_and_says_so(tmp_path: Path, kept: Any) -> None:
    inbox = Inbox(tmp_path / "in.sqlite")
    (number,) = await life(firsts(tmp_path, inbox), kept(), "abcdefgh", savepoints="b", durable=True)
    with pytest.raises(SourceError, match="cannot go on behind element 2 of the inbox"):
        await life(firsts(tmp_path, inbox), kept(restore=number), "")


def test_savepoints_are_listed_and_deleted_from_a_shell(
    tmp_path: Path, kept: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (number,) = asyncio.run(life(firsts(tmp_path), kept(), "abcdefgh", savepoints="b"))
    store = str(tmp_path / "kept")

    def said(*arguments: str) -> tuple[int, str]:
        status = main(["checkpoint", *arguments])
        told = capsys.readouterr()
        return status, told.out + told.err

    first, *_, last = said("list", store)[1].splitlines()
    assert first.split()[0] == str(number)
    assert first.endswith("firsts  savepoint")
    assert "stays     as a savepoint" in said("show", store, str(number))[1]
    newest = last.split()[0]
    assert said("delete", store, newest) == (
        1,
        f"asyncstream: checkpoint {newest} is the newest, from which the next start goes on\n",
    )
    missing = f"there is no checkpoint 77 in {store}; `asyncstream checkpoint list` shows all"
    assert said("delete", store, "77") == (1, f"asyncstream: {missing}\n")
    assert said("delete", store, str(number)) == (0, f"asyncstream: checkpoint {number} is deleted\n")
    assert "savepoint" not in said("list", store)[1]
    assert said("verify", store)[0] == 0
    asyncio.run(life(firsts(tmp_path), kept(), "i"))


def test_the_newest_whole_one_is_not_deleted(
    tmp_path: Path, kept: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(life(firsts(tmp_path), kept(), "abcdefgh"))
    store = kept().store

    async def damage() -> list[int]:
        numbers: list[int] = await store.numbers()
        async with holding(store, 30.0) as lease:
            await store.commit(lease, numbers[-1], b"something else")
        return numbers

    *_, before, newest = asyncio.run(damage())

    def refused(number: int) -> str:
        assert main(["checkpoint", "delete", str(store), str(number)]) == 1
        return capsys.readouterr().err

    assert f"checkpoint {before} is the newest, from which the next start goes on" in refused(before)
    assert f"checkpoint {newest} is damaged, but its number must not come again" in refused(newest)
    asyncio.run(life(firsts(tmp_path), kept(), "i"))


async def test_nothing_is_deleted_while_a_job_writes(
    tmp_path: Path, kept: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    async with firsts(tmp_path).start(checkpoints=kept()) as job:
        number = (await job.checkpoint(savepoint=True)).id
        await job.checkpoint()
        command = ["checkpoint", "delete", str(tmp_path / "kept"), str(number)]
        assert await asyncio.to_thread(main, command) == 1
        assert "one job at a time may" in capsys.readouterr().err
        assert number in await kept().store.numbers()
