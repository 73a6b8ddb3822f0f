"""
A stream in a process of its own, to be killed: `python -m tests.spark.driver IN CHECKPOINT OUT`.

What a micro-batch gives replaces what was written under its number before.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.spark.cluster import event_columns, session
from tests.spark.test_contract import functions, on_spark


def main() -> None:
    source, checkpoint, out = map(Path, sys.argv[1:])
    spark = session()
    rows = spark.readStream.schema(event_columns()).option("maxFilesPerTrigger", 1).json(str(source))

    def write(outputs: Mapping[str, Any], number: int) -> None:
        lines = [row.line for row in outputs["lines"].collect()]
        unfinished = out / f"{number:05}.unfinished"
        unfinished.write_text(json.dumps(lines))
        unfinished.rename(out / f"{number:05}.json")

    writer = on_spark(spark, rows, functions, key_groups=5).write_stream(write)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    (out / "done").touch()


if __name__ == "__main__":
    main()
