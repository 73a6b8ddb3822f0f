"""How much tests do in a tier."""

from __future__ import annotations

from hypothesis import settings

__all__ = ("examples",)


def examples(most: int) -> int:
    """
    How many examples Hypothesis tries: for tests that ask for another number than its profile has.

    Args:
        most: the number asked for; with a profile of fewer (`quick`, in `conftest`) that is it.
    """
    return min(most, settings.default.max_examples) if settings.default else most
