"""
A test that hangs ends, also where no timeout comes through.
"""

from __future__ import annotations

from pathlib import Path

import pytest

CONFTEST = """
from tests import watchdog

watchdog.PATIENCE = 0.5
pytest_plugins = ["tests.watchdog"]
"""

HANGS = """
import time


def test_hangs():
    time.sleep(100)
"""


@pytest.mark.slow
def test_a_process_that_hangs_is_ended_and_says_where_it_was(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(HANGS)
    ended = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=60)
    assert ended.ret != 0
    ended.stderr.fnmatch_lines(["Timeout (0:00:00.500000)!", "*in test_hangs*"])
