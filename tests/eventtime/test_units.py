"""Timestamps in another unit than milliseconds are warned of, once; small and right ones never."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncstream import Count, NoWatermarks, Pipeline, Source, SourceBatch, TumblingWindows, UserFunctionError
from asyncstream.elements import MAX_TIMESTAMP, MIN_TIMESTAMP
from asyncstream.eventtime import other_unit
from tests.runtime.parts import run

WHEN = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
SECONDS = 1_700_000_000


@pytest.mark.parametrize(
    ("timestamp", "unit"),
    [(SECONDS, "seconds"), (SECONDS * 10**6 + 5, "microseconds"), (SECONDS * 10**9 + 5, "nanoseconds")],
)
def test_other_unit_is_told_with_the_day_and_the_fix(timestamp: int, unit: str) -> None:
    found = other_unit(timestamp)
    assert found is not None
    assert f"2023-11-14 in {unit}" in found
    assert "1000" in found


@pytest.mark.parametrize(
    "timestamp",
    [0, 10, 1000, -1, 86_400_000, 946_684_799, 4_102_444_800, SECONDS * 1000, MIN_TIMESTAMP, MAX_TIMESTAMP],
)
def test_what_may_be_milliseconds_is_not_doubted(timestamp: int) -> None:
    assert other_unit(timestamp) is None


@given(st.datetimes(datetime(1971, 1, 1), datetime(9999, 1, 1)))
def test_no_instant_after_1970_in_milliseconds_is_doubted(when: datetime) -> None:
    assert other_unit(int(when.replace(tzinfo=UTC).timestamp() * 1000)) is None


class Stamped(Source[int]):
    """Gives values with these timestamps, two in a batch."""

    def __init__(self, timestamps: Sequence[int | None]) -> None:
        self.timestamps = list(timestamps)

    async def read(self) -> SourceBatch[int] | None:
        batch, self.timestamps = self.timestamps[:2], self.timestamps[2:]
        return SourceBatch(list(range(len(batch))), batch) if batch else None


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "asyncstream.eventtime"]


@pytest.mark.parametrize(
    ("timestamps", "count"),
    [([SECONDS, SECONDS + 1, SECONDS + 2], 1), ([None, None, SECONDS], 1), ([0, SECONDS], 0), ([None], 0)],
)
def test_timestamps_of_a_source_are_warned_of_once(
    timestamps: list[int | None], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline()
    pipeline.source(Stamped(timestamps), name="in").to([])
    run(pipeline.run())
    assert len(warnings(caplog)) == count
    assert all("step 'in'" in text for text in warnings(caplog))


@pytest.mark.parametrize(
    ("times", "count"),
    [
        ([SECONDS, SECONDS + 1], 1),
        ([0, 10, SECONDS], 0),
        ([datetime(1970, 1, 20, tzinfo=UTC), SECONDS], 0),
        ([WHEN], 0),
    ],
)
def test_timestamps_of_an_extractor_are_warned_of_once(
    times: list[Any], count: int, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[Any] = []
    pipeline = Pipeline()
    stamped = pipeline.source(times).event_time(lambda time: time, NoWatermarks(), name="time")
    stamped.key_by(lambda time: 0).window(TumblingWindows(1)).aggregate(Count()).to(found)
    run(pipeline.run())
    assert len(warnings(caplog)) == count
    assert sum(result.value for result in found) == len(times)


@pytest.mark.usefixtures("virtual_time", "tidy")
async def test_job_that_continues_another_warns_no_second_time(caplog: pytest.LogCaptureFixture) -> None:
    pipeline = Pipeline()
    stream = pipeline.source(range(SECONDS, SECONDS + 5), name="in")
    stream.event_time(lambda time: time, NoWatermarks(), name="time").to([], name="out")
    async with pipeline.start() as job:
        await asyncio.sleep(0.01)
        snapshot = await job.stop()
    async with pipeline.start(snapshot=snapshot) as job:
        await job.wait()
    assert len(warnings(caplog)) == 1


def test_float_is_refused_with_the_fix() -> None:
    pipeline = Pipeline()
    pipeline.source([1_700_000_000.5]).event_time(lambda time: time, NoWatermarks()).to([])  # type: ignore[arg-type, return-value]
    with pytest.raises(UserFunctionError, match=r"for seconds use int\(seconds \* 1000\)"):
        run(pipeline.run())
