"""
Windows after Apache Storm: the last n elements or the last t of time, every m elements or every u of time.

In reading order: `events` (what is held), `eviction` (which of it is in a window), `trigger` (when a
window ends), `manager` (one sequence of windows), `watermark` (event time), `settings` (what may be asked
for), `operator` (`policy_window`, for a pipeline).

A window of a time length is (end - length, end]: its start is out, its end is in. With a time slide, ends
are multiples of the slide. Elements are held, counted and handed out in order of arrival, never sorted. All
of that is Storm's, and recorded cases of Storm hold it here.

Where Storm loses elements without a word, or where its answer hangs on when a thread woke up, the rule
here is another. No element that was taken disappears: each is in a window, or in the output `skipped` with
a counter beside it.

=================  ==============================  =================================  ========================
Rule               Storm                           Here                               Why
=================  ==============================  =================================  ========================
Scan stop          looks no further than the       all events up to the end are in    slow streams behind a
                   first event that is more than   the window                         fast one lost elements
                   the lag ahead of the end
Equal to the       not late, but in no window if   the same, and told: `skipped`; an  it was taken, so it must
watermark          the one that ends there has     end that came out empty fires for  turn up
                   fired                           it after all
Ties on a count    an event at or before the last  the same; it is company in a       it was taken, so it must
slide              end is not counted again        later window, or told: `skipped`   turn up
Slide over length  what falls into a hole expires  the same, and told: `skipped`      it may be a mistake
                   unseen
Count length,      fires at every slide of a gap,  fires only for an event that was   an hour's gap gave
time slide         with the same events            in no window                       360,000 equal windows
Timer's reference  the clock less 1 ms             the multiple of the slide that     results must not hang on
                                                   the timer was set for              when a timer goes off
Drift              a late or early timer makes     all windows that are due fire,     the same
                   its window longer or shorter    each as it would have in time
First window       of a timer: takes events of     is as long as any other            its reported start was
                   any age                                                            wrong
Start of time      watermark, first end and        no start; the first end is the     times before 1970 were
                   counted time start at 0         first multiple not before an       late or lost
                                                   event
Expired list       forgets what expired while a    keeps what windows have shown      `new` and `expired` add
                   window was empty                until the next can tell it         up to the window
Undeclared stream  counts for the watermark        is judged, but not waited for      its late first element
                                                                                      froze the watermark
Silent stream      holds all windows for ever      `idle_after`, `mark_idle`          results must come
Compaction         after 100 events or             after 100 events, in processing    event time holds no
                   watermarks, under all policies  time                               expired elements anyway
End of input       what is open is lost            fires; a rest below a count slide  a finite stream must
                                                   is a last, shorter window; the     come out whole, and
                                                   clock does not run on: one more    not over and over
                                                   window of a time slide
Restart            nothing is late, all is new,    watermark, window ends and what    a restored run equals
                   down time stretches a window    was new are restored               one without a crash
=================  ==============================  =================================  ========================

Not taken over: windows kept in partitions on disk, and recovery by message ids; checkpoints of the whole
pipeline do both. So no source waits for elements that windows hold to be acknowledged, and none is asked how
long it bears that.
"""

import warnings
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
from asyncstream.windowing.policies.settings import (
    LATE,
    PolicySettings,
    policy_schema,
    policy_settings,
)
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
    "PolicySettings",
    "PolicySpec",
    "policy_schema",
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
    if name not in FORMER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    now = FORMER[name]
    message = f"{__name__}.{name} is now {now.__name__}; the old name goes with version 0.4"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return now
