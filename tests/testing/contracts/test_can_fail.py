"""The contracts can fail: what loses, doubles or damages something breaks the check that is about it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from unittest.mock import ANY

import pytest

from asyncstream import DirectoryStore, JsonLinesSink, PipelineError, Sink, Source, SourceBatch, SqliteSink
from asyncstream.elements import Timestamps
from asyncstream.lease import Holder, Lease
from asyncstream.testing import Check, ContractBroken, sink_contract, source_contract, store_contract, verify
from asyncstream.testing.contracts.checks import Places, expect_equal

NUMBERS = list(range(20))


async def broken(checks: list[Check], name: str, folder: Path) -> str:
    """What the check of this name complains of."""
    (check,) = [check for check in checks if str(check) == name]
    with pytest.raises(ContractBroken) as caught:
        await check(folder)
    return str(caught.value)


# ------------------------------------------------------------------ sources


class Counting(Source[int]):
    """A source that is right: the mistakes are in what is made of it."""

    def __init__(self) -> None:
        self.at = 0

    async def read(self) -> SourceBatch[int] | None:
        await asyncio.sleep(0)
        if self.at >= len(NUMBERS):
            return None
        self.at += 3
        return SourceBatch(NUMBERS[self.at - 3 : self.at])

    def position(self) -> Any:
        return self.at

    async def seek(self, position: Any) -> None:
        self.at = position


class TakesBeforeItWaits(Counting):
    async def read(self) -> SourceBatch[int] | None:
        if self.at >= len(NUMBERS):
            return None
        self.at += 3
        await asyncio.sleep(0)
        return SourceBatch(NUMBERS[self.at - 3 : self.at])


class PositionIsAhead(Counting):
    def position(self) -> Any:
        return self.at + 1 if self.at else 0


class PositionThatNoCodecKeeps(Counting):
    def position(self) -> Any:
        return lambda: self.at


class UsesOneList(Counting):
    batch: list[int]

    async def read(self) -> SourceBatch[int] | None:
        found = await super().read()
        if found is not None:
            self.batch = getattr(self, "batch", [])
            self.batch[:] = found.values
            found = SourceBatch(self.batch)
        return found


class RunsAhead(Counting):
    async def open(self) -> None:
        self.task = asyncio.create_task(self.run())

    async def run(self) -> None:
        while True:
            await asyncio.sleep(0.001)
            self.at += 1

    async def close(self) -> None:
        self.task.cancel()


class AskingMoves(Counting):
    def position(self) -> Any:
        self.at += 1
        return self.at


class NeverEnds(Counting):
    async def read(self) -> SourceBatch[int] | None:
        return await super().read() or SourceBatch([1])


class Backwards(Counting):
    async def read(self) -> SourceBatch[int] | None:
        found = await super().read()
        return None if found is None else SourceBatch(found.values[::-1])


class OneTimestampShort(Counting):
    async def read(self) -> SourceBatch[int] | None:
        found = await super().read()
        return None if found is None else SourceBatch(found.values, [1])


class ClosesOnlyIfOpen(Counting):
    opened = False

    async def open(self) -> None:
        self.opened = True

    async def close(self) -> None:
        if not self.opened:
            raise OSError("not open")


class ForgetsWhenItEnds(Counting):
    def end(self) -> bool:
        self.at += 3
        return True


class RefusesItsOwnPosition(Counting):
    async def can_seek(self, position: Any) -> None:
        raise OSError("is that mine?")


class ForgetsTooMuch(Counting):
    async def forget(self, position: Any) -> None:
        self.at += 3


class SkipsWhenItEnds(Counting):
    """A job that is drained and started again would not read the rest."""

    def end(self) -> bool:
        self.at = len(NUMBERS)
        return True


class MoreThanAll(Counting):
    def progress(self) -> float | None:
        return 1.5


@pytest.mark.parametrize(
    ("make", "name", "complaint"),
    [
        (ForgetsTooMuch, "what_is_not_forgotten_can_be_gone_back_to", "elements: expected"),
        (MoreThanAll, "a_slow_reader_loses_nothing", "progress() is 1.5"),
        (TakesBeforeItWaits, "a_read_that_is_cancelled_takes_nothing", "elements: expected"),
        (PositionIsAhead, "each_position_leads_to_what_had_not_been_read", "elements: expected"),
        (PositionIsAhead, "crashes_between_any_two_reads_lose_nothing", "position after seek"),
        (PositionThatNoCodecKeeps, "each_position_leads_to_what_had_not_been_read", "function"),
        (UsesOneList, "a_batch_that_was_given_does_not_change", "a batch that was read before"),
        (RunsAhead, "a_slow_reader_loses_nothing", "the position without a reader"),
        (AskingMoves, "asked_for_its_position_it_changes_nothing", "the second answer"),
        (NeverEnds, "every_element_comes_once_and_in_order", "and no end"),
        (OneTimestampShort, "every_element_comes_once_and_in_order", "timestamps"),
        (ClosesOnlyIfOpen, "it_closes_in_whatever_state_it_is", "not open"),
        (ForgetsWhenItEnds, "a_source_that_is_told_to_end_gives_what_it_has_taken", "elements: expected"),
        (SkipsWhenItEnds, "a_source_that_is_told_to_end_gives_what_it_has_taken", "elements: expected"),
        (RefusesItsOwnPosition, "each_position_leads_to_what_had_not_been_read", "is that mine"),
        (RefusesItsOwnPosition, "asked_for_its_position_it_changes_nothing", "is that mine"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_source_that_breaks_a_promise_is_found_out(
    make: Callable[[], Source[int]], name: str, complaint: str, tmp_path: Path
) -> None:
    assert complaint in await broken(source_contract(lambda folder: make(), NUMBERS), name, tmp_path)


@pytest.mark.parametrize(
    ("wanted", "found", "where"),
    [
        (
            list(range(2000)),
            [*range(1500), *range(1501, 2000)],
            "found 1999, from place 1500 on: expected [1500,",
        ),
        (list(range(2000)), list(range(1999)), "from place 1999 on: expected [1999], found []"),
        (bytes(2000), bytes(1999) + b"x", r"from place 1999 on: expected b'\x00', found b'x'"),
    ],
    ids=["one is missing", "the last is missing", "bytes"],
)
def test_of_what_is_long_it_is_said_where_it_begins_to_differ(wanted: Any, found: Any, where: str) -> None:
    """Both were shown up to a length at which they were the same."""
    with pytest.raises(ContractBroken) as caught:
        expect_equal("elements", found, wanted)
    assert where in str(caught.value)


async def test_source_that_cannot_be_replayed_must_say_so(tmp_path: Path) -> None:
    checks = source_contract(lambda folder: Counting(), NUMBERS, replayable=False)
    assert len(checks) < len(source_contract(lambda folder: Counting(), NUMBERS))
    told = await broken(checks, "every_element_comes_once_and_in_order", tmp_path)
    assert "is_replayable(): expected False" in told


class HandsOutAgain(Source[int]):
    """As a server does that hands out again what was not acknowledged, the last first."""

    AGAIN: Sequence[int] = NUMBERS

    def __init__(self) -> None:
        self.had: list[int] = []
        self.left = list(NUMBERS)

    async def read(self) -> SourceBatch[int] | None:
        await asyncio.sleep(0)
        if not self.left:
            return None
        taken, self.left = self.left[:3], self.left[3:]
        self.had += taken
        return SourceBatch(taken)

    def position(self) -> Any:
        return list(self.had)

    async def seek(self, position: Any) -> None:
        self.had = list(position)
        self.left = [number for number in reversed(self.AGAIN) if number not in self.had]


class HandsOutAgainTwice(HandsOutAgain):
    AGAIN = (*NUMBERS[:-1], 7)


class HandsOutAgainWhatIsNotItsOwn(HandsOutAgain):
    AGAIN = (*NUMBERS[:-1], 700)


async def test_order_of_what_comes_again_may_be_any_and_nothing_else(tmp_path: Path) -> None:
    name = "each_position_leads_to_what_had_not_been_read"
    in_order = source_contract(lambda folder: HandsOutAgain(), NUMBERS)
    assert "elements: expected" in await broken(in_order, name, tmp_path)
    await verify(source_contract(lambda folder: HandsOutAgain(), NUMBERS, replays_in_order=False))
    for checks in (
        source_contract(lambda folder: HandsOutAgainTwice(), NUMBERS, replays_in_order=False),
        source_contract(lambda folder: HandsOutAgainWhatIsNotItsOwn(), NUMBERS, replays_in_order=False),
    ):
        assert "elements: expected" in await broken(checks, name, tmp_path)
    first = source_contract(lambda folder: Backwards(), NUMBERS, replays_in_order=False)
    assert "elements: expected" in await broken(first, "every_element_comes_once_and_in_order", tmp_path)


class Queue(Source[int]):
    """Waits for more behind its last element."""

    def __init__(self) -> None:
        self.left = list(NUMBERS)

    async def read(self) -> SourceBatch[int] | None:
        if not self.left:
            await asyncio.Event().wait()
        return SourceBatch([self.left.pop(0)])


@pytest.mark.parametrize(
    "check", source_contract(lambda folder: Queue(), NUMBERS, replayable=False, ends=False), ids=str
)
async def test_source_that_waits_for_more_keeps_the_contract(check: Check, tmp_path: Path) -> None:
    await check(tmp_path)


# ------------------------------------------------------------------ sinks

ELEMENTS = [{"n": number} for number in range(16)]


def lines(folder: Path) -> list[Any]:
    path = folder / "out.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


class PreparesInMemory(JsonLinesSink):
    """What it has written is in a buffer when it says that it is safe."""

    async def prepare(self, epoch: int) -> Any:
        return {"length": self._opened().tell(), "run": self._run}


class KeepsWhatFollows(JsonLinesSink):
    """Takes nothing back."""

    async def recover(self, position: Any) -> None:
        await super().recover(position)
        if position is not None:
            self._opened().write(b'{"n": "left over"}\n')


class SaysNothing(JsonLinesSink):
    async def prepare(self, epoch: int) -> Any:
        await super().prepare(epoch)


class LooksAtNoLease(JsonLinesSink):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._claim.check_ours = lambda file: None  # type: ignore[method-assign]


class TakesNoDecision(JsonLinesSink):
    async def can_recover(self, position: Any) -> None:
        pass

    async def recover(self, position: Any) -> None:
        if self.writer is not None:
            self.writer = type(self.writer)(self.writer.lease, self.writer.keep, "allow_behind")
        await super().recover(position)


class ClaimsTooMuch(JsonLinesSink):
    """A write that was cut off has taken half of what it says."""

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        self.count = len(values)
        await super().write(values[:1], timestamps)
        await asyncio.sleep(0)
        await super().write(values[1:], timestamps)

    def taken(self) -> int:
        return self.count


class Reverses(Sink[Any]):
    def __init__(self, path: Path) -> None:
        self.path = path

    async def write(self, values: Sequence[Any], timestamps: Timestamps) -> None:
        before = self.path.read_text() if self.path.exists() else ""
        self.path.write_text(before + "".join(json.dumps(value) + "\n" for value in reversed(values)))


@pytest.mark.parametrize(
    ("make", "name", "complaint"),
    [
        (PreparesInMemory, "crashes_between_any_two_calls_lose_and_double_nothing", "which had"),
        (KeepsWhatFollows, "crashes_between_any_two_calls_lose_and_double_nothing", "what readers see"),
        (SaysNothing, "what_is_committed_stays", "instead of a position"),
        (LooksAtNoLease, "who_was_followed_writes_nothing_more", "raised no SinkError"),
        (TakesNoDecision, "a_new_beginning_needs_a_decision", "has accepted a sink with results"),
        (ClaimsTooMuch, "a_write_that_is_cancelled_says_what_it_has_taken", "these are missing"),
        (Reverses, "what_is_written_is_there_in_the_end", "isinstance TransactionalSink: expected True"),
        (Reverses, "what_is_committed_stays", "say transactional=False"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_sink_that_breaks_a_promise_is_found_out(
    make: Callable[[Path], Sink[Any]], name: str, complaint: str, tmp_path: Path
) -> None:
    checks = sink_contract(lambda folder: make(folder / "out.jsonl"), lines, ELEMENTS)
    assert complaint in await broken(checks, name, tmp_path)


class HasNoFence(SqliteSink):
    async def fence(self) -> None:
        pass


async def test_sink_that_lets_a_job_commit_behind_its_followers_back_is_found_out(tmp_path: Path) -> None:
    def rows(folder: Path) -> list[Any]:
        with closing(sqlite3.connect(folder / "out.db")) as database:
            return [{"n": n} for (n,) in database.execute("SELECT n FROM t ORDER BY rowid")]

    def make(folder: Path) -> Sink[Any]:
        return HasNoFence(folder / "out.db", "t", columns=["n"])

    checks = sink_contract(make, rows, [{"n": number} for number in range(40)])
    told = await broken(checks, "a_follower_goes_where_it_has_decided_to", tmp_path)
    assert "fence() is to keep it out" in told


async def test_sink_without_an_order_says_so(tmp_path: Path) -> None:
    for in_order in (True, False):
        checks = sink_contract(
            lambda folder: Reverses(folder / "out.jsonl"),
            lines,
            ELEMENTS,
            transactional=False,
            in_order=in_order,
        )
        (tmp_path / str(in_order)).mkdir()
        if in_order:
            told = await broken(checks, "what_is_written_is_there_in_the_end", tmp_path / "True")
            assert "what readers see at the end" in told
        else:
            await verify(checks)


def test_elements_by_which_little_is_seen_are_refused() -> None:
    def of(elements: list[Any]) -> None:
        sink_contract(lambda folder: JsonLinesSink(folder / "out.jsonl"), lines, elements)

    for no_list in (iter(ELEMENTS), "elements", None):
        with pytest.raises(PipelineError, match="elements: expected a list of elements, got "):
            of(no_list)  # type: ignore[arg-type]
    with pytest.raises(PipelineError, match="elements: expected at least 8, got 3"):
        of(ELEMENTS[:3])
    with pytest.raises(PipelineError, match="elements: expected no two that are equal"):
        of([*ELEMENTS[:8], ELEMENTS[3]])
    with pytest.raises(PipelineError, match="expected: expected at least 3, got 0"):
        source_contract(lambda folder: Counting(), [])
    with pytest.raises(PipelineError, match=r"expected no two that are equal, got 1\.0 twice"):
        source_contract(lambda folder: Counting(), [1, 2, 1.0])
    assert source_contract(lambda folder: Counting(), deque(NUMBERS))


def test_functions_that_are_awaited_by_nobody_and_objects_in_place_of_them_are_refused() -> None:
    async def later(folder: Path) -> None:
        pass

    wrong: dict[str, Callable[[], object]] = {
        "make: expected a function, got JsonLinesSink": lambda: sink_contract(
            cast(Any, JsonLinesSink("out.jsonl")), lines, ELEMENTS
        ),
        "read: expected a function, got 5": lambda: sink_contract(
            lambda folder: JsonLinesSink(folder / "out.jsonl"), cast(Any, 5), ELEMENTS
        ),
        "prepare: expected a plain function": lambda: source_contract(
            lambda folder: Counting(), NUMBERS, prepare=later
        ),
        "split_of: expected a function, got 'split'": lambda: source_contract(
            lambda folder: Counting(), NUMBERS, split_of=cast(Any, "split")
        ),
        "make: expected a function that takes": lambda: store_contract(cast(Any, lambda: None)),
    }
    for message, build in wrong.items():
        with pytest.raises(PipelineError, match=f"^{message}"):
            build()


@pytest.mark.parametrize(
    ("checks", "message"),
    [
        (
            source_contract(lambda folder: cast(Any, None), NUMBERS),
            "make: expected a function that gives a Source",
        ),
        (
            sink_contract(lambda folder: cast(Any, None), lines, ELEMENTS),
            "make: expected a function that gives a Sink",
        ),
        (
            store_contract(lambda folder: cast(Any, None)),
            "make: expected a function that gives a CheckpointStore",
        ),
        (
            sink_contract(
                lambda folder: JsonLinesSink(folder / "out.jsonl"), lambda folder: cast(Any, None), ELEMENTS
            ),
            "read: expected a function that gives the elements",
        ),
    ],
    ids=["source", "sink", "store", "what readers see"],
)
async def test_functions_that_give_something_else_are_told_of(
    checks: list[Check], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ContractBroken, match=f"{message}, got None"):
        await checks[0](tmp_path)


def test_elements_are_found_also_by_what_equals_them_with_another_hash() -> None:
    places = Places([b"a", bytearray(b"b")])
    assert [places.of(element) for element in (bytearray(b"a"), b"b", 2)] == [0, 1, None]
    assert Places([1, ANY]).of(2) == 1


def test_elements_are_not_each_compared_with_all_others() -> None:
    compared = 0

    @dataclass
    class Element:
        number: int

        def __hash__(self) -> int:
            return hash(self.number)

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return isinstance(other, Element) and other.number == self.number

    source_contract(lambda folder: Counting(), [{"n": [Element(number)]} for number in range(1000)])
    assert compared < 2000


# ------------------------------------------------------------------ stores


class WritesInPlace(DirectoryStore):
    """A process that dies in the middle leaves half of a part."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder

    async def put(self, lease: Lease, part: str, data: bytes) -> None:
        for end in range(0, len(data) + 100_000, 100_000):
            (self.folder / f"part-{part}").write_bytes(data[:end])
            await asyncio.sleep(0)


class DeletesMore(DirectoryStore):
    async def delete(self, lease: Lease, numbers: Collection[int], parts: Collection[str]) -> None:
        await super().delete(lease, [*numbers, 3], parts)


class CountsAsText(DirectoryStore):
    async def numbers(self) -> list[int]:
        return sorted(await super().numbers(), key=str)


class GivesTheLeaseToAll(DirectoryStore):
    async def acquire(self, holder: Holder, seconds: float) -> Lease:
        current = await self.holder()
        if current is not None:
            await self.release(current)
        return await super().acquire(holder, seconds)


class BelievesTheOld(DirectoryStore):
    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        current = await self.holder()
        await super().commit(lease if current is None else current, number, manifest)


class KeepsLater(DirectoryStore):
    """Says that it is safe, and writes it with the next one."""

    late: tuple[Any, ...] = ()

    async def commit(self, lease: Lease, number: int, manifest: bytes) -> None:
        late, self.late = self.late, (lease, number, manifest)
        if late:
            await super().commit(*late)


@pytest.mark.parametrize(
    ("make", "name", "complaint"),
    [
        (WritesInPlace, "crashes_within_calls_leave_all_or_nothing", "the next job finds"),
        (WritesInPlace, "a_call_that_is_cancelled_leaves_all_or_nothing", "the next job finds"),
        (DeletesMore, "what_is_deleted_is_gone_and_nothing_else", "numbers(): expected"),
        (CountsAsText, "what_was_kept_is_given_back", "numbers(): expected [2, 9, 10, 100]"),
        (GivesTheLeaseToAll, "the_lease_is_given_to_one", "did not raise LeaseHeld"),
        (BelievesTheOld, "who_was_followed_changes_nothing_any_more", "did not raise LeaseLost"),
        (KeepsLater, "crashes_between_any_two_calls_keep_what_was_kept", "numbers(): expected [9]"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_store_that_breaks_a_promise_is_found_out(
    make: Callable[[Path], DirectoryStore], name: str, complaint: str, tmp_path: Path
) -> None:
    checks = store_contract(lambda folder: make(folder / "kept"))
    assert complaint in await broken(checks, name, tmp_path)


# ------------------------------------------------------------------ all checks together


async def test_all_that_is_broken_is_told_at_once() -> None:
    with pytest.raises(ContractBroken) as caught:
        await verify(source_contract(lambda folder: TakesBeforeItWaits(), NUMBERS))
    assert str(caught.value).startswith("a_read_that_is_cancelled_takes_nothing: A read that is cancelled")
    with pytest.raises(ContractBroken) as caught:
        await verify(source_contract(lambda folder: ClosesOnlyIfOpen(), NUMBERS[:-1]))
    assert len(str(caught.value).splitlines()) > 2


async def test_what_never_answers_is_told_of(tmp_path: Path, virtual_time: Any) -> None:
    class Hangs(Counting):
        async def read(self) -> SourceBatch[int] | None:
            await asyncio.sleep(1e6)
            return None

    checks = source_contract(lambda folder: Hangs(), NUMBERS)
    assert "takes for ever" in await broken(checks, "every_element_comes_once_and_in_order", tmp_path)


async def test_what_is_slow_but_gets_on_has_the_time_that_it_needs(tmp_path: Path, virtual_time: Any) -> None:
    class Slow(Counting):
        async def open(self) -> None:
            await asyncio.sleep(40)
            await super().open()

    checks = source_contract(lambda folder: Slow(), NUMBERS)
    (check,) = (check for check in checks if check.name == "each_position_leads_to_what_had_not_been_read")
    await check(tmp_path)
    assert virtual_time.time() > 100
