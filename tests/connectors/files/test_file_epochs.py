"""Files as sinks of a job with checkpoints: what is behind the position is cut off, the rest stays."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import shutil
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import Any

import pytest

from asyncstream import (
    Checkpoints,
    CsvSink,
    JsonLinesSink,
    MemoryStore,
    Pipeline,
    SinkError,
    TransactionalSink,
)
from asyncstream.connectors.files import claim
from asyncstream.connectors.files.claim import Claim
from asyncstream.connectors.writer import Writer
from asyncstream.errors import AsyncStreamError, SinkBroken
from asyncstream.filesystem.locks import lock
from asyncstream.lease import Holder, Lease, enter

ROW = {"n": 1}
MAKE: dict[str, Callable[..., TransactionalSink[Any]]] = {
    "json": JsonLinesSink,
    "csv": lambda path, **options: CsvSink(path, columns=["n"], **options),
}
LINE = {"json": b'{"n":1}\n', "csv": b"1\n"}
HEAD = {"json": b"", "csv": b"n\n"}
KINDS = pytest.mark.parametrize("kind", MAKE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out"


def content(path: Path) -> bytes:
    return path.read_bytes()


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


async def lives(sink: TransactionalSink[Any], position: Any, before: int, after: int) -> Any:
    """One run that writes so many rows before and after it prepares, and crashes then; gives the position."""
    await sink.recover(position)
    await sink.write([ROW] * before, None)
    position = await sink.prepare(1)
    await sink.write([ROW] * after, None)
    await sink.close()
    return position


@KINDS
async def test_what_was_written_behind_the_position_is_cut_off(path: Path, kind: str) -> None:
    position = await lives(MAKE[kind](path), None, 2, 3)
    assert content(path) == HEAD[kind] + 5 * LINE[kind]
    position = await lives(MAKE[kind](path), position, 1, 4)
    await lives(MAKE[kind](path), position, 0, 0)
    assert content(path) == HEAD[kind] + 3 * LINE[kind]


@KINDS
async def test_crash_before_the_first_checkpoint_leaves_nothing_in_the_way(path: Path, kind: str) -> None:
    for _ in range(2):
        position = await lives(MAKE[kind](path), None, 0, 0)
        assert content(path) == b""
    await lives(MAKE[kind](path), position, 1, 0)
    assert content(path) == HEAD[kind] + LINE[kind]


@KINDS
async def test_position_at_the_beginning_cuts_off_everything(path: Path, kind: str) -> None:
    position = await lives(MAKE[kind](path), None, 0, 5)
    await lives(MAKE[kind](path), position, 1, 0)
    assert content(path) == HEAD[kind] + LINE[kind]


@KINDS
async def test_file_that_was_there_is_refused_at_the_first_start_only(path: Path, kind: str) -> None:
    put(path, HEAD[kind] + LINE[kind])
    with pytest.raises(SinkError, match="exists"):
        await MAKE[kind](path).recover(None)
    position = await lives(MAKE[kind](path, existing="append"), None, 1, 1)
    await lives(MAKE[kind](path), position, 1, 0)
    assert content(path) == HEAD[kind] + 3 * LINE[kind]


@KINDS
async def test_overwriting_is_for_the_first_start_only(path: Path, kind: str) -> None:
    put(path, b"something else")
    position = await lives(MAKE[kind](path, existing="overwrite"), None, 1, 1)
    await lives(MAKE[kind](path, existing="overwrite"), position, 1, 0)
    assert content(path) == HEAD[kind] + 2 * LINE[kind]


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        (partial(CsvSink, columns=["n"]), partial(CsvSink, columns=["n", "m"]), "its header is 'n'"),
        (partial(CsvSink, columns=["n", "m"]), partial(CsvSink, columns=["n"]), "its header is 'n,m'"),
        (JsonLinesSink, partial(JsonLinesSink, compression="gzip"), "its compression is None"),
        (partial(JsonLinesSink, compression="gzip"), JsonLinesSink, "its compression is gzip"),
        (
            partial(JsonLinesSink, compression="zstd"),
            partial(JsonLinesSink, compression="gzip"),
            "its compression is zstd",
        ),
    ],
)
async def test_lines_of_another_form_are_not_written_behind_what_is_there(
    path: Path, before: Any, now: Any, why: str
) -> None:
    sink = before(path)
    await sink.recover(None)
    await sink.write([{"n": 1, "m": 2}], None)
    position = await sink.prepare(1)
    await sink.close()
    written = content(path)
    for work in (
        now(path).can_recover(position),
        now(path).recover(position),
        now(path, existing="append").open(),
    ):
        with pytest.raises(SinkError, match=why) as told:
            await work
        assert told.value.__cause__ is not told.value
    assert content(path) == written


@KINDS
async def test_file_that_has_become_shorter_is_refused(path: Path, kind: str) -> None:
    position = await lives(MAKE[kind](path), None, 5, 0)
    put(path, LINE[kind])
    with pytest.raises(SinkError, match="at the checkpoint"):
        await MAKE[kind](path).recover(position)
    remove(path)
    with pytest.raises(SinkError, match=r"it is not there\. Put back the file .* restore='none'"):
        await MAKE[kind](path).recover(position)


# ---------------------------------------------------------------------- what is ahead, and what is foreign


def run_anew(path: Path, kind: str, **options: Any) -> None:
    """The checkpoints were thrown away, the file was not."""
    pipeline = Pipeline()
    pipeline.source([ROW], name="s").to(MAKE[kind](path, existing="append"), name="t")
    asyncio.run(pipeline.run(checkpoints=Checkpoints(store=MemoryStore(), **options)))


@KINDS
def test_new_beginning_is_refused_unless_it_is_said_what_becomes_of_the_results(
    path: Path, kind: str
) -> None:
    run_anew(path, kind)
    with pytest.raises(SinkError, match=r"out.*store=, restore=.*ahead='allow_behind'.*ahead='start_over'"):
        run_anew(path, kind)
    assert content(path) == HEAD[kind] + LINE[kind]
    run_anew(path, kind, ahead="start_over")
    assert content(path) == HEAD[kind] + LINE[kind]
    run_anew(path, kind, ahead="allow_behind")
    assert content(path) == HEAD[kind] + 2 * LINE[kind]


@KINDS
async def test_checkpoints_of_an_earlier_run_do_not_cut_off_what_a_later_one_wrote(
    path: Path, kind: str
) -> None:
    position = await lives(MAKE[kind](path), None, 1, 0)
    await lives(MAKE[kind](path, existing="overwrite"), None, 3, 0)
    with pytest.raises(SinkError, match="store=, restore="):
        await MAKE[kind](path).recover(position)
    assert content(path) == HEAD[kind] + 3 * LINE[kind]


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "appended": lambda path: put(path, content(path) + b'{"note": "by Eve"}\n'),
    "replaced by a longer one": lambda path: put(path, b"PRECIOUS\n" * 50),
    "replaced by one of the same length": lambda path: put(path, b"P" * len(content(path))),
    "emptied": lambda path: put(path, b""),
    "moved away": lambda path: path.rename(path.with_suffix(".1")),
    "edited": lambda path: put(path, content(path).replace(b"1", b"2", 1)),
}


@KINDS
@pytest.mark.parametrize("how", FOREIGN)
def test_file_that_is_not_the_one_it_wrote_is_refused_and_left_alone(path: Path, kind: str, how: str) -> None:
    position = asyncio.run(lives(MAKE[kind](path), None, 5, 0))
    FOREIGN[how](path)
    before = content(path) if path.exists() else None
    for ask in (MAKE[kind](path).can_recover, MAKE[kind](path).recover):
        with pytest.raises(SinkError, match="cannot go on writing"):
            asyncio.run(ask(position))
        assert (content(path) if path.exists() else None) == before


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """In this block another process has locked the file."""
    with path.open("ab") as file:
        assert lock(file)
        yield


def test_what_another_process_does_with_a_record_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was stopped and followed does, which wakes up while its follower takes the file over."""
    looks = iter([False, False])
    monkeypatch.setattr(claim, "lock", lambda file: next(looks, True))
    monkeypatch.setattr(claim, "_LOOK_AGAIN", 0)
    with Claim(str(path)).taking():
        assert next(looks, None) is None


@KINDS
async def test_lines_that_a_job_without_checkpoints_has_added_after_a_crash_are_not_cut_off(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim, "PATIENCE", 0)
    position = await lives(MAKE[kind](path), None, 2, 1)
    beside = path.with_name(".out.sink")
    record = json.loads(content(beside))
    put(beside, json.dumps(record | {"closed": None}).encode())  # as if it had not come to close it
    other = MAKE[kind](path, existing="append")
    with locked(beside), pytest.raises(SinkError, match=r"is being taken over .*a process was stopped"):
        await other.open()
    await other.open()
    await other.write([ROW], None)
    await other.flush()
    await other.close()
    with pytest.raises(SinkError, match=f"{len(LINE[kind])} bytes of another writer are behind"):
        await MAKE[kind](path).can_recover(position)
    assert content(path) == HEAD[kind] + 4 * LINE[kind]


@KINDS
@pytest.mark.parametrize("which", ["record", "_next"])
def test_a_link_in_place_of_the_record_leads_nowhere(path: Path, kind: str, which: str) -> None:
    """As who may write in the folder could have put there, to something that only the job may write."""
    sink = MAKE[kind](path)
    Path(getattr(claim.Claim(str(path)), which)).symlink_to(other := path.with_name("other"))
    put(other, b"precious")
    with pytest.raises(SinkError, match="symbolic links"):
        asyncio.run(lives(sink, None, 1, 1))
    assert content(other) == b"precious"


@KINDS
def test_symlink_leads_to_the_same_file(path: Path, kind: str) -> None:
    link = path.with_name("link")
    put(path, b"")
    link.symlink_to(path)
    position = asyncio.run(lives(MAKE[kind](link), None, 2, 1))
    asyncio.run(lives(MAKE[kind](path), position, 1, 0))
    assert link.is_symlink()
    assert content(path) == HEAD[kind] + 3 * LINE[kind]


# ---------------------------------------------------------------------- one writer


def for_lease(sink: TransactionalSink[Any], number: int, place: str = "place") -> TransactionalSink[Any]:
    holder = Holder.here(0)
    enter(holder, lambda: True)
    sink.writer = Writer(Lease(number, place, holder, 0), 3, "refuse")
    return sink


@KINDS
async def test_sink_that_was_followed_cannot_damage_what_its_follower_writes(path: Path, kind: str) -> None:
    old, new = for_lease(MAKE[kind](path), 1), for_lease(MAKE[kind](path), 2)
    await old.recover(None)
    await old.write([ROW] * 2, None)
    position = await old.prepare(1)
    await old.write([ROW] * 100, None)
    await new.recover(position)
    await new.write([ROW], None)
    await old.write([{"n": 666}] * 100, None)  # it does not know yet
    for work in (old.prepare(2), old.commit(1)):
        with pytest.raises(SinkBroken, match=r"taken over by process \d+"):
            await work
    with pytest.raises(SinkBroken, match="taken over"):
        await old.can_recover(position)
    await old.close()
    await new.prepare(2)
    await new.close()
    assert content(path) == HEAD[kind] + 3 * LINE[kind]


@KINDS
async def test_nothing_changes_behind_a_fence_until_its_job_takes_over(path: Path, kind: str) -> None:
    writing, starting, new = (for_lease(MAKE[kind](path), number) for number in (1, 2, 3))
    await new.fence()  # there is nothing to be kept out of
    assert list(path.parent.iterdir()) == []
    await writing.recover(None)
    await writing.write([ROW] * 2, None)
    position = await writing.prepare(1)
    await starting.fence()
    await starting.can_recover(position)
    await new.fence()
    await starting.fence()  # it comes too late
    before = content(path)
    for work in (writing.prepare(2), writing.commit(1)):
        with pytest.raises(SinkBroken, match="taken over by another job"):
            await work
    for work in (starting.can_recover(position), starting.recover(None)):
        with pytest.raises(SinkBroken, match="taken over by a later job"):
            await work
    await starting.close()
    assert content(path) == before
    await new.can_recover(position)
    await writing.close()
    await new.recover(position)
    await new.write([ROW], None)
    await new.commit(await new.prepare(2) and 2)
    await new.close()
    assert content(path) == HEAD[kind] + 3 * LINE[kind]


async def test_record_that_makes_no_sense_is_in_the_way_of_nobody(path: Path) -> None:
    path.with_name(".out.sink").write_text("[" * 100_000)
    await lives(JsonLinesSink(path), None, 1, 0)
    assert content(path) == LINE["json"]


@KINDS
async def test_start_that_was_refused_is_in_the_way_of_nobody(path: Path, kind: str) -> None:
    position = await lives(for_lease(MAKE[kind](path), 1), None, 1, 0)
    await for_lease(MAKE[kind](path), 2).fence()
    await lives(for_lease(MAKE[kind](path), 3), position, 1, 0)
    await for_lease(MAKE[kind](path), 4).fence()
    await for_lease(MAKE[kind](path), 1, "elsewhere").fence()
    other = for_lease(MAKE[kind](path), 1, "elsewhere")
    await other.can_recover(position)
    await other.recover(position)
    await other.close()


@KINDS
async def test_job_with_another_store_is_refused_until_the_first_has_ended(path: Path, kind: str) -> None:
    first, second = for_lease(MAKE[kind](path), 1, "here"), for_lease(MAKE[kind](path), 9, "there")
    await first.recover(None)
    for ask in (second.can_recover, second.recover):
        with pytest.raises(SinkError, match=r"written to by process \d+.*elsewhere"):
            await ask(None)
    without = MAKE[kind](path, existing="append")
    with pytest.raises(SinkError, match="by another sink, of this job or of another"):
        await without.open()
    await first.close()
    await second.recover(None)
    await second.close()


@KINDS
def test_copy_of_a_store_from_before_is_refused_with_the_way_back(path: Path, kind: str) -> None:
    def run(rows: int, store: Path) -> None:
        pipeline = Pipeline("copied")
        source = pipeline.source([ROW] * rows, name="in")
        source.to(MAKE[kind](path), name="out")
        pipeline.run_blocking(checkpoints=store)

    store, copy = path.with_name("store"), path.with_name("copy")
    run(1, store)
    shutil.copytree(store, copy)
    run(2, store)
    run(3, store)
    written = content(path)
    with pytest.raises(SinkBroken, match=r"from before it, as a copy or a backup is; go back in .* restore="):
        run(4, copy)
    assert content(path) == written


@KINDS
async def test_file_that_is_moved_away_while_it_is_written_ends_the_job(path: Path, kind: str) -> None:
    sink = MAKE[kind](path)
    await sink.recover(None)
    await sink.write([ROW], None)
    path.rename(path.with_suffix(".1"))  # noqa: ASYNC240
    with pytest.raises(SinkBroken, match="moved or replaced"):
        await sink.prepare(1)
    await sink.close()


@KINDS
@pytest.mark.parametrize("gone", [["file"], ["record"], ["file", "record"]], ids=" and ".join)
async def test_what_is_deleted_is_not_said_to_be_taken_over(path: Path, kind: str, gone: list[str]) -> None:
    sink = MAKE[kind](path)
    await sink.recover(None)
    await sink.write([ROW], None)
    for what in gone:
        (path if what == "file" else path.with_name(f".{path.name}.sink")).unlink()
    said = "was deleted, moved or replaced" if "file" in gone else r"\.sink, which says whose .* is, is gone"
    with pytest.raises(SinkBroken, match=said):
        await sink.prepare(1)
    await sink.close()


@KINDS
@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("grows", [False, True])
async def test_a_file_that_another_program_cuts_while_it_is_written_ends_the_job(
    path: Path, kind: str, goes_on: bool, grows: bool
) -> None:
    """A log rotation by `copytruncate`, say: what is written next comes behind a hole, or alone."""
    sink = MAKE[kind](path)
    await sink.recover(None)
    await sink.write([ROW], None)
    if goes_on:
        position = await sink.prepare(1)
        await sink.close()
        sink = MAKE[kind](path)
        await sink.recover(position)
    else:
        await sink.prepare(1)
    os.truncate(path, 0)
    await sink.write([{**ROW, "n": 2}] * (100 if grows else 1), None)
    with pytest.raises(SinkBroken, match="bytes were written, was changed meanwhile: "):
        await sink.prepare(2)
    await sink.close()


@KINDS
@pytest.mark.parametrize("where", ["fence", "recover", "close"])
async def test_call_that_is_cancelled_anywhere_leaves_the_file_to_the_next_job(
    tmp_path: Path, kind: str, where: str
) -> None:
    for steps in range(12):
        path = tmp_path / str(steps)
        before = for_lease(MAKE[kind](path), 1, "here")
        await before.recover(None)
        await before.write([ROW], None)
        position = await before.prepare(1)
        await before.commit(1)
        sink = before
        if where != "close":
            await before.close()
            sink = for_lease(MAKE[kind](path), 2, "here")
        calls: dict[str, Callable[[], Coroutine[Any, Any, None]]]
        calls = {"fence": sink.fence, "recover": partial(sink.recover, position), "close": sink.close}
        calling = asyncio.ensure_future(calls[where]())
        for _ in range(steps):
            await asyncio.sleep(0)
        calling.cancel()
        await asyncio.wait({calling})
        await sink.close()
        following = for_lease(MAKE[kind](path), 3, "here")
        await following.fence()
        await following.recover(position)
        await following.close()
        assert content(path) == HEAD[kind] + LINE[kind]


# ---------------------------------------------------------------------- a disk that fails


class PowerLost(Exception):
    """The machine has stopped."""


def loses_power(after: int, share: float) -> Callable[[int], None]:
    """An fsync that is the machine's last but for so many: of its file the disk has this share then."""
    real, done = os.fsync, list[int]()

    def fsync(file: int) -> None:
        done.append(file)
        if len(done) <= after:
            real(file)
            return
        if len(done) == after + 1 and S_ISREG(os.fstat(file).st_mode):
            os.ftruncate(file, int(os.fstat(file).st_size * share))
        raise PowerLost

    return fsync


def taken(path: Path, base: int) -> tuple[Claim, Writer, Writer]:
    """A file that the first of two writers has taken at `base`, and both."""
    first, second = (for_lease(JsonLinesSink(path), number).writer for number in (1, 2))
    assert first is not None
    assert second is not None
    put(path, b"")
    claim = Claim(str(path))
    with claim.taking():
        claim.take("run", base, first)
    return claim, first, second


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("after", range(4))
def test_a_record_that_the_power_cuts_off_says_what_it_said_or_was_to_say(
    path: Path, monkeypatch: pytest.MonkeyPatch, after: int, share: float
) -> None:
    claim, _, second = taken(path, 7)
    with monkeypatch.context() as patched, suppress(PowerLost):
        patched.setattr(os, "fsync", loses_power(after, share))
        claim.fence(second)
    found = Claim(str(path)).read()
    assert found is not None
    assert (found.run, found.base, found.fence) in [("run", 7, 0), ("run", 7, 2)]
    assert found.fence == 2 or after < 3


def test_a_record_shows_the_time_of_its_lease_and_not_that_of_the_disk(path: Path) -> None:
    """The clock of a file server may be ahead of the job's, to which the one before would seem to go on."""
    claim, first, second = taken(path, 0)
    claim.fence(second)
    found = Claim(str(path)).read()
    assert found is not None
    assert (found.fence, found.holder()) == (2, first.lease)


@KINDS
async def test_nothing_is_written_behind_what_a_record_that_is_damaged_does_not_tell_of(
    path: Path, kind: str
) -> None:
    put(path, HEAD[kind] + LINE[kind])
    path.with_name(".out.sink").write_text('{"run": "0123')
    sink = MAKE[kind](path, existing="append")
    for ask in (sink.can_recover, sink.recover):
        with pytest.raises(SinkError, match=r"its record, .*\.out\.sink, cannot be read.*delete the record"):
            await ask(None)
    assert content(path) == HEAD[kind] + LINE[kind]
    path.with_name(".out.sink").unlink()
    await lives(sink, None, 1, 0)
    assert content(path) == HEAD[kind] + 2 * LINE[kind]


@KINDS
async def test_what_was_not_brought_to_the_disk_is_not_believed_at_the_second_try(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = MAKE[kind](path)
    await sink.recover(None)
    position = await sink.prepare(1)
    await sink.write([ROW], None)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", broken)
        with pytest.raises(SinkBroken, match=r"Input/output error.*written again"):
            await sink.prepare(2)
    with pytest.raises(SinkBroken, match="Input/output error"):
        await sink.prepare(3)
    await sink.close()
    await lives(MAKE[kind](path), position, 2, 0)
    assert content(path) == HEAD[kind] + 2 * LINE[kind]


@KINDS
@pytest.mark.parametrize("has_checkpoints", [False, True])
async def test_sink_on_a_full_disk_says_so_once_and_is_closed(
    path: Path, kind: str, has_checkpoints: bool
) -> None:
    sink = MAKE[kind](path)
    await (sink.recover(None) if has_checkpoints else sink.open())
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        await sink.write([ROW] * 10, None)
        with pytest.raises(SinkBroken, match="File too large") as told:
            await (sink.prepare(1) if has_checkpoints else sink.flush())
        assert ("since the last checkpoint" in str(told.value)) == has_checkpoints
        await sink.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    again = MAKE[kind](path, existing="overwrite")
    await again.open()
    await again.close()


def broken(file: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


@KINDS
def test_failed_fsync_ends_the_job_and_the_next_one_writes_all(
    path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()

    def pipeline() -> Pipeline:
        pipeline = Pipeline()
        pipeline.source([ROW] * 5, name="s").to(MAKE[kind](path), name="t")
        return pipeline

    async def main() -> None:
        async with pipeline().start(checkpoints=Checkpoints(store=store, tolerate=20)) as job:
            monkeypatch.setattr(os, "fsync", broken)
            await job.wait()

    with monkeypatch.context(), pytest.raises(AsyncStreamError, match="Input/output error"):
        asyncio.run(main())
    monkeypatch.undo()
    asyncio.run(pipeline().run(checkpoints=Checkpoints(store=store)))
    assert content(path) == HEAD[kind] + 5 * LINE[kind]


@KINDS
def test_empty_run_leaves_what_one_without_checkpoints_leaves(path: Path, kind: str) -> None:
    pipeline = Pipeline()
    pipeline.source([], name="s").to(MAKE[kind](path), name="t")
    asyncio.run(pipeline.run(checkpoints=Checkpoints(store=MemoryStore())))
    assert content(path) == HEAD[kind]
