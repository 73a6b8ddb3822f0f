"""
Group the clicks of each visitor into visits: a pause of half an hour ends one.

    python examples/sessions.py
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

from asyncstream import BoundedOutOfOrderness, Pipeline
from asyncstream.windowing import CountDistinct, Max, Min, SessionWindows, WindowResult

CLICKS = [  # minute, visitor, page; the click in minute 40 joins what were two visits of Ann until then
    *[(0, "Ann", "/"), (5, "Ben", "/"), (10, "Ann", "/shop"), (12, "Ben", "/"), (14, "Ben", "/help")],
    *[(65, "Ann", "/cart"), (40, "Ann", "/book"), (70, "Ben", "/"), (200, "Ann", "/")],
]
minute, visitor, page = itemgetter(0), itemgetter(1), itemgetter(2)
PAUSE = timedelta(minutes=30)


def show(visit: WindowResult) -> None:
    print("{}: minutes {first} to {last}, pages: {pages}".format(visit.key, **visit.value))


def main() -> None:
    pipeline = Pipeline("visits")
    (
        pipeline.source(CLICKS)
        .event_time(lambda click: minute(click) * 60_000, BoundedOutOfOrderness(PAUSE))
        .key_by(visitor)
        .window(SessionWindows(PAUSE))
        .aggregate(first=Min(minute), last=Max(minute), pages=CountDistinct(page))
        .to(show)
    )
    pipeline.run_blocking()


if __name__ == "__main__":
    main()
