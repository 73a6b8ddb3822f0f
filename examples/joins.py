"""
Three ways to bring two streams together: pairs that are near in time, the price that was valid, and what is
in the same window.

    python examples/joins.py
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["asyncstream"]
#
# [tool.uv.sources]
# asyncstream = { path = "..", editable = true }
# ///

from datetime import timedelta
from operator import itemgetter
from typing import Any

from asyncstream import AscendingTimestamps, KeyedStream, Pipeline, TumblingWindows

Event = tuple[int, str, int]
"""Minute, item, amount."""

ORDERS: list[Event] = [(1, "tea", 2), (7, "salt", 1), (20, "tea", 5), (43, "tea", 1)]
PAYMENTS: list[Event] = [(4, "tea", 6), (22, "tea", 20), (55, "salt", 2)]
PRICES: list[Event] = [(0, "tea", 3), (15, "tea", 4)]


def events(pipeline: Pipeline, name: str, given: list[Event]) -> KeyedStream[str, Event]:
    source = pipeline.source(given, name=name)
    return source.event_time(lambda event: event[0] * 60_000, AscendingTimestamps()).key_by(itemgetter(1))


def show_payment(pair: tuple[Event, Event | None]) -> None:
    order, payment = pair
    print(f"{order}: {'never paid' if payment is None else f'paid in minute {payment[0]}'}")


def show_price(pair: tuple[Event, Event | None]) -> None:
    order, price = pair
    print(f"{order}: {'no price' if price is None else f'{order[2] * price[2]} euros'}")


def show_hour(group: Any) -> None:
    print(f"{group.key}: {len(group.left)} orders, {len(group.right)} payments")


def main() -> None:
    pipeline = Pipeline("paid within ten minutes")
    orders, payments = events(pipeline, "orders", ORDERS), events(pipeline, "payments", PAYMENTS)
    orders.join(payments, how="left").within(0, timedelta(minutes=10)).to(show_payment)
    pipeline.run_blocking()

    pipeline = Pipeline("at the price of the time")
    orders, prices = events(pipeline, "orders", ORDERS), events(pipeline, "prices", PRICES)
    orders.as_of(prices).to(show_price)
    pipeline.run_blocking()

    pipeline = Pipeline("in the same hour")
    orders, payments = events(pipeline, "orders", ORDERS), events(pipeline, "payments", PAYMENTS)
    orders.co_group(payments).window(TumblingWindows(timedelta(hours=1))).to(show_hour)
    pipeline.run_blocking()


if __name__ == "__main__":
    main()
