"""The small examples: each runs, and prints what it always prints."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from examples import joins, policy_windows, sessions, timers, windows
from tests.said import besides_slowness

EXAMPLES = Path(windows.__file__).parent


def lines(main: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> list[str]:
    main()
    return capsys.readouterr().out.splitlines()


def test_windows_are_corrected_by_late_orders_and_what_is_too_late_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert lines(windows.main, capsys) == [
        "0 Oslo, orders: 3, euros: 35",
        "0 Rome, orders: 1, euros: 8",
        "0 Oslo, orders: 4, euros: 36",
        "60000 Rome, orders: 2, euros: 16",
        "60000 Oslo, orders: 1, euros: 30",
        "too late: (50, 'Oslo', 3)",
        "120000 Oslo, orders: 1, euros: 2",
    ]


def test_a_click_between_two_sessions_makes_them_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(sessions.main, capsys) == [
        "Ben: minutes 5 to 14, pages: 2",
        "Ann: minutes 0 to 65, pages: 4",
        "Ben: minutes 70 to 70, pages: 1",
        "Ann: minutes 200 to 200, pages: 1",
    ]


def test_a_timer_reports_who_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(timers.main, capsys) == [
        "second 80: nothing from the roof for 60 s",
        "second 190: nothing from the roof for 60 s",
        "second 200: nothing from the door for 60 s",
    ]


def test_orders_find_payments_prices_and_what_is_in_their_hour(capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(lines(joins.main, capsys)) == sorted(
        [
            "(1, 'tea', 2): paid in minute 4",
            "(7, 'salt', 1): never paid",
            "(20, 'tea', 5): paid in minute 22",
            "(43, 'tea', 1): never paid",
            "(1, 'tea', 2): 6 euros",
            "(7, 'salt', 1): no price",
            "(20, 'tea', 5): 20 euros",
            "(43, 'tea', 1): 4 euros",
            "tea: 3 orders, 2 payments",
            "salt: 1 orders, 1 payments",
        ]
    )


def test_policy_windows_are_of_a_number_or_of_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines(policy_windows.main, capsys) == [
        "last 2 prices: mean 10.5; 2 of them are new",
        "last 4 prices: mean 10.0; 2 of them are new",
        "last 4 prices: mean 9.0; 2 of them are new",
        "20 s up to second 0: highest 10; gone: []",
        "20 s up to second 10: highest 12; gone: []",
        "20 s up to second 20: highest 12; gone: [(0, 10)]",
        "20 s up to second 30: highest 9; gone: [(4, 11), (7, 12)]",
        "20 s up to second 40: highest 9; gone: [(11, 7), (13, 8)]",
    ]


@pytest.mark.parametrize("name", ["policy_windows", "sessions", "timers", "windows"])
def test_each_is_a_short_program_of_its_own(name: str) -> None:
    path = EXAMPLES / f"{name}.py"
    program = re.sub(r"\n# /// script\n(?:#.*\n)+", "", path.read_text())
    assert len(program.splitlines()) < 40
    run = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout
    assert not besides_slowness(run.stderr)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("[!_]*.py")), ids=lambda path: path.stem)
def test_each_says_what_a_runner_of_scripts_must_install(path: Path) -> None:
    """By PEP 723, as `uv run examples/windows.py` reads it; of the package as it is here."""
    block = re.search(r"^# /// script\n((?:#.*\n)+?)# ///$", path.read_text(), re.MULTILINE)
    assert block is not None
    told = tomllib.loads(re.sub(r"^# ?", "", block[1], flags=re.MULTILINE))
    project = tomllib.loads((EXAMPLES.parent / "pyproject.toml").read_text())["project"]
    assert told["requires-python"] == project["requires-python"]
    (needed,) = told["dependencies"]
    name, extra = re.fullmatch(r"(\w+)(?:\[(\w+)\])?", needed).groups()  # type: ignore[union-attr]
    assert name == project["name"]
    assert extra is None or extra in project["optional-dependencies"]
    source = told["tool"]["uv"]["sources"][name]
    assert (path.parent / source["path"]).resolve() == EXAMPLES.parent.resolve()
