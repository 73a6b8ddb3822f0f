"""
The stories of crashes and restarts once more, with checkpoints in the package's own stores, and with what
steps remember in memory and on disk. And they can fail: with a fault in a store one soon does.

    ASYNCSTREAM_STORIES=2000 pytest tests/simulation/test_stores.py     more of them
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from asyncstream import DirectoryStore, DiskState, Pipeline, SqliteStore
from asyncstream.testing.simulation import SimulationFailed
from tests.simulation.scenarios import story, swept
from tests.simulation.stores import KINDS, kept_in

STORIES = int(os.environ.get("ASYNCSTREAM_STORIES", "24"))
WITH_DISK = int(os.environ.get("ASYNCSTREAM_STORIES", "8"))
WITHIN = 200
"""Stories."""

PLACES = ("acquire", "renew", "release", "put", "save", "delete", "list", "load")

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.timeout(3600)]


def tell(kind: str, seeds: Iterable[int], path: Path, patch: pytest.MonkeyPatch) -> Counter[str]:
    """What happened in these stories, and how often; each has a store of its own."""
    happened = Counter[str]()
    for seed in swept(seeds):
        folder = path / str(seed)
        folder.mkdir()
        with kept_in(kind, folder, patch):
            told = story(seed, f"ASYNCSTREAM_STORIES={seed + 1} pytest {__file__} -k {kind}")
        happened.update(f"{what} {detail}" if what == "crash" else what for _, _, what, detail in told.trace)
    return happened


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_and_nothing_is_doubled(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = tell(kind, range(STORIES), tmp_path, monkeypatch)
    if STORIES >= 2000:  # fewer are too few for all of it to happen
        assert not {f"crash in {place}" for place in PLACES} - happened.keys()
        assert {"damage", "compacted", "went back", "refused"} <= happened.keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_nor_with_state_on_disk(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, lives = Pipeline.start, count()

    def on_disk(self: Pipeline, **settings: Any) -> Any:
        # a process that has crashed here still has its directory, for it has not really ended
        state = DiskState(tmp_path / f"life {next(lives)}", young_rows=3, cache_bytes=1 << 20)
        return start(self, state=state, **settings)

    monkeypatch.setattr(Pipeline, "start", on_disk)
    tell(kind, range(WITH_DISK), tmp_path, monkeypatch)
    assert next(lives) > WITH_DISK


Patch = Callable[[pytest.MonkeyPatch], None]


def a_file_has_its_name_before_its_contents_are_on_the_disk(patch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def written(store: DirectoryStore, name: str, data: bytes) -> Iterator[str]:
        temporary = store._path / f"{name}.unfinished"
        temporary.write_bytes(data)
        yield str(temporary)
        temporary.unlink(missing_ok=True)

    patch.setattr(DirectoryStore, "_written", written)


def a_name_is_not_brought_to_the_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("asyncstream.checkpoint.directory.sync_folder", lambda folder: None)


def a_manifest_is_written_in_two_transactions(patch: pytest.MonkeyPatch) -> None:
    async def commit(store: SqliteStore, lease: Any, number: int, manifest: bytes) -> None:
        await whole(store, lease, number, manifest[: len(manifest) // 2])
        await whole(store, lease, number, manifest)

    whole = SqliteStore.commit
    patch.setattr(SqliteStore, "commit", commit)


@pytest.mark.parametrize(
    ("kind", "put_in", "seed"),
    [
        ("directory", a_file_has_its_name_before_its_contents_are_on_the_disk, 71),
        ("directory", a_name_is_not_brought_to_the_disk, 31),
        ("sqlite", a_manifest_is_written_in_two_transactions, 32),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
def test_fault_is_found_when(
    kind: str, put_in: Patch, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked for first where it was found once; later changes may have others find it."""
    put_in(monkeypatch)
    with pytest.raises(SimulationFailed):
        tell(kind, dict.fromkeys((seed, *range(WITHIN))), tmp_path, monkeypatch)
