"""Hypothesis without its limit on the time of an example: on a busy machine it tells nothing of the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
