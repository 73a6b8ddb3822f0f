"""
A pipeline of jobs at a provider, in a process of its own, to be killed:
`python -m tests.crash.batch_app FOLDER`

The provider is files in the folder: `submitted.jsonl` has a line for each submission, and a job is done when
there is a file `open`. If there is a file `deadly`, the process is killed when the provider has a job, before
it is told so.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from asyncstream import Checkpoints, DirectoryStore, JsonLinesSink, Pipeline

__all__ = ("ELEMENTS", "SIZE", "Provider", "build", "main")

ELEMENTS, SIZE = 25, 10


class Provider:
    """A provider that does its work once for one key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def submit(self, elements: list[int], key: str) -> dict[str, Any]:
        with (self.folder / "submitted.jsonl").open("a") as file:
            file.write(json.dumps({"key": key, "elements": elements}) + "\n")
        if (self.folder / "deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return {"job": key, "elements": elements}

    async def poll(self, job: dict[str, Any]) -> bool:
        with (self.folder / "polled").open("a") as file:
            file.write(f"{job['job']}\n")
        return (self.folder / "open").exists()

    async def fetch(self, job: dict[str, Any]) -> list[dict[str, int]]:
        return [{"id": number, "double": 2 * number} for number in job["elements"]]


def build(folder: Path) -> Pipeline:
    provider, pipeline = Provider(folder), Pipeline("doubles")
    numbers = pipeline.source(range(ELEMENTS), name="numbers")
    doubles = numbers.async_batch(
        provider.submit, provider.poll, provider.fetch, size=SIZE, every=0.05, name="double"
    )
    doubles.to(JsonLinesSink(folder / "doubles.jsonl"), name="doubles")
    return pipeline


def main(folder: Path) -> None:
    checkpoints = Checkpoints(store=DirectoryStore(folder / "state"), every=3600)
    asyncio.run(build(folder).run(checkpoints=checkpoints))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
