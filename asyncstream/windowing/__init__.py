"""
Windows: grouping the elements of each key by time, by count or by silence.

In reading order: `windows` (what a window is), `assigners` (which windows an element is in), `triggers` and
`composite_triggers` (when a window's result is emitted), `evictors` (what is thrown out before), `functions`
and `aggregates` (what is computed), `plan` (all of it together, checked), `step` (what all operators share)
and `operator`, for any plan, with `merging` (its sessions). The modules `panes`, with `slices` and
`pane_store`, `ticking`, which is that with early firings by time, and `sessions` do the same for common
cases, faster; `factory` chooses, and `upgrade` makes of the state of one that of another.
"""

from asyncstream.windowing.aggregates import (
    Aggregates,
    Collect,
    Count,
    CountDistinct,
    First,
    Last,
    Max,
    Mean,
    Min,
    Quantile,
    Sum,
)
from asyncstream.windowing.assigners import (
    CumulativeWindows,
    DynamicSessionWindows,
    GlobalWindows,
    SessionWindows,
    SlidingWindows,
    TumblingWindows,
    WindowAssigner,
)
from asyncstream.windowing.composite_triggers import AfterWatermark, ProcessingTimeoutTrigger, PurgingTrigger
from asyncstream.windowing.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
from asyncstream.windowing.factory import window_operator
from asyncstream.windowing.functions import AggregateFunction, ProcessWindowFunction, Reduce, WindowContext
from asyncstream.windowing.merging import MergingWindowSet
from asyncstream.windowing.operator import WindowOperator
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.schema import window_schema
from asyncstream.windowing.spec import WindowSpec
from asyncstream.windowing.step import LATE
from asyncstream.windowing.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)
from asyncstream.windowing.windows import GLOBAL_WINDOW, GlobalWindow, TimeWindow, Window, WindowResult

__all__ = (
    "GLOBAL_WINDOW",
    "LATE",
    "AfterWatermark",
    "AggregateFunction",
    "Aggregates",
    "Collect",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "Count",
    "CountDistinct",
    "CountEvictor",
    "CountTrigger",
    "CumulativeWindows",
    "DeltaEvictor",
    "DeltaTrigger",
    "DynamicSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "First",
    "GlobalWindow",
    "GlobalWindows",
    "Last",
    "Max",
    "Mean",
    "MergingWindowSet",
    "Min",
    "NeverTrigger",
    "ProcessWindowFunction",
    "ProcessingTimeTrigger",
    "ProcessingTimeoutTrigger",
    "PurgingTrigger",
    "Quantile",
    "Reduce",
    "SessionWindows",
    "SlidingWindows",
    "Sum",
    "TimeEvictor",
    "TimeWindow",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TumblingWindows",
    "Window",
    "WindowAssigner",
    "WindowContext",
    "WindowOperator",
    "WindowPlan",
    "WindowResult",
    "WindowSpec",
    "window_operator",
    "window_schema",
)
