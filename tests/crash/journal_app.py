"""
A pipeline that pays for each call, in a process of its own, to be killed:
`python -m tests.crash.journal_app FOLDER URL`

It takes a checkpoint when it begins, and the next one after 30 seconds, so between two kills there is none.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from asyncstream import Checkpoints, DirectoryStore, JsonLinesSink, Pipeline
from asyncstream.connectors.http import HttpLookup

__all__ = ("ELEMENTS", "build", "main")

ELEMENTS = 3000
CONCURRENCY = 20


def build(folder: Path, url: str) -> Pipeline:
    pipeline = Pipeline("shop")
    orders = pipeline.source([{"id": number} for number in range(ELEMENTS)], name="orders")
    charge = HttpLookup(
        url + "/charge/{id}", method="POST", merge=lambda order, receipt: order | receipt, timeout=30
    )
    charges = orders.async_map(
        charge, name="charge", concurrency=CONCURRENCY, order="unordered", journal=True
    )
    charges.to(JsonLinesSink(folder / "receipts.jsonl"), name="receipts")
    return pipeline


def main(folder: Path, url: str) -> None:
    checkpoints = Checkpoints(store=DirectoryStore(folder / "state"), every=30)
    asyncio.run(build(folder, url).run(checkpoints=checkpoints))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
