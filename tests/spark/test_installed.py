"""Says, once, why the other tests of this folder do not run; and what users are told then."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from asyncstream import Pipeline
from asyncstream.errors import MissingExtra
from asyncstream.runtime.spark import local_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_pyspark_is_there() -> None:
    pytest.importorskip("pyspark", reason="the tests of Spark need the extra [spark]")


def test_error_without_pyspark_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingExtra, match=r"running on Spark needs the extra \[spark\]"):
        local_spark()


def test_keyed_stream_without_protobuf_is_refused_in_place_of_a_crash_of_spark(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline()
    rows = pipeline.source(list[dict[str, int]](), name="rows").key_by(lambda row: row["value"])
    rows.reduce(lambda one, other: one, name="first").to([], name="out")
    stream = spark.readStream.format("rate").load()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(MissingExtra, match=r"a stream of keyed steps needs the extra \[spark\]"):
        _ = pipeline.on_spark(spark, inputs={"rows": stream}, outputs={"out": "value bigint"})["out"]
