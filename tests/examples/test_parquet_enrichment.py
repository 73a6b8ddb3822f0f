from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import polars
import pytest

from examples import parquet_enrichment as example

EXPECTED = {number for number in range(example.FLIGHTS) if number % 1000 != 999}


def check(folder: Path) -> None:
    found = polars.read_parquet(folder / "enriched/**/*.parquet", hive_partitioning=True)
    assert sorted(found["number"]) == sorted(EXPECTED)
    assert set(found.columns) == {"number", "day", "airline", "tailnum", "seats"}
    rejected = [json.loads(line) for line in (folder / "rejected.jsonl").read_text().splitlines()]
    assert [row["row_number"] for row in rejected] == [1000, 2000, 3000]
    assert "field tailnum" in rejected[0]["reason"]


def test_rows_are_enriched_and_those_that_are_none_go_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(example.main(tmp_path))
    check(tmp_path)
    out = capsys.readouterr().out
    assert "3 rows are no flights" in out
    assert all(airline in out for airline in example.AIRLINES)


@pytest.mark.slow
def test_killed_run_is_gone_on_with_and_each_row_is_there_once(tmp_path: Path) -> None:
    example.make_flights(tmp_path / "flights.parquet")
    program = (
        "import asyncio, sys; from pathlib import Path; from asyncstream import Checkpoints, DirectoryStore; "
        "from examples.parquet_enrichment import enrichment; folder = Path(sys.argv[1]); "
        "asyncio.run(enrichment(folder).run("
        "checkpoints=Checkpoints(store=DirectoryStore(folder / 'checkpoints'), every=0.1)))"
    )
    running = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    try:
        began = time.monotonic()
        while not list(tmp_path.glob("enriched/*/part-*")) and time.monotonic() - began < 60:
            assert running.poll() is None
            time.sleep(0.01)  # another process: there is nothing to wait for but its files
    finally:
        running.kill()
        running.wait()
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    check(tmp_path)
