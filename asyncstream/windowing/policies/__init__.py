"""
Windows after Apache Storm: the last n elements or the last t of time, every m elements or every u of time.

In reading order: `events` (what is held), `eviction` (which of it is in a window), `trigger` (when a
window ends), `manager` (one sequence of windows), `schedule` (which keys to look at), `watermark` (event
time), `settings` (what may be asked for), `operator` (`policy_window`, for a pipeline).

A window of a time length is (end - length, end]: its start is out, its end is in. With a time slide, ends
are multiples of the slide. Elements are held, counted and handed out in order of arrival, never sorted. All
of that is Storm's, and recorded cases of Storm hold it here.

Where Storm loses elements without a word, or where its answer hangs on when a thread woke up, the rule here
is another: `docs/coming-from.md` has them all. No element that was taken disappears: each is in a window, or
in the output `skipped` with a counter beside it.

Not taken over: windows kept in partitions on disk, and recovery by message ids; checkpoints of the whole
pipeline do both. So no source waits for elements that windows hold to be acknowledged, and none is asked how
long it bears that.
"""

from typing import Any, Final

from asyncstream.windowing.policies.events import Event, EventQueue
from asyncstream.windowing.policies.eviction import (
    CountEviction,
    Decision,
    EvictionPolicy,
    Firing,
    TimeEviction,
    WatermarkCountEviction,
    WatermarkTimeEviction,
)
from asyncstream.windowing.policies.manager import WindowManager
from asyncstream.windowing.policies.operator import (
    EXPIRED,
    SKIPPED,
    PolicyWindow,
    PolicyWindowOperator,
    policy_window,
)
from asyncstream.windowing.policies.settings import LATE, Extent, PolicySettings, policy_settings
from asyncstream.windowing.policies.spec import PolicySpec, policy_spec
from asyncstream.windowing.policies.trigger import (
    CountTriggerPolicy,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountTriggerPolicy,
    WatermarkTimeTriggerPolicy,
)
from asyncstream.windowing.policies.watermark import WatermarkEventGenerator

__all__ = (
    "policy_window",
    "PolicyWindow",
    "PolicyWindowOperator",
    "LATE",
    "SKIPPED",
    "EXPIRED",
    "Extent",
    "PolicySettings",
    "PolicySpec",
    "policy_settings",
    "policy_spec",
    "WindowManager",
    "Event",
    "EventQueue",
    "Decision",
    "Firing",
    "EvictionPolicy",
    "CountEviction",
    "TimeEviction",
    "WatermarkCountEviction",
    "WatermarkTimeEviction",
    "TriggerPolicy",
    "CountTriggerPolicy",
    "TimeTriggerPolicy",
    "WatermarkCountTriggerPolicy",
    "WatermarkTimeTriggerPolicy",
    "WatermarkEventGenerator",
)

FORMER: Final = {
    "CountTrigger": CountTriggerPolicy,
    "TimeTrigger": TimeTriggerPolicy,
    "WatermarkCountTrigger": WatermarkCountTriggerPolicy,
    "WatermarkTimeTrigger": WatermarkTimeTriggerPolicy,
    "WatermarkGenerator": WatermarkEventGenerator,
}
"""Names until version 0.4, which other classes have too."""


def __getattr__(name: str) -> Any:
    from asyncstream.former_names import former_name

    return former_name(__name__, name, FORMER, __name__ + ".{name} is now {now}")
