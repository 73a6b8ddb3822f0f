"""One Spark session for all tests of this folder; without PySpark there is one test, which is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if find_spec("pyspark") is None:
    collect_ignore_glob = ["test_[!i]*.py"]


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from tests.spark.cluster import session

    running = session()
    yield running
    running.stop()
