"""
What a policy window may be asked for, checked when it is built, and which policies that makes.

One rule tells counts from durations: an `int` is a number of elements, a `timedelta` is a length of time. A
bare number of seconds, which other steps take, is refused here: `length=20` could mean either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from asyncstream.validation import Duration, count, duration_ms, flag, refuse, text
from asyncstream.windowing.assigners import TimeKind, is_event_time
from asyncstream.windowing.policies.eviction import (
    CountEviction,
    EvictionPolicy,
    TimeEviction,
    WatermarkCountEviction,
    WatermarkTimeEviction,
)
from asyncstream.windowing.policies.trigger import (
    CountTriggerPolicy,
    TimeTriggerPolicy,
    TriggerPolicy,
    WatermarkCountTriggerPolicy,
    WatermarkTimeTriggerPolicy,
)

__all__ = ("LATE", "Extent", "PolicySettings", "policy_settings")

Extent = int | timedelta
"""The length or the slide of a policy window: a number of elements, or a length of time."""

ONLY_STREAM: Final = "input"
"""Name of the stream to wait for where the user names none."""

LATE: Final = "late"
"""Tag of the output for late elements where the user names none."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """
    A policy window's arguments after their checks; exactly one of each pair of length and slide is set.

    Attributes:
        length_count, length_ms: how far a window reaches back, in elements or milliseconds.
        slide_count, slide_ms: how far apart two windows end.
        event_time: whether time is the elements' own or the clock's.
        lag_ms: how far out of order the elements of one stream may be.
        watermark_interval_ms: processing time between two watermarks.
        streams: the streams whose watermarks are waited for.
        idle_after_ms: processing time after which a silent stream is not waited for; None: never.
        late: tag of the output for late elements.
    """

    length_count: int | None
    length_ms: int | None
    slide_count: int | None
    slide_ms: int | None
    event_time: bool
    lag_ms: int
    watermark_interval_ms: int
    streams: tuple[str, ...]
    idle_after_ms: int | None
    late: str

    def eviction_policy(self) -> EvictionPolicy:
        """A new policy for the length."""
        if self.length_count is not None:
            policy = WatermarkCountEviction if self.event_time else CountEviction
            return policy(self.length_count)
        assert self.length_ms is not None
        return WatermarkTimeEviction(self.length_ms) if self.event_time else TimeEviction(self.length_ms)

    def trigger_policy(self) -> TriggerPolicy:
        """A new policy for the slide."""
        if self.slide_count is not None:
            by_count = WatermarkCountTriggerPolicy if self.event_time else CountTriggerPolicy
            return by_count(self.slide_count)
        assert self.slide_ms is not None
        by_time = WatermarkTimeTriggerPolicy if self.event_time else TimeTriggerPolicy
        return by_time(self.slide_ms, only_new=self.length_count is not None)


def policy_settings(
    length: Extent,
    slide: Extent | None = None,
    *,
    tumbling: bool = False,
    time: TimeKind = "event",
    lag: Duration = 0,
    watermark_interval: Duration = 1,
    streams: Sequence[str] | None = None,
    idle_after: Duration | None = None,
    late: str = LATE,
    outputs: Collection[str] | None = None,
) -> PolicySettings:
    """
    Check the arguments of `policy_window`, which explains them.

    Args:
        length, slide, tumbling, time: as of `policy_window`.
        lag, watermark_interval, streams, idle_after, late: as of it, too.
        outputs: the tags of all outputs that have readers, if known: `late` must be one of them.

    Raises:
        PipelineError: if an argument is wrong.
    """
    its_length = _extent("length", length)
    if flag("tumbling", tumbling) and slide is not None:
        raise refuse("slide", "None with tumbling=True, whose slide is its length", slide)
    its_slide = its_length if tumbling else _extent("slide", 1 if slide is None else slide)
    event_time = is_event_time(time)
    lag_ms = duration_ms("lag", lag, zero=True)
    interval_ms = duration_ms("watermark_interval", watermark_interval)
    idle_after_ms = None if idle_after is None else duration_ms("idle_after", idle_after)
    if isinstance(streams, str) or not isinstance(streams, Iterable | None):
        raise refuse("streams", "at least one name, each once", streams)
    names = (ONLY_STREAM,) if streams is None else tuple(text("streams", name) for name in streams)
    if not names or len(set(names)) < len(names):
        raise refuse("streams", "at least one name, each once", streams)
    if text("late", late) != LATE and outputs is not None and late not in outputs:
        raise refuse("late", f"one of the outputs {sorted(outputs)}", late)
    of_event_time = {"streams": streams, "idle_after": idle_after, "late": None if late == LATE else late}
    for name, given in of_event_time.items():  # but `lag`, which Storm takes, too
        if given is not None and not event_time:
            raise refuse(name, 'nothing with time="processing", where no element is late or waits', given)
    return PolicySettings(
        *its_length, *its_slide, event_time, lag_ms, interval_ms, names, idle_after_ms, late
    )


def _extent(name: str, value: object) -> tuple[int | None, int | None]:
    """(count, None) or (None, milliseconds)."""
    if isinstance(value, timedelta):
        return None, duration_ms(name, value)
    if isinstance(value, int) and not isinstance(value, bool):
        return count(name, value), None
    expected = "an int (a number of elements) or a timedelta (a length of time)"
    raise refuse(name, expected, value, "e.g. 20, or timedelta(seconds=20)")
