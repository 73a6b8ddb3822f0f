"""A dry run of recovery says what a start would do, and leaves everything as it is."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    Checkpoints,
    Count,
    DirectoryStore,
    DryRun,
    JsonLinesSink,
    JsonLinesSource,
    Pipeline,
    PipelineError,
    SqliteSink,
    SqliteStore,
    TumblingWindows,
)
from asyncstream.errors import AsyncStreamError

Store = DirectoryStore | SqliteStore


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = (json.dumps({"at": number * 1000, "key": number % 3}) for number in range(50))
    (tmp_path / "in.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path


@pytest.fixture(params=["directory", "sqlite"])
def store(request: pytest.FixtureRequest, folder: Path) -> Store:
    return (
        DirectoryStore(folder / "kept") if request.param == "directory" else SqliteStore(folder / "kept.db")
    )


def build(folder: Path, seconds: float = 10.0, sink: str = "out", name: str = "counts") -> Pipeline:
    pipeline = Pipeline("dry")
    stream = pipeline.source(JsonLinesSource(folder / "in.jsonl"), name="in").event_time(
        "at", AscendingTimestamps(), name="time"
    )
    counts = stream.key_by("key").window(TumblingWindows(seconds)).aggregate(n=Count(), name=name)
    rows = counts.map(lambda result: {"key": result.key}, name="rows")
    rows.to(JsonLinesSink(folder / f"{sink}.jsonl"), name="lines")
    rows.to(SqliteSink(folder / f"{sink}.db", "counts", columns=["key"]), name="table")
    return pipeline


def contents(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.is_file() and path.read_bytes())
        for path in [folder, *folder.rglob("*")]
        if path.is_file() or path == folder / "kept"
    }


def ask(folder: Path, pipeline: Pipeline, checkpoints: Checkpoints) -> DryRun:
    """A dry run, which changes nothing, and says whether the start that follows it is refused."""
    before = contents(folder)
    report = asyncio.run(pipeline.dry_run(checkpoints))
    assert contents(folder) == before
    if report.can_start:
        asyncio.run(pipeline.run(checkpoints=checkpoints))
    else:
        with pytest.raises(AsyncStreamError):
            asyncio.run(pipeline.run(checkpoints=checkpoints))
    return report


def outcomes(report: DryRun) -> dict[str, str]:
    return {step.step: step.outcome for step in report.steps}


def detail(report: DryRun, name: str) -> str:
    return next(step.detail for step in report.steps if step.step == name)


def run(folder: Path, store: Store) -> None:
    asyncio.run(build(folder).run(checkpoints=Checkpoints(store=store)))


def test_first_start(folder: Path, store: Store) -> None:
    report = ask(folder, build(folder), Checkpoints(store=store))
    assert (report.can_start, report.checkpoint, report.holder) == (True, None, None)
    assert set(outcomes(report).values()) == {"from nothing"}
    assert set(outcomes(report)) >= {"in", "time", "counts", "lines", "table"}


def test_all_is_fine(folder: Path, store: Store) -> None:
    run(folder, store)
    report = ask(folder, build(folder), Checkpoints(store=store))
    assert report.can_start
    assert report.checkpoint is not None
    assert report.checkpoint.id == 2
    assert not report.passed_over
    kept = outcomes(report)
    assert {kept[name] for name in ("in", "time", "counts", "lines", "table")} == {"kept"}
    assert "would go on from checkpoint 2" in str(report)


def test_a_sink_is_one_also_where_only_what_waits_for_it_was_kept(folder: Path, store: Store) -> None:
    def plain() -> Pipeline:
        pipeline = Pipeline("plain")
        pipeline.source([1, 2], name="in").to([], name="list")
        return pipeline

    for outcome in ("from nothing", "kept"):
        report = ask(folder, plain(), Checkpoints(store=store))
        found = {(step.step, step.role, step.outcome) for step in report.steps}
        assert found == {("in", "source", outcome), ("list", "sink", outcome)}


def test_damaged_newest_is_passed_over(folder: Path) -> None:
    store = DirectoryStore(folder / "kept")
    run(folder, store)
    newest = folder / "kept" / "00000002.checkpoint"
    newest.write_bytes(newest.read_bytes()[:-1])
    report = ask(folder, build(folder), Checkpoints(store=store))
    assert report.checkpoint is not None
    assert report.checkpoint.id == 1
    assert list(report.passed_over) == [2]
    assert "checkpoint 2 is passed over: checkpoint 2 is damaged: it has" in str(report)


def test_every_sink_that_is_ahead_refuses_by_itself(folder: Path, store: Store) -> None:
    run(folder, store)
    report = ask(folder, build(folder), Checkpoints(store=store, restore="none"))
    assert (report.can_start, report.checkpoint) == (False, None)
    assert [name for name, outcome in outcomes(report).items() if outcome == "refused"] == ["lines", "table"]
    assert "lines" in detail(report, "lines")
    assert len(report.refusals) == 2
    assert "cannot start" in str(report)
    assert str(report).count("holds results of a later checkpoint") == 2


def test_replaced_source_file(folder: Path, store: Store) -> None:
    run(folder, store)
    path = folder / "in.jsonl"
    path.write_text(path.read_text().replace("key", "yek"))
    report = ask(folder, build(folder), Checkpoints(store=store))
    assert not report.can_start
    assert outcomes(report)["in"] == "refused"
    assert "in.jsonl" in detail(report, "in")
    assert outcomes(report)["counts"] == "kept"


def test_changed_window_and_what_helps(folder: Path, store: Store) -> None:
    run(folder, store)
    report = ask(folder, build(folder, seconds=20.0), Checkpoints(store=store))
    assert not report.can_start
    assert outcomes(report)["counts"] == "refused"
    assert "has changed and cannot use its old state" in detail(report, "counts")
    migrated = Checkpoints(store=store, migrate={"counts": lambda state: None})
    assert outcomes(ask(folder, build(folder, seconds=20.0), migrated))["counts"] == "from nothing"


def test_step_that_is_gone(folder: Path, store: Store) -> None:
    run(folder, store)
    renamed = build(folder, name="others")
    report = ask(folder, renamed, Checkpoints(store=store))
    assert not report.can_start
    assert "holds the state of steps that this pipeline does not have: 'counts'" in report.refusals[0]
    report = ask(folder, renamed, Checkpoints(store=store, allow_dropped=["counts"]))
    assert report.can_start
    assert (outcomes(report)["counts"], outcomes(report)["others"]) == ("dropped", "from nothing")


async def test_who_holds_the_store_is_told_and_goes_on_holding_it(folder: Path, store: Store) -> None:
    running = Pipeline("dry")
    running.submissions(name="in").to([], name="out")
    async with running.start(checkpoints=Checkpoints(store=store)) as job:
        with pytest.raises(PipelineError, match="this pipeline runs now"):
            await running.dry_run(Checkpoints(store=store))
        other = Pipeline("dry")
        other.submissions(name="in").to([], name="out")
        report = await other.dry_run(Checkpoints(store=store))
        assert report.holder is not None
        assert "one job at a time" in report.refusals[0]
        assert (await other.dry_run(Checkpoints(store=store, on_held="wait"))).can_start
        await job.checkpoint()


def test_database_that_a_crash_has_left_open_stays_as_it_was(folder: Path) -> None:
    """What is not in the database itself yet is read from beside it, and not moved."""
    run(folder, SqliteStore(folder / "kept.db"))
    for name in ("kept.db", "out.db"):
        database = sqlite3.connect(folder / name)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE more (n)")
        database.commit()
        left = {path: path.read_bytes() for path in folder.glob(f"{name}-*")}
        database.close()
        for path, data in left.items():
            path.write_bytes(data)
    before = {path: path.read_bytes() for path in folder.glob("*.db*") if not path.name.endswith("-shm")}
    report = asyncio.run(build(folder).dry_run(Checkpoints(store=SqliteStore(folder / "kept.db"))))
    assert report.can_start
    after = {path: path.read_bytes() for path in folder.glob("*.db*") if not path.name.endswith("-shm")}
    assert after == before
