"""
The spec of a step of policy windows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from asyncstream.operators.spec import ClockUse, KeyBy, Spec, no_key
from asyncstream.state.schema import Schema, described
from asyncstream.windowing.policies.operator import COUNTED, PolicyWindow, PolicyWindowOperator, policy_window
from asyncstream.windowing.policies.settings import Extent, PolicySettings

__all__ = ("PolicySpec", "policy_spec")


@dataclass(frozen=True)
class PolicySpec(Spec):
    """
    Windows after Storm.

    Attributes:
        settings: which windows.
        function: makes a result of each; None: the window is the result.
        key_by: gives the key of an element; None: one sequence of windows for the whole stream.
        stream_of: names the stream of an element; None: there is one.
    """

    settings: PolicySettings
    function: Callable[[PolicyWindow[Any]], Any] | None = None
    key_by: KeyBy | None = None
    stream_of: Callable[[Any], str] | None = None

    operator = PolicyWindowOperator
    counters = COUNTED

    def build(self) -> PolicyWindowOperator:
        return PolicyWindowOperator(self.settings, self.function, self.key_by, self.stream_of)

    @property
    def keys(self) -> tuple[KeyBy | None, ...]:
        return (self.key_by or no_key,)

    @property
    def schema(self) -> Schema:
        form = ("length_count", "length_ms", "slide_count", "slide_ms", "event_time", "streams")
        rest = ("lag_ms", "watermark_interval_ms", "idle_after_ms")
        return Schema(
            {name: described(getattr(self.settings, name)) for name in form},
            settings={name: getattr(self.settings, name) for name in rest},
        )

    @property
    def clock(self) -> ClockUse:
        is_by_time = self.settings.event_time or self.settings.slide_ms is not None
        return ClockUse.WAITS if is_by_time else ClockUse.MAY_EMIT

    @property
    def has_own_watermark(self) -> bool:
        return self.settings.event_time


def policy_spec(
    length: Extent, slide: Extent | None, key_by: KeyBy | None, options: Mapping[str, Any]
) -> PolicySpec:
    """
    The spec of what `policy_window` makes of these arguments.

    Args:
        length, slide: as of `policy_window`.
        key_by: gives the key of an element; None: all share their windows.
        options: the other arguments of `policy_window`, by name.

    Raises:
        PipelineError: as `policy_window` does.
    """
    checked = policy_window(length, slide, key_by=key_by, **options)
    return PolicySpec(checked.settings, options.get("function"), key_by, options.get("stream_of"))
