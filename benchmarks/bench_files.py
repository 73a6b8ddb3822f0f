"""
A million rows of a file, each with an answer that takes 5 ms, 200 at a time, into another file.

    Parquet or CSV ─▶ async_map (5 ms, 200 at once) ─▶ Parquet or CSV, with checkpoints or without

The base is what nobody can do without: 200 workers of asyncio that share an iterator over the rows, read by
pyarrow or csv and written by the same, in whatever order answers come. Each variant runs in a process of its
own, whose peak memory is reported. At the end a run with checkpoints is killed halfway and gone on with.
"""

from __future__ import annotations

import asyncio
import csv
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from asyncstream import Checkpoints, CsvSink, CsvSource, DirectoryStore, ParquetSink, ParquetSource, Pipeline
from benchmarks.kit import Goal, goals, table

__all__ = ("main",)

ROWS = 1_000_000
CONCURRENCY = 200
SECONDS = 0.005
CHUNK = 20_000
TURNS = 3

Row = dict[str, Any]


async def ask(row: Row) -> Row:
    await asyncio.sleep(SECONDS)
    return {**row, "answer": row["id"]}


def written(path: Path, rows: int) -> None:
    """Make the input."""
    records = ({"id": number, "name": f"row {number}", "value": number / 7} for number in range(rows))
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["id", "name", "value"])
            writer.writeheader()
            writer.writerows(records)
        return
    import pyarrow
    import pyarrow.parquet as parquet

    output: Any = None
    while chunk := list(islice(records, 100_000)):
        part = pyarrow.Table.from_pylist(chunk)
        output = output or parquet.ParquetWriter(path, part.schema)
        output.write_table(part)
    output.close()


# ------------------------------------------------------------------ by hand


def parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as parquet

    for batch in parquet.ParquetFile(path).iter_batches(1000):
        yield from batch.to_pylist()


def csv_rows(path: Path) -> Iterator[Row]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


class ParquetRows:
    """Writes rows in chunks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[Row] = []
        self._writer: Any = None

    def write(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) == CHUNK:
            self.flush()

    def flush(self) -> None:
        import pyarrow
        import pyarrow.parquet as parquet

        part = pyarrow.Table.from_pylist(self._rows)
        self._writer = self._writer or parquet.ParquetWriter(self._path, part.schema)
        self._writer.write_table(part)
        self._rows = []

    def close(self) -> None:
        if self._rows:
            self.flush()
        self._writer.close()


class CsvRows:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w", newline="")
        self._writer = csv.DictWriter(self._file, ["id", "name", "value", "answer"])
        self._writer.writeheader()

    def write(self, row: Row) -> None:
        self._writer.writerow(row)

    def close(self) -> None:
        self._file.close()


async def by_hand(source: Path, target: Path, kept: Path) -> None:
    is_csv = source.suffix == ".csv"
    rows = csv_rows(source) if is_csv else parquet_rows(source)
    sink: ParquetRows | CsvRows = CsvRows(target) if is_csv else ParquetRows(target)

    async def worker() -> None:
        for row in rows:
            sink.write(await ask(row))

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker())
    sink.close()


# ------------------------------------------------------------------ ours


def pipeline(source: Path, target: Path) -> Pipeline:
    built = Pipeline("files")
    is_csv = source.suffix == ".csv"
    rows: Any = CsvSource(source) if is_csv else ParquetSource(source)
    answers = built.source(rows, name="in").async_map(ask, concurrency=CONCURRENCY, name="ask")
    answers.to(CsvSink(target) if is_csv else ParquetSink(target), name="out")
    return built


async def plain(source: Path, target: Path, kept: Path) -> None:
    await pipeline(source, target).run()


async def with_checkpoints(source: Path, target: Path, kept: Path) -> None:
    checkpoints = Checkpoints(store=DirectoryStore(kept), every=2)
    await pipeline(source, target).run(checkpoints=checkpoints)


VARIANTS: dict[str, Callable[[Path, Path, Path], Awaitable[None]]] = {
    "workers by hand": by_hand,
    "asyncstream": plain,
    "asyncstream, checkpoints": with_checkpoints,
}
BASE = "workers by hand"


# ------------------------------------------------------------------ processes


class Run(NamedTuple):
    """What one process took: wall and CPU seconds, and MB at its peak."""

    wall: float
    cpu: float
    peak: float


def child(variant: str, source: str, folder: str) -> None:
    """What runs in a process of its own."""
    place = Path(folder)
    work = VARIANTS[variant]

    async def main() -> list[float]:
        wall, cpu = time.perf_counter(), time.process_time()
        await work(Path(source), place / f"out{Path(source).suffix}", place / "kept")
        return [time.perf_counter() - wall, time.process_time() - cpu]

    print(json.dumps([*asyncio.run(main()), peak()]))


def peak() -> float:
    """The most memory that this process had, in MB; not that of the one that began it, as rusage has it."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def command(variant: str, source: Path, folder: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.bench_files", variant, str(source), str(folder)]


def ids(path: Path) -> Iterator[int]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in files:
        for row in csv_rows(file) if file.suffix == ".csv" else parquet_rows(file):
            yield int(row["answer"])


def check(folder: Path, ending: str, rows: int, *, is_ordered: bool) -> None:
    found = ids(folder / f"out{ending}")
    if any(map(int.__ne__, found if is_ordered else sorted(found), range(rows))):
        raise AssertionError("wrong results, or in the wrong order")


def measured(variant: str, source: Path, rows: int) -> Run:
    with TemporaryDirectory() as made:
        folder = Path(made)
        done = subprocess.run(command(variant, source, folder), check=True, capture_output=True, text=True)
        check(folder, source.suffix, rows, is_ordered=variant != BASE)
    return Run(*json.loads(done.stdout))


def killed_and_resumed(source: Path, rows: int, after: float) -> bool:
    """Whether a run that is killed, and gone on with, has each row once."""
    with TemporaryDirectory() as made:
        folder = Path(made)
        running = subprocess.Popen(command("asyncstream, checkpoints", source, folder))
        time.sleep(after)
        running.kill()
        was_cut_off = running.wait() < 0
        subprocess.run(
            command("asyncstream, checkpoints", source, folder), check=True, stdout=subprocess.DEVNULL
        )
        check(folder, source.suffix, rows, is_ordered=True)
    return was_cut_off


def main(*, quick: bool = False) -> None:
    rows, turns = (ROWS // 10, 1) if quick else (ROWS, TURNS)
    reached = []
    with TemporaryDirectory() as made:
        for ending in (".parquet", ".csv"):
            written(source := Path(made) / f"in{ending}", rows)
            names = list(VARIANTS)
            runs: dict[str, list[Run]] = {name: [] for name in names}
            for turn in range(turns):
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    runs[name].append(measured(name, source, rows))
            print(f"#### {rows:,} rows of {ending[1:]}, 5 ms each, {CONCURRENCY} at once\n")
            lines = []
            for name in names:
                faster = median(b.wall / r.wall for b, r in zip(runs[BASE], runs[name], strict=True))
                wall, cpu = median(r.wall for r in runs[name]), median(r.cpu for r in runs[name])
                most = max(r.peak for r in runs[name])
                label = f"{name} (base)" if name == BASE else name
                lines.append(
                    (label, f"{rows / wall:,.0f}", f"{faster:.2f}×", f"{cpu / rows * 1e6:.1f}", f"{most:.0f}")
                )
                if name != BASE:
                    reached.append(Goal(f"{ending[1:]}, {name}: speed", faster, 0.95))
                    reached.append(Goal(f"{ending[1:]}, {name}: MB", most, 300, at_most=True, form="{:.0f}"))
            print(table(("", "rows/s", "faster", "CPU µs per row", "MB at the peak"), lines) + "\n")
            half = median(r.wall for r in runs["asyncstream, checkpoints"]) / 2
            was_cut_off = killed_and_resumed(source, rows, half)
            reached.append(
                Goal(f"{ending[1:]}: killed halfway, each row once", float(was_cut_off), 1, form="{:.0f}")
            )
    print(goals(reached))


if __name__ == "__main__":
    child(*sys.argv[1:])
