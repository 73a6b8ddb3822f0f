"""Which interpreters of a machine continuous integration takes: `.ci/pythons`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

PYTHON = """#!/bin/sh
exec "{real}" -c '
import sys, sysconfig
from collections import namedtuple
Version = namedtuple("Version", "major minor micro releaselevel")
sys.executable, sys.version_info = "{name}", Version(99, {minor}, 0, "{level}")
sysconfig.get_config_vars()["Py_GIL_DISABLED"] = {is_free:d}
exec(sys.argv[1])
' "$2"
"""
"""This interpreter, which says that it is another one."""


def test_free_threaded_builds_and_versions_to_come_are_not_taken(tmp_path: Path) -> None:
    for name, minor, level, is_free in (
        ("99.1.0t", 1, "final", True),
        ("99.1.1", 1, "final", False),
        ("99.2.0t", 2, "final", True),
        ("99.3-dev", 3, "beta", False),
    ):
        python = tmp_path / "versions" / name / "bin" / "python3"
        python.parent.mkdir(parents=True)
        python.write_text(
            PYTHON.format(real=sys.executable, name=name, minor=minor, level=level, is_free=is_free)
        )
        python.chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", "PYENV_ROOT": str(tmp_path)}
    done = subprocess.run(
        [ROOT / ".ci" / "pythons"], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    assert [name for name in done.stdout.split() if name.startswith("99")] == ["99.1.1"]
