"""Event time: how the watermarks of a stream are found."""

from asyncstream.eventtime.strategy import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    NoWatermarks,
    PunctuatedWatermarks,
    WatermarkGenerator,
    WatermarkStrategy,
)

__all__ = (
    "AscendingTimestamps",
    "BoundedOutOfOrderness",
    "NoWatermarks",
    "PunctuatedWatermarks",
    "WatermarkGenerator",
    "WatermarkStrategy",
)
