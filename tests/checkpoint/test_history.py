"""Which checkpoint to go on from, and which ones to let go."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import pytest

from asyncstream import MemoryStore
from asyncstream.checkpoint import CheckpointInfo, History, StepInfo
from asyncstream.checkpoint.format import pack, unpack
from asyncstream.checkpoint.parts import INLINE_BYTES, encode_state, parts_of
from asyncstream.checkpoint.stores import Manifests
from asyncstream.checkpoint.timely import TimelyStore
from asyncstream.codec import JsonCodec, PickleCodec
from asyncstream.errors import CheckpointError, DamagedCheckpoint
from asyncstream.lease import Holder, Lease

pytestmark = pytest.mark.usefixtures("virtual_time")


async def lease_of(store: MemoryStore) -> Lease:
    return await store.acquire(Holder.here(0), 30.0)


async def write(history: History, lease: Lease, number: int, state: Any, *, savepoint: bool = False) -> None:
    encoded = encode_state("step", state, JsonCodec())
    states = {"step": parts_of(encoded, lambda digest: history.name_of(digest, lease.number))}
    steps = {"step": StepInfo("operator", "map")}
    info = CheckpointInfo(number, "p", 0, "json", False, 0, steps, savepoint=savepoint)
    await history.write(lease, pack(info, states))


async def filled(*numbers: int) -> tuple[MemoryStore, History]:
    store = MemoryStore()
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    for number in numbers:
        await write(history, lease, number, number)
    await store.release(lease)
    return store, History(store, JsonCodec())


async def test_newest_is_read() -> None:
    _, history = await filled(1, 2, 10)
    found = await history.newest_whole(history.read)
    assert found is not None
    assert (found[0].id, found[1], history.newest) == (10, {"step": 10}, 10)


async def test_empty_store_has_none() -> None:
    _, history = await filled()
    assert await history.newest_whole(history.read) is None
    assert history.newest == 0


async def test_damaged_newest_leads_to_the_one_before_loudly(caplog: pytest.LogCaptureFixture) -> None:
    store, history = await filled(1, 2, 3)
    store._kept[3] = store._kept[3][:-1]
    with caplog.at_level(logging.WARNING):
        found = await history.newest_whole(history.read)
    assert found is not None
    assert found[0].id == 2
    assert history.newest == 3, "its number is not used again"
    assert "checkpoint 3 is damaged" in caplog.text


async def test_checkpoint_in_the_place_of_another_is_damage(caplog: pytest.LogCaptureFixture) -> None:
    """An old one under the newest number would take sources and sinks back without a word."""
    store, history = await filled(1, 2, 3)
    store._kept[3] = store._kept[1]
    found = await history.newest_whole(history.read)
    assert found is not None
    assert found[0].id == 2
    assert "checkpoint 3 is damaged: in its place is checkpoint 1" in caplog.text


class Together(MemoryStore):
    """Gives many manifests with one answer."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0

    async def read(self, what: int | str) -> bytes:
        self.answers += 1
        return await super().read(what)

    async def manifests(self, numbers: Collection[int]) -> Manifests:
        self.answers += 1
        return {number: self._kept[number] for number in numbers}


async def test_what_many_checkpoints_say_is_asked_for_in_few_questions() -> None:
    store = Together()
    lease = await lease_of(store)
    for number in range(1, 1001):
        await write(History(store, JsonCodec()), lease, number, number, savepoint=True)
    assert list(await History(store, JsonCodec()).infos()) == [*range(1, 1001)]
    timely = TimelyStore(store, 60.0)
    assert await History(timely, JsonCodec()).let_go(lease, 2) == [999, 1000]
    assert store.answers <= 40


class Moving(MemoryStore):
    """A job writes to it: of the checkpoints that are read, `lets_go` have been replaced by the next one."""

    def __init__(self, lets_go: int) -> None:
        super().__init__()
        self.lets_go = lets_go

    async def read(self, what: int | str) -> bytes:
        if self.lets_go and isinstance(what, int):
            self.lets_go -= 1
            info, parts = unpack(self._kept[what])
            self._kept = {what + 1: pack(replace(info, id=what + 1), parts).manifest}
        return await super().read(what)


async def moving(lets_go: int) -> History:
    store = Moving(0)
    await write(History(store, JsonCodec()), await lease_of(store), 1, "state")
    store.lets_go = lets_go
    return History(store, JsonCodec())


async def test_what_a_job_lets_go_meanwhile_is_not_damaged(caplog: pytest.LogCaptureFixture) -> None:
    history = await moving(3)
    found = await history.newest_whole(history.read)
    assert found is not None
    assert found[1] == {"step": "state"}
    assert list(await (await moving(3)).infos()) == [4]
    assert not caplog.text


class LettingGo(MemoryStore):
    """A job lets a checkpoint go as soon as its manifest was read."""

    async def read(self, what: int | str) -> bytes:
        found = await super().read(what)
        self._kept.clear()
        self._parts.clear()
        return found


async def test_number_that_a_job_lets_go_while_it_is_read_is_not_damaged() -> None:
    for look in (History.open, History.parts):
        store = LettingGo()
        history = History(store, JsonCodec())
        await write(history, await lease_of(store), 1, BIG)
        with pytest.raises(CheckpointError, match="checkpoint 1: a job has let it go") as refused:
            await look(history, 1)
        assert not isinstance(refused.value, DamagedCheckpoint)


async def test_what_a_job_lets_go_again_and_again_is_said_to_be_so() -> None:
    for look in (History.infos, lambda history: history.newest_whole(history.read)):
        with pytest.raises(CheckpointError, match="before they are read; have it keep more"):
            await look(await moving(10**6))


async def test_all_damaged_is_an_error_and_not_a_new_beginning() -> None:
    store, history = await filled(1, 2)
    for number in (1, 2):
        store._kept[number] = b""
    with pytest.raises(CheckpointError, match="every checkpoint"):
        await history.newest_whole(history.read)
    with pytest.raises(DamagedCheckpoint, match="checkpoint 2 is damaged"):
        await history.read(2)


async def test_newest_from_the_future_is_refused_and_not_skipped() -> None:
    store, history = await filled(1, 2)
    head, rest = store._kept[2][:22], store._kept[2][54:]
    head = head[:8] + b"\xff\xff" + head[10:]
    store._kept[2] = head + blake2b(head + rest, digest_size=32).digest() + rest
    with pytest.raises(CheckpointError, match="newer version"):
        await history.newest_whole(history.read)


async def test_another_codec_is_refused_by_name_and_will_do_to_be_looked_at() -> None:
    store, _ = await filled(1, 2)
    history = History(store, PickleCodec())
    with pytest.raises(CheckpointError, match=r"checkpoint 2: .*codec='json'.*'pickle'"):
        await history.newest_whole(history.parts)
    info, states = await history.open(2, to_decode=False)
    assert (info.id, states) == (2, {"step": [((), b"2")]})


async def test_old_ones_are_let_go() -> None:
    store, history = await filled(1, 2, 3, 4)
    lease = await lease_of(store)
    await history.let_go(lease, 2)
    assert await store.numbers() == [3, 4]
    await history.let_go(lease, 5)
    assert await store.numbers() == [3, 4]


# ---------------------------------------------------------------------- parts

BIG = "x" * INLINE_BYTES


class Counting(MemoryStore):
    """Notes what is put."""

    def __init__(self) -> None:
        super().__init__()
        self.put_names: list[str] = []

    async def put(self, lease: Lease, part: str, data: bytes) -> None:
        self.put_names.append(part)
        await super().put(lease, part, data)


@pytest.mark.parametrize(("state", "left", "read"), [(0, False, 0), (BIG, False, 1), (BIG, True, 100)])
async def test_no_more_is_read_of_many_than_says_which_parts_may_go(
    state: Any, left: bool, read: int
) -> None:
    """Without parts none; until they are all named; and all before one is deleted."""

    class Read(Counting):
        count = 0

        async def read(self, what: int | str) -> bytes:
            self.count += isinstance(what, int)
            return await super().read(what)

    store = Read()
    lease = await lease_of(store)
    history = History(store, JsonCodec())
    for number in range(1, 101):
        await write(history, lease, number, state)
    if left:
        await store.put(lease, "orphan-1", b"left behind")
    history = History(store, JsonCodec())
    await history.clean(lease)
    assert store.count == read
    assert len(await store.parts()) == (state is BIG)
    assert await history.let_go(lease, 100) == list(range(1, 101))
    assert store.count == read
    await history.let_go(lease, 99)
    assert await store.numbers() == list(range(2, 101))
    assert store.count == 100


class Walked(dict[int, CheckpointInfo | None]):
    """Counts in `count` how often it is gone through."""

    count = 0

    def items(self) -> Any:
        self.count += 1
        return super().items()


async def test_where_nothing_is_to_go_what_is_kept_is_gone_through_once() -> None:
    store = MemoryStore()
    lease, history = await lease_of(store), History(store, JsonCodec())
    for number in range(1, 51):
        await write(history, lease, number, number)
    history._infos = walked = Walked(history._infos)
    assert await history.let_go(lease, 50) == list(range(1, 51))
    assert walked.count == 1


async def test_of_damaged_ones_it_is_said_once_that_they_stay(caplog: pytest.LogCaptureFixture) -> None:
    store, history = await filled(1, 2, 3, 4)
    store._kept[1] = store._kept[2] = b"damaged"
    lease = await lease_of(store)
    await history.clean(lease)
    assert await history.let_go(lease, 4) == [1, 2, 3, 4], "nothing is to go, so nothing was read"
    for number in (5, 6):
        await write(history, lease, number, number)
        assert await history.let_go(lease, 2) == [number - 1, number]
    assert await store.numbers() == [1, 2, 5, 6]
    assert caplog.text.count("whether they are savepoints") == 1
    assert caplog.text.rstrip().endswith("delete`: 1, 2")


async def test_part_that_has_not_changed_is_written_once_and_shared_also_by_the_next_run() -> None:
    store = Counting()
    for run in range(2):
        history = History(store, JsonCodec())
        lease = await lease_of(store)
        await history.newest_whole(history.read)
        await history.clean(lease)
        for number in (1, 2, 3):
            await write(history, lease, 10 * run + number, BIG)
        await store.release(lease)
    assert len(store.put_names) == 1
    assert (await history.read(13))[1] == (await history.read(1))[1] == {"step": BIG}


async def test_part_is_deleted_with_the_last_manifest_that_names_it() -> None:
    store = Counting()
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    for number, state in enumerate((BIG, BIG, "b" + BIG, "c" + BIG), 1):
        await write(history, lease, number, state)
    assert await store.parts() == store.put_names
    await history.let_go(lease, 3)
    assert await store.parts() == store.put_names
    await history.let_go(lease, 2)
    assert await store.parts() == store.put_names[1:]
    await write(history, lease, 5, BIG)
    assert len(store.put_names) == 4, "it was gone, so it is written again"
    assert (await history.read(5))[1] == {"step": BIG}


@pytest.mark.parametrize("later", [False, True])
async def test_savepoint_stays_with_its_parts_until_it_is_deleted(later: bool) -> None:
    store = Counting()
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    for number in range(1, 7):
        await write(history, lease, number, f"{number}{BIG}", savepoint=number == 2)
        if later:  # and by a job that has not written it
            history = History(store, JsonCodec())
            await history.clean(lease)
        await history.let_go(lease, 2)
    assert await store.numbers() == [2, 5, 6]
    assert len(await store.parts()) == 3
    assert (await history.read(2))[1] == {"step": f"2{BIG}"}
    await history.clean(lease, [2])
    assert await store.numbers() == [5, 6]
    assert len(await store.parts()) == 2


async def test_who_has_looked_at_nothing_lets_no_savepoint_go() -> None:
    store = MemoryStore()
    lease = await lease_of(store)
    for number in (1, 2, 3):
        await write(History(store, JsonCodec()), lease, number, BIG, savepoint=number == 1)
    assert await History(store, JsonCodec()).let_go(lease, 1) == [3]
    assert await store.numbers() == [1, 3]


@pytest.mark.parametrize("later", [False, True])
async def test_damaged_savepoint_stays_with_what_it_needs_until_it_is_deleted(
    later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = Counting()
    lease = await lease_of(store)
    await write(History(store, JsonCodec()), lease, 1, f"1{BIG}", savepoint=True)
    whole, store._kept[1] = store._kept[1], b"damaged"
    await store.release(lease)
    lease = await lease_of(store)
    history = History(store, JsonCodec())
    await history.clean(lease)
    assert "whether they are savepoints" in caplog.text
    assert caplog.text.rstrip().endswith("delete`: 1")
    for number in range(2, 8):
        await write(history, lease, number, f"{number}{BIG}")
        if later:
            history = History(store, JsonCodec())
            await history.clean(lease)
        assert await history.let_go(lease, 2) == list(range(max(number - 1, 2), number + 1))
    assert await store.numbers() == [1, 6, 7]
    if not later:
        assert len(await store.parts()) == 3, "what was written since is let go"
    store._kept[1] = whole
    assert (await history.read(1))[1] == {"step": f"1{BIG}"}
    store._kept[1] = b"damaged"
    await history.clean(lease, [1])
    assert await store.numbers() == [6, 7]
    assert len(await store.parts()) == 2


async def test_part_that_is_put_ahead_stays_until_no_manifest_is_to_name_it() -> None:
    store = Counting()
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    name = history.name_of(blake2b(BIG.encode(), digest_size=20).hexdigest(), lease.number)
    await history.put_ahead(lease, name, BIG.encode())
    for number in (1, 2):
        await write(history, lease, number, number)
        await history.let_go(lease, 1)
    assert await store.parts() == [name]
    history.keep_ahead([])
    await write(history, lease, 3, 3)
    await history.let_go(lease, 1)
    assert await store.parts() == []


async def test_one_of_this_very_job_that_is_damaged_keeps_what_it_may_need() -> None:
    class Torn(Counting):
        """Says that it could not keep the second one, and has kept it; by then that is damaged."""

        async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
            await super().commit(lease, number, manifest)
            if number == 2:
                self.whole, self._kept[2] = manifest, b"damaged"
                raise OSError("no answer")

    store = Torn()
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    await write(history, lease, 1, f"1{BIG}")
    with pytest.raises(OSError, match="no answer"):
        await write(history, lease, 2, f"2{BIG}")
    await write(history, lease, 3, f"3{BIG}")
    await history.let_go(lease, 1)
    assert await store.numbers() == [2, 3]
    store._kept[2] = store.whole
    assert (await history.read(2))[1] == {"step": f"2{BIG}"}


async def test_newest_that_was_lost_is_no_reason_to_keep_parts_once_there_is_another() -> None:
    store = Counting()
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    await write(history, lease, 1, f"1{BIG}")
    history._infos[2] = None  # as a store tells of one that it has lost
    await write(history, lease, 3, f"3{BIG}")
    await history.let_go(lease, 1)
    assert await store.numbers() == [3]
    assert len(await store.parts()) == 1


async def test_part_whose_manifest_was_not_committed_is_written_anew() -> None:
    store = Counting()
    history = History(store, JsonCodec())
    lease = await lease_of(store)

    async def fail(lease: Lease, number: int, manifest: bytes) -> None:
        raise OSError("not brought to the disk")

    commit, store.commit = store.commit, fail  # type: ignore[method-assign]
    with pytest.raises(OSError, match="not brought"):
        await write(history, lease, 1, BIG)
    store.commit = commit  # type: ignore[method-assign]
    await write(history, lease, 2, BIG)
    assert len(store.put_names) == 2


@pytest.mark.parametrize("damage", ["lost", "changed"])
async def test_checkpoint_with_a_damaged_part_leads_to_the_one_before(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Counting()
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    await write(history, lease, 1, BIG)
    await write(history, lease, 2, "b" + BIG)
    name = store.put_names[-1]
    if damage == "lost":
        del store._parts[name]
    else:
        store._parts[name] = store._parts[name][:-1] + b"?"
    history = History(store, JsonCodec())
    found = await history.newest_whole(history.read)
    assert found is not None
    assert found[0].id == 1
    assert "checkpoint 2 is damaged" in caplog.text


async def test_orphans_are_cleaned_at_the_start_but_not_what_a_damaged_manifest_may_need() -> None:
    store = Counting()
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    await write(history, lease, 1, BIG)
    await write(history, lease, 2, "b" + BIG)
    await store.put(lease, "orphan-1", b"left behind")
    whole, store._kept[2] = store._kept[2], b"damaged"
    await store.release(lease)
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    await history.clean(lease)
    assert len(await store.parts()) == 3, "the damaged manifest could be mended"
    store._kept[2] = whole
    history = History(store, JsonCodec())
    await history.clean(lease)
    assert await store.parts() == store.put_names[:2]


async def test_parts_stay_of_a_checkpoint_that_was_committed_though_it_seemed_to_fail() -> None:
    class Deaf(MemoryStore):
        """Loses the answer to a commit."""

        async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
            await super().commit(lease, number, manifest)
            if number == 2:
                raise OSError("connection lost")

    store = Deaf()
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    large = "x" * (INLINE_BYTES + 1)
    await write(history, lease, 1, large)
    with pytest.raises(OSError, match="connection lost"):
        await write(history, lease, 2, large + "2")
    await write(history, lease, 3, large + "3")
    assert await history.let_go(lease, 2) == [2, 3]
    assert (await history.read(2))[1] == {"step": large + "2"}
    assert len(await store.parts()) == 2


async def test_part_that_is_damaged_is_written_anew_though_a_manifest_names_it() -> None:
    """What is read again after going back often makes the very same part."""
    store = MemoryStore()
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    large = "x" * (INLINE_BYTES + 1)
    await write(history, lease, 1, large)
    await write(history, lease, 2, large + "2")
    (part,) = (await history.read(2))[0].stored
    store._parts[part] = store._parts[part][:-1]
    history = History(store, JsonCodec())
    found = await history.newest_whole(history.read)
    assert found is not None
    assert found[0].id == 1
    await store.release(lease)
    lease = await lease_of(store)
    await history.clean(lease)
    await write(history, lease, 3, large + "2")
    found = await history.newest_whole(history.read)
    assert found is not None
    assert (found[0].id, found[1]) == (3, {"step": large + "2"})


async def test_part_whose_put_ahead_failed_is_put_again() -> None:
    class Fails(MemoryStore):
        """Fails once."""

        failed = False

        async def put(self, lease: Lease, part: str, data: bytes) -> None:
            if not self.failed:
                self.failed = True
                raise OSError("disk full")
            await super().put(lease, part, data)

    store = Fails()
    history = History(store, JsonCodec())
    lease = await lease_of(store)
    with pytest.raises(OSError, match="disk full"):
        await history.put_ahead(lease, "name-1", b"data")
    await history.put_ahead(lease, "name-1", b"data")
    assert await store.parts() == ["name-1"]


async def test_list_that_comes_late_costs_nothing_that_was_just_written() -> None:
    class Late(MemoryStore):
        late: tuple[int, ...] = ()

        async def numbers(self) -> list[int]:
            return [number for number in await super().numbers() if number not in self.late]

    store = Late()
    lease, history = await lease_of(store), History(store, JsonCodec())
    for number in range(1, 9):
        await write(history, lease, number, [f"{number} {part}" for part in range(INLINE_BYTES)])
        store.late = (number,)
        assert await history.let_go(lease, 2) == [number - 1, number][-number:]
    store.late = ()
    assert await store.numbers() == [7, 8]
    assert (await History(store, JsonCodec()).read(8))[0].id == 8


async def test_what_could_not_be_read_for_a_moment_is_let_go_all_the_same() -> None:
    class Away(MemoryStore):
        is_away = True

        async def read(self, what: int | str) -> bytes:
            if self.is_away:
                raise CheckpointError("out of reach")
            return await super().read(what)

    store = Away()
    lease = await lease_of(store)
    await write(History(store, JsonCodec()), lease, 1, 1)
    history = History(store, JsonCodec())
    for number in (2, 3):
        await write(history, lease, number, number)
        await history.let_go(lease, 1)
    assert await store.numbers() == [1, 3], "it may be a savepoint"
    store.is_away = False
    await history.let_go(lease, 1)
    assert await store.numbers() == [3]
