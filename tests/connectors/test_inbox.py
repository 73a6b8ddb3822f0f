"""An inbox keeps what it accepted, each id once, until it is told to forget, and for one job at a time."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncstream import CodecError, JobStopped, ManualClock, PipelineError, SourceError
from asyncstream.connectors.durable import DurableSubmissions
from asyncstream.connectors.inbox import Inbox, InboxBroken, InboxFile, Submitted, check_inbox
from asyncstream.connectors.writer import Writer
from asyncstream.lease import Holder, Lease, enter, leave

DAY_MS = 24 * 3_600_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "inbox.sqlite"


@contextmanager
def opened(inbox: Inbox, writer: Writer | None = None) -> Iterator[InboxFile]:
    file = InboxFile(inbox, writer)
    try:
        yield file
    finally:
        file.close()


def accept(inbox: Inbox, file: InboxFile, *values: Any) -> list[bool]:
    """Each is an element, or a pair of an id and an element."""
    pairs = [value if isinstance(value, tuple) else (None, value) for value in values]
    return file.accept([inbox.submitted(value, id) for id, value in pairs])


def forget(file: InboxFile, until: int) -> None:
    while file.forget(until):
        pass


def kept(path: Path) -> list[tuple[int, str | None, bool]]:
    """Of each row its number, its id, and whether it has the element."""
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT number, id, value IS NOT NULL FROM accepted ORDER BY number"
        return [(number, id, bool(there)) for number, id, there in database.execute(query)]


def writer(number: int = 1, place: str = "store", pid: int | None = None, *, until_ms: int = 2**60) -> Writer:
    """A job of this process that runs; with `pid`, one of another process of this machine."""
    holder = Holder.here(0)
    if pid is None:
        enter(holder, lambda: True)
    else:
        holder = Holder(holder.host, pid, holder.started, holder.realm, holder.token, 0)
    return Writer(Lease(number, place, holder, until_ms), 3, "refuse")


# ---------------------------------------------------------------------- accepting


def test_elements_come_back_in_the_order_of_their_numbers(path: Path) -> None:
    inbox = Inbox(path)
    with opened(inbox) as file:
        assert accept(inbox, file, {"a": 1}, b"two") == [True, True]
        assert accept(inbox, file, (None, (3,))) == [True]
    with opened(inbox) as file:
        assert file.state.newest == 3
        assert file.rows(0, 3, 2) == [(1, {"a": 1}), (2, b"two")]
        assert file.rows(2, 3, 2) == [(3, (3,))]


def test_an_id_is_accepted_once_in_a_group_in_a_process_and_in_the_next(path: Path) -> None:
    inbox = Inbox(path)
    with opened(inbox) as file:
        assert accept(inbox, file, ("a", 1), ("a", 2), ("b", 3)) == [True, False, True]
        assert accept(inbox, file, ("b", 4), 5, 5) == [False, True, True]
    with opened(inbox) as file:
        assert accept(inbox, file, ("a", 6), ("c", 7)) == [False, True]
        assert file.rows(0, 5, 9) == [(1, 1), (2, 3), (3, 5), (4, 5), (5, 7)]


@pytest.mark.parametrize("id", [None, "a"])
@pytest.mark.parametrize("column", ["value", "id"])
def test_an_element_of_which_a_bit_has_changed_is_refused(path: Path, id: str | None, column: str) -> None:
    inbox = Inbox(path)
    with opened(inbox) as file:
        accept(inbox, file, (id, 120), (id and "b", 3))
    with closing(sqlite3.connect(path)) as database, database:
        flipped = "CAST('130' AS BLOB)" if column == "value" else "'c'"
        database.execute(f"UPDATE accepted SET {column} = {flipped} WHERE number = 1")
    with opened(inbox) as file:
        with pytest.raises(InboxBroken, match="bytes of element 1 are not those that were accepted"):
            file.rows(0, 2, 9)
        assert file.rows(1, 2, 9) == [(2, 3)]


class Reference(StrEnum):
    FIRST = "a"


class Packed(bytes):
    """What some codecs give."""


class Giving:
    """A codec that gives what it is told to."""

    name = "giving"

    def __init__(self, kind: Callable[[bytes], Any]) -> None:
        self.kind = kind

    def encode(self, value: Any) -> bytes:
        given: bytes = self.kind(b"%d" % value)
        return given

    def decode(self, data: bytes) -> Any:
        return int(data)


def test_ids_and_bytes_of_other_classes_come_back_for_what_they_are(path: Path) -> None:
    inbox = Inbox(path, codec=Giving(Packed))
    with opened(inbox) as file:
        assert accept(inbox, file, (Reference.FIRST, 1), ("b", 2)) == [True, True]
        assert accept(inbox, file, ("a", 1), (Reference.FIRST, 1)) == [False, False]
    with opened(inbox) as file:
        assert file.rows(0, 2, 9) == [(1, 1), (2, 2)]


def test_what_a_codec_gives_that_is_not_bytes_is_refused(path: Path) -> None:
    with pytest.raises(CodecError, match="codec 'giving' gave a str for a value, and not bytes"):
        Inbox(path, codec=Giving(str)).submitted(1, "a")


def test_what_another_codec_wrote_is_refused_before_anything_is_accepted(path: Path) -> None:
    inbox, other = Inbox(path), Inbox(path, codec="pickle")
    with opened(other) as file:
        assert file.state.newest == 0
    with opened(inbox) as file:  # for there was nothing in it
        accept(inbox, file, {"a": 1})
        position = {"inbox": file.state.identity, "read": 0}
    told = r"holds elements that codec='json' wrote, and is now read with 'pickle': leave the codec"
    with pytest.raises(SourceError, match=told):
        InboxFile(other, None)
    with pytest.raises(SourceError, match=told):
        check_inbox(other, position, None)
    with opened(inbox) as file:
        assert file.rows(0, 1, 9) == [(1, {"a": 1})]
        while file.forget(1):
            pass
    with opened(other) as file:
        accept(other, file, {2})
        assert file.rows(1, 2, 9) == [(2, {2})]


def test_a_group_that_fails_leaves_nothing_and_the_next_goes_on(path: Path) -> None:
    inbox = Inbox(path)
    with opened(inbox) as file:
        with pytest.raises(InboxBroken, match="cannot write to"):
            file.accept([inbox.submitted(1, "a"), Submitted(b"", object())])  # type: ignore[arg-type]
        assert accept(inbox, file, ("a", 2)) == [True]
        assert file.rows(0, 1, 9) == [(1, 2)]


@pytest.mark.parametrize("pragma", ["max_page_count"])
def test_a_full_disk_refuses_elements_and_is_no_end(path: Path, pragma: str) -> None:
    inbox = Inbox(path)
    with opened(inbox) as file:
        pages = file._database.execute("PRAGMA page_count").fetchone()[0]
        file._database.execute(f"PRAGMA {pragma}={pages}")
        with pytest.raises(SourceError, match="full") as caught:
            accept(inbox, file, ("big", "x" * 100_000))
        assert not isinstance(caught.value, InboxBroken)
        file._database.execute(f"PRAGMA {pragma}={10 * pages}")
        assert accept(inbox, file, ("big", "x")) == [True]


@pytest.mark.parametrize("replaced", [False, True])
def test_what_goes_into_a_file_that_nobody_will_find_is_not_accepted(path: Path, replaced: bool) -> None:
    inbox = Inbox(path)
    with opened(inbox) as file:
        accept(inbox, file, 1)
        path.rename(path.with_suffix(".1"))
        if replaced:
            path.write_bytes(b"")
        with pytest.raises(InboxBroken, match="moved, deleted or replaced"):
            accept(inbox, file, 2)


def test_what_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 100)
    with pytest.raises(SourceError, match="cannot read"):
        InboxFile(Inbox(path), None)


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": ""},
        {"path": 5},
        {"path": "x", "remember": 0},
        {"path": "x", "remember": "1d"},
        {"path": "x", "codec": "yaml"},
        {"path": "x", "codec": "pickle", "types": [int]},
        {"path": "x", "clock": 5},
    ],
)
def test_wrong_arguments_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(PipelineError, match="expected"):
        Inbox(**wrong)


# ---------------------------------------------------------------------- forgetting


def test_what_a_checkpoint_covers_is_forgotten_and_its_id_is_not(path: Path) -> None:
    inbox = Inbox(path)
    with opened(inbox) as file:
        accept(inbox, file, ("a", 1), 2, ("c", 3), 4)
        forget(file, 2)
        assert kept(path) == [(1, "a", False), (3, "c", True), (4, None, True)]
        assert accept(inbox, file, ("a", 1)) == [False]
        forget(file, 2)
        forget(file, 4)
        assert kept(path) == [(1, "a", False), (3, "c", False)]
        accept(inbox, file, 5)
    with opened(inbox) as file:
        assert (file.state.forgotten, file.state.newest) == (4, 5)
        assert file.rows(4, 5, 9) == [(5, 5)]


def test_ids_are_forgotten_when_they_are_due_and_not_before_their_element(path: Path) -> None:
    clock = ManualClock(0)
    inbox = Inbox(path, clock=clock)
    with opened(inbox) as file:
        accept(inbox, file, ("a", 1), ("b", 2))
        clock.set_ms(DAY_MS // 2)
        accept(inbox, file, ("c", 3))
        clock.set_ms(DAY_MS)
        forget(file, 1)
        assert [id for _, id, _ in kept(path)] == ["a", "b", "c"]  # a day is not over until it is
        clock.set_ms(DAY_MS + 1)
        forget(file, 1)
        assert [id for _, id, _ in kept(path)] == ["b", "c"]
        forget(file, 3)
        assert [id for _, id, _ in kept(path)] == ["c"]
        assert accept(inbox, file, ("a", 1), ("c", 3)) == [True, False]
        clock.set_ms(3 * DAY_MS)
        forget(file, 4)
        assert kept(path) == []


def test_ids_are_forgotten_that_came_while_the_clock_was_ahead(path: Path) -> None:
    clock = ManualClock(400 * DAY_MS)
    inbox = Inbox(path, clock=clock)
    with opened(inbox) as file:
        accept(inbox, file, ("a", 1))
    clock = ManualClock(DAY_MS)  # it was put right
    inbox = Inbox(path, clock=clock)
    with opened(inbox) as file:
        accept(inbox, file, ("b", 2))
        forget(file, 2)
        clock.set_ms(2 * DAY_MS)
        forget(file, 2)
        assert accept(inbox, file, ("a", 1), ("b", 2)) == [False, False]
        clock.set_ms(2 * DAY_MS + 1)
        forget(file, 2)
        assert kept(path) == []


def test_much_is_forgotten_in_parts_between_which_others_may_write(path: Path) -> None:
    clock = ManualClock(0)
    inbox = Inbox(path, clock=clock)
    with opened(inbox) as file:
        accept(inbox, file, *((f"id {number}", number) for number in range(1000)))
        clock.set_ms(2 * DAY_MS)
        parts = 1
        while file.forget(990):
            parts += 1
            accept(inbox, file, 0)
        assert parts > 3
        assert [number for number, _, _ in kept(path)] == list(range(991, 1000 + parts))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.lists(st.one_of(st.none(), st.sampled_from("abcdef")), min_size=1, max_size=4),
            st.integers(0, 20),
            st.just("reopen"),
            st.just("later"),
        ),
        max_size=15,
    )
)
def test_inbox_is_as_a_list_and_a_dict(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[str | None] | int | str]
) -> None:
    clock = ManualClock(0)
    inbox = Inbox(tmp_path_factory.mktemp("model") / "inbox.sqlite", clock=clock, remember=1)
    file = InboxFile(inbox, None)
    values: list[int] = []
    times: dict[str, tuple[int, int]] = {}
    forgotten = 0
    try:
        for step in steps:
            if step == "reopen":
                file.close()
                file = InboxFile(inbox, None)
            elif step == "later":
                clock.set_ms(clock.now_ms() + 700)
            elif isinstance(step, int):
                forgotten = max(forgotten, min(step, len(values)))
                forget(file, forgotten)
                times = {
                    id: (number, at)
                    for id, (number, at) in times.items()
                    if number > forgotten or at >= clock.now_ms() - 1000
                }
            else:
                expected = []
                for id in step:
                    expected.append(id not in times)
                    if id is None or id not in times:
                        values.append(len(values))
                        if id is not None:
                            times[id] = (len(values), clock.now_ms())
                news = file.accept([inbox.submitted(0, id) for id in step])
                assert news == expected
            assert (file.state.newest, file.state.forgotten) == (len(values), forgotten)
        if len(values) > forgotten:
            numbers = [number for number, _ in file.rows(forgotten, len(values), 1000)]
            assert numbers == list(range(forgotten + 1, len(values) + 1))
    finally:
        file.close()


# ---------------------------------------------------------------------- whose it is


def test_one_that_was_followed_accepts_and_forgets_nothing_more(path: Path) -> None:
    inbox = Inbox(path)
    first = InboxFile(inbox, writer(1, until_ms=0))
    accept(inbox, first, ("a", 1))
    with opened(inbox, writer(2)) as second:
        with pytest.raises(InboxBroken, match=r"was taken over by process \d+ .*accepts nothing more"):
            accept(inbox, first, ("b", 2))
        with pytest.raises(InboxBroken, match="taken over"):
            first.forget(1)
        assert accept(inbox, second, ("b", 3)) == [True]
        first.close()  # and that takes nothing from the other
        assert accept(inbox, second, ("c", 4)) == [True]
        assert second.rows(0, 3, 9) == [(1, 1), (2, 3), (3, 4)]


def test_one_that_goes_on_shows_it_to_a_job_on_a_copy_of_its_store(path: Path) -> None:
    inbox, now = Inbox(path), writer(1)
    past = replace(now, lease=now.lease.renewed(0))
    with opened(inbox, past) as first:
        accept(inbox, first, 1)
        check_inbox(inbox, {"inbox": first.state.identity, "read": 1}, writer(2))
        first.forget(1, now)
        with pytest.raises(SourceError, match="is a copy"):
            InboxFile(inbox, writer(2))
        assert accept(inbox, first, 2) == [True]


def test_one_with_an_older_lease_does_not_come_back(path: Path) -> None:
    inbox = Inbox(path)
    with opened(inbox, writer(2)) as second:
        with pytest.raises(InboxBroken, match="taken over"):
            InboxFile(inbox, writer(1))
        assert accept(inbox, second, 1) == [True]


def test_a_job_of_another_store_waits_for_the_end_of_this_one(path: Path) -> None:
    inbox = Inbox(path)
    here = writer(1, "here")
    with opened(inbox, here), pytest.raises(SourceError, match="keeps its checkpoints elsewhere"):
        InboxFile(inbox, writer(7, "elsewhere"))
    with opened(inbox, writer(7, "elsewhere")):
        pass
    crashed = InboxFile(inbox, here)
    leave(here.lease.holder)
    with opened(inbox, writer(7, "elsewhere")) as file:
        assert accept(inbox, file, 1) == [True]
    crashed.close()


def test_two_steps_of_a_job_do_not_share_an_inbox(path: Path) -> None:
    inbox, job = Inbox(path), writer(1)
    with opened(inbox, job), pytest.raises(SourceError, match="another step of this job"):
        InboxFile(Inbox(path), job)
    with opened(inbox, job):
        pass


# ---------------------------------------------------------------------- damage


def lose_log(log: Path) -> None:
    log.unlink()


def cut_log(log: Path) -> None:
    log.write_bytes(log.read_bytes()[:-5000])


def spoil_log(log: Path) -> None:
    data = bytearray(log.read_bytes())
    data[-5000] ^= 1
    log.write_bytes(data)


def test_a_link_in_place_of_the_number_leads_nowhere(path: Path, tmp_path: Path) -> None:
    (other := tmp_path / "other").write_text("precious")
    path.with_name(f"{path.name}-newest").symlink_to(other)
    inbox = Inbox(path)
    with opened(inbox) as file:
        accept(inbox, file, 1, 2)
    assert other.read_text() == "precious"


@pytest.mark.parametrize("damage", [lose_log, cut_log, spoil_log])
def test_what_was_accepted_and_is_lost_with_the_log_is_told(
    path: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    inbox = Inbox(path)
    with opened(inbox) as file:
        accept(inbox, file, 1, 2)
    assert [found.name for found in tmp_path.iterdir()] == [path.name]
    killed = tmp_path / "killed"
    with opened(inbox) as file:
        there = {"inbox": file.state.identity, "read": 2}
        accept(inbox, file, 3)
        accept(inbox, file, 4, 5)
        killed.mkdir()
        for name in tmp_path.glob(f"{path.name}*"):
            shutil.copy(name, killed)
    inbox, log = Inbox(killed / path.name), killed / f"{path.name}-wal"
    whole = log.read_bytes()
    damage(log)
    with pytest.raises(SourceError, match=r"lost elements that were accepted, \d to 5: its log, .*-wal"):
        check_inbox(inbox, there, None)
    with pytest.raises(SourceError, match=r"or delete .*-newest, to go on without these"):
        InboxFile(inbox, None)
    log.write_bytes(whole)
    shutil.copy(killed / f"{path.name}-newest", killed / "kept")
    with opened(inbox) as file:
        assert file.state.newest == 5
    damage_of_it = bytearray((killed / "kept").read_bytes())
    damage_of_it[3] ^= 1
    (killed / f"{path.name}-newest").write_bytes(damage_of_it)  # more than there ever were
    with opened(inbox) as file:
        assert file.state.newest == 5


# ---------------------------------------------------------------------- positions


def position(path: Path) -> dict[str, Any]:
    with opened(Inbox(path)) as file:
        return {"inbox": file.state.identity, "read": file.state.newest}


def test_a_position_is_refused_by_another_inbox_an_older_one_and_one_that_has_forgotten(
    path: Path, tmp_path: Path
) -> None:
    inbox = Inbox(path)
    with opened(inbox) as file:
        accept(inbox, file, 1, 2, 3)
    there = position(path)
    check_inbox(inbox, there, None)
    with pytest.raises(SourceError, match="it is not there"):
        check_inbox(Inbox(tmp_path / "gone.sqlite"), there, None)
    assert not (tmp_path / "gone.sqlite").exists()
    with opened(Inbox(tmp_path / "other.sqlite")):
        pass
    with pytest.raises(SourceError, match="it is another one"):
        check_inbox(Inbox(tmp_path / "other.sqlite"), there, None)
    with pytest.raises(SourceError, match="the last one that it knows of is number 3"):
        check_inbox(inbox, {**there, "read": 4}, None)
    with opened(inbox) as file:
        forget(file, 2)
    check_inbox(inbox, {**there, "read": 2}, None)
    with pytest.raises(SourceError, match=r"up to number 2 are forgotten\. Put the inbox back"):
        check_inbox(inbox, {**there, "read": 1}, None)


def test_looking_changes_nothing(path: Path) -> None:
    inbox = Inbox(path)
    with opened(inbox, writer(1)) as file:
        accept(inbox, file, 1)
    there, before = position(path), path.read_bytes()
    check_inbox(inbox, there, writer(2))
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_lost_rows_are_seen(path: Path) -> None:
    inbox = Inbox(path)
    with opened(inbox) as file:
        accept(inbox, file, 1, 2, 3)
        file._database.execute("DELETE FROM accepted WHERE number = 2")
        with pytest.raises(InboxBroken, match="has lost elements behind number 0"):
            file.rows(0, 3, 9)


async def test_an_opening_that_is_cancelled_leaves_no_inbox_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    set_up, close = InboxFile._set_up, InboxFile.close

    def slowly(file: InboxFile) -> None:
        begun.set()
        assert go_on.wait(60)
        set_up(file)

    def close_it(file: InboxFile) -> None:
        close(file)
        closed.set()

    monkeypatch.setattr(InboxFile, "_set_up", slowly)
    monkeypatch.setattr(InboxFile, "close", close_it)
    opening = asyncio.ensure_future(DurableSubmissions[Any](Inbox(tmp_path / "inbox.sqlite")).open())
    assert await asyncio.to_thread(begun.wait, 60)
    opening.cancel()
    await asyncio.wait({opening})
    go_on.set()
    assert await asyncio.to_thread(closed.wait, 60)


async def test_who_waits_for_a_disk_that_a_job_waits_for_no_longer_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Inbox(tmp_path / "inbox.sqlite")
    begun, goes_on = threading.Event(), threading.Event()
    accept = InboxFile.accept

    def slowly(self: InboxFile, elements: Any) -> list[bool]:
        begun.set()
        assert goes_on.wait(60)
        return accept(self, elements)

    monkeypatch.setattr(InboxFile, "accept", slowly)
    source = DurableSubmissions[int](inbox)
    await source.open()
    first = asyncio.ensure_future(source.submit(1))
    assert await asyncio.to_thread(begun.wait, 60)
    second = asyncio.ensure_future(source.submit(2))
    await asyncio.sleep(0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await source.close()
    with pytest.raises(JobStopped, match="before its inbox had the element"):
        await second
    goes_on.set()
    assert await first
    monkeypatch.undo()
    again = DurableSubmissions[int](inbox)
    await again.open()
    batch = await again.read()
    assert batch is not None
    assert batch.values == [1]
    await again.close()
