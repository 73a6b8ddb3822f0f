"""
Count orders by the minute, correct the figures when one comes late, keep what comes too late for that.

    python examples/windows.py
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["asyncstream"]
#
# [tool.uv.sources]
# asyncstream = { path = "..", editable = true }
# ///

from asyncstream import BoundedOutOfOrderness, Pipeline
from asyncstream.windowing import Count, Sum, TumblingWindows, WindowResult

ORDERS = [  # when (in seconds), where, how much; in the order in which they arrive
    *[(0, "Oslo", 20), (31, "Oslo", 5), (12, "Rome", 8), (59, "Oslo", 10), (66, "Rome", 7)],
    *[(75, "Oslo", 30), (58, "Oslo", 1), (110, "Rome", 9), (50, "Oslo", 3), (140, "Oslo", 2)],
]


def show(minute: WindowResult) -> None:
    print("{} {}, orders: {orders}, euros: {euros}".format(minute.start_ms, minute.key, **minute.value))


def main() -> None:
    pipeline = Pipeline("turnover")
    turnover = (
        pipeline.source(ORDERS)
        .event_time(lambda order: order[0] * 1000, BoundedOutOfOrderness(10))  # wait for 10 s
        .key_by(lambda order: order[1])
        .window(TumblingWindows(60))
        .allowed_lateness(20)  # for 20 s after that, an order fires its window once more
        .aggregate(orders=Count(), euros=Sum(lambda order: order[2]))
    )
    turnover.to(show)
    turnover.late.to(lambda order: print("too late:", order))
    pipeline.run_blocking()


if __name__ == "__main__":
    main()
