"""Where limits are shared in these tests: in each kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncstream.guards import LimitServer, SharedLimit


@pytest.fixture
def scope(tmp_path: Path) -> SharedLimit:
    return SharedLimit(f"sqlite:///{tmp_path}/limits.db")


@pytest.fixture
def server() -> Iterator[LimitServer]:
    with LimitServer() as server:
        yield server


@pytest.fixture(params=["sqlite", "server", pytest.param("redis", marks=pytest.mark.broker)])
def any_scope(request: pytest.FixtureRequest) -> SharedLimit:
    """One in each kind of store, in real time."""
    if request.param == "sqlite":
        found: SharedLimit = request.getfixturevalue("scope")
        return found
    if request.param == "server":
        return SharedLimit(request.getfixturevalue("server").url)
    return SharedLimit(request.getfixturevalue("redis_url"))
