"""A place on disk for what the operators of cases remember."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from asyncstream.state import Database, DiskState


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    opened = Database(DiskState(tmp_path_factory.mktemp("state")))
    yield opened
    opened.close()
