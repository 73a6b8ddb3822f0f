"""What programs say on stderr, as tests compare it."""

from __future__ import annotations

__all__ = ("besides_slowness",)


def besides_slowness(stderr: str) -> str:
    """All but the warnings of an event loop that was held up: on a busy machine any step may be."""
    return "".join(
        line for line in stderr.splitlines(keepends=True) if "has held the event loop for" not in line
    )
