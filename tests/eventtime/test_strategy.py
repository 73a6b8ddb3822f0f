from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from asyncstream import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    NoWatermarks,
    PipelineError,
    PunctuatedWatermarks,
)
from asyncstream.elements import MIN_TIMESTAMP
from asyncstream.eventtime import WatermarkGenerator, WatermarkStrategy


def wrong(value: Any) -> Any:
    """What the type checker must not see."""
    return value


def marks(strategy: WatermarkStrategy, timestamps: list[int]) -> list[int | None]:
    generator = strategy.generator()
    return [generator.on_element(None, timestamp) for timestamp in timestamps]


def test_bounded_is_behind_by_the_delay_and_one_millisecond() -> None:
    strategy = BoundedOutOfOrderness(timedelta(seconds=5), every=0)
    assert marks(strategy, [10_000, 9_000, 10_001]) == [4_999, None, 5_000]


def test_bounded_without_delay_allows_equal_timestamps() -> None:
    assert marks(BoundedOutOfOrderness(0, every=0), [7, 7, 8]) == [6, None, 7]


def test_ascending_is_bounded_by_nothing() -> None:
    assert marks(AscendingTimestamps(every=0), [7, 8]) == [6, 7]


def test_every_counts_event_time_from_the_last_watermark() -> None:
    strategy = AscendingTimestamps(every=0.2)
    assert marks(strategy, [0, 199, 200, 399, 1000]) == [-1, None, 199, None, 999]


def test_quiet_stream_gets_a_watermark_with_each_element() -> None:
    assert None not in marks(AscendingTimestamps(), [0, 1_000, 2_000, 3_000])


def test_punctuated_takes_the_word_of_the_element_and_never_goes_back() -> None:
    generator = PunctuatedWatermarks(lambda value, timestamp: value).generator()
    assert [generator.on_element(value, 0) for value in (None, 5, 4, 5, None, 6)] == [
        None, 5, None, None, None, 6,
    ]  # fmt: skip


@pytest.mark.parametrize("mark", [1.5, "5", True])
def test_punctuated_refuses_what_is_no_timestamp(mark: Any) -> None:
    generator = PunctuatedWatermarks(lambda value, timestamp: mark).generator()
    with pytest.raises(TypeError, match="a timestamp is an int"):
        generator.on_element(None, 0)


def test_no_watermarks_gives_none() -> None:
    assert marks(NoWatermarks(), [1, 2, 3]) == [None] * 3


def test_threshold_says_who_need_not_ask() -> None:
    generator = AscendingTimestamps(every=0.1).generator()
    assert generator.threshold == MIN_TIMESTAMP
    generator.on_element(None, 50)
    assert generator.threshold == 150
    assert generator.on_element(None, 149) is None
    assert generator.on_element(None, 150) == 149


def test_runs_do_not_share_a_generator() -> None:
    strategy = AscendingTimestamps(every=0)
    assert marks(strategy, [10]) == marks(strategy, [10]) == [9]


def test_strategy_of_ones_own() -> None:
    class EachTenth(WatermarkGenerator):
        def on_element(self, value: Any, timestamp: int) -> int | None:
            return timestamp if timestamp % 10 == 0 else None

    class Tenths(WatermarkStrategy):
        def generator(self) -> WatermarkGenerator:
            return EachTenth()

    assert marks(Tenths(), [5, 10, 11, 20]) == [None, 10, None, 20]
    generator = Tenths().generator()
    generator.restore(generator.snapshot())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BoundedOutOfOrderness(-1), "delay: expected a duration of at least 0, got -1"),
        (
            lambda: BoundedOutOfOrderness(wrong("5s")),
            "delay: expected a timedelta or a number of seconds, got '5s'",
        ),
        (lambda: BoundedOutOfOrderness(0.0001), "delay: expected a whole number of milliseconds"),
        (lambda: BoundedOutOfOrderness(1, every=-1), "every: expected a duration of at least 0"),
        (lambda: AscendingTimestamps(every=wrong(None)), "every: expected a timedelta"),
        (lambda: PunctuatedWatermarks(wrong(5)), "watermark: expected a function, got 5"),
    ],
)
def test_wrong_setting_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PipelineError) as caught:
        make()
    assert message in str(caught.value)
