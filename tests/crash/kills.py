"""What tests of killed processes share."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

PATIENCE = 100.0

ROOT = Path(__file__).parents[2]


def killed_within(process: subprocess.Popen[bytes], seconds: float) -> str:
    """How a process ended: "killed" by itself or, after that time, by us; else its last words."""
    try:
        _, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "killed"
    return "killed" if process.returncode == -signal.SIGKILL else errors.decode() or str(process.returncode)
