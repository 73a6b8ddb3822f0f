"""
A service in a process of its own, with uvicorn as it is: for tests that end it with signals.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

__all__ = ("ROOT", "service")

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def service(
    *command: str, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """
    Python with these arguments; its process and the address that uvicorn says it listens on.

    What it writes to stderr from then on is for the caller to read.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command),
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        said = []
        while (line := (await process.stderr.readline()).decode()) and "running on" not in line:
            said.append(line)
        found = re.search(r"http://[\d.]+:\d+", line)
        assert found, "the service did not come up: " + "".join(said)
        yield process, found[0]
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
