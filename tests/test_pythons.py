"""Which interpreters of a machine continuous integration takes: `.ci/pythons`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

PYTHON = """#!/bin/sh
exec "{real}" -c '
import sys, sysconfig
from collections import namedtuple
Version = namedtuple("Version", "major minor micro releaselevel")
sys.executable, sys.version_info = "{name}", Version(3, {minor}, 0, "{level}")
sysconfig.get_config_vars()["Py_GIL_DISABLED"] = {is_free:d}
exec(sys.argv[1])
' "$2"
"""
"""This interpreter, which says that it is another one."""


def taken(
    folder: Path, *pythons: tuple[str, int, str, bool], newest: int, path: str = "/usr/bin:/bin"
) -> list[str]:
    """What is taken of these interpreters by a project that names Python 3.11 up to `newest`."""
    for name, minor, level, is_free in pythons:
        python = folder / "versions" / name / "bin" / "python3"
        python.parent.mkdir(parents=True)
        text = PYTHON.format(real=sys.executable, name=name, minor=minor, level=level, is_free=is_free)
        python.write_text(text)
        python.chmod(0o755)
    script = folder / "project" / ".ci" / "pythons"
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "pythons", script)
    named = "".join(f'    "Programming Language :: Python :: 3.{minor}",\n' for minor in (11, newest))
    (folder / "project" / "pyproject.toml").write_text(f"classifiers = [\n{named}]\n")
    environment = {"PATH": path, "PYENV_ROOT": str(folder)}
    done = subprocess.run([script], env=environment, capture_output=True, text=True, timeout=100, check=True)
    names = {name for name, *_ in pythons}
    return [name for name in done.stdout.split() if name in names]


def test_free_threaded_builds_and_versions_to_come_are_not_taken(tmp_path: Path) -> None:
    pythons = (
        ("3.91.0t", 91, "final", True),
        ("3.91.1", 91, "final", False),
        ("3.92.0t", 92, "final", True),
        ("3.93-dev", 93, "beta", False),
    )
    assert taken(tmp_path, *pythons, newest=99) == ["3.91.1"]


def test_what_is_newer_than_the_project_knows_is_not_taken(tmp_path: Path) -> None:
    pythons = (("3.91.0", 91, "final", False), ("3.92.0", 92, "final", False))
    assert taken(tmp_path, *pythons, newest=91) == ["3.91.0"]


def test_what_is_newer_is_taken_where_there_is_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for tool in ("sh", "sed", "sort", "tail", "awk", "dirname", "ls"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    pythons = (("3.91.0", 91, "final", False), ("3.92.0", 92, "final", False))
    assert taken(tmp_path, *pythons, newest=90, path=str(tmp_path / "bin")) == ["3.91.0"]
