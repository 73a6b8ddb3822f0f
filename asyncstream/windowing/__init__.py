"""
Windows: grouping the elements of each key by time, by count or by silence.

In reading order:

| modules | what they are |
|---|---|
| `windows`, `assigners` | what a window is; which ones an element is in, and slices of these |
| `triggers`, `composite_triggers`, `trigger_context` | when its result is emitted; what a trigger sees |
| `evictors`, `functions`, `aggregates` | what is thrown out before; what is computed |
| `plan`, `spec` | what was asked for, checked; the step, which operator does it, and its state |
| `base`, `operator`, `merging` | what operators share; the one for any plan; its windows that merge |
| `panes`, `pane_store`, `pane_blocks` | on a grid, faster; kept how; slices merged ahead of windows |
| `pane_schedule`, `pane_ticks` | what is due when; fired by time, too |
| `sessions`, `session_calendar` | that merge, faster; whose turn is when |
| `fused_aggregates`, `partials` | aggregates as one loop; elements that come folded, from Spark |
| `upgrade` | state of one operator for another |
| `policies` | Storm's windows |
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
from asyncstream.windowing.base import LATE
from asyncstream.windowing.composite_triggers import AfterWatermark, ProcessingTimeoutTrigger, PurgingTrigger
from asyncstream.windowing.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
from asyncstream.windowing.functions import AggregateFunction, ProcessWindowFunction, Reduce, WindowContext
from asyncstream.windowing.merging import MergingWindowSet
from asyncstream.windowing.operator import WindowOperator
from asyncstream.windowing.plan import WindowPlan
from asyncstream.windowing.spec import WindowSpec, window_operator, window_schema
from asyncstream.windowing.trigger_context import TriggerContext
from asyncstream.windowing.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    Trigger,
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
