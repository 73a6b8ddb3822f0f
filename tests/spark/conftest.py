"""One Spark session for all tests of this folder; without PySpark there is one test, which is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

if find_spec("pyspark") is None:
    need_spark = set(Path(__file__).parent.glob("test_*.py"))
    collect_ignore = need_spark - {Path(__file__).with_name("test_installed.py")}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from tests.spark.cluster import session

    running = session()
    yield running
    running.stop()
