"""
Sources and sinks that cannot work: they fail in a job, name the step and the reason, and keep the password,
which is "secret" in all of these tests, to themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asyncstream import Pipeline, Sink, SinkError, Source, SourceError

__all__ = ("check_cannot_be_read", "check_cannot_be_written")

PATIENCE = 60.0
"""Seconds until one of them must have failed."""


async def check_cannot_be_read(source: Source[Any], says: str) -> None:
    """A job that reads it fails, with a message in which `says`, a regular expression, is found."""
    pipeline = Pipeline("reading")
    pipeline.source(source, name="in").discard()
    with pytest.raises(SourceError, match=f"(?s)step 'in': .*{says}") as told:
        await asyncio.wait_for(pipeline.run(), PATIENCE)
    assert "secret" not in str(told.value)


async def check_cannot_be_written(sink: Sink[Any], says: str, elements: Sequence[Any] = (1,)) -> None:
    """A job that writes these elements fails, as above."""
    pipeline = Pipeline("writing")
    pipeline.source(elements, name="in").to(sink, name="out")
    with pytest.raises(SinkError, match=f"(?s)step 'out': .*{says}") as told:
        await asyncio.wait_for(pipeline.run(), PATIENCE)
    assert "secret" not in str(told.value)
