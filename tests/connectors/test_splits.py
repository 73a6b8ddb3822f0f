"""Many sources read as one: splits that come and go, positions of each, and event time of the slowest."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    Checkpoints,
    Count,
    GlobSource,
    JsonLinesSource,
    MemoryStore,
    Pipeline,
    PipelineError,
    Source,
    SourceBatch,
    SourceError,
    SplitSource,
    TumblingWindows,
    UserFunctionError,
    call_context,
)
from asyncstream.errors import describe_error
from asyncstream.testing.loop import run_virtual


class Paced(Source[Any]):
    """Gives one element after the other, each at the second that it names, as (split, number)."""

    def __init__(self, name: str, times: Sequence[float], log: list[str]) -> None:
        self.name, self.times, self.log, self.at = name, times, log, 0

    async def open(self) -> None:
        self.log.append(f"{self.name} open")

    async def read(self) -> SourceBatch[Any] | None:
        if self.at == len(self.times):
            return None
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, self.times[self.at] - now))
        self.at += 1
        return SourceBatch([(self.name, self.at)])

    def position(self) -> int:
        return self.at

    async def seek(self, position: int) -> None:
        self.at = position

    async def close(self) -> None:
        self.log.append(f"{self.name} close")


class Kept(Source[Any]):
    """Gives one element, and ends when a checkpoint holds it, for which it asks."""

    def __init__(self) -> None:
        self.read_so_far, self.is_forgotten = 0, asyncio.Event()

    async def read(self) -> SourceBatch[Any] | None:
        if not self.read_so_far:
            self.read_so_far = 1
            return SourceBatch(["kept"])
        assert self.checkpoint_soon is not None
        self.checkpoint_soon()
        await self.is_forgotten.wait()
        return None

    def position(self) -> int:
        return self.read_so_far

    async def seek(self, position: int) -> None:
        self.read_so_far = position

    async def forget(self, position: int) -> None:
        if position:
            self.is_forgotten.set()


def paced(log: list[str], **times: Sequence[float]) -> SplitSource[Any]:
    return SplitSource(lambda name: Paced(name, times[name], log), list(times))


async def drained(source: Source[Any], count: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < count:
        batch = await source.read()
        assert batch is not None
        found += batch.values
    return found


def test_a_split_that_is_slow_holds_up_no_other() -> None:
    async def main() -> None:
        source = paced([], slow=[100, 200], quick=[1, 2, 3])
        await source.open()
        found = await drained(source, 5)
        assert found == [("quick", 1), ("quick", 2), ("quick", 3), ("slow", 1), ("slow", 2)]
        while (batch := await source.read()) is not None:
            assert not batch.values
        assert source.splits() == ()
        await source.close()

    run_virtual(main())


def test_a_split_that_is_held_is_kept_until_it_is_let_go() -> None:
    async def main() -> None:
        source = paced([], a=[0, 0, 0], b=[0, 5, 9])
        await source.open()
        source.hold({"a"})
        assert await drained(source, 3) == [("b", 1), ("b", 2), ("b", 3)]
        assert source.position()["splits"] == {"b": 3}
        source.hold(())
        assert await drained(source, 3) == [("a", 1), ("a", 2), ("a", 3)]
        await source.close()

    run_virtual(main())


def test_splits_are_revoked_and_assigned_at_run_time() -> None:
    async def main() -> None:
        log: list[str] = []
        times: dict[str, Sequence[float]] = {"a": [1, 2, 3, 4], "b": [1.5, 2.5]}
        first = SplitSource(lambda name: Paced(name, times[name], log), ["a", "b"])
        other = SplitSource(lambda name: Paced(name, times[name], log))
        await first.open()
        await other.open()
        assert await drained(first, 3) == [("a", 1), ("b", 1), ("a", 2)]
        left = first.revoke("a")
        assert left == {"a": 2}
        assert first.splits() == ("b",)
        other.assign(*left, positions=left)
        assert await drained(other, 2) == [("a", 3), ("a", 4)]
        assert await drained(first, 1) == [("b", 2)]
        assert "a" not in first.position()["splits"]
        await first.close()
        await other.close()
        assert log.count("a open") == log.count("a close") == 2

    run_virtual(main())


def test_a_split_that_was_revoked_is_read_no_more_until_it_is_assigned() -> None:
    async def main() -> None:
        source = SplitSource(lambda name: Paced(name, [0, 0, 0], []), lambda: ["a", "b"], every=1)
        await source.open()
        assert await drained(source, 1) == [("a", 1)]
        saved = source.position()
        assert source.revoke("a") == {"a": 1}
        assert await drained(source, 3) == [("b", 1), ("b", 2), ("b", 3)]
        looked = asyncio.ensure_future(drained(source, 1))
        await asyncio.sleep(2.5)
        assert not looked.done()  # the function gives it still
        looked.cancel()
        await source.close()
        await source.open()
        await source.seek(saved)  # of before it was revoked
        assert await drained(source, 3) == [("b", 1), ("b", 2), ("b", 3)]
        source.assign("a", positions={"a": 1})
        assert await drained(source, 2) == [("a", 2), ("a", 3)]
        await source.close()

    run_virtual(main())


def test_splits_that_were_assigned_are_read_whenever_the_source_is_opened() -> None:
    async def main() -> list[list[Any]]:
        log: list[str] = []
        source = SplitSource(lambda name: Paced(name, [0, 0], log), ["a"], parallel=1)
        source.assign("b", "c", "d", positions={"c": 1})
        source.revoke("d")
        found = []
        saved: dict[str, Any]
        for saved in ({"splits": {}, "ended": []}, {"splits": {"b": 1}, "ended": ["a"]}):
            await source.open()
            await source.seek(saved)
            values: list[Any] = []
            while (batch := await source.read()) is not None:
                values += batch.values
            await source.close()
            found.append(sorted(values))
        return found

    first, again = run_virtual(main())
    assert first == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 2)]
    assert again == [("b", 2), ("c", 2)]


def test_what_makes_no_source_of_a_split_is_told_so() -> None:
    def nothing(name: str) -> Any:
        JsonLinesSource(name)

    pipeline = Pipeline("made")
    pipeline.source(SplitSource(nothing, ["a.jsonl"]), name="files").to([])
    expected = "step 'files': make: expected a function that gives a Source, got None for 'a.jsonl'"
    with pytest.raises(SourceError) as caught:
        pipeline.run_blocking()
    assert str(caught.value) == expected


def test_the_position_of_a_split_is_that_of_what_was_given() -> None:
    """What has been read ahead is not behind it, though the split's source goes on in the object it gave."""

    class Moving(Paced):
        def __init__(self, name: str) -> None:
            super().__init__(name, [0, 0, 0], [])
            self.place = {"at": 0}

        def position(self) -> Any:
            self.place["at"] = self.at
            return self.place

        async def seek(self, position: Any) -> None:
            self.place, self.at = position, position["at"]

    async def main() -> None:
        source = SplitSource(Moving, ["a", "b"])
        await source.open()
        await source.seek({"splits": {"a": {"at": 1}, "b": {"at": 1}}, "ended": []})
        assert await drained(source, 1) == [("a", 2)]
        await asyncio.sleep(1)
        assert source.position()["splits"] == {"a": {"at": 2}, "b": {"at": 1}}
        assert await drained(source, 1) == [("b", 2)]
        await asyncio.sleep(1)
        assert source.position()["splits"] == {"a": {"at": 2}, "b": {"at": 2}}
        await source.close()

    run_virtual(main())


def test_the_names_of_splits_may_be_one_list_that_changes() -> None:
    """As the files of a folder come and go: one that has gone is not waited for."""

    class Changing(Source[tuple[str, int]]):
        def __init__(self) -> None:
            self.names: list[str] = []
            self.elements = [("a", 5), ("b", 20), ("", 0), ("b", 40)]

        async def read(self) -> SourceBatch[tuple[str, int]] | None:
            await asyncio.sleep(1)
            if not self.elements:
                return None
            name, at_ms = self.elements.pop(0)
            if not name:
                self.names.remove("a")
                return SourceBatch([])
            if name not in self.names:
                self.names.append(name)
            return SourceBatch([(name, at_ms)], split=name)

        def splits(self) -> Sequence[str]:
            return self.names

    async def main() -> None:
        found: list[Any] = []
        pipeline = Pipeline("changing")
        strategy = AscendingTimestamps(every=0)
        timed = pipeline.source(Changing()).event_time(lambda one: one[1], strategy)
        windows = timed.key_by(lambda _: 0).window(TumblingWindows(timedelta(milliseconds=10)))
        windows.aggregate(n=Count()).map(lambda result: result.start_ms).to(found)
        async with pipeline.start() as job:
            await asyncio.sleep(4.5)
            assert found == [0, 20]
            await job.wait()

    run_virtual(main())


def test_many_splits_are_not_compared_with_one_another() -> None:
    class Name(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    async def main() -> None:
        names = [Name(f"{number}.csv") for number in range(1000)]
        source = SplitSource(lambda name: Paced(name, [], []), names)
        await source.open()
        source.assign(*names[:10])
        source.revoke(*names[10:20])
        await source.seek({"splits": {}, "ended": names[:900]})
        assert await source.read() is not None
        await source.close()

    run_virtual(main())
    assert Name.compared < 1000


def test_a_pattern_that_matches_nothing_is_told_of_once_and_not_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(pattern: str) -> list[Any]:
        seen: list[Any] = []
        pipeline = Pipeline("files")
        pipeline.source(GlobSource(f"{tmp_path}/{pattern}", JsonLinesSource), name="in").to(seen, name="out")
        pipeline.run_blocking(checkpoints=Checkpoints(store=store))
        return seen

    store = MemoryStore()
    (tmp_path / "a.jsonl").write_text("1\n")
    assert run("*.json") == []
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        f"there was nothing to read: no file matches '{tmp_path}/*.json'"
    ]
    caplog.clear()
    store = MemoryStore()
    assert run("*.jsonl") == [1]
    (tmp_path / "a.jsonl").unlink()
    assert run("*.jsonl") == []
    assert "nothing to read" not in caplog.text


FAILURES = pytest.mark.parametrize("failure", [OSError("gone"), asyncio.CancelledError("inside")], ids=repr)


@FAILURES
def test_what_fails_in_a_split_names_it(failure: BaseException) -> None:
    class Failing(Paced):
        async def read(self) -> SourceBatch[Any] | None:
            raise failure

    async def main() -> None:
        source = SplitSource(lambda name: Failing(name, [], []), ["a"])
        await source.open()
        with pytest.raises(SourceError, match=rf"split 'a': {describe_error(failure)}"):
            await asyncio.wait_for(source.read(), 60)
        await source.close()

    run_virtual(main())


@FAILURES
def test_what_fails_in_looking_for_splits_is_told(failure: BaseException) -> None:
    looks: list[None] = []

    async def names() -> list[str]:
        looks.append(None)
        if len(looks) > 1:
            raise failure
        return []

    async def main() -> None:
        source = SplitSource[Any](lambda name: Paced(name, [], []), names, every=1)
        await source.open()
        with pytest.raises(SourceError, match=f"cannot look for splits: {describe_error(failure)}"):
            await asyncio.wait_for(source.read(), 60)
        await source.close()

    run_virtual(main())


class Cancelled(Paced):
    async def read(self) -> SourceBatch[Any] | None:
        raise asyncio.CancelledError("by its own code")


@pytest.mark.parametrize("looks", [False, True])
def test_a_cancellation_that_nobody_asked_for_is_an_error_and_no_wait_for_ever(looks: bool) -> None:
    def splits() -> list[str]:
        if looks and asyncio.get_running_loop().time() > 0:
            raise asyncio.CancelledError("by its own code")
        return [] if looks else ["a"]

    async def main() -> None:
        source: SplitSource[Any] = SplitSource(lambda name: Cancelled(name, [], []), splits, every=1)
        await source.open()
        with pytest.raises(SourceError, match="CancelledError: by its own code"):
            await asyncio.wait_for(source.read(), 60)
        await source.close()

    run_virtual(main())


@pytest.mark.parametrize("given", ["orders", None, 5])
@pytest.mark.parametrize("is_awaited", [False, True])
async def test_what_a_function_gives_that_are_no_names_is_refused(given: Any, is_awaited: bool) -> None:
    async def named() -> Any:
        return given

    source = SplitSource(lambda name: JsonLinesSource(name), named if is_awaited else lambda: given)
    with pytest.raises(PipelineError, match="splits: expected a function that gives names of splits, got"):
        await source.names()


def test_a_split_that_is_to_hear_what_is_done_is_refused() -> None:
    class Acknowledging(Paced):
        async def acknowledge(self, position: Any) -> None:
            self.log.append("acknowledged")

    async def main() -> None:
        source = SplitSource(lambda name: Acknowledging(name, [0.0], []), ["a"])
        await source.open()
        with pytest.raises(SourceError, match="cannot be a source that is to hear what is done"):
            await drained(source, 1)
        await source.close()

    run_virtual(main())


class Stuck(Paced):
    async def close(self) -> None:
        await super().close()
        raise OSError("stuck")


def test_a_split_that_cannot_be_closed_keeps_no_other_open(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    times = {"a": [0.0], "b": [0.0, 100.0], "c": [0.0, 100.0]}
    splits = SplitSource[Any](lambda name: Stuck(name, times[name], log), list(times))

    async def main() -> None:
        await splits.open()
        for _ in range(4):  # the last is that `a` has ended
            await splits.read()
        await splits.close()

    run_virtual(main())
    assert sorted(line for line in log if "close" in line) == ["a close", "b close", "c close"]
    assert sorted(caplog.messages) == [
        f"split {name!r} could not be closed: OSError: stuck" for name in sorted(times)
    ]


def test_windows_wait_for_the_slowest_split() -> None:
    async def main() -> list[tuple[int, int]]:
        # each element's event time is its number, in seconds; "quick" is read long before "slow"
        source = paced([], slow=[100, 200, 300], quick=[1, 2, 3])
        counts: list[Any] = []
        pipeline = Pipeline("windows")
        stream = pipeline.source(source, name="events").map(lambda event: event)
        timed = stream.event_time(lambda event: event[1] * 1000, AscendingTimestamps(every=0), name="times")
        windows = timed.window_all(TumblingWindows(timedelta(seconds=1)))
        windows.aggregate(n=Count()).to(counts)
        await pipeline.run()
        return [(result.start_ms, result.value["n"]) for result in counts]

    assert run_virtual(main()) == [(1000, 2), (2000, 2), (3000, 2)]


def test_a_split_far_ahead_waits_until_the_slowest_comes_near() -> None:
    async def main() -> list[Any]:
        source = paced([], slow=[1, 2, 3, 4], quick=[0] * 40)
        seen: list[Any] = []
        pipeline = Pipeline("aligned")
        stream = pipeline.source(source, name="events")
        timed = stream.event_time(
            lambda event: event[1] * (1000 if event[0] == "quick" else 10_000),
            AscendingTimestamps(every=0),
            idle_after=60,
            max_drift=5,
        )
        timed.to(seen)
        await pipeline.run()
        return seen

    seen = run_virtual(main())
    assert len(seen) == 44
    reached = 0
    for split, number in seen:
        if split == "slow":
            reached = number * 10_000
        elif reached and reached < 40_000:  # one batch may be on its way when the split is told to wait
            assert number * 1000 <= reached + 5000 + 1000


def test_a_job_goes_on_in_each_file_where_it_was(tmp_path: Path) -> None:
    for name in "abc":
        lines = [json.dumps([name, number]) for number in range(20)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    store = MemoryStore()
    seen: list[Any] = []
    stopped = asyncio.Event()

    def look(event: list[Any]) -> None:
        seen.append(event)
        if len(seen) == 23:
            stopped.set()

    def build() -> Pipeline:
        pipeline = Pipeline("files")
        source = GlobSource(tmp_path / "*.jsonl", lambda path: JsonLinesSource(path, batch=4), parallel=2)
        pipeline.source(source, name="files").to(look, name="seen")
        return pipeline

    async def main() -> None:
        async with build().start(checkpoints=Checkpoints(store=store, every=3600)) as job:
            await stopped.wait()
            await job.stop()
        assert len(seen) < 60
        await build().run(checkpoints=Checkpoints(store=store, every=3600))

    run_virtual(main())
    assert sorted(map(tuple, seen)) == [(name, number) for name in "abc" for number in range(20)]
    for name in "abc":
        assert [number for which, number in seen if which == name] == list(range(20))


class Replaced(Paced):
    """What is under a name is something else after a restart."""

    async def seek(self, position: int) -> None:
        self.name, self.started_over = "new", True


def test_no_key_of_a_split_that_was_replaced_is_used_again() -> None:
    store = MemoryStore()
    keys: dict[tuple[str, int], set[str]] = {}
    crashed = asyncio.Event()

    async def charge(value: tuple[str, int]) -> None:
        keys.setdefault(value, set()).add(call_context().idempotency_key)
        if value[1] == 8 and not crashed.is_set():
            crashed.set()
            raise RuntimeError("after the checkpoint")

    def build() -> Pipeline:
        pipeline = Pipeline("charges")
        kinds = {"old": Replaced, "same": Paced}
        source = SplitSource(lambda name: kinds[name](name, range(1, 11), []), list(kinds))
        pipeline.source(source, name="splits").async_map(charge, effect=True, name="charge").discard()
        return pipeline

    settings = Checkpoints(store=store, every=3600)

    async def first() -> None:
        async with build().start(checkpoints=settings) as job:
            await asyncio.sleep(4.5)
            await job.checkpoint()
            await job.wait()

    async def main() -> None:
        with pytest.raises(UserFunctionError):
            await first()
        await build().run(checkpoints=settings)

    run_virtual(main())
    assert {("old", 8), ("new", 1), ("new", 10), ("same", 10)} <= keys.keys()
    assert all(len(found) == 1 for found in keys.values())  # what comes again, by its own
    assert len(set.union(*keys.values())) == len(keys)


def test_files_that_appear_are_read_too(tmp_path: Path) -> None:
    async def main() -> list[Any]:
        source = GlobSource(tmp_path / "**" / "*.jsonl", JsonLinesSource, watch=10)
        await source.open()
        (tmp_path / "late").mkdir()
        (tmp_path / "late" / "a.jsonl").write_text("1\n2\n")
        first = await drained(source, 2)
        (tmp_path / "b.jsonl").write_text("3\n")
        rest = await drained(source, 1)
        await source.close()
        return first + rest

    assert run_virtual(main()) == [1, 2, 3]


def test_files_of_an_object_store_are_refused_that_no_pattern_would_find() -> None:
    with pytest.raises(
        PipelineError, match=r"pattern: .* on a disk, got 's3://in/.*SplitSource\(make, names\)"
    ):
        GlobSource("s3://in/*.jsonl", JsonLinesSource)


@pytest.mark.parametrize("lines", [[], ["1", "2"]])
def test_other_streams_do_not_wait_for_files_that_have_not_come(tmp_path: Path, lines: list[str]) -> None:
    async def main() -> list[tuple[int, int, float]]:
        if lines:
            (tmp_path / "a.jsonl").write_text("\n".join(lines))
        files = GlobSource(tmp_path / "*.jsonl", JsonLinesSource, watch=7)
        found: list[Any] = []
        pipeline = Pipeline("both")
        timed = [
            pipeline.source(source, name=name)
            .map(number)
            .event_time(
                lambda second: second * 1000, AscendingTimestamps(every=0), idle_after=5, name=f"{name} at"
            )
            for name, source, number in (
                ("files", files, lambda value: value),
                ("ticks", Paced("ticks", range(1, 32), []), lambda value: value[1]),
            )
        ]
        windows = timed[0].union(timed[1]).window_all(TumblingWindows(timedelta(seconds=10)))
        windows.aggregate(n=Count()).map(lambda result: (result, asyncio.get_running_loop().time())).to(found)
        with suppress(TimeoutError):
            async with asyncio.timeout(40):  # nobody knows whether another file will come
                await pipeline.run()
        return [(result.start_ms, result.value["n"], at) for result, at in found]

    first = (0, 9 + len(lines), 10.0)
    assert run_virtual(main()) == [first, (10_000, 10, 20.0), (20_000, 10, 30.0)]


def test_files_are_read_whatever_their_names(tmp_path: Path) -> None:
    """A name that a file system can have, from whom that may be, ends no job."""
    names = ["two\nlines.jsonl", os.fsdecode(b"latin-\xe9.jsonl"), "\u202e.jsonl"]
    for number, name in enumerate(names):
        (tmp_path / name).write_text(f"{number}\n" * 2)
    store = MemoryStore()
    seen: list[int] = []

    def build(parallel: int) -> Pipeline:
        pipeline = Pipeline("names")
        source = GlobSource(
            tmp_path / "*.jsonl", lambda path: JsonLinesSource(path, batch=1), parallel=parallel
        )
        pipeline.source(source, name="files").to(seen, name="seen")
        return pipeline

    async def main() -> None:
        async with build(3).start(checkpoints=Checkpoints(store=store, every=None)) as job:
            await job.stop()
        await build(1).run(checkpoints=Checkpoints(store=store, every=None))

    run_virtual(main())
    assert sorted(seen) == [0, 0, 1, 1, 2, 2]


def test_files_that_match_by_links_as_well_are_read_once(tmp_path: Path) -> None:
    def write(path: Path, value: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")

    into = tmp_path / "in"
    write(tmp_path / "elsewhere" / "x.jsonl", 1)
    write(into / "b.jsonl", 2)
    write(into / "day" / "c.jsonl", 3)
    (into / "a.jsonl").symlink_to("b.jsonl")
    (into / "a-day").symlink_to("day")
    (into / "loop").symlink_to(".")
    (into / "nowhere.jsonl").symlink_to("missing")
    for name in ("x.jsonl", "y.jsonl"):  # the names of what is elsewhere are these
        (into / name).symlink_to(tmp_path / "elsewhere" / "x.jsonl")
    (into / "z.jsonl").hardlink_to(into / "b.jsonl")
    (tmp_path / "by-link").symlink_to("in")

    async def main() -> list[Any]:
        source = GlobSource(tmp_path / "by-link" / "**" / "*.jsonl", JsonLinesSource)
        assert [Path(name).name for name in await source.names()] == [
            "b.jsonl",
            "c.jsonl",
            "x.jsonl",
            "y.jsonl",
            "z.jsonl",
        ]
        await source.open()
        read = await drained(source, 5)
        await source.close()
        return read

    assert run_virtual(main()) == [2, 3, 1, 1, 2]


def test_alignment_needs_idleness() -> None:
    stream = Pipeline("wrong").source([1])
    with pytest.raises(PipelineError, match="max_drift needs idle_after="):
        stream.event_time(lambda event: event, AscendingTimestamps(), max_drift=5)


def test_a_split_may_ask_the_job_for_a_checkpoint() -> None:
    out: list[Any] = []
    pipeline = Pipeline()
    pipeline.source(SplitSource(lambda name: Kept(), ["a", "b"]), name="kept").to(out, name="out")
    run_virtual(pipeline.run(checkpoints=Checkpoints(store=MemoryStore(), every=None, keep=1)))
    assert out == ["kept", "kept"]
