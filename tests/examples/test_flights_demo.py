"""The demo as a user runs it, on a few days."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.said import besides_slowness

ROOT = Path(__file__).parents[2]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "examples.flights", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)


def test_demo_survives_the_service_agrees_with_polars_and_fits_on_a_screen() -> None:
    demo = run("--month", "7", "--days", "5")
    assert (demo.returncode, besides_slowness(demo.stderr)) == (0, "")
    shown = demo.stdout.splitlines()
    assert [line for line in shown if "equal to polars" in line] == [
        "equal to polars: delays by airline and weather",
        "equal to polars: delays by carrier and hour",
        "equal to polars: flights too late for their hour",
        "equal to polars: rotations of each plane",
        "equal to polars: planes not seen for days",
        "equal to polars: weather and plane as of departure; 45 flights without weather, 722 without plane",
    ]
    assert "4,453 flights in, 4,453 enriched, 0 routed aside" in demo.stdout
    assert "Worst of 889 airline hours, 643 times corrected; too late for that: 9 flights" in demo.stdout
    calls = next(line.split() for line in shown if line.split()[:2] == ["weather", "4,453"])
    requests, retried, timed_out, failed = calls[4:]
    assert int(requests.replace(",", "")) == 4453 + int(retried) > 4453
    assert (timed_out, failed) == ("0", "0")
    assert len(shown) <= 60
    assert max(map(len, shown)) <= 100


def test_wrong_options_are_refused_with_a_word() -> None:
    demo = run("--month", "13")
    assert demo.returncode == 2
    assert "argument --month: invalid choice: " in demo.stderr
