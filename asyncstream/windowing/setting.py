"""
What assigners, triggers, evictors and aggregates are: settings, shown near to what was written to make them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar, Final

__all__ = ("Setting", "shown_ms")

_MAY_BE_NOTHING: Final = (int, float, str, tuple, list, dict, set, frozenset)
"""Only these are asked whether they are: an array says neither yes nor no."""


class Setting:
    """
    A part of a plan, shown with its public attributes: `SlidingWindows(size=1:00:00, slide=0:01:00)`.

    Left out are flags, and what is 0 or nothing, as most are by default.

    Attributes:
        unshown: names of attributes that follow from others.
    """

    unshown: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        parts = []
        for name, value in vars(self).items():
            if name == "event_time" and not value:
                parts.append("time='processing'")
            elif name.startswith("_") or name in self.unshown or _is_unsaid(value):
                continue
            elif name.endswith("_ms") and isinstance(value, int):
                parts.append(f"{name.removesuffix('_ms')}={shown_ms(value)}")
            else:
                parts.append(f"{name}={getattr(value, '__name__', None) or repr(value)}")
        return f"{type(self).__name__}({', '.join(parts)})"


def _is_unsaid(value: object) -> bool:
    return value is None or isinstance(value, bool) or (isinstance(value, _MAY_BE_NOTHING) and not value)


def shown_ms(length_ms: int) -> timedelta:
    """A length of time as plans show it; one that no timedelta holds as the longest that there is."""
    return timedelta(milliseconds=min(length_ms, timedelta.max // timedelta(milliseconds=1)))
