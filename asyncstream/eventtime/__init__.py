"""Event time: how the watermarks of a stream are found."""

from asyncstream.eventtime.strategy import (
    AscendingTimestamps,
    BoundedOutOfOrderness,
    IngestionTime,
    NoWatermarks,
    PunctuatedWatermarks,
    WatermarkGenerator,
    WatermarkStrategy,
)
from asyncstream.eventtime.units import check_timestamp, other_unit, warn_of_unit

__all__ = (
    "AscendingTimestamps",
    "BoundedOutOfOrderness",
    "IngestionTime",
    "NoWatermarks",
    "PunctuatedWatermarks",
    "WatermarkGenerator",
    "WatermarkStrategy",
    "check_timestamp",
    "other_unit",
    "warn_of_unit",
)
