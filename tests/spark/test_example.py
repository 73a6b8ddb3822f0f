"""The examples give what plain Python does, and what the embedded engine does."""

from __future__ import annotations

import runpy
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from examples.spark_job import plan, some_orders
from tests.said import besides_slowness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_job_sums_up_all_orders_with_a_price(spark: SparkSession) -> None:
    orders = some_orders(spark, 2_000)
    found = plan(spark, orders)
    expected: Counter[tuple[str, int]] = Counter()
    without = 0
    for order in orders.collect():
        price = {"tea": 3, "rice": 2, "salt": 1}.get(order.article)
        if price is None:
            without += 1
        else:
            expected[order.shop, order.at_ms - order.at_ms % 60_000] += order.pieces * price
    assert {(row.shop, row.minute_ms): row.euros for row in found["minutes"].collect()} == dict(expected)
    failed = found["failed"].collect()
    assert len(failed) == without
    assert {row.error for row in failed} == {"KeyError: 'gold'"}
    found.release()


def test_demo_gives_equal_answers_both_ways(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, whose session it finds: half of its time would be the start of a Java."""
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    monkeypatch.setattr(sys, "argv", ["on_spark", "--days", "1"])
    runpy.run_module("examples.flights.on_spark", run_name="__main__", alter_sys=True)
    told = capsys.readouterr()
    assert besides_slowness(told.err) == ""
    shown = told.out.splitlines()
    assert [line.split(":")[0] for line in shown[1:3]] == ["embedded", "on Spark"]
    questions = (
        "delays by airline and weather",
        "rotations of each plane",
        "planes not seen for days",
        "weather and plane as of departure",
    )
    assert shown[3:] == [f"equal {ways}: {q}" for q in questions for ways in ("both ways", "to polars")]
