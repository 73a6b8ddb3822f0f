"""The journal of finished calls as bytes: what is whole is read, what is half at the end is not missed."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import shutil
import sys
from contextlib import nullcontext
from functools import partial, update_wrapper
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import CheckpointError, Checkpoints, DirectoryStore, MemoryStore, PipelineError, SqliteStore
from asyncstream.checkpoint.journal import Journal, StepJournal, ended_in, frame, frames, grouped
from asyncstream.checkpoint.journal_files import FolderFiles
from asyncstream.codec import codec
from asyncstream.connectors.http import HttpLookup
from asyncstream.guards import in_threads, retry
from asyncstream.operators.fingerprint import fingerprint

KEY = b"sixteen bytes or more"

payloads = st.lists(st.binary(max_size=40) | st.just(frame(b"within")), max_size=5)


@given(payloads, st.sampled_from([None, KEY]), st.data())
def test_a_file_that_is_cut_anywhere_gives_its_whole_frames(
    written: list[bytes], key: bytes | None, data: st.DataObject
) -> None:
    whole = [frame(payload, key) for payload in written]
    file = b"".join(whole)
    end = data.draw(st.integers(0, len(file)))
    kept = next((n for n in range(len(whole), -1, -1) if sum(map(len, whole[:n])) <= end), 0)

    assert list(frames(file[:end], "it", key)) == written[:kept]


@given(st.lists(st.binary(max_size=40), min_size=2, max_size=5), st.data())
def test_a_frame_that_was_changed_is_refused_unless_it_is_the_last(
    written: list[bytes], data: st.DataObject
) -> None:
    whole = [frame(payload) for payload in written]
    place = data.draw(st.integers(0, len(whole) - 1))
    bad = bytearray(whole[place])
    bad[data.draw(st.integers(0, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    file = b"".join([*whole[:place], bytes(bad), *whole[place + 1 :]])

    if place == len(whole) - 1:
        assert list(frames(file, "it")) == written[:-1]
    else:
        with pytest.raises(CheckpointError, match=r"it is damaged at byte .*, and goes on after that"):
            list(frames(file, "it"))


def test_frames_of_another_key_are_none() -> None:
    assert list(frames(frame(b"theirs"), "it", KEY)) == []
    assert list(frames(frame(b"ours", KEY), "it", KEY)) == [b"ours"]
    assert list(frames(frame(b"theirs", KEY), "it")) == []


def never(error: BaseException) -> None:
    raise error


def journal(folder: Path, print_: str = "f", key: bytes | None = None) -> tuple[Journal, StepJournal]:
    made = Journal(FolderFiles(folder), codec("json"), key, never)
    made.add_step("charge", print_, waits=False)
    step = made.step("charge")
    assert step is not None
    return made, step


async def three_to_be_told_of(folder: Path) -> tuple[Journal, list[int]]:
    """A journal to which three results were appended, and which of them it has told to be safe."""
    made, step = journal(folder)
    await made.load(None, 1)
    told: list[int] = []
    for number in range(3):
        step.append([("root", number)], [number], [number], single=True)
        step.when_safe(lambda number=number: told.append(number))  # type: ignore[misc]
    return made, told


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.usefixtures("virtual_time")
class TestLives:
    async def test_what_ended_after_a_checkpoint_is_known_to_those_who_go_on_from_it(
        self, tmp_path: Path
    ) -> None:
        first, step = journal(tmp_path)
        await first.load(None, 1)
        first.rotate(1)
        step.append([("root", 1)], [1], ["a"], single=True)
        first.rotate(2)
        step.append([("root", 2), ("root", 3, "way")], [2, 3], [[{"b": 1}], []], single=False)
        await first.close()

        for start, known in ((1, [["a"], [{"b": 1}]]), (2, [None, [{"b": 1}]]), (3, [None, None])):
            later, step = journal(tmp_path)
            await later.load(start, 2)
            assert [step.take(("root", 1), 1), step.take(("root", 2), 2)] == known
            assert step.take(("root", 2), 2) is None, "once"
            await later.close()

    @pytest.mark.parametrize("numbers", [[4, 5, 6], [4, 6, 5], [4, 5, 9], [2**63 - 1, 2**63, 2**63 + 1]])
    @pytest.mark.parametrize(
        "elements", [[7, 8, 9], [7, 9, 8], [7, 7, 7], ["a", "b", "c"], ["a", "a", "a"], [7, "b", 9]]
    )
    async def test_each_result_is_that_of_its_element_however_these_follow_each_other(
        self, numbers: list[int], elements: list[Any], tmp_path: Path
    ) -> None:
        made, step = journal(tmp_path)
        await made.load(None, 1)
        made.rotate(1)
        step.append([("root", number) for number in numbers], elements, ["x", "y", "z"], single=True)
        await made.close()

        later, step = journal(tmp_path)
        await later.load(1, 2)
        assert step.take(("root", numbers[1]), "another") is None
        known = [step.take(("root", numbers[place]), elements[place]) for place in (0, 2)]
        assert known == [["x"], ["z"]]
        assert not step.known
        await later.close()

    async def test_files_are_gone_with_the_checkpoints_that_they_follow(self, tmp_path: Path) -> None:
        made, step = journal(tmp_path)
        await made.load(None, 1)
        (tmp_path / "00000001.checkpoint").touch()
        for number in range(1, 6):
            made.rotate(number)
            step.append([("root", number)], [number], [number], single=True)
            await made.forget(number - 1)

        assert files(tmp_path) == [
            "00000001.checkpoint",
            "calls-00000004-00000001",
            "calls-00000005-00000001",
        ]
        await made.close()

    async def test_one_file_is_open_however_many_checkpoints_are_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made, step = journal(tmp_path)
        await made.load(None, 1)
        opened: list[int] = []
        is_open: set[int] = set()
        open_, close, fsync = os.open, os.close, os.fsync
        synced: set[str] = set()

        def opens(path: Any, flags: int, mode: int = 0o777) -> int:
            file = open_(path, flags, mode)
            is_open.add(file)
            opened.append(len(is_open))
            return file

        def closes(file: int) -> None:
            is_open.discard(file)
            close(file)

        def syncs(file: int) -> None:
            named = [
                path.name for path in tmp_path.iterdir() if os.path.samestat(path.stat(), os.fstat(file))
            ]
            synced.update(named)
            fsync(file)

        monkeypatch.setattr(os, "open", opens)
        monkeypatch.setattr(os, "close", closes)
        monkeypatch.setattr(os, "fsync", syncs)
        for number in range(1, 40):
            made.rotate(number)
            step.append([("root", number)], [number], [number], single=True)
        assert opened == [1] * 39

        safe = asyncio.Event()
        await made._files.remove("calls-00000007-00000001")
        made.when_safe(safe.set)
        await safe.wait()
        assert len(synced) == 38
        assert synced == set(files(tmp_path)), "those too that were closed meanwhile"
        await made.close()
        assert not is_open

    async def test_what_is_still_to_be_asked_for_outlives_its_file(self, tmp_path: Path) -> None:
        made, step = journal(tmp_path)
        await made.load(None, 1)
        made.rotate(1)
        step.append([("root", number) for number in range(6)], range(6), [*range(6)], single=True)
        await made.close()

        for life in range(2, 5):  # each asks for one, takes a checkpoint, and ends
            made, step = journal(tmp_path)
            await made.load(life - 1, life)
            assert step.take(("root", life), life) == [life]
            step.append([("root", life)], [life], [life], single=True)
            made.rotate(life)
            await made.forget(life)
            await made.close()
            assert len(files(tmp_path)) == 1

        made, step = journal(tmp_path)
        await made.load(4, 9)
        assert [step.take(("root", number), number) for number in range(5)] == [[0], [1], None, None, None]

        for number in range(5, 16):  # nobody asks for the last one
            assert len(files(tmp_path)) == 1
            made.rotate(number)
            await made.forget(number)
        assert files(tmp_path) == []

    async def test_results_of_other_code_are_not_taken(self, tmp_path: Path) -> None:
        made, step = journal(tmp_path)
        await made.load(None, 1)
        step.append([("root", 1)], [1], ["a"], single=True)
        await made.close()

        made, step = journal(tmp_path, "g")
        await made.load(0, 2)
        assert step.take(("root", 1), 1) is None

    @pytest.mark.parametrize("writer", [None, KEY])
    @pytest.mark.parametrize("reader", [None, KEY])
    async def test_results_are_taken_under_the_key_that_they_were_written_under(
        self, writer: bytes | None, reader: bytes | None, tmp_path: Path
    ) -> None:
        made, step = journal(tmp_path, key=writer)
        await made.load(None, 1)
        step.append([("root", 1)], [1], ["a"], single=True)
        await made.close()

        made, step = journal(tmp_path, key=reader)
        await made.load(0, 2)
        assert step.take(("root", 1), 1) == (["a"] if reader == writer else None)

    async def test_a_place_that_is_not_there_has_no_results(self, tmp_path: Path) -> None:
        made, step = journal(tmp_path / "lost")
        await made.load(1, 2)
        await made.forget(2)
        assert not step.known

    async def test_results_of_a_step_that_is_gone_hide_none_of_others(self, tmp_path: Path) -> None:
        made, step = journal(tmp_path)
        made.add_step("gone", "f", waits=False)
        await made.load(None, 1)
        gone = made.step("gone")
        assert gone is not None
        gone.append([("root", 1)], [1], ["b"], single=True)
        step.append([("root", 1)], [1], ["a"], single=True)
        await made.close()

        made, step = journal(tmp_path)
        await made.load(0, 2)
        assert step.take(("root", 1), 1) == ["a"]
        await made.close()

    async def test_damage_in_the_middle_is_refused_with_what_to_do(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        made, step = journal(tmp_path)
        await made.load(None, 1)
        for number in range(3):
            step.append([("root", number)], [number], [number], single=True)
        await made.close()
        (name,) = files(tmp_path)
        whole = (tmp_path / name).read_bytes()

        (tmp_path / name).write_bytes(whole[:-3])
        made, step = journal(tmp_path)
        with caplog.at_level(logging.WARNING):
            await made.load(0, 2)
        assert [step.take(("root", number), number) for number in range(3)] == [[0], [1], None]
        assert "ends in the middle" in caplog.text

        (tmp_path / name).write_bytes(whole[:30] + b"?" + whole[31:])
        made, step = journal(tmp_path)
        with pytest.raises(CheckpointError, match=rf"{name} in .* or delete it, and the calls .* repeated"):
            await made.load(0, 3)

    async def test_what_cannot_be_kept_names_the_step(self, tmp_path: Path) -> None:
        made, step = journal(tmp_path)
        await made.load(None, 1)
        with pytest.raises(CheckpointError, match="step 'charge': the journal cannot keep"):
            step.append([("root", 1)], [1], [lambda: None], single=True)

    @pytest.mark.parametrize("by_default", [True, False])
    async def test_half_a_frame_on_a_full_disk_is_taken_back(
        self, tmp_path: Path, by_default: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made, step = journal(tmp_path)
        made.add_step("other", "f", waits=False, by_default=by_default)
        other = made.step("other")
        assert other is not None
        await made.load(None, 1)
        step.append([("root", 1)], [1], [1], single=True)

        def write(file: int, data: memoryview, whole: Any = os.write) -> int:
            if len(data) < 40:
                raise OSError(errno.ENOSPC, "No space left on device")
            return int(whole(file, data[:40]))

        with monkeypatch.context() as full:
            full.setattr(os, "write", write)
            with nullcontext() if by_default else pytest.raises(CheckpointError, match="No space left"):
                other.append([("root", 2)], [2], [2], single=True)
        step.append([("root", 3)], [3], [3], single=True)
        await made.close()

        later, step = journal(tmp_path)
        await later.load(0, 2)
        assert [step.take(("root", number), number) for number in (1, 2, 3)] == [[1], None, [3]]

    async def test_results_that_cannot_be_read_are_an_error_only_where_a_journal_was_asked_for(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "calls-00000001-00000001").write_bytes(frame(b'{"$error": ["gone:Away", [], {}, null]}'))
        asked, _ = journal(tmp_path)
        with pytest.raises(CheckpointError, match="cannot be read") as told:
            await asked.load(1, 2)
        assert not isinstance(told.value.__cause__, CheckpointError)  # but why it cannot

        made = Journal(FolderFiles(tmp_path), codec("json"), None, never)
        made.add_step("charge", "f", waits=False, by_default=True)
        await made.load(1, 3)
        assert "calls are made again" in caplog.text

    async def test_jobs_of_several_stores_may_share_a_directory(self, tmp_path: Path) -> None:
        jobs = {store: journal(tmp_path) for store in ("one", "two")}
        for store, (made, step) in jobs.items():
            await made.load(None, 1, store)
            made.rotate(1)
            step.append([("root", 1)], [1], [store], single=True)
        await jobs["one"][0].forget(9)
        assert files(tmp_path) == ["two-calls-00000001-00000001"]
        for made, _ in jobs.values():
            await made.close()

        for store, known in (("one", {}), ("two", {("root", 1): (1, ["two"])})):
            made, step = journal(tmp_path)
            await made.load(1, 2, store)
            assert dict(step.known) == known
            await made.close()

    @pytest.mark.parametrize("harm", ["a bit", "a folder in its place", "no folder"])
    async def test_one_that_nobody_asked_for_never_keeps_a_job_from_starting(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
    ) -> None:
        folder = tmp_path / "journal"
        asked, step = journal(folder)
        await asked.load(None, 1)
        for checkpoint in (1, 2):
            asked.rotate(checkpoint)
            for number in range(3):
                step.append([("root", checkpoint, number)], [number], [number], single=True)
        await asked.close()
        place = folder / files(folder)[0]
        data = bytearray(place.read_bytes())
        middle = data.index(frame(b"")[:4], 1)
        data[middle + 20] ^= 1
        if harm == "a bit":
            place.write_bytes(data)
        elif harm == "a folder in its place":
            place.unlink()
            place.mkdir()
        else:
            shutil.rmtree(folder)
            folder.touch()

        asked, _ = journal(folder)
        with pytest.raises(CheckpointError, match=re.escape(str(folder))):
            await asked.load(1, 2)
        made = Journal(FolderFiles(folder), codec("json"), None, never)
        made.add_step("charge", "f", waits=False, by_default=True)
        await made.load(1, 3)
        assert "as no step has asked for it, its calls are made again" in caplog.text
        found = made.step("charge")
        assert found is not None
        assert len(found.known) == {"a bit": 4, "a folder in its place": 3, "no folder": 0}[harm]

    async def test_what_is_safe_is_told_when_the_disk_has_it(self, tmp_path: Path) -> None:
        made, told = await three_to_be_told_of(tmp_path)
        assert told == []
        if made._syncing is not None:
            await made._syncing
        assert told == [0, 1, 2]
        await made.close()

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no eager tasks")
    async def test_what_is_safe_at_once_is_told_also_if_tasks_are_eager(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The task that waits was noted as under way after it had ended, and no other was begun."""
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined]
        monkeypatch.setattr(FolderFiles, "sync", AsyncMock())
        made, told = await three_to_be_told_of(tmp_path)
        assert told == [0, 1, 2]
        await made.close()


def test_a_place_is_beside_the_store_or_named(tmp_path: Path) -> None:
    beside: list[Any] = [DirectoryStore(tmp_path / "state"), SqliteStore(tmp_path / "state.db")]
    assert [str(Checkpoints(store=store).journal_files()) for store in beside] == [
        str(tmp_path / "state" / "*"),
        str(tmp_path / "state.db-*"),
    ]
    with pytest.raises(PipelineError, match=r"no place for a journal .* Checkpoints\(journal='directory'\)"):
        Checkpoints(store=MemoryStore()).journal_files()
    assert str(Checkpoints(store=MemoryStore(), journal=tmp_path).journal_files()) == str(tmp_path / "*")
    wrong: Any
    for wrong in (3, ""):
        with pytest.raises(PipelineError, match="journal"):
            Checkpoints(store=MemoryStore(), journal=wrong)


def test_functions_are_told_apart_by_their_code() -> None:
    def made(text: str) -> Any:
        space: dict[str, Any] = {"__name__": "m"}
        exec(f"async def f(x):\n    return {text}", space)
        return space["f"]

    same = [fingerprint(made("x in {'a', 'b'}")) for _ in range(2)]
    others = [
        fingerprint(made(text)) for text in ("x + 1", "x + 2", "g(x)", "h(x)", "[lambda: 1]", "[lambda: 2]")
    ]
    assert len(set(same)) == 1
    assert len({*same, *others}) == 7

    class Logged:
        def __init__(self, function: Any) -> None:
            update_wrapper(self, function)

        async def __call__(self, value: Any) -> Any:
            return await self.__wrapped__(value)  # type: ignore[attr-defined]

    one, other = made("x + 1"), made("x + 2")
    for standing_for in (one, other, partial(one)):
        assert fingerprint(Logged(standing_for)) == fingerprint(standing_for)


def test_functions_are_told_apart_by_what_they_were_given() -> None:
    def made(value: Any) -> Any:
        async def call(element: Any, model: Any = value, *, prompt: Any = None) -> Any:
            return element

        return call

    async def ask(model: Any, element: Any) -> Any:
        return element

    for bind in (made, lambda value: partial(ask, value)):
        prints = [fingerprint(bind(value)) for value in (1, 2, "1", None, object(), object())]
        assert len(set(prints)) == 5
        assert prints[4] == prints[5]  # of which another process knows the class


def test_what_does_what_it_was_given_is_told_apart_by_that() -> None:
    def given(number: int) -> Any:
        space: dict[str, Any] = {"__name__": "m"}
        exec(f"def f(*x):\n    return {number}", space)
        return space["f"]

    def known(of: Any) -> int:
        return len({fingerprint(of(0)), fingerprint(of(1)), fingerprint(of(1))})

    assert known(lambda number: in_threads(given(number))) == 2
    assert known(lambda number: in_threads([abs, ascii][number])) == 2
    assert known(lambda number: in_threads([str.upper, str.lower][number])) == 2
    assert known(lambda number: retry(in_threads(given(number)))) == 2
    assert known(lambda number: HttpLookup(f"http://api/{number}/{{}}")) == 2
    assert known(lambda number: HttpLookup(given(number))) == 2
    assert known(lambda number: HttpLookup("http://api/{}", merge=given(number))) == 2
    assert known(lambda number: HttpLookup("http://api/{}", method="PUT", json=given(number))) == 2
    assert known(lambda number: HttpLookup("http://api/{}", method="PUT", json=itemgetter(number))) == 2
    assert known(lambda number: HttpLookup(attrgetter(f"url_{number}"))) == 2
    assert known(lambda number: HttpLookup("http://api/{}", method=["GET", "PUT"][number])) == 2
    assert known(lambda number: HttpLookup("http://api/{}", headers=given(number))) == 2
    assert known(lambda number: HttpLookup("http://api/{}", headers={"Authorization": str(number)})) == 1
    assert known(lambda number: HttpLookup("http://api/{}", concurrency=number + 1)) == 1


def test_a_mock_is_asked_for_nothing_that_every_mock_has() -> None:
    class Childless(AsyncMock):
        def _get_child_mock(self, **_: Any) -> Any:
            raise AssertionError("it has another one inside, and so on")

    assert fingerprint(Childless()) == fingerprint(Childless())
    assert fingerprint(AsyncMock()) != fingerprint(Childless())


parts = st.one_of(st.integers(0, 3), st.sampled_from(["root", "way"]))
origins = st.tuples(st.just("root"), st.integers(0, 99)) | st.tuples(
    st.just("root"), st.integers(0, 9), parts
)


@settings(max_examples=40)
@given(
    st.dictionaries(
        origins, st.lists(st.integers() | st.none() | st.lists(st.integers()), max_size=3), min_size=1
    )
)
def test_a_group_of_calls_is_read_as_it_was_written(calls: dict[Any, list[Any]]) -> None:
    are_single = {len(results) for results in calls.values()} == {1}
    for single in (True, False) if are_single else (False,):
        given = [results[0] if single else results for results in calls.values()]
        groups = [
            codec("json").decode(codec("json").encode(group))
            for group in grouped(list(calls), given, single=single)
        ]
        assert {origin: list(results) for group in groups for origin, results in ended_in(group)} == calls
        assert len(groups) == len(set(map(len, calls)))


def test_a_link_in_place_of_a_file_leads_nowhere(tmp_path: Path) -> None:
    (other := tmp_path / "other").write_text("precious")
    (tmp_path / "calls-1").symlink_to(other)
    files = FolderFiles(tmp_path)
    with pytest.raises(OSError, match="symbolic links"):
        files.append("calls-1", b"x")
    files.close()
    assert other.read_text() == "precious"
