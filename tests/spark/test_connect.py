"""Spark Connect gives what the embedded engine gives; its client has no Spark in its process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.spark.cluster import ROOT, batches_in, write_batches, written
from tests.spark.connect import ROWS
from tests.spark.contract import batches_of, embedded, embedded_to_the_end
from tests.spark.job import define
from tests.spark.processes import Program


def test_connect_gives_what_the_embedded_engine_gives(tmp_path: Path) -> None:
    source, checkpoint, out = (tmp_path / name for name in ("in", "checkpoint", "out"))
    out.mkdir()
    write_batches(source, batches_of(13, count=3))
    command = [sys.executable, "-m", "tests.spark.connect", str(source), str(checkpoint), str(out)]
    with Program(
        command, log=tmp_path / "log", folder=tmp_path, settings={"PYTHONPATH": str(ROOT)}
    ) as program:
        program.finish(240)
    found = json.loads((out / "found").read_text())
    assert found["enriched"] == [row | {"v": row["v"] * 2} for row in ROWS]
    assert found["labels"] == [f"{row['key']}-{row['v']}" for row in ROWS]
    assert sorted(found["bounded"]) == embedded_to_the_end(ROWS, define)
    assert "inputs['rows'] comes from a watermark of Spark's" in found["refused"]
    assert found["kept"] == ["a", "b", "bad"]
    assert "something of micro-batch 0 has been written there a moment ago" in found["parts"]
    assert sorted(written(out)) == embedded(batches_in(checkpoint), define)
