"""Checkpoints under a key, and checkpoints of which only the place is said."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from asyncstream import Checkpoints, DirectoryStore, MemoryStore, Pipeline, PipelineError, SqliteStore
from asyncstream.checkpoint import CheckpointStore, checkpoints_of
from asyncstream.checkpoint.seal import check_seal, is_sealed, seal, unsealed
from asyncstream.errors import CheckpointError, DamagedCheckpoint

KEY, OTHER = b"k" * 16, b"o" * 16


def run(found: list[Any], checkpoints: Any, count: int = 3000) -> None:
    pipeline = Pipeline("sealed")
    pipeline.source(list(range(count)), name="in").map(str, name="text").to(found, name="out")
    asyncio.run(pipeline.run(checkpoints=checkpoints))


@pytest.mark.parametrize("codec", ["json", "pickle"])
def test_job_goes_on_from_a_checkpoint_of_its_own_key_only(codec: Any) -> None:
    store, found = MemoryStore(), []  # type: MemoryStore, list[Any]
    run(found, Checkpoints(store=store, codec=codec, key=KEY))
    assert len(found) == 3000
    run(found, Checkpoints(store=store, codec=codec, key=KEY))
    assert len(found) == 3000, "it had finished"
    with pytest.raises(CheckpointError, match=r"checkpoint \d+: its seal does not fit this key"):
        run(found, Checkpoints(store=store, codec=codec, key=OTHER))
    with pytest.raises(CheckpointError, match=r"checkpoint \d+: it was written with a key"):
        run(found, Checkpoints(store=store, codec=codec))


def test_checkpoint_without_a_key_is_not_believed_where_there_is_one() -> None:
    store = MemoryStore()
    run([], Checkpoints(store=store))
    with pytest.raises(CheckpointError, match=r"written without a key, and is not trusted.*restore='none'"):
        run([], Checkpoints(store=store, key=KEY))
    run([], Checkpoints(store=store, key=KEY, restore="none"))
    run([], Checkpoints(store=store, key=KEY))


def test_another_codec_is_refused_until_the_job_begins_at_the_beginning() -> None:
    store = MemoryStore()
    run([], Checkpoints(store=store))
    with pytest.raises(CheckpointError, match=r"with codec='json'.*leave the codec.*restore='none'"):
        run([], Checkpoints(store=store, codec="pickle"))
    run([], Checkpoints(store=store, codec="pickle", restore="none"))
    run([], Checkpoints(store=store, codec="pickle"))


def test_every_change_is_found_out() -> None:
    sealed = seal(b"manifest", KEY)
    assert is_sealed(sealed)
    assert unsealed(sealed) == b"manifest"
    check_seal(sealed, KEY)
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(CheckpointError):
            check_seal(bytes(changed), KEY)
    for length in range(len(sealed)):
        with pytest.raises(CheckpointError):
            check_seal(sealed[:length], KEY)
    with pytest.raises(DamagedCheckpoint):
        check_seal(sealed[:20], KEY)
    check_seal(b"manifest", None)
    assert unsealed(b"manifest") == seal(b"manifest", None) == b"manifest"


def test_damaged_one_under_a_key_is_passed_over(tmp_path: Path) -> None:
    found: list[Any] = []
    run(found, Checkpoints(store=DirectoryStore(tmp_path), key=KEY))
    newest = max(tmp_path.glob("*.checkpoint"))
    newest.write_bytes(newest.read_bytes()[:-5])
    run(found, Checkpoints(store=DirectoryStore(tmp_path), key=KEY))
    assert len(found) == 6000, "the first checkpoint, before anything was read, is the one before"


@pytest.mark.parametrize("key", [b"", b"short", "a text of sixteen", 3, bytearray(16)])
def test_weak_key_is_refused_and_not_shown(key: Any) -> None:
    with pytest.raises(PipelineError, match=r"^key: expected at least 16 bytes, got (0|5|a \w+)$") as caught:
        Checkpoints(store=MemoryStore(), key=key)
    assert "short" not in str(caught.value)
    assert "kkkk" not in repr(Checkpoints(store=MemoryStore(), key=KEY))


# ---------------------------------------------------------------------- only a place


def test_path_is_enough(tmp_path: Path) -> None:
    for place in (str(tmp_path / "one"), tmp_path / "two"):
        found: list[Any] = []
        for _ in range(2):
            run(found, place)
            assert len(found) == 3000
        assert list(Path(place).glob("*.checkpoint"))


def test_path_is_enough_to_start_and_for_programs_without_a_loop(tmp_path: Path) -> None:
    pipeline = Pipeline("p")
    pipeline.submissions(name="in").discard(name="out")

    async def main() -> None:
        async with pipeline.start(checkpoints=str(tmp_path / "a")) as job:
            assert (await job.checkpoint()).id > 0

    asyncio.run(main())
    finite = Pipeline("p")
    finite.source([1], name="in").discard(name="out")
    finite.run_blocking(checkpoints=tmp_path / "b")
    assert list((tmp_path / "b").glob("*.checkpoint"))


def test_file_is_an_sqlite_store(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    run([], Checkpoints(store=SqliteStore(path)))
    stores: list[CheckpointStore] = [checkpoints_of("checkpoints", place).store for place in (path, tmp_path)]
    assert [type(store) for store in stores] == [SqliteStore, DirectoryStore]


@pytest.mark.parametrize("wrong", [3, "", MemoryStore(), Checkpoints, b"dir", True])
def test_what_is_no_place_is_refused(wrong: Any) -> None:
    pipeline = Pipeline("p")
    pipeline.source([1]).discard()
    with pytest.raises(PipelineError, match=r"checkpoints: expected Checkpoints\(\.\.\.\) or the path of a"):
        pipeline.start(checkpoints=wrong)
