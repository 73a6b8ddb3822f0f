"""The example gives what plain Python does."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from examples.spark_job import plan, some_orders

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
