"""A step whose calls cost money, and jobs of it that crash."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from asyncstream import Checkpoints, DirectoryStore, Pipeline


def charging(
    source: Any, charge: Any, results: list[Any], order: Any = "ordered", **options: Any
) -> Pipeline:
    pipeline = Pipeline("shop")
    orders: Any = pipeline.source(source, name="orders")
    if order == "per_key":
        orders = orders.key_by(lambda value: value % 7)
    options = {"journal": True, "concurrency": 10} | options
    charges = orders.async_map(charge, order=order, name="charge", **options)
    charges.to(results, name="results")
    if options.get("on_error") == "route":
        charges.failed.discard()
    return pipeline


def kept_in(folder: Path, **settings: Any) -> Checkpoints:
    return Checkpoints(store=DirectoryStore(folder), **({"every": 30} | settings))


async def crashed(pipeline: Pipeline, checkpoints: Checkpoints, seconds: float) -> None:
    """Run it, and leave it without a last checkpoint."""
    job = pipeline.start(checkpoints=checkpoints)
    await job.__aenter__()
    await asyncio.sleep(seconds)
    await job._run.close()
