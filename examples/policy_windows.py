"""
Windows after Apache Storm: the last n elements every m, or the last t of time every u.

    python examples/policy_windows.py
"""

# /// script
# requires-python = ">=3.11"
# dependencies = ["asyncstream"]
#
# [tool.uv.sources]
# asyncstream = { path = "..", editable = true }
# ///

from datetime import timedelta

from asyncstream import AscendingTimestamps, Pipeline
from asyncstream.windowing.policies import PolicyWindow

TRADES = [(0, 10), (4, 11), (7, 12), (11, 7), (13, 8), (28, 9)]  # when (in seconds), price


def by_number(window: PolicyWindow[tuple[int, int]]) -> None:
    prices = [price for _, price in window.values]
    print(f"last {len(prices)} prices: mean {sum(prices) / len(prices)}; {len(window.new)} of them are new")


def by_time(window: PolicyWindow[tuple[int, int]]) -> None:
    prices = [price for _, price in window.values]
    print(f"20 s up to second {window.end_ms // 1000}: highest {max(prices)}; gone: {window.expired}")


def main() -> None:
    pipeline = Pipeline("prices")
    trades = pipeline.source(TRADES).event_time(lambda trade: trade[0] * 1000, AscendingTimestamps())
    trades.policy_window(length=4, slide=2).to(by_number)
    trades.policy_window(length=timedelta(seconds=20), slide=timedelta(seconds=10)).to(by_time)
    pipeline.run_blocking()


if __name__ == "__main__":
    main()
