"""
What all tests share: Hypothesis without its limit on the time of an example, which on a busy machine tells
nothing of the code; and a log that keeps quiet.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")


@pytest.fixture
def quiet() -> Iterator[None]:
    """The package logs nothing but disasters: for tests that crash on purpose, over and over."""
    logger = logging.getLogger("asyncstream")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(level)
